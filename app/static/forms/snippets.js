// The request of the form as JSON, and the code that submits it from a shell, Python, MATLAB and R.

import { address } from "../api/request.js";
import { h, replace } from "../components/element.js";

const server = () => address("").replace(/\/$/, "");
const needsKey = (caller) => caller.required;

const lines = (...texts) => texts.join("\n");

function curl(path, body, caller) {
  const json = JSON.stringify(body).replaceAll("'", "'\\''");
  const key = needsKey(caller) ? ' \\\n  -H "Authorization: Bearer $NCP_KEY"' : "";
  return lines(`curl -sS '${server()}/${path}' -H 'Content-Type: application/json'${key} \\`, `  -d '${json}'`);
}

function pythonClient(url, caller) {
  const comment = needsKey(caller) ? "  # the key: NCP_KEY, or ncp login" : "";
  return lines("from ncp_client import Client", "", `client = Client(${python(url)})${comment}`);
}

/** A value as a Python literal. */
export function python(value) {
  if (value === null) return "None";
  if (typeof value === "boolean") return value ? "True" : "False";
  if (Array.isArray(value)) return `[${value.map(python).join(", ")}]`;
  if (typeof value === "object")
    return `{${Object.entries(value)
      .map(([name, one]) => `"${name}": ${python(one)}`)
      .join(", ")}}`;
  return JSON.stringify(value);
}

/** A value as a MATLAB literal; null becomes NaN. */
export function matlab(value) {
  if (value === null) return "NaN";
  // MATLAB takes a list of one for its only entry, and a list in a struct for a list of structs: braces prevent both.
  if (Array.isArray(value))
    return value.length > 1 && value.every((one) => typeof one === "number")
      ? `[${value.join(" ")}]`
      : `{${value.map(matlab).join(", ")}}`;
  if (typeof value === "object")
    return `struct(${Object.entries(value)
      .map(([name, one]) => `'${name}', ${matlab(one).replace(/^\{.*\}$/s, "{$&}")}`)
      .join(", ")})`;
  return typeof value === "string" ? `'${value.replaceAll("'", "''")}'` : String(value);
}

/** A value as an R literal. */
export function r(value) {
  if (value === null) return "NULL";
  if (typeof value === "boolean") return value ? "TRUE" : "FALSE";
  if (Array.isArray(value)) return `${value.length > 1 ? "c" : "list"}(${value.map(r).join(", ")})`;
  if (typeof value === "object")
    return `list(${Object.entries(value)
      .map(([name, one]) => `${name} = ${r(one)}`)
      .join(", ")})`;
  return JSON.stringify(value);
}

/** The code that submits this job, in every language. */
export function jobSnippets({ tensor_id, ...fields }, caller) {
  const url = server();
  const named = (write, sign, given = fields) =>
    Object.entries(given)
      .map(([name, value]) => `${name}${sign}${write(value)}`)
      .join(", ");
  const forMatlab = Object.entries(fields).flatMap(([name, value]) => [`'${name}'`, matlab(value)]);
  const at = `'url', ${matlab(url)}`;
  const forR = fields.initial ? { ...fields, initial: fields.initial.job_id } : fields; // R's client takes the id alone
  return {
    JSON: JSON.stringify({ tensor_id, ...fields }, null, 2),
    curl: curl("v1/jobs", { tensor_id, ...fields }, caller),
    Python: lines(
      pythonClient(url, caller),
      `job = client.submit(${python(tensor_id)}, ${named(python, "=")})`,
      "result = job.wait().result",
    ),
    MATLAB: lines(
      `job = ncp_submit(${matlab(tensor_id)}, ${forMatlab.join(", ")}, ${at});`,
      `job = ncp_watch(job, ${at});`,
      `factors = ncp_factors(job, ${at});`,
    ),
    R: lines(
      `job <- ncp_submit(${r(tensor_id)}, ${named(r, " = ", forR)}, url = ${r(url)})`,
      `job <- ncp_watch(job, url = ${r(url)})`,
      `factors <- ncp_factors(job, url = ${r(url)})`,
    ),
  };
}

/** The code that submits this study and waits for its outcome, in every language. */
export function studySnippets({ kind, tensor_id, ...fields }, caller) {
  const url = server();
  const body = { kind, tensor_id, ...fields };
  const named = (write, sign) =>
    Object.entries(fields)
      .map(([name, value]) => `, ${name}${sign}${write(value)}`)
      .join("");
  const forMatlab = Object.entries(fields)
    .map(([name, value]) => `'${name}', ${matlab(value)}, `)
    .join("");
  const at = `'url', ${matlab(url)}`;
  const outcome = kind === "compare" ? "table" : "advice";
  return {
    JSON: JSON.stringify(body, null, 2),
    curl: curl("v1/studies", body, caller),
    Python: lines(
      pythonClient(url, caller),
      `study = client.study(${python(tensor_id)}, ${python(kind)}${named(python, "=")}).wait()`,
      `print(study.${kind === "compare" ? "table()" : "advice"})`,
    ),
    MATLAB: lines(
      `study = ncp_study(${matlab(tensor_id)}, ${matlab(kind)}, ${forMatlab}${at});`,
      `study = ncp_watch_study(study, ${at});`,
      `study.${outcome}`,
    ),
    R: lines(
      `study <- ncp_study(${r(tensor_id)}, ${r(kind)}${named(r, " = ")}, url = ${r(url)})`,
      `study <- ncp_watch_study(study, url = ${r(url)})`,
      `study$${outcome}`,
    ),
  };
}

/** Tabs with one snippet each, which can be copied. `show(snippets)` replaces them. */
export function snippetView() {
  let snippets = { JSON: "" };
  let chosen = "JSON";
  const tabs = h("div", { class: "tabs", role: "tablist", "aria-label": "Language" });
  const code = h("pre", { class: "code", tabindex: "0", role: "tabpanel", "aria-label": "Code" });
  const copied = h("button", { type: "button", onclick: copy }, "Copy");

  async function copy() {
    try {
      await navigator.clipboard.writeText(code.textContent);
    } catch {
      // The clipboard API needs TLS: without it, select the text and copy the selection.
      getSelection()?.selectAllChildren(code);
      document.execCommand("copy");
    }
    copied.textContent = "Copied";
    setTimeout(() => {
      copied.textContent = "Copy";
    }, 1500);
  }

  function draw() {
    if (!(chosen in snippets)) chosen = "JSON";
    const names = Object.keys(snippets);
    const step = (event, place) => {
      const move = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (!move) return;
      chosen = names[(place + move + names.length) % names.length];
      draw();
      tabs.querySelector('[aria-selected="true"]').focus();
    };
    replace(
      tabs,
      names.map((name, place) =>
        h(
          "button",
          {
            type: "button",
            role: "tab",
            "aria-selected": String(name === chosen),
            tabindex: name === chosen ? "0" : "-1",
            onclick: () => {
              chosen = name;
              draw();
              tabs.querySelector('[aria-selected="true"]').focus();
            },
            onkeydown: (event) => step(event, place),
          },
          name,
        ),
      ),
    );
    code.textContent = snippets[chosen];
  }

  draw();
  return {
    element: h("div", { class: "stack" }, tabs, code, h("div", { class: "actions" }, copied)),
    show(made) {
      snippets = made;
      const focused = tabs.contains(document.activeElement);
      draw();
      if (focused) tabs.querySelector('[aria-selected="true"]').focus();
    },
  };
}
