// Formats numbers, sizes and times.

const DIGITS = new Intl.NumberFormat("en", { maximumSignificantDigits: 4, useGrouping: false });
const WHOLE = new Intl.NumberFormat("en");
const UNITS = ["B", "kB", "MB", "GB", "TB"];

export function number(value, digits = 4) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  if (value !== 0 && (Math.abs(value) >= 1e6 || Math.abs(value) < 1e-3))
    return value.toExponential(digits - 2).replace("e+", "e");
  return DIGITS.format(value);
}

export const whole = (value) => (value === null || value === undefined ? "–" : WHOLE.format(value));
/** Format a fraction in percent; a positive one never becomes 0.0 %. */
export function percent(share, digits = 1) {
  if (share === null || share === undefined) return "–";
  const least = 10 ** -digits;
  return share > 0 && 100 * share < least / 2 ? `< ${least} %` : `${(100 * share).toFixed(digits)} %`;
}
export const shape = (lengths) => lengths.join(" × ");
export const count = (value, one, many = `${one}s`) => `${whole(value)} ${value === 1 ? one : many}`;

export function bytes(value) {
  if (value === null || value === undefined) return "–";
  const power = value < 1000 ? 0 : Math.min(UNITS.length - 1, Math.floor(Math.log10(value) / 3));
  return `${power ? DIGITS.format(Number((value / 1000 ** power).toPrecision(3))) : value} ${UNITS[power]}`;
}

export function seconds(value) {
  if (value === null || value === undefined) return "–";
  if (value < 1) return `${(value * 1000).toFixed(0)} ms`;
  if (value < 100) return `${value.toFixed(value < 10 ? 2 : 1)} s`;
  const minutes = Math.floor(value / 60);
  if (minutes < 100) return `${minutes} min ${Math.floor(value % 60)} s`;
  return `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}

/** "5 minutes ago", with the exact time to hover over. */
export function when(text) {
  if (!text) return "–";
  const time = document.createElement("time");
  time.dateTime = text;
  time.title = new Date(text).toLocaleString();
  time.textContent = ago((Date.now() - Date.parse(text)) / 1000);
  return time;
}

function ago(age) {
  if (age < 45) return "just now";
  /** @type {[number, string, number][]} */
  const steps = [
    [60, "minute", 60],
    [24, "hour", 3600],
    [30, "day", 86400],
    [12, "month", 2.6e6],
    [Infinity, "year", 3.15e7],
  ];
  const [, word, unit] = steps.find(([limit, , size]) => age / size < limit * 0.95) ?? steps[steps.length - 1];
  return `${count(Math.max(1, Math.round(age / unit)), word)} ago`;
}

export const nameOf = (record) => record.name || `${record.id.slice(0, 8)}…`;

/** Return the label of a mode, or its number. */
export const modeName = (axes, mode) => axes?.[mode - 1]?.name ?? `mode ${mode}`;
export function modeTitle(axes, mode) {
  const axis = axes?.[mode - 1];
  return axis ? axis.name + (axis.unit ? ` (${axis.unit})` : "") : `mode ${mode}`;
}
/** Return the label of an index of a mode, or the index itself. */
export function indexLabel(axes, mode, index) {
  const axis = axes?.[mode - 1];
  return axis ? `${axis.values[index]}${axis.unit ? ` ${axis.unit}` : ""}` : `index ${index}`;
}
