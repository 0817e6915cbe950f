// A slice of a tensor: two modes as a picture, with a slider for each of the others.

import { SliceChart } from "../charts/heatmap.js";
import { choice, h, replace, select } from "./element.js";
import { indexLabel, modeName } from "./format.js";
import { problemNote } from "./problem-note.js";

/**
 * Show a slice, with controls to choose another. `load(fix)` resolves to `{name: slice}`, one picture each, and `fixed`
 * holds modes at an index at first. Pictures named in `signed` get a colour scale centred on zero. With the `range` of
 * the whole tensor, the colour scale can be kept from slice to slice.
 *
 * @param {{
 *   shape: number[],
 *   axes: any,
 *   load: (fix: string) => Promise<Record<string, any>>,
 *   fixed?: Record<number, number>,
 *   signed?: string[],
 *   range?: number[] | null,
 *   signal: AbortSignal,
 * }} options
 */
export function sliceView({ shape, axes, load, fixed = {}, signed = [], range = null, signal }) {
  const modes = shape.map((_, place) => place + 1);
  const free = modes.filter((mode) => !(mode in fixed)).sort((a, b) => shape[b - 1] - shape[a - 1]);
  let shown = (
    free.length >= 2 ? free.slice(0, 2) : shape.length === 2 && !Object.keys(fixed).length ? modes : free
  ).sort((a, b) => a - b);
  const at = Object.fromEntries(modes.map((mode) => [mode, fixed[mode] ?? Math.floor((shape[mode - 1] - 1) / 2)]));
  const controls = h("div", { class: "sliders" });
  const pictures = h("div", { class: "slices" });
  const thinningNote = h("small", { "aria-live": "polite" });
  const charts = {};
  let requested = 0;
  let fixedColours = false;

  const pick = (place) => {
    const made = select(Object.fromEntries(modes.map((mode) => [mode, modeName(axes, mode)])), String(shown[place]));
    made.setAttribute("aria-label", place ? "Mode across" : "Mode downwards");
    made.addEventListener("change", () => {
      const mode = Number(made.value);
      if (shown[1 - place] === mode) shown = [shown[1], shown[0]];
      else shown[place] = mode;
      arrange();
    });
    return h("div", { class: "field" }, h("span", { class: "label" }, place ? "Across" : "Downwards"), made);
  };

  function slider(mode) {
    const output = h("output", {}, indexLabel(axes, mode, at[mode]));
    const input = h("input", {
      type: "range",
      min: 0,
      max: shape[mode - 1] - 1,
      value: at[mode],
      "aria-label": modeName(axes, mode),
      "aria-valuetext": indexLabel(axes, mode, at[mode]),
    });
    input.addEventListener("input", () => {
      at[mode] = Number(input.value);
      output.textContent = indexLabel(axes, mode, at[mode]);
      input.setAttribute("aria-valuetext", output.textContent);
      draw();
    });
    return h("div", { class: "field" }, h("span", { class: "label" }, modeName(axes, mode), " ", output), input);
  }

  function arrange() {
    const sliders = modes.filter((mode) => !shown.includes(mode)).map(slider);
    replace(controls, shown.length === 2 && shape.length > 2 && [pick(0), pick(1)], sliders);
    draw();
  }

  // While a slice is loading, further moves of a slider become a single request.
  let busy = false;
  async function draw() {
    requested++;
    if (busy) return;
    busy = true;
    try {
      for (let served = 0; served !== requested && !signal.aborted; ) {
        served = requested;
        const modesNow = [...shown].sort((a, b) => a - b);
        const transpose = shown.length === 2 && shown[0] > shown[1];
        const found = await load(
          modes
            .filter((mode) => !shown.includes(mode))
            .map((mode) => `${mode}:${at[mode]}`)
            .join(","),
        );
        if (signal.aborted) return;
        for (const [name, slice] of Object.entries(found)) {
          charts[name] ??= picture(name);
          charts[name].draw({
            slice,
            modes: modesNow,
            axes,
            transpose,
            signed: signed.includes(name),
            range: fixedColours && !signed.includes(name) ? range : null,
          });
        }
        showThinning(Object.values(found)[0], modesNow);
      }
    } catch (error) {
      if (!signal.aborted) replace(pictures, problemNote(error));
    } finally {
      busy = false;
    }
  }

  function picture(name) {
    const element = h("div", { class: "chart small", dataset: { picture: name } });
    pictures.append(h("figure", { style: { margin: "0" } }, h("h3", {}, name), element));
    return new SliceChart(element, `${name}: heat map of the slice`, signal);
  }

  function showThinning(slice, modesNow) {
    const words = modesNow
      .map((mode, place) => slice.steps[place] > 1 && `every ${slice.steps[place]}th of ${modeName(axes, mode)}`)
      .filter(Boolean);
    thinningNote.textContent = words.length ? `Thinned for drawing: ${words.join(", ")}.` : "";
  }

  // Deferred, because charts can only be drawn once they are in the page.
  queueMicrotask(arrange);
  const scale =
    range &&
    shape.length > 2 &&
    h(
      "div",
      { class: "field" },
      h("span", { class: "label" }, "Colours"),
      choice("Colours", { own: "of this slice", all: "of the whole tensor" }, "own", (value) => {
        fixedColours = value === "all";
        draw();
      }),
    );
  return h("div", { class: "stack" }, controls, scale, pictures, thinningNote);
}
