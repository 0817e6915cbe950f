// Follows the event stream of a job or a study: every event once and in order, across lost connections and restarts.
//
// Read with fetch, because EventSource gives up at the first gateway error of a proxy, cannot start after a given
// event, and does not notice a connection that died while the laptop was asleep.

import { backoff, connection, reportConnection, sleep } from "./connection.js";
import { address, apiError } from "./request.js";

// The server sends a comment at least every 15 seconds by default; twice that without a byte is a dead connection.
const SILENCE_LIMIT = 40_000;
// A hidden page closes its connection: browsers allow six per server, over all tabs.
const HIDDEN_LIMIT = 20_000;
// If too many streams are open: the interval of polling, and the time until the next attempt to open a stream.
const POLL_PAUSE = 2_000;
const POLLING_LIMIT = 30_000;

/**
 * Call `onevent({id, kind, data})` for every event up to `end`, and `onstate` with "open", "lost" or "asleep".
 *
 * @param {string} path
 * @param {{
 *   after?: string | null,
 *   signal: AbortSignal,
 *   onevent: (event: {id: string, kind: string, data: any}) => void,
 *   onstate?: (state: string) => void,
 * }} options
 */
export async function follow(path, { after = null, signal, onevent, onstate = () => {} }) {
  const subscription = {};
  let lastId = after;
  let delays = backoff();
  let pollingUntil = 0;
  try {
    while (!signal.aborted) {
      await untilVisible(signal, onstate);
      const polling = Date.now() < pollingUntil;
      try {
        const ended = await connect(
          polling ? `${path}?follow=false` : path,
          lastId,
          signal,
          () => {
            reportConnection(subscription, false);
            onstate("open");
            delays = backoff();
          },
          (event) => {
            lastId = event.id;
            onevent(event);
          },
        );
        if (ended) return;
        if (polling) {
          await sleep(POLL_PAUSE, signal).catch(() => {});
          continue;
        }
      } catch (error) {
        if (signal.aborted) return;
        if (error.type === "too-many-streams") {
          pollingUntil = Date.now() + POLLING_LIMIT;
          continue;
        }
        if (error.status && error.status !== 429) throw error;
      }
      if (signal.aborted) return;
      if (!document.hidden) {
        reportConnection(subscription, true);
        onstate("lost");
        await sleep(delays.next().value, signal).catch(() => {});
      }
    }
  } finally {
    reportConnection(subscription, false);
  }
}

async function untilVisible(signal, onstate) {
  if (!document.hidden) return;
  onstate("asleep");
  await /** @type {Promise<void>} */ (
    new Promise((resolve) => {
      const end = () => {
        if (document.hidden && !signal.aborted) return;
        document.removeEventListener("visibilitychange", end);
        signal.removeEventListener("abort", end);
        resolve();
      };
      document.addEventListener("visibilitychange", end);
      signal.addEventListener("abort", end);
    })
  );
}

/** Read one connection. Resolves to whether the stream has ended, as opposed to the connection being cut. */
async function connect(path, lastId, signal, onopen, onevent) {
  const cut = new AbortController();
  const stop = () => cut.abort();
  let silenceTimer = setTimeout(stop, SILENCE_LIMIT);
  let hiddenTimer;
  const watchVisibility = () => {
    clearTimeout(hiddenTimer);
    if (document.hidden) hiddenTimer = setTimeout(stop, HIDDEN_LIMIT);
  };
  signal.addEventListener("abort", stop);
  connection.addEventListener("resumed", stop);
  document.addEventListener("visibilitychange", watchVisibility);
  try {
    const headers = { Accept: "text/event-stream", ...(lastId ? { "Last-Event-ID": lastId } : {}) };
    const response = await fetch(address(path), {
      headers,
      signal: cut.signal,
      cache: "no-store",
      credentials: "same-origin",
    });
    if (response.status === 204) return true;
    if (response.status >= 500) return false;
    if (!response.ok) throw await apiError(response);
    onopen();
    const parse = parser();
    const reader = /** @type {ReadableStream<any>} */ (response.body).pipeThrough(new TextDecoderStream()).getReader();
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return false;
      clearTimeout(silenceTimer);
      silenceTimer = setTimeout(stop, SILENCE_LIMIT);
      for (const event of parse(value)) {
        onevent(event);
        if (event.kind === "end") return true;
      }
    }
  } finally {
    clearTimeout(silenceTimer);
    clearTimeout(hiddenTimer);
    cut.abort();
    signal.removeEventListener("abort", stop);
    connection.removeEventListener("resumed", stop);
    document.removeEventListener("visibilitychange", watchVisibility);
  }
}

/** Return a generator function that takes pieces of text and yields whole events. */
export function parser() {
  let pending = "";
  return function* parse(chunk) {
    pending += chunk;
    for (let end = pending.indexOf("\n\n"); end >= 0; end = pending.indexOf("\n\n")) {
      const fields = {};
      for (const line of pending.slice(0, end).split("\n")) {
        const colon = line.indexOf(":");
        if (colon > 0) fields[line.slice(0, colon)] = line.slice(colon + 1).trimStart();
      }
      pending = pending.slice(end + 2);
      if (fields.id && fields.data) yield { id: fields.id, kind: fields.event, data: JSON.parse(fields.data) };
    }
  };
}
