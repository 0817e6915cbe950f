// The list of tensors, with a search, and links to the jobs on each.

import { poll } from "../api/connection.js";
import { send } from "../api/request.js";
import { confirm, rename } from "../components/dialog.js";
import { field, h, replace } from "../components/element.js";
import { bytes, nameOf, number, shape, when } from "../components/format.js";
import { pagedTable } from "../components/paged-table.js";
import { usageCard } from "../components/usage-card.js";
import { keepQuery, link } from "../router.js";

const LOOK_AGAIN = 5000;
const TYPING = 250;

export async function show({ main, query, signal }) {
  const name = h("input", { type: "search", value: query.name ?? "", placeholder: "part of a name" });
  const filter = () => ({ name: name.value.trim() });
  const table = pagedTable({
    path: "v1/tensors",
    signal,
    filter,
    columns: ["Name", "Shape", "Type", "Size", "Range", "Uploaded", "Actions"],
    empty: "No tensors.",
    row,
  });

  function row(tensor) {
    const path = `v1/tensors/${encodeURIComponent(tensor.id)}`;
    const act = (words, does) =>
      h("button", { type: "button", class: "quiet", "aria-label": `${words} ${nameOf(tensor)}`, onclick: does }, words);
    return [
      h("th", { scope: "row" }, h("a", { href: link(`/tensors/${tensor.id}`) }, nameOf(tensor))),
      h("td", {}, shape(tensor.shape)),
      h("td", {}, tensor.dtype),
      h("td", { class: "number", "data-label": "size" }, bytes(tensor.nbytes)),
      h("td", {}, `${number(tensor.min)} to ${number(tensor.max)}`),
      h("td", {}, when(tensor.created_at)),
      h(
        "td",
        { class: "last" },
        h(
          "div",
          { class: "actions" },
          h("a", { href: link("/jobs", { tensor_id: tensor.id }), "aria-label": `Jobs on ${nameOf(tensor)}` }, "Jobs"),
          act("Rename", () =>
            rename("tensor", tensor.name, (newName) => send("PATCH", path, { body: { name: newName } })).then(
              (done) => done && table.reload(),
            ),
          ),
          act("Delete", () =>
            confirm(
              "Delete this tensor?",
              `${nameOf(tensor)} (${bytes(tensor.nbytes)}) cannot be brought back. Its jobs stay.`,
              "Delete",
              () => send("DELETE", path),
            ).then((done) => done && table.reload()),
          ),
        ),
      ),
    ];
  }

  let typing;
  name.addEventListener("input", () => {
    clearTimeout(typing);
    typing = setTimeout(() => {
      keepQuery("/tensors", filter());
      table.reload();
    }, TYPING);
  });
  signal.addEventListener("abort", () => clearTimeout(typing));
  replace(
    main,
    h(
      "div",
      { class: "heading" },
      h("h1", {}, "Tensors"),
      h("div", { class: "actions" }, h("a", { class: "button primary", href: "#/" }, "Upload")),
    ),
    h(
      "section",
      { class: "card", "aria-label": "Tensors" },
      h("div", { class: "filters", role: "search" }, field("Name", name)),
      table.element,
    ),
    usageCard(signal),
  );
  await table.reload();
  poll(LOOK_AGAIN, signal, () => table.refresh());
}
