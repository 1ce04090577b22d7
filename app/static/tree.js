// The drafted tree of one step as a picture: candidates by depth from left to right, the accepted path in the color of
// drafted tokens, probabilities as bars; numbers of a candidate when it is pointed at or focused.
import { el, percent, svg, visible } from "./dom.js";

const ROW = 30, HEIGHT = 24, ROOT = 12, GAP = 14, BAR = 3, PANEL = 312;
const MAX_DRAWN = 160;  // of a larger tree, only candidates on or beside the accepted path are drawn
const WIDE = /[\u2e80-\uffff]/;

// Children by parent in order of rank, -1 being the text before the step, and the rows of the candidates in depth-first
// order: a first child is in its parent's row, each sibling below all before it.
function layout(draft, accepted) {
  const all = draft.parents.length <= MAX_DRAWN, children = new Map(), rows = new Map([[-1, 0]]);
  draft.parents.forEach((parent, i) => {
    if (all || parent < 0 || accepted.has(parent)) children.set(parent, [...(children.get(parent) || []), i]);
  });
  for (const siblings of children.values()) siblings.sort((a, b) => draft.ranks[a] - draft.ranks[b]);
  let last = 0;
  const walk = (parent) => (children.get(parent) || []).forEach((i, at) => { if (at) last += 1; rows.set(i, last); walk(i); });
  walk(-1);
  return { children, rows };
}

function short(text, width) {
  const most = Math.floor((width - 8) / (WIDE.test(text) ? 12 : 6.7)), all = [...text];
  return all.length > most ? `${all.slice(0, most - 1).join("")}…` : text;
}

export function drawTree({ draft, accepted: path }) {
  const accepted = new Set(path), { children, rows } = layout(draft, accepted);
  const order = [...rows.keys()].slice(1), depth = Math.max(...order.map((i) => draft.depths[i]));
  const step = Math.max(62, Math.min(84, (PANEL - ROOT) / depth)), width = step - GAP;
  const left = (i) => ROOT + (draft.depths[i] - 1) * step + GAP, middle = (i) => rows.get(i) * ROW + ROW / 2;
  const told = el("p", { class: "sp-hint tr-told", "aria-hidden": "true" });
  const names = draft.probs ? ["q", "p"] : ["q"];
  const shares = { q: (i) => Math.exp(draft.logprobs[i]), p: (i) => draft.probs[i] };
  const nodes = new Map(order.map((i) => [i, drawNode(i)]));
  const edge = (i) => {
    const from = draft.parents[i], x = from < 0 ? ROOT - 4 : left(from) + width, half = (x + left(i)) / 2;
    return `M${x} ${middle(from)}C${half} ${middle(from)} ${half} ${middle(i)} ${left(i)} ${middle(i)}`;
  };
  const edges = (ids, kind) => svg("path", { class: `tr-edge ${kind}`, d: ids.map(edge).join("") });
  const picture = svg("svg", { role: "tree", "aria-label": "Drafted tree", width: ROOT + depth * step + 2, height: (Math.max(...rows.values()) + 1) * ROW },
    svg("circle", { class: "tr-root", cx: ROOT - 6, cy: ROW / 2, r: 4 }), edges(order, ""), edges(path, "sp-accepted"), ...nodes.values());
  nodes.get(path.at(-1) ?? order[0]).setAttribute("tabindex", "0");
  picture.addEventListener("mouseover", tell);
  picture.addEventListener("focusin", tell);
  picture.addEventListener("keydown", move);
  told.textContent = `Bars: probability under the draft (q)${draft.probs ? " and the base model (p)" : ""}`;
  return el("div", { class: "tr-drawn" }, el("div", { class: "tr-tree" }, picture), told,
    order.length < draft.parents.length ? el("p", { class: "sp-hint" }, `Drawn: the ${order.length} candidates on or beside the accepted path`) : null);

  function drawNode(i) {
    const state = accepted.has(i) ? "accepted" : "rejected", text = visible(draft.texts[i]);
    const figures = names.map((name) => `${name} ${percent(shares[name](i))}`);
    const words = `“${text}”, depth ${draft.depths[i]}, ${[state, ...figures].join(", ")}`;
    const bars = names.map((name, at) => svg("rect", { class: "tr-prob", "data-of": name, x: 0, height: BAR, width: (width * shares[name](i)).toFixed(1),
      y: HEIGHT - BAR * (names.length - at) }));
    return svg("g", { class: `tr-node sp-${state}`, role: "treeitem", tabindex: "-1", "aria-level": draft.depths[i], "aria-label": words, "data-node": i,
      transform: `translate(${left(i)} ${middle(i) - HEIGHT / 2})` },
    svg("rect", { class: "tr-box", width, height: HEIGHT, rx: 4 }), ...bars, svg("text", { x: width / 2, y: 14 }, short(text, width)));
  }

  function tell(event) {
    const node = event.target.closest(".tr-node");
    if (node) told.textContent = node.getAttribute("aria-label");
  }

  function move(event) {
    const i = Number(event.target.dataset.node), at = order.indexOf(i);
    const to = { ArrowLeft: draft.parents[i], ArrowRight: children.get(i)?.[0], ArrowUp: order[at - 1], ArrowDown: order[at + 1] }[event.key];
    if (!nodes.has(to)) return;
    event.preventDefault();
    event.target.setAttribute("tabindex", "-1");
    nodes.get(to).setAttribute("tabindex", "0");
    nodes.get(to).focus();
  }
}
