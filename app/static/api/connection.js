// Tracks whether the server answers, so that the page can show it.

const FIRST_DELAY = 400;
const MAX_DELAY = 5000;

// Fires "change" when the server becomes unavailable or available, and "resumed" after this machine was asleep: its
// connections may be lost then without an error. Timers stand still during sleep and the wall clock does not.
export const connection = new EventTarget();
const lost = new Set();
const TICK = 2000;
const SLEEP_GAP = 15_000;

let lastTick = Date.now();
setInterval(() => {
  const gap = Date.now() - lastTick;
  lastTick += gap;
  if (gap > SLEEP_GAP) connection.dispatchEvent(new Event("resumed"));
}, TICK);

/** Report whether the server answers one client of this module (any object). */
export function reportConnection(client, isLost) {
  const before = lost.size > 0;
  if (isLost) lost.add(client);
  else lost.delete(client);
  if (before !== lost.size > 0)
    connection.dispatchEvent(new CustomEvent("change", { detail: { unavailable: lost.size > 0 } }));
}

/** Yield growing waits in milliseconds, randomised so that the pages of a lab do not all reconnect at once. */
export function* backoff() {
  for (let wait = FIRST_DELAY; ; wait = Math.min(wait * 1.7, MAX_DELAY)) yield wait * (0.8 + 0.4 * Math.random());
}

/** Sleep until the time is over or the network is back; rejects when the signal is aborted. */
export function sleep(milliseconds, signal) {
  return new Promise((resolve, reject) => {
    if (signal?.aborted) return reject(signal.reason);
    const end = (settle) => {
      clearTimeout(timer);
      removeEventListener("online", finish);
      signal?.removeEventListener("abort", aborted);
      settle();
    };
    const finish = () => end(resolve);
    const aborted = () => end(() => reject(signal.reason));
    const timer = setTimeout(finish, milliseconds);
    addEventListener("online", finish);
    signal?.addEventListener("abort", aborted);
  });
}

/** Call `act` now and then repeatedly while the page is visible, until the signal is aborted. */
export async function poll(milliseconds, signal, act) {
  while (!signal.aborted) {
    if (!document.hidden) await act();
    await sleep(milliseconds, signal).catch(() => {});
  }
}
