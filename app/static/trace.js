// Contents of a trace: figures of a running response, acceptance by depth, details of one step, the legend.
import { el, notice, number, percent, term, visible, t } from "./dom.js";
import { drawTree } from "./tree.js";

export const isServer = (run) => run.model.startsWith("@");  // tracking/names.py
export const modelName = ({ model }) => (model.startsWith("@") ? t("{name} · server", { name: model.slice(1) }) : model);

const MAX_LOAD_DIFFERENCE = 0.2;  // maximum difference of two loads, as fractions of the cores (speculoos/cpu_load.py)

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
    tokens: (isServer(run) && summary.tokens) || tokens(records),
    prefillMs: (isServer(run) && summary.ms_prefill) || ms(records) - ms(later),
    tokensPerSecond: summary.decode_tokens_per_second ?? (later.length ? (1000 * tokens(later)) / ms(later) : NaN),
    tau: summary.mean_accepted_length ?? (counted.length ? tokens(counted) / counted.length : NaN),
    acceptance: summary.acceptance_by_depth ?? acceptance(counted),
  };
}

// Why the origins of the tokens of a server's ended response are unknown; "" if they are known.
function unknownOrigins({ state, summary }) {
  if (state !== "SUCCEEDED" || summary.origins === "known") return "";
  const server = summary.server || t("This server");
  if (summary.origins === "unclear") return t("{server}: the published steps do not fit the tokens, so no token is colored.", { server });
  if (summary.mean_accepted_length) return t("{server} publishes totals, not which tokens were drafted, so no token is colored.", { server });
  const hint = summary.server === "vLLM" ? t("Start it with {option}.", { option: "--per-request-spec-decode-metrics detailed" }) : "";
  return [t("{server} publishes nothing about drafting, so no token is colored.", { server }), hint].filter(Boolean).join(" ");
}

// The source of the acceptance figures of a server's response, as text.
export function publishedBy({ summary }) {
  const { accepted, drafted, server, mean_accepted_length: tau } = summary;
  if (!tau) return t("not published by the server");
  const source = server || t("the server");
  return drafted == null ? t("tokens per verification, as counted by {source}", { source })
    : t("{accepted} of {drafted} drafted tokens accepted, as counted by {source}", { accepted, drafted, source });
}

// Notices about a run: from the server (without “Speculation is off” for a plain run, which was requested), about a
// shared device, and its error.
export function notices(run) {
  const { model, request, summary, error } = run, unknown = isServer(run) && unknownOrigins(run);
  const drafted = model.includes("@") || request.speculation;
  const texts = (summary.notices || []).filter((text) => drafted || !text.startsWith("Speculation is off"));
  if (summary.shared_with) texts.push(t("Measured while the job “{job}” used the same device.", { job: summary.shared_with }));
  return [...(unknown ? [notice(unknown, "info")] : []), ...texts.map((text) => notice(text, "warn")), ...(error ? [notice(error, "bad")] : [])];
}

export function bars(shares) {
  if (!shares.length) return el("p", { class: "sp-hint" }, t("No draft token was verified."));
  const row = (share, i) => el("li", {}, el("span", { class: "sp-bar-name" }, `${i + 1}`),
    el("span", { class: "sp-bar" }, el("span", { class: "sp-bar-fill", style: `width: ${100 * share}%` })), el("span", { class: "sp-bar-value" }, percent(share)));
  return el("ol", { class: "sp-bars", "aria-label": t("Acceptance by depth") }, ...shares.map(row));
}

const KINDS = { chunk: t("streamed part"), prefill: t("prefill, first token"), verify: t("verification"), plain: t("plain forward pass") };

