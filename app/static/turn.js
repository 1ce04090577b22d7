// One turn of a conversation: the prompt, the tokens of the response as they arrive, figures and actions.
import { button, el, notice, number, t } from "./dom.js";
import { build, copyButton } from "./reading.js";
import { fetchJSON } from "./stream.js";
import { LiveRun } from "./tokens.js";
import * as trace from "./trace.js";

const STATES = { QUEUED: t("waiting for the model…"), RUNNING: t("generating…"), SUCCEEDED: "", CANCELLED: t("stopped"), FAILED: "" };
const READ_MS = 700;
const link = (label, title, run, more = {}) => button("link", label, run, { title, ...more });

export class Turn extends LiveRun {
  constructor(view, page) {
    super(view, (record, node) => page.showStep(record, this, node), () => page.changed(this));
    this.page = page;
    this.id = view.id;
    this.plain = view.plain || null;
    this.reading = el("div", { class: "sp-reading" });
    this.state = el("span", { class: "sp-turn-state", "aria-live": "polite" });
    this.figures = el("p", { class: "sp-turn-figures" });
    this.notes = el("div", {});
    this.prompt = view.request.messages?.at(-1)?.content || "";
    const model = el("span", { class: "sp-turn-model" }, [trace.modelName(view), ...trace.draftingOptions(view.request)].join(" · "));
    this.continueButton = link(t("Continue"), t("Continue the truncated response"), () => page.continueTurn(this), { hidden: true, "data-cut": true });
    this.remove = link(t("Remove"), t("Remove this turn"), () => page.remove(this), { "data-last": true });
    this.versions = el("span", { class: "sp-versions" });
    this.showVersions(view.versions || []);
    this.actions = el("span", { class: "sp-turn-actions" }, this.continueButton, this.versions, copyButton(() => page.fullResponse(this)),
      link(t("Again"), t("Send the same prompt again with the current draft and sampling"), () => page.again(this)),
      ...(view.continues ? [] : [link(t("Edit"), t("Edit the prompt; the response is kept as another version"), () => page.edit(this))]), this.remove);
    this.node = el("article", { class: "sp-turn", "data-run": view.id, "data-state": view.state },
      view.continues ? el("p", { class: "sp-continues sp-hint" }, t("continued")) : el("div", { class: "sp-question sp-question-text" }, this.prompt),
      el("div", { class: "sp-answer" }, el("div", { class: "sp-turn-head" }, model, this.state), this.stream.node, this.reading, this.notes,
        el("footer", {}, this.figures, this.actions)));
    this.node.addEventListener("click", () => page.focusTurn(this));
    this.showState(view.state);
    this.showReading();
  }

  // Shows which version of this turn is displayed, with buttons for the others.
  showVersions(ids) {
    this.run.versions = ids;
    const at = ids.indexOf(this.id);
    const stepTo = (step, label, title) => link(label, title, () => this.page.open(this.page.chat, ids[at + step]), { disabled: !ids[at + step], "aria-label": title });
    this.versions.replaceChildren(...(ids.length < 2 ? [] : [stepTo(-1, "‹", t("Previous version")), `${at + 1} / ${ids.length}`, stepTo(1, "›", t("Next version"))]));
  }

  // Shows the response as formatted text if that view is selected. A running response is reloaded; the pause grows with
  // the duration of a request.
  async showReading() {
    if (document.documentElement.dataset.view !== "text" || this.isLoading || this.read) return;
    this.isLoading = true;
    clearTimeout(this.readingAt);
    const { ended } = this.run, startedAt = performance.now();
    try {
      const { nodes } = await fetchJSON(`/api/runs/${this.id}/markdown`);
      this.reading.replaceChildren(...nodes.map(build));
      this.read = ended;
    } catch (error) {
      this.reading.replaceChildren(notice(error.message, "bad"));
    }
    this.isLoading = false;
    if (!ended && this.node.isConnected) this.readingAt = setTimeout(() => this.showReading(), Math.max(READ_MS, 5 * (performance.now() - startedAt)));
  }

  end(run) {
    this.run = { ...run, versions: this.run.versions, continues: this.run.continues };
    this.showState(run.state);
    this.showNotes();
    this.showReading();
  }

  showState(state) {
    this.run.state = state;
    this.node.dataset.state = state;
    const silent = state === "RUNNING" && !this.stream.records.length;
    this.state.textContent = silent ? (trace.isServer(this.run) ? t("waiting for the server…") : t("loading and reading the prompt…")) : STATES[state] ?? state;
  }

  showNotes() {
    const { summary } = this.run, lines = trace.notices(this.run);
    const isServer = trace.isServer(this.run);
    const truncated = isServer ? t("Truncated at the token limit.") : t("Truncated at the token limit; “Continue” resumes it.");
    if (summary.finish === "length") lines.push(el("div", { "data-cut": true }, notice(truncated, "info")));
    this.continueButton.hidden = isServer || !this.run.text || (summary.finish !== "length" && this.run.state !== "CANCELLED");
    this.notes.replaceChildren(...lines);
  }

  showFigures() {
    const { now } = this;
    if (!now.tokens) return;
    const parts = [now.tokens === 1 ? t("{n} token", { n: 1 }) : t("{n} tokens", { n: now.tokens }), t("{speed} tokens/s", { speed: number(now.tokensPerSecond, 1) })];
    if (now.acceptance.length || (trace.isServer(this.run) && now.tau)) parts.push(`τ ${number(now.tau)}`);
    this.figures.textContent = [...parts, trace.conditions(this.run)].join(" · ");
  }
}
