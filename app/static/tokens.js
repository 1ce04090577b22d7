// One response, token by token: drafted tokens have a background, steps can be selected.
import { el } from "./dom.js";

const ORIGINS = {
  draft: "accepted draft token",
  target: "the base model's own token",
  plain: "base model's token, no speculation",
  mixed: "partly drafted",
};

// Origin of a token. Several tokens that form one character have their common origin, or "mixed".
function originOf(token) {
  const origins = new Set(token.origins || [token.origin]);
  return origins.size === 1 ? [...origins][0] : "mixed";
}

function partsTitle({ origins }) {
  const drafted = origins.filter((origin) => origin === "draft").length;
  return `, one character of ${origins.length} tokens, ${drafted} of them drafted and accepted`;
}

function tokenTitle(token, record) {
  const origin = originOf(token);
  const depth = origin === "draft" ? `, depth ${token.depth}` : "";
  return `${ORIGINS[origin] || origin}${token.origins ? partsTitle(token) : depth} · step ${record.index}`;
}

function tokenNode(token, record) {
  const kind = /^\n+$/.test(token.text) ? " tr-break" : "";
  const origin = originOf(token);
  const depth = origin === "draft" ? Math.min(token.depth, 4) : undefined;
  return el("span", { class: `tr-token sp-${origin}${kind}`, "data-depth": depth, title: tokenTitle(token, record) }, token.text);
}

// One step of the response.
function stepNode(record) {
  const shown = record.tokens.filter((token) => token.text);
  if (!shown.length) return null;
  const node = el("span", { class: `tr-step sp-${record.kind}`, "data-step": record.index });
  for (const token of shown) node.append(tokenNode(token, record));
  return node;
}

// Tokens of one response as they arrive. Calls `onSelect(record, node)` when a step is pointed at, clicked or reached by
// arrow keys; `node` only if it is selected then.
class TokenStream {
  constructor(onSelect = () => {}) {
    this.records = [];
    this.pinned = this.selected = null;
    this.onSelect = onSelect;
    this.node = el("div", { class: "tr-tokens", tabindex: "0", role: "group",
      "aria-label": "Response, token by token; left and right arrow keys select a step" });
    this.node.addEventListener("click", (event) => this.pick(event, true));
    this.node.addEventListener("mouseover", (event) => this.pick(event, false));
    this.node.addEventListener("keydown", (event) => this.key(event));
  }

  append(record) {
    if (this.records.length && record.index <= this.records[this.records.length - 1].index) return;
    this.records.push(record);
    if (this.pinned === null && !this.node.matches(":hover")) this.selected = null;
    const made = stepNode(record);
    if (made) this.node.append(made);
  }

  clear() {
    this.records = [];
    this.pinned = this.selected = null;
    this.node.replaceChildren();
  }

  // The step to show: the one selected or pointed at, otherwise the newest with a draft.
  get current() {
    return this.selected || this.records.findLast((record) => record.draft.tokens.length) || this.records.at(-1);
  }

  pick(event, pin) {
    const step = event.target.closest(".tr-step");
    if (!step || (!pin && this.pinned !== null)) return;
    this.select(Number(step.dataset.step), pin);
  }

  select(index, pin) {
    const record = this.records.find((r) => r.index === index);
    if (!record) return;
    this.selected = record;
    if (pin) {
      this.pinned = this.pinned === index ? null : index;
      for (const step of this.node.querySelectorAll(".tr-step")) {
        step.classList.toggle("tr-picked", Number(step.dataset.step) === this.pinned);
      }
    }
    this.onSelect(record, pin ? this.node.querySelector(".tr-picked") : null);
  }

  key(event) {
    const move = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!move || !this.records.length) return;
    event.preventDefault();
    const at = this.records.findIndex((r) => r.index === this.pinned);
    const next = at < 0 ? (move > 0 ? 0 : this.records.length - 1) : Math.max(0, Math.min(this.records.length - 1, at + move));
    if (this.records[next].index !== this.pinned) this.select(this.records[next].index, true);
  }

  // Marks the token at position `index` of the response.
  mark(index, title) {
    let at = 0;
    for (const record of this.records) {
      const spans = this.node.querySelector(`[data-step="${record.index}"]`)?.children || [];
      let shown = 0;
      for (const token of record.tokens) {
        const span = token.text ? spans[shown++] : null;
        if (at++ >= index && span) {
          span.classList.add("tr-diverges");
          span.title = title;
          return;
        }
      }
    }
  }
}

export { TokenStream };
