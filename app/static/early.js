// Runs before the page is drawn: applies the theme the reader chose, and keeps it when Gradio sets its own.
(() => {
  const KEY = "speculoos-theme";
  const system = window.matchMedia("(prefers-color-scheme: dark)");
  const stored = () => {
    try { return localStorage.getItem(KEY) || "system"; } catch { return "system"; }
  };
  const asked = new URLSearchParams(location.search).get("__theme");
  let choice = asked === "dark" || asked === "light" ? asked : stored();
  const dark = () => choice === "dark" || (choice !== "light" && system.matches);
  const apply = () => {
    for (const node of [document.documentElement, document.body]) {
      if (node && node.classList.contains("dark") !== dark()) node.classList.toggle("dark", dark());
    }
  };
  apply();
  system.addEventListener("change", apply);
  document.addEventListener("DOMContentLoaded", () => {
    apply();
    new MutationObserver(apply).observe(document.body, { attributes: true, attributeFilter: ["class"] });
  });
  window.speculoos = {
    theme: {
      get: () => choice,
      isDark: dark,
      set: (value) => {
        choice = value;
        try { localStorage.setItem(KEY, value); } catch { /* private mode: for this page only */ }
        apply();
      },
    },
  };
})();
