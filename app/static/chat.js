// The Playground page: one conversation, read from stored rows, with live responses.
import { NARROW, allow, button, el, listenToKeys, notice, onceAFrame, setAddress, t } from "./dom.js";
import { onElement } from "./shell.js";
import { Side } from "./side.js";
import { fetchJSON, fetchOrShow, follow } from "./stream.js";
import * as trace from "./trace.js";
import { Turn } from "./turn.js";

// Prompts that the starter model handles well, in English, which it was trained on.
const IDEAS = [
  "Write a Python function that checks whether a number is even.",
  "What are five tips for sleeping better?",
  "What is photosynthesis?",
];

// Fills in the prompt field as if the text had been typed.
function typePrompt(text) {
  const field = document.querySelector("#prompt textarea");
  if (!field) return;
  field.value = text;
  field.dispatchEvent(new Event("input", { bubbles: true }));
  field.focus();
}

// Sends a prompt once Gradio knows the text of the field.
function sendPrompt(text) {
  typePrompt(text);
  setTimeout(() => document.querySelector("#send")?.click(), 60);
}

// The page: one conversation, in the URL as ?chat=ID.
class ChatPage {
  constructor(root) {
    this.turns = [];
    this.height = this.top = 0;
    this.redraw = onceAFrame(() => this.draw());
    this.root = root;
    this.conversation = el("div", { class: "sp-conversation", role: "region", "aria-label": t("Conversation") });
    this.empty = el("div", { class: "sp-empty" }, el("h2", {}, t("Send a prompt")),
      el("p", {}, t("Accepted draft tokens have a colored background.")),
      NARROW.matches ? null : el("p", {}, t("Enter sends, Shift+Enter inserts a line break, Esc stops.")),
      el("p", { class: "sp-ideas" }, ...IDEAS.map((idea) => button("small", idea, () => sendPrompt(idea)))));
    this.clear();
    const query = new URLSearchParams(location.search);
    this.chosen = query.get("turn") || "";
    this.open(query.get("chat"));
    root.addEventListener("scroll", () => this.scrolled(), { capture: true, passive: true });
    document.addEventListener("speculoos:view", () => { for (const turn of this.turns) turn.showReading(); });
    listenToKeys("#prompt", "#send", (event) => this.escape(event));
  }

  // Shows the stored chat `id`: its newest versions, or those up to the turn `chosen`. Follows turns that are still
  // running.
  async open(id, chosen = this.chosen) {
    if (!id) return;
    this.chosen = chosen;
    if (id !== this.chat) this.clear();
    this.goTo(id);
    const chat = await fetchOrShow(this.conversation, `/api/chats/${encodeURIComponent(id)}?turn=${encodeURIComponent(this.chosen)}`);
    if (chat) this.showTurns(chat.turns);
    if (chat?.turns.length === 0) this.conversation.replaceChildren(notice(t("This chat was deleted. Start a new one."), "info"), this.empty);
  }

  goTo(id) {
    this.chat = id;
    setAddress({ chat: id || null, turn: this.chosen || null });
    document.dispatchEvent(new CustomEvent("speculoos:chat"));
  }

  showTurns(views) {
    const ids = new Set(views.map((view) => view.id));
    if (views.some((view) => !this.turns.some((turn) => turn.id === view.id))) this.endEdit();
    for (const turn of this.turns.filter((other) => !ids.has(other.id))) { turn.stop?.(); turn.node.remove(); }
    this.turns = this.turns.filter((turn) => ids.has(turn.id));
    for (const view of views) {
      const existing = this.turns.find((other) => other.id === view.id);
      if (existing) existing.showVersions(view.versions);
      else this.add(new Turn(view, this));
    }
    this.turns.forEach((turn, i) => turn.node.classList.toggle("sp-continued", Boolean(this.turns[i + 1]?.run.continues)));
    if (this.turns.length && !this.turns.includes(this.focused)) this.focusTurn(this.turns.at(-1));
  }

  add(turn) {
    this.empty.remove();
    this.turns.push(turn);
    this.conversation.append(turn.node);
    this.focusTurn(turn);
    turn.follow();
    this.followPlain(turn);
    this.isAtEnd = true;
  }

  clear() {
    for (const turn of this.turns) turn.stop?.();
    this.turns = [];
    this.focused = null;
    this.conversation.replaceChildren(this.empty);
    this.side = new Side(this);
    this.root.replaceChildren(this.conversation, this.side.node);
    allow("stop", false);
  }

  reset() {
    this.clear();
    this.cancelEdit();
    this.chosen = "";
    this.goTo("");
  }

  // Writes the selected model into the URL, but not the one selected by default.
  picked(base, draft) {
    const model = draft ? `${base}@${draft}` : base;
    if (this.model && this.model !== model) setAddress({ model });
    this.model = model;
  }

  // Position of the next prompt, for the server: the chat and the turn that it follows.
  position(chat) {
    if (this.editing) this.chosen = "";
    const before = this.editing ? this.turns[this.turns.indexOf(this.editing) - 1] : this.turns.at(-1);
    return chat && `${chat}/${before?.id || ""}`;
  }

  focusTurn(turn) {
    this.focused = turn;
    for (const other of this.turns) other.node.classList.toggle("sp-focused", other === turn && this.turns.length > 1);
    this.changed(turn);
  }

