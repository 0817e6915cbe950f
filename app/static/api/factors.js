// The factors of a job: all modes of one iteration, and the numbers that the page shows about them.

import { columns, parseNpy } from "./npy.js";
import { read } from "./request.js";

const DEAD_SHARE = 1e-6; // of the tensor's norm

/** `{iteration, factors}`: per mode a list of columns. Read again if a checkpoint came in between. */
export async function loadFactors(path, modes, signal) {
  for (;;) {
    const answers = await Promise.all(
      Array.from({ length: modes }, (_, place) => read(`${path}/factors/${place + 1}`, { signal })),
    );
    const iterations = new Set(answers.map((answer) => answer.headers.get("Factors-Iteration")));
    const buffers = await Promise.all(answers.map((answer) => answer.arrayBuffer()));
    if (iterations.size === 1)
      return { iteration: Number([...iterations][0]), factors: buffers.map((buffer) => columns(parseNpy(buffer))) };
  }
}

const sum = (values) => values.reduce((total, value) => total + value, 0);
const norm = (values) => Math.sqrt(values.reduce((total, value) => total + value * value, 0));
const largest = (values) => values.reduce((most, value) => Math.max(most, value), 0);

/** Count the entries of a column below the threshold, relative to its maximum. */
function zerosOf(values, threshold) {
  const peak = largest(values);
  return values.reduce((count, value) => count + (peak === 0 || value / peak < threshold), 0);
}

/** Return the fraction of entries below the threshold, relative to their column's maximum, averaged over the modes. */
export function sparsityOf(factors, threshold) {
  const shares = factors.map(
    (factor) => sum(factor.map((values) => zerosOf(values, threshold))) / (factor.length * factor[0].length),
  );
  return sum(shares) / shares.length;
}

/**
 * Return the nonzero components, the largest first: `{number, weight, share, sparsity, columns, peaks}`.
 * `share` is the squared weight as a share of all; columns have a maximum of 1 in place of `peaks`; `sparsity` is the
 * share of entries below the threshold, relative to that maximum. As on the server, a component counts by its weight
 * if the run has a sparsity, and otherwise if every column reaches the threshold.
 */
export function componentsOf(factors, settings, tensorNorm) {
  const threshold = settings.sparsity_threshold;
  const rank = factors[0].length;
  const found = Array.from({ length: rank }, (_, column) => {
    const own = factors.map((factor) => factor[column]);
    const peaks = own.map(largest);
    return {
      number: column + 1,
      reached: peaks.every((peak) => peak > 0 && peak >= threshold),
      weight: own.reduce((product, values) => product * norm(values), 1),
      columns: own.map((values, mode) => values.map((value) => value / (peaks[mode] || 1))),
      peaks,
      sparsity: sum(own.map((values) => zerosOf(values, threshold))) / sum(own.map((values) => values.length)),
    };
  });
  const total = sum(found.map(({ weight }) => weight ** 2));
  return found
    .filter(({ weight, reached }) => (settings.sparsity === null ? reached : weight > DEAD_SHARE * tensorNorm))
    .map((one) => ({ ...one, share: one.weight ** 2 / total }))
    .sort((a, b) => b.weight - a.weight);
}

/**
 * Give components what is known of their stability: `replicability`, `splitHalf`, and for every mode a `band` with
 * the `lower` and `upper` bounds of its column, or null.
 */
export function withStability(components, stability) {
  return components.map((one) => {
    const column = one.number - 1;
    const bands = stability.modes.map((band, mode) => {
      const bound = (rows) => rows.map((row) => (row[column] ?? 0) / one.peaks[mode]);
      return band && { lower: bound(band.lower), upper: bound(band.upper) };
    });
    return {
      ...one,
      bands,
      replicability: stability.replicability[column],
      splitHalf: stability.split_half?.[column] ?? null,
    };
  });
}
