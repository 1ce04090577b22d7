// The list of stored chats, with search and deletion, and the buttons that select the view of the responses.
import { button, el, notice, sureButton } from "./dom.js";
import { onElement } from "./shell.js";
import { ask } from "./stream.js";

const VIEWS = [["tokens", "Tokens", "Every token, marked by its origin"], ["text", "Text", "The response as formatted text: Markdown, code, tables"]];
const PAUSE_MS = 250, VIEW = "speculoos-view";

function readView() {
  try { return localStorage.getItem(VIEW); } catch { return ""; }
}

class History {
  constructor(root) {
    this.open = button("small", "Chats", () => this.toggle(), { id: "chats-open", "aria-expanded": "false", "aria-controls": "chats" });
    this.title = el("span", { class: "sp-history-title" });
    this.find = el("input", { type: "search", id: "chats-find", placeholder: "Search names, prompts, responses", "aria-label": "Search chats" });
    this.list = el("ul", { class: "sp-history-list" });
    this.more = button("small", "Older chats", () => this.load(true), { hidden: true });
    this.problem = el("div", {});
    this.panel = el("section", { class: "sp-history-panel", id: "chats", hidden: true, "aria-label": "Chats" }, this.find, this.problem, this.list, this.more);
    this.request = 0;
    this.find.addEventListener("input", () => { clearTimeout(this.timer); this.timer = setTimeout(() => this.load(), PAUSE_MS); });
    this.panel.addEventListener("keydown", (event) => this.key(event));
    root.replaceChildren(el("div", { class: "sp-history-bar" }, this.open, this.title, this.views()), this.panel);
    document.addEventListener("speculoos:chat", (event) => { this.title.textContent = event.detail.title; });
  }

  // Buttons for the views tokens and text; the selection is kept.
  views() {
    const now = readView() === "text" ? "text" : "tokens";
    document.documentElement.dataset.view = now;
    const buttons = VIEWS.map(([value, label, title]) => el("button", { type: "button", title, "data-view": value,
      "aria-pressed": String(value === now), on: { click: () => this.choose(value) } }, label));
    this.viewButtons = el("div", { class: "sp-views", role: "group", "aria-label": "View of the responses" }, ...buttons);
    return this.viewButtons;
  }

  choose(view) {
    try { localStorage.setItem(VIEW, view); } catch { /* private mode: for this page only */ }
    document.documentElement.dataset.view = view;
    for (const button of this.viewButtons.children) button.setAttribute("aria-pressed", String(button.dataset.view === view));
    document.dispatchEvent(new CustomEvent("speculoos:view"));
  }

  toggle(open = this.panel.hidden) {
    this.panel.hidden = !open;
    this.open.setAttribute("aria-expanded", String(open));
    if (open) { this.load(); this.find.focus(); } else this.open.focus();
  }

  key(event) {
    if (event.key !== "Escape") return;
    event.stopPropagation();
    this.toggle(false);
  }

  // Loads the chats that match the search, or the next older ones.
  async load(older = false) {
    const request = ++this.request;
    const query = new URLSearchParams({ find: this.find.value, before: older ? this.last : "" });
    try {
      const found = await ask(`/api/chats?${query}`);
      if (request !== this.request) return;
      this.problem.replaceChildren();
      if (!older) this.list.replaceChildren();
      this.list.append(...found.chats.map((chat) => this.row(chat)));
      this.last = found.chats.length ? found.chats[found.chats.length - 1].at : this.last;
      this.more.hidden = !found.more;
      if (!this.list.children.length) this.list.append(el("li", { class: "sp-hint" }, this.find.value ? "Nothing found." : "No chats yet. Send a prompt below."));
    } catch (error) {
      this.problem.replaceChildren(notice(error.message, "bad"));
    }
  }

  row(chat) {
    const current = chat.id === window.speculoos.chat?.chat ? "true" : undefined;
    const link = el("a", { href: `/playground?chat=${chat.id}`, class: "sp-row-name", "aria-current": current }, chat.title);
    const details = `${chat.turns} ${chat.turns === 1 ? "turn" : "turns"} · ${chat.model} · ${chat.ago}`;
    const row = el("li", { "data-chat": chat.id }, el("span", { class: "sp-history-what" }, link, el("span", { class: "sp-row-note" }, details)));
    row.append(sureButton("link", "Delete", () => this.remove(chat, row)));
    return row;
  }

  async remove(chat, row) {
    try { await ask(`/api/chats/${chat.id}`, "DELETE"); } catch (error) { this.problem.replaceChildren(notice(error.message, "bad")); return; }
    row.remove();
    if (chat.id === window.speculoos.chat?.chat) document.querySelector("#new-chat")?.click();
    this.find.focus();
  }
}

onElement("history", (root) => { new History(root); });