  // Redraws the figures at most once per frame.
  changed(turn) {
    turn.dirty = true;
    this.redraw();
  }

  draw() {
    for (const each of this.turns.filter((turn) => turn.dirty)) { each.dirty = false; each.showFigures(); }
    if (this.focused) this.side.show(this.focused);
    const { scrollHeight } = this.conversation;
    if (scrollHeight > this.height && this.isAtEnd && this.below() > 0) this.scroller.scrollBy(0, this.below());
    this.height = scrollHeight;
    allow("stop", Boolean(this.live()));
  }

  // On a narrow screen the figures scroll with the conversation.
  get scroller() { return NARROW.matches ? this.root : this.conversation; }

  // Follows the end of the response until someone scrolls up.
  scrolled() {
    const { scrollTop } = this.scroller;
    this.isAtEnd = this.below() < 120 || (this.isAtEnd && scrollTop >= this.top);
    this.top = scrollTop;
  }

  // Distance from the bottom of the visible area down to the end of the last response.
  below() {
    const last = this.turns.at(-1)?.node.getBoundingClientRect().bottom ?? -Infinity;
    return last + 12 - this.scroller.getBoundingClientRect().bottom;
  }

  showStep(record, turn, node) {
    if (turn !== this.focused) this.focusTurn(turn);
    this.side.showStep(record);
    if (node && NARROW.matches) trace.popUp(record, node);
  }

  live() { return this.turns.find((turn) => !turn.run.ended); }

  stop() {
    const turn = this.live();
    if (turn) this.send(turn, "/cancel");
  }

  // Sends a request about a turn. An error is shown below the turn; the result is then undefined.
  send(turn, path, method = "POST") { return fetchOrShow(turn.notes, `/api/runs/${turn.id}${path}`, method); }

  // `again`: repeat a noisy measurement.
  async measurePlain(again = false) {
    const turn = this.focused, failed = (error) => ({ ended: true, error: error.message, summary: {} });
    turn.plain = await fetchJSON(`/api/runs/${turn.id}/plain?again=${again}`, "POST").catch(failed);
    this.followPlain(turn);
    this.changed(turn);
  }

  followPlain(turn) {
    if (!turn.plain || turn.plain.ended) return;
    follow(turn.plain.id, { end: (run) => { turn.plain = run; this.changed(turn); } });
  }

  // Deletes the last turn. Another version of it is shown then, if there is one.
  async remove(turn) {
    if (!await this.send(turn, "", "DELETE")) return;
    const before = this.turns[this.turns.indexOf(turn) - 1];
    this.chosen = turn.run.versions.filter((id) => id !== turn.id).pop() || before?.id || "";
    if (this.chosen) await this.open(this.chat);
    else document.querySelector("#new-chat")?.click();
  }

  // Continues a truncated response.
  async continueTurn(turn) {
    turn.continueButton.disabled = true;
    this.chosen = "";
    await this.send(turn, "/continue");
    await this.open(this.chat);
    turn.continueButton.disabled = false;
  }

  // Puts a turn's prompt into the prompt field; what is sent then becomes another version of the turn.
  edit(turn) {
    const field = document.querySelector("#prompt textarea");
    if (!this.editing) this.unsent = field?.value || "";
    this.editing = turn;
    typePrompt(turn.prompt);
    const cancel = button("link", t("Cancel"), () => this.cancelEdit());
    const text = this.turns.at(-1) === turn ? t("Sending creates a new version of this turn.") : t("Sending creates a new version of this turn, without the turns after it.");
    document.querySelector('[data-sp="editing"]')?.replaceChildren(el("p", { class: "sp-hint sp-editing" }, t("Editing an earlier prompt."), ` ${text} `, cancel));
    for (const other of this.turns) other.node.classList.toggle("sp-edited", other === turn);
  }

  cancelEdit() {
    if (this.editing) typePrompt(this.unsent);
    this.endEdit();
  }

  // Ends editing. If sending has emptied the prompt field, it gets back the text that it had before; a text that could
  // not be sent remains.
  endEdit() {
    if (this.editing && !document.querySelector("#prompt textarea")?.value) typePrompt(this.unsent);
    this.editing = null;
    document.querySelector('[data-sp="editing"]')?.replaceChildren();
    for (const turn of this.turns) turn.node.classList.remove("sp-edited");
  }

  // The turns that form one response: the turn with the prompt, and its continuations up to `turn`.
  parts(turn) {
    const shown = this.turns.slice(0, this.turns.indexOf(turn) + 1);
    return shown.slice(shown.findLastIndex((other) => !other.run.continues));
  }

  // Sends the same prompt again with the current settings.
  again(turn) {
    this.edit(this.parts(turn)[0]);
    sendPrompt(this.editing.prompt);
  }

  // The text of a response, including the parts that it continues.
  fullResponse(turn) {
    const text = ({ run, stream }) => (run.ended ? run.text : stream.node.textContent);
    return this.parts(turn).map((part) => (part === turn ? text(part) : text(part).replace(/\ufffd+$/, ""))).join("");
  }

  escape(event) {
    if (this.live()) { event.preventDefault(); this.stop(); }
    else if (this.editing) this.cancelEdit();
  }
}

onElement("chat", (root) => { window.speculoos.chat = new ChatPage(root); });
