// Long texts that fold, tool calls and what tools answered.

import { codeBlock, prose } from "./text.js";
import { boxed, button, make, visible } from "./dom.js";

const TALL = { txt: [26, 2600], out: [6, 600] }; // lines and characters from which a text opens folded
const HEAD = 4000; // characters of a folded text that are in the page at all
const HUGE = 200_000; // longer ones are shown without formulas
const LONGEST = 20_000; // longer JSON is shown as it is

function folded(kind, text, draw) {
  const lines = text.split("\n", 2000).length;
  const [most, characters] = TALL[kind];
  if (lines <= most && text.length <= characters) return draw(text);
  const box = make("div", { class: "folding" });
  const size = lines > most ? `${lines < 2000 ? lines : "all"} lines` : `${text.length.toLocaleString("en")} characters`;
  const body = make("div", { class: `clip ${kind}` });
  const toggle = button("", () => set(box.dataset.open === undefined), { class: "unfold" });
  function set(open) {
    if (open) box.dataset.open = "";
    else delete box.dataset.open;
    // Cut between lines where there are some, so that no formula is cut in two.
    const cut = text.length > HEAD ? text.lastIndexOf("\n", HEAD) : -1;
    body.replaceChildren(draw(open || text.length <= HEAD ? text : text.slice(0, cut > HEAD / 4 ? cut : HEAD)));
    toggle.textContent = open ? "Fold" : `Unfold (${size})`;
    toggle.setAttribute("aria-expanded", String(open));
  }
  box.addEventListener("fold", ({ detail }) => set(detail));
  set(false);
  box.append(body, toggle);
  return box;
}

/** Fold or unfold everything long inside an element; by default what opens something, opens it all. */
export function foldIn(element, open = null) {
  const boxes = [...element.querySelectorAll(".folding")];
  const wanted = open ?? boxes.some((box) => box.dataset.open === undefined);
  for (const box of boxes) box.dispatchEvent(new CustomEvent("fold", { detail: wanted }));
  return boxes.length > 0;
}

export function longText(text) {
  return folded("txt", text, (shown) => (shown.length > HUGE ? make("div", { class: "txt" }, boxed(visible(shown))) : prose(shown)));
}

const HEADING = /(?:^|\n\n)(Tool|User|System|Developer|Assistant)(?: \(([^()\n]*)\))?:\n/;

/** What came back after a turn, as { role, name, text }: each under its heading, as `data/conversations.py` writes them. */
export function answers(observation) {
  const [before, ...rest] = observation.split(HEADING);
  const found = before.trim() ? [{ role: "Tool", name: "", text: before.trim() }] : [];
  for (let at = 0; at < rest.length; at += 3) found.push({ role: rest[at], name: rest[at + 1] ?? "", text: rest[at + 2] });
  return found.filter(({ text }) => text.trim());
}

/** What a tool answered. */
export function output(text, label) {
  const body = folded("out", indented(text), (shown) => codeBlock(shown));
  return make("div", { class: "output" }, make("span", { class: "label" }, make("b", {}, visible(label)), " answers"), body);
}

/** A tool call: name and arguments as text. */
export function toolCall(name, input) {
  const body = input.trim() ? folded("out", indented(input), (shown) => codeBlock(shown)) : null;
  return make("div", { class: "call" }, make("span", { class: "label" }, "calls ", make("b", {}, visible(name))), body);
}

/** JSON on several lines; anything else as it is. Only white space changes: a parser would round the numbers. */
function indented(text) {
  if (!/^\s*[[{]/.test(text) || text.includes("\n") || text.length > LONGEST || !isJson(text)) return text;
  let depth = 0;
  const line = () => `\n${"  ".repeat(depth)}`;
  return text.trim().replace(/"(?:\\.|[^"\\])*"|\[\s*\]|\{\s*\}|[[\]{},:]|\s+/g, (token) => {
    if (token[0] === '"' || (token.length > 1 && /^[[{]/.test(token))) return token;
    if (token === "{" || token === "[") return (depth++, token + line());
    if (token === "}" || token === "]") return (depth--, line() + token);
    if (token === ",") return token + line();
    return token === ":" ? ": " : "";
  });
}

function isJson(text) {
  try {
    JSON.parse(text);
    return true;
  } catch {
    return false;
  }
}
