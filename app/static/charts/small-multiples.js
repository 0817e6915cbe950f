// Small multiples: one row per component, one column per mode. Drawn as plain SVG, since a chart for each of sixty
// small panels would take plotly a second; a mode's heading opens all its components in one large chart.

import { h, svg } from "../components/element.js";
import { indexLabel, modeTitle, percent } from "../components/format.js";
import { palette, sequential } from "./plotly.js";
import { thin } from "./downsample.js";

const WIDTH = 240;
const HEIGHT = 64;
const MOST_BARS = 80;
const MOST_POINTS = 600;
const REPLICABLE = 0.9; // below, a component is doubtful
const TOP = 1.06; // a band that reaches beyond the panel is cut
// Unlabelled modes up to this length are taken for samples or conditions, not for a spectrum or time.
const FEW = 12;

/** Return the style of a mode: "bars" for few or named indices, "heat" for too many of them, otherwise "lines". */
export function styleOf(axis, length) {
  if (axis)
    return typeof axis.values[0] === "string"
      ? length <= MOST_BARS
        ? "bars"
        : "heat"
      : length > 5000
        ? "heat"
        : "lines";
  return length <= FEW ? "bars" : length > 5000 ? "heat" : "lines";
}

/**
 * Draw `components`, each `{number, share, sparsity, columns}`, with columns scaled to a maximum of 1, and where their
 * stability is known `{bands, replicability}`.
 * Those whose number is in the set `hidden` are drawn without curves. The buttons call `ontoggle(number)` and
 * `onopen(mode)`.
 */
export function multiples({ components, shape, axes, hidden, ontoggle, onopen }) {
  const styles = shape.map((length, place) => styleOf(axes?.[place], length));
  const heads = shape.map((_, place) =>
    h(
      "button",
      { type: "button", class: "mode", onclick: () => onopen(place + 1), title: "All components in one chart" },
      modeTitle(axes, place + 1),
      h("span", { "aria-hidden": "true" }, "⤢"),
    ),
  );
  const rows = components.map((component, row) => {
    const isHidden = hidden.has(component.number);
    const color = palette()[row % palette().length];
    const cell = isHidden ? "panel hidden-row" : "panel";
    return h(
      "div",
      { class: isHidden ? "row hidden-row" : "row", role: "group", "aria-label": `Component ${component.number}` },
      h(
        "div",
        { class: isHidden ? "about hidden-row" : "about" },
        h(
          "button",
          {
            type: "button",
            "aria-pressed": String(!isHidden),
            onclick: () => ontoggle(component.number),
            title: isHidden ? "Show" : "Hide",
          },
          h("span", { class: "swatch", style: { color } }),
          `Component ${component.number}`,
        ),
        !isHidden && h("small", {}, `${percent(component.share)} of the model`),
        !isHidden && h("small", {}, `${percent(component.sparsity, 0)} zero`),
        !isHidden && component.replicability !== undefined && sureness(component),
      ),
      component.columns.map((values, place) =>
        h(
          "div",
          { class: isHidden ? `${cell} hidden-row` : cell },
          isHidden
            ? null
            : panel(
                values,
                styles[place],
                color,
                describe(values, axes, place + 1, component.number),
                component.bands?.[place],
              ),
        ),
      ),
    );
  });
  const ends = shape.map((length, place) =>
    h(
      "div",
      { class: "ends" },
      h("span", {}, indexLabel(axes, place + 1, 0)),
      length > 1 && h("span", {}, indexLabel(axes, place + 1, length - 1)),
    ),
  );
  const wide = matchMedia("(min-width: 40.01rem)").matches;
  const columns = `${wide ? "10rem " : ""}repeat(${shape.length}, minmax(0, 1fr))`;
  return h(
    "div",
    { class: "multiples", style: { "grid-template-columns": columns } },
    wide && h("span"),
    heads,
    rows,
    wide && h("span"),
    ends,
  );
}

function describe(values, axes, mode, number) {
  let peak = 0;
  values.forEach((value, index) => {
    if (value > values[peak]) peak = index;
  });
  return `Component ${number}, ${modeTitle(axes, mode)}: largest at ${indexLabel(axes, mode, peak)}`;
}

