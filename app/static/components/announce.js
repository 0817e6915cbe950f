// Announcements for screen readers.

export function announce(text) {
  const region = /** @type {HTMLElement} */ (document.querySelector("[data-announce]"));
  region.textContent = "";
  // Set after a pause, so that repeated words are read again.
  setTimeout(() => {
    region.textContent = text;
  }, 50);
}
