/** Ids of events: UUIDv7, so that ids made later sort later (RFC 9562). */

let lastMs = -1;
let sequence = 0;

/** An id that rises strictly, also within one millisecond and when the clock is set back. */
export function newId(nowMs: number = Date.now()): string {
  const random = crypto.getRandomValues(new Uint8Array(10));
  if (nowMs > lastMs) {
    lastMs = nowMs;
    sequence = (((random[8] as number) << 8) | (random[9] as number)) & 0x7ff;
  } else {
    sequence += 1;
    if (sequence > 0xfff) {
      lastMs += 1;
      sequence = 0;
    }
  }
  const stamp = lastMs.toString(16).padStart(12, "0");
  const tail = [...random.subarray(0, 8)].map((byte, index) => (index ? byte : (byte & 0x3f) | 0x80));
  const hex = tail.map((byte) => byte.toString(16).padStart(2, "0")).join("");
  const middle = (0x7000 | sequence).toString(16);
  return `${stamp.slice(0, 8)}-${stamp.slice(8)}-${middle}-${hex.slice(0, 4)}-${hex.slice(4)}`;
}
