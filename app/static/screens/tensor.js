// One tensor: its properties, the distribution of its entries, its axes, and any slice of it.

import { address, getJson, send } from "../api/request.js";
import { HistogramChart, ModeChart } from "../charts/bars.js";
import { SliceChart } from "../charts/heatmap.js";
import { axesEditor } from "../forms/axes-editor.js";
import { confirm, rename } from "../components/dialog.js";
import { card, choice, facts, h, replace } from "../components/element.js";
import { bytes, count, modeName, nameOf, number, percent, shape, when, whole } from "../components/format.js";
import { problemNote } from "../components/problem-note.js";
import { sliceView } from "../components/slice-view.js";
import { go, link, route } from "../router.js";

const MOST_IN_ONE_BIN = 0.7;
// A worker looks at the zeros of a new tensor within seconds: how often to ask, and after how many milliseconds.
const ZEROS_TRIES = 5;
const ZEROS_PAUSE = 2000;

export async function show({ main, parameters: { id }, query, signal }) {
  const path = `v1/tensors/${encodeURIComponent(id)}`;
  const tensor = await getJson(path, { signal });
  const entries = tensor.shape.reduce((product, length) => product * length, 1);
  const isMask = tensor.dtype === "bool";
  const renamed = () =>
    rename("tensor", tensor.name, (name) => send("PATCH", path, { body: { name } })).then((done) => done && route());
  const deleted = () =>
    confirm(
      "Delete this tensor?",
      `${nameOf(tensor)} (${bytes(tensor.nbytes)}) cannot be brought back. Its jobs stay.`,
      "Delete",
      () => send("DELETE", path),
    ).then((done) => done && go("/tensors"));
  const zerosPlace = h("div", { class: "stack", "aria-live": "polite" });
  showZeros(zerosPlace, tensor, path, signal);
  replace(
    main,
    h(
      "div",
      { class: "heading" },
      h("h1", {}, nameOf(tensor)),
      h(
        "div",
        { class: "actions" },
        h("button", { type: "button", onclick: renamed }, "Rename"),
        h("a", { class: "button", href: address(`${path}/content`), download: "" }, "Download .npy"),
        h("button", { type: "button", class: "danger", onclick: deleted }, "Delete"),
        !isMask && h("a", { class: "button primary", href: link("/new", { tensor: id, rank: query.rank }) }, "New run"),
      ),
    ),
    h(
      "section",
      { class: "card", "aria-label": "Facts" },
      facts([
        ["Shape", shape(tensor.shape), tensor.axes ? tensor.axes.map((axis) => axis.name).join(" × ") : null],
        ["Type", tensor.dtype, bytes(tensor.nbytes)],
        ["Range", `${number(tensor.min)} to ${number(tensor.max)}`, `norm ${number(tensor.norm)}`],
        ["Missing", whole(tensor.missing), percent(tensor.missing / entries, 2)],
        ["Negative", whole(tensor.negative), percent(tensor.negative / entries, 2)],
        ["Uploaded", when(tensor.created_at)],
      ]),
      ...advice(tensor),
    ),
    zerosPlace,
    h(
      "div",
      { class: "wide-left" },
      card(
        "Slice",
        [],
        sliceView({
          shape: tensor.shape,
          axes: tensor.axes,
          signal,
          range: [tensor.min, tensor.max],
          load: async (fix) => ({ Data: await getJson(`${path}/slice`, { query: { fix, max: 512 }, signal }) }),
        }),
      ),
      summaryCard(path, tensor, signal),
    ),
    axesCard(tensor),
  );
}

function advice({ missing, negative }) {
  const notes = [];
  if (missing)
    notes.push(
      h(
        "p",
        { class: "note" },
        `${count(missing, "entry is", "entries are")} NaN. A run leaves them out if its setting `,
        h("code", {}, "missing"),
        " is ",
        h("code", {}, "nan"),
        "; no value is put in their place.",
      ),
    );
  if (negative)
    notes.push(
      h(
        "p",
        { class: "note" },
        `${count(negative, "entry is", "entries are")} negative. Noise around zero is best fitted as it is (`,
        h("code", {}, "negative: keep"),
        "); if a large share is negative, the tensor may be centred or log-transformed, ",
        "which nonnegative components cannot describe.",
      ),
    );
  return notes;
}

