// The components of a job, one row each and one column per mode, with diagnostics and the data behind any point.

import { poll } from "../api/connection.js";
import { componentsOf, loadFactors, withStability } from "../api/factors.js";
import { getJson, send } from "../api/request.js";
import { ModeChart } from "../charts/bars.js";
import { multiples } from "../charts/small-multiples.js";
import { palette } from "../charts/plotly.js";
import { announce } from "../components/announce.js";
import { show as showDialog } from "../components/dialog.js";
import { card, choice, h, replace } from "../components/element.js";
import { count, indexLabel, modeName, modeTitle, number, percent, whole } from "../components/format.js";
import { LIVE, pathOf } from "../components/job-actions.js";
import { jobHeading } from "../components/job-heading.js";
import { problemNote } from "../components/problem-note.js";
import { sliceView } from "../components/slice-view.js";
import { go } from "../router.js";
import { beforeAndAfter, outliersCard } from "../components/outliers.js";

const LOOK_AGAIN = 4000;
const OVERLAP = 0.9; // congruence above which two components may be one
const EXTRAPOLATED = 3; // model over missing entries, in largest readings, from which a result has a warning

export async function show({ main, parameters: { id }, query, signal }) {
  let job = await getJson(`v1/jobs/${encodeURIComponent(id)}`, { signal });
  const path = pathOf(job);
  const [tensor, labels] = await Promise.all([
    getJson(`v1/tensors/${encodeURIComponent(job.tensor_id)}`, { signal }).catch(() => null), // it may be deleted
    getJson(`${path}/axes`, { signal }),
  ]);
  const axes = labels.length ? labels : null;
  const modes = tensor?.shape.length ?? job.result?.sparsity.per_mode.length ?? axes?.length;
  const heading = jobHeading("components", modes);
  const status = h("p", { class: "soft", role: "status" }, "…");
  const place = h("div", { class: "scroll" });
  const diagnosticsPlace = h("div", { class: "stack" });
  const surePlace = h("div");
  const besidePlace = h("div");
  const all = h(
    "button",
    {
      type: "button",
      class: "quiet",
      hidden: true,
      onclick: () => {
        hidden.clear();
        draw();
      },
    },
    "Show all",
  );
  const hidden = new Set();
  let components = [];
  let shape = tensor?.shape ?? [];
  let iteration = null;

  replace(main, heading.element, card("Components", [all], status, place, surePlace), besidePlace, diagnosticsPlace);
  heading.show(job);

  function draw() {
    const focused = place.contains(document.activeElement)
      ? document.activeElement?.closest('[role="group"]')?.getAttribute("aria-label")
      : null;
    replace(
      place,
      multiples({
        components,
        shape,
        axes,
        hidden,
        onopen,
        ontoggle(component) {
          if (!hidden.delete(component)) hidden.add(component);
          announce(`Component ${component} is ${hidden.has(component) ? "hidden" : "shown"}`);
          draw();
        },
      }),
    );
    if (focused) place.querySelector(`[aria-label="${focused}"] button`)?.focus();
    all.hidden = !hidden.size;
  }

  /** Show this fit beside the one before, from which samples were left out. */
  async function beside() {
    try {
      const found = await getJson(`${path}/comparison`, { query: { other: query.before }, signal });
      replace(besidePlace, beforeAndAfter(found, axes));
    } catch (error) {
      if (!signal.aborted) replace(besidePlace, problemNote(error));
    }
  }

  /** Submit the same job without some indices, and go there. */
  async function fitWithout(exclude) {
    const { initial, mask, fixed, name, settings } = job;
    const named = { ...(initial && { initial }), ...(mask && { mask }), ...(fixed && { fixed }) };
    const body = { ...settings, ...named, exclude, tensor_id: job.tensor_id, name: `${name ?? "run"}, without some` };
    const made = await send("POST", "v1/jobs", { body, signal });
    go(`/jobs/${made.id}/components`, { before: job.id });
  }

  /** Offer a study of the stability of the components. */
  function assess() {
    const failed = h("div");
    const button = h(
      "button",
      {
        type: "button",
        onclick: async () => {
          button.disabled = true;
          try {
            const body = { kind: "stability", tensor_id: job.tensor_id, job_id: job.id, name: job.name };
            const made = await send("POST", "v1/studies", { body, signal });
            go(`/studies/${made.id}`);
          } catch (error) {
            if (signal.aborted) return;
            button.disabled = false;
            replace(failed, problemNote(error));
          }
        },
      },
      "How sure are these components?",
    );
    return [h("div", { class: "actions" }, button), failed];
  }

  /** Show all components along one mode in a chart. */
  function onopen(mode) {
    const closing = new AbortController();
    showDialog(
      modeTitle(axes, mode),
      (close) => {
        const drawing = h("div", { class: "chart tall" });
        const chart = new ModeChart(drawing, `All components along ${modeName(axes, mode)}`, closing.signal);
        const lines = components
          .map((one, row) => ({
            name: `Component ${one.number}`,
            values: Array.from(one.columns[mode - 1]),
            color: palette()[row % palette().length],
            band: one.bands?.[mode - 1],
          }))
          .filter((_, row) => !hidden.has(components[row].number));
        queueMicrotask(() => chart.draw({ lines, mode, axes, title: "relative to the maximum" }));
        return [
          drawing,
          h("div", { class: "actions" }, h("button", { type: "button", onclick: () => close(null) }, "Close")),
        ];
      },
      { large: true },
    ).then(() => closing.abort());
  }

  async function load() {
    if (job.factors_iteration === null) {
      status.textContent = LIVE.includes(job.state)
        ? "There are no factors yet: they come with the first checkpoint."
        : "This job ended before it had factors.";
      return;
    }
    if (job.factors_iteration === iteration) return;
    const found = await loadFactors(path, modes, signal);
    iteration = found.iteration;
    shape = found.factors.map((factor) => factor[0].length);
    // The norm of a deleted tensor is unknown; components of weight zero are left out in any case.
    components = componentsOf(found.factors, job.settings, tensor?.norm ?? 0);
    const stability = job.result?.stability ? await getJson(`${path}/stability`, { signal }) : null;
    if (stability) components = withStability(components, stability);
    const partial = LIVE.includes(job.state)
      ? ` These are partial factors, of iteration ${whole(iteration)}; the run continues.`
      : "";
    status.textContent =
      `${components.length} of ${job.settings.rank} components, the largest first; ` +
      `every curve is scaled to its own maximum.${partial}` +
      (stability ? ` Bands and whiskers are from 5 to 95 % of ${stability.resamples} fits to resampled samples.` : "");
    replace(surePlace, job.result && !stability && tensor && assess());
    draw();
    if (query.before && job.result) await beside();
  }

  addEventListener("ncp-theme", () => components.length && draw(), { signal });
  matchMedia("(min-width: 40.01rem)").addEventListener("change", () => components.length && draw(), { signal });
  await load();
  if (LIVE.includes(job.state)) {
    poll(LOOK_AGAIN, signal, async () => {
      if (!LIVE.includes(job.state)) return;
      job = await getJson(path, { signal });
      heading.show(job);
      await load();
      if (!LIVE.includes(job.state)) {
        iteration = null;
        await load();
        await diagnose();
      }
    });
  } else await diagnose();

  async function diagnose() {
    const reason = job.settings.diagnose
      ? "A job that was cancelled has no diagnostics."
      : "This job was run without diagnostics.";
    if (!job.settings.diagnose || job.state !== "succeeded")
      return replace(diagnosticsPlace, job.result && h("p", { class: "soft" }, reason));
    try {
      const found = await getJson(`${path}/diagnostics`, { signal });
      showDiagnostics(diagnosticsPlace, found, {
        path,
        shape,
        axes,
        signal,
        tensor,
      });
      const { samples } = found;
      if (tensor && samples && (samples.outliers.length || samples.single.length))
        diagnosticsPlace.prepend(outliersCard(samples, axes, job.settings.exclude, fitWithout));
    } catch (error) {
      if (signal.aborted) return;
      return replace(
        diagnosticsPlace,
        error.status === 404 ? h("p", { class: "soft" }, error.message) : problemNote(error),
      );
    }
    return null;
  }
}

