// The form of a new run or study, with an estimate of its cost and the code that submits it.

import { getJson, send } from "../api/request.js";
import { card, choice, field, h, replace, select } from "../components/element.js";
import { bytes, count, nameOf, shape } from "../components/format.js";
import { problemNote } from "../components/problem-note.js";
import { requestForm } from "../forms/request-form.js";
import { schemas } from "../forms/schema.js";
import { jobSnippets, snippetView, studySnippets } from "../forms/snippets.js";
import { go, keepQuery } from "../router.js";
import { me } from "../api/session.js";

const ESTIMATE_AFTER = 350; // milliseconds without typing
const FEWEST_SAMPLES = 3; // of which others can be drawn
const KINDS = {
  run: {
    title: "One run",
    words: "Run",
    front: ["name", "preset", "rank", "sparsity", "beta", "method", "stability"],
    first: { preset: "recommended", rank: 8 },
  },
  choose: {
    title: "Study: how many components?",
    words: "Start the study",
    front: ["name", "rank", "seeds", "noise", "validate"],
    first: {},
  },
  compare: {
    title: "Study: compare settings",
    words: "Start the study",
    front: ["name", "preset", "ranks", "methods", "betas", "sparsities", "repeats", "validate"],
    first: { ranks: [2, 3, 4, 5], methods: ["anls-bpp"], repeats: 3, preset: "recommended" },
  },
};

export async function show({ main, query, signal }) {
  const [all, tensors, from] = await Promise.all([
    schemas(getJson, signal),
    choices(query.tensor, signal),
    query.from ? getJson(`v1/jobs/${encodeURIComponent(query.from)}`, { signal }) : null,
  ]);
  const available = Object.fromEntries(
    Object.entries({ run: all.JobRequest, ...studySchemas(all) }).filter(([, schema]) => schema),
  );
  let kind = query.kind in available ? query.kind : "run";
  const picked = select(
    Object.fromEntries(tensors.map((tensor) => [tensor.id, `${nameOf(tensor)} (${shape(tensor.shape)})`])),
    query.tensor ?? from?.tensor_id ?? tensors[0]?.id,
    { name: "tensor_id" },
  );
  const formPlace = h("div");
  const estimatePlace = h("div", { class: "stack", "aria-live": "polite" });
  const problems = h("div");
  const submit = h("button", { type: "submit", class: "primary" });
  const code = snippetView();
  const form = h(
    "form",
    { class: "card", novalidate: true },
    field("Tensor", picked),
    formPlace,
    problems,
    h("div", { class: "actions" }, submit),
  );
  /** @type {any} */
  let fields;

  const tensor = () => tensors.find(({ id }) => id === picked.value);
  const body = () => ({ ...(kind === "run" ? {} : { kind }), tensor_id: picked.value, ...fields.body() });

  function renderForm() {
    const { front, first, words } = KINDS[kind];
    fields = requestForm(available[kind], all, { front, skip: ["tensor_id", "kind"], onchange: changed });
    if (from && kind === "run")
      fields.setSettings({
        ...from.settings,
        name: from.name,
        initial: from.initial,
        mask: from.mask,
        fixed: from.fixed,
      });
    else
      fields.set({
        ...first,
        ...(query.rank && { rank: Number(query.rank) }),
        ...entriesOf(tensor(), kind),
        zeros: query.zeros,
      });
    replace(formPlace, fields.element);
    submit.textContent = words;
    replace(problems);
    changed();
  }

  let timer;
  function changed() {
    code.show(kind === "run" ? jobSnippets(body(), me()) : studySnippets(body(), me()));
    clearTimeout(timer);
    timer = setTimeout(
      () => (kind === "choose" ? replace(estimatePlace, studySize(body())) : estimate()),
      ESTIMATE_AFTER,
    );
  }

  async function estimate() {
    const request = body();
    const run = kind === "run" ? request : largestRun(request);
    const size = kind === "run" ? null : studySize(request);
    if (run.rank === undefined)
      return replace(
        estimatePlace,
        h("p", { class: "soft" }, "Enter a rank: the number of components allowed. A penalty removes weak ones."),
      );
    try {
      const found = await send("POST", "v1/jobs/estimate", { body: run, signal, idempotent: true });
      if (signal.aborted || JSON.stringify(request) !== JSON.stringify(body())) return null;
      const left = fields.fail(inLists(kind, found.refused));
      return replace(
        estimatePlace,
        size,
        memory(found),
        found.warnings.map((text) => h("p", { class: "note warning" }, text)),
        left.length ? problemNote({ title: "This would be refused.", message: "", errors: left }) : null,
      );
    } catch (error) {
      if (signal.aborted) return null;
      return replace(estimatePlace, size, refused(error, inLists(kind, error.errors ?? [])));
    }
  }

  function refused(error, errors = error.errors ?? []) {
    const left = fields.fail(errors);
    return left.length || !error.errors?.length
      ? problemNote({ ...error, title: error.title, message: error.message, errors: left })
      : h("p", { class: "bad" }, "See the fields in red.");
  }

  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    submit.disabled = true;
    replace(problems);
    try {
      // With the key, a second press or a repeated request gives the same job.
      const made = await send("POST", kind === "run" ? "v1/jobs" : "v1/studies", {
        body: body(),
        headers: { "Idempotency-Key": key(body()) },
        signal,
        idempotent: true,
      });
      go(kind === "run" ? `/jobs/${made.id}` : `/studies/${made.id}`);
    } catch (error) {
      if (signal.aborted) return;
      replace(problems, refused(error));
      fields.focusFirstError();
    } finally {
      submit.disabled = false;
    }
  });
  picked.addEventListener("change", () => {
    keepQuery("/new", { tensor: picked.value, kind });
    if (!from) fields.set(entriesOf(tensor(), kind));
    changed();
  });
  signal.addEventListener("abort", () => clearTimeout(timer));

  const titles = Object.fromEntries(Object.keys(available).map((name) => [name, KINDS[name].title]));
  replace(
    main,
    h(
      "div",
      { class: "heading" },
      h("h1", {}, "New run"),
      Object.keys(titles).length > 1 &&
        choice("Kind", titles, kind, (value) => {
          kind = value;
          keepQuery("/new", { tensor: picked.value, kind });
          renderForm();
        }),
    ),
    tensors.length
      ? h(
          "div",
          { class: "wide-left" },
          form,
          h(
            "div",
            { class: "stack" },
            card("What it needs", [], estimatePlace),
            card("The same from a program", [], code.element),
          ),
        )
      : h("p", { class: "note" }, "There is no tensor yet. ", h("a", { href: "#/" }, "Upload one, or take a sample.")),
  );
  if (tensors.length) renderForm();
}

