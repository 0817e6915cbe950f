// Charts of a list of numbers: histograms, and values along a mode.

import { modeTitle } from "../components/format.js";
import { Chart, palette } from "./plotly.js";

/** A histogram with bins of equal width from `min` to `max`. */
export class HistogramChart {
  #chart;
  constructor(element, signal) {
    this.#chart = new Chart(element, "Histogram of the entries", signal);
  }

  draw({ counts, min, max }, log) {
    const width = (max - min) / counts.length || 1;
    const middles = counts.map((_, place) => min + (place + 0.5) * width);
    this.#chart.draw(() => ({
      traces: [
        {
          type: "bar",
          x: middles,
          y: counts,
          width,
          marker: { color: palette()[0], line: { width: 0 } },
          customdata: middles.map((middle) => [middle - width / 2, middle + width / 2]),
          hovertemplate: "%{customdata[0]:.4g} to %{customdata[1]:.4g}<br><b>%{y:,}</b> entries<extra></extra>",
        },
      ],
      layout: {
        bargap: 0,
        xaxis: { title: { text: "value" }, tickformat: "~g" },
        yaxis: { title: { text: "entries" }, type: log ? "log" : "linear", tickformat: "~s", nticks: 6 },
      },
    }));
  }
}

/** Return a colour, given as #rrggbb, that others show through. */
const faint = (color) => `${color}38`;

/** Numbers along a mode: a line for ordered indices, bars for named ones. */
export class ModeChart {
  #chart;
  constructor(element, label, signal) {
    this.#chart = new Chart(element, label, signal);
  }

  /**
   * Draw `lines`, each `{name, values}` with a value for every `step`-th index; `onpick(index)` is called on a click.
   *
   * @param {{
   *   lines: {
   *     name: string,
   *     values: ArrayLike<number> & {map: Function},
   *     color?: string,
   *     band?: {lower: number[], upper: number[]} | null,
   *   }[],
   *   mode: number,
   *   axes: any,
   *   title: string,
   *   step?: number,
   *   onpick?: (index: number) => void,
   *   picked?: number | null,
   * }} options
   */
  draw({ lines, mode, axes, title, step = 1, onpick, picked }) {
    const axis = axes?.[mode - 1];
    const named = typeof axis?.values[0] === "string";
    if (onpick && !this.picks) {
      this.picks = true;
      this.#chart.on("plotly_click", ({ points }) => this.pick?.(points[0].pointNumber));
    }
    this.pick = onpick;
    this.#chart.draw(() => ({
      traces: lines.flatMap(
        /** @returns {any} one trace, or a line and the edges of its band */
        ({ name, values, color, band }, place) => {
          const paint = color ?? palette()[place % palette().length];
          const x = values.map((_, index) => (axis ? axis.values[index * step] : index * step));
          const short = values.length <= 60;
          const whiskers = band && {
            error_y: {
              type: "data",
              symmetric: false,
              array: band.upper.map((upper, index) => Math.max(0, upper - values[index])),
              arrayminus: band.lower.map((lower, index) => Math.max(0, values[index] - lower)),
              color: paint,
            },
          };
          const edge = { type: "scatter", mode: "lines", x, line: { width: 0 }, hoverinfo: "skip", showlegend: false };
          const shade = { ...edge, y: band?.upper, fill: "tonexty", fillcolor: faint(paint) };
          return named || values.length <= 12
            ? {
                type: "bar",
                ...whiskers,
                name,
                x: named ? x : x.map(String),
                y: values,
                marker: {
                  color: paint,
                  line: { width: values.map((_, index) => (index === picked ? 3 : 0)), color: palette()[1] },
                },
              }
            : [
                ...(band ? [{ ...edge, y: band.lower }, shade] : []),
                {
                  type: "scatter",
                  mode: short || onpick ? "lines+markers" : "lines",
                  name,
                  x,
                  y: values,
                  line: { color: paint, width: 1.5 },
                  marker: { size: values.map((_, index) => (index === picked ? 12 : short ? 6 : 3)), color: paint },
                },
              ];
        },
      ),
      layout: {
        showlegend: lines.length > 1,
        legend: { orientation: "h", y: 1.12 },
        barmode: "group",
        xaxis: {
          title: { text: modeTitle(axes, mode) },
          ...(named || (lines[0]?.values.length ?? 0) <= 12 ? { type: "category" } : {}),
        },
        yaxis: { title: { text: title }, rangemode: "tozero", nticks: 6, tickformat: "~g" },
      },
    }));
  }
}
