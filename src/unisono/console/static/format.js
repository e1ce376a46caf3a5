// Numbers, sizes and times for people.

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const short = new Intl.NumberFormat("en", { maximumSignificantDigits: 3 });

export const count = (value) => (value === null || value === undefined ? "–" : whole.format(value));

export const plural = (value, [one, many]) => `${count(value)} ${value === 1 ? one : many}`;

export function rate(value) {
  if (value === null || value === undefined) return "–";
  return value >= 100 ? whole.format(value) : short.format(value);
}

export const milliseconds = (value) => (value === null || value === undefined ? "–" : `${short.format(value)} ms`);
export const seconds = (value) => milliseconds(value * 1000);

export function bytes(value) {
  if (value === null || value === undefined) return "–";
  const units = ["B", "kB", "MB", "GB", "TB"];
  let unit = 0;
  while (value >= 1000 && unit < units.length - 1) {
    value /= 1000;
    unit += 1;
  }
  return `${unit === 0 ? whole.format(value) : short.format(value)} ${units[unit]}`;
}

export function clock(ms) {
  const time = new Date(ms);
  if (Number.isNaN(time.getTime())) return String(ms);
  return time.toLocaleTimeString("en-GB", { hour12: false }) + "." + String(time.getMilliseconds()).padStart(3, "0");
}

export function moment(ms) {
  const time = new Date(ms);
  if (Number.isNaN(time.getTime())) return String(ms);
  return `${time.toLocaleDateString("sv-SE")} ${clock(ms)}`;
}

export function ago(ms) {
  const seconds = Math.max(0, Math.round(ms / 1000));
  if (seconds < 90) return `${seconds} s ago`;
  if (seconds < 5400) return `${Math.round(seconds / 60)} min ago`;
  if (seconds < 48 * 3600) return `${Math.round(seconds / 3600)} h ago`;
  return `${Math.round(seconds / 86400)} days ago`;
}
