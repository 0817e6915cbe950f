// The head of a job's screens: its name, its state, what can be done with it, and the way between Live and Components.

import { announce } from "./announce.js";
import { h, replace } from "./element.js";
import { nameOf } from "./format.js";
import { LIVE, cancelJob, deleteJob, download, renameJob } from "./job-actions.js";
import { go, link, route } from "../router.js";

export const stateMark = (state) => h("span", { class: `state ${state}` }, state);

/** `{element, show(job)}`; `screen` is "live" or "components", `modes` how many modes the tensor has. */
export function jobHeading(screen, modes) {
  const actions = h("div", { class: "actions" });
  const state = h("span");
  const title = h("h1", { tabindex: "-1" });
  const tabs = h("nav", { class: "tabs", "aria-label": "Job" });
  let told = null;
  return {
    element: h("div", { class: "stack" }, h("div", { class: "heading" }, title, state, actions), tabs),
    show(job) {
      title.textContent = nameOf(job);
      const live = LIVE.includes(job.state);
      const words = job.cancel_requested && live ? "cancelling" : job.state;
      if (told === words) return;
      if (told !== null) announce(`The job is ${words}`);
      told = words;
      replace(state, h("span", { class: `state ${job.state}` }, words));
      const button = (words, act, kind = "") => h("button", { type: "button", class: kind, onclick: act }, words);
      replace(actions,
        live && h("button", { type: "button", class: "danger", disabled: job.cancel_requested, onclick: ({ target }) => { target.disabled = true; cancelJob(job).catch(() => { target.disabled = false; }); } }, "Cancel"),
        button("Rename", () => renameJob(job, route)), button("Download", () => download(job, modes)),
        h("a", { class: "button", href: link("/new", { from: job.id }) }, "Run again"),
        !live && button("Delete", () => deleteJob(job, () => go("/jobs")), "danger"));
      const tab = (name, path, text) => h("a", { href: link(path), "aria-current": screen === name ? "page" : null }, text);
      replace(tabs, tab("live", `/jobs/${job.id}`, live ? "Live" : "Run"), tab("components", `/jobs/${job.id}/components`, "Components"));
    },
  };
}
