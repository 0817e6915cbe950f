// Points for drawing: of a long curve the first, lowest, highest and last of each bucket, so that no peak is lost.

/** Indices to draw of `values[from … to)`, at most about `most` of them. */
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

/** The place of the first value that is not below `bound`, in values that grow. */
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
