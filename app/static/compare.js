// The Compare page: one column per target, each measured alone, one after another; then their differences.
import { allow, button, el, listenToKeys, notice, number, onceAFrame, setAddress, sureButton, term, t } from "./dom.js";
import { onElement } from "./shell.js";
import { fetchOrShow } from "./stream.js";
import { LiveRun } from "./tokens.js";
import * as trace from "./trace.js";

const MEASURED = [t("measured first"), t("measured second"), t("measured third"), t("measured fourth")];
const STATES = { QUEUED: t("queued"), RUNNING: t("measuring…"), CANCELLED: t("stopped"), FAILED: t("failed") };
// Figures of a column: key, name, and the term whose definition is the tooltip.
const FIGURES = [["speed", t("tokens/s")], ["tau", "τ", "tau"], ["speedup", t("speedup"), "speedup"], ["tokens", t("tokens")]];

class Column extends LiveRun {
  // `when`: position in the order of measurement, which is reversed in every second comparison.
  constructor(view, page, index, when) {
    super(view, (record, node) => node && trace.popUp(record, node), () => page.changed());
    this.index = index;
    this.when = when;
    this.badge = el("span", { class: "sp-badge" });
    this.match = el("span", { class: "sp-match" });
    this.values = Object.fromEntries(FIGURES.map(([key]) => [key, el("b", { "data-figure": key }, "–")]));
    this.bars = el("div", {});
    this.notes = el("div", { class: "sp-column-notes" });
    const name = el("h2", {}, [trace.modelName(view), ...trace.draftingOptions(view.request)].join(" · "));
    const figures = el("dl", { class: "sp-column-figures" },
      ...FIGURES.map(([key, name, termKey]) => el("div", {}, el("dt", {}, termKey ? term(termKey, name) : name), el("dd", {}, this.values[key]))));
    this.node = el("section", { class: "sp-column", "data-run": view.id, "data-state": view.state }, el("header", {}, name, this.badge),
      figures, this.bars, this.match, this.notes, this.stream.node);
    this.showState(view.state);
  }

  end(run) {
    this.run = run;
    this.showState(run.state);
    const lines = [el("p", { class: "sp-hint" }, [trace.conditions(run), t("batch size 1, one run"), ...this.sources(run)].join(" · ")), ...trace.notices(run)];
    if (run.state === "CANCELLED") lines.push(notice(run.text ? t("Stopped before the end, so it is not compared.") : t("Stopped before it was measured."), "warn"));
    this.notes.replaceChildren(...lines);
  }

  // The sources of the figures of a server's response.
  sources(run) {
    if (!trace.isServer(run) || !run.summary.ms_prefill) return [];
    return [t("first token after {ms} ms, as measured by the workbench", { ms: number(run.summary.ms_prefill, 0) }), `τ: ${trace.publishedBy(run)}`];
  }

  showState(state) {
    this.run.state = state;
    this.node.dataset.state = state;
    this.badge.textContent = state === "SUCCEEDED" ? MEASURED[this.when] : STATES[state] ?? state;
    this.badge.className = `sp-badge ${{ SUCCEEDED: "sp-good", FAILED: "sp-bad", RUNNING: "sp-info", CANCELLED: "sp-warn" }[state] || ""}`;
  }

  show(plain) {
    const now = this.now;
    const comparable = !trace.isServer(this.run) && plain?.run.ended && plain.now.tokensPerSecond > 0 && now.tokens;
    const noise = comparable && trace.noise(this.run.summary, plain.run.summary);
    if (noise && this.run.ended) this.showNoise(noise);
    const speedup = comparable ? `${noise ? "≈ " : ""}${number(now.tokensPerSecond / plain.now.tokensPerSecond)}×` : "–";
    const shown = { speed: number(now.tokensPerSecond, 1), tau: now.tokens ? number(now.tau) : "–", tokens: now.tokens || "–", speedup };
    for (const [key, text] of Object.entries(shown)) this.values[key].textContent = text;
    this.bars.replaceChildren(...(now.acceptance.length ? [trace.bars(now.acceptance)] : []));
  }

  showNoise(reason) {
    this.noise ||= notice(t("The speedup is noisy: {reason}. Press Compare to measure again.", { reason }), "warn");
    this.notes.append(this.noise);
  }

  showMissing(index) { if (this.run.state === "SUCCEEDED") this.match.textContent = t("not compared: column {n} is not measured", { n: index + 1 }); }

  showMatch({ identical, first_divergence: at, request, by_text: byText }, isPlain) {
    const lossy = request.speculation?.acceptance === "typical";
    const chance = lossy ? t("typical acceptance is lossy, so outputs may differ") : request.temperature > 0 ? t("sampled outputs may differ") : "";
    if (this.index === 0) this.match.textContent = isPlain ? t("baseline of the other columns") : t("reference output of the other columns");
    else if (identical) this.match.textContent = byText ? t("✓ same text") : t("✓ same output, token for token");
    else this.match.textContent = [t("≠ differs from the first column at token {n}", { n: at + 1 }), chance].filter(Boolean).join("; ");
    if (this.index) this.match.classList.add(identical ? "sp-good" : "sp-bad");
    if (!identical) this.stream.mark(at, t("first token that differs from the first column"));
  }
}

