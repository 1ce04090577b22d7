// The Playground's page: one conversation, replayed from rows, the live answer as it comes.
import { el, notice, setAddress } from "./dom.js";
import { onElement } from "./shell.js";
import { Side } from "./side.js";
import { ask, follow } from "./stream.js";
import { Turn } from "./turn.js";

const IDEAS = [
  "Explain how bees find their way home, in five short steps.",
  "Write a Python function that merges two sorted lists.",
  "List the planets in order and say one thing about each.",
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
    this.frame = 0;
    this.talk = el("div", { class: "sp-talk", "aria-label": "Conversation" });
    this.side = new Side(this);
    this.empty = el("div", { class: "sp-empty" }, el("h3", {}, "Ask something"),
      el("p", {}, "The answer appears token by token: you see which were drafted ahead and accepted, and which the model had to write itself."),
      el("p", { class: "sp-ideas" }, ...IDEAS.map((idea) => el("button", { type: "button", class: "sp-small-button",
        on: { click: () => typePrompt(idea) } }, idea))));
    this.talk.append(this.empty);
    root.replaceChildren(this.talk, this.side.node);
    const id = new URLSearchParams(location.search).get("chat");
    if (id) this.open(id);
    document.addEventListener("keydown", (event) => this.key(event));
  }

  // Shows the turns of chat `id` that are not shown yet, and follows those that go on.
  async open(id) {
    if (!id) return;
    if (id !== this.chat) this.clear();
    this.chat = id;
    setAddress({ chat: id });
    try {
      const chat = await ask(`/api/chats/${encodeURIComponent(id)}`);
      for (const view of chat.turns) if (!this.turns.some((turn) => turn.id === view.id)) this.add(view);
      if (!chat.turns.length) this.talk.replaceChildren(notice("This chat is not stored here any more; begin a new one.", "info"), this.empty);
    } catch (error) {
      this.talk.append(notice(error.message, "bad"));
    }
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
  }

  reset() {
    this.clear();
    this.chat = "";
    setAddress({ chat: null });
  }

  focusTurn(turn) {
    this.focused = turn;
    for (const other of this.turns) other.node.classList.toggle("sp-focused", other === turn && this.turns.length > 1);
    this.changed(turn);
  }

  // Draws the figures at most once a frame, however fast records come.
  changed(turn) {
    turn.dirty = true;
    if (this.frame) return;
    this.frame = requestAnimationFrame(() => {
      this.frame = 0;
      for (const each of this.turns.filter((t) => t.dirty)) { each.dirty = false; each.showFigures(); }
      if (this.focused) this.side.show(this.focused);
      this.keepInView();
    });
  }

  // Follows the answer's end while the reader is near it.
  keepInView() {
    const last = this.turns[this.turns.length - 1];
    if (!last || last.run.ended) return;
    const below = last.node.getBoundingClientRect().bottom - window.innerHeight;
    if (below > -180 && below < 120) window.scrollBy(0, below + 180);
  }

  ended() { document.dispatchEvent(new CustomEvent("speculoos:ended")); }

  showStep(record, turn) {
    if (turn !== this.focused) this.focusTurn(turn);
    this.side.showStep(record);
  }

  live() { return this.turns.find((turn) => !turn.run.ended); }

  async stop() {
    const turn = this.live();
    if (!turn) return;
    try { await ask(`/api/runs/${turn.id}/cancel`, "POST"); } catch (error) { turn.notes.append(notice(error.message, "bad")); }
  }

  async measurePlain() {
    const turn = this.focused;
    try {
      turn.plain = await ask(`/api/runs/${turn.id}/plain`, "POST");
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

  // Takes a turn out of the chat, here and in the rows. True when it is gone.
  async remove(turn) {
    try {
      await ask(`/api/runs/${turn.id}`, "DELETE");
    } catch (error) {
      turn.notes.append(notice(error.message, "bad"));
      return false;
    }
    this.turns = this.turns.filter((other) => other !== turn);
    turn.node.remove();
    if (!this.turns.length) this.reset();
    else this.focusTurn(this.turns[this.turns.length - 1]);
    return true;
  }

  // Puts a turn's question back into the prompt, and asks it again at once if `send`.
  async redo(turn, send) {
    if (!(await this.remove(turn))) return;
    typePrompt(turn.question);
    if (!this.turns.length) document.querySelector("#new-chat")?.click();
    if (send) setTimeout(() => document.querySelector("#send")?.click(), 60);
  }

  key(event) {
    if (event.key === "Escape" && this.live()) { event.preventDefault(); this.stop(); }
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey) && event.target.closest?.("#prompt")) {
      event.preventDefault();
      document.querySelector("#send")?.click();
    }
  }
}

onElement("chat", (root) => { window.speculoos.chat = new ChatPage(root); });
