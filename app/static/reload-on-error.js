// Reloads the page, once the server answers, after a module failed to load: browsers do not fetch it again, so the
// page would stay blank. A plain script in the head.
(() => {
  const WAIT = 1500;
  let waiting = false;

  async function reload() {
    if (waiting) return;
    waiting = true;
    for (let answers = false; !answers; ) {
      await new Promise((resolve) => setTimeout(resolve, WAIT));
      answers = await fetch(document.baseURI.split("#")[0], { method: "HEAD", cache: "no-store" }).then(
        ({ ok }) => ok,
        () => false,
      );
    }
    location.reload();
  }

  addEventListener(
    "error",
    ({ target }) => {
      if (target instanceof HTMLScriptElement && target.type === "module") reload();
    },
    true,
  );
  addEventListener("ncp-missing-module", reload);
})();
