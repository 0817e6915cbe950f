// Outlying samples: which they are, a fit without them by one click, and that fit beside the one before.

import { card, facts, h, replace } from "./element.js";
import { count, indexLabel, modeName, number } from "./format.js";
import { problemNote } from "./problem-note.js";

/** Return the label of an index if it is a text that names no other, else the index: as `exclude` takes it. */
function nameOf(axes, mode, index) {
  const values = axes?.[mode - 1]?.values ?? [];
  const label = values[index];
  return typeof label === "string" && values.indexOf(label) === values.lastIndexOf(label) ? label : index;
}

/** The flagged samples, each with a box; `onfit(exclude)` submits the fit without those that are ticked. */
export function outliersCard({ mode, outliers, single }, axes, excluded, onfit) {
  const reasons = new Map();
  const add = (index, text) => reasons.set(index, [...(reasons.get(index) ?? []), text]);
  for (const { index, ratio } of outliers) add(index, `left out, its error is ${number(ratio, 3)} times the median`);
  for (const { index, component } of single) add(index, `the only sample with component ${component}`);
  const flagged = new Set(outliers.map(({ index }) => index));
  const boxes = [...reasons.keys()].map((index) => [
    index,
    h("input", { type: "checkbox", checked: flagged.has(index) }),
  ]);
  const failed = h("div");
  const pasted = h("code");
  const ticked = () => boxes.filter(([, box]) => box.checked).map(([index]) => nameOf(axes, mode, index));
  const exclude = () => ({
    ...(excluded ?? {}),
    [mode]: [...new Set([...(excluded?.[mode] ?? []), ...ticked()])],
  });
  const button = h(
    "button",
    {
      type: "button",
      class: "primary",
      onclick: async () => {
        button.disabled = true;
        try {
          await onfit(exclude());
        } catch (error) {
          button.disabled = false;
          replace(failed, problemNote(error));
        }
      },
    },
    "Fit again without them",
  );
  const show = () => {
    pasted.textContent = `exclude=${JSON.stringify(exclude())}`;
    button.disabled = !ticked().length;
  };
  for (const [, box] of boxes) box.addEventListener("change", show);
  show();
  return card(
    "Outlying samples",
    [],
    h(
      "p",
      {},
      "Look at their readings below before you exclude them. The fit without them is a new job. Their scores are then ",
      "computed for the model of the other samples, and both fits are shown side by side.",
    ),
    h(
      "ul",
      { class: "evidence" },
      boxes.map(([index, box]) =>
        h(
          "li",
          {},
          h(
            "label",
            {},
            box,
            ` ${modeName(axes, mode)} ${indexLabel(axes, mode, index)}: `,
            reasons.get(index).join("; "),
          ),
        ),
      ),
    ),
    h("div", { class: "actions" }, button, h("small", {}, "in a program: ", pasted)),
    failed,
  );
}

/** A fit beside the one before: errors, matched components, and the scores of what only one of them has fitted. */
export function beforeAndAfter(found, axes) {
  const table = (label, heads, rows) =>
    h(
      "div",
      { class: "scroll", tabindex: "0", role: "region", "aria-label": label },
      h(
        "table",
        {},
        h(
          "thead",
          {},
          h(
            "tr",
            {},
            heads.map((text) => h("th", { scope: "col" }, text)),
          ),
        ),
        h(
          "tbody",
          {},
          rows.map((row) =>
            h(
              "tr",
              {},
              row.map((text, place) => (place ? h("td", {}, text) : h("th", { scope: "row" }, text))),
            ),
          ),
        ),
      ),
    );
  const shown = (value, digits = 4) => (value === null ? "–" : number(value, digits));
  const whole = (value) => (value === null ? "–" : String(value));
  const without = found.left_out.map(({ mode, index }) => `${modeName(axes, mode)} ${indexLabel(axes, mode, index)}`);
  return card(
    "Before and after",
    [h("small", {}, `${count(without.length, "index", "indices")} in one fit only: ${without.join(", ")}`)],
    facts([
      [
        "Relative error",
        `${shown(found.other_relative_error)} → ${shown(found.relative_error)}`,
        "each without the samples that it excludes",
      ],
      ["Core consistency", `${shown(found.other_core_consistency, 3)} → ${shown(found.core_consistency, 3)}`],
    ]),
    table(
      "Components before and after",
      ["Before", "After", "Congruence", "Weight before", "Weight after"],
      found.components.map((pair) => [
        whole(pair.other),
        whole(pair.component),
        shown(pair.congruence, 3),
        shown(pair.other_weight),
        shown(pair.weight),
      ]),
    ),
    found.left_out.length > 0 &&
      table(
        "Scores of excluded samples",
        ["Excluded", ...found.components.map((pair) => `Component ${whole(pair.other)} → ${whole(pair.component)}`)],
        found.left_out.map(({ mode, index, scores, other_scores: others }) => [
          `${modeName(axes, mode)} ${indexLabel(axes, mode, index)}`,
          ...scores.map((score, place) => `${shown(others[place])} → ${shown(score)}`),
        ]),
      ),
  );
}
