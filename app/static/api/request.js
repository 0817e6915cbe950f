// Requests to the API. Paths are relative to the page, so the server may run below any prefix.

import { backoff, connection, reportConnection, sleep } from "./connection.js";

export const session = new EventTarget();

/** A refusal by the server: an RFC 9457 problem, with its remedy. */
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

/** No answer from the server, or only a gateway error from the proxy in front of it. */
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

/**
 * Fields of a call: `body` is sent as JSON, and `resumed` aborts the call after the machine was asleep.
 *
 * @typedef {{
 *   query?: Record<string, unknown>,
 *   body?: unknown,
 *   headers?: Record<string, string>,
 *   signal?: AbortSignal,
 *   resumed?: AbortSignal,
 * }} Call
 */

/**
 * Send one request, and throw an ApiError or ServerUnavailable unless it succeeds.
 *
 * @param {string} method
 * @param {string} path
 * @param {Call} call
 */
async function request(method, path, { query, body, headers = {}, signal, resumed } = {}) {
  const sent =
    body === undefined
      ? { headers }
      : { headers: { ...headers, "Content-Type": "application/json" }, body: JSON.stringify(body) };
  let response;
  try {
    response = await fetch(address(path, query), {
      method,
      signal: AbortSignal.any([signal, resumed].filter((one) => one !== undefined)),
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

/**
 * Send a request until it is answered: again after growing waits, and at once when the machine wakes up.
 * While the server is unavailable, a banner on the page says so.
 *
 * @param {string} method
 * @param {string} path
 * @param {Call} options
 * @returns {Promise<Response>}
 */
async function requestWithRetry(method, path, options) {
  const caller = {};
  try {
    const waits = backoff();
    for (;;) {
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
        await sleep(waits.next().value, options.signal);
      } finally {
        connection.removeEventListener("resumed", abortAfterSleep);
      }
    }
  } finally {
    reportConnection(caller, false);
  }
}

/** @type {(path: string, options?: Call) => Promise<Response>} */
export const read = (path, options = {}) => requestWithRetry("GET", path, options);
/** @type {(path: string, options?: Call) => Promise<any>} */
export const getJson = async (path, options) => (await read(path, options)).json();

/**
 * Change something on the server. Without an answer it is sent again only if `idempotent`.
 *
 * @param {string} method
 * @param {string} path
 * @param {Call & {idempotent?: boolean}} call
 * @returns {Promise<any>} the JSON of the answer; null without content
 */
export async function send(method, path, { idempotent = false, ...options } = {}) {
  const response = await (idempotent ? requestWithRetry : request)(method, path, options);
  return response.status === 204 ? null : response.json();
}

/** Yield the items of a list, page by page. */
export async function* pages(path, options = {}) {
  let cursor = null;
  do {
    const page = await getJson(path, { ...options, query: { ...options.query, cursor } });
    yield page.items;
    cursor = page.next;
  } while (cursor);
}