/** Show zeros that look like missing readings, once a worker has looked for them. */
async function showZeros(place, tensor, path, signal) {
  let found = tensor.zeros;
  for (let tries = 0; found === null && tries < ZEROS_TRIES; tries += 1) {
    await new Promise((resolve) => setTimeout(resolve, ZEROS_PAUSE));
    if (signal.aborted) return;
    found = (await getJson(path, { signal }).catch(() => tensor)).zeros;
  }
  const suspicious = (found ?? []).filter((report) => report.look_missing);
  replace(place, ...suspicious.map((report) => zerosCard(report, tensor, signal)));
}

function zerosCard({ mode, entries, share, ratio, map }, tensor, signal) {
  const drawing = h("div", { class: "chart small" });
  const { modes, steps, rows } = map;
  const slice = { shape: modes.length === 1 ? [rows[0].length] : [rows.length, rows[0].length], steps };
  const over = modes.map((each) => modeName(tensor.axes, each)).join(" and ");
  new SliceChart(drawing, `Zeros, over ${over}`, signal).draw({
    slice: { ...slice, values: modes.length === 1 ? rows[0] : rows },
    modes,
    axes: tensor.axes,
  });
  return card(
    "Zeros that look like missing readings",
    [
      h(
        "a",
        { class: "button", href: link("/new", { tensor: tensor.id, zeros: "missing" }) },
        "Run with these as missing",
      ),
      h(
        "a",
        { class: "button", href: link("/new", { tensor: tensor.id, kind: "choose" }) },
        "Choose the number of components",
      ),
    ],
    h(
      "p",
      { class: "note" },
      `${count(entries, "entry is", "entries are")} zero (${percent(share, 1)}) all along `,
      `${modeName(tensor.axes, mode)}, but a fit of the others expects ${whole(Math.round(ratio))} times its residual `,
      "there. If these readings were cut out or not made, a run should leave them out. ",
      "They are left out only on request.",
    ),
    drawing,
  );
}

function summaryCard(path, tensor, signal) {
  const drawing = h("div", { class: "chart small" });
  const profiles = h("div", { class: "stack" });
  const histogram = new HistogramChart(drawing, signal);
  let log = false; // on, where one bin has nearly all counts
  let summary = null;
  const draw = () => summary && histogram.draw(summary.histogram, log);
  const scale = h("div");
  const made = card("Entries", [scale], drawing, profiles);
  getJson(`${path}/summary`, { signal })
    .then((found) => {
      summary = found;
      log = Math.max(...found.histogram.counts) > MOST_IN_ONE_BIN * found.observed;
      replace(
        scale,
        choice("Scale of the counts", { linear: "linear", log: "log" }, log ? "log" : "linear", (value) => {
          log = value === "log";
          draw();
        }),
      );
      draw();
      showProfiles(profiles, summary, tensor, signal);
    })
    .catch((error) => {
      if (!signal.aborted) replace(made, problemNote(error));
    });
  return made;
}

/** Show the mean of every index of a mode, which reveals dead channels and bright samples. */
function showProfiles(place, summary, tensor, signal) {
  const drawing = h("div", { class: "chart small" });
  const chart = new ModeChart(drawing, "Mean of every index of a mode", signal);
  const draw = (mode) => {
    const { step, values } = summary.profiles[mode - 1];
    chart.draw({ lines: [{ name: "mean", values }], step, mode, axes: tensor.axes, title: "mean" });
  };
  replace(
    place,
    h(
      "header",
      { class: "heading" },
      h("h3", {}, "Mean along a mode"),
      choice(
        "Mode",
        Object.fromEntries(tensor.shape.map((_, index) => [index + 1, modeName(tensor.axes, index + 1)])),
        "1",
        (mode) => draw(Number(mode)),
      ),
    ),
    drawing,
  );
  draw(1);
}

function axesCard(tensor) {
  const words = tensor.axes ? "Axes" : "Axes: none yet. Their names, units and values appear in every plot and table";
  return h(
    "details",
    { class: "card" },
    h("summary", {}, words),
    axesEditor(tensor, () => route()),
  );
}
