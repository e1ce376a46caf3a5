/** The protocol as a client speaks it: server messages checked and typed, client messages encoded. */

import {
  SHAPES,
  VERSION,
  type CommittedEvent,
  type Connected,
  type ErrorMessage,
  type FieldError,
  type Json,
  type JsonObject,
  type Limits,
  type ServerSnapshot,
  type SubmitResult,
  type SyncResponse,
  type VersionChanged,
} from "./wire.js";

/** Text that is no server message; the message says why. */
export class BadMessage extends Error {}

export type ServerMessage =
  | { type: "connected"; payload: Connected }
  | { type: "event_broadcast"; payload: CommittedEvent }
  | { type: "sync_response"; payload: SyncResponse }
  | { type: "submit_events_result"; payload: SubmitResult }
  | { type: "version_changed"; payload: VersionChanged }
  | { type: "heartbeat_ack"; payload: JsonObject }
  | { type: "error"; payload: ErrorMessage };

/** A message of a type this client does not know; an extension may. */
export interface UnknownMessage {
  type: string;
  payload: JsonObject;
  unknown: true;
}

/** Name, type, and the default where there is one. */
type Field = readonly [name: string, code: string, otherwise: unknown];

const fieldOf = (text: string): Field => {
  const [name = "", code = "", otherwise] = text.split(/[:=]/);
  if (code.endsWith("?")) return [name, code, null];
  return [name, code, otherwise && JSON.parse(otherwise.replaceAll("'", '"'))];
};

const shapes = new Map<string, Field[]>(
  Object.entries(SHAPES).map(([name, text]) => [name, text ? text.split(" ").map(fieldOf) : []]),
);

export const isObject = (value: unknown): value is JsonObject =>
  typeof value === "object" && value !== null && !Array.isArray(value);

/** The server's message, or one of an unknown type; BadMessage when it is neither. */
export function decode(data: string): ServerMessage | UnknownMessage {
  let envelope: unknown;
  try {
    envelope = JSON.parse(data);
  } catch {
    throw new BadMessage("not JSON");
  }
  if (!isObject(envelope) || typeof envelope["type"] !== "string" || !isObject(envelope["payload"])) {
    throw new BadMessage("not a message of this protocol");
  }
  const payload = envelope["payload"];
  const type = envelope["type"] === "event_committed" ? "event_broadcast" : envelope["type"];
  // Parts of messages have names with a capital.
  if (!/^[a-z]/.test(type) || !shapes.has(type)) return { type, payload, unknown: true };
  return { type, payload: shaped(type, payload, type) } as ServerMessage;
}

/** The snapshots of a sync_response; BadMessage when they do not have the right shape. */
export function decodeSnapshots(data: Json): ServerSnapshot[] {
  return checked("[]ServerSnapshot", data, "snapshots") as ServerSnapshot[];
}

/** Committed events of another message; BadMessage when they do not have the right shape. */
export function decodeEvents(data: Json, where: string): CommittedEvent[] {
  return checked("[]event_broadcast", data, where) as CommittedEvent[];
}

function shaped(name: string, value: unknown, where: string): object {
  if (!isObject(value)) throw new BadMessage(`${where}: not an object`);
  const made: Record<string, unknown> = {};
  for (const [field, code, otherwise] of shapes.get(name) as Field[]) {
    const given = Object.hasOwn(value, field) ? value[field] : otherwise;
    if (given === undefined) throw new BadMessage(`${where}.${field}: is missing`);
    made[field] = checked(code, given, `${where}.${field}`);
  }
  return made;
}

function checked(code: string, value: unknown, where: string): unknown {
  if (code.endsWith("?")) return value === null ? null : checked(code.slice(0, -1), value, where);
  if (code.startsWith("[]")) {
    if (!Array.isArray(value)) throw new BadMessage(`${where}: not an array`);
    return value.map((each) => checked(code.slice(2), each, where));
  }
  const kind = typeof value;
  const right =
    code === "*" ||
    (code === "s" && kind === "string") ||
    (code === "b" && kind === "boolean") ||
    (code === "n" && kind === "number") ||
    (code === "i" && Number.isSafeInteger(value));
  if (right) return value;
  if (code.length === 1) throw new BadMessage(`${where}: of the wrong type`);
  return shaped(code, value, where);
}

/** The protocol's limits, for a server that advertises none. */
export const LIMITS = shaped("Limits", {}, "") as Limits;

/** The field errors of a result or an error, whatever shape the server gives them. */
export function fieldErrors(listed: Json | undefined): FieldError[] {
  if (!Array.isArray(listed)) return [];
  return listed.map((each) =>
    isObject(each)
      ? { field: String(each["field"] ?? ""), message: String(each["message"] ?? "") }
      : { field: "", message: String(each) },
  );
}

/** One message as text; `payload` is JSON text already. */
export function encode(type: string, id: string, nowMs: number, payload: string): string {
  return `{"type":${JSON.stringify(type)},"msg_id":${JSON.stringify(id)},"timestamp":${nowMs},"protocol_version":"${VERSION}","payload":${payload}}`;
}

/** One item of a submit, with the stored text of its event spliced in. */
export function itemPayload(id: string, partitions: readonly string[], event: string): string {
  return `{"id":${JSON.stringify(id)},"partitions":${JSON.stringify(partitions)},"event":${event}}`;
}

/** Room to leave in a message for everything around its items. */
export const ENVELOPE_BYTES = 256;

const utf8 = new TextEncoder();

export function byteLength(text: string): number {
  return /^[\x00-\x7f]*$/.test(text) ? text.length : utf8.encode(text).length;
}
