// The parts of the frame that need a script: the theme switch, the place of the current page in a narrow bar.
const ORDER = ["system", "light", "dark"];
const SIGN = { system: "◐", light: "☀", dark: "☾" };
const label = (button) => {
  const choice = window.speculoos.theme.get();
  button.textContent = SIGN[choice] || SIGN.system;
  button.setAttribute("aria-label", `Colour theme: ${choice}`);
  button.title = `Colour theme: ${choice} (click to change)`;
};
document.addEventListener("click", (event) => {
  const button = event.target.closest?.('[data-sp="theme"]');
  if (!button) return;
  const next = ORDER[(ORDER.indexOf(window.speculoos.theme.get()) + 1) % ORDER.length];
  window.speculoos.theme.set(next);
  label(button);
});
// Calls `start(node)` once for every element with data-sp=`name`, now and when Gradio adds it later.
export function onElement(name, start) {
  const seen = new WeakSet();
  const look = () => {
    for (const node of document.querySelectorAll(`[data-sp="${name}"]`)) {
      if (!seen.has(node)) { seen.add(node); start(node); }
    }
  };
  look();
  new MutationObserver(look).observe(document.documentElement, { childList: true, subtree: true });
}
onElement("theme", label);
onElement("nav", (nav) => {
  const current = nav.querySelector("[aria-current]");
  if (current) nav.scrollLeft = current.offsetLeft - nav.offsetLeft - 24;
});
