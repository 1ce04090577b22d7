// The Playground's page: one conversation, replayed from rows, the live answer as it comes.
import { allow, button, el, listenToKeys, notice, onceAFrame, setAddress } from "./dom.js";
import { onElement } from "./shell.js";
import { Side } from "./side.js";
import { ask, follow } from "./stream.js";
import * as trace from "./trace.js";
import { Turn } from "./turn.js";

// What the starter answers well.
const IDEAS = [
  "Write a Python function that checks whether a number is even.",
  "What are five tips for sleeping better?",
  "What is photosynthesis?",
];

// Puts text into the prompt's field as if it had been typed.
function typePrompt(text) {
  const field = document.querySelector("#prompt textarea");
  if (!field) return;
  field.value = text;
  field.dispatchEvent(new Event("input", { bubbles: true }));
  field.focus();
}

// The page: one conversation, named in the address as ?chat=ID.
class ChatPage {
  constructor(root) {
    this.turns = [];
    this.focused = null;
    this.redraw = onceAFrame(() => this.draw());
    this.talk = el("div", { class: "sp-talk", "aria-label": "Conversation" });
    this.side = new Side(this);
    this.empty = el("div", { class: "sp-empty" }, el("h2", {}, "Ask something"),
      el("p", {}, "The answer appears token by token: you see which were drafted ahead and accepted, and which the model had to write itself."),
      el("p", { class: "sp-ideas" }, ...IDEAS.map((idea) => button("small", idea, () => typePrompt(idea)))));
    this.talk.append(this.empty);
    root.replaceChildren(this.talk, this.side.node);
    const query = new URLSearchParams(location.search);
    this.chosen = query.get("turn") || "";
    if (query.get("chat")) this.open(query.get("chat"));
    document.addEventListener("speculoos:view", () => { for (const turn of this.turns) turn.showReading(); });
    listenToKeys("#prompt", "#send", (event) => this.escape(event));
  }

  // Shows chat `id` as it is stored: along the newest way through its versions, or the one in the address. Follows the
  // turns that go on.
  async open(id) {
    if (!id) return;
    if (id !== this.chat) this.clear();
    this.chat = id;
    setAddress({ chat: id, turn: this.chosen || null });
    try {
      const chat = await ask(`/api/chats/${encodeURIComponent(id)}?turn=${encodeURIComponent(this.chosen || "")}`);
      this.showWay(chat.turns);
      document.dispatchEvent(new CustomEvent("speculoos:chat", { detail: { title: chat.title } }));
      if (!chat.turns.length) this.talk.replaceChildren(notice("This chat is not stored here any more; begin a new one.", "info"), this.empty);
    } catch (error) {
      this.talk.append(notice(error.message, "bad"));
    }
  }

  showWay(views) {
    const ids = new Set(views.map((view) => view.id));
    if (views.some((view) => !this.turns.some((turn) => turn.id === view.id))) this.endEdit();
    for (const turn of this.turns.filter((other) => !ids.has(other.id))) { turn.stop?.(); turn.node.remove(); }
    this.turns = this.turns.filter((turn) => ids.has(turn.id));
    for (const view of views) {
      const turn = this.turns.find((other) => other.id === view.id);
      if (turn) turn.showVersions(view.versions);
      else this.add(view);
    }
    this.turns.forEach((turn, i) => turn.node.classList.toggle("sp-goes-on", Boolean(this.turns[i + 1]?.run.continues)));
    if (this.turns.length && !this.turns.includes(this.focused)) this.focusTurn(this.turns.at(-1));
  }

  // Another version of a turn, with what followed it.
  choose(id) {
    this.chosen = id;
    this.open(this.chat);
  }

  add(view) {
    this.empty.remove();
    const turn = new Turn(view, this);
    this.turns.push(turn);
    this.talk.append(turn.node);
    this.focusTurn(turn);
    turn.follow();
    this.followPlain(turn);
    turn.node.scrollIntoView({ block: "nearest" });
  }

  clear() {
    for (const turn of this.turns) turn.stop?.();
    this.turns = [];
    this.focused = null;
    this.talk.replaceChildren(this.empty);
    allow("stop", false);
  }

  reset() {
    this.clear();
    this.chat = this.chosen = "";
    this.endEdit();
    document.dispatchEvent(new CustomEvent("speculoos:chat", { detail: { title: "" } }));
    setAddress({ chat: null, turn: null });
  }

  // The address says what was picked, for a reload; not what a page opens with by itself.
  picked(base, draft) {
    const model = draft ? `${base}@${draft}` : base;
    if (this.model && this.model !== model) setAddress({ model });
    this.model = model;
  }

  // Where the next question belongs, for the server: the chat, and after which of its turns.
  position(chat) {
    if (this.editing) this.chosen = "";
    if (!chat) return "";
    const last = this.turns.at(-1);
    const before = this.editing ? this.turns[this.turns.indexOf(this.editing) - 1] : last;
    return `${chat}/${before ? before.id : ""}`;
  }

