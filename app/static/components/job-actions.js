// The actions on a job: rename, delete, cancel, download.

import { address, send } from "../api/request.js";
import { announce } from "./announce.js";
import { confirm, rename, show } from "./dialog.js";
import { choice, field, h, select } from "./element.js";
import { nameOf } from "./format.js";

export const LIVE = ["queued", "running"];
export const pathOf = (job) => `v1/jobs/${encodeURIComponent(job.id)}`;
const FORMATS = {
  npz: "numpy (.npz)",
  mat: "MATLAB (.mat)",
  csv: "tables (.csv in a .zip)",
  nc: "NetCDF (.nc): xarray, MATLAB, R",
};
const AS_COMPUTED = { scale: "none", order: "none", zeros: "keep" };

export const renameJob = (job, onchange) =>
  rename("job", job.name, (name) => send("PATCH", pathOf(job), { body: { name } })).then((done) => done && onchange());
export const deleteJob = (job, onchange) =>
  confirm("Delete this job?", `${nameOf(job)} with its factors and its history cannot be brought back.`, "Delete", () =>
    send("DELETE", pathOf(job)),
  ).then((done) => done && onchange());

export async function cancelJob(job) {
  const updated = await send("POST", `${pathOf(job)}/cancel`);
  announce("The job is being cancelled; what it has computed is kept");
  return updated;
}

/** Show a dialog that offers factors, history and pictures in every format. */
export function download(job, modes) {
  const path = pathOf(job);
  return show("Download", (close) => {
    const format = select(FORMATS, "npz");
    const asked = { ...AS_COMPUTED };
    const get = h("a", { class: "button primary", download: "" }, "Download the factors");
    const update = () => {
      get.href = address(`${path}/factors`, {
        format: format.value,
        ...Object.fromEntries(Object.entries(asked).filter(([name, value]) => value !== AS_COMPUTED[name])),
      });
    };
    const ask = (name, label, options) =>
      h(
        "div",
        { class: "field" },
        h("span", { class: "label" }, label),
        choice(label, options, asked[name], (value) => {
          asked[name] = value;
          update();
        }),
      );
    format.addEventListener("change", update);
    update();
    const file = (words, name, query) => h("a", { href: address(`${path}/${name}`, query), download: "" }, words);
    const pictures = ["convergence", "components"].flatMap((plot) =>
      ["svg", "png", "pdf"].map((kind) => [file(`${plot} .${kind}`, `plots/${plot}`, { format: kind }), " · "]),
    );
    return h(
      "div",
      { class: "stack" },
      field("Format", format),
      ask("scale", "Columns", { none: "as computed", unit: "norm 1", max: "maximum 1" }),
      ask("order", "Order", { none: "as computed", share: "largest first" }),
      ask("zeros", "Empty components", { keep: "keep", drop: "leave out" }),
      h("div", { class: "actions" }, get),
      h(
        "p",
        {},
        "One mode as .npy: ",
        Array.from({ length: modes }, (_, place) => [file(`mode ${place + 1}`, `factors/${place + 1}`), " "]),
      ),
      h(
        "p",
        {},
        "History: ",
        file(".csv", "history", { format: "csv" }),
        " · ",
        file(".json", "history", { format: "json" }),
      ),
      h("p", {}, "Pictures: ", pictures),
      h("div", { class: "actions" }, h("button", { type: "button", onclick: () => close(null) }, "Close")),
    );
  });
}
