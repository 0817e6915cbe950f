// Whether the server answers. One place knows; the page shows it, and waits.

const FIRST_WAIT = 400;
const LONGEST_WAIT = 5000;

// "change" tells whether the server is away, "woke" that this machine slept: what was on its way may be lost with its
// connection, and nobody tells a page so. Timers stand still in a sleep; the clock on the wall does not.
export const connection = new EventTarget();
const lost = new Set();
const TICK = 2000;
const SLEPT = 15_000;

let ticked = Date.now();
setInterval(() => {
  const gap = Date.now() - ticked;
  ticked += gap;
  if (gap > SLEPT) connection.dispatchEvent(new Event("woke"));
}, TICK);

/** Say of one thing that waits for the server (any object) whether it has lost it. */
export function report(who, isLost) {
  const before = lost.size > 0;
  if (isLost) lost.add(who);
  else lost.delete(who);
  if (before !== lost.size > 0)
    connection.dispatchEvent(new CustomEvent("change", { detail: { away: lost.size > 0 } }));
}

/** Growing waits with a little chance in them, so that not all pages of a lab come back in the same instant. */
export function* waits() {
  for (let wait = FIRST_WAIT; ; wait = Math.min(wait * 1.7, LONGEST_WAIT)) yield wait * (0.8 + 0.4 * Math.random());
}

/** Sleep; shorter when the network comes back, an error of the signal when it is aborted. */
export function pause(milliseconds, signal) {
  return new Promise((resolve, reject) => {
    if (signal?.aborted) return reject(signal.reason);
    const end = (settle) => {
      clearTimeout(timer);
      removeEventListener("online", awake);
      signal?.removeEventListener("abort", left);
      settle();
    };
    const awake = () => end(resolve);
    const left = () => end(() => reject(signal.reason));
    const timer = setTimeout(awake, milliseconds);
    addEventListener("online", awake);
    signal?.addEventListener("abort", left);
  });
}

/** Do something again and again while the page is seen, the first time at once; until the signal ends it. */
export async function every(milliseconds, signal, act) {
  while (!signal.aborted) {
    if (!document.hidden) await act();
    await pause(milliseconds, signal).catch(() => {});
  }
}