// The page: one comparison, in the URL as ?comparison=ID.
class ComparePage {
  constructor(root) {
    this.columns = [];
    this.turn = 0;
    this.changed = onceAFrame(() => this.draw());
    this.prompt = el("div", { class: "sp-question" });
    this.tools = el("div", { class: "sp-compare-tools" });
    this.replay = button("small", t("Replay side by side"), () => this.replayAll(), { id: "replay" });
    this.delete = sureButton("small", t("Delete"), () => this.remove(), { id: "delete-comparison" });
    this.grid = el("div", { class: "sp-columns" });
    this.root = root;
    this.empty(t("Nothing compared yet"));
    this.open(new URLSearchParams(location.search).get("comparison"));
    listenToKeys("#compare-prompt", "#compare-run", (event) => { if (this.live().length) { event.preventDefault(); this.stop(); } });
  }

  async open(id) {
    if (!id) return;
    for (const column of this.columns) column.stop?.();
    const turn = ++this.turn;
    this.id = id;
    setAddress({ comparison: id });
    this.root.replaceChildren();
    const comparison = await this.fetch(this.root);
    if (!comparison || turn !== this.turn) return;
    const order = comparison.columns.map((view) => view.created_at).sort();
    this.columns = comparison.columns.map((view, i) => new Column(view, this, i, order.indexOf(view.created_at)));
    delete this.root.dataset.finished;
    this.prompt.textContent = comparison.columns[0].request.messages.at(-1).content;
    this.grid.replaceChildren(...this.columns.map((column) => column.node));
    this.grid.style.setProperty("--columns", this.columns.length);
    this.tools.replaceChildren(trace.legend());
    this.root.replaceChildren(this.prompt, this.tools, this.grid);
    this.changed();
    for (const column of [...this.columns].sort((a, b) => a.when - b.when)) if (turn === this.turn) await column.follow();
    if (turn === this.turn) await this.finish();
  }

  empty(heading) {
    this.root.replaceChildren(el("div", { class: "sp-empty" }, el("h2", {}, heading),
      el("p", {}, t("Choose two to four targets and a prompt."))));
  }

  async remove() {
    if (!await this.fetch(this.tools, "DELETE")) return;
    document.querySelector(`#recent a[href$="comparison=${CSS.escape(this.id)}"]`)?.closest("li").remove();
    this.turn++;
    this.columns = [];
    this.changed();
    setAddress({ comparison: null });
    this.empty(t("Deleted"));
  }

  fetch(box, method) { return fetchOrShow(box, `/api/comparisons/${encodeURIComponent(this.id)}`, method); }

  async finish() {
    const comparison = await this.fetch(this.tools);
    if (!comparison) return;
    const complete = comparison.columns.every((view) => view.state === "SUCCEEDED");
    const missing = comparison.columns.findIndex((view) => view.state !== "SUCCEEDED");
    comparison.columns.forEach((view, i) => {
      if (complete) this.columns[i].showMatch(view, this.plain === this.columns[0]);
      else if (i !== missing) this.columns[i].showMissing(missing);
    });
    if (this.columns.some((column) => column.stream.records.length)) this.tools.append(this.replay);
    this.tools.append(this.delete);
    this.draw();
    this.root.dataset.finished = "yes";
  }

  // The column that speedups refer to.
  get plain() {
    return this.columns.find((c) => !c.run.model.includes("@") && !c.run.request.speculation);
  }

  draw() {
    for (const column of this.columns) column.show(this.plain);
    allow("compare-stop", this.live().length > 0);
  }

  // Replays all columns at once, each at its recorded speed.
  replayAll() {
    this.replay.disabled = true;
    const startedAt = performance.now();
    const lanes = this.columns.map((column) => {
      const { records } = column.stream;
      column.stream.clear();
      let at = 0;
      return { column, queue: records.map((record) => ({ record, at: (at += record.ms.draft + record.ms.verify + record.ms.other) })) };
    });
    const tick = () => {
      const now = performance.now() - startedAt;
      for (const lane of lanes) while (lane.queue.length && lane.queue[0].at <= now) lane.column.stream.append(lane.queue.shift().record);
      if (lanes.some((lane) => lane.queue.length)) requestAnimationFrame(tick);
      else { this.replay.disabled = false; this.finish(); }
    };
    requestAnimationFrame(tick);
  }

  live() { return this.columns.filter((column) => !column.run.ended); }

  async stop() {
    for (const { run, notes } of this.live()) await fetchOrShow(notes, `/api/runs/${run.id}/cancel`, "POST");
  }
}

onElement("compare", (root) => { window.speculoos.compare = new ComparePage(root); });