/** Show residual and leverage of every index; a click shows the slice behind it. */
function showDiagnostics(place, diagnostics, { path, shape, axes, signal, tensor }) {
  const drawing = h("div", { class: "chart" });
  const detail = h("div", { class: "stack", dataset: { detail: "" } });
  const pickedIndex = h("input", { type: "number", min: 0, "aria-label": "Index to look at" });
  const label = h("span", { class: "soft" });
  const chart = new ModeChart(drawing, "Squared residual or leverage of every index", signal);
  let mode = 1;
  let quantity = "residual";
  /** @type {number | null} */
  let picked = null;
  const titles = { residual: "squared residual", leverage: "leverage" };

  function draw() {
    pickedIndex.max = shape[mode - 1] - 1;
    chart.draw({
      lines: [{ name: titles[quantity], values: diagnostics.modes[mode - 1][quantity] }],
      mode,
      axes,
      title: titles[quantity],
      onpick,
      picked,
    });
  }

  let looking = new AbortController();
  function onpick(index) {
    picked = index;
    pickedIndex.value = index;
    label.textContent = indexLabel(axes, mode, index);
    looking.abort();
    looking = new AbortController();
    const own = AbortSignal.any([signal, looking.signal]);
    replace(
      detail,
      h("h3", {}, `${modeName(axes, mode)}: ${indexLabel(axes, mode, index)}`),
      tensor
        ? sliceView({
            shape,
            axes,
            signal: own,
            fixed: { [mode]: index },
            signed: ["Residual"],
            load: async (fix) => {
              const found = await getJson(`${path}/model`, { query: { fix, max: 256 }, signal: own });
              return { Data: found.tensor, Model: found.model, Residual: found.residual };
            },
          })
        : h("p", { class: "soft" }, "The tensor was deleted; there is no slice to look at."),
    );
    draw();
    announce(`Slice at ${indexLabel(axes, mode, index)}`);
  }

  pickedIndex.addEventListener("change", () => {
    const index = Number(pickedIndex.value);
    if (pickedIndex.value !== "" && index >= 0 && index < shape[mode - 1]) onpick(index);
  });
  const worst = h(
    "button",
    {
      type: "button",
      onclick: () => {
        const values = diagnostics.modes[mode - 1][quantity];
        onpick(values.indexOf(Math.max(...values)));
      },
    },
    "The largest",
  );
  const modesByName = Object.fromEntries(shape.map((_, index) => [index + 1, modeName(axes, index + 1)]));
  replace(
    place,
    card(
      "Residual and leverage",
      [
        choice("Mode", modesByName, "1", (value) => {
          mode = Number(value);
          picked = null;
          looking.abort();
          replace(detail);
          draw();
        }),
        choice("Quantity", titles, quantity, (value) => {
          quantity = value;
          draw();
        }),
      ],
      h(
        "p",
        { class: "soft" },
        "Click a point, or enter an index, to see the data, the model and the residual there. ",
        "One index far above the others may be a faulty sample; a leverage near 1 means that ",
        "a single index may determine a component.",
      ),
      drawing,
      h(
        "div",
        { class: "filters" },
        h("div", { class: "field" }, h("span", { class: "label" }, "Index"), pickedIndex),
        worst,
        label,
      ),
      detail,
    ),
    reliabilityCard(diagnostics),
  );
  draw();
}

