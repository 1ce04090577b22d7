// The picture of the field “Tree” (app/widgets/fields.py), in which its paths can be edited.
import { el, svg, t } from "./dom.js";
import { onElement } from "./shell.js";
import { MAX_DRAWN, plot } from "./tree.js";

const HINT = t("Click a candidate to remove it with its descendants, + to add a child. Keys: Enter adds, Delete removes.");
const NO_TREE = t("No fixed tree is set. Press + to build one.");

// The paths of all candidates in a text that models/methods/trees.py reads, after that of the root; only the root if the
// text names no fixed tree.
function pathsOf(text) {
  const [, kind, size] = /^(chain|tree)[ :]?(\d{1,2}(?:x\d{1,2})*)$/.exec(text) || [], paths = [[]];
  let parsed = [], level = [[]];
  for (const width of kind === "chain" ? Array(Number(size)).fill(1) : size?.split("x").map(Number) || []) {
    level = level.slice(0, MAX_DRAWN).flatMap((path) => Array.from({ length: width }, (_, rank) => [...path, rank]));
    paths.push(...level);
  }
  try { parsed = JSON.parse(text.replace(/\(/g, "[").replace(/\)/g, "]").replace(/,\s*\]/g, "]")); } catch { /* another form */ }
  const isPaths = Array.isArray(parsed) && parsed.every((path) => Array.isArray(path) && path.every(Number.isInteger));
  if (isPaths) for (const path of parsed) path.forEach((_, at) => paths.push(path.slice(0, at + 1)));
  const unique = [...new Map(paths.map((path) => [path.join(), path])).values()];
  return unique.sort((a, b) => a.length - b.length || a.map((rank, at) => rank - b[at]).find(Boolean) || 0);
}

onElement("tree-field", (root) => {
  const field = () => document.querySelector("#tree textarea");
  let paths = [[]];

  function draw(focused = 0) {
    paths = pathsOf(field().value.trim());
    if (paths.length > MAX_DRAWN) return root.replaceChildren(el("p", { class: "sp-hint" }, t("This tree is too large to be drawn.")));
    const index = new Map(paths.map((path, i) => [path.join(), i]));
    const parents = paths.map((path) => (path.length ? index.get(path.slice(0, -1).join()) : -1)), ranks = paths.map((path) => path.at(-1) ?? 0);
    const look = (i, width) => [{ class: "tr-node", "aria-label": i ? t("rank {rank}, depth {depth}", { rank: ranks[i], depth: paths[i].length }) : t("root") },
      svg("text", { x: width / 2 - 6, y: 16 }, i ? ranks[i] : t("root")),
      svg("g", { class: "tr-plus" }, svg("rect", { x: width - 20, width: 20, height: 24, rx: 4 }), svg("text", { x: width - 10, y: 17 }, "+"))];
    root.replaceChildren(el("div", { class: "tr-tree" }, plot({ parents, ranks, depths: paths.map((path) => path.length + 1) }, [], t("Tree to draft"), look, focused)),
      el("p", { class: "sp-hint" }, paths.length > 1 ? HINT : NO_TREE));
  }

  // Writes the tree after adding a child to candidate `i`, or removing it, and focuses the child, or the parent.
  function change(i, adds) {
    const key = paths[i].join(), used = paths.filter((path) => path.slice(0, -1).join() === key && path.length).map((path) => path.at(-1));
    const child = [...paths[i], [...Array(used.length + 1).keys()].find((rank) => !used.includes(rank))];
    const remaining = adds ? [...paths, child] : paths.filter((path) => path.slice(0, paths[i].length).join() !== key);
    const text = JSON.stringify(pathsOf(JSON.stringify(remaining)).slice(1)), focus = (adds ? child : paths[i].slice(0, -1)).join();
    field().value = text === "[]" ? "own" : text;
    field().dispatchEvent(new Event("input", { bubbles: true }));
    draw(paths.findIndex((path) => path.join() === focus));
    root.querySelector('[tabindex="0"]').focus();
  }

  root.addEventListener("click", ({ target }) => {
    const node = target.closest(".tr-node"), adds = target.closest(".tr-plus");
    if (node && (adds || node.dataset.node !== "0")) change(Number(node.dataset.node), adds);
  });
  root.addEventListener("keydown", ({ key, target }) => {
    const i = Number(target.dataset.node);
    if (key === "Enter" || (i && (key === "Delete" || key === "Backspace"))) change(i, key === "Enter");
  });
  document.addEventListener("input", ({ target }) => { if (target === field()) draw(); });
  document.getElementById("options").addEventListener("toggle", () => draw());
});
