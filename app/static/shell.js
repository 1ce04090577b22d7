// Scripts of the page frame: the theme switch, the skip link, and accessibility
// fixes of Gradio's controls for keyboards and screen readers.
import { setAddress, t } from "./dom.js";

const SIGN = { system: "◐", light: "☀", dark: "☾" }, ORDER = Object.keys(SIGN);
const NAMES = { system: t("system"), light: t("light"), dark: t("dark") };
// Calls `start(node)` once for every element that matches, now and when Gradio adds it later.
export function onMatch(selector, start) {
  const seen = new WeakSet();
  const look = () => {
    for (const node of document.querySelectorAll(selector)) {
      if (!seen.has(node)) { seen.add(node); start(node); }
    }
  };
  look();
  new MutationObserver(look).observe(document.documentElement, { childList: true, subtree: true });
}
// The same for every element with data-sp=`name`.
export function onElement(name, start) { onMatch(`[data-sp="${name}"]`, start); }

onElement("theme", (button) => {
  const { get, set } = window.speculoos.theme;
  const label = () => {
    button.textContent = SIGN[get()] || SIGN.system;
    button.setAttribute("aria-label", t("Color theme: {choice}", { choice: NAMES[get()] }));
    button.title = t("Color theme: {choice} (click to change)", { choice: NAMES[get()] });
  };
  label();
  button.addEventListener("click", () => { set(ORDER[(ORDER.indexOf(get()) + 1) % ORDER.length]); label(); });
});

// The choice of a language on the Settings page; "" is the browser's (app/i18n.py).
onElement("language", (choice) => choice.addEventListener("change", () => {
  document.cookie = `speculoos-language=${choice.value}; path=/; max-age=${choice.value ? 365 * 86400 : 0}; samesite=lax`;
  location.reload();
}));

// Writes the query of a list into the URL, without empty values (app/widgets/list_query.py).
window.speculoos.narrow = (names, values) => setAddress({ ...Object.fromEntries(names.map((name, i) => [name, values[i] || null])), from: null });
// Keeps the value of a form's field in the URL unless it is long, and removes the parameters `others` (app/widgets/elements.py).
window.speculoos.keep = (name, value, others) => setAddress({ ...Object.fromEntries(others.map((other) => [other, null])), [name]: String(value ?? "").length < 2000 ? String(value ?? "") : null });

// Skip link: focuses the page content. The URL stays unchanged, since lists react to its changes.
document.addEventListener("click", (event) => {
  const page = event.target.closest?.(".sp-skip") && document.querySelector(".sp-page");
  if (!page) return;
  event.preventDefault();
  page.tabIndex = -1;
  page.focus();
});

// Gradio puts every radio button into its own group, again after each choice, so that arrow keys do nothing.
let groups = 0;
onMatch("fieldset", (box) => {
  const name = `sp-group-${++groups}`;
  const join = () => {
    for (const input of box.querySelectorAll('input[type="radio"]')) if (input.name !== name) input.name = name;
  };
  join();
  new MutationObserver(join).observe(box, { childList: true, subtree: true, attributes: true, attributeFilter: ["name"] });
});

// Gradio's dropdowns open at any key except Esc: also at Tab and Shift, right after they were closed.
const IGNORED_KEYS = new Set(["Tab", "Shift", "Control", "Alt", "AltGraph", "Meta", "CapsLock", "ArrowLeft", "ArrowRight"]);
document.addEventListener("keydown", (event) => {
  if (IGNORED_KEYS.has(event.key) && event.target.matches?.('input[role="combobox"]')) event.stopPropagation();
}, true);

// The drawer with the settings of a response, opened by a button (app/widgets/fields.py).
onMatch("#options", (drawer) => {
  drawer.popover = "auto";
  drawer.role = "dialog";
  drawer.ariaLabel = t("Settings");
});

// The accessible name of Gradio's upload box differs from its visible text.
onMatch('button[aria-label="Click to upload or drop files"]', (button) => button.removeAttribute("aria-label"));

// Gradio's text fields report changes only at a key press, not after pasting, deleting, dictation, or input on a phone.
// Each such change is followed by a synthetic key press of no key.
let typed = false;
document.addEventListener("keydown", () => { typed = false; }, true);
document.addEventListener("keypress", (event) => { if (event.isTrusted) typed = true; }, true);
document.addEventListener("input", (event) => {
  const field = event.target;
  const isText = field.matches?.('.gradio-container :is(textarea, input[type="text"], input[type="password"], input:not([type]))');
  if (isText && !typed) field.dispatchEvent(new KeyboardEvent("keypress", { key: "Unidentified", bubbles: true }));
});
