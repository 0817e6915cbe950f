// Compare: several jobs in one chart, and side by side with only the settings that differ.

import { poll } from "../api/connection.js";
import { getJson, read } from "../api/request.js";
import { ConvergenceChart } from "../charts/convergence.js";
import { Series } from "../charts/series.js";
import { card, choice, h, replace } from "../components/element.js";
import { nameOf, number, percent, seconds, whole } from "../components/format.js";
import { LIVE, pathOf } from "../components/job-actions.js";
import { stateMark } from "../components/job-heading.js";
import { flat, written } from "../components/settings-table.js";
import { link } from "../router.js";

const MOST = 12;
const LOOK_AGAIN = 1500;

export async function show({ main, query, signal }) {
  const ids = [...new Set((query.jobs ?? "").split(",").filter(Boolean))].slice(0, MOST);
  const runs = await Promise.all(
    ids.map(async (id) => ({
      job: await getJson(`v1/jobs/${encodeURIComponent(id)}`, { signal }),
      series: new Series(),
    })),
  );
  const drawing = h("div", { class: "chart tall", dataset: { chart: "convergence" } });
  const table = h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Jobs side by side" });
  const named = runs.map(({ job, series }, place) => ({
    name: runs.some((other, at) => at !== place && nameOf(other.job) === nameOf(job))
      ? `${nameOf(job)} (${place + 1})`
      : nameOf(job),
    series,
  }));
  let chart = null;
  replace(
    main,
    h(
      "div",
      { class: "heading" },
      h("h1", {}, "Compare"),
      h("div", { class: "actions" }, h("a", { class: "button", href: "#/jobs" }, "Choose others")),
    ),
    runs.length
      ? [
          card(
            "Convergence",
            [
              choice("Against", { iteration: "iterations", seconds: "seconds" }, "iteration", (x) => chart.set({ x })),
              choice("Scale", { log: "log", linear: "linear" }, "log", (scale) => chart.set({ log: scale === "log" })),
            ],
            drawing,
          ),
          card("Side by side", [], table),
        ]
      : h("p", { class: "note" }, "Choose two or more in the list of ", h("a", { href: "#/jobs" }, "jobs"), "."),
  );
  if (!runs.length) return;
  chart = new ConvergenceChart(drawing, named, signal);

  async function look(first) {
    for (const run of runs) {
      if (!first && !LIVE.includes(run.job.state)) continue;
      const path = pathOf(run.job);
      run.series.addCsv(
        await (await read(`${path}/history`, { query: { after: run.series.last, format: "csv" }, signal })).text(),
      );
      if (!first) run.job = await getJson(path, { signal });
    }
    chart.update();
    replace(
      table,
      sideBySide(
        runs.map(({ job }) => job),
        named,
      ),
    );
  }
  await look(true);
  poll(LOOK_AGAIN, signal, () => look(false));
}

function sideBySide(jobs, named) {
  const settings = jobs.map(
    (job) =>
      new Map([
        ...flat(job.settings),
        ["tensor", job.tensor_id],
        ["initial", job.initial?.job_id ?? null],
        ["mask", job.mask?.tensor_id ?? null],
      ]),
  );
  const names = [...new Set(settings.flatMap((one) => [...one.keys()]))];
  const differing = names.filter((name) => new Set(settings.map((one) => written(one.get(name)))).size > 1);
  const line = (title, cells) =>
    h(
      "tr",
      {},
      h("th", { scope: "row" }, title),
      cells.map((cell) => h("td", {}, cell)),
    );
  const of = (cell) => jobs.map((job) => cell(job) ?? "–");
  const group = (title) => h("tr", {}, h("th", { scope: "colgroup", colspan: jobs.length + 1, class: "soft" }, title));
  return h(
    "table",
    {},
    h(
      "thead",
      {},
      h(
        "tr",
        {},
        h("td", {}),
        jobs.map((job, place) =>
          h("th", { scope: "col" }, h("a", { href: link(`/jobs/${job.id}`) }, named[place].name)),
        ),
      ),
    ),
    h(
      "tbody",
      {},
      group(differing.length ? "Settings that differ" : "No setting differs"),
      differing.map((name) =>
        line(
          h("code", {}, name),
          settings.map((one) => written(one.get(name))),
        ),
      ),
    ),
    h(
      "tbody",
      {},
      group("Results"),
      line(
        "State",
        of((job) => stateMark(job.state)),
      ),
      line(
        "Relative error",
        of((job) => job.progress && number(job.result?.relative_error ?? job.progress.relative_error)),
      ),
      line(
        "Objective",
        of((job) => job.progress && number(job.result?.objective ?? job.progress.objective, 6)),
      ),
      line(
        "Components",
        of((job) => job.result && `${job.result.nonzero_components.all_modes} of ${job.settings.rank}`),
      ),
      line(
        "Sparsity",
        of(
          (job) =>
            job.result &&
            percent(
              job.result.sparsity.relative_per_mode.reduce((sum, one) => sum + one, 0) /
                job.result.sparsity.relative_per_mode.length,
              0,
            ),
        ),
      ),
      line(
        "Iterations",
        of((job) => job.progress && whole(job.progress.iteration)),
      ),
      line(
        "Computing time",
        of((job) => job.progress && seconds(job.result?.seconds ?? job.progress.seconds)),
      ),
    ),
  );
}
