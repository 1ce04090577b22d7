// What a speedup is counted against: a plain answer to the same prompt, or one of the same length, under the same load.
import { number, percent } from "./dom.js";

const ALIKE = 0.2;  // speculoos/other_work.py: shares of the machine's cores that loads may differ by

// Whether two summaries were taken under the same load. A share that is not known is given the doubt.
function sameLoad(one, other) {
  const [a, b] = [one?.other_load, other?.other_load];
  const close = a == null || b == null || Math.abs(a - b) <= ALIKE;
  return close && (one?.shared_with || "") === (other?.shared_with || "");
}

// Why the ratio of two speeds is noisy.
function whyUnlike(one, other) {
  if ((one?.shared_with || "") !== (other?.shared_with || "")) return "one of the two runs shared the device with a job";
  return `other programs used ${percent(one.other_load)} of the machine during this answer and ${percent(other.other_load)} during the plain one`;
}

// The plain speed to set an answer with `summary` against; `plain` is the run that was made to measure it, if any.
// { speed, exact, waits, noisy, words }: without a speed the words say why; `noisy`: the loads differed.
function reference(summary, plain) {
  if (plain?.error) return { words: plain.error };
  if (plain && !plain.ended) return { waits: true, words: "measuring plain decoding of the same prompt…" };
  const measured = plain?.summary?.decode_tokens_per_second;
  if (measured && !sameLoad(summary, plain.summary)) return { speed: measured, exact: true, noisy: true, words: `Noisy: ${whyUnlike(summary, plain.summary)}.` };
  if (measured) return { speed: measured, exact: true, words: `plain, same prompt: ${number(measured, 1)} tokens/s.` };
  const known = summary?.plain_tokens_per_second;
  if (!known) return { words: "not measured: no plain answer to this prompt, or of this length, under the same load." };
  const exact = Boolean(summary.plain_reference?.same_prompt);
  const what = exact ? "plain, same prompt" : "against a plain answer of the same length and load";
  return { speed: known, exact, words: `${what}: ${number(known, 1)} tokens/s.` };
}

// Compare, with the base and the draft of a run and its question filled in.
function bothOf(run) {
  const [base] = run.model.split("@");
  const drafted = run.request.speculation?.drafter === "ngram" ? `${run.model}:ngram` : run.model;
  const asked = run.request.messages || [];
  const query = new URLSearchParams({ models: `${base},${drafted}`, prompt: asked[asked.length - 1]?.content || "" });
  const tree = run.request.speculation?.tree;
  if (typeof tree === "string") query.set("tree", tree);
  return `/compare?${query}`;
}

export { sameLoad, whyUnlike, reference, bothOf };
