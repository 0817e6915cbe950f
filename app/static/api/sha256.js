// SHA-256 (FIPS 180-4), fed in pieces.

const primes = [];
for (let candidate = 2; primes.length < 64; candidate++)
  if (primes.every((prime) => candidate % prime)) primes.push(candidate);
/** The first 32 bits of the fraction of a root. */
const fraction = (value) => ((value % 1) * 2 ** 32) | 0;
const K = Int32Array.from(primes, (prime) => fraction(Math.cbrt(prime)));

export class Sha256 {
  #state = Int32Array.from(primes.slice(0, 8), (prime) => fraction(Math.sqrt(prime)));
  #rest = new Uint8Array(64);
  #filled = 0;
  #length = 0;
  #words = new Int32Array(64);

  update(bytes) {
    this.#length += bytes.length;
    let place = 0;
    if (this.#filled) {
      place = Math.min(64 - this.#filled, bytes.length);
      this.#rest.set(bytes.subarray(0, place), this.#filled);
      this.#filled += place;
      if (this.#filled < 64) return;
      this.#block(this.#rest, 0);
      this.#filled = 0;
    }
    for (; place + 64 <= bytes.length; place += 64) this.#block(bytes, place);
    this.#rest.set(bytes.subarray(place));
    this.#filled = bytes.length - place;
  }

  hex() {
    const bits = this.#length * 8;
    const padding = new Uint8Array((this.#filled < 56 ? 64 : 128) - this.#filled);
    padding[0] = 0x80;
    const view = new DataView(padding.buffer);
    view.setUint32(padding.length - 8, Math.floor(bits / 2 ** 32));
    view.setUint32(padding.length - 4, bits >>> 0);
    this.update(padding);
    return Array.from(this.#state, (word) => (word >>> 0).toString(16).padStart(8, "0")).join("");
  }

  #block(bytes, start) {
    const w = this.#words;
    for (let i = 0; i < 16; i++, start += 4)
      w[i] = (bytes[start] << 24) | (bytes[start + 1] << 16) | (bytes[start + 2] << 8) | bytes[start + 3];
    for (let i = 16; i < 64; i++) {
      const x = w[i - 15];
      const y = w[i - 2];
      const s0 = ((x >>> 7) | (x << 25)) ^ ((x >>> 18) | (x << 14)) ^ (x >>> 3);
      const s1 = ((y >>> 17) | (y << 15)) ^ ((y >>> 19) | (y << 13)) ^ (y >>> 10);
      w[i] = (w[i - 16] + s0 + w[i - 7] + s1) | 0;
    }
    const state = this.#state;
    // By index, because destructuring would double the time of the rounds.
    let a = state[0],
      b = state[1],
      c = state[2],
      d = state[3],
      e = state[4],
      f = state[5],
      g = state[6],
      h = state[7];
    for (let i = 0; i < 64; i++) {
      const s1 = ((e >>> 6) | (e << 26)) ^ ((e >>> 11) | (e << 21)) ^ ((e >>> 25) | (e << 7));
      const t1 = (h + s1 + ((e & f) ^ (~e & g)) + K[i] + w[i]) | 0;
      const s0 = ((a >>> 2) | (a << 30)) ^ ((a >>> 13) | (a << 19)) ^ ((a >>> 22) | (a << 10));
      const t2 = (s0 + ((a & b) ^ (a & c) ^ (b & c))) | 0;
      h = g;
      g = f;
      f = e;
      e = (d + t1) | 0;
      d = c;
      c = b;
      b = a;
      a = (t1 + t2) | 0;
    }
    state[0] += a;
    state[1] += b;
    state[2] += c;
    state[3] += d;
    state[4] += e;
    state[5] += f;
    state[6] += g;
    state[7] += h;
  }
}
