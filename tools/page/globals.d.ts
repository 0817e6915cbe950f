// Names that the page's plain scripts define for its modules.

interface Window {
  ncpTheme: { readonly choice: "system" | "light" | "dark"; next(): void };
  Plotly?: any;
}
