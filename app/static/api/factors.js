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

const norm = (values) => Math.sqrt(values.reduce((sum, value) => sum + value * value, 0));
const largest = (values) => values.reduce((most, value) => Math.max(most, value), 0);

/** Return the fraction of entries below the threshold, relative to their column's maximum, averaged over the modes. */
export function sparsityOf(factors, threshold) {
  const shares = factors.map((factor) => {
    const zero = factor.reduce((sum, values) => {
      const peak = largest(values);
      return sum + values.reduce((count, value) => count + (peak === 0 || value / peak < threshold), 0);
    }, 0);
    return zero / (factor.length * factor[0].length);
  });
  return shares.reduce((sum, share) => sum + share, 0) / shares.length;
}

/**
 * Return the nonzero components, the largest first: `{number, weight, share, sparsity, columns}`.
 * `share` is the squared weight as a share of all; columns have a maximum of 1; `sparsity` is the share of entries
 * below the threshold, relative to that maximum. As on the server, a component counts by its weight if the run has a
 * sparsity, and otherwise if every column reaches the threshold.
 */
export function componentsOf(factors, settings, tensorNorm) {
  const threshold = settings.sparsity_threshold;
  const rank = factors[0].length;
  const found = Array.from({ length: rank }, (_, column) => {
    const own = factors.map((factor) => factor[column]);
    const scaled = own.map((values) => {
      const peak = largest(values);
      return peak ? values.map((value) => value / peak) : values;
    });
    const zero = scaled.reduce(
      (sum, values) => sum + values.reduce((count, value) => count + (value < threshold), 0),
      0,
    );
    const reached = own.every((values) => {
      const peak = largest(values);
      return peak > 0 && peak >= threshold;
    });
    return {
      number: column + 1,
      reached,
      weight: own.reduce((product, values) => product * norm(values), 1),
      columns: scaled,
      sparsity: zero / own.reduce((sum, values) => sum + values.length, 0),
    };
  });
  const total = found.reduce((sum, { weight }) => sum + weight ** 2, 0);
  return found
    .filter(({ weight, reached }) => (settings.sparsity === null ? reached : weight > DEAD_SHARE * tensorNorm))
    .map((one) => ({ ...one, share: one.weight ** 2 / total }))
    .sort((a, b) => b.weight - a.weight);
}
