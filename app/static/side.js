// The panel beside a conversation: figures, acceptance by depth, one step, the legend.
import { NARROW, button, el, number, term, t } from "./dom.js";
import * as trace from "./trace.js";

function tile(label, key) {
  const value = el("span", { class: "sp-tile-value", "data-figure": key }, "–");
  const note = el("span", { class: "sp-tile-note" });
  return { node: el("div", { class: "sp-tile" }, el("span", { class: "sp-tile-label" }, label), value, note), value, note };
}

// Why no draft has been verified.
function whyNoDraft(turn, now) {
  const drafted = turn.run.model.includes("@") || turn.run.request.speculation;
  if (!turn.run.ended && !now.tokens) return t("loading the model and reading the prompt…");
  if (!drafted) return t("speculation is off");
  if (!turn.run.ended) return t("drafting starts at the second step");
  return (turn.run.summary.notices || []).some((text) => text.startsWith("Speculation is off")) ? t("speculation is off") : t("no draft was verified");
}

// The plain speed that a response with `summary` is compared with, of the same prompt or length under the same load;
// `plain` is the run that measured it, if any. { speed, exact, waits, noisy, text }; without a speed the text says why.
function reference(summary, plain) {
  if (plain?.error) return { text: plain.error };
  if (plain && !plain.ended) return { waits: true, text: t("measuring the baseline on the same prompt…") };
  const measured = plain?.summary?.decode_tokens_per_second;
  const noise = measured && trace.noise(summary, plain.summary);
  if (noise) return { speed: measured, exact: true, noisy: true, text: t("Noisy: {reason}.", { reason: noise }) };
  const speed = measured || summary?.plain_tokens_per_second;
  if (!speed) return { text: t("Not measured yet.") };
  const exact = Boolean(measured || summary.plain_reference?.same_prompt);
  const what = exact ? t("baseline, same prompt") : t("baseline of the same length and load");
  return { speed, exact, text: t("{what}: {speed} tokens/s.", { what, speed: number(speed, 1) }) };
}

const PAUSE_MS = 250;  // of a running response, four trees a second: drawing one takes up to 10 ms
const RECORDED = t("Not measured: recording probabilities takes additional time.");
const MEASURE = t("Measure the speedup"), RETRY = t("Measure the speedup again");
const SHORT = 64;  // tokens below which a speed is imprecise

export class Side {
  constructor(page) {
    this.page = page;
    this.tiles = { speed: tile(t("Tokens/s"), "speed"), tau: tile(term("tau", t("Mean accepted length (τ)")), "tau"),
      speedup: tile(term("speedup", t("Speedup")), "speedup") };
    this.measure = button("small", MEASURE, () => page.measurePlain(this.noisy), { id: "run-plain", hidden: true });
    this.tiles.speedup.node.append(this.measure);
    this.bars = el("div", {}, el("p", { class: "sp-hint" }, t("No draft verified yet.")));
    this.step = el("div", { class: "sp-panel sp-side-step" });
    this.showStep();
    this.node = el("aside", { class: "sp-side", "aria-label": t("Figures") },
      el("div", { class: "sp-tiles" }, ...Object.values(this.tiles).map(({ node }) => node)), this.step,
      el("section", { class: "sp-panel" }, el("h2", {}, term("acceptance", t("Acceptance by depth"))), this.bars), trace.legend());
  }

  show(turn) {
    const now = turn.now;
    const { speed, tau } = this.tiles, verified = now.acceptance.length;
    speed.value.textContent = number(now.tokensPerSecond, 1);
    speed.note.textContent = now.prefillMs ? t("prefill {ms} ms", { ms: number(now.prefillMs, 0) }) : "";
    tau.value.textContent = verified ? number(now.tau) : "–";
    tau.note.textContent = verified ? t("tokens per verification") : whyNoDraft(turn, now);
    this.bars.replaceChildren(trace.bars(now.acceptance));
    if (trace.isServer(turn.run)) this.showServer(turn.run, now);
    this.showSpeedup(turn, now);
    const record = turn.stream.current, isSoon = !turn.run.ended && performance.now() < this.shownAt + PAUSE_MS;
    if (record !== this.shown && !isSoon && !this.step.matches(":hover, :focus-within")) this.showStep(record);
  }

  // Figures of a server's response, with their sources.
  showServer(run, now) {
    const { speed, tau } = this.tiles;
    if (now.prefillMs) speed.note.textContent = t("first token after {ms} ms, as measured by the workbench", { ms: number(now.prefillMs, 0) });
    tau.value.textContent = number(now.tau);
    tau.note.textContent = run.state === "SUCCEEDED" ? trace.publishedBy(run) : run.ended ? "" : t("published at the end of the response");
    if (!now.acceptance.length) this.bars.replaceChildren(el("p", { class: "sp-hint" }, run.ended ? t("not published by the server") : "–"));
  }

  showSpeedup(turn, now) {
    if (trace.isServer(turn.run)) {
      this.measure.hidden = true;
      this.tiles.speedup.value.textContent = "–";
      this.tiles.speedup.note.textContent = t("Compare it with the same server without a draft.");
      return;
    }
    const { value, note } = this.tiles.speedup, recorded = turn.run.request.speculation?.probabilities;
    const baseline = recorded ? { exact: true, text: RECORDED } : reference(turn.run.summary, turn.plain);
    const measurable = turn.run.ended && now.tokens && now.acceptance.length;
    this.noisy = Boolean(baseline.noisy);
    this.measure.hidden = !measurable || (baseline.exact && !this.noisy) || Boolean(baseline.waits);
    this.measure.textContent = this.noisy ? RETRY : MEASURE;
    const speedup = measurable && baseline.speed ? now.tokensPerSecond / baseline.speed : NaN;
    value.textContent = Number.isFinite(speedup) ? `${this.noisy ? "≈ " : ""}${number(speedup)}×` : "–";
    const slower = !this.noisy && speedup < 0.98 ? t("Slower than the baseline: too few drafted tokens are accepted.") : "";
    const short = speedup && now.tokens < SHORT ? t("Imprecise: the response is short.") : "";
    note.textContent = now.acceptance.length || baseline.waits ? [baseline.text, slower, short].filter(Boolean).join(" ") : "";
  }

  showStep(record) {
    this.shown = record;
    this.shownAt = performance.now();
    const hint = NARROW.matches ? t("The drafted tree of the newest step appears here. Tap a token for another step.")
      : t("The drafted tree of the newest step appears here. Point at a token, or press ← or →, for another step.");
    this.step.replaceChildren(record ? trace.detail(record) : el("p", { class: "sp-hint" }, hint));
  }
}
