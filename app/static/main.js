// The page starts here: theme, session, navigation, and the first screen.

import { connection } from "./api/connection.js";
import { session } from "./api/request.js";
import { announce } from "./components/announce.js";
import { go, preload, route } from "./router.js";
import { me, signOut, whoAmI } from "./api/session.js";

const one = (name) => document.querySelector(`[data-${name}]`);
const THEMES = {
  system: ["◐", "Colours: as the system"],
  light: ["☀", "Colours: light"],
  dark: ["☾", "Colours: dark"],
};

function showTheme() {
  const [sign, words] = THEMES[window.ncpTheme.choice];
  const button = one("theme-switch");
  button.textContent = sign;
  button.setAttribute("aria-label", words);
  button.title = words;
}

function showCaller() {
  const caller = me();
  one("owner").textContent = caller.required ? (caller.owner ?? "") : "";
  one("admin").hidden = !caller.admin;
  one("sign-out").hidden = !caller.required || !caller.owner;
}

function showAway({ detail: { away } }) {
  const banner = one("away");
  banner.textContent = away ? "The server does not answer. Trying again; nothing is lost." : "";
  banner.hidden = !away;
  if (!away) announce("The server answers again.");
}

async function tellProblem(error) {
  const { problemNote } = await import("./components/problem-note.js");
  one("problem").replaceChildren(problemNote(error));
}

function askForKey() {
  if (!location.hash.startsWith("#/sign-in")) go("/sign-in", { next: location.hash.slice(1) });
}

one("theme-switch").addEventListener("click", () => {
  window.ncpTheme.next();
  showTheme();
  announce(THEMES[window.ncpTheme.choice][1]);
});
one("sign-out").addEventListener("click", async () => {
  await signOut();
  go("/sign-in");
});
one("skip").addEventListener("click", (event) => {
  event.preventDefault();
  document.getElementById("main").focus();
});
connection.addEventListener("change", showAway);
session.addEventListener("changed", showCaller);
session.addEventListener("ended", askForKey);
// What a screen began and left is no error; what the server refused meanwhile is told, whoever asked.
addEventListener("unhandledrejection", (event) => {
  if (event.reason?.name === "AbortError") event.preventDefault();
  else if (event.reason?.remedy !== undefined || event.reason?.status) {
    event.preventDefault();
    if (event.reason.status !== 401) tellProblem(event.reason);
  }
});
addEventListener("hashchange", () => {
  one("problem").replaceChildren();
  route();
});
showTheme();
preload();
if ((await whoAmI()).owner) route();
else if (location.hash.startsWith("#/sign-in")) route();
else askForKey();
