// The colour theme: light, dark or the system's. Set before the first paint, so that nothing flashes.
// A plain script in the head; `window.ncpTheme` is its only name.
(() => {
  const STORED = "ncp-theme";
  const CHOICES = /** @type {const} */ (["system", "light", "dark"]);
  const stored = () => {
    try {
      return localStorage.getItem(STORED) ?? "system";
    } catch {
      return "system"; // storage is switched off
    }
  };
  let choice = CHOICES.find((name) => name === stored()) ?? "system";

  function apply() {
    const root = document.documentElement;
    if (choice === "system") delete root.dataset.theme;
    else root.dataset.theme = choice;
    window.dispatchEvent(new Event("ncp-theme"));
  }

  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", apply);
  apply();
  window.ncpTheme = {
    get choice() {
      return choice;
    },
    next() {
      choice = CHOICES[(CHOICES.indexOf(choice) + 1) % CHOICES.length];
      try {
        localStorage.setItem(STORED, choice);
      } catch {
        // storage is switched off: the choice lasts until the page is closed
      }
      apply();
    },
  };
})();
