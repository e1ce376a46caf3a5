// Judges and applies histories of tree actions that Python wrote, one JSON object a line on stdin:
// {"events": […], "refusals": [[field, …], …], "state": canonical text, "undos": […] | null}. Every difference is printed; the last line
// counts what was compared.

import { createInterface } from "node:readline";
import { canonical } from "../build/canonical.js";
import { treeModel } from "../build/model/tree.js";
import { treeUndoRules } from "../build/model/tree-undo.js";
import { spelled } from "./undo-vectors.mjs";

const model = treeModel();
let histories = 0;
let events = 0;
let refused = 0;
let differences = 0;
let undone = 0;

function differs(line, what, expected, found) {
  differences += 1;
  if (differences <= 5) console.log(JSON.stringify({ history: line, what, expected, found }));
}

function judge(state, event) {
  const errors = model.shape(event);
  return errors.length ? errors : model.refusals(state, event);
}

for await (const line of createInterface({ input: process.stdin, crlfDelay: Infinity })) {
  const history = JSON.parse(line);
  const state = model.empty();
  const marks = [];
  const undos = [];
  history.events.forEach((event, index) => {
    const before = JSON.stringify(event);
    marks.push(state.mark());
    const errors = judge(state, event);
    const fields = errors.map((error) => error.field);
    if (JSON.stringify(fields) !== JSON.stringify(history.refusals[index])) {
      differs(histories, `refusals of event ${index} ${before}`, history.refusals[index], fields);
    }
    if (errors.length) refused += 1;
    else if (history.undos) {
      const [, compensation] = treeUndoRules.watch(state, event, () => model.apply(state, event) ?? true);
      undos.push(compensation);
    } else model.apply(state, event);
    if (JSON.stringify(event) !== before) differs(histories, `event ${index} was changed`, before, event);
    events += 1;
  });
  const text = canonical(state.dump(), 1e6);
  if (text !== history.state) differs(histories, "state", history.state, text);
  for (const [index, compensation] of undos.entries()) {
    const found = spelled(treeUndoRules, compensation, state);
    if (found !== history.undos[index]) differs(histories, `undo of applied event ${index}`, history.undos[index], found);
    if (compensation) undone += 1;
  }
  // A state that was dumped and loaded goes on as before, and so does one that was rolled back.
  const half = Math.floor(marks.length / 2);
  state.rollback(marks[half] ?? 0);
  const loaded = model.load(JSON.parse(JSON.stringify(state.dump())));
  for (const event of history.events.slice(half)) {
    model.replay(state, event);
    if (!judge(loaded, event).length) model.apply(loaded, event);
  }
  for (const [what, again] of [["rolled back", state], ["loaded", loaded]]) {
    const same = canonical(again.dump(), 1e6);
    if (same !== text) differs(histories, `state ${what} at event ${half}`, text, same);
  }
  histories += 1;
}
console.log(JSON.stringify({ histories, events, refused, undone, differences }));
process.exitCode = differences ? 1 : 0;
