// Reads .npy files of numbers: a factor is one, length × rank.

const KINDS = {
  "<f8": Float64Array,
  "<f4": Float32Array,
  "<i8": BigInt64Array,
  "<i4": Int32Array,
  "|b1": Uint8Array,
  "|u1": Uint8Array,
};

/**
 * Parse a .npy file into `{shape, fortran, values}`, with the values in the order of the file.
 *
 * @param {ArrayBuffer} buffer
 * @returns {{shape: number[], fortran: boolean, values: any}}
 */
export function parseNpy(buffer) {
  const view = new DataView(buffer);
  const wide = view.getUint8(6) > 1;
  const start = (wide ? 12 : 10) + (wide ? view.getUint32(8, true) : view.getUint16(8, true));
  const header = new TextDecoder("latin1").decode(new Uint8Array(buffer, 0, start));
  const kind = /'descr': '([^']+)'/.exec(header)?.[1];
  const Kind = KINDS[kind];
  if (!Kind) throw new Error(`Factors of type ${kind} cannot be shown.`);
  const shape = (/'shape': \(([^)]*)\)/.exec(header)?.[1] ?? "")
    .split(",")
    .filter((part) => part.trim())
    .map(Number);
  return { shape, fortran: /'fortran_order': True/.test(header), values: new Kind(buffer.slice(start)) };
}

/**
 * Return the columns of a matrix.
 *
 * @param {{shape: number[], fortran: boolean, values: any}} matrix
 * @returns {Float64Array[]}
 */
export function columns({ shape: [rows, count], fortran, values }) {
  return Array.from({ length: count }, (_, column) =>
    fortran
      ? Float64Array.from(values.subarray(column * rows, (column + 1) * rows))
      : Float64Array.from({ length: rows }, (_row, row) => Number(values[row * count + column])),
  );
}
