/** Ids of events: UUIDv7, so that ids made later sort later (RFC 9562). */

let lastMs = -1;
let sequence = 0;

const hex = (number: number, digits = 4): string => number.toString(16).padStart(digits, "0");

/** An id that rises strictly, also within one millisecond and when the clock is set back. */
export function newId(nowMs: number = Date.now()): string {
  const [first = 0, ...random] = crypto.getRandomValues(new Uint16Array(5));
  if (nowMs > lastMs) {
    lastMs = nowMs;
    sequence = first & 0x7ff;
  } else if ((sequence += 1) > 0xfff) {
    lastMs += 1;
    sequence = 0;
  }
  const stamp = hex(lastMs, 12);
  const [variant = "", ...tail] = random.map((each, at) => hex(at ? each : (each & 0x3fff) | 0x8000));
  return `${stamp.slice(0, 8)}-${stamp.slice(8)}-${hex(0x7000 | sequence)}-${variant}-${tail.join("")}`;
}
