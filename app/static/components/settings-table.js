// The settings of a job.

import { h } from "./element.js";

/** Flatten nested settings to names such as `stop.tolerance`. */
export function flat(settings, prefix = "") {
  return Object.entries(settings).flatMap(([name, value]) =>
    value !== null && typeof value === "object" && !Array.isArray(value)
      ? flat(value, `${prefix}${name}.`)
      : [[`${prefix}${name}`, value]],
  );
}

export const written = (value) =>
  value === null || value === undefined ? "–" : Array.isArray(value) ? value.join(", ") : String(value);

export function settingsTable(settings) {
  return h(
    "details",
    {},
    h(
      "summary",
      {},
      settings.preset
        ? `${settings.method}, rank ${settings.rank}, preset ${settings.preset}`
        : `${settings.method}, rank ${settings.rank}`,
    ),
    h(
      "dl",
      { class: "facts" },
      flat(settings).map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, written(value)))),
    ),
  );
}
