// What this browser remembers from page to page: fields that were set, how answers are read, the chat that was open last.
import { onElement } from "./shell.js";

const CHAT = "speculoos-chat", PREFIX = "speculoos-kept-";

function read(key) {
  try { return JSON.parse(localStorage.getItem(key)); } catch { return null; }
}

function write(key, value) {
  try {
    if (value === null || value === "") localStorage.removeItem(key);
    else localStorage.setItem(key, JSON.stringify(value));
  } catch { /* private mode: for this page only */ }
}

const kept = (name) => read(PREFIX + name);
const keep = (name, value) => write(PREFIX + name, value);

// The values of a form's fields as they were left; each is taken only if it is of the kind of the field's own value.
// Called by app/widgets/stored_fields.py.
window.speculoos.kept = (name, ...now) => {
  const values = kept(name);
  if (!Array.isArray(values)) return now;
  const kinds = now.map((value, i) => [typeof value, typeof values[i], values[i]]);
  return kinds.map(([own, its, value], i) => (own === its || now[i] === null || value === null ? value ?? now[i] : now[i]));
};
window.speculoos.keep = (name, ...values) => { keep(name, values); };

// The menu leads back to the chat that was open last.
function toLastChat(nav) {
  const link = nav.querySelector('a[href^="/playground"]');
  if (!link) return;
  const id = String(read(CHAT) || "");
  link.setAttribute("href", /^[0-9a-f]{32}$/.test(id) ? `/playground?chat=${id}` : "/playground");
}

function rememberChat(id) {
  write(CHAT, id);
  for (const nav of document.querySelectorAll('[data-sp="nav"]')) toLastChat(nav);
}

onElement("nav", toLastChat);

export { kept, keep, rememberChat };
