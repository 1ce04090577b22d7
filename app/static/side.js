// The panel beside a conversation: tiles, acceptance by depth, one step, the legend.
import { el, number } from "./dom.js";
import * as trace from "./trace.js";

function tile(label, key) {
  const value = el("span", { class: "sp-tile-value", "data-figure": key }, "–");
  const note = el("span", { class: "sp-tile-note" });
  return { node: el("div", { class: "sp-tile" }, el("span", { class: "sp-tile-label" }, label), value, note), value, note };
}

class Side {
  constructor(page) {
    this.page = page;
    this.tiles = { speed: tile("Tokens/s", "speed"), tau: tile("Mean accepted length τ", "tau"), speedup: tile("Speedup", "speedup") };
    this.measure = el("button", { class: "sp-small-button", type: "button", id: "run-plain", hidden: true,
      on: { click: () => page.measurePlain() } }, "Run plain");
    this.tiles.speedup.node.append(this.measure);
    this.bars = el("div", { class: "sp-panel-body" }, el("p", { class: "sp-hint" }, "Filled while a draft is checked."));
    this.step = el("div", { class: "sp-panel-body" }, el("p", { class: "sp-hint" }, "Point at a token, or walk with ← and →, to see what was drafted there."));
    const panel = (title, body) => el("section", { class: "sp-panel" }, el("h2", {}, title), body);
    this.node = el("aside", { class: "sp-side", "aria-label": "Figures" },
      el("div", { class: "sp-tiles" }, ...Object.values(this.tiles).map((t) => t.node)),
      panel("Acceptance by depth", this.bars), panel("Step", this.step), panel("How to read it", trace.legend()));
  }

  show(turn) {
    const now = turn.current();
    this.tiles.speed.value.textContent = number(now.tokensPerSecond, 1);
    this.tiles.speed.note.textContent = now.prefillMs ? `prompt read in ${number(now.prefillMs, 0)} ms, left out` : "";
    this.tiles.tau.value.textContent = now.acceptance.length ? number(now.tau) : "–";
    this.tiles.tau.note.textContent = now.acceptance.length ? "tokens per verification" : "speculation is off";
    this.bars.replaceChildren(trace.bars(now.acceptance));
    this.showSpeedup(turn, now);
  }

  showSpeedup(turn, now) {
    const { value, note } = this.tiles.speedup;
    const alike = (turn.plain?.summary?.shared_with || "") === (turn.run.summary?.shared_with || "");
    const measured = turn.plain?.summary?.decode_tokens_per_second;
    const exact = alike ? measured : undefined;
    const rough = turn.run.summary?.plain_tokens_per_second;
    const base = exact ?? rough;
    const measuring = turn.plain && !turn.plain.ended;
    this.measure.hidden = !turn.run.ended || !now.tokens || Boolean(measured) || Boolean(measuring) || !now.acceptance.length;
    const speedup = base && now.acceptance.length ? now.tokensPerSecond / base : NaN;
    value.textContent = Number.isFinite(speedup) ? `${number(speedup)}×` : "–";
    const slower = speedup < 0.98 ? " Slower than plain: too few drafted tokens are accepted to pay for drafting." : "";
    if (turn.plain?.error) note.textContent = turn.plain.error;
    else if (measuring) note.textContent = "measuring plain decoding of the same prompt…";
    else if (exact) note.textContent = `plain, same prompt: ${number(exact, 1)} tokens/s.${slower}`;
    else if (measured) note.textContent = "one of the two runs shared the device with a job, so they cannot be compared; ask again";
    else if (rough) note.textContent = `against a short plain run, ${number(rough, 1)} tokens/s.${slower} Measure this prompt:`;
    else note.textContent = now.acceptance.length ? "not measured yet; run plain" : "";
  }

  showStep(record) { this.step.replaceChildren(trace.detail(record)); }
}

export { Side };
