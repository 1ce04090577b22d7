// The sidebar with the stored chats, their search and deletion, and the buttons that select the view of the responses.
import { NARROW, button, el, preference, sureButton, t } from "./dom.js";
import { onElement, onMatch } from "./shell.js";
import { fetchOrShow } from "./stream.js";
import { modelName } from "./trace.js";

const VIEWS = [["tokens", t("Tokens"), t("Every token, marked by its origin")], ["text", t("Text"), t("The response as formatted text: Markdown, code, tables")]];
const PAUSE_MS = 250, VIEW = "speculoos-view", SIDEBAR = "speculoos-chats";

class History {
  constructor(root) {
    this.panel = document.getElementById("chats");
    this.find = el("input", { type: "search", id: "chats-find", placeholder: t("Search chats"), "aria-label": t("Search names, prompts and responses") });
    this.list = el("ul", { class: "sp-history-list" });
    this.more = button("small", t("Older chats"), () => this.load(true), { hidden: true });
    this.problem = el("div", {});
    this.request = 0;
    this.find.addEventListener("input", () => { clearTimeout(this.timer); this.timer = setTimeout(() => this.load(), PAUSE_MS); });
    root.replaceChildren(this.find, this.problem, this.list, this.more);
    onMatch("#chats-open", (open) => {
      this.open = open;
      open.addEventListener("click", () => this.toggle());
      this.tell();
    });
    this.panel.addEventListener("toggle", () => this.tell());
    NARROW.addEventListener("change", () => this.fit());
    this.fit();
    document.addEventListener("speculoos:chat", () => this.load());
    this.load();
  }

  // A column of the page, or a drawer on a narrow screen.
  fit() {
    this.panel.popover = NARROW.matches ? "auto" : null;
    this.panel.hidden = !NARROW.matches && (preference(SIDEBAR) ?? (window.innerWidth < 1150 ? "closed" : "")) === "closed";
    this.tell();
  }

  tell() { this.open?.setAttribute("aria-expanded", String(NARROW.matches ? this.panel.matches(":popover-open") : !this.panel.hidden)); }

  toggle() {
    if (NARROW.matches) { this.panel.togglePopover(); return; }
    preference(SIDEBAR, this.panel.hidden ? "open" : "closed");
    this.fit();
  }

  // Loads the chats that match the search, or the next older ones.
  async load(older = false) {
    const request = ++this.request;
    const answer = await this.fetch(`?${new URLSearchParams({ find: this.find.value, before: older ? this.last : "" })}`);
    if (!answer || request !== this.request) return;
    if (!older) this.list.replaceChildren();
    this.list.append(...answer.chats.map((chat) => this.row(chat)));
    this.last = answer.chats.at(-1)?.at;
    this.more.hidden = !answer.more;
    if (!this.list.children.length) this.list.append(el("li", { class: "sp-hint" }, this.find.value ? t("Nothing found.") : t("No chats yet.")));
  }

  fetch(path, ...request) {
    this.problem.replaceChildren();
    return fetchOrShow(this.problem, `/api/chats${path}`, ...request);
  }

  row(chat) {
    const current = chat.id === window.speculoos.chat?.chat ? "true" : undefined;
    const link = el("a", { href: `/playground?chat=${chat.id}`, class: "sp-row-name", "aria-current": current }, chat.title);
    const row = el("li", { "data-chat": chat.id }, link, el("span", { class: "sp-row-note", title: modelName(chat) }, `${chat.ago} · ${modelName(chat)}`));
    row.append(el("span", { class: "sp-history-actions" }, button("link", t("Rename"), () => this.rename(chat, link)),
      sureButton("link", t("Delete"), () => this.remove(chat, row))));
    return row;
  }

  // A field in place of the name: Enter or leaving it stores the name, Esc does not.
  rename(chat, link) {
    const store = async () => {
      if (field.value !== chat.title && !await this.fetch(`/${chat.id}`, "POST", { name: field.value })) return;
      await this.load();
      if (document.activeElement === document.body) this.list.querySelector(`[data-chat="${chat.id}"] button`)?.focus();
    };
    const leave = (event) => {
      if (event.key === "Escape") field.value = chat.title;
      if (event.key === "Escape" || event.key === "Enter") field.blur();
      event.stopPropagation();  // Esc would stop a response
    };
    const field = el("input", { value: chat.title, maxlength: "90", "aria-label": t("Name of the chat"), on: { blur: store, keydown: leave } });
    link.replaceWith(field);
    field.select();
  }

  async remove(chat, row) {
    if (!await this.fetch(`/${chat.id}`, "DELETE")) return;
    row.remove();
    if (chat.id === window.speculoos.chat?.chat) document.querySelector("#new-chat")?.click();
    this.find.focus();
  }
}

// Buttons for the views tokens and text; the selection is kept.
function views(root) {
  const show = (view) => {
    document.documentElement.dataset.view = view;
    for (const each of root.children) each.setAttribute("aria-pressed", String(each.dataset.view === view));
    document.dispatchEvent(new CustomEvent("speculoos:view"));
  };
  root.replaceChildren(...VIEWS.map(([value, label, title]) => el("button", { type: "button", title, "data-view": value,
    on: { click: () => { preference(VIEW, value); show(value); } } }, label)));
  show(preference(VIEW) === "text" ? "text" : "tokens");
}

onElement("history", (root) => { new History(root); });
onElement("views", views);
