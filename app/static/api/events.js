// The event stream of a job or a study: every event once and in order, over cut connections, sleep and restarts.
//
// Read with fetch and not with EventSource: that one gives up for good at the first answer of a proxy whose server is
// away, cannot begin after a given event, and does not notice a connection that died while the laptop slept.

import { connection, pause, report, waits } from "./connection.js";
import { address, refusal } from "./request.js";

// The server sends a comment at least every 15 seconds by default; twice that without a byte is a dead connection.
const SILENCE = 40_000;
// A page that nobody sees gives its connection back: browsers allow a server six, over all tabs.
const HIDDEN = 20_000;

/** Calls `onevent({id, kind, data})` until the `end` event; `state` hears "open", "lost" and "asleep". */
export async function follow(path, { after = null, signal, onevent, onstate = () => {} }) {
  const who = {};
  let last = after;
  let delays = waits();
  try {
    while (!signal.aborted) {
      await seen(signal, onstate);
      try {
        const ended = await connect(
          path,
          last,
          signal,
          () => {
            report(who, false);
            onstate("open");
            delays = waits();
          },
          (event) => {
            last = event.id;
            onevent(event);
          },
        );
        if (ended) return;
      } catch (error) {
        if (signal.aborted) return;
        if (error.status && error.status !== 429) throw error;
      }
      if (signal.aborted) return;
      if (!document.hidden) {
        report(who, true);
        onstate("lost");
        await pause(delays.next().value, signal).catch(() => {});
      }
    }
  } finally {
    report(who, false);
  }
}

async function seen(signal, onstate) {
  if (!document.hidden) return;
  onstate("asleep");
  await new Promise((resolve) => {
    const end = () => {
      if (document.hidden && !signal.aborted) return;
      document.removeEventListener("visibilitychange", end);
      signal.removeEventListener("abort", end);
      resolve();
    };
    document.addEventListener("visibilitychange", end);
    signal.addEventListener("abort", end);
  });
}

/** One connection. True if the stream is over for good, false if it was cut. */
async function connect(path, last, signal, onopen, onevent) {
  const cut = new AbortController();
  const stop = () => cut.abort();
  let quiet = setTimeout(stop, SILENCE);
  let away;
  const visible = () => {
    clearTimeout(away);
    if (document.hidden) away = setTimeout(stop, HIDDEN);
  };
  signal.addEventListener("abort", stop);
  connection.addEventListener("woke", stop);
  document.addEventListener("visibilitychange", visible);
  try {
    const headers = { Accept: "text/event-stream", ...(last ? { "Last-Event-ID": last } : {}) };
    const answer = await fetch(address(path), {
      headers,
      signal: cut.signal,
      cache: "no-store",
      credentials: "same-origin",
    });
    if (answer.status === 204) return true;
    if (answer.status >= 500) return false;
    if (!answer.ok) throw await refusal(answer);
    onopen();
    const parse = parser();
    const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return false;
      clearTimeout(quiet);
      quiet = setTimeout(stop, SILENCE);
      for (const event of parse(value)) {
        onevent(event);
        if (event.kind === "end") return true;
      }
    }
  } finally {
    clearTimeout(quiet);
    clearTimeout(away);
    cut.abort();
    signal.removeEventListener("abort", stop);
    connection.removeEventListener("woke", stop);
    document.removeEventListener("visibilitychange", visible);
  }
}

/** Pieces of text in, whole events out. */
export function parser() {
  let rest = "";
  return function* parse(piece) {
    rest += piece;
    for (let end = rest.indexOf("\n\n"); end >= 0; end = rest.indexOf("\n\n")) {
      const fields = {};
      for (const line of rest.slice(0, end).split("\n")) {
        const colon = line.indexOf(":");
        if (colon > 0) fields[line.slice(0, colon)] = line.slice(colon + 1).trimStart();
      }
      rest = rest.slice(end + 2);
      if (fields.id && fields.data) yield { id: fields.id, kind: fields.event, data: JSON.parse(fields.data) };
    }
  };
}
