// Reduces histories by declarative reducers that Python wrote, one JSON object a line on stdin:
// {"reducers": …, "events": […], "outcomes": ["applied" | "failed" | [field, …], …], "state": canonical text, "undos": […]}.

import { createInterface } from "node:readline";
import { canonical } from "../build/canonical.js";
import { eventModel } from "../build/model/declared.js";
import { eventUndoRules } from "../build/model/event-undo.js";
import { spelled } from "./undo-vectors.mjs";

const counted = { histories: 0, events: 0, applied: 0, refused: 0, failed: 0, undone: 0, differences: 0 };

function differs(what, expected, found) {
  counted.differences += 1;
  if (counted.differences <= 5) console.log(JSON.stringify({ history: counted.histories, what, expected, found }));
}

function outcome(model, state, event, undos = []) {
  const errors = model.refusals(state, event);
  if (errors.length) return errors.map((error) => error.field);
  try {
    undos.push(eventUndoRules(model).watch(state, event, () => model.apply(state, event) ?? true)[1]);
    return "applied";
  } catch {
    return "failed";
  }
}

for await (const line of createInterface({ input: process.stdin, crlfDelay: Infinity })) {
  const history = JSON.parse(line);
  const model = eventModel({ reducers: history.reducers });
  const state = model.empty();
  const marks = [];
  const replayed = model.empty();
  const undos = [];
  history.events.forEach((event, index) => {
    marks.push(state.mark());
    const found = outcome(model, state, event, undos);
    const expected = history.outcomes[index];
    if (JSON.stringify(found) !== JSON.stringify(expected)) {
      differs(`event ${index} ${JSON.stringify(event)} by ${JSON.stringify(history.reducers)}`, expected, found);
    }
    counted.events += 1;
    counted[typeof found === "string" ? found : "refused"] += 1;
    if (found === "applied" && !model.replay(replayed, event)) differs(`replay of event ${index}`, true, false);
  });
  const text = canonical(state.dump(), 1e6);
  if (text !== history.state) differs(`state by ${JSON.stringify(history.reducers)}`, history.state, text);
  if (canonical(replayed.dump(), 1e6) !== text) differs("state replayed", text, replayed.dump());
  const rules = eventUndoRules(model);
  undos.forEach((each, index) => {
    const found = spelled(rules, each, state);
    const expected = history.undos[index];
    if (found !== expected) differs(`undo of applied event ${index} by ${JSON.stringify(history.reducers)}`, expected, found);
    if (each?.events.length) counted.undone += 1;
  });
  const half = Math.floor(marks.length / 2);
  state.rollback(marks[half] ?? 0);
  const loaded = model.load(JSON.parse(JSON.stringify(state.dump())));
  for (const event of history.events.slice(half)) {
    outcome(model, state, event);
    outcome(model, loaded, event);
  }
  for (const again of [state, loaded]) {
    const same = canonical(again.dump(), 1e6);
    if (same !== text) differs("state rolled back or loaded", text, same);
  }
  counted.histories += 1;
}
console.log(JSON.stringify(counted));
process.exitCode = counted.differences ? 1 : 0;
