// A list of the API as a table, loaded page by page. Only rows whose record changed are redrawn.

import { getJson } from "../api/request.js";
import { h, redraw, replace } from "./element.js";

const PAGE = 50;

/**
 * `row(record)` returns the cells. `reload()` applies the filter and resolves to the number of rows; `refresh()` reads
 * the first page again, and the pages with queued or running records.
 */
export function pagedTable({ path, signal, filter, columns, empty, row }) {
  const body = h("tbody");
  const more = h("button", { type: "button", hidden: true, onclick: () => load() }, "Show more");
  const none = h("p", { class: "empty", hidden: true }, empty);
  const head = columns.map((text) =>
    h(
      "th",
      { scope: "col", class: ["Rank", "Iteration", "Relative error", "Time", "Size"].includes(text) ? "number" : "" },
      text || h("span", { class: "visually-hidden" }, "Actions"),
    ),
  );
  const rows = new Map();
  let cursors = []; // the cursor of every page shown
  let next = null;
  let turn = 0;

  const ask = (cursor) => getJson(path, { query: { ...filter(), limit: PAGE, cursor }, signal });

  function put(record, place = null) {
    const text = JSON.stringify(record);
    const known = rows.get(record.id);
    if (known?.text === text) return;
    if (!known) {
      const element = h("tr", { dataset: { id: record.id } }, row(record));
      rows.set(record.id, { element, text });
      if (place) body.insertBefore(element, place);
      else body.append(element);
      return;
    }
    redraw(known.element, row(record));
    known.text = text;
  }

  function settle() {
    more.hidden = !next;
    none.hidden = rows.size > 0;
  }

  async function load(clear = false) {
    const own = ++turn;
    const cursor = clear ? null : next;
    const page = await ask(cursor);
    if (own !== turn) return rows.size; // a newer filter is on its way
    if (clear) {
      rows.clear();
      replace(body);
      cursors = [];
    }
    cursors.push(cursor);
    page.items.forEach((record) => put(record));
    next = page.next;
    settle();
    return rows.size;
  }

  async function refresh() {
    const own = turn;
    const live = new Set([...rows].filter(([, { text }]) => /"state":"(queued|running)"/.test(text)).map(([id]) => id));
    const places = [...rows.keys()];
    for (const [number, cursor] of cursors.entries()) {
      const here = places.slice(number * PAGE, (number + 1) * PAGE);
      if (number && !here.some((id) => live.has(id))) continue;
      const page = await ask(cursor);
      if (own !== turn) return;
      const first = number ? null : body.firstChild;
      page.items.forEach((record) => {
        if (rows.has(record.id) || !number) put(record, first);
      });
      // A record missing from a complete page was deleted, or no longer passes the filter.
      if (!number && page.items.length < PAGE)
        for (const [id, { element }] of rows)
          if (!page.items.some((record) => record.id === id)) {
            element.remove();
            rows.delete(id);
          }
    }
    settle();
  }

  return {
    element: h(
      "div",
      { class: "stack" },
      h("table", { class: "rows" }, h("thead", {}, h("tr", {}, head)), body),
      none,
      more,
    ),
    reload: () => load(true),
    refresh,
  };
}
