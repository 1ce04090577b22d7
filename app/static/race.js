// Home's race: recorded tokens of the starter with and without its draft (benchmarks/record_race.py), replayed in time.
import { button, el, t } from "./dom.js";
import { onElement } from "./shell.js";

const LANES = { plain: t("Without a draft"), draft: t("With its draft") };
const tokenNodes = (step) => step.slice(1).map(([text, depth]) => el("span", depth ? { class: "tr-token sp-draft", "data-depth": Math.min(depth, 5) } : {}, text));
const seconds = (ms) => `${(ms / 1000).toFixed(1)} s`;

class Lane {
  constructor(title, steps) {
    this.steps = steps;
    this.text = el("div", { class: "tr-tokens sp-race-text" });
    this.time = el("span", { class: "sp-race-time" });
    this.node = el("div", { class: "sp-column" }, el("header", {}, el("h2", {}, title), this.time), this.text);
  }

  get end() { return this.steps.at(-1)[0]; }

  // Shows the steps that had finished `ms` after the start.
  show(ms) {
    while (this.shown < this.steps.length && this.steps[this.shown][0] <= ms) this.text.append(...tokenNodes(this.steps[this.shown++]));
    this.time.textContent = seconds(Math.min(ms, this.end));
  }

  clear() { this.shown = 0; this.text.replaceChildren(); }
}

async function start(root) {
  const response = await fetch(root.dataset.src);
  if (!response.ok) return;
  const race = await response.json();
  const lanes = Object.entries(LANES).map(([name, title]) => new Lane(title, race[name]));
  const last = Math.max(...lanes.map((lane) => lane.end));
  const result = el("p", { class: "sp-hint", role: "status" });
  let run = 0;
  const play = () => {
    const mine = ++run, began = performance.now();
    lanes.forEach((lane) => lane.clear());
    result.textContent = "";
    const still = matchMedia("(prefers-reduced-motion: reduce)").matches;
    const draw = () => {
      if (mine !== run || !root.isConnected) return;
      const ms = still ? last : performance.now() - began;
      lanes.forEach((lane) => lane.show(ms));
      if (ms < last) return requestAnimationFrame(draw);
      result.textContent = t("Same text, {n} × as fast. Colored tokens were drafted and accepted.", { n: (lanes[0].end / lanes[1].end).toFixed(1) });
    };
    draw();
  };
  const source = t("A recording on {machine}, {date}: “{prompt}”", race);
  root.replaceChildren(el("div", { class: "sp-columns" }, ...lanes.map((lane) => lane.node)),
    el("div", { class: "sp-race-foot" }, result, el("span", { class: "sp-hint" }, source), button("small", t("Replay"), play)));
  play();
}

onElement("race", start);
