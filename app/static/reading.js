// Builds a formatted response from Markdown. The server sends a tree of known elements (app/rendered.py); every text in
// it becomes a text node.
import { button, el, t } from "./dom.js";

const SIMPLE = new Set(["p", "ul", "li", "blockquote", "em", "strong", "s", "code", "table", "thead", "tbody", "tr", "th",
  "td", "hr", "br", "span"]);

export function build(node) {
  if (typeof node === "string") return document.createTextNode(node);
  const inside = (node.children || []).map(build);
  if (node.tag === "pre") return codeBlock(node.language, inside);
  if (node.tag === "heading") return el("p", { class: "sp-md-heading", "data-level": node.level }, ...inside);
  if (node.tag === "a") return el("a", { href: safeAddress(node.href), target: "_blank", rel: "noopener noreferrer nofollow", title: node.href }, ...inside);
  if (node.tag === "ol") return el("ol", { start: Number(node.start) || undefined }, ...inside);
  if (node.tag === "table") return el("div", { class: "sp-md-table", tabindex: "0" }, el("table", {}, ...inside));
  return SIMPLE.has(node.tag) ? el(node.tag, {}, ...inside) : el("span", {}, ...inside);
}

const safeAddress = (address) => (/^(https?|mailto):/i.test(address) ? address : undefined);

function codeBlock(language, parts) {
  const code = el("pre", { tabindex: "0" }, el("code", {}, ...parts));
  const head = el("div", { class: "sp-md-code-head" }, el("span", {}, language || "code"), copyButton(() => code.textContent, t("Copy code")));
  return el("div", { class: "sp-md-code" }, head, code);
}

// A button that copies the result of `text()` and briefly confirms it.
export function copyButton(text, label) {
  const node = button("link", t("Copy"), async () => {
    node.textContent = (await copy(text())) ? t("Copied") : t("Could not copy");
    setTimeout(() => { node.textContent = t("Copy"); }, 1600);
  }, { title: label });
  return node;
}

// Copies to the clipboard. Pages loaded over plain HTTP from another machine have no `navigator.clipboard`.
async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    const field = el("textarea", { "aria-hidden": "true", style: "position: fixed; opacity: 0" });
    field.value = text;
    document.body.append(field);
    field.select();
    const done = document.execCommand("copy");
    field.remove();
    return done;
  }
}
