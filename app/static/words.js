// The page Words: brings the word in the address into sight and marks it, also when it was drawn after the browser looked.
import { onElement } from "./shell.js";

function showAsked(list) {
  const name = decodeURIComponent(location.hash.slice(1));
  for (const word of list.querySelectorAll("dt")) word.classList.toggle("sp-asked", word.id === name);
  list.querySelector(".sp-asked")?.scrollIntoView({ block: "center" });
}

onElement("words", (list) => {
  showAsked(list);
  window.addEventListener("hashchange", () => showAsked(list));
});
