// A study: the grid filling as runs end, the table, the advice with its evidence, the plots.

import { follow } from "../api/events.js";
import { address, getJson, send } from "../api/request.js";
import { announce } from "../components/announce.js";
import { confirm } from "../components/dialog.js";
import { card, facts, h, redraw, replace } from "../components/element.js";
import { problemNote } from "../components/problem-note.js";
import { count, nameOf, number, percent, seconds, when, whole } from "../components/format.js";
import { LIVE } from "../components/job-actions.js";
import { go, link } from "../router.js";

const PLOTS = {
  compare: {
    objective: "Objective against seconds",
    quality: "Quality over the repeats",
    path: "Components and error along the penalty",
    components: "Components of the best run",
  },
  choose: { choice: "The evidence for the choice", components: "Components of the chosen model" },
};
const REFRESH = 700; // milliseconds; many runs that end at once are one look
const CRITERIA = {
  gain: ["By gain", "more components improve the fit no more than they would on noise"],
  cliff: ["By steepest fall", "the next component improves the fit far less"],
  agreement: ["By agreement of seeds", "largest number at which all random starts find the same components"],
  prediction: ["By prediction", "smallest number that predicts left-out readings as well as any"],
  cold_prediction: ["By blind prediction", "the same, with fits that started without these readings"],
  halves: ["By halves", "largest number at which two halves of the samples give the same components"],
  bootstrap: ["By resampling", "largest number at which resampled samples give the same components"],
  core: ["By core consistency", "largest number with a core consistency above 70 %"],
};
const CONFIDENCE = { very: "very sure", yes: "sure", no: "not sure" };
const SPREAD = [
  "objective",
  "relative_error",
  "seconds",
  "iterations",
  "sparsity",
  "components",
  "mode_components",
  "factor_match",
  "psnr",
];

const weightOf = (row) => (row.beta === null ? `sparsity ${number(row.requested_sparsity)}` : `β ${number(row.beta)}`);

export async function show({ main, parameters: { id }, signal }) {
  const path = `v1/studies/${encodeURIComponent(id)}`;
  let study = await getJson(path, { signal });
  const state = h("span");
  const actions = h("div", { class: "actions" });
  const numbers = h("div");
  const advice = h("div", { class: "stack" });
  const grid = h("div", { class: "stack" });
  const plots = h("div", { class: "stack" });
  replace(
    main,
    h("div", { class: "heading" }, h("h1", {}, nameOf(study)), state, actions),
    h("section", { class: "card", "aria-label": "Progress" }, numbers),
    advice,
    grid,
    plots,
  );

  const deleting = new AbortController(); // what is being deleted is not looked at any more
  const looking = AbortSignal.any([signal, deleting.signal]);
  let shownState = null;
  function draw() {
    const live = LIVE.includes(study.state);
    if (shownState !== study.state) {
      if (shownState !== null) announce(`The study is ${study.state}`);
      replace(
        state,
        h("span", { class: `state ${study.state}` }, study.cancel_requested && live ? "cancelling" : study.state),
      );
      replace(
        actions,
        study.kind !== "stability" &&
          h(
            "a",
            { class: "button", href: link("/new", { tensor: study.tensor_id, kind: study.kind }) },
            "Another study",
          ),
        live
          ? h(
              "button",
              {
                type: "button",
                class: "danger",
                onclick: ({ target }) => {
                  target.disabled = true;
                  send("POST", `${path}/cancel`).then(() =>
                    announce("The study is being cancelled; what is done is kept"),
                  );
                },
              },
              "Cancel",
            )
          : h(
              "button",
              {
                type: "button",
                class: "danger",
                onclick: () =>
                  confirm(
                    "Delete this study?",
                    `${nameOf(study)} and its ${count(study.runs.total, "run")} cannot be brought back.`,
                    "Delete",
                    () => {
                      deleting.abort();
                      return send("DELETE", path);
                    },
                  ).then((done) => done && go("/studies")),
              },
              "Delete",
            ),
      );
      shownState = study.state;
      if (!live) replace(plots, plotsCard(path, study));
    }
    redraw(numbers, progress(study));
    redraw(advice, study.recommendation ? recommendationCard(study.recommendation) : adviceCard(study));
    redraw(
      grid,
      study.kind === "compare"
        ? [gridCard(study), tableCard(path, study), ranksCard(study)]
        : study.kind === "stability"
          ? stabilityCard(study)
          : choiceCard(study),
    );
  }

  async function refresh() {
    const found = await getJson(path, { signal: looking });
    if (LIVE.includes(found.state) && !LIVE.includes(study.state)) return; // asked before the end, answered after it
    study = found;
    draw();
  }
  let timer = null;
  const soon = () => {
    timer ??= setTimeout(() => {
      timer = null;
      refresh();
    }, REFRESH);
  };
  looking.addEventListener("abort", () => clearTimeout(timer));
  draw();
  if (LIVE.includes(study.state))
    follow(`${path}/events`, { signal: looking, onevent: soon }).then(() => (looking.aborted ? undefined : refresh()));
}

