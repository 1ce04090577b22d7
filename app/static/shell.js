// The parts of the frame that need a script: the theme switch, the place of the current page in a narrow bar, the way
// past it, and what Gradio's controls lack for people who use a keyboard or have pages read to them.
const ORDER = ["system", "light", "dark"];
const SIGN = { system: "◐", light: "☀", dark: "☾" };
const label = (button) => {
  const choice = window.speculoos.theme.get();
  button.textContent = SIGN[choice] || SIGN.system;
  button.setAttribute("aria-label", `Colour theme: ${choice}`);
  button.title = `Colour theme: ${choice} (click to change)`;
};
document.addEventListener("click", (event) => {
  const button = event.target.closest?.('[data-sp="theme"]');
  if (!button) return;
  const next = ORDER[(ORDER.indexOf(window.speculoos.theme.get()) + 1) % ORDER.length];
  window.speculoos.theme.set(next);
  label(button);
});
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

onElement("theme", label);
onElement("nav", (nav) => {
  const current = nav.querySelector("[aria-current]");
  const end = current ? current.offsetLeft - nav.offsetLeft + current.offsetWidth : 0;
  if (end > nav.clientWidth) nav.scrollLeft = current.offsetLeft - nav.offsetLeft - 48;
});

// Past the frame: what comes next is the page. Not by the address, whose changes lists follow.
document.addEventListener("click", (event) => {
  const page = event.target.closest?.(".sp-skip") && document.querySelector(".sp-page");
  if (!page) return;
  event.preventDefault();
  page.tabIndex = -1;
  page.focus();
});

// Gradio gives every radio button a group of its own, anew at each choice, so that arrow keys lead nowhere.
let groups = 0;
onMatch("fieldset", (box) => {
  const name = `sp-group-${++groups}`;
  const join = () => {
    for (const input of box.querySelectorAll('input[type="radio"]')) if (input.name !== name) input.name = name;
  };
  join();
  new MutationObserver(join).observe(box, { childList: true, subtree: true, attributes: true, attributeFilter: ["name"] });
});

// Its dropdowns open at any key but Esc: also at Tab and Shift, right after they were closed.
const OPENS_NOTHING = new Set(["Tab", "Shift", "Control", "Alt", "AltGraph", "Meta", "CapsLock", "ArrowLeft", "ArrowRight"]);
document.addEventListener("keydown", (event) => {
  if (OPENS_NOTHING.has(event.key) && event.target.matches?.('input[role="combobox"]')) event.stopPropagation();
}, true);

// Its upload box is called other than it reads.
onMatch('button[aria-label="Click to upload or drop files"]', (button) => button.removeAttribute("aria-label"));

// Its text fields tell of what was typed at a key press alone: not of what was pasted, deleted, dictated, or written on a
// phone. Each such change is followed by a key press that means no key.
let typed = false;
document.addEventListener("keydown", () => { typed = false; }, true);
document.addEventListener("keypress", (event) => { if (event.isTrusted) typed = true; }, true);
document.addEventListener("input", (event) => {
  const field = event.target;
  const isText = field.matches?.('.gradio-container :is(textarea, input[type="text"], input[type="password"], input:not([type]))');
  if (isText && !typed) field.dispatchEvent(new KeyboardEvent("keypress", { key: "Unidentified", bubbles: true }));
});
