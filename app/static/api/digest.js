// The SHA-256 of a file, in a worker and piece by piece: files may be larger than memory, and the page stays alive.
// The browser's own function takes a whole file at once, and only where the page came over TLS or from this machine.

/** In hexadecimal. `onprogress` hears the share that was read. */
export function digest(file, signal, onprogress) {
  return new Promise((resolve, reject) => {
    const worker = new Worker(new URL("digest-worker.js", import.meta.url), { type: "module" });
    const end = (settle, value) => {
      worker.terminate();
      settle(value);
    };
    signal.addEventListener("abort", () => end(reject, signal.reason));
    worker.onmessage = ({ data }) =>
      data.hex ? end(resolve, data.hex) : data.error ? end(reject, new Error(data.error)) : onprogress(data.share);
    worker.onerror = (event) => end(reject, new Error(event.message ?? "The file cannot be read."));
    worker.postMessage(file);
  });
}