// A step: its times, its drafted tree, and the base model's token.
export function detail(record) {
  const { ms, index, draft, served } = record, drafted = draft.tokens.length;
  const [draftMs, verifyMs, otherMs] = [ms.draft, ms.verify, ms.other].map((each) => number(each, 1));
  const times = served ? t("{ms} ms after the one before", { ms: otherMs }) : t("draft {draftMs} · verify {verifyMs} · other {otherMs} ms", { draftMs, verifyMs, otherMs });
  const node = el("section", { class: "sp-detail", "aria-label": t("Step {index}", { index }) }, el("header", {},
    el("h2", {}, term("step", t("Step")), ` ${index}: ${KINDS[record.kind] || record.kind}`), el("span", { class: "sp-hint" }, times)));
  if (drafted) {
    node.append(el("p", {}, t("Accepted {n} of up to {most} tokens ({drafted} candidates)", { n: record.accepted.length, most: Math.max(...draft.depths), drafted })));
  }
  if (served?.drafted) {
    node.append(el("p", {}, t("Accepted {accepted} of {drafted} drafted tokens. The server does not report which tokens were rejected.", served)));
  }
  for (const { origin, text } of record.tokens.filter((token) => !["draft", "unknown"].includes(token.origin))) {
    node.append(el("p", {}, origin === "plain" ? t("Plain token:") : t("The base model's own token:"), " ", el("code", {}, visible(text))));
  }
  if (drafted) node.append(drawTree(record));
  return node;
}

// The drafting options of a run, as text: prompt lookup, another tree, the lossy rule.
export function draftingOptions(request) {
  const options = request.speculation || {};
  const tree = typeof options.tree === "string" ? options.tree : options.tree ? t("tree of {n} choices", { n: options.tree.length }) : "";
  const drafter = { ngram: t("prompt lookup"), mtp: t("own multi-token prediction") }[options.drafter] || "";
  return [drafter, tree.length > 48 ? `${tree.slice(0, 48)}…` : tree,
    options.acceptance === "typical" ? t("typical acceptance (lossy)") : ""].filter(Boolean);
}

// The conditions of a run that are stored, as text.
export function conditions({ request, summary = {} }) {
  const { temperature = 0, top_p: topP, top_k: topK, max_tokens: most, seed } = request;
  return [`T ${temperature}`, topP && `top-p ${topP}`, topK && `top-k ${topK}`, most && t("max {most}", { most }), seed != null && t("seed {seed}", { seed }),
    summary?.dtype, summary?.device, summary?.server, summary?.served_model].filter(Boolean).join(" · ");
}

export function legend() {
  const entry = (label, ...samples) => el("li", { class: samples[0].className.includes("sp-unknown") ? "sp-legend-unknown" : "" }, el("span", {}, ...samples), el("span", {}, label));
  const sample = (text, origin, depth) => el("span", { class: `tr-token sp-${origin}`, "data-depth": depth }, text);
  return el("ul", { class: "sp-legend", "aria-label": t("Legend") },
    entry(t("drafted and accepted, by depth"), ...[1, 2, 3, 4].map((depth) => sample(` ${depth}${depth > 3 ? "+" : ""} `, "draft", depth))),
    entry(t("character drafted in part"), sample(" é ", "mixed")),
    entry(t("the base model's own token, or no speculation"), sample(" word ", "plain")),
    entry(t("origin not known"), sample(" word ", "unknown")));
}

// Shows a step beside its tokens where no panel shows it, until something else is selected.
export function popUp(record, anchor) {
  document.querySelector(".sp-popover")?.remove();
  const close = el("button", { type: "button", class: "sp-close", "aria-label": t("Close"), on: { click: () => popover.remove() } }, "×");
  const popover = el("div", { class: "sp-popover", role: "dialog", "aria-label": t("Step {index}", record), popover: "auto",
    on: { toggle: ({ newState }) => { if (newState === "closed") popover.remove(); } } }, close, detail(record));
  document.querySelector(".gradio-container").append(popover);
  popover.showPopover({ source: anchor });
}

// Why the ratio of the speeds of two summaries is noisy: they were measured under different loads. An unknown load counts
// as the same.
export function noise(one, other) {
  if ((one?.shared_with || "") !== (other?.shared_with || "")) return t("one of the two runs shared the device with a job");
  const [a, b] = [one?.other_load ?? other?.other_load, other?.other_load ?? one?.other_load];
  if (!(Math.abs(a - b) > MAX_LOAD_DIFFERENCE)) return "";
  return t("other programs used {a} of the machine during this response and {b} during the baseline", { a: percent(a), b: percent(b) });
}
