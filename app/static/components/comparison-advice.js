// Which rank and which weight a comparison speaks for, in words, from its table alone. Every word names its evidence,
// and what was not tried is said.

import { number, percent, seconds } from "./format.js";

const SAME_COMPONENTS = 0.95; // factor match between repeats
const LOW_CORE = 50; // core consistency
const COSTS_NOTHING = 0.01; // of the relative error
const SAME_OBJECTIVE = 1e-3;

export const weightOf = (row) => (row.beta !== null && row.beta !== undefined ? `β ${number(row.beta)}` : `sparsity ${number(row.asked_sparsity)}`);
const begin = (row) => weightOf(row).replace(/^s/, "S"); // of a sentence
const weight = (row) => row.beta ?? row.asked_sparsity ?? 0;
const mean = (values) => values.reduce((sum, value) => sum + value, 0) / values.length;
const isKnown = (value) => value !== null && value !== undefined;
const byObjective = (a, b) => (a.objective?.mean ?? Infinity) - (b.objective?.mean ?? Infinity);
const lowest = (rows) => Math.min(...rows.map(weight));

/** `{title, sure, row, sentences}`, or null while nothing has ended. `row` is the cell that is recommended. */
export function comparisonAdvice({ rows, ranks, mode }) {
  const ended = rows.filter((row) => isKnown(row.relative_error?.mean));
  if (!ended.length) return null;
  const candidates = [...new Set(ended.map((row) => row.rank))].sort((a, b) => a - b).map((rank) => candidate(rank, ended, ranks.find((one) => one.rank === rank)));
  const chosen = chooseRank(candidates);
  const light = chooseWeight(ended.filter((row) => row.rank === chosen.rank), mode);
  const method = chooseMethod(light.rows);
  return {
    title: `Rank ${chosen.rank}${light.isChoice ? `, ${weightOf(method.row)}` : ""} – ${chosen.sure ? "all checks agree" : "not sure"}`,
    sure: chosen.sure, row: method.row, sentences: [...chosen.sentences, ...light.sentences, ...method.sentences],
  };
}

/** A rank with its checks, each `{name, passed, words}`; without a penalty, or with the smallest there is. */
function candidate(rank, ended, found) {
  const own = ended.filter((row) => row.rank === rank);
  const base = own.filter((row) => weight(row) === lowest(own)).sort(byObjective)[0];
  const checks = [];
  const check = (name, passed, yes, no) => checks.push({ name, passed, words: passed ? yes : no });
  if (found?.split_half) {
    const worst = number(Math.min(...found.split_half.congruence), 3);
    check("halves", found.split_half.passed, `halves of the data give the same components (congruence ${worst})`, `halves of the data give different components (congruence ${worst})`);
  }
  if (isKnown(found?.core_consistency)) check("core", found.core_consistency >= LOW_CORE, `the core consistency is ${number(found.core_consistency, 3)}`, `the core consistency is low (${number(found.core_consistency, 3)})`);
  if (isKnown(base.factor_match?.mean)) check("repeats", base.factor_match.mean >= SAME_COMPONENTS, `repeats find the same components (match ${number(base.factor_match.mean, 3)})`, `repeats find different components (match ${number(base.factor_match.mean, 3)})`);
  return { rank, base, checks, held: found?.holdout?.relative_error ?? null, passed: checks.every(({ passed }) => passed) };
}

/** The largest rank that passes every check, and not more than held-out entries ask for. */
function chooseRank(candidates) {
  const last = candidates.at(-1);
  const errors = `Relative error: ${candidates.map(({ rank, base }) => `${number(base.relative_error.mean, 3)} with rank ${rank}`).join(", ")}.`;
  if (candidates.length === 1) return { rank: last.rank, sure: false, sentences: [`Only rank ${last.rank} was tried: ${told(last) || "nothing was checked"}. Give more ranks to find out how many components there are.`] };
  const enough = predicts(candidates);
  const allowed = candidates.filter(({ rank }) => !enough || rank <= enough.rank);
  const passing = allowed.filter(({ passed, checks }) => passed && checks.length);
  const chosen = passing.at(-1) ?? fallback(allowed, enough);
  const next = candidates.find(({ rank }) => rank > chosen.rank);
  const validated = Boolean(enough) || chosen.checks.some(({ name }) => name === "halves");
  // The largest that was tried is no answer to "how many": the next could pass as well.
  const sure = passing.length > 0 && validated && Boolean(next) && (!enough || enough.rank === chosen.rank);
  return {
    rank: chosen.rank, sure,
    sentences: [
      passing.length ? `Rank ${chosen.rank}: ${[told(chosen), enough?.rank === chosen.rank && "it predicts entries that were held out as well as any"].filter(Boolean).join("; ")}.`
        : `No rank passes every check. Rank ${chosen.rank}: ${told(chosen) || (enough ? "it predicts entries that were held out as well as any" : "beyond it the error falls least")}.`,
      next && failed(next) && `Rank ${next.rank}: ${failed(next)}.`,
      enough && `Error on held-out entries: ${candidates.filter(({ held }) => held).map(({ rank, held }) => `${number(mean(held), 3)} with rank ${rank}`).join(", ")}${enough.rank > chosen.rank ? `. Rank ${enough.rank} predicts them better: these components leave some structure` : ""}.`,
      errors,
      !next && `Higher ranks were not tried.`,
      !validated && "Neither halves nor held-out entries were looked at: ask for a validation to be surer.",
    ].filter(Boolean),
  };
}

