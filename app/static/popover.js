// On a narrow screen the figures stand below the conversation: a tapped token then shows its step beside it.
import { el } from "./dom.js";

const NARROW = window.matchMedia("(max-width: 900px)");
const GAP = 8, EDGE = 12, WIDEST = 380;
let shown = null;

// Shows `content` beside `anchor` until something else is tapped; nothing on a wide screen.
function popUp(content, label, anchor) {
  close();
  if (!NARROW.matches) return;
  const shut = el("button", { type: "button", class: "sp-popover-close", "aria-label": "Close", on: { click: close } }, "×");
  shown = el("div", { class: "sp-popover", role: "dialog", "aria-label": label }, shut, content);
  document.querySelector(".gradio-container")?.append(shown);
  place(shown, anchor.getClientRects()[0] || anchor.getBoundingClientRect(), anchor.getBoundingClientRect());
}

// Below the anchor, or above it where there is more room; never over it nor out of the screen.
function place(node, first, whole) {
  const width = Math.min(WIDEST, document.documentElement.clientWidth - 2 * EDGE);
  const foot = document.querySelector(".sp-composer")?.getBoundingClientRect();
  const floor = foot && foot.top < window.innerHeight ? foot.top : window.innerHeight;
  const below = floor - whole.bottom - 2 * GAP, above = whole.top - 2 * GAP;
  node.style.width = `${width}px`;
  node.style.left = `${Math.max(EDGE, Math.min(first.left, document.documentElement.clientWidth - width - EDGE))}px`;
  const under = below >= Math.min(node.offsetHeight, 220) || below >= above;
  node.style.maxHeight = `${Math.max(140, under ? below : above)}px`;
  const top = under ? whole.bottom + GAP : whole.top - GAP - node.offsetHeight;
  node.style.top = `${top + window.scrollY}px`;
}

function close() {
  shown?.remove();
  shown = null;
}

document.addEventListener("click", (event) => {
  if (shown && !shown.contains(event.target) && !event.target.closest?.(".tr-step")) close();
});
document.addEventListener("keydown", (event) => {
  if (event.key !== "Escape" || !shown) return;
  event.stopImmediatePropagation();
  close();
}, true);

export { popUp };
