// Form controls generated from the API's schema, with its defaults and descriptions.
// Empty fields are left out of the request, so that the server's default or preset applies.

import { field, h, newId, select } from "../components/element.js";

const PRESET = /; (?:default (.*)|required), with the preset (.*)$/s;

let loading = null;
/** Return the schemas of the API by name, loaded once. */
export async function schemas(getJson, signal) {
  loading ??= getJson("openapi.json", { signal }).catch((error) => {
    loading = null;
    throw error;
  });
  return (await loading).components.schemas;
}

const follow = (schema, all) => (schema.$ref ? { ...all[schema.$ref.split("/").at(-1)], ...schema } : schema);

/** Return the alternatives of a schema, flattened and without null. */
function forms(schema, all) {
  const found = follow(schema, all);
  return [...(found.anyOf ?? []), ...(found.oneOf ?? [])].length
    ? [...(found.anyOf ?? []), ...(found.oneOf ?? [])]
        .flatMap((one) => forms(one, all))
        .filter((one) => one.type !== "null")
    : [found];
}

/** Return the advice on a field, and its default. */
function describe(schema, preset) {
  const description = schema.description ?? "";
  const found = PRESET.exec(description);
  const advice = found ? description.slice(0, found.index) : description;
  const standard = found
    ? preset
      ? found[2]
      : found[1]
    : "default" in schema
      ? JSON.stringify(schema.default)
      : undefined;
  return { advice, standard: standard === "null" ? null : standard };
}

/** Return whether null is allowed and differs from leaving the field out. */
function hasNull(schema, all) {
  const nullable = [...(schema.anyOf ?? []), ...(schema.oneOf ?? [])].some((one) => follow(one, all).type === "null");
  return nullable && describe(schema, false).standard !== null && describe(schema, false).standard !== undefined;
}

const defaultText = (standard) =>
  standard === undefined ? "left out" : standard === null ? "automatic" : `default: ${standard.replace(/^"|"$/g, "")}`;

/**
 * Controls for one property: `{element, value(), set(value), fail(text), preset(isOn)}`.
 * `value()` is undefined for an empty field. A nested object becomes a fieldset of controls.
 */
export function control(name, schema, all, onchange, label = name) {
  const options = forms(schema, all);
  const object = options.find((one) => one.properties);
  if (object) return group(name, object, all, onchange, schema.description);
  const choices = options.flatMap(
    (one) => one.enum ?? (one.const !== undefined ? [one.const] : one.type === "boolean" ? [true, false] : []),
  );
  const takesNull = hasNull(schema, all);
  const free = options.some(
    (one) => ["number", "integer", "string", "array"].includes(one.type) && !one.enum && one.const === undefined,
  );
  return free
    ? text(name, schema, options, choices, takesNull, onchange, label)
    : choose(name, schema, takesNull ? [...choices, null] : choices, onchange, label);
}

function wrap(input, schema, label, value, set) {
  const id = newId("field");
  input.id = id;
  const names = schema.items?.enum;
  const element = field(label, input, {
    advice: [describe(schema, true).advice, names && names.join(", ")].filter(Boolean).join(": "),
  });
  const error = element.querySelector(".error");
  return {
    element,
    value,
    set,
    isStandard: (given, preset) => JSON.stringify(given) === String(describe(schema, preset).standard),
    fail(message) {
      error.textContent = message ?? "";
      error.hidden = !message;
      if (message) input.setAttribute("aria-invalid", "true");
      else input.removeAttribute("aria-invalid");
    },
  };
}

function choose(name, schema, choices, onchange, label) {
  const shown = (one) => (one === null ? "automatic" : String(one));
  const input = select(
    {
      "": defaultText(describe(schema, true).standard),
      ...Object.fromEntries(choices.map((one) => [JSON.stringify(one), shown(one)])),
    },
    "",
    { onchange, name },
  );
  const made = wrap(
    input,
    schema,
    label,
    () => (input.value ? JSON.parse(input.value) : undefined),
    (value) => {
      input.value = choices.includes(value) ? JSON.stringify(value) : "";
    },
  );
  made.preset = (isOn) => {
    input.options[0].textContent = defaultText(describe(schema, isOn).standard);
  };
  return made;
}

function text(name, schema, options, choices, takesNull, onchange, label) {
  const numeric = options.some(
    (one) => ["number", "integer"].includes(one.type) || ["number", "integer"].includes(one.items?.type),
  );
  const lists = options.some((one) => one.type === "array");
  const onlyWhole = options.every((one) => one.type === "integer");
  const input = h("input", {
    name,
    oninput: onchange,
    autocomplete: "off",
    inputmode: onlyWhole ? "numeric" : numeric && !lists && !choices.length ? "decimal" : null,
    list: choices.length ? newId("list") : null,
  });
  const made = wrap(
    input,
    schema,
    label,
    () =>
      input.value.trim() === ""
        ? undefined
        : takesNull && input.value.trim() === "null"
          ? null
          : parse(input.value.trim(), numeric, lists, options),
    (value) => {
      input.value =
        value === undefined || value === null
          ? takesNull && value === null
            ? "null"
            : ""
          : Array.isArray(value)
            ? value.join(", ")
            : String(value);
    },
  );
  if (choices.length)
    made.element.append(
      h(
        "datalist",
        { id: input.getAttribute("list") },
        choices.map((one) => h("option", { value: one })),
      ),
    );
  made.preset = (isOn) => {
    input.placeholder = defaultText(describe(schema, isOn).standard);
  };
  made.preset(true);
  return made;
}

/** Convert text to a JSON value. Text that is not a number is sent as it is, and the server explains the error. */
function parse(given, numeric, lists, options) {
  const one = (part) => (numeric && part !== "" && Number.isFinite(Number(part)) ? Number(part) : part);
  const onlyLists = options.every((form) => form.type === "array");
  if (lists && (onlyLists || /[,;\s]/.test(given)))
    return given
      .replace(/^\[|\]$/g, "")
      .split(/[,;\s]+/)
      .filter(Boolean)
      .map(one);
  return one(given);
}

function group(name, schema, all, onchange, description) {
  const parts = Object.fromEntries(
    Object.entries(schema.properties).map(([key, one]) => [
      key,
      control(`${name}.${key}`, one, all, onchange, key.replaceAll("_", " ")),
    ]),
  );
  const element = h(
    "fieldset",
    { style: { "grid-column": "1 / -1" } },
    h("legend", {}, name.split(".").at(-1).replaceAll("_", " ")),
    description && h("small", {}, description),
    h(
      "div",
      { class: "fields" },
      Object.values(parts).map((part) => part.element),
    ),
  );
  return {
    element,
    parts,
    value() {
      const given = Object.entries(parts)
        .map(([key, part]) => [key, part.value()])
        .filter(([, value]) => value !== undefined);
      return given.length ? Object.fromEntries(given) : undefined;
    },
    set(value, preset) {
      for (const [key, part] of Object.entries(parts))
        part.set(preset !== undefined && part.isStandard?.(value?.[key], preset) ? undefined : value?.[key]);
    },
    fail(message) {
      if (!message) for (const part of Object.values(parts)) part.fail(null);
      else Object.values(parts)[0].fail(message);
    },
    preset(isOn) {
      for (const part of Object.values(parts)) part.preset(isOn);
    },
  };
}
