// Calls of the API, relative to the page: it works below any path. Refusals are errors with the server's words.

import { connection, sleep, reportConnection, backoff } from "./connection.js";

export const session = new EventTarget();

/** What the server refused, and how to do better. */
export class ApiError extends Error {
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
export class ServerUnavailable extends Error {
  constructor() {
    super("The server does not answer.");
    this.remedy = "Try again in a moment.";
  }
}

const GATEWAY_ERRORS = [502, 503, 504];

export function address(path, query = {}) {
  const url = new URL(path, document.baseURI.split("#")[0]);
  for (const [name, value] of Object.entries(query))
    if (value !== null && value !== undefined && value !== "") url.searchParams.set(name, value);
  return url.href;
}

async function request(method, path, { query, body, headers = {}, signal, resumed } = {}) {
  const sent =
    body === undefined
      ? { headers }
      : { headers: { ...headers, "Content-Type": "application/json" }, body: JSON.stringify(body) };
  let response;
  try {
    response = await fetch(address(path, query), {
      method,
      signal: AbortSignal.any([signal, resumed].filter(Boolean)),
      credentials: "same-origin",
      ...sent,
    });
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new ServerUnavailable();
  }
  if (response.ok) return response;
  if (GATEWAY_ERRORS.includes(response.status)) throw new ServerUnavailable();
  throw await apiError(response);
}

export async function apiError(response) {
  const problem = await response.json().catch(() => ({}));
  if (response.status === 401) session.dispatchEvent(new Event("ended"));
  return new ApiError(response.status, problem);
}

/** Ask until there is an answer, again after a sleep. While the server is away it waits, and the page says so. */
async function requestWithRetry(method, path, options) {
  const caller = {};
  try {
    for (const wait of backoff()) {
      const sleeping = new AbortController();
      const abortAfterSleep = () => sleeping.abort();
      connection.addEventListener("resumed", abortAfterSleep);
      try {
        return await request(method, path, { ...options, resumed: sleeping.signal });
      } catch (error) {
        if (error instanceof ApiError && error.type === "too-fast") {
          await sleep(1500, options.signal);
          continue;
        }
        if (!(error instanceof ServerUnavailable)) throw error;
        reportConnection(caller, true);
        await sleep(wait, options.signal);
      } finally {
        connection.removeEventListener("resumed", abortAfterSleep);
      }
    }
  } finally {
    reportConnection(caller, false);
  }
}

export const read = (path, options = {}) => requestWithRetry("GET", path, options);
export const getJson = async (path, options) => (await read(path, options)).json();

/** Change something: sent once, except where the caller says that twice does no harm. */
export async function send(method, path, { idempotent = false, ...options } = {}) {
  const response = await (idempotent ? requestWithRetry : request)(method, path, options);
  return response.status === 204 ? null : response.json();
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
