// One response, token by token: drafted tokens have a background, steps can be selected.
import { el, t } from "./dom.js";
import { follow } from "./stream.js";
import { figuresOf } from "./trace.js";

const ORIGINS = {
  draft: t("accepted draft token"),
  target: t("the base model's own token"),
  plain: t("base model's token, no speculation"),
  mixed: t("partly drafted"),
  unknown: t("origin not known"),
};

// Several tokens that form one character have their common origin, or "mixed".
function tokenNode({ text, depth, origin: tokenOrigin, origins }, record) {
  const origin = new Set(origins || [tokenOrigin]).size > 1 ? "mixed" : origins?.[0] || tokenOrigin, isDraft = origin === "draft";
  const drafted = origins?.filter((each) => each === "draft").length;
  const parts = origins ? t("one character of {n} tokens, {drafted} of them drafted and accepted", { n: origins.length, drafted }) : isDraft && t("depth {depth}", { depth });
  return el("span", { class: `tr-token sp-${origin}${/^\n+$/.test(text) ? " tr-break" : ""}`, "data-depth": isDraft && Math.min(depth, 4),
    title: [[ORIGINS[origin] || origin, parts].filter(Boolean).join(", "), t("step {index}", record)].join(" · ") }, text);
}

// Tokens of one response as they arrive. Calls `onSelect(record, node)` when a step is pointed at, clicked or reached by
// arrow keys; `node` only if it is selected then.
class TokenStream {
  constructor(onSelect) {
    this.onSelect = onSelect;
    this.node = el("div", { class: "tr-tokens", tabindex: "0", role: "group",
      "aria-label": t("Response, token by token; left and right arrow keys select a step"),
      on: { click: (event) => this.pick(event, true), mouseover: (event) => this.pick(event, false), keydown: (event) => this.key(event) } });
    this.clear();
  }

  clear() {
    this.records = [];
    this.pinned = this.selected = null;
    this.node.replaceChildren();
  }

  append(record) {
    if (this.records.length && record.index <= this.records.at(-1).index) return;
    this.records.push(record);
    if (this.pinned === null && !this.node.matches(":hover")) this.selected = null;
    const tokens = record.tokens.filter((token) => token.text).map((token) => tokenNode(token, record));
    if (tokens.length) this.node.append(el("span", { class: `tr-step sp-${record.kind}`, "data-step": record.index }, ...tokens));
  }

  // The step to show: the one selected or pointed at, otherwise the newest with a draft.
  get current() {
    return this.selected || this.records.findLast((record) => record.draft.tokens.length) || this.records.at(-1);
  }

  pick(event, pin) {
    const step = event.target.closest(".tr-step");
    if (step && (pin || this.pinned === null)) this.select(Number(step.dataset.step), pin);
  }

  select(index, pin) {
    const record = this.records.find((r) => r.index === index);
    if (!record) return;
    this.selected = record;
    if (pin) {
      this.pinned = this.pinned === index ? null : index;
      for (const step of this.node.children) step.classList.toggle("tr-picked", Number(step.dataset.step) === this.pinned);
    }
    this.onSelect(record, pin ? this.node.querySelector(".tr-picked") : null);
  }

  key(event) {
    const move = { ArrowLeft: -1, ArrowRight: 1 }[event.key], last = this.records.length - 1;
    if (!move || last < 0) return;
    event.preventDefault();
    const at = this.records.findIndex((r) => r.index === this.pinned);
    const next = at < 0 ? (move > 0 ? 0 : last) : Math.max(0, Math.min(last, at + move));
    if (next !== at) this.select(this.records[next].index, true);
  }

  // Marks the token at position `index` of the response, or the next one that has a text.
  mark(index, title) {
    const tokens = this.records.flatMap((record) => record.tokens);
    const at = tokens.findIndex((token, i) => i >= index && token.text);
    const marked = this.node.querySelectorAll(".tr-token")[tokens.slice(0, at).filter((token) => token.text).length];
    if (at < 0) return;
    marked.classList.add("tr-diverges");
    marked.title = title;
  }
}

// A run on a page, from its request to its last token. Pages extend it with `end(run)` and `showState(state)`.
export class LiveRun {
  constructor(view, onSelect, changed) {
    this.run = view;
    this.changed = changed;
    this.stream = new TokenStream(onSelect);
  }

  // Resolves when the run has ended. The tokens of a server's response get their origins at its end, and are read again.
  follow() {
    return new Promise((done) => {
      let isLive = false;
      const end = (run) => {
        if (isLive && run.summary?.origins === "known") {
          this.stream.clear();
          isLive = false;
          listen();
          return;
        }
        this.end(run);
        this.changed();
        done();
      };
      const state = (name) => { isLive = true; this.showState(name); this.changed(); };
      const step = (record) => {
        this.stream.append(record);
        if (this.stream.records.length === 1) this.showState(this.run.state);
        this.changed();
      };
      const fail = (error) => end({ ...this.run, state: "FAILED", ended: true, error });
      const listen = () => { this.stop = follow(this.run.id, { step, state, end, fail }); };
      listen();
    });
  }

  get now() { return figuresOf(this.run, this.stream.records); }
}
