// An editor for the labels of a tensor: name, unit and values of each mode, typed or pasted from a spreadsheet.

import { send } from "../api/request.js";
import { announce } from "../components/announce.js";
import { field, h, replace } from "../components/element.js";
import { problemNote } from "../components/problem-note.js";

/** Parse pasted values: separated by lines, tabs, semicolons or commas, or a range such as `250:450` or `240:5:300`. */
export function parseValues(text) {
  const range = text.trim().match(/^(-?[\d.]+):(?:(-?[\d.]+):)?(-?[\d.]+)$/);
  if (range) {
    const [from, step, to] = [Number(range[1]), Number(range[2] ?? 1), Number(range[3])];
    const count = Math.floor((to - from) / step + 1e-9) + 1;
    if (!(count > 0 && count < 1e6)) return [];
    // Rounded, since ten steps of 0.1 are not quite one.
    return Array.from({ length: count }, (_, place) => Number((from + place * step).toPrecision(12)));
  }
  const parts = text
    .trim()
    .split(/\n|\t|;/.test(text.trim()) ? /[\n\t;]+/ : /,/)
    .map((part) => part.trim())
    .filter((part) => part !== "");
  return parts.every((part) => Number.isFinite(Number(part))) ? parts.map(Number) : parts;
}

export function axesEditor(tensor, onsaved) {
  const place = h("div");
  const rows = tensor.shape.map((length, index) => row(index + 1, length, tensor.axes?.[index]));
  const save = h("button", { type: "submit", class: "primary" }, "Save the axes");
  const form = h(
    "form",
    { class: "stack" },
    h(
      "div",
      { class: "stack" },
      rows.map(({ element }) => element),
    ),
    place,
    h("div", { class: "actions" }, save),
  );
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    save.disabled = true;
    try {
      await send("PUT", `v1/tensors/${tensor.id}/axes`, { body: rows.map(({ axis }) => axis()) });
      replace(place);
      announce("The axes are saved");
      onsaved();
    } catch (error) {
      replace(place, problemNote(error));
    } finally {
      save.disabled = false;
    }
  });
  return form;
}

function row(mode, length, axis) {
  const name = h("input", { value: axis?.name ?? `mode ${mode}`, maxlength: 200, required: true });
  const unit = h("input", { value: axis?.unit ?? "", maxlength: 200, placeholder: "none" });
  const values = h("textarea", {
    rows: 2,
    value: axis ? axis.values.join("\n") : "",
    placeholder: `0:${length - 1}`,
    spellcheck: "false",
  });
  const summary = h("small", { "aria-live": "polite" });
  const parsed = () => (values.value.trim() ? parseValues(values.value) : Array.from({ length }, (_, index) => index));
  const render = () => {
    const found = parsed();
    summary.textContent = `${found.length} of ${length}, ${typeof found[0] === "string" ? "texts" : "numbers"}`;
    summary.className = found.length === length ? "good" : "bad";
  };
  values.addEventListener("input", render);
  render();
  const element = h(
    "fieldset",
    {},
    h("legend", {}, `Mode ${mode}, length ${length}`),
    h(
      "div",
      { class: "fields" },
      field("Name", name),
      field("Unit", unit),
      h(
        "div",
        {},
        field("Values", values, { advice: "Paste a column, or a range such as 250:450 or 240:5:300" }),
        summary,
      ),
    ),
  );
  return { element, axis: () => ({ name: name.value.trim(), unit: unit.value.trim() || null, values: parsed() }) };
}