  focusTurn(turn) {
    this.focused = turn;
    for (const other of this.turns) other.node.classList.toggle("sp-focused", other === turn && this.turns.length > 1);
    this.changed(turn);
  }

  // Draws the figures at most once a frame, however fast records come.
  changed(turn) {
    turn.dirty = true;
    this.redraw();
  }

  draw() {
    for (const each of this.turns.filter((t) => t.dirty)) { each.dirty = false; each.showFigures(); }
    if (this.focused) this.side.show(this.focused);
    this.keepInView();
    allow("stop", Boolean(this.live()));
  }

  // Follows the answer's end while the reader is near it.
  keepInView() {
    const last = this.turns.at(-1);
    if (!last || last.run.ended) return;
    const below = last.node.getBoundingClientRect().bottom - window.innerHeight;
    if (below > -180 && below < 120) window.scrollBy(0, below + 180);
  }

  showStep(record, turn, node) {
    if (turn !== this.focused) this.focusTurn(turn);
    this.side.showStep(record);
    if (node) trace.popUp(record, node);
  }

  live() { return this.turns.find((turn) => !turn.run.ended); }

  async stop() {
    const turn = this.live();
    if (turn) await this.order(turn, "/cancel");
  }

  // Asks for something to be done with a turn; whether it was. Why not is said below the turn.
  async order(turn, what, method = "POST") {
    try {
      await ask(`/api/runs/${turn.id}${what}`, method);
      return true;
    } catch (error) {
      turn.notes.append(notice(error.message, "bad"));
      return false;
    }
  }

  // `again`: once more, where the last measurement was noisy.
  async measurePlain(again = false) {
    const turn = this.focused;
    try {
      turn.plain = await ask(`/api/runs/${turn.id}/plain${again ? "?again=true" : ""}`, "POST");
      this.followPlain(turn);
    } catch (error) {
      turn.plain = { ended: true, error: error.message, summary: {} };
    }
    this.changed(turn);
  }

  followPlain(turn) {
    if (!turn.plain || turn.plain.ended) return;
    follow(turn.plain.id, { end: (run) => { turn.plain = run; this.changed(turn); } });
  }

  // Takes the last turn out of the chat; another version of it, if there is one, is shown then.
  async remove(turn) {
    if (!await this.order(turn, "", "DELETE")) return;
    const before = this.turns[this.turns.indexOf(turn) - 1];
    this.chosen = (turn.run.versions || []).filter((id) => id !== turn.id).pop() || before?.id || "";
    if (this.chosen) await this.open(this.chat);
    else document.querySelector("#new-chat")?.click();
  }

  // Goes on with an answer that was cut.
  async goOn(turn) {
    turn.goOn.disabled = true;
    this.chosen = "";
    await this.order(turn, "/continue");
    await this.open(this.chat);
    turn.goOn.disabled = false;
  }

  // Puts a turn's question into the prompt: what is sent then stands in its place, as another version.
  edit(turn) {
    const field = document.querySelector("#prompt textarea");
    if (!this.editing) this.unsent = field?.value || "";
    this.editing = turn;
    typePrompt(turn.question);
    const cancel = button("link", "Cancel", () => this.cancelEdit());
    const words = this.turns.at(-1) === turn ? "Asked differently, it becomes another version." : "Asked differently, it and what followed become another version.";
    document.querySelector('[data-sp="editing"]')?.replaceChildren(el("p", { class: "sp-hint sp-editing" }, `Editing an earlier question. ${words} `, cancel));
    for (const other of this.turns) other.node.classList.toggle("sp-edited", other === turn);
  }

  cancelEdit() {
    typePrompt(this.unsent || "");
    this.endEdit();
  }

  endEdit() {
    this.editing = null;
    document.querySelector('[data-sp="editing"]')?.replaceChildren();
    for (const turn of this.turns) turn.node.classList.remove("sp-edited");
  }

  // Asks the same once more, as it is set now.
  again(turn) {
    this.edit(turn.run.continues ? this.turns.slice(0, this.turns.indexOf(turn)).filter((other) => !other.run.continues).pop() || turn : turn);
    setTimeout(() => document.querySelector("#send")?.click(), 60);
  }

  // What was answered, with the parts it goes on from.
  wholeAnswer(turn) {
    const parts = [turn.run.ended ? turn.run.text : turn.stream.node.textContent];
    let before = turn.run.continues;
    while (before) {
      const earlier = this.turns.find((other) => other.id === before);
      if (earlier) parts.unshift(earlier.run.text.replace(/\ufffd+$/, ""));
      before = earlier?.run.continues;
    }
    return parts.join("");
  }

  escape(event) {
    if (document.querySelector(".sp-popover:popover-open")) return;  // it closes
    if (this.live()) { event.preventDefault(); this.stop(); }
    else if (this.editing) this.cancelEdit();
  }
}

onElement("chat", (root) => { window.speculoos.chat = new ChatPage(root); });
