// Helpers of all scripts: elements, texts, numbers, the URL of the page.
// Texts of users and models enter the page as textContent, never as markup.
// The translation of an English text, whose {names} are replaced by `values` (app/i18n.py, in the page's head).
const messages = JSON.parse(document.getElementById("messages")?.textContent || "{}");
export const t = (text, values = {}) => (messages[text] || text).replace(/\{(\w+)\}/g, (all, name) => values[name] ?? all);

// Creates an element with attributes and children; strings become text nodes.
export const el = (name, attributes = {}, ...children) => filled(document.createElement(name), attributes, children);
export const svg = (name, attributes = {}, ...children) => filled(document.createElementNS("http://www.w3.org/2000/svg", name), attributes, children);

function filled(node, attributes, children) {
  for (const [key, value] of Object.entries(attributes)) {
    if (value === undefined || value === null || value === false) continue;
    if (key === "on") for (const [kind, run] of Object.entries(value)) node.addEventListener(kind, run);
    else node.setAttribute(key, value === true ? "" : value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

// Makes spaces and line breaks visible, for lists of single tokens.
export function visible(text) {
  if (!text) return t("(part of a character)");
  return text.replace(/\n/g, "⏎").replace(/\t/g, "⇥").replace(/^ | $/g, "␣");
}

export const percent = (share) => `${(share * 100).toFixed(share < 0.0995 ? 1 : 0)} %`;
export const number = (value, digits = 2) => (Number.isFinite(value) ? value.toFixed(digits) : "–");

// A technical term with its definition as a tooltip (app/widgets/terms.py, in the page's head).
export const definitions = JSON.parse(document.getElementById("terms")?.textContent || "{}");
export function term(key, text) {
  return el("abbr", { class: "sp-term", title: definitions[key]?.[1], "data-term": key }, text);
}

// A button of the kind "small" or "link".
export function button(kind, label, run, more = {}) {
  return el("button", { type: "button", class: `sp-${kind}-button`, on: { click: run }, ...more }, label);
}

// A message in a colored box with a sign.
export function notice(text, tone) {
  const signs = { info: "i", warn: "!", bad: "×", good: "✓" };
  return el("div", { class: `sp-notice sp-${tone}`, role: tone === "bad" ? "alert" : "status" },
    el("span", { class: "sp-sign", "aria-hidden": "true" }, signs[tone]), el("span", {}, text));
}

// A choice that the browser stores: `preference(key)` reads it, `preference(key, value)` stores it; not in private mode.
export function preference(key, value) {
  try { return value === undefined ? localStorage.getItem(key) : localStorage.setItem(key, value); } catch { return null; }
}

export const NARROW = window.matchMedia("(max-width: 900px)");

// Sets query parameters of the URL without loading a page; null removes one.
export function setAddress(values) {
  const address = new URL(location.href);
  for (const [key, value] of Object.entries(values)) {
    if (value === null) address.searchParams.delete(key);
    else address.searchParams.set(key, value);
  }
  if (address.href !== location.href) history.replaceState(history.state, "", address);
}

// Enables or disables the button `id`.
export function allow(id, can) {
  const button = document.getElementById(id);
  if (button && button.disabled === can) button.disabled = !can;
}

// A button that asks for confirmation in its own label before an action that cannot be undone.
export function sureButton(kind, label, act, more = {}) {
  const node = button(kind, label, () => {
    if (node.dataset.sure) return act();
    node.dataset.sure = "yes";
    node.textContent = t("Delete permanently?");
  }, more);
  node.addEventListener("blur", () => { delete node.dataset.sure; node.textContent = label; });
  return node;
}

// A function that calls `draw` once in the next frame, no matter how often it is called.
export function onceAFrame(draw) {
  let frame = 0;
  return () => { frame ||= requestAnimationFrame(() => { frame = 0; draw(); }); };
}

// Keyboard of a page with a prompt: Ctrl+Enter in the field `prompt` clicks the button `send`, Escape calls `escape`.
export function listenToKeys(prompt, send, escape) {
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape" && !document.querySelector(":popover-open")) escape(event);  // else it closes that
    if (event.key !== "Enter" || !(event.ctrlKey || event.metaKey) || !event.target.closest?.(prompt)) return;
    event.preventDefault();
    document.querySelector(send)?.click();
  });
}
