// Feeds inputs that Python recorded to `advance` and compares every effect and the whole state after each of them.

import { createInterface } from "node:readline";
import { decode } from "../build/codec.js";
import { advance } from "../build/sync/advance.js";
import { initialState } from "../build/sync/state.js";
import { byCodePoints } from "../build/partitions.js";

const counted = { histories: 0, steps: 0, effects: 0, differences: 0 };
const kinds = new Set();
const LEFT_OUT = ["options", "reason", "message", "state"];

/** A value as Python writes its own: maps and sets sorted, events by their ids. */
function plain(value, key) {
  if (value instanceof Map) {
    return [...value].map(([name, part]) => [name, plain(part)]).sort((a, b) => byCodePoints(a[0], b[0]));
  }
  if (value instanceof Set) return [...value].sort(byCodePoints);
  if (Array.isArray(value)) return value.map((part) => plain(part));
  if (typeof value !== "object" || value === null) return value ?? null;
  if ("committed_id" in value) return [value.committed_id, value.id];
  if ("field" in value) return value.field;
  if (key === "limits") return value;
  if (value.kind === "ReportProblem") return { kind: value.kind, code: value.code };
  const entries = Object.entries(value).filter(([name]) => !LEFT_OUT.includes(name));
  return Object.fromEntries(entries.map(([name, part]) => [name, plain(part, name)]));
}

/** Objects with their keys in order; what is null may be left out. */
function text(value) {
  return JSON.stringify(value, (_, part) =>
    typeof part === "object" && part !== null && !Array.isArray(part)
      ? Object.fromEntries(Object.entries(part).filter(([, each]) => each !== null).sort(([a], [b]) => (a < b ? -1 : 1)))
      : part,
  );
}

function input(given) {
  const { text: message, startStates, ...rest } = given;
  if (given.kind !== "Received") return rest;
  const starts = new Map((startStates ?? []).map(([name, committedId]) => [name, { committedId, state: {} }]));
  return { ...rest, message: decode(message), startStates: starts };
}

function differs(what, expected, found, step) {
  counted.differences += 1;
  if (counted.differences <= 3) console.log(JSON.stringify({ history: counted.histories, what, expected, found, step }));
}

for await (const line of createInterface({ input: process.stdin, crlfDelay: Infinity })) {
  const { initial, steps } = JSON.parse(line);
  let state = initialState("compatibility", {
    ...initial,
    cursors: new Map(initial.cursors),
    highestCursors: new Map(initial.highestCursors),
  });
  for (const [index, step] of steps.entries()) {
    const [next, effects] = advance(state, input(step.input), step.now);
    state = next;
    const found = text(effects.map((effect) => plain(effect)));
    const shown = text(plain(state));
    counted.steps += 1;
    counted.effects += effects.length;
    for (const effect of effects) kinds.add(effect.kind);
    if (found !== text(step.effects)) differs(`effects of step ${index}`, text(step.effects), found, step.input);
    else if (shown !== text(step.state)) differs(`state after step ${index}`, text(step.state), shown, step.input);
    else continue;
    break;
  }
  counted.histories += 1;
}
console.log(JSON.stringify({ ...counted, kinds: kinds.size }));
process.exitCode = counted.differences ? 1 : 0;
