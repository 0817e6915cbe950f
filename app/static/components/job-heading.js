// The heading of a job's screens: name, state, actions, and tabs for Live and Components.

import { announce } from "./announce.js";
import { h } from "./element.js";
import { nameOf } from "./format.js";
import { LIVE, cancelJob, deleteJob, download, renameJob } from "./job-actions.js";
import { go, link, route } from "../router.js";

export const stateMark = (state) => h("span", { class: `state ${state}` }, state);

/**
 * `{element, show(job)}`; `screen` is "live" or "components", `modes` how many modes the tensor has.
 * Created once and changed in place, so that no button disappears under the pointer or loses the focus.
 */
export function jobHeading(screen, modes) {
  let job = null;
  const state = h("span");
  const title = h("h1", { tabindex: "-1" });
  const button = (words, act, kind = "") => h("button", { type: "button", class: kind, onclick: act }, words);
  const cancel = button(
    "Cancel",
    () => {
      cancel.disabled = true;
      cancelJob(job).catch(() => {
        cancel.disabled = false;
      });
    },
    "danger",
  );
  const again = h("a", { class: "button" }, "Run again");
  const remove = button("Delete", () => deleteJob(job, () => go("/jobs")), "danger");
  const actions = h(
    "div",
    { class: "actions" },
    cancel,
    button("Rename", () => renameJob(job, route)),
    button("Download", () => download(job, modes)),
    again,
    remove,
  );
  const tab = (name, text) => h("a", { "aria-current": screen === name ? "page" : null }, text);
  const [run, components] = [tab("live", "Live"), tab("components", "Components")];
  let lastState = null;
  return {
    element: h(
      "div",
      { class: "stack" },
      h("div", { class: "heading" }, title, state, actions),
      h("nav", { class: "tabs", "aria-label": "Job" }, run, components),
    ),
    show(shown) {
      job = shown;
      const live = LIVE.includes(job.state);
      const words = job.cancel_requested && live ? "cancelling" : job.state;
      if (title.textContent !== nameOf(job)) title.textContent = nameOf(job);
      if (lastState === words) return;
      if (lastState !== null) announce(`The job is ${words}`);
      lastState = words;
      state.className = `state ${job.state}`;
      state.textContent = words;
      const focused = document.activeElement;
      cancel.hidden = !live;
      cancel.disabled = job.cancel_requested;
      remove.hidden = live;
      if (focused === cancel && (cancel.hidden || cancel.disabled)) title.focus({ preventScroll: true });
      again.href = link("/new", { from: job.id });
      run.href = link(`/jobs/${job.id}`);
      run.textContent = live ? "Live" : "Run";
      components.href = link(`/jobs/${job.id}/components`);
    },
  };
}
