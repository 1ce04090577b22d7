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

// Figures of the records so far, as defined in decoding/stats.py and serving/baseline.py.
function figures(records) {
  const later = records.filter((record) => record.kind !== "prefill");
  const counted = records.filter((record) => record.counted);
  const tokens = (list) => list.reduce((sum, record) => sum + record.tokens.length, 0);
  const ms = (list) => list.reduce((sum, { ms }) => sum + ms.draft + ms.verify + ms.other, 0);
  return {
    tokens: tokens(records),
    prefillMs: ms(records) - ms(later),
    tokensPerSecond: later.length ? (1000 * tokens(later)) / ms(later) : NaN,
    tau: counted.length ? tokens(counted) / counted.length : NaN,
    acceptance: acceptance(counted),
  };
}

// The same for a run; from its stored summary after its end.
function figuresOf(run, records) {
  const own = figures(records), summary = (run.ended && run.summary) || {};
  return {
    ...own,
    tokensPerSecond: summary.decode_tokens_per_second ?? own.tokensPerSecond,
    tau: summary.mean_accepted_length ?? own.tau,
    acceptance: summary.acceptance_by_depth ?? own.acceptance,
  };
}

// Notices about a run: from the server (without “Speculation is off” for a plain run, which was requested), about a
// shared device, and its error.
function notices({ model, request, summary, error }) {
  const drafted = model.includes("@") || request.speculation;
  const texts = (summary.notices || []).filter((text) => drafted || !text.startsWith("Speculation is off"));
  if (summary.shared_with) texts.push(`Measured while the job “${summary.shared_with}” used the same device.`);
  return [...texts.map((text) => notice(text, "warn")), ...(error ? [notice(error, "bad")] : [])];
}

function bar(share) {
  const fill = el("span", { class: "sp-bar-fill" });
  fill.style.width = `${Math.max(0, Math.min(1, share)) * 100}%`;
  return el("span", { class: "sp-bar" }, fill);
}

function bars(shares) {
  if (!shares.length) return el("p", { class: "sp-hint" }, "No draft token was verified.");
  const row = (share, i) => el("li", {}, el("span", { class: "sp-bar-name" }, `${i + 1}`), bar(share),
    el("span", { class: "sp-bar-value" }, percent(share)));
  return el("ol", { class: "sp-bars", "aria-label": "Acceptance by depth" }, ...shares.map(row));
}

function detailHead(record) {
  const kinds = { prefill: "prefill, first token", verify: "verification", plain: "plain forward pass" };
  const ms = record.ms;
  const times = `draft ${number(ms.draft, 1)} · verify ${number(ms.verify, 1)} · other ${number(ms.other, 1)} ms`;
  return el("header", {}, el("h2", {}, term("step", "Step"), ` ${record.index}: ${kinds[record.kind] || record.kind}`), el("span", { class: "sp-hint" }, times));
}

// A step: its times, its drafted tree, and the base model's token.
function detail(record) {
  const node = el("section", { class: "sp-detail", "aria-label": `Step ${record.index}` }, detailHead(record));
  const drafted = record.draft.tokens.length;
  if (drafted) {
    node.append(el("p", {}, `Accepted ${record.accepted.length} of up to ${Math.max(...record.draft.depths)} tokens (${drafted} candidates)`));
  }
  for (const { origin, text } of record.tokens.filter((token) => token.origin !== "draft")) {
    node.append(el("p", {}, origin === "plain" ? "Plain token: " : "The base model's own token: ", el("code", {}, visible(text))));
  }
  if (drafted) node.append(drawTree(record));
  return node;
}

// The drafting options of a run, as text: prompt lookup, another tree, the lossy rule.
function draftingOptions(request) {
  const options = request.speculation || {};
  const tree = typeof options.tree === "string" ? options.tree : options.tree ? `tree of ${options.tree.length} choices` : "";
  return [options.drafter === "ngram" ? "prompt lookup" : "", tree.length > 48 ? `${tree.slice(0, 48)}…` : tree,
    options.acceptance === "typical" ? "typical acceptance (lossy)" : ""].filter(Boolean);
}

function legend() {
  const entry = (words, ...samples) => el("li", {}, el("span", {}, ...samples), el("span", {}, words));
  const sample = (text, origin, depth) => el("span", { class: `tr-token sp-${origin}`, "data-depth": depth }, text);
  return el("ul", { class: "sp-legend", "aria-label": "Legend" },
    entry("drafted and accepted, by depth", ...[1, 2, 3, 4].map((depth) => sample(` ${depth}${depth > 3 ? "+" : ""} `, "draft", depth))),
    entry("character drafted in part", sample(" é ", "mixed")),
    entry("the base model's own token, or no speculation", sample(" word ", "plain")));
}

// Shows a step beside its tokens until something else is selected, where no panel does.
function popUp(record, anchor) {
  document.querySelector(".sp-popover")?.remove();
  const close = el("button", { type: "button", class: "sp-close", "aria-label": "Close", on: { click: () => popover.remove() } }, "×");
  const popover = el("div", { class: "sp-popover", role: "dialog", "aria-label": `Step ${record.index}`, popover: "auto",
    on: { toggle: ({ newState }) => { if (newState === "closed") popover.remove(); } } }, close, detail(record));
  document.querySelector(".gradio-container").append(popover);
  popover.showPopover({ source: anchor });
}

// Whether two summaries were measured under the same load. An unknown load counts as the same.
function sameLoad(one, other) {
  const [a, b] = [one?.other_load, other?.other_load];
  const close = a == null || b == null || Math.abs(a - b) <= MAX_LOAD_DIFFERENCE;
  return close && (one?.shared_with || "") === (other?.shared_with || "");
}

// Why the ratio of two speeds is noisy.
function noiseReason(one, other) {
  if ((one?.shared_with || "") !== (other?.shared_with || "")) return "one of the two runs shared the device with a job";
  return `other programs used ${percent(one.other_load)} of the machine during this response and ${percent(other.other_load)} during the baseline`;
}

export { figuresOf, notices, bars, detail, draftingOptions, legend, popUp, sameLoad, noiseReason };
