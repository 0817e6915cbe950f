// The numbers of all iterations in typed arrays: 100,000 iterations take three megabytes.

const FIRST_ROOM = 1024;
const PHASES = ["exact", "compressed", "start", "single"];
const LONG = ["iteration", "objective", "relative_error", "seconds"];

export class Series {
  #room = FIRST_ROOM;
  length = 0;
  iteration = new Float64Array(FIRST_ROOM);
  objective = new Float64Array(FIRST_ROOM);
  relative_error = new Float64Array(FIRST_ROOM);
  seconds = new Float64Array(FIRST_ROOM);
  phase = new Uint8Array(FIRST_ROOM);
  start = new Int32Array(FIRST_ROOM);

  get last() {
    return this.length ? this.iteration[this.length - 1] : 0;
  }

  /** Add one iteration; return false if it was added before. */
  push(row) {
    if (row.iteration <= this.last) return false;
    if (this.length === this.#room) this.#grow();
    const place = this.length++;
    for (const name of LONG) this[name][place] = row[name];
    const phase = PHASES.indexOf(row.phase);
    this.phase[place] = phase < 0 ? 0 : phase;
    this.start[place] = row.start ?? 0;
    return true;
  }

  #grow() {
    this.#room *= 2;
    for (const name of [...LONG, "phase", "start"]) {
      const larger = new this[name].constructor(this.#room);
      larger.set(this[name]);
      this[name] = larger;
    }
  }

  /** Add the rows of a history in CSV, which is far smaller than JSON. */
  addCsv(text) {
    const lines = text.trimEnd().split("\n");
    const names = lines[0].split(",");
    for (let line = 1; line < lines.length; line++) {
      const row = {};
      lines[line].split(",").forEach((cell, place) => {
        row[names[place]] = names[place] === "phase" ? cell : cell === "" ? null : Number(cell);
      });
      this.push(row);
    }
  }

  /** Return the consecutive iterations of one phase and trial start: `{from, to, phase, start}`. */
  segments() {
    const found = [];
    for (let place = 0; place < this.length; place++) {
      const open = found.at(-1);
      if (open && open.start === this.start[place] && open.phase === PHASES[this.phase[place]]) open.to = place + 1;
      else found.push({ from: place, to: place + 1, phase: PHASES[this.phase[place]], start: this.start[place] });
    }
    return found;
  }
}
