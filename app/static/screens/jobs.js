// The list of jobs, with live states, filters and a search, and several to compare.

import { poll } from "../api/connection.js";
import { getJson } from "../api/request.js";
import { announce } from "../components/announce.js";
import { field, h, replace, select } from "../components/element.js";
import { nameOf, number, seconds, when, whole } from "../components/format.js";
import { LIVE, cancelJob, deleteJob, renameJob } from "../components/job-actions.js";
import { stateMark } from "../components/job-heading.js";
import { pagedTable } from "../components/paged-table.js";
import { usageCard } from "../components/usage-card.js";
import { keepQuery, link } from "../router.js";

const STATES = {
  "": "all",
  queued: "queued",
  running: "running",
  succeeded: "succeeded",
  failed: "failed",
  cancelled: "cancelled",
};
const LOOK_AGAIN = 2500;
const TYPING = 250;

export async function show({ main, query, signal }) {
  const selected = new Map();
  const state = select(STATES, query.state ?? "");
  const method = select({ "": "all" }, "");
  const name = h("input", { type: "search", value: query.name ?? "", placeholder: "part of a name" });
  const compare = h("a", { class: "button primary", hidden: true });
  const filter = () => ({
    state: state.value,
    method: method.value,
    name: name.value.trim(),
    tensor_id: query.tensor_id,
    study_id: query.study_id,
  });
  const table = pagedTable({
    path: "v1/jobs",
    signal,
    filter,
    columns: ["Name", "State", "Method", "Rank", "Iteration", "Relative error", "Time", "Submitted", ""],
    empty: "No jobs.",
    row,
  });

  function row(job) {
    const { progress, result, settings } = job;
    const box = h("input", {
      type: "checkbox",
      checked: selected.has(job.id),
      "aria-label": `Compare ${nameOf(job)}`,
      onchange: () => {
        if (box.checked) selected.set(job.id, job);
        else selected.delete(job.id);
        renderSelection();
      },
    });
    const live = LIVE.includes(job.state);
    const act = (words, does, kind = "quiet") =>
      h("button", { type: "button", class: kind, "aria-label": `${words} ${nameOf(job)}`, onclick: does }, words);
    return [
      h(
        "th",
        { scope: "row" },
        h(
          "div",
          { class: "check" },
          box,
          h(
            "a",
            { href: link(job.state === "succeeded" ? `/jobs/${job.id}/components` : `/jobs/${job.id}`) },
            nameOf(job),
          ),
        ),
      ),
      h(
        "td",
        {},
        stateMark(job.state),
        job.state === "queued" && job.queue_position ? h("small", {}, ` ${job.queue_position}.`) : null,
        job.paused && h("small", {}, ` ${job.paused.message}`),
      ),
      h("td", {}, settings.method),
      h(
        "td",
        { class: "number", "data-label": "rank" },
        result ? `${result.nonzero_components.all_modes} of ${settings.rank}` : String(settings.rank),
      ),
      h("td", { class: "number", "data-label": "iteration" }, progress ? whole(progress.iteration) : "–"),
      h(
        "td",
        { class: "number", "data-label": "error" },
        progress ? number(result?.relative_error ?? progress.relative_error) : "–",
      ),
      h("td", { class: "number", "data-label": "time" }, progress ? seconds(progress.seconds) : "–"),
      h("td", {}, when(job.created_at)),
      h(
        "td",
        { class: "last" },
        h(
          "div",
          { class: "actions" },
          act("Rename", () => renameJob(job, table.reload)),
          live
            ? act("Cancel", () => cancelJob(job).then(table.refresh))
            : act("Delete", () =>
                deleteJob(job, () => {
                  selected.delete(job.id);
                  renderSelection();
                  table.reload();
                }),
              ),
        ),
      ),
    ];
  }

  function renderSelection() {
    compare.hidden = selected.size < 2;
    compare.href = link("/compare", { jobs: [...selected.keys()].join(",") });
    compare.textContent = `Compare ${selected.size} jobs`;
  }

  let typing;
  const changed = () => {
    keepQuery("/jobs", filter());
    table.reload().then((found) => announce(`${found} jobs shown`));
  };
  state.addEventListener("change", changed);
  method.addEventListener("change", changed);
  name.addEventListener("input", () => {
    clearTimeout(typing);
    typing = setTimeout(changed, TYPING);
  });
  signal.addEventListener("abort", () => clearTimeout(typing));

  const listed = query.method ? null : table.reload(); // first, because it takes longest
  replace(
    main,
    h(
      "div",
      { class: "heading" },
      h("h1", {}, "Jobs"),
      h("div", { class: "actions" }, compare, h("a", { class: "button", href: "#/new" }, "New run")),
    ),
    h(
      "section",
      { class: "card", "aria-label": "Jobs" },
      h(
        "div",
        { class: "filters", role: "search" },
        field("Name", name),
        field("State", state),
        field("Method", method),
        (query.tensor_id || query.study_id) && h("a", { href: "#/jobs" }, "All jobs"),
      ),
      table.element,
    ),
    usageCard(signal),
  );
  const methods = getJson("v1/methods", { signal }).then((found) => {
    method.append(...found.map((one) => h("option", { value: one.name }, one.name)));
    if (query.method) {
      method.value = query.method;
    }
  });
  if (query.method) await methods;
  await (listed ?? table.reload());
  poll(LOOK_AGAIN, signal, () => table.refresh());
}
