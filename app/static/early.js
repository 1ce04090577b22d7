// Runs before the page is drawn: applies the selected theme, also after Gradio sets its own, and hides everything that
// depends on rows until they are first loaded, so that the layout does not shift.
(() => {
  const KEY = "speculoos-theme";
  const system = window.matchMedia("(prefers-color-scheme: dark)");
  let choice = "system";
  try { choice = localStorage.getItem(KEY) || choice; } catch { /* private mode */ }
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

  const LONGEST = 2000, HIDDEN = "sp-drawing";
  const undrawn = new Set(["rows", "strip"]);
  let loads = 0;
  const show = () => document.documentElement.classList.remove(HIDDEN);
  const drawn = (part) => { undrawn.delete(part); if (!undrawn.size) show(); };
  const painted = (then) => requestAnimationFrame(() => requestAnimationFrame(then));
  document.documentElement.classList.add(HIDDEN);
  setTimeout(show, 5 * LONGEST);

  window.speculoos = {
    theme: {
      get: () => choice,
      set: (value) => {
        choice = value;
        try { localStorage.setItem(KEY, value); } catch { /* private mode: for this page only */ }
        apply();
      },
    },
    // Called before a page's first requests to the server and after their responses (app/widgets/elements.py: on_load).
    loading: () => { if (!loads++) setTimeout(show, LONGEST); },
    loaded: () => { if (!--loads) painted(() => loads || drawn("rows")); },
    drawn,
  };
})();