const studySchemas = (all) => ({ choose: all.ChooseRequest, compare: all.CompareRequest });

/** Load the newest tensors without masks, and the tensor of the query. */
async function choices(wanted, signal) {
  const { items } = await getJson("v1/tensors", { query: { limit: 200 }, signal });
  if (wanted && !items.some(({ id }) => id === wanted))
    items.unshift(await getJson(`v1/tensors/${encodeURIComponent(wanted)}`, { signal }));
  return items.filter(({ dtype }) => dtype !== "bool");
}

/** Return the settings that the tensor needs or allows, as a default that can be changed. */
const entriesOf = (tensor, kind) => ({
  missing: tensor?.missing ? "nan" : undefined,
  negative: tensor?.negative ? "keep" : undefined,
  ...(kind === "run" && { stability: tensor?.shape[0] >= FEWEST_SAMPLES ? true : undefined }),
});

const keys = new Map();
function key(request) {
  const text = JSON.stringify(request);
  if (!keys.has(text))
    keys.set(
      text,
      Array.from(crypto.getRandomValues(new Uint8Array(16)), (byte) => byte.toString(16).padStart(2, "0")).join(""),
    );
  return keys.get(text);
}

function memory({ memory: { needed_bytes: needed, limit_bytes: limit } }) {
  return h(
    "p",
    {},
    "At most ",
    h("strong", {}, bytes(needed)),
    ` of memory beside the tensor; a job may take ${bytes(limit)}.`,
  );
}

// Fields of a run, and the lists that a comparison has in their place.
const LISTS = { rank: "ranks", method: "methods", beta: "betas", sparsity: "sparsities" };
const OF_STUDIES = ["kind", "repeats", "validate", "reference", ...Object.values(LISTS)];

/** Return the run of a comparison that needs most memory. */
function largestRun(request) {
  const same = Object.entries(request).filter(([name]) => !OF_STUDIES.includes(name));
  const one = Object.entries(LISTS)
    .filter(([, list]) => request[list]?.length)
    .map(([name, list]) => [name, name === "rank" ? Math.max(...request[list].map(Number)) : request[list][0]]);
  return Object.fromEntries([...same, ...one]);
}

/** Move errors about a run to the list that its value came from. */
const inLists = (kind, errors) =>
  kind === "run" ? errors : errors.map((one) => ({ ...one, field: LISTS[one.field.split(/[.[]/)[0]] ?? one.field }));

function studySize(request) {
  const cells = ["ranks", "methods", "betas", "sparsities"].reduce(
    (product, name) => product * Math.max(1, request[name]?.length ?? 1),
    1,
  );
  return request.kind === "compare"
    ? h(
        "p",
        {},
        h("strong", {}, count(cells * (request.repeats ?? 1), "run")),
        `: ${count(cells, "cell")}, ${request.repeats ?? 1} starts each. Others' jobs do not wait for them.`,
      )
    : h(
        "p",
        {},
        "Fits many models of decreasing rank and reports how many components the data support, ",
        "with the evidence. It says so if the evidence is not conclusive.",
      );
}