/** Say how well a component is found again in other samples. */
function sureness({ replicability, splitHalf }) {
  const doubtful = replicability === null || replicability < REPLICABLE;
  const halves = splitHalf === null ? "" : `; worst of three halves ${splitHalf.toFixed(2)}`;
  return h(
    "small",
    { class: doubtful ? "bad" : null, title: `Congruence that 90 % of the resamples reach${halves}` },
    `replicability ${replicability === null ? "–" : replicability.toFixed(2)}${doubtful ? " – doubtful" : ""}`,
  );
}

/** @param {{lower: number[], upper: number[]} | null} [band] */
function panel(values, style, color, label, band) {
  if (style === "heat") return strip(values, label);
  const frame = svg("svg", {
    viewBox: `0 0 ${WIDTH} ${HEIGHT}`,
    preserveAspectRatio: "none",
    role: "img",
    "aria-label": label,
  });
  frame.append(svg("title", {}, label));
  const y = (value) => (HEIGHT - 3 - value * (HEIGHT - 8)).toFixed(2);
  if (style === "bars") {
    const step = WIDTH / values.length;
    const gap = Math.min(4, step * 0.2);
    values.forEach((value, index) =>
      frame.append(
        svg("rect", {
          x: index * step + gap / 2,
          width: Math.max(0.5, step - gap),
          y: y(value),
          height: Math.max(0.8, HEIGHT - 3 - Number(y(value))),
          fill: color,
          ...(band && { opacity: 0.55 }),
        }),
      ),
    );
    band?.upper.forEach((upper, index) => {
      const middle = (index + 0.5) * step;
      const whisker = { d: `M${middle} ${y(Math.min(upper, TOP))}V${y(band.lower[index])}`, stroke: color };
      frame.append(
        svg("path", { ...whisker, class: "band", "stroke-width": 2, "vector-effect": "non-scaling-stroke" }),
      );
    });
    return frame;
  }
  const x = (index) => ((index / Math.max(1, values.length - 1)) * WIDTH).toFixed(2);
  const points = thin(values, 0, values.length, MOST_POINTS).map((index) => `${x(index)} ${y(values[index])}`);
  if (band) {
    const edge = (bound) => [...bound.keys()].map((index) => `${x(index)} ${y(Math.min(bound[index], TOP))}`);
    const outline = [...edge(band.upper), ...edge(band.lower).reverse()];
    frame.append(svg("path", { d: `M${outline.join("L")}Z`, class: "band", fill: color, opacity: 0.35 }));
  }
  frame.append(
    svg("path", {
      d: `M0 ${HEIGHT - 3}L${points.join("L")}L${WIDTH} ${HEIGHT - 3}Z`,
      fill: color,
      opacity: band ? 0.06 : 0.14,
    }),
    svg("path", {
      d: `M${points.join("L")}`,
      fill: "none",
      stroke: color,
      "stroke-width": 1.8,
      "vector-effect": "non-scaling-stroke",
      "stroke-linejoin": "round",
    }),
  );
  return frame;
}

/** Draw a row of colours; in a strip shorter than the mode, each shows the largest of several values. */
function strip(values, label) {
  const width = Math.min(values.length, 1200);
  const canvas = h("canvas", { width, height: 1, role: "img", "aria-label": label });
  const scale = sequential().map(([place, color]) => ({
    place,
    rgb: [1, 3, 5].map((start) => parseInt(color.slice(start, start + 2), 16)),
  }));
  const image = new ImageData(width, 1);
  for (let column = 0; column < width; column++) {
    let value = 0;
    for (
      let index = Math.floor((column * values.length) / width);
      index < ((column + 1) * values.length) / width;
      index++
    )
      value = Math.max(value, values[index]);
    const upper = Math.max(
      1,
      scale.findIndex(({ place }) => place >= value),
    );
    const [below, above] = [scale[upper - 1], scale[upper]];
    const share = (value - below.place) / (above.place - below.place);
    image.data.set([...below.rgb.map((from, part) => from + (above.rgb[part] - from) * share), 255], column * 4);
  }
  canvas.getContext("2d").putImageData(image, 0, 0);
  return canvas;
}