function progress(study) {
  const { runs } = study;
  return [
    h("progress", { max: 1, value: study.progress ?? 0, "aria-label": `${percent(study.progress, 0)} done` }),
    facts([
      ["Done", percent(study.progress, 0), LIVE.includes(study.state) ? study.stage : null],
      [
        "Runs",
        `${whole(runs.succeeded + runs.failed + runs.cancelled)} of ${whole(runs.total)}`,
        [
          runs.running && `${runs.running} running`,
          runs.queued && `${runs.queued} queued`,
          runs.failed && `${runs.failed} failed`,
        ]
          .filter(Boolean)
          .join(", "),
      ],
      LIVE.includes(study.state) &&
        study.seconds_left !== null && ["Time left", `about ${seconds(study.seconds_left)}`],
      ["Submitted", when(study.created_at)],
      study.finished_at && ["Finished", when(study.finished_at)],
      ["Tensor", h("a", { href: link(`/tensors/${study.tensor_id}`) }, "open")],
      ["Jobs", h("a", { href: link("/jobs", { study_id: study.id }) }, "list of runs")],
    ]),
    study.error && h("p", { class: "note problem" }, study.error.message, " ", study.error.remedy),
  ];
}

/** The recommendation in words, never a bare number. */
function adviceCard(study) {
  const { advice, job_id: job } = study;
  if (!advice) return null;
  const {
    components,
    suggestion,
    range,
    confidence,
    reason,
    residuals_white: white,
    weakest_visible: weakest,
    sparsity,
    beta,
  } = advice;
  const head =
    components !== null
      ? `${count(components, "component")} – ${CONFIDENCE[confidence] ?? confidence}`
      : `Suggestion: ${count(suggestion, "component")} – ${CONFIDENCE[confidence] ?? confidence}`;
  return card(
    head,
    job ? [h("a", { class: "button primary", href: link(`/jobs/${job}/components`) }, "Look at the model")] : [],
    h("p", { class: confidence === "no" ? "note warning" : "note" }, `${reason[0].toUpperCase()}${reason.slice(1)}.`),
    facts([
      range && ["Range", range.join(" to ")],
      [
        "Residuals",
        white ? "white" : "not white",
        white ? "neighbouring residuals are independent" : "neighbouring residuals depend on each other",
      ],
      weakest !== null &&
        weakest !== undefined && ["Weakest visible", number(weakest), "weaker components may be missed"],
      sparsity !== null &&
        sparsity !== undefined && ["Sparsity for this", number(sparsity), "keeps just these components"],
      beta !== null && beta !== undefined && ["β for this", number(beta)],
      ...Object.entries(advice.criteria ?? {}).map(([name, value]) => {
        const [title, meaning] = CRITERIA[name] ?? [`By ${name}`, null];
        return [title, value === null ? "–" : number(value), meaning];
      }),
    ]),
    chooseOtherwise(study),
  );
}

