// Calls of the API, relative to the page: it works below any path. Refusals are errors with the server's words.

import { connection, pause, report, waits } from "./connection.js";

export const session = new EventTarget();

/** What the server refused, and how to do better. */
export class Refused extends Error {
  constructor(status, problem) {
    super(problem.detail ?? `The server answered ${status}.`);
    this.status = status;
    this.title = problem.title;
    this.type = problem.type?.split(":").at(-1);
    this.remedy = problem.remedy;
    this.errors = problem.errors;
    this.requestId = problem.request_id;
  }
}

/** The server did not answer at all, or a proxy answered in its place. */
export class Away extends Error {
  constructor() {
    super("The server does not answer.");
    this.remedy = "Try again in a moment.";
  }
}

const BEHIND_PROXY = [502, 503, 504];

export function address(path, query = {}) {
  const url = new URL(path, document.baseURI.split("#")[0]);
  for (const [name, value] of Object.entries(query))
    if (value !== null && value !== undefined && value !== "") url.searchParams.set(name, value);
  return url.href;
}

async function once(method, path, { query, body, headers = {}, signal, woke } = {}) {
  const sent =
    body === undefined
      ? { headers }
      : { headers: { ...headers, "Content-Type": "application/json" }, body: JSON.stringify(body) };
  let answer;
  try {
    answer = await fetch(address(path, query), {
      method,
      signal: AbortSignal.any([signal, woke].filter(Boolean)),
      credentials: "same-origin",
      ...sent,
    });
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new Away();
  }
  if (answer.ok) return answer;
  if (BEHIND_PROXY.includes(answer.status)) throw new Away();
  throw await refusal(answer);
}

export async function refusal(answer) {
  const problem = await answer.json().catch(() => ({}));
  if (answer.status === 401) session.dispatchEvent(new Event("ended"));
  return new Refused(answer.status, problem);
}

/** Ask until there is an answer, again after a sleep. While the server is away it waits, and the page says so. */
async function patiently(method, path, options) {
  const who = {};
  try {
    for (const wait of waits()) {
      const slept = new AbortController();
      const wake = () => slept.abort();
      connection.addEventListener("woke", wake);
      try {
        return await once(method, path, { ...options, woke: slept.signal });
      } catch (error) {
        if (error instanceof Refused && error.type === "too-fast") {
          await pause(1500, options.signal);
          continue;
        }
        if (!(error instanceof Away)) throw error;
        report(who, true);
        await pause(wait, options.signal);
      } finally {
        connection.removeEventListener("woke", wake);
      }
    }
  } finally {
    report(who, false);
  }
}

export const read = (path, options = {}) => patiently("GET", path, options);
export const getJson = async (path, options) => (await read(path, options)).json();

/** Change something: sent once, except where the caller says that twice does no harm. */
export async function send(method, path, { twice = false, ...options } = {}) {
  const answer = await (twice ? patiently : once)(method, path, options);
  return answer.status === 204 ? null : answer.json();
}

/** All pages of a list, one at a time. */
export async function* pages(path, options = {}) {
  let cursor = null;
  do {
    const page = await getJson(path, { ...options, query: { ...options.query, cursor } });
    yield page.items;
    cursor = page.next;
  } while (cursor);
}
