// Tables (app/widgets/picker.py): the head stays in view where the whole table fits, and columns can be hidden.
import { el, preference, t } from "./dom.js";
import { onMatch } from "./shell.js";

// A box that scrolls sideways would hold the head, so one that fits is no scroll container. Gradio resets its class.
onMatch(".sp-table-wrap", (wrap) => {
  const fit = () => {
    const fits = wrap.scrollWidth <= wrap.clientWidth;
    if (wrap.classList.contains("sp-fits") !== fits) wrap.classList.toggle("sp-fits", fits);
  };
  new ResizeObserver(fit).observe(wrap);
  new MutationObserver(fit).observe(wrap, { attributeFilter: ["class"], childList: true, subtree: true });
});

const KEY = "speculoos-columns", sheet = new CSSStyleSheet();
document.adoptedStyleSheets.push(sheet);
// Table → numbers of its hidden columns; rules of a style sheet survive each redraw of the table.
const hidden = JSON.parse(preference(KEY)) || {};
const hide = () => sheet.replaceSync(Object.entries(hidden).flatMap(([table, columns]) =>
  columns.map((n) => `[data-columns=${JSON.stringify(table)}] tr > :nth-child(${n}) { display: none !important; }`)).join("\n"));
hide();

const menu = el("div", { id: "sp-columns", class: "sp-popover", popover: "auto", role: "group", "aria-label": t("Columns") });
document.addEventListener("click", ({ target }) => {
  const opener = target.closest?.('[popovertarget="sp-columns"]');
  if (!opener || menu.matches(":popover-open")) return;
  const table = opener.closest(".sp-table-bar").nextElementSibling.querySelector("table"), name = table.dataset.columns;
  menu.replaceChildren(...[...table.rows[0].cells].slice(1).map((head, i) => {
    const change = (event) => {
      hidden[name] = (hidden[name] || []).filter((n) => n !== i + 2).concat(event.target.checked ? [] : i + 2);
      hide();
      preference(KEY, JSON.stringify(hidden));
    };
    const shown = !hidden[name]?.includes(i + 2), box = el("input", { type: "checkbox", checked: shown, autofocus: !i, on: { change } });
    return el("label", {}, box, head.textContent.replace(/ [↑↓]$/, ""));
  }));
  document.querySelector(".gradio-container").append(menu);
});
