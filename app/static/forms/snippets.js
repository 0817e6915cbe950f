// The very run of the form as JSON, and as the lines that submit it from a shell, Python, MATLAB and R.

import { address } from "../api/request.js";
import { h, replace } from "../components/element.js";

const server = () => address("").replace(/\/$/, "");
const needsKey = (caller) => caller.required;

function curl(path, body, caller) {
  const json = JSON.stringify(body).replaceAll("'", "'\\''");
  return `curl -sS '${server()}/${path}' -H 'Content-Type: application/json'${needsKey(caller) ? ' \\\n  -H "Authorization: Bearer $NCP_KEY"' : ""} \\\n  -d '${json}'`;
}

/** A value as Python writes it. */
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

/** A value as MATLAB writes it; NaN stands for null. */
export function matlab(value) {
  if (value === null) return "NaN";
  // A list of one would be taken for its only entry, and a list in a struct for a list of structs: braces help both.
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

/** A value as R writes it. */
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

/** The lines of every language that submit this job. */
export function jobSnippets({ tensor_id, ...fields }, caller) {
  const url = server();
  const named = (write, sign, given = fields) =>
    Object.entries(given)
      .map(([name, value]) => `${name}${sign}${write(value)}`)
      .join(", ");
  const forR = fields.initial ? { ...fields, initial: fields.initial.job_id } : fields; // which takes the id alone
  return {
    JSON: JSON.stringify({ tensor_id, ...fields }, null, 2),
    curl: curl("v1/jobs", { tensor_id, ...fields }, caller),
    Python: `from ncp_client import Client\n\nclient = Client(${python(url)})${needsKey(caller) ? "  # the key: NCP_KEY, or ncp login" : ""}\njob = client.submit(${python(tensor_id)}, ${named(python, "=")})\nresult = job.wait().result`,
    MATLAB: `job = ncp_submit(${matlab(tensor_id)}, ${Object.entries(fields)
      .map(([name, value]) => `'${name}', ${matlab(value)}`)
      .join(
        ", ",
      )}, 'url', ${matlab(url)});\njob = ncp_watch(job, 'url', ${matlab(url)});\nfactors = ncp_factors(job, 'url', ${matlab(url)});`,
    R: `job <- ncp_submit(${r(tensor_id)}, ${named(r, " = ", forR)}, url = ${r(url)})\njob <- ncp_watch(job, url = ${r(url)})\nfactors <- ncp_factors(job, url = ${r(url)})`,
  };
}

/** The lines of every language that submit this study, and wait for what it found. */
export function studySnippets({ kind, tensor_id, ...fields }, caller) {
  const url = server();
  const body = { kind, tensor_id, ...fields };
  const named = (write, sign) =>
    Object.entries(fields)
      .map(([name, value]) => `, ${name}${sign}${write(value)}`)
      .join("");
  const found = kind === "compare" ? "table" : "advice";
  return {
    JSON: JSON.stringify(body, null, 2),
    curl: curl("v1/studies", body, caller),
    Python: `from ncp_client import Client\n\nclient = Client(${python(url)})${needsKey(caller) ? "  # the key: NCP_KEY, or ncp login" : ""}\nstudy = client.study(${python(tensor_id)}, ${python(kind)}${named(python, "=")}).wait()\nprint(study.${kind === "compare" ? "table()" : "advice"})`,
    MATLAB: `study = ncp_study(${matlab(tensor_id)}, ${matlab(kind)}, ${Object.entries(fields)
      .map(([name, value]) => `'${name}', ${matlab(value)}, `)
      .join("")}'url', ${matlab(url)});\nstudy = ncp_watch_study(study, 'url', ${matlab(url)});\nstudy.${found}`,
    R: `study <- ncp_study(${r(tensor_id)}, ${r(kind)}${named(r, " = ")}, url = ${r(url)})\nstudy <- ncp_watch_study(study, url = ${r(url)})\nstudy$${found}`,
  };
}

/** Tabs with a piece of code each, to copy. `show(snippets)` fills them anew. */
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
      // Without TLS the browser has no clipboard for pages: select the text and copy it the old way.
      getSelection().selectAllChildren(code);
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
