// Keeps a page fresh: asks /api/changes what rows say, and has Gradio draw only what is no longer true.
// The strip on top comes with the answer. While nothing changes it asks less and less often; while the tab is hidden,
// not at all; whoever touches the page gets a fresh one.
import { el } from "./dom.js";
import { onElement } from "./shell.js";

const FIRST = 1000, GROWTH = 1.5;
const MARK = " # ";  // app/widgets/list_page.py, DRAWN
const field = (id) => (id && document.querySelector(`#${id} :is(input, textarea)`)?.value) || "";
let page = null, holder = null, tag = "";
let pause = FIRST, requestedAt = 0, timer = 0, requesting = false;

const later = () => { clearTimeout(timer); timer = setTimeout(look, pause); };

async function look() {
  clearTimeout(timer);
  if (requesting || document.hidden) return;
  requesting = true;
  requestedAt = Date.now();
  let changed = false, most = 10000;
  try {
    const id = field(page?.dataset.chosen);
    const query = new URLSearchParams({ page: page?.dataset.page || "", id, strip: tag });
    const answer = await fetch(`/api/changes?${query}`, { cache: "no-store" });
    if (answer.status === 401) throw new Error("You are logged out; reload this page to log in again.");
    if (!answer.ok) throw new Error("The workbench does not answer now; this page goes on when it does.");
    const found = await answer.json();
    most = found.wait * 1000;
    if (found.strip) drawStrip(found.strip);
    changed = isStale(found.page, id);
    if (changed) page.dispatchEvent(new CustomEvent("sp-stale", { bubbles: true }));
  } catch (error) {
    sayLost(error instanceof TypeError ? "The workbench does not answer; this page goes on when it does." : error.message);
  }
  requesting = false;
  pause = changed ? FIRST : Math.min(pause * GROWTH, most);
  later();
}

// Not while another row is being opened, nor before the page was drawn for the first time.
function isStale(signature, id) {
  const seen = field(page?.dataset.seen).split(MARK)[0];
  return Boolean(signature && seen && signature !== seen && id === field(page.dataset.chosen));
}

function drawStrip(strip) {
  if (!holder) return;
  const focused = holder.contains(document.activeElement) && document.activeElement.getAttribute("href");
  holder.innerHTML = strip.html;  // made by app/views/status_bar.py, every text escaped
  tag = strip.tag;
  window.speculoos.drawn("strip");
  if (focused) [...holder.querySelectorAll("a")].find((a) => a.getAttribute("href") === focused)?.focus();
}

function sayLost(words) {
  if (!holder) return;
  holder.replaceChildren(el("div", { class: "sp-strip" }, el("span", { class: "sp-chip sp-bad" }, words)));
  window.speculoos.drawn("strip");
  tag = "";
}

function touched() {
  if (document.hidden) return;
  pause = FIRST;
  if (Date.now() - requestedAt >= FIRST) look(); else later();
}

onElement("changes", (node) => { page = node; touched(); });
onElement("strip", (node) => { holder = node; tag = ""; look(); });
document.addEventListener("visibilitychange", touched);
for (const kind of ["pointerdown", "keydown"]) document.addEventListener(kind, touched, { passive: true, capture: true });