function reliabilityCard(diagnostics) {
  const { core_consistency: core, core_consistency_reason: reason, congruence, components, unobserved } = diagnostics;
  const pairs = congruence
    .flatMap((row, first) =>
      row
        .map((value, second) => [value, first, second])
        .filter(([value, a, b]) => b > a && value > OVERLAP && components[a].share > 0 && components[b].share > 0),
    )
    .sort((a, b) => b[0] - a[0]);
  return card(
    "Can it be trusted?",
    [],
    h(
      "p",
      {},
      h("strong", {}, "Core consistency: "),
      core === null ? `none – ${reason}` : number(core),
      core !== null &&
        (core < 50
          ? " – low: too many components, or not the right ones"
          : core > 90
            ? " – components do not interact, as they should"
            : ""),
    ),
    pairs.length
      ? h(
          "div",
          {},
          h(
            "p",
            {},
            `${count(pairs.length, "pair")} of components look alike (congruence above ${OVERLAP}): `,
            "one component split in two, or two that the data cannot separate.",
          ),
          h(
            "ul",
            {},
            pairs
              .slice(0, 12)
              .map(([value, a, b]) => h("li", {}, `Components ${a + 1} and ${b + 1}: ${number(value)}`)),
          ),
        )
      : h("p", {}, "No two components look alike."),
    h(
      "p",
      { class: "soft" },
      `Shares: ${components.map(({ share }, index) => `${index + 1}: ${percent(share)}`).join(" · ")}`,
    ),
    unobserved &&
      h(
        "p",
        { class: unobserved.ratio > EXTRAPOLATED ? "note warning" : "soft" },
        `Where entries are missing, the model reaches ${number(unobserved.ratio)} times the largest reading, in `,
        `component ${unobserved.component}. Share of each component there: `,
        components.map((one, index) => `${index + 1}: ${percent(one.unobserved)}`).join(" · "),
      ),
  );
}
