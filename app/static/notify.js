// Browser notifications of long jobs that have ended, for whoever asked for them on the Settings page of this browser.
// What was told is remembered for all tabs of the browser; a notification has the job's id as its tag, so that two tabs
// that see an end at once show one.
import { button, el } from "./dom.js";
import { onElement } from "./shell.js";

const CHOICE = "speculoos-notify", TOLD = "speculoos-told", MOST = 200;
const WORDS = { SUCCEEDED: "is done", FAILED: "has failed" };
const read = (key) => { try { return localStorage.getItem(key); } catch { return null; } };
const write = (key, value) => { try { localStorage.setItem(key, value); } catch { /* private mode: for no page */ } };
const possible = () => "Notification" in window && window.isSecureContext;

// Whether this browser is to show them.
export function wanted() { return possible() && read(CHOICE) === "on" && Notification.permission === "granted"; }

// Shows those of the ended jobs (newest first) that were not told yet; at the first look all count as told.
export function tell(ended) {
  const told = JSON.parse(read(TOLD) || "null");
  const fresh = told ? ended.filter((job) => !told.includes(job.id)) : [];
  if (!told || fresh.length) write(TOLD, JSON.stringify([...ended.map((job) => job.id), ...(told || [])].slice(0, MOST)));
  for (const job of fresh) show(job);
}

function show(job) {
  const shown = new Notification(`“${job.name}” ${WORDS[job.state]}`, { tag: job.id, icon: "/ui/icon.svg" });
  shown.onclick = () => {
    window.focus();
    location.href = `/jobs?id=${encodeURIComponent(job.id)}`;
    shown.close();
  };
}

const STATES = {
  impossible: "Browsers show notifications only of pages that come over https or from this machine; the webhook works anywhere.",
  denied: "This browser refuses notifications of these pages; allow them in its settings for this site.",
  on: "This browser tells you, while a tab of the workbench is open.",
  off: "",
};

function stateNow() {
  if (!possible()) return "impossible";
  if (Notification.permission === "denied") return "denied";
  return wanted() ? "on" : "off";
}

onElement("notify", (place) => {
  const words = el("span", { class: "sp-hint", role: "status" });
  const choice = button("small", "", change, { id: "notify-button" });
  place.replaceChildren(choice, words);
  draw();

  function draw() {
    const state = stateNow();
    place.dataset.state = state;
    choice.hidden = state === "impossible" || state === "denied";
    choice.textContent = state === "on" ? "Stop notifying me here" : "Notify me in this browser";
    words.textContent = STATES[state];
  }

  async function change() {
    const on = !wanted();
    write(CHOICE, on ? "on" : "off");
    if (on) {
      localStorage.removeItem(TOLD);
      await Notification.requestPermission();
    }
    draw();
  }
});
