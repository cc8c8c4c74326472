// Figures and codes in words.

const whole = new Intl.NumberFormat("en");
const short = new Intl.NumberFormat("en", { maximumSignificantDigits: 3 });

/** With marks between thousands. */
export const number = (value) => whole.format(Math.round(value));

/** Such as "0.34", "12.5" or "1,234". */
export const amount = (value) => (Math.abs(value) >= 100 ? number(value) : short.format(value));

/** Such as "3.2 s" or "12 ms"; a dash for what was not measured. */
export function duration(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  if (seconds >= 100) return `${number(seconds)} s`;
  if (seconds >= 1) return `${short.format(seconds)} s`;
  if (seconds >= 0.001) return `${short.format(seconds * 1e3)} ms`;
  return seconds === 0 ? "0" : `${number(seconds * 1e6)} µs`;
}

/** Such as "3 min" or "2 h 5 min". */
export function span(seconds) {
  const minutes = Math.floor(seconds / 60);
  if (minutes < 1) return `${Math.floor(seconds)} s`;
  if (minutes < 60) return `${minutes} min`;
  if (minutes < 48 * 60) return `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
  return `${Math.floor(minutes / 1440)} days`;
}

/** A share in percent; only all is 100%. */
export function percent(share) {
  if (share === null || share === undefined) return "–";
  const value = share * 100;
  if (share < 1 && value > 99.9) return "99.9%";
  if (share > 0 && value < 0.1) return "<0.1%";
  return `${value >= 99.95 || value === 0 ? Math.round(value) : value.toFixed(value < 1 || value >= 99 ? 1 : 0)}%`;
}

/** Of memory. */
export function bytes(count) {
  if (count === null || count === undefined) return "–";
  const gigabytes = count / 2 ** 30;
  return gigabytes >= 1 ? `${short.format(gigabytes)} GiB` : `${number(count / 2 ** 20)} MiB`;
}

/** The time of day, of seconds since 1970. */
export const clock = (seconds) => new Date(seconds * 1e3).toLocaleTimeString("en-GB");

/** A date and a time in UTC, of seconds since 1970. */
export const moment = (seconds) => new Date(seconds * 1e3).toISOString().slice(0, 16).replace("T", " ");

/** "1 token", "2 tokens". */
export const count = (value, noun) => `${number(value)} ${noun}${value === 1 ? "" : "s"}`;

/** Codes such as `cold_prefix`. */
export const spoken = (code) => code.replaceAll("_", " ");

const WAITS = {
  rows: ["a place in the batch", "--max-num-seqs"],
  pace: ["a place in a batch that the time between tokens keeps small", "--target-itl"],
  blocks: ["KV memory", "--kv-cache-memory"],
  budget: ["tokens of a step", "--max-num-batched-tokens"],
  share: ["its key's next share of a step"],
  place: ["a place that is not kept for other keys"],
  prefix: ["a prefix that another request computes"],
  scores: ["the scores of others' prompts"],
  background: ["everybody else, being in the background"],
};

/** What those who wait wait for, and the option that sets how much of it there is, if one does. */
export const waitsFor = (code) => WAITS[code] ?? [spoken(code)];
