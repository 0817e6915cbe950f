// plotly, loaded with the first chart and styled in the colours of the page.

let loading = null;

/** Load plotly, once. Await this before timing a drawing. */
export function load() {
  loading ??= new Promise((resolve, reject) => {
    const script = document.createElement("script");
    const restore = withoutMapStyles();
    script.src = new URL("../vendor/plotly.min.js", import.meta.url).href;
    script.onload = () => {
      restore();
      resolve(window.Plotly);
    };
    script.onerror = () => {
      restore();
      loading = null;
      script.remove();
      reject(new Error("The charts cannot be loaded."));
    };
    document.head.append(script);
  });
  return loading;
}

/**
 * plotly's script writes the styles of its maps into a <style>, which the page's policy refuses, unless an element with
 * the digest of these styles as its id is there. There are no maps here: while the script loads, it finds one.
 */
function withoutMapStyles() {
  document.getElementById = (id) =>
    Document.prototype.getElementById.call(document, id) ?? (/^[0-9a-f]{64}$/.test(id) ? document.head : null);
  return () => {
    Reflect.deleteProperty(document, "getElementById"); // the prototype's is found again
  };
}

// Okabe and Ito's colours, which colour-blind readers can distinguish, adjusted for the two themes.
const LIGHT = ["#0072b2", "#c75100", "#00815c", "#a8427e", "#7a6a00", "#3a86b7", "#6a4fb3", "#8a4b2a"];
const DARK = ["#56b4e9", "#ff9d4d", "#2fd3a0", "#f09bc8", "#f0e442", "#9ad0f5", "#b9a5f5", "#dba07f"];

// A probe resolves the colours: custom properties are returned as light-dark(…), which plotly cannot parse.
const probe = document.createElement("span");
function color(name) {
  if (!probe.isConnected) {
    probe.hidden = true;
    document.body.append(probe);
  }
  probe.style.setProperty("color", `var(--${name})`);
  return getComputedStyle(probe).color;
}

export function isDark() {
  const { theme } = document.documentElement.dataset;
  return theme ? theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
}
export const palette = () => (isDark() ? DARK : LIGHT);
export const colors = () => ({
  ink: color("ink"),
  soft: color("soft"),
  line: color("line"),
  card: color("card"),
  accent: color("accent"),
});

// From the colour of the card to a strong one, so that zero blends with the background.
/** @type {() => [number, string][]} */
export const sequential = () =>
  isDark()
    ? [
        [0, "#1c2024"],
        [0.25, "#1d4a5c"],
        [0.5, "#1b8a8a"],
        [0.75, "#7cc77a"],
        [1, "#fdf3a0"],
      ]
    : [
        [0, "#ffffff"],
        [0.25, "#c9e3d9"],
        [0.5, "#6db7b7"],
        [0.75, "#2c7fa0"],
        [1, "#182c61"],
      ];
export const diverging = () =>
  isDark()
    ? [
        [0, "#7fb8ff"],
        [0.5, "#1c2024"],
        [1, "#ff9d6b"],
      ]
    : [
        [0, "#1f5fa8"],
        [0.5, "#ffffff"],
        [1, "#b8431a"],
      ];

function themed(layout) {
  const { ink, soft, line, accent, card } = colors();
  const axis = { gridcolor: line, zerolinecolor: line, linecolor: soft, tickcolor: soft, automargin: true };
  const axes = Object.fromEntries(
    Object.entries(layout)
      .filter(([name]) => /^[xy]axis/.test(name))
      .map(([name, given]) => [name, { ...axis, ...given }]),
  );
  return {
    margin: { l: 56, r: 12, t: 12, b: 44 },
    showlegend: false,
    hovermode: "closest",
    dragmode: "zoom",
    font: { family: "system-ui, sans-serif", size: 12.5, color: ink },
    modebar: { bgcolor: "rgba(0,0,0,0)", color: soft, activecolor: accent },
    hoverlabel: { bgcolor: card, bordercolor: line, font: { color: ink } },
    paper_bgcolor: "rgba(0,0,0,0)",
    plot_bgcolor: "rgba(0,0,0,0)",
    xaxis: axis,
    yaxis: axis,
    ...layout,
    ...axes,
  };
}

const CONFIG = {
  displaylogo: false,
  responsive: true,
  modeBarButtons: [["toImage", "zoom2d", "pan2d", "zoomIn2d", "zoomOut2d", "resetScale2d"]],
  displayModeBar: matchMedia("(hover: hover)").matches ? "hover" : false,
};

/**
 * A chart in an element. `draw(figure)` draws `figure()` → {traces, layout}, and again when the theme changes.
 * Screen readers read `label`; the numbers are in a table or in the facts beside the chart.
 */
export class Chart {
  /** @type {(() => {traces: object[], layout: object}) | null} */
  #figure = null;
  /** @type {(() => void) | undefined} */
  onfirst = undefined;
  #drawing = Promise.resolve();
  #signal;

  /**
   * @param {any} element which plotly gives `data` and `on`
   * @param {string} label
   * @param {AbortSignal} signal
   */
  constructor(element, label, signal) {
    this.element = element;
    element.setAttribute("role", "figure"); // not "img", because it contains buttons
    element.setAttribute("aria-label", label);
    this.#signal = signal;
    addEventListener("ncp-theme", () => this.#figure && this.draw(this.#figure), { signal });
    signal.addEventListener("abort", () => window.Plotly?.purge(element));
  }

  draw(figure) {
    this.#figure = figure;
    this.#drawing = this.#drawing
      .then(() => this.#react())
      .catch((error) => {
        if (!this.#signal.aborted) throw error;
      });
    return this.#drawing;
  }

  async #react() {
    const Plotly = await load();
    if (this.#signal.aborted || !this.#figure || !this.element.isConnected) return;
    const { traces, layout } = this.#figure();
    const first = !this.element.data;
    await Plotly.react(this.element, traces, themed(layout), CONFIG);
    if (first) this.onfirst?.();
  }

  on(event, act) {
    const attach = () => this.element.on(event, act);
    if (this.element.on) attach();
    else this.onfirst = attach;
  }
}
