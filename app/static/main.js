// Starts the page: theme, session, navigation, and the first screen.

import { connection } from "./api/connection.js";
import { session } from "./api/request.js";
import { announce } from "./components/announce.js";
import { go, preload, route } from "./router.js";
import { loadCaller, me, signOut } from "./api/session.js";

/** @returns {any} the element with this data attribute */
const byDataName = (name) => document.querySelector(`[data-${name}]`);
const THEMES = {
  system: ["◐", "Colours: as the system"],
  light: ["☀", "Colours: light"],
  dark: ["☾", "Colours: dark"],
};

function showTheme() {
  const [sign, words] = THEMES[window.ncpTheme.choice];
  const button = byDataName("theme-switch");
  button.textContent = sign;
  button.setAttribute("aria-label", words);
  button.title = words;
}

function showCaller() {
  const caller = me();
  byDataName("owner").textContent = caller.required ? (caller.owner ?? "") : "";
  byDataName("admin").hidden = !caller.admin;
  byDataName("sign-out").hidden = !caller.required || !caller.owner;
}

function showConnection(event) {
  const { unavailable } = event.detail;
  const banner = byDataName("unavailable");
  banner.textContent = unavailable ? "The server does not answer. Trying again; nothing is lost." : "";
  banner.hidden = !unavailable;
  if (!unavailable) announce("The server answers again.");
}

async function showProblem(error) {
  const { problemNote } = await import("./components/problem-note.js");
  byDataName("problem").replaceChildren(problemNote(error));
}

function redirectToSignIn() {
  if (!location.hash.startsWith("#/sign-in")) go("/sign-in", { next: location.hash.slice(1) });
}

byDataName("theme-switch").addEventListener("click", () => {
  window.ncpTheme.next();
  showTheme();
  announce(THEMES[window.ncpTheme.choice][1]);
});
byDataName("sign-out").addEventListener("click", async () => {
  await signOut();
  go("/sign-in");
});
byDataName("skip").addEventListener("click", (event) => {
  event.preventDefault();
  document.getElementById("main")?.focus();
});
connection.addEventListener("change", showConnection);
session.addEventListener("changed", showCaller);
session.addEventListener("ended", redirectToSignIn);
// Requests aborted by leaving a screen are no errors; refusals that no screen handled are shown above it.
addEventListener("unhandledrejection", (event) => {
  if (event.reason?.name === "AbortError") event.preventDefault();
  else if (event.reason?.remedy !== undefined || event.reason?.status) {
    event.preventDefault();
    if (event.reason.status !== 401) showProblem(event.reason);
  }
});
addEventListener("hashchange", () => {
  byDataName("problem").replaceChildren();
  route();
});
showTheme();
preload();
if ((await loadCaller()).owner) route();
else if (location.hash.startsWith("#/sign-in")) route();
else redirectToSignIn();
