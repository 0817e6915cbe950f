// Objective and relative error per iteration or second, redrawn live; long curves are thinned for drawing.

import { Chart, colors, load, palette } from "./plotly.js";
import { firstAtLeast, thin } from "./downsample.js";

const POINTS = 1500;
const REDRAW = 120; // milliseconds between two drawings at least
const REST = 3; // pause after a drawing, as a multiple of its time: a slow machine draws less often
const LONGEST_REST = 1000; // milliseconds
const TITLES = {
  objective: "objective",
  relative_error: "relative error",
  iteration: "iteration",
  seconds: "seconds of computing",
};
const DASHES = { compressed: "dot", start: "solid" };
const LEGEND = {
  exact: "exact",
  compressed: "compressed (approximate)",
  start: "trial starts",
  single: "single precision",
};

export class ConvergenceChart {
  x = "iteration";
  log = true;
  #chart;
  #series;
  /** @type {number[] | null} */
  #range = null;
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  #timer = undefined;
  #drawn = 0;
  #cost = 0;
  #stale = false;

  /** `series` is a list of `{name, series}`: one run, or several to compare. */
  constructor(element, series, signal) {
    this.#series = series;
    this.#chart = new Chart(element, "Objective and relative error per iteration", signal);
    this.#chart.on("plotly_relayout", (change) => this.#zoomed(change));
    signal.addEventListener("abort", () => clearTimeout(this.#timer));
  }

  /** Redraw soon; several calls share one drawing. */
  update() {
    this.#stale = true;
    if (this.#timer === undefined) this.#schedule();
  }

  #schedule() {
    const rest = Math.max(REDRAW, Math.min(LONGEST_REST, REST * this.#cost));
    this.#timer = setTimeout(() => this.#redraw(), Math.max(0, this.#drawn + rest - performance.now()));
  }

  async #redraw() {
    let begin = performance.now();
    try {
      await load(); // not part of the time of a drawing
      this.#stale = false;
      begin = performance.now();
      await this.#chart.draw(() => this.#figure());
    } finally {
      this.#drawn = performance.now();
      this.#cost = this.#drawn - begin;
      this.#timer = undefined;
      if (this.#stale) this.#schedule();
    }
  }

  set({ x = this.x, log = this.log }) {
    if (x !== this.x) this.#range = null;
    Object.assign(this, { x, log });
    this.update();
  }

  #zoomed(change) {
    const range = change["xaxis.range"] ?? [change["xaxis.range[0]"], change["xaxis.range[1]"]];
    if (range[0] !== undefined) this.#range = range.map(Number);
    else if (change["xaxis.autorange"]) this.#range = null;
    else return;
    this.update(); // all points go to the visible part
  }

  #figure() {
    const several = this.#series.length > 1;
    const all = palette();
    const traces = ["objective", "relative_error"].flatMap((quantity, row) =>
      this.#series.flatMap(({ name, series }, place) =>
        this.#traces(series, quantity, row, several ? name : null, all[place % all.length]),
      ),
    );
    const type = this.log ? "log" : "linear";
    const range = this.#range ? { range: [...this.#range], autorange: false } : { autorange: true };
    // Fixed margins, so that plotly does not lay out the chart twice for its labels.
    const fixedMargins = { automargin: false };
    const number = this.log ? { exponentformat: "power", nticks: 5 } : { exponentformat: "power", nticks: 6 };
    return {
      traces,
      layout: {
        showlegend: several || traces.some((trace) => trace.showlegend && trace.name !== LEGEND.exact),
        legend: { orientation: "h", y: 1.08, x: 0 },
        xaxis: { title: { text: TITLES[this.x] }, anchor: "y2", rangemode: "tozero", ...fixedMargins, ...range },
        yaxis: {
          title: { text: TITLES.objective },
          type,
          domain: [0.54, 1],
          fixedrange: true,
          ...fixedMargins,
          ...number,
        },
        yaxis2: {
          title: { text: TITLES.relative_error },
          type,
          domain: [0, 0.46],
          fixedrange: true,
          ...fixedMargins,
          ...number,
          gridcolor: colors().line,
        },
        margin: { l: 76, r: 12, t: 32, b: 44 },
        hovermode: "x unified",
        uirevision: `${this.x} ${this.log}`,
      },
    };
  }

  /** Return one line per phase, with gaps between trial starts, thinned within the visible part. */
  #traces(series, quantity, row, name, color) {
    const { [this.x]: x, [quantity]: y, length } = series;
    const from = this.#range ? Math.max(0, firstAtLeast(x, length, this.#range[0]) - 1) : 0;
    const to = this.#range ? Math.min(length, firstAtLeast(x, length, this.#range[1]) + 2) : length;
    const lines = {};
    for (const segment of series.segments()) {
      const [first, end] = [Math.max(segment.from, from), Math.min(segment.to, to)];
      if (first >= end) continue;
      const line = (lines[segment.phase] ??= { x: [], y: [] });
      const most = Math.max(8, Math.ceil((POINTS * (end - first)) / (to - from)));
      for (const place of thin(y, first, end, most)) {
        line.x.push(x[place]);
        line.y.push(this.log && y[place] <= 0 ? null : y[place]);
      }
      line.x.push(null);
      line.y.push(null);
    }
    const dim = colors().soft;
    return Object.entries(lines).map(([phase, points]) => ({
      ...points,
      type: "scatter",
      mode: points.x.length < 4 ? "markers" : "lines",
      connectgaps: false,
      name: name ?? LEGEND[phase],
      legendgroup: name ?? phase,
      showlegend: row === 0 && (name === null || phase === "exact" || !lines.exact),
      line: {
        color: phase === "start" && name === null ? dim : color,
        width: phase === "start" ? 1.2 : 2,
        dash: DASHES[phase] ?? "solid",
      },
      opacity: phase === "start" ? 0.75 : 1,
      yaxis: row ? "y2" : "y",
      hovertemplate: "%{y:.6g}",
    }));
  }
}
