// Keeps a page up to date: polls /api/changes for the state of its rows and has Gradio redraw the page if it changed.
// Responses include the status bar. The poll interval grows while nothing changes and is reset by keys and pointers;
// hidden tabs are not polled.
import { el } from "./dom.js";
import { onElement } from "./shell.js";
import { fetchJSON } from "./stream.js";

const FIRST = 1000, GROWTH = 1.5;
const MARK = " # ";  // app/widgets/list_page.py, SIGNATURE_SEPARATOR
const field = (id) => (id && document.querySelector(`#${id} :is(input, textarea)`)?.value) || "";
let page = null, bar = null, tag = "";
let pause = FIRST, requestedAt = 0, timer = 0, requesting = false;

const schedule = () => { clearTimeout(timer); timer = setTimeout(poll, pause); };

async function poll() {
  clearTimeout(timer);
  if (requesting || document.hidden) return;
  requesting = true;
  requestedAt = Date.now();
  let changed = false, maxPause = 10000;
  try {
    const id = field(page?.dataset.chosen);
    const query = new URLSearchParams({ page: page?.dataset.page || "", id, strip: tag });
    const answer = await fetchJSON(`/api/changes?${query}`);
    maxPause = answer.wait * 1000;
    if (answer.strip) drawStrip(answer.strip);
    changed = isStale(answer.page, id);
    if (changed) page.dispatchEvent(new CustomEvent("sp-stale", { bubbles: true }));
  } catch (error) {
    showProblem(error.message);
  }
  requesting = false;
  pause = changed ? FIRST : Math.min(pause * GROWTH, maxPause);
  schedule();
}

// False while another row is being opened, and before the page is drawn for the first time.
function isStale(signature, id) {
  const seen = field(page?.dataset.seen).split(MARK)[0];
  return Boolean(signature && seen && signature !== seen && id === field(page.dataset.chosen));
}

function drawStrip(strip) {
  if (!bar) return;
  const focused = bar.contains(document.activeElement) && document.activeElement.getAttribute("href");
  bar.innerHTML = strip.html;  // from app/views/status_bar.py, with all texts escaped
  tag = strip.tag;
  window.speculoos.drawn("strip");
  if (focused) [...bar.querySelectorAll("a")].find((a) => a.getAttribute("href") === focused)?.focus();
}

function showProblem(text) {
  if (!bar) return;
  bar.replaceChildren(el("div", { class: "sp-strip" }, el("span", { class: "sp-chip sp-bad" }, text)));
  window.speculoos.drawn("strip");
  tag = "";
}

function pollSoon() {
  if (document.hidden) return;
  pause = FIRST;
  if (Date.now() - requestedAt >= FIRST) poll(); else schedule();
}

onElement("changes", (node) => { page = node; pollSoon(); });
onElement("strip", (node) => { bar = node; tag = ""; poll(); });
document.addEventListener("visibilitychange", pollSoon);
for (const kind of ["pointerdown", "keydown"]) document.addEventListener(kind, pollSoon, { passive: true, capture: true });
