// The operator's screen, for admins: queue, owners, workers, disk, and the jobs of every owner.

import { poll } from "../api/connection.js";
import { getJson, pages, send } from "../api/request.js";
import { confirm } from "../components/dialog.js";
import { card, facts, h, redraw, replace } from "../components/element.js";
import { bytes, count, nameOf, number, percent, seconds, when, whole } from "../components/format.js";
import { LIVE } from "../components/job-actions.js";
import { stateMark } from "../components/job-heading.js";

const LOOK_AGAIN = 3000;
const MOST_JOBS = 100;

export async function show({ main, signal }) {
  const numbers = h("div");
  const owners = h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Table of owners" });
  const running = h("div");
  const jobs = h("div", { class: "stack", dataset: { jobs: "" } });
  let shown = null;

  async function look() {
    const [queue, everybody, server] = await Promise.all(
      ["queue", "owners", "server"].map((part) => getJson(`v1/admin/${part}`, { signal })),
    );
    const { disk } = server;
    replace(
      numbers,
      facts([
        [
          "Queued",
          whole(queue.queued),
          queue.queued ? `the oldest for ${seconds(server.oldest_queued_seconds)}` : null,
        ],
        ["Running", whole(queue.running)],
        [
          "Workers",
          h("span", { class: server.workers.length ? "" : "bad" }, whole(server.workers.length)),
          server.workers.map(({ name }) => name).join(", ") || "none: start one with ncp worker",
        ],
        [
          "Disk",
          h("span", { class: disk.free_bytes < disk.min_free_bytes ? "bad" : "" }, `${bytes(disk.free_bytes)} free`),
          `of ${bytes(disk.total_bytes)}; uploads stop below ${bytes(disk.min_free_bytes)}`,
        ],
        [
          "Stored",
          bytes(everybody.reduce((sum, one) => sum + one.stored_bytes, 0)),
          Object.entries(disk.stored_bytes)
            .map(([kind, size]) => `${kind} ${bytes(size)}`)
            .join(", ") || `by ${count(everybody.length, "owner")}`,
        ],
        ["Version", server.version],
      ]),
    );
    redraw(running, server.running.length ? jobTable(server.running, look) : h("p", { class: "empty" }, "None."));
    redraw(
      owners,
      ownerTable(everybody, (owner) => {
        shown = owner;
        list();
      }),
    );
    if (shown) await list();
  }

  async function list() {
    const items = [];
    for (const state of ["running", "queued", null])
      for await (const page of pages(`v1/admin/owners/${encodeURIComponent(shown)}/jobs`, {
        query: { state, limit: MOST_JOBS },
        signal,
      })) {
        items.push(...page.filter((job) => state || !LIVE.includes(job.state)));
        if (!state) break;
      }
    redraw(
      jobs,
      card(
        `Jobs of ${shown}`,
        [
          h(
            "button",
            {
              type: "button",
              class: "quiet",
              onclick: () => {
                shown = null;
                replace(jobs);
              },
            },
            "Close",
          ),
        ],
        items.length ? jobTable(items, () => list()) : h("p", { class: "empty" }, "None."),
      ),
    );
  }

  replace(
    main,
    h("div", { class: "heading" }, h("h1", {}, "Operator")),
    h("section", { class: "card", "aria-label": "Server" }, numbers),
    card("Running", [], running),
    card("Owners", [], owners),
    jobs,
  );
  await look();
  poll(LOOK_AGAIN, signal, () => look());
}

function ownerTable(everybody, open) {
  const columns = ["Owner", "Key", "Queued", "Running", "Ended", "Stored", "Computing time", "Share", "Last call"];
  return h(
    "table",
    {},
    h(
      "thead",
      {},
      h(
        "tr",
        {},
        columns.map((text, place) => h("th", { scope: "col", class: place > 1 && place < 8 ? "number" : "" }, text)),
      ),
    ),
    h(
      "tbody",
      {},
      everybody.map((one) =>
        h(
          "tr",
          {},
          h(
            "th",
            { scope: "row" },
            h("button", { type: "button", class: "quiet", onclick: () => open(one.owner) }, one.owner),
          ),
          h("td", {}, one.has_key ? (one.admin ? "admin" : "yes") : "none"),
          h("td", { class: "number" }, whole(one.jobs.queued)),
          h("td", { class: "number" }, whole(one.jobs.running)),
          h("td", { class: "number" }, whole(one.jobs.succeeded + one.jobs.failed + one.jobs.cancelled)),
          h(
            "td",
            { class: "number" },
            bytes(one.stored_bytes),
            one.limits.stored_bytes ? h("small", {}, ` of ${bytes(one.limits.stored_bytes)}`) : null,
          ),
          h("td", { class: "number" }, seconds(one.computing_seconds)),
          h("td", { class: "number" }, ...sharing(one.sharing)),
          h("td", {}, when(one.key_last_used_at)),
        ),
      ),
    ),
  );
}

/** The share of the recent computing time, and below it what the operator has set. */
function sharing(found) {
  if (!found) return ["–"];
  const weight = found.weight === 1 ? null : h("small", {}, ` weight ${number(found.weight)}`);
  const account = h("small", {}, ` account ${seconds(found.account_seconds)}`);
  return [percent(found.share, 0), account, weight, found.paused && h("small", { class: "bad" }, " paused")];
}

function jobTable(items, onchange) {
  return h(
    "table",
    { class: "rows" },
    h(
      "thead",
      {},
      h(
        "tr",
        {},
        ["Job", "Owner", "State", "Method", "Rank", "Relative error", "Time", "Submitted", "Actions"].map(
          (text, place) => h("th", { scope: "col", class: place > 3 && place < 7 ? "number" : "" }, text),
        ),
      ),
    ),
    h(
      "tbody",
      {},
      items.map((job) =>
        h(
          "tr",
          {},
          h("th", { scope: "row" }, nameOf(job)),
          h("td", {}, job.owner),
          h("td", {}, stateMark(job.state)),
          h("td", {}, job.settings.method),
          h("td", { class: "number", "data-label": "rank" }, String(job.settings.rank)),
          h("td", { class: "number", "data-label": "error" }, number(job.progress?.relative_error)),
          h("td", { class: "number", "data-label": "time" }, job.progress ? seconds(job.progress.seconds) : "–"),
          h("td", {}, when(job.created_at)),
          h(
            "td",
            {},
            LIVE.includes(job.state) &&
              h(
                "button",
                {
                  type: "button",
                  class: "danger",
                  disabled: job.cancel_requested,
                  "aria-label": `Cancel ${nameOf(job)} of ${job.owner}`,
                  onclick: () =>
                    confirm(
                      "Cancel this job?",
                      `It is ${job.owner}'s. What it has computed so far is kept.`,
                      "Cancel the job",
                      () => send("POST", `v1/admin/jobs/${encodeURIComponent(job.id)}/cancel`),
                    ).then(onchange),
                },
                "Cancel",
              ),
          ),
        ),
      ),
    ),
  );
}
