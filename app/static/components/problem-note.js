// An error message: what is wrong, where, and what to do, in the server's words.

import { h } from "./element.js";

export function problemNote(error) {
  const errors = (error.errors ?? []).map((one) =>
    h("li", {}, h("code", {}, one.field), `: ${one.problem}`, one.remedy && ` – ${one.remedy}`),
  );
  return h(
    "div",
    { class: "note problem", role: "alert" },
    h("p", {}, h("strong", {}, error.title ?? "That did not work."), " ", error.message),
    errors.length ? h("ul", {}, errors) : error.remedy && h("p", {}, error.remedy),
    error.requestId && h("small", {}, `Request ${error.requestId}`),
  );
}
