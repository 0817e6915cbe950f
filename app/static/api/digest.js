// The SHA-256 of a file, computed by a worker in pieces, so that files may exceed memory and the page stays responsive.
// The browser's own function needs the whole file at once, and a page served over TLS or from this machine.

/** Return the digest in hexadecimal. `onprogress` is called with the fraction read. */
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
