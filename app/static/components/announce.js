// Words for screen readers when something changed that they cannot see.

export function announce(text) {
  const region = /** @type {HTMLElement} */ (document.querySelector("[data-announce]"));
  region.textContent = "";
  // A new text node after a pause: the same words twice are read twice.
  setTimeout(() => {
    region.textContent = text;
  }, 50);
}
