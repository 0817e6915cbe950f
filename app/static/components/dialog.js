// Dialogs to confirm and to rename. The browser's own element keeps the focus inside.

import { h } from "./element.js";
import { problemNote } from "./problem-note.js";

/** Show a dialog with the content `body(close)`. Resolves to the argument of `close`, or null if it was dismissed. */
export function show(title, body, { large = false } = {}) {
  return new Promise((resolve) => {
    let answer = null;
    const close = (value) => {
      answer = value;
      dialog.close();
    };
    const dialog = h("dialog", { class: large ? "large" : "", "aria-label": title });
    dialog.append(h("div", { class: "stack" }, h("h2", {}, title), body(close)));
    dialog.addEventListener("close", () => {
      dialog.remove();
      resolve(answer);
    });
    document.body.append(dialog);
    dialog.showModal();
  });
}

/** Ask for confirmation, then call `act`; errors are shown in the dialog. Resolves to whether it succeeded. */
export function confirm(title, text, verb, act) {
  return ask(title, (form) => form.append(h("p", {}, text)), verb, act, "danger");
}

/** Ask for a new name. Resolves to whether it was changed. */
export function rename(kind, present, act) {
  const input = h("input", { value: present ?? "", maxlength: 200, "aria-label": "Name", autofocus: true });
  return ask(
    `Rename this ${kind}`,
    (form) => form.append(input),
    "Rename",
    () => act(input.value.trim() || null),
    "primary",
  );
}

function ask(title, fill, verb, act, kind) {
  return show(title, (close) => {
    const place = h("div");
    const yes = h("button", { type: "submit", class: kind }, verb);
    const form = h("form", { method: "dialog" });
    fill(form);
    form.append(
      place,
      h(
        "div",
        { class: "actions" },
        h("button", { type: "button", onclick: () => close(false) }, "Keep as it is"),
        yes,
      ),
    );
    form.addEventListener("submit", async (event) => {
      event.preventDefault();
      yes.disabled = true;
      try {
        await act();
        close(true);
      } catch (error) {
        place.replaceChildren(problemNote(error));
        yes.disabled = false;
      }
    });
    return form;
  });
}
