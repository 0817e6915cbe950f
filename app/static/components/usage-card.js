// The caller's usage and quota.

import { getJson } from "../api/request.js";
import { card, facts, h, replace } from "./element.js";
import { bytes, seconds, whole } from "./format.js";

export function usageCard(signal) {
  const place = h("div", { class: "stack" });
  getJson("v1/usage", { signal }).then((usage) => replace(place, usageFacts(usage)));
  return card("What you use", [], place);
}

function usageFacts({
  stored_bytes: stored,
  reserved_bytes: reserved,
  tensor_bytes: tensors,
  result_bytes: results,
  jobs,
  live_jobs: live,
  live_runs: runs,
  computing_seconds: computed,
  limits,
}) {
  const quota = limits.stored_bytes;
  return [
    quota &&
      h(
        "div",
        {},
        h("meter", {
          min: 0,
          max: quota,
          high: 0.9 * quota,
          value: stored + reserved,
          "aria-label": `${bytes(stored + reserved)} of ${bytes(quota)} used`,
        }),
      ),
    facts([
      [
        "Stored",
        quota ? `${bytes(stored)} of ${bytes(quota)}` : bytes(stored),
        `tensors ${bytes(tensors)}, results ${bytes(results)}, reserved for live jobs ${bytes(reserved)}`,
      ],
      [
        "Live jobs",
        limits.live_jobs ? `${live} of ${limits.live_jobs}` : whole(live),
        `${jobs.queued} queued, ${jobs.running} running`,
      ],
      ["Unfinished runs of studies", limits.live_runs ? `${whole(runs)} of ${whole(limits.live_runs)}` : whole(runs)],
      [
        "Ended jobs",
        whole(jobs.succeeded + jobs.failed + jobs.cancelled),
        [
          `${jobs.succeeded} succeeded`,
          jobs.failed && `${jobs.failed} failed`,
          jobs.cancelled && `${jobs.cancelled} cancelled`,
        ]
          .filter(Boolean)
          .join(", "),
      ],
      ["Computing time", seconds(computed)],
      limits.rank && ["Largest rank allowed", whole(limits.rank)],
      limits.job_seconds && ["Longest job allowed", seconds(limits.job_seconds)],
      limits.tensor_bytes && ["Largest upload allowed", bytes(limits.tensor_bytes)],
      limits.requests_per_second && ["Requests allowed", `${whole(limits.requests_per_second)} a second`],
    ]),
  ];
}
