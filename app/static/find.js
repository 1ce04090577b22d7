// The command palette (Ctrl+K): finds pages, actions and rows by name (app/find.py) and opens one.
// The drawer of terms (the button "?" and clicks on terms): definitions of app/widgets/terms.py.
import { button, definitions, el, t } from "./dom.js";
import { fetchJSON } from "./stream.js";

const input = el("input", { class: "sp-palette-field", type: "search", role: "combobox", "aria-expanded": "true", maxlength: "200",
  "aria-controls": "palette-list", "aria-label": t("Search pages, models, data and runs"), placeholder: t("Search pages, models, data, runs…") });
const list = el("ul", { id: "palette-list", role: "listbox", "aria-label": t("Results") });
const palette = el("dialog", { class: "sp-palette", "aria-label": t("Search") }, input, list);
let chosen = 0, requests = 0;

function choose(index) {
  const links = [...list.children];
  chosen = Math.max(0, Math.min(index, links.length - 1));
  links.forEach((link, i) => link.setAttribute("aria-selected", i === chosen));
  links[chosen]?.scrollIntoView({ block: "nearest" });
  if (links[chosen]) input.setAttribute("aria-activedescendant", links[chosen].id);
  else input.removeAttribute("aria-activedescendant");
}

function draw(entries) {
  list.replaceChildren(...entries.map((entry, i) => el("li", { id: `palette-${i}`, role: "option", on: { click: () => open(i), pointermove: () => choose(i) }, "data-to": entry.to },
    el("span", {}, entry.name), el("span", { class: "sp-row-note" }, [entry.kind, entry.note].filter(Boolean).join(" · ")))));
  choose(0);
}

const open = (index) => { const to = list.children[index]?.dataset.to; if (to) location.href = to; };

async function find() {
  const number = ++requests;
  const entries = await fetchJSON(`/api/find?${new URLSearchParams({ q: input.value })}`).catch(() => []);  // the status bar shows errors
  if (number === requests) draw(entries);
}

function toggle() {
  if (palette.open) return palette.close();
  if (!palette.isConnected) document.body.append(palette);
  input.value = "";
  palette.showModal();
  find();
}

input.addEventListener("input", find);
input.addEventListener("keydown", (event) => {
  const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
  if (step) choose(chosen + step);
  else if (event.key === "Enter") open(chosen);
  else return;
  event.preventDefault();
});

const drawer = el("dialog", { class: "sp-words", "aria-label": t("Glossary") });

function explain(key = "") {
  if (!drawer.isConnected) document.body.append(drawer);
  const items = Object.entries(definitions).map(([term, [name, text]]) => el("div", { class: term === key ? "sp-picked-word" : "" }, el("dt", {}, name), el("dd", {}, text)));
  drawer.replaceChildren(el("h2", {}, t("Glossary")), el("dl", {}, ...items), button("small", t("Close"), () => drawer.close()));
  drawer.showModal();
  drawer.querySelector(".sp-picked-word")?.scrollIntoView({ block: "center" });
}

document.addEventListener("keydown", (event) => {
  if (event.key.toLowerCase() !== "k" || !(event.ctrlKey || event.metaKey) || event.shiftKey || event.altKey) return;
  event.preventDefault();
  toggle();
});
document.addEventListener("click", (event) => {
  const at = event.target;
  if (at === palette || at === drawer) at.close();  // the backdrop
  else if (at.closest?.('[data-sp="find"]')) toggle();
  else if (at.closest?.('[data-sp="words"]')) explain();
  else if (at.matches?.(".sp-term") && !at.closest("a, button, summary")) explain(at.dataset.term);
});
