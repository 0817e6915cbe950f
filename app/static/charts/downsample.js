// Thins long curves for drawing: keeps the first, lowest, highest and last point of each bucket, so no peak is lost.

/** Return the indices of `values[from … to)` to draw, about `most` at most. */
export function thin(values, from, to, most) {
  const length = to - from;
  if (length <= most) return Array.from({ length }, (_, place) => from + place);
  const size = length / Math.max(1, Math.floor(most / 4));
  const kept = [];
  for (let start = from; start < to; ) {
    const end = Math.min(
      to,
      Math.max(start + 1, Math.ceil(from + size * Math.floor((start - from) / size + 1 + 1e-9))),
    );
    let low = start;
    let high = start;
    for (let place = start; place < end; place++) {
      if (values[place] < values[low]) low = place;
      if (values[place] > values[high]) high = place;
    }
    for (const place of [...new Set([start, Math.min(low, high), Math.max(low, high), end - 1])]) kept.push(place);
    start = end;
  }
  return kept;
}

/** Return the index of the first of the increasing values that is at least `bound`. */
export function firstAtLeast(values, length, bound) {
  let low = 0;
  let high = length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (values[middle] < bound) low = middle + 1;
    else high = middle;
  }
  return low;
}