const told = ({ checks }) => checks.map(({ words }) => words).join("; ");
const failed = ({ checks }) => told({ checks: checks.filter(({ passed }) => !passed) });

/** The smallest rank whose error on held-out entries is within one standard error of the lowest. */
function predicts(candidates) {
  const held = candidates.filter((one) => one.held?.length);
  if (held.length < 2) return null;
  const best = held.reduce((a, b) => (mean(b.held) < mean(a.held) ? b : a));
  const middle = mean(best.held);
  const spread = best.held.length > 1 ? Math.sqrt(best.held.reduce((sum, one) => sum + (one - middle) ** 2, 0) / (best.held.length - 1) / best.held.length) : 0;
  return held.find((one) => mean(one.held) <= middle + spread);
}

/** Where no rank passes: what predicts, else the one after which the error falls least. */
function fallback(allowed, enough) {
  if (enough) return enough;
  const fall = (place) => Math.log(allowed[place].base.relative_error.mean / allowed[place + 1].base.relative_error.mean);
  const steps = allowed.slice(0, -1).map((_, place) => fall(place));
  return allowed[steps.indexOf(Math.min(...steps))] ?? allowed[0];
}

/** The largest weight that costs neither fit nor components. */
function chooseWeight(rows, mode) {
  const weights = [...new Set(rows.map(weight))].sort((a, b) => a - b);
  const of = (value) => rows.filter((row) => weight(row) === value).sort(byObjective);
  if (weights.length === 1) return { rows: of(weights[0]), isChoice: false, sentences: [] };
  const base = of(weights[0])[0];
  const bound = base.relative_error.mean * (1 + COSTS_NOTHING) + (base.relative_error.deviation ?? 0);
  const keeps = (row) => row.relative_error.mean <= bound && (!isKnown(row.components?.mean) || !isKnown(base.components?.mean) || row.components.mean > base.components.mean - 0.5);
  const chosen = weights.filter((value) => keeps(of(value)[0])).at(-1) ?? weights[0];
  const [row, dear] = [of(chosen)[0], of(weights[weights.indexOf(chosen) + 1])[0]];
  const cost = (one) => `relative error ${number(one.relative_error.mean, 3)}${isKnown(one.components?.mean) ? `, ${number(one.components.mean, 3)} components` : ""}${isKnown(one.sparsity?.mean) ? `, ${percent(one.sparsity.mean, 0)} zeros in mode ${mode}` : ""}`;
  return {
    rows: of(chosen), isChoice: true,
    sentences: [
      row === base ? `${begin(row)}: ${cost(row)}.` : `${begin(row)} is the largest that costs nothing: ${cost(row)}; with ${weightOf(base)} ${cost(base)}.`,
      dear ? `${begin(dear)} costs: ${cost(dear)}.` : "Larger weights were not tried.",
    ],
  };
}

/** The fastest of those that reach the lowest objective of this cell. */
function chooseMethod(rows) {
  if (rows.length === 1) return { row: rows[0], sentences: [] };
  const best = rows[0].objective.mean;
  const same = rows.filter((row) => row.objective.mean <= best + SAME_OBJECTIVE * Math.abs(best)).sort((a, b) => a.seconds.mean - b.seconds.mean);
  const others = rows.filter((row) => row !== same[0]);
  return { row: same[0], sentences: [`${same[0].method} takes ${seconds(same[0].seconds.mean)} to an objective of ${number(same[0].objective.mean)}; ${others.map((row) => `${row.method} ${seconds(row.seconds.mean)} to ${number(row.objective.mean)}`).join(", ")}.`] };
}