/** Offer the same choice with zeros taken the other way, and without outlying samples. */
function chooseOtherwise({ advice, request, tensor_id: tensor, name }) {
  const failed = h("div");
  const again = (words, fields) =>
    h(
      "button",
      {
        type: "button",
        onclick: async ({ target }) => {
          target.disabled = true;
          try {
            const body = { kind: "choose", tensor_id: tensor, ...(name && { name }), ...request, ...fields };
            const made = await send("POST", "v1/studies", { body });
            go(`/studies/${made.id}`);
          } catch (error) {
            target.disabled = false;
            replace(failed, problemNote(error));
          }
        },
      },
      words,
    );
  const { other_zeros: zeros, outlying_samples: outlying = [] } = advice;
  const mode = request.samples_mode ?? 1;
  const exclude = { ...request.exclude, [mode]: [...new Set([...(request.exclude?.[mode] ?? []), ...outlying])] };
  if (!zeros && !outlying.length) return null;
  return [
    h(
      "div",
      { class: "actions" },
      zeros && again(`Choose with these zeros as ${zeros.zeros}`, { zeros: zeros.zeros }),
      outlying.length > 0 && again(`Choose without ${count(outlying.length, "outlying sample")}`, { exclude }),
    ),
    failed,
  ];
}

/** The rank, weight and method that a comparison recommends, with the evidence. */
function recommendationCard({ title, confirmed, best, sentences: [first, ...others] }) {
  return card(
    title,
    best ? [h("a", { class: "button primary", href: link(`/jobs/${best}/components`) }, "Look at its best run")] : [],
    h("p", { class: confirmed ? "note" : "note warning" }, first),
    h(
      "ul",
      { class: "evidence" },
      others.map((text) => h("li", {}, text)),
    ),
  );
}

/** Methods and ranks downwards, weights across; a cell leads to its best run. */
function gridCard({ table, request, runs, recommendation }) {
  if (!table) return null;
  const { rows } = table;
  const weights = [...new Set(rows.map(weightOf))];
  const lines = [...new Set(rows.map((row) => `${row.method}, rank ${row.rank}`))];
  const repeats = request.repeats ?? Math.round(runs.total / rows.length);
  const cell = (row) => {
    const recommended = row.best !== null && row.best === recommendation?.best;
    const done = row.runs >= repeats;
    const kind = row.failures ? "trouble" : done ? "done" : row.runs ? "some" : "";
    const words = `${weightOf(row)}, ${row.method}, rank ${row.rank}: ${row.runs} of ${repeats} runs`;
    const content = [
      h("strong", {}, row.relative_error ? number(row.relative_error.mean, 3) : "–"),
      h("span", {}, row.components ? `${number(row.components.mean, 3)} comp.` : " "),
      !done && h("progress", { max: repeats, value: row.runs, "aria-label": words }),
    ];
    return row.best
      ? h(
          "a",
          {
            class: `cell ${kind} ${recommended ? "best" : ""}`,
            href: link(`/jobs/${row.best}/components`),
            title: `${words}; to the best run${recommended ? "; recommended" : ""}`,
          },
          content,
        )
      : h("div", { class: `cell ${kind}`, title: words }, content);
  };
  return card(
    "Grid",
    [h("small", {}, "relative error and components, mean over the repeats; a cell leads to its best run")],
    h(
      "div",
      { class: "scroll", tabindex: "0", role: "region", "aria-label": "Grid of runs" },
      h(
        "table",
        { class: "cells" },
        h(
          "thead",
          {},
          h(
            "tr",
            {},
            h("td", {}),
            weights.map((weight) => h("th", { scope: "col" }, weight)),
          ),
        ),
        h(
          "tbody",
          {},
          lines.map((line) =>
            h(
              "tr",
              {},
              h("th", { scope: "row" }, line),
              weights.map((weight) => {
                const row = rows.find((one) => `${one.method}, rank ${one.rank}` === line && weightOf(one) === weight);
                return h("td", {}, row ? cell(row) : null);
              }),
            ),
          ),
        ),
      ),
    ),
  );
}

