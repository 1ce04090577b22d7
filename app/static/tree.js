// Pictures of trees: candidates by depth from left to right. That of a step has the accepted path in the color of drafted
// tokens and probabilities as bars; numbers of a candidate when it is pointed at or focused.
import { el, percent, svg, visible, t } from "./dom.js";

const ROW = 30, HEIGHT = 24, ROOT = 12, GAP = 14, BAR = 3, PANEL = 312;
export const MAX_DRAWN = 160;  // of a larger tree, only candidates on or beside the accepted path are drawn
const WIDE = /[\u2e80-\uffff]/;

// Children by parent in order of rank, -1 being the text before the step, and the rows of the candidates in depth-first
// order: a first child is in its parent's row, each sibling below all before it.
function layout({ parents, ranks }, accepted) {
  const all = parents.length <= MAX_DRAWN, children = new Map(), rows = new Map([[-1, 0]]);
  parents.forEach((parent, i) => {
    if (all || parent < 0 || accepted.includes(parent)) children.set(parent, [...(children.get(parent) || []), i]);
  });
  for (const siblings of children.values()) siblings.sort((a, b) => ranks[a] - ranks[b]);
  let last = 0;
  const walk = (parent) => (children.get(parent) || []).forEach((i, at) => { if (at) last += 1; rows.set(i, last); walk(i); });
  walk(-1);
  return { children, rows };
}

function short(text, width) {
  const most = Math.floor((width - 8) / (WIDE.test(text) ? 12 : 6.7)), all = [...text];
  return all.length > most ? `${all.slice(0, most - 1).join("")}…` : text;
}

// The picture of a tree with a highlighted path; `look(i, width)` returns the attributes of a candidate and the elements
// in its box. Arrow keys move the focus, which `focused` may get first.
export function plot(tree, path, label, look, focused = path.at(-1)) {
  const { children, rows } = layout(tree, path), { parents, depths } = tree;
  const order = [...rows.keys()].slice(1), depth = Math.max(...order.map((i) => depths[i]));
  const step = Math.max(62, Math.min(84, (PANEL - ROOT) / depth)), width = step - GAP;
  const left = (i) => ROOT + (depths[i] - 1) * step + GAP, middle = (i) => rows.get(i) * ROW + ROW / 2;
  const nodes = new Map(order.map((i) => {
    const [attributes, ...inside] = look(i, width);
    return [i, svg("g", { role: "treeitem", tabindex: "-1", "aria-level": depths[i], "data-node": i, ...attributes,
      transform: `translate(${left(i)} ${middle(i) - HEIGHT / 2})` }, svg("rect", { class: "tr-box", width, height: HEIGHT, rx: 4 }), ...inside)];
  }));
  const edge = (i) => {
    const from = parents[i], x = from < 0 ? ROOT - 4 : left(from) + width, half = (x + left(i)) / 2;
    return `M${x} ${middle(from)}C${half} ${middle(from)} ${half} ${middle(i)} ${left(i)} ${middle(i)}`;
  };
  const edges = (ids, kind) => svg("path", { class: `tr-edge ${kind}`, d: ids.map(edge).join("") });
  const picture = svg("svg", { role: "tree", "aria-label": label, width: ROOT + depth * step + 2, height: (Math.max(...rows.values()) + 1) * ROW },
    svg("circle", { class: "tr-root", cx: ROOT - 6, cy: ROW / 2, r: 4 }), edges(order, ""), edges(path, "sp-accepted"), ...nodes.values());
  (nodes.get(focused) || nodes.get(order[0])).setAttribute("tabindex", "0");
  picture.addEventListener("keydown", (event) => {
    const i = Number(event.target.dataset.node), at = order.indexOf(i);
    const to = { ArrowLeft: parents[i], ArrowRight: children.get(i)?.[0], ArrowUp: order[at - 1], ArrowDown: order[at + 1] }[event.key];
    if (!nodes.has(to)) return;
    event.preventDefault();
    event.target.setAttribute("tabindex", "-1");
    nodes.get(to).setAttribute("tabindex", "0");
    nodes.get(to).focus();
  });
  return picture;
}

export function drawTree({ draft, accepted }) {
  const names = draft.probs ? ["q", "p"] : ["q"];
  const shares = { q: (i) => Math.exp(draft.logprobs[i]), p: (i) => draft.probs[i] };
  const caption = el("p", { class: "sp-hint tr-told", "aria-hidden": "true" }, draft.probs ? t("Bars: probability under the draft (q) and the base model (p)") : t("Bars: probability under the draft (q)"));
  const picture = plot(draft, accepted, t("Drafted tree"), drawNode), drawn = picture.querySelectorAll(".tr-node").length;
  for (const kind of ["mouseover", "focusin"]) picture.addEventListener(kind, tell);
  return el("div", { class: "tr-drawn" }, el("div", { class: "tr-tree" }, picture), caption,
    drawn < draft.parents.length ? el("p", { class: "sp-hint" }, t("Drawn: the {n} candidates on or beside the accepted path", { n: drawn })) : null);

  function drawNode(i, width) {
    const state = accepted.includes(i) ? "accepted" : "rejected", judged = state === "accepted" ? t("accepted") : t("rejected"), text = visible(draft.texts[i]);
    const figures = names.map((name) => `${name} ${percent(shares[name](i))}`);
    const description = [`“${text}”`, t("depth {depth}", { depth: draft.depths[i] }), judged, ...figures].join(", ");
    const bars = names.map((name, at) => svg("rect", { class: "tr-prob", "data-of": name, x: 0, height: BAR, width: (width * shares[name](i)).toFixed(1),
      y: HEIGHT - BAR * (names.length - at) }));
    return [{ class: `tr-node sp-${state}`, "aria-label": description }, ...bars, svg("text", { x: width / 2, y: 14 }, short(text, width))];
  }

  function tell(event) {
    const node = event.target.closest(".tr-node");
    if (node) caption.textContent = node.getAttribute("aria-label");
  }
}
