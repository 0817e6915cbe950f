// Draws a slice: two modes as a heat map, a single mode as a line.

import { modeTitle } from "../components/format.js";
import { Chart, colors, diverging, palette, sequential } from "./plotly.js";

/** Return the labels of the indices in a thinned slice. */
export function ticks(axes, mode, length, step) {
  const values = axes?.[mode - 1]?.values;
  return Array.from({ length }, (_, place) => (values ? values[place * step] : place * step));
}

const isText = (labels) => typeof labels[0] === "string";

export class SliceChart {
  #chart;

  constructor(element, label, signal) {
    this.#chart = new Chart(element, label, signal);
  }

  /**
   * `slice` is `{shape, steps, values}` of these modes (from 1), the first of them downwards;
   * `range` holds the colours still between slices; `signed` colours both sides of zero.
   */
  draw({ slice, modes, axes, range = null, signed = false, transpose = false }) {
    this.#chart.draw(() =>
      modes.length === 1 ? line(slice, modes, axes) : map(slice, modes, axes, range, signed, transpose),
    );
  }
}

function map(slice, modes, axes, range, signed, transpose) {
  const labels = modes.map((mode, place) => ticks(axes, mode, slice.shape[place], slice.steps[place]));
  const [down, across] = transpose ? [1, 0] : [0, 1];
  const z = transpose ? labels[1].map((_, column) => slice.values.map((row) => row[column])) : slice.values;
  const limits = range
    ? signed
      ? { zmin: -Math.max(...range.map(Math.abs)), zmax: Math.max(...range.map(Math.abs)) }
      : { zmin: range[0], zmax: range[1] }
    : signed
      ? { zmid: 0 }
      : {};
  const axis = (place) => ({
    title: { text: modeTitle(axes, modes[place]) },
    ...(isText(labels[place]) ? { type: "category" } : {}),
    showgrid: false,
    zeroline: false,
  });
  const name = (place, variable) => `${modeTitle(axes, modes[place])}: %{${variable}}`;
  return {
    traces: [
      {
        type: "heatmap",
        x: labels[across],
        y: labels[down],
        z,
        ...limits,
        colorscale: signed ? diverging() : sequential(),
        hoverongaps: false,
        colorbar: { thickness: 10, outlinewidth: 0, tickformat: "~g" },
        hovertemplate: `${name(across, "x")}<br>${name(down, "y")}<br><b>%{z:.5g}</b><extra></extra>`,
      },
    ],
    layout: { xaxis: axis(across), yaxis: axis(down), margin: { l: 56, r: 8, t: 8, b: 44 } },
  };
}

function line(slice, modes, axes) {
  const x = ticks(axes, modes[0], slice.shape[0], slice.steps[0]);
  return {
    traces: [
      {
        type: isText(x) ? "bar" : "scatter",
        mode: "lines",
        x,
        y: slice.values,
        line: { color: palette()[0] },
        marker: { color: palette()[0] },
      },
    ],
    layout: { xaxis: { title: { text: modeTitle(axes, modes[0]) } }, yaxis: { zerolinecolor: colors().soft } },
  };
}