function tableCard(path, { table }) {
  if (!table) return null;
  const shown = SPREAD.filter((name) => table.rows.some((row) => row[name]));
  const penalties = new Set(table.rows.map((row) => row.penalty).filter(Boolean));
  const titles = { mode_components: `components of mode ${table.mode}` };
  const warnings = table.rows.flatMap((row) =>
    row.warnings.map((text) => [text, `Rank ${row.rank}, ${row.method}, ${weightOf(row)}`]),
  );
  const file = (format) =>
    h(
      "a",
      { href: address(`${path}/table`, { format }), download: `table.${format === "latex" ? "tex" : format}` },
      `.${format === "latex" ? "tex" : format}`,
    );
  const spread = (value) =>
    value
      ? [number(value.mean), h("small", {}, value.deviation === null ? "" : ` ± ${number(value.deviation, 2)}`)]
      : "–";
  return card(
    "Table",
    [file("csv"), file("latex"), file("json")],
    h(
      "div",
      { class: "scroll", tabindex: "0", role: "region", "aria-label": "Table of the study" },
      h(
        "table",
        {},
        h(
          "thead",
          {},
          h(
            "tr",
            {},
            ["Rank", "Method", "Weight", penalties.size > 1 && "Penalty"]
              .filter(Boolean)
              .map((text) => h("th", { scope: "col" }, text)),
            ["Runs", "Failed", "Warned", ...shown.map((name) => titles[name] ?? name.replaceAll("_", " "))].map(
              (text) => h("th", { scope: "col", class: "number" }, text),
            ),
          ),
        ),
        h(
          "tbody",
          {},
          table.rows.map((row) =>
            h(
              "tr",
              {},
              h("td", {}, String(row.rank)),
              h("td", {}, row.method),
              h("td", {}, weightOf(row)),
              penalties.size > 1 && h("td", {}, { l1: "plain", l1_squared: "squared" }[row.penalty] ?? "–"),
              h("td", { class: "number" }, whole(row.runs)),
              h("td", { class: "number" }, whole(row.failures)),
              h("td", { class: "number" }, whole(row.warned)),
              shown.map((name) => h("td", { class: "number" }, spread(row[name]))),
            ),
          ),
        ),
      ),
    ),
    table.notes.map((text) => h("p", { class: "note warning" }, text)),
    warnings.length > 0 &&
      h(
        "details",
        {},
        h("summary", {}, count(warnings.length, "different warning")),
        h(
          "ul",
          { class: "evidence" },
          warnings.map(([text, where]) => h("li", {}, `${where}: ${text}`)),
        ),
      ),
  );
}

function ranksCard({ table }) {
  const ranks = table?.ranks ?? [];
  if (!ranks.some((one) => one.core_consistency !== null || one.split_half || one.holdout)) return null;
  const numbers = (values) => (values?.length ? values.map((value) => number(value, 3)).join(", ") : "–");
  return card(
    "Which rank?",
    [],
    h(
      "div",
      { class: "scroll", tabindex: "0", role: "region", "aria-label": "Table of ranks" },
      h(
        "table",
        {},
        h(
          "thead",
          {},
          h(
            "tr",
            {},
            ["Rank", "Core consistency", "Halves agree", "Error on held-out entries"].map((text) =>
              h("th", { scope: "col" }, text),
            ),
          ),
        ),
        h(
          "tbody",
          {},
          ranks.map((one) =>
            h(
              "tr",
              {},
              h(
                "th",
                { scope: "row" },
                one.job_id
                  ? h("a", { href: link(`/jobs/${one.job_id}/components`) }, String(one.rank))
                  : String(one.rank),
              ),
              h("td", {}, number(one.core_consistency)),
              h(
                "td",
                {},
                one.split_half
                  ? `${one.split_half.passed ? "yes" : "no"} (${numbers(one.split_half.congruence)})`
                  : "–",
              ),
              h("td", {}, numbers(one.holdout?.relative_error)),
            ),
          ),
        ),
      ),
    ),
  );
}

