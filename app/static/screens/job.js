// A job: its convergence, drawn live, and its outcome.

import { poll } from "../api/connection.js";
import { follow } from "../api/events.js";
import { componentsOf, loadFactors, sparsityOf } from "../api/factors.js";
import { getJson, read } from "../api/request.js";
import { ConvergenceChart } from "../charts/convergence.js";
import { Series } from "../charts/series.js";
import { card, choice, facts, h, redraw, replace } from "../components/element.js";
import { count, number, percent, seconds, shape, when, whole } from "../components/format.js";
import { LIVE, pathOf } from "../components/job-actions.js";
import { jobHeading } from "../components/job-heading.js";
import { settingsTable } from "../components/settings-table.js";
import { link } from "../router.js";

const LOOK_AT_FACTORS = 5000; // milliseconds between checks for a new checkpoint
const LARGEST_FACTORS = 2e6; // entries; with more, components are only counted at the end
const PHASES = {
  preparing: "preparing",
  start: "trying starts",
  compressed: "compressed",
  single: "single precision",
  exact: "exact",
  diagnosing: "diagnosing",
  resampling: "assessing stability",
};
const STEPS = {
  check: "checking the stored tensor",
  scan: "scanning the tensor",
  weights: "finding the sparsity",
  start: "making the start",
  compress: "compressing the tensor",
  single: "copying in single precision",
  sweep: "first sweep",
  resample: "refitting to resampled samples",
};
const REASONS = {
  tolerance: "the change fell below the tolerance",
  max_iterations: "it reached its number of iterations",
  max_seconds: "it reached its time limit",
  cancelled: "it was cancelled",
  exact: "one exact fit, nothing to iterate",
};

export async function show({ main, parameters: { id }, signal }) {
  let job = await getJson(`v1/jobs/${encodeURIComponent(id)}`, { signal });
  const path = pathOf(job);
  // The tensor may be deleted.
  const tensor = await getJson(`v1/tensors/${encodeURIComponent(job.tensor_id)}`, { signal }).catch(() => null);
  const series = new Series();
  const heading = jobHeading("live", tensor?.shape.length ?? 0);
  const numbers = h("div", { dataset: { facts: "" } });
  const outcome = h("div", { class: "stack" });
  const drawing = h(
    "div",
    { class: "chart tall", dataset: { chart: "convergence" } },
    h("p", { class: "waiting" }, "Waiting for the first iteration"),
  );
  let checkpoint = null;
  let chart = null;

  replace(
    main,
    heading.element,
    h("section", { class: "card", "aria-label": "Numbers" }, numbers),
    outcome,
    card(
      "Convergence",
      [
        choice("Against", { iteration: "iterations", seconds: "seconds" }, "iteration", (x) => chart?.set({ x })),
        choice("Scale", { log: "log", linear: "linear" }, "log", (scale) => chart?.set({ log: scale === "log" })),
      ],
      drawing,
    ),
    card(
      "Settings",
      [],
      settingsTable(job.settings),
      tensor &&
        h(
          "p",
          {},
          "Tensor: ",
          h("a", { href: link(`/tensors/${tensor.id}`) }, tensor.name ?? tensor.id),
          ` (${shape(tensor.shape)})`,
        ),
      job.study_id && h("p", {}, "It is a run of ", h("a", { href: link(`/studies/${job.study_id}`) }, "a study"), "."),
    ),
  );

  let frame = 0;
  function render() {
    cancelAnimationFrame(frame);
    frame = requestAnimationFrame(() => {
      heading.show(job);
      replace(numbers, facts(jobFacts(job, series, checkpoint)));
      if (!series.length) {
        if (!LIVE.includes(job.state))
          replace(drawing, h("p", { class: "waiting" }, "It ended before its first iteration."));
        return;
      }
      if (!chart) {
        replace(drawing);
        chart = new ConvergenceChart(drawing, [{ name: null, series }], signal);
      }
      chart.update();
    });
  }

  async function refresh() {
    const found = await getJson(path, { signal });
    if (LIVE.includes(found.state) && !LIVE.includes(job.state)) return; // asked before the end, answered after it
    job = found;
    render();
    if (!LIVE.includes(job.state)) redraw(outcome, outcomeNotes(job));
  }

  render();
  series.addCsv(await (await read(`${path}/history`, { query: { format: "csv" }, signal })).text());
  await refresh();
  // The stream starts after the last iteration of the history.
  follow(`${path}/events`, {
    signal,
    after: series.last ? `${series.last}-0` : null,
    onevent({ kind, data }) {
      if (kind === "progress") {
        series.push(data);
        if (job.preparing) job = { ...job, phase: data.phase, preparing: null };
      } else if (kind === "preparing")
        job = { ...job, phase: data.step === "resample" ? "resampling" : "preparing", preparing: data };
      else if (kind === "end") {
        job = data;
        replace(outcome, outcomeNotes(job));
      } else refresh();
      render();
    },
  }).then(() => {
    if (!signal.aborted) return refresh();
  });
  if (LIVE.includes(job.state)) {
    // The place in the queue and the phase come with the job, not with events.
    poll(3000, signal, async () => {
      if (LIVE.includes(job.state)) await refresh();
    });
    if (tensor)
      poll(LOOK_AT_FACTORS, signal, async () => {
        if (job.state === "running" && job.factors_iteration > (checkpoint?.iteration ?? 0)) {
          checkpoint = (await checkpointSummary(path, job, tensor, signal)) ?? checkpoint;
          render();
        }
      });
  }
}

