// The first screen: upload a file or take a sample, and the newest tensors.

import { poll } from "../api/connection.js";
import { getJson, send } from "../api/request.js";
import { announce } from "../components/announce.js";
import { card, h, redraw, replace } from "../components/element.js";
import { bytes, nameOf, number, shape, when } from "../components/format.js";
import { problemNote } from "../components/problem-note.js";
import { go, link } from "../router.js";

const RECENT = 8;
const PHASES = {
  reading: "Checking whether the server has it already",
  sending: "Uploading",
  checking: "The server is checking it",
};

export async function show({ main, signal }) {
  const uploads = h("div", { class: "stack" });
  const input = h("input", {
    type: "file",
    accept: ".npy",
    multiple: true,
    class: "visually-hidden",
    "aria-label": "Choose .npy files to upload",
    onchange: () => uploadAll(input.files),
  });
  const zone = h(
    "div",
    { class: "drop", dataset: { drop: "" } },
    h("p", {}, h("strong", {}, "Drop a tensor here"), " – a ", h("code", {}, ".npy"), " file of two to eight modes"),
    input,
    h("button", { type: "button", class: "primary", onclick: () => input.click() }, "Choose a file"),
    h("p", { dataset: { samples: "" } }),
  );
  const list = h("div", {}, h("p", { class: "empty" }, "…"));

  async function uploadAll(files) {
    const rows = Array.from(files, (file) => row(file, signal));
    uploads.prepend(...rows.map(({ element }) => element));
    input.value = "";
    const tensors = await Promise.all(rows.map(({ done }) => done));
    if (!signal.aborted && tensors.length === 1 && tensors[0]) go(`/tensors/${tensors[0].id}`);
  }

  const over = (is) => (event) => {
    event.preventDefault();
    zone.classList.toggle("over", is);
  };
  for (const [event, is] of [
    ["dragenter", true],
    ["dragover", true],
    ["dragleave", false],
  ])
    main.ownerDocument.addEventListener(event, over(is), { signal });
  document.addEventListener(
    "drop",
    (event) => {
      over(false)(event);
      if (event.dataTransfer?.files.length) uploadAll(event.dataTransfer.files);
    },
    { signal },
  );

  replace(
    main,
    h("div", { class: "heading" }, h("h1", {}, "Data")),
    zone,
    uploads,
    card("Your tensors", [h("a", { href: "#/tensors" }, "All tensors")], list),
  );
  loadSamples(zone.querySelector("[data-samples]"), signal);
  poll(5000, signal, async () => renderRecent(list, await getJson("v1/tensors", { query: { limit: RECENT }, signal })));
}

/** Start an upload: returns its progress bar, and a promise of the tensor or null. */
function row(file, leaving) {
  const cancel = new AbortController();
  leaving.addEventListener("abort", () => cancel.abort(leaving.reason));
  const bar = h("progress", { max: 1, value: 0, "aria-label": `Upload of ${file.name}` });
  const status = h("span", { class: "soft" }, "…");
  const stop = h(
    "button",
    { type: "button", class: "quiet", onclick: () => cancel.abort(new DOMException("cancelled", "AbortError")) },
    "Cancel",
  );
  const element = h(
    "div",
    { class: "card" },
    h("header", {}, h("span", {}, h("strong", {}, file.name), " ", h("small", {}, bytes(file.size))), stop),
    bar,
    status,
  );
  const done = import("../api/upload.js")
    .then(({ upload }) =>
      upload(file, {
        signal: cancel.signal,
        onprogress: (phase, share) => {
          status.textContent = `${PHASES[phase]} – ${Math.floor(100 * share)} %`;
          bar.value = share;
        },
      }),
    )
    .then(({ tensor, known }) => {
      replace(
        element,
        h(
          "p",
          {},
          known ? "You have this already: " : "Uploaded: ",
          h("a", { href: link(`/tensors/${tensor.id}`) }, nameOf(tensor)),
          ` (${shape(tensor.shape)})`,
        ),
      );
      announce(known ? `You have ${file.name} already` : `${file.name} is uploaded`);
      return known ? null : tensor;
    })
    .catch((error) => {
      replace(
        element,
        h("p", {}, file.name),
        cancel.signal.aborted ? h("p", { class: "soft" }, "Cancelled.") : problemNote(error),
      );
      return null;
    });
  return { element, done };
}

async function loadSamples(place, signal) {
  const { items: found } = await getJson("v1/samples", { signal });
  const make =
    (sample) =>
    async ({ target }) => {
      target.disabled = true;
      try {
        const tensor = await send("POST", `v1/samples/${encodeURIComponent(sample.name)}`);
        go(`/tensors/${tensor.id}`, { rank: sample.suggested?.rank });
      } catch (error) {
        target.disabled = false;
        place.append(problemNote(error));
      }
    };
  replace(
    place,
    "Nothing at hand? Take a sample: ",
    found.map((sample) => [
      h("button", { type: "button", class: "quiet", title: sample.description, onclick: make(sample) }, sample.title),
      " ",
    ]),
  );
}

function renderRecent(place, { items }) {
  if (!items.length) return replace(place, h("p", { class: "empty" }, "None yet."));
  const head = ["Name", "Shape", "Type", "Range", "Uploaded", ""].map((text) =>
    h("th", { scope: "col" }, text || h("span", { class: "visually-hidden" }, "Run")),
  );
  return redraw(
    place,
    h(
      "table",
      { class: "rows" },
      h("thead", {}, h("tr", {}, head)),
      h(
        "tbody",
        {},
        items.map((tensor) =>
          h(
            "tr",
            {},
            h("th", { scope: "row" }, h("a", { href: link(`/tensors/${tensor.id}`) }, nameOf(tensor))),
            h("td", {}, shape(tensor.shape)),
            h("td", {}, tensor.dtype),
            h("td", {}, `${number(tensor.min)} to ${number(tensor.max)}`),
            h("td", {}, when(tensor.created_at)),
            h(
              "td",
              {},
              h(
                "a",
                { href: link("/new", { tensor: tensor.id }), "aria-label": `New run on ${nameOf(tensor)}` },
                "New run",
              ),
            ),
          ),
        ),
      ),
    ),
  );
}
