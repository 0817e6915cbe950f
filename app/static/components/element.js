// Creates elements: h("button", {class: "primary", onclick: submit}, "Run").

const SVG = "http://www.w3.org/2000/svg";

/** @returns {any} an element with these attributes and children; `null` and `false` are left out */
export function h(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

export function svg(tag, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "dataset") Object.assign(element.dataset, value);
    // Set through the object model, because the page's policy refuses style attributes.
    else if (name === "style")
      for (const [property, text] of Object.entries(value)) element.style.setProperty(property, text);
    else if (name === "value" || name === "checked") element[name] = value;
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(
    ...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false),
  );
  return element;
}

export function replace(parent, ...children) {
  parent.replaceChildren(
    ...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false),
  );
  return parent;
}

const FOCUSABLE = "a[href], button, input, select, textarea, summary, [tabindex]";

/** Replace the children of an element that is redrawn repeatedly, and keep the keyboard focus where it was. */
export function redraw(parent, ...children) {
  /** @type {any} */
  const focused = parent.contains(document.activeElement) ? document.activeElement : null;
  const all = () => [...parent.querySelectorAll(FOCUSABLE)];
  const place = all().indexOf(focused);
  replace(parent, ...children);
  if (place < 0) return parent;
  const now = all();
  const same = now.find(
    (one) =>
      one.tagName === focused.tagName &&
      (focused.href
        ? one.href === focused.href
        : one.ariaLabel === focused.ariaLabel && one.textContent === focused.textContent),
  );
  (same ?? now[Math.min(place, now.length - 1)])?.focus({ preventScroll: true });
  return parent;
}

let last = 0;
/** Return a unique id, for labels and descriptions. */
export const newId = (word) => `${word}-${++last}`;

/** Return a card with a heading, and `controls` beside it. */
export function card(title, controls = [], ...children) {
  const id = newId("card");
  return h(
    "section",
    { class: "card", "aria-labelledby": id },
    h("header", {}, h("h2", { id }, title), h("div", { class: "actions" }, controls)),
    children,
  );
}

export function facts(pairs) {
  const shown = pairs.filter((pair) => pair && pair[1] !== null && pair[1] !== undefined && pair[1] !== "");
  return h(
    "dl",
    { class: "facts" },
    shown.map(([term, value, small]) =>
      h("div", {}, h("dt", {}, term), h("dd", {}, value, small && h("small", {}, small))),
    ),
  );
}

/** Return radio buttons that look like one control. */
export function choice(legend, options, chosen, onchange) {
  const name = newId("choice");
  return h(
    "div",
    { class: "choice", role: "radiogroup", "aria-label": legend },
    Object.entries(options).map(([value, text]) =>
      h(
        "label",
        {},
        h("input", { type: "radio", name, value, checked: value === chosen, onchange: () => onchange(value) }),
        text,
      ),
    ),
  );
}

/**
 * Return a labelled control, with advice below it and room for an error.
 *
 * @param {string} label
 * @param {any} control
 * @param {{advice?: string, wide?: boolean}} options
 */
export function field(label, control, { advice, wide } = {}) {
  const id = control.id || (control.id = newId("field"));
  const hint = advice && h("span", { class: "advice", id: `${id}-advice` }, advice);
  const error = h("span", { class: "error", id: `${id}-error`, hidden: true });
  control.setAttribute("aria-describedby", [hint && hint.id, error.id].filter(Boolean).join(" "));
  return h(
    "div",
    { class: "field", style: wide ? { "grid-column": "1 / -1" } : {} },
    h("label", { for: id }, label),
    control,
    hint,
    error,
  );
}

export function select(options, chosen, attributes = {}) {
  const made = h(
    "select",
    attributes,
    Object.entries(options).map(([value, text]) => h("option", { value }, text)),
  );
  made.value = chosen ?? "";
  return made;
}
