// One turn of a conversation: the question, the answer's tokens as they come, its figures and what can be done with it.
import { el, notice, number } from "./dom.js";
import { follow } from "./stream.js";
import { TokenStream } from "./tokens.js";
import * as trace from "./trace.js";

const STATES = { QUEUED: "waiting for the model…", RUNNING: "answering…", SUCCEEDED: "", CANCELLED: "stopped", FAILED: "" };

// One turn: the question, the answer's tokens, a line of figures.
class Turn {
  constructor(view, page) {
    this.page = page;
    this.id = view.id;
    this.run = view;
    this.plain = view.plain || null;
    this.stream = new TokenStream((record) => page.showStep(record, this));
    this.state = el("span", { class: "sp-turn-state", "aria-live": "polite" });
    this.figures = el("p", { class: "sp-turn-figures" });
    this.notes = el("div", {});
    const question = el("div", { class: "sp-question" });
    const asked = view.request.messages || [];
    question.textContent = asked.length ? asked[asked.length - 1].content : "";
    const model = el("span", { class: "sp-turn-model" });
    const lookup = (view.request.speculation || {}).drafter === "ngram";
    model.textContent = lookup ? `${view.model} · prompt lookup` : view.model;
    this.question = question.textContent;
    const button = (label, title, run) => el("button", { type: "button", class: "sp-link-button", title, on: { click: run } }, label);
    this.actions = el("span", { class: "sp-turn-actions" },
      button("Again", "Ask the same again, with the draft and sampling chosen now", () => page.redo(this, true)),
      button("Edit", "Take this question back into the prompt", () => page.redo(this, false)),
      button("Remove", "Remove this turn", () => page.remove(this)));
    this.node = el("article", { class: "sp-turn", "data-run": view.id, "data-state": view.state }, question,
      el("div", { class: "sp-answer" }, el("div", { class: "sp-turn-head" }, model, this.state), this.stream.node, this.notes,
        el("footer", {}, this.figures, this.actions)));
    this.node.addEventListener("click", () => page.focusTurn(this));
    this.showState(view.state);
  }

  follow() {
    this.stop = follow(this.id, {
      step: (record) => this.step(record),
      state: (state) => { this.run.state = state; this.showState(state); this.page.changed(this); },
      end: (run) => this.end(run),
      fail: (sentence) => this.end({ ...this.run, state: "FAILED", ended: true, error: sentence }),
    });
  }

  step(record) {
    this.stream.append(record);
    if (this.stream.records.length === 1) this.showState(this.run.state);
    this.page.changed(this);
  }

  end(run) {
    this.run = run;
    this.showState(run.state);
    this.showNotes();
    this.page.changed(this);
    this.page.ended(this);
  }

  showState(state) {
    this.node.dataset.state = state;
    const silent = state === "RUNNING" && !this.stream.records.length;
    this.state.textContent = silent ? "loading and reading the prompt…" : STATES[state] ?? state;
  }

  showNotes() {
    const { summary, error } = this.run;
    const lines = trace.notices(this.run).map((text) => notice(text, "warn"));
    if (summary.shared_with) lines.push(notice(`Figures taken while the job “${summary.shared_with}” used the same device.`, "warn"));
    if (summary.finish === "length") lines.push(notice("Cut at the token limit; raise “Tokens at most” for a longer answer.", "info"));
    if (error) lines.push(notice(error, "bad"));
    this.notes.replaceChildren(...lines);
  }

  current() {
    const { summary } = this.run;
    const ended = this.run.ended && summary && Object.keys(summary).length;
    return ended ? trace.fromSummary(summary, this.stream.records) : trace.figures(this.stream.records);
  }

  showFigures() {
    const now = this.current();
    if (!now.tokens) return;
    const parts = [`${now.tokens} tokens`, `${number(now.tokensPerSecond, 1)} tokens/s`];
    if (now.acceptance.length) parts.push(`τ ${number(now.tau)}`);
    this.figures.textContent = parts.join(" · ");
  }
}

export { Turn };
