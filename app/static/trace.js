// Contents of a trace: figures of a running response, acceptance by depth, details of one step, the legend.
import { el, notice, number, percent, term, visible } from "./dom.js";
import { drawTree } from "./tree.js";

const MAX_LOAD_DIFFERENCE = 0.2;  // maximum difference of two loads, as fractions of the cores (speculoos/other_work.py)

// By depth: how often a drafted child was accepted if its parent was (decoding/stats.py).
function acceptance(records) {
  const tried = [], taken = [];
  for (const record of records) {
    const parents = new Set(record.draft.parents);
    [-1, ...record.accepted].forEach((parent, depth) => {
      if (!parents.has(parent)) return;
      tried[depth] = (tried[depth] || 0) + 1;
      taken[depth] = (taken[depth] || 0) + (depth < record.accepted.length ? 1 : 0);
    });
  }
  return tried.map((count, i) => taken[i] / count);
}

// Figures of a run's records so far, as defined in decoding/stats.py and serving/baseline.py; from its summary after its
// end.
export function figuresOf(run, records) {
  const later = records.filter((record) => record.kind !== "prefill");
  const counted = records.filter((record) => record.counted);
  const tokens = (list) => list.reduce((sum, record) => sum + record.tokens.length, 0);
  const ms = (list) => list.reduce((sum, { ms }) => sum + ms.draft + ms.verify + ms.other, 0);
  const summary = (run.ended && run.summary) || {};
  return {
    tokens: tokens(records),
    prefillMs: ms(records) - ms(later),
    tokensPerSecond: summary.decode_tokens_per_second ?? (later.length ? (1000 * tokens(later)) / ms(later) : NaN),
    tau: summary.mean_accepted_length ?? (counted.length ? tokens(counted) / counted.length : NaN),
    acceptance: summary.acceptance_by_depth ?? acceptance(counted),
  };
}

// Notices about a run: from the server (without “Speculation is off” for a plain run, which was requested), about a
// shared device, and its error.
export function notices({ model, request, summary, error }) {
  const drafted = model.includes("@") || request.speculation;
  const texts = (summary.notices || []).filter((text) => drafted || !text.startsWith("Speculation is off"));
  if (summary.shared_with) texts.push(`Measured while the job “${summary.shared_with}” used the same device.`);
  return [...texts.map((text) => notice(text, "warn")), ...(error ? [notice(error, "bad")] : [])];
}

export function bars(shares) {
  if (!shares.length) return el("p", { class: "sp-hint" }, "No draft token was verified.");
  const row = (share, i) => el("li", {}, el("span", { class: "sp-bar-name" }, `${i + 1}`),
    el("span", { class: "sp-bar" }, el("span", { class: "sp-bar-fill", style: `width: ${100 * share}%` })), el("span", { class: "sp-bar-value" }, percent(share)));
  return el("ol", { class: "sp-bars", "aria-label": "Acceptance by depth" }, ...shares.map(row));
}

const KINDS = { prefill: "prefill, first token", verify: "verification", plain: "plain forward pass" };

// A step: its times, its drafted tree, and the base model's token.
export function detail(record) {
  const { ms, index, draft } = record, drafted = draft.tokens.length;
  const times = `draft ${number(ms.draft, 1)} · verify ${number(ms.verify, 1)} · other ${number(ms.other, 1)} ms`;
  const node = el("section", { class: "sp-detail", "aria-label": `Step ${index}` }, el("header", {},
    el("h2", {}, term("step", "Step"), ` ${index}: ${KINDS[record.kind] || record.kind}`), el("span", { class: "sp-hint" }, times)));
  if (drafted) {
    node.append(el("p", {}, `Accepted ${record.accepted.length} of up to ${Math.max(...draft.depths)} tokens (${drafted} candidates)`));
  }
  for (const { origin, text } of record.tokens.filter((token) => token.origin !== "draft")) {
    node.append(el("p", {}, origin === "plain" ? "Plain token: " : "The base model's own token: ", el("code", {}, visible(text))));
  }
  if (drafted) node.append(drawTree(record));
  return node;
}

// The drafting options of a run, as text: prompt lookup, another tree, the lossy rule.
export function draftingOptions(request) {
  const options = request.speculation || {};
  const tree = typeof options.tree === "string" ? options.tree : options.tree ? `tree of ${options.tree.length} choices` : "";
  return [options.drafter === "ngram" ? "prompt lookup" : "", tree.length > 48 ? `${tree.slice(0, 48)}…` : tree,
    options.acceptance === "typical" ? "typical acceptance (lossy)" : ""].filter(Boolean);
}

export function legend() {
  const entry = (words, ...samples) => el("li", {}, el("span", {}, ...samples), el("span", {}, words));
  const sample = (text, origin, depth) => el("span", { class: `tr-token sp-${origin}`, "data-depth": depth }, text);
  return el("ul", { class: "sp-legend", "aria-label": "Legend" },
    entry("drafted and accepted, by depth", ...[1, 2, 3, 4].map((depth) => sample(` ${depth}${depth > 3 ? "+" : ""} `, "draft", depth))),
    entry("character drafted in part", sample(" é ", "mixed")),
    entry("the base model's own token, or no speculation", sample(" word ", "plain")));
}

// Shows a step beside its tokens until something else is selected, where no panel does.
export function popUp(record, anchor) {
  document.querySelector(".sp-popover")?.remove();
  const close = el("button", { type: "button", class: "sp-close", "aria-label": "Close", on: { click: () => popover.remove() } }, "×");
  const popover = el("div", { class: "sp-popover", role: "dialog", "aria-label": `Step ${record.index}`, popover: "auto",
    on: { toggle: ({ newState }) => { if (newState === "closed") popover.remove(); } } }, close, detail(record));
  document.querySelector(".gradio-container").append(popover);
  popover.showPopover({ source: anchor });
}

// Why the ratio of the speeds of two summaries is noisy: they were measured under different loads. An unknown load counts
// as the same.
export function noise(one, other) {
  if ((one?.shared_with || "") !== (other?.shared_with || "")) return "one of the two runs shared the device with a job";
  const [a, b] = [one?.other_load ?? other?.other_load, other?.other_load ?? one?.other_load];
  if (!(Math.abs(a - b) > MAX_LOAD_DIFFERENCE)) return "";
  return `other programs used ${percent(a)} of the machine during this response and ${percent(b)} during the baseline`;
}
