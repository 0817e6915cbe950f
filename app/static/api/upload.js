// Uploads a tensor, unless the server already has a file with the same digest.

import { digest } from "./digest.js";
import { ApiError, ServerUnavailable, address, getJson, session } from "./request.js";

const NPY_SIGNATURE = [0x93, 0x4e, 0x55, 0x4d, 0x50, 0x59];

/**
 * Upload a file unless the server has it already. Resolves to `{tensor, known}`.
 * `onprogress(phase, share)` is called with the phase ("reading", "sending" or "checking") and the fraction done.
 */
export async function upload(file, { signal, onprogress }) {
  await checkSignature(file);
  const sha256 = await digest(file, signal, (share) => onprogress("reading", share));
  const known = await getJson("v1/tensors", { query: { sha256, limit: 1 }, signal });
  if (known.items.length) return { tensor: known.items[0], known: true };
  return { tensor: await send(file, sha256, signal, onprogress), known: false };
}

async function checkSignature(file) {
  const head = new Uint8Array(await file.slice(0, NPY_SIGNATURE.length).arrayBuffer());
  if (NPY_SIGNATURE.every((byte, place) => head[place] === byte)) return;
  const remedy =
    'Save the tensor with numpy.save("tensor.npy", array); the clients for MATLAB and R upload arrays directly.';
  throw Object.assign(new Error(`${file.name} is not a .npy file.`), { remedy });
}

// XMLHttpRequest, because fetch does not report upload progress.
function send(file, sha256, signal, onprogress) {
  return new Promise((resolve, reject) => {
    const request = new XMLHttpRequest();
    request.open("POST", address("v1/tensors", { name: file.name.replace(/\.npy$/i, "").slice(0, 200) }));
    request.setRequestHeader("Content-Type", "application/octet-stream");
    request.setRequestHeader("Repr-Digest", `sha-256=:${base64(sha256)}:`);
    request.responseType = "json";
    request.upload.onprogress = ({ loaded, total }) =>
      onprogress(loaded < total ? "sending" : "checking", loaded / total);
    request.onerror = () => reject(new ServerUnavailable());
    request.onabort = () => reject(signal.reason);
    request.onload = () => {
      if (request.status === 201) return resolve(request.response);
      if (request.status === 401) session.dispatchEvent(new Event("ended"));
      reject(new ApiError(request.status, request.response ?? {}));
    };
    signal.addEventListener("abort", () => request.abort());
    request.send(file);
  });
}

const base64 = (hex) => btoa(String.fromCharCode(...hex.match(/../g).map((pair) => parseInt(pair, 16))));
