// A form for a request body, generated from its schema: a few fields in front, the rest folded.

import { h } from "../components/element.js";
import { control } from "./schema.js";

const LABELS = { beta: "β (beta)", alpha: "α (alpha)", betas: "β values", rank: "Rank", ranks: "Ranks" };
const labelOf = (name) => LABELS[name] ?? (name[0].toUpperCase() + name.slice(1)).replaceAll("_", " ");

/**
 * Make a form for a request: `{element, body(), set(values), setSettings(values), fail(errors)}`.
 * Fields in `front` come first, the rest is folded; fields in `skip` are left to the caller.
 *
 * @param {any} schema
 * @param {any} all the schemas by name
 * @param {{front: string[], skip?: string[], onchange: () => void}} options
 */
export function requestForm(schema, all, { front, skip = [], onchange }) {
  const changed = () => {
    showDefaults();
    onchange();
  };
  const names = Object.keys(schema.properties).filter((name) => !skip.includes(name));
  const controls = Object.fromEntries(
    names.map((name) => [name, control(name, schema.properties[name], all, changed, labelOf(name))]),
  );
  const first = front.filter((name) => name in controls);
  const rest = names.filter((name) => !first.includes(name));
  const folded = h(
    "details",
    {},
    h("summary", {}, "All other settings"),
    h(
      "div",
      { class: "fields" },
      rest.map((name) => controls[name].element),
    ),
  );

  function showDefaults() {
    const isOn = controls.preset?.value() === "recommended" || !controls.preset;
    for (const one of Object.values(controls)) one.preset?.(isOn);
  }

  function find(path) {
    const parts = path.replace(/\[.*$/, "").split(".");
    let found = controls[parts[0]];
    for (const part of parts.slice(1)) found = found?.parts?.[part] ?? found;
    return found;
  }

  return {
    element: h(
      "div",
      { class: "stack" },
      h(
        "div",
        { class: "fields" },
        first.map((name) => controls[name].element),
      ),
      folded,
    ),
    /** Return the fields that have a value. */
    body: () =>
      Object.fromEntries(
        Object.entries(controls)
          .map(([name, one]) => [name, one.value()])
          .filter(([, value]) => value !== undefined),
      ),
    set(values) {
      for (const [name, value] of Object.entries(values)) controls[name]?.set(value);
      showDefaults();
    },
    /** Fill in the settings of a job, except those that equal the default of an empty field. */
    setSettings(values) {
      const preset = values.preset === "recommended";
      for (const [name, value] of Object.entries(values)) {
        const one = controls[name];
        if (one) one.set(one.isStandard?.(value, preset) ? undefined : value, preset);
      }
      showDefaults();
    },
    /** Show errors at their fields, unfolding them if necessary; return the errors without a field here. */
    fail(errors) {
      for (const one of Object.values(controls)) one.fail(null);
      const left = [];
      for (const { field, problem, remedy } of errors) {
        const found = find(field);
        if (!found) {
          left.push({ field, problem, remedy });
          continue;
        }
        found.fail([problem, remedy].filter(Boolean).join(" – "));
        if (folded.contains(found.element)) folded.open = true;
      }
      return left;
    },
    focusFirstError() {
      this.element.querySelector('[aria-invalid="true"]')?.focus();
    },
  };
}
