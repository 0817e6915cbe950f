// The sign-in screen: a key is exchanged for a session, and not kept.

import { field, h, replace } from "../components/element.js";
import { problemNote } from "../components/problem-note.js";
import { go } from "../router.js";
import { me, signIn } from "../api/session.js";

export async function show({ main, query }) {
  const input = h("input", { type: "password", autocomplete: "off", required: true, spellcheck: "false", name: "key" });
  const place = h("div");
  const button = h("button", { type: "submit", class: "primary" }, "Sign in");
  const form = h(
    "form",
    { class: "card", style: { "max-width": "30rem" } },
    field("Key", input, {
      advice: "Ask the operator of this server (ncp keys create). It is sent once and not stored by this page.",
    }),
    place,
    h("div", { class: "actions" }, button),
  );
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const key = input.value.trim();
    button.disabled = true;
    try {
      await signIn(key);
      go(query.next?.startsWith("/") && !query.next.startsWith("/sign-in") ? query.next : "/");
    } catch (error) {
      replace(place, problemNote(error));
    } finally {
      input.value = "";
      button.disabled = false;
    }
  });
  replace(
    main,
    h("h1", {}, "Sign in"),
    form,
    me().owner && h("p", {}, `You are ${me().owner}. `, h("a", { href: "#/" }, "To the data")),
  );
  input.focus();
}
