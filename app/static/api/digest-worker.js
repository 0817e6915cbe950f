// Reads a file in pieces and answers with its SHA-256.

import { Sha256 } from "./sha256.js";

const PIECE = 4 << 20;

self.onmessage = async ({ data: file }) => {
  try {
    const hash = new Sha256();
    for (let start = 0; start < file.size; start += PIECE) {
      hash.update(new Uint8Array(await file.slice(start, start + PIECE).arrayBuffer()));
      self.postMessage({ share: Math.min(1, (start + PIECE) / file.size) });
    }
    self.postMessage({ hex: hash.hex() });
  } catch (error) {
    self.postMessage({ error: `The file cannot be read: ${error.message}` });
  }
};