/** How sure every component of a job is. */
function stabilityCard({ result, job_id: job, request }) {
  const stability = result?.stability;
  if (!stability) return null;
  const heads = ["Component", "Weight", "Replicability", "Lowest of three split halves"];
  const fixed = (value) => value?.toFixed(3) ?? "–";
  return card(
    "How sure is each component?",
    [h("a", { class: "button", href: link(`/jobs/${job}/components`) }, "Show the bands")],
    h(
      "p",
      { class: "soft" },
      `${stability.resamples} fits of the model of `,
      h("a", { href: link(`/jobs/${request.job_id}`) }, "this job"),
      " to resampled samples. A component below 0.9 may be noise, or be in a few samples only.",
    ),
    h(
      "div",
      { class: "scroll" },
      h(
        "table",
        {},
        h(
          "thead",
          {},
          h(
            "tr",
            {},
            heads.map((text) => h("th", { scope: "col" }, text)),
          ),
        ),
        h(
          "tbody",
          {},
          result.weights.map((weight, place) =>
            h(
              "tr",
              {},
              h("th", { scope: "row" }, String(place + 1)),
              h("td", {}, number(weight)),
              h("td", {}, fixed(stability.replicability[place])),
              h("td", {}, fixed(stability.split_half?.[place])),
            ),
          ),
        ),
      ),
    ),
  );
}

/** Of a choice: every number of components with what speaks for it. */
function choiceCard({ choice, advice }) {
  if (!choice?.points?.length) return null;
  const chosen = advice?.components ?? advice?.suggestion;
  const found = (kind, components) => choice.validated?.[kind]?.find((one) => one.components === components);
  const halves = choice.validated?.split_half?.length > 0;
  const held = choice.validated?.holdout?.length > 0;
  const several = (values) => (values ? values.map((one) => number(one, 3)).join(", ") : "–");
  const heads = [
    "Components",
    "Relative error",
    "Votes",
    "Gain",
    "Agreement of the seeds",
    halves && "Agreement of halves",
    held && "Error on held-out entries",
  ].filter(Boolean);
  return card(
    "Evidence",
    [
      h(
        "small",
        {},
        `noise ${choice.noise}${choice.noise_level === null ? "" : `, level ${number(choice.noise_level)}`}`,
      ),
    ],
    h(
      "div",
      { class: "scroll", tabindex: "0", role: "region", "aria-label": "Table of the evidence" },
      h(
        "table",
        {},
        h(
          "thead",
          {},
          h(
            "tr",
            {},
            heads.map((text, place) => h("th", { scope: "col", class: place ? "number" : "" }, text)),
          ),
        ),
        h(
          "tbody",
          {},
          choice.points.map((point) =>
            h(
              "tr",
              {},
              h(
                "th",
                { scope: "row" },
                point.components === chosen ? `${point.components} ← chosen` : String(point.components),
              ),
              h("td", { class: "number" }, number(point.relative_error)),
              h("td", { class: "number" }, percent(point.votes, 0)),
              h("td", { class: "number" }, number(point.gain)),
              h("td", { class: "number" }, number(point.agreement)),
              halves && h("td", { class: "number" }, several(found("split_half", point.components)?.congruence)),
              held && h("td", { class: "number" }, several(found("holdout", point.components)?.relative_error)),
            ),
          ),
        ),
      ),
    ),
  );
}

function plotsCard(path, { kind, runs }) {
  if (!runs.succeeded) return null;
  const figure = ([name, words]) => {
    const made = h(
      "figure",
      {},
      h(
        "div",
        { class: "frame", tabindex: "0", role: "region", "aria-label": `Plot: ${words}` },
        h("img", {
          src: address(`${path}/plots/${name}`, { format: "svg" }),
          alt: words,
          loading: "lazy",
          onerror: () => made.remove(),
        }),
      ),
      h(
        "figcaption",
        {},
        words,
        ["svg", "png", "pdf"].map((format) =>
          h("a", { href: address(`${path}/plots/${name}`, { format }), download: `${name}.${format}` }, `.${format}`),
        ),
      ),
    );
    return made;
  };
  if (!PLOTS[kind]) return null;
  return card("Plots", [], h("div", { class: "plots" }, Object.entries(PLOTS[kind]).map(figure)));
}