/** Count components and zeros at the last checkpoint; null if there are too many entries. */
async function checkpointSummary(path, job, tensor, signal) {
  if (tensor.shape.reduce((sum, length) => sum + length, 0) * job.settings.rank > LARGEST_FACTORS) return null;
  const { iteration, factors } = await loadFactors(path, tensor.shape.length, signal);
  return {
    iteration,
    count: componentsOf(factors, job.settings, tensor.norm).length,
    sparsity: sparsityOf(factors, job.settings.sparsity_threshold),
  };
}

const preparation = ({ step, share }) => `${STEPS[step] ?? step}${share > 0 ? `, ${percent(share, 0)}` : ""}`;

function jobFacts(job, series, checkpoint) {
  const at = series.length - 1;
  const { result, settings } = job;
  const before = Math.max(0, at - 200);
  const live = LIVE.includes(job.state);
  const error = result?.relative_error ?? series.relative_error[at];
  const spent = result?.seconds ?? series.seconds[at];
  const components = result
    ? ["Components", `${result.nonzero_components.all_modes} of ${settings.rank}`, "nonzero"]
    : [
        "Nonzero components",
        checkpoint ? `${checkpoint.count} of ${settings.rank}` : `≤ ${settings.rank}`,
        checkpoint ? `at iteration ${whole(checkpoint.iteration)}` : "known at the first checkpoint",
      ];
  const zero = result ? mean(result.sparsity.relative_per_mode) : checkpoint?.sparsity;
  return [
    job.state === "queued" && ["Place in the queue", job.queue_position ?? "–", job.paused?.message ?? "1 is next"],
    job.state === "running" && ["Phase", PHASES[job.phase] ?? job.phase, job.preparing && preparation(job.preparing)],
    [
      "Iteration",
      at < 0 ? "–" : whole(series.iteration[at]),
      live && at > 20
        ? `${number((at - before) / (series.seconds[at] - series.seconds[before] || NaN), 3)} per second`
        : null,
    ],
    ["Objective", at < 0 ? "–" : number(result?.objective ?? series.objective[at], 6)],
    ["Relative error", at < 0 ? "–" : number(error), at < 0 ? null : `fit ${percent(1 - error, 2)}`],
    components,
    [
      "Sparsity",
      zero === undefined ? "–" : percent(zero, 0),
      zero === undefined ? "known at the first checkpoint" : "of the entries are zero",
    ],
    ["Computing time", at < 0 ? "–" : seconds(spent), job.attempt > 1 ? `attempt ${job.attempt}` : null],
    ["Submitted", when(job.created_at)],
    job.finished_at && ["Finished", when(job.finished_at)],
  ].filter(Boolean);
}

const mean = (values) => values.reduce((sum, value) => sum + value, 0) / values.length;

function outcomeNotes(job) {
  if (job.error)
    return h(
      "div",
      { class: "note problem" },
      h("strong", {}, "It failed: "),
      job.error.message,
      h("p", {}, job.error.remedy),
    );
  const { result } = job;
  if (!result) return h("p", { class: "note warning" }, "It was cancelled before its first result.");
  return [
    h(
      "p",
      { class: job.state === "succeeded" ? "note" : "note warning" },
      `It ended after ${count(result.iterations, "iteration")}: ${REASONS[result.stop_reason] ?? result.stop_reason}. `,
      h(
        "a",
        { href: link(`/jobs/${job.id}/components`) },
        `Look at its ${count(result.nonzero_components.all_modes, "component")}`,
      ),
    ),
    ...result.warnings.map((text) => h("p", { class: "note warning" }, text)),
  ];
}
