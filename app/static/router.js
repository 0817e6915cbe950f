// Shows the screen of an address such as `#/jobs/ID/components?…`. Leaving a screen aborts its requests and timers.

import { h, replace } from "./components/element.js";
import { problemNote } from "./components/problem-note.js";

// Pattern, entry of the navigation, and module, which is loaded when it is needed.
/** @type {[string, string | null, () => Promise<{show: (screen: any) => unknown}>][]} */
const SCREENS = [
  ["/", "data", () => import("./screens/data.js")],
  ["/tensors/:id", "data", () => import("./screens/tensor.js")],
  ["/new", "new", () => import("./screens/new-run.js")],
  ["/jobs", "jobs", () => import("./screens/jobs.js")],
  ["/jobs/:id", "jobs", () => import("./screens/job.js")],
  ["/jobs/:id/components", "jobs", () => import("./screens/job-components.js")],
  ["/compare", "jobs", () => import("./screens/compare.js")],
  ["/studies", "studies", () => import("./screens/studies.js")],
  ["/studies/:id", "studies", () => import("./screens/study.js")],
  ["/tensors", "tensors", () => import("./screens/tensors.js")],
  ["/operator", "operator", () => import("./screens/admin.js")],
  ["/sign-in", null, () => import("./screens/sign-in.js")],
];

let screenAbort = new AbortController();
let isFirst = true;

export const link = (path, query = {}) => {
  const given = Object.entries(query).filter(([, value]) => value !== null && value !== undefined && value !== "");
  return `#${path}${given.length ? `?${new URLSearchParams(given)}` : ""}`;
};
export const go = (path, query) => {
  location.hash = link(path, query);
};

/** Change the query in the address without reloading the screen. */
export const keepQuery = (path, query) => history.replaceState(null, "", link(path, query));

function findScreen(path) {
  for (const [pattern, entry, load] of SCREENS) {
    const names = [];
    const expression = pattern.replace(/:(\w+)/g, (_, name) => {
      names.push(name);
      return "([^/]+)";
    });
    const found = path.match(new RegExp(`^${expression}/?$`));
    if (found)
      return {
        entry,
        load,
        parameters: Object.fromEntries(names.map((name, place) => [name, decodeURIComponent(found[place + 1])])),
      };
  }
  return null;
}

const currentAddress = () => location.hash.replace(/^#/, "").split("?");

/** Start to load the module of the current screen. */
export const preload = () =>
  findScreen(currentAddress()[0] || "/")
    ?.load()
    .catch(() => {}); // `route` reports the error

/** Show the screen of the current address. */
export async function route() {
  if (location.hash === "#main") return;
  screenAbort.abort(new DOMException("left", "AbortError"));
  screenAbort = new AbortController();
  const { signal } = screenAbort;
  const [path, query] = currentAddress();
  const screen = findScreen(path || "/");
  const main = document.getElementById("main");
  for (const entry of /** @type {NodeListOf<HTMLElement>} */ (document.querySelectorAll("[data-screen]")))
    if (screen && entry.dataset.screen === screen.entry) entry.setAttribute("aria-current", "page");
    else entry.removeAttribute("aria-current");
  if (!screen)
    return heading(
      replace(
        main,
        h("h1", { tabindex: "-1" }, "There is no such page"),
        h("p", {}, h("a", { href: "#/" }, "To the data")),
      ),
    );
  try {
    const { show } = await screen.load();
    if (signal.aborted) return;
    await show({ main, parameters: screen.parameters, query: Object.fromEntries(new URLSearchParams(query)), signal });
    if (!signal.aborted) heading(main);
  } catch (error) {
    if (signal.aborted) return;
    // Browsers word it differently: a module could not be fetched.
    if (error instanceof TypeError && /import|module/i.test(error.message))
      return void dispatchEvent(new Event("ncp-missing-module"));
    replace(
      main,
      h("h1", { tabindex: "-1" }, error.status === 404 ? "Not here" : "That did not work"),
      problemNote(error),
    );
    heading(main);
    if (!error.status) console.error(error);
  }
}

/** Set the title of the window, and move the focus so that screen readers notice the new screen. */
function heading(main) {
  const title = main.querySelector("h1");
  if (!title) return;
  document.title = `${title.textContent} · sparse-ncp`;
  title.tabIndex = -1;
  // After loading the page, the focus stays at the top, where the skip link is.
  if (!isFirst && (!main.contains(document.activeElement) || document.activeElement === main))
    title.focus({ preventScroll: true });
  isFirst = false;
}
