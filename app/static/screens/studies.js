// Studies: all of them, and how far each is.

import { poll } from "../api/connection.js";
import { h, replace } from "../components/element.js";
import { nameOf, percent, when, whole } from "../components/format.js";
import { stateMark } from "../components/job-heading.js";
import { pagedTable } from "../components/paged-table.js";
import { link } from "../router.js";

const LOOK_AGAIN = 3000;
export const KINDS = { choose: "how many components", compare: "comparison", stability: "stability" };

export async function show({ main, signal }) {
  const table = pagedTable({
    path: "v1/studies",
    signal,
    filter: () => ({}),
    columns: ["Name", "Kind", "State", "Runs", "Done", "Submitted"],
    empty: "No studies.",
    row,
  });
  const start = (kind, words) => h("a", { class: "button", href: link("/new", { kind }) }, words);
  replace(
    main,
    h(
      "div",
      { class: "heading" },
      h("h1", {}, "Studies"),
      h("div", { class: "actions" }, start("choose", "How many components?"), start("compare", "Compare settings")),
    ),
    h("section", { class: "card", "aria-label": "Studies" }, table.element),
  );
  await table.reload();
  poll(LOOK_AGAIN, signal, table.refresh);
}

function row(study) {
  return [
    h("th", { scope: "row" }, h("a", { href: link(`/studies/${study.id}`) }, nameOf(study))),
    h("td", {}, KINDS[study.kind] ?? study.kind),
    h("td", {}, stateMark(study.state)),
    h("td", { "data-label": "runs" }, whole(study.runs.total)),
    h("td", { "data-label": "done" }, percent(study.progress, 0)),
    h("td", {}, when(study.created_at)),
  ];
}
