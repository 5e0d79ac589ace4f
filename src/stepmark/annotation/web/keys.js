// Every key of the page, in one table: the keyboard listens by it and the help is drawn from it; and what a person has chosen.

import { dialog, make, visible } from "./dom.js";

/** `only`: what must be so, by the names in `when` below. Capitals are typed with Shift; "Ctrl+" is also the Command key. */
export const KEYS = [
  { action: "next", keys: ["j", "ArrowDown"], words: "Next step", group: "Move" },
  { action: "previous", keys: ["k", "ArrowUp"], words: "Previous step", group: "Move" },
  { action: "gap", keys: ["g"], words: "Next step that is not judged", group: "Move" },
  { action: "differ", keys: ["d"], words: "Next step on which they differ", group: "Move", only: "deciding" },
  { action: "jump", keys: ["/"], words: "Jump to a step by its number", group: "Move" },
  { action: "first", keys: ["Home"], words: "First step", group: "Move" },
  { action: "last", keys: ["End"], words: "Last step", group: "Move" },
  { action: "wrong", keys: ["Enter", "x", "1"], words: "This is the first wrong step, the decisive error", group: "Judge", only: "first_error" },
  { action: "clean", keys: ["e", "0"], words: "No step is wrong", group: "Judge", only: "first_error" },
  { action: "wrong", keys: ["1", "x"], words: "Wrong", group: "Judge", only: "per_step", label: "incorrect" },
  { action: "neutral", keys: ["2", "n"], words: "Neutral", group: "Judge", only: "neutral", label: "neutral" },
  { action: "right", keys: ["3", "c"], words: "Right", group: "Judge", only: "per_step", label: "correct" },
  { action: "clear", keys: ["Backspace", "Delete"], words: "Remove the mark", group: "Judge", only: "first_error" },
  { action: "clear", keys: ["0", "Backspace", "Delete"], words: "Remove the rating", group: "Judge", only: "per_step" },
  { action: "takeA", keys: ["A"], words: "Use the answer of A", group: "Judge", only: "deciding" },
  { action: "takeB", keys: ["B"], words: "Use the answer of B", group: "Judge", only: "deciding" },
  { action: "takeC", keys: ["C"], words: "Use the answer of C", group: "Judge", only: "deciding" },
  { action: "accept", keys: ["a"], words: "Accept what the model says of this step", group: "Judge", only: "help" },
  { action: "unsure", keys: ["u"], words: "Unsure of this step", group: "Comment", only: "labelling" },
  { action: "unsureAll", keys: ["U"], words: "Unsure of the whole solution", group: "Comment", only: "labelling" },
  { action: "note", keys: ["m"], words: "Note on this step", group: "Comment" },
  { action: "noteAll", keys: ["M"], words: "Note on the whole solution", group: "Comment" },
  { action: "type", keys: ["t"], words: "Type of the error", group: "Comment", only: "types" },
  { action: "undo", keys: ["z", "Ctrl+z"], words: "Undo", group: "Fix" },
  { action: "redo", keys: ["y", "Ctrl+y", "Ctrl+Z"], words: "Redo", group: "Fix" },
  { action: "reopen", keys: ["r"], words: "Reopen a submitted solution", group: "Fix", only: "labelling" },
  { action: "submit", keys: ["s", "Ctrl+Enter"], words: "Submit and go to the next solution", group: "Continue", only: "labelling" },
  { action: "submit", keys: ["s", "Ctrl+Enter"], words: "Record the decision and go to the next", group: "Continue", only: "deciding" },
  { action: "back", keys: ["["], words: "Back to the solution before", group: "Continue", only: "labelling" },
  { action: "skip", keys: ["]"], words: "Skip this one for now", group: "Continue", only: "labelling" },
  { action: "mine", keys: ["l"], words: "List of my solutions", group: "Continue", only: "labelling" },
  { action: "fold", keys: ["f"], words: "Fold or unfold the long parts of this step", group: "View" },
  { action: "foldAll", keys: ["F"], words: "Fold or unfold all", group: "View" },
  { action: "problem", keys: ["p"], words: "Fold or unfold the problem", group: "View" },
  { action: "help", keys: ["?"], words: "Show the keys", group: "View" },
];

/** The rows of the table that hold now. `when`: the names in `only` that are true. */
export function keysOf(when) {
  return KEYS.filter(({ only }) => !only || when.has(only));
}

const NAMES = { ArrowDown: "↓", ArrowUp: "↑", Backspace: "⌫", Delete: "Del", "Ctrl+Z": "Ctrl+Shift+z" };

/** How a key is shown. */
export function keyName(key) {
  return NAMES[key] ?? (/^[A-Z]$/.test(key) ? `Shift+${key.toLowerCase()}` : key);
}

/** The name in the table of what was pressed; null for what is no key of ours. */
export function pressed(event) {
  if (event.altKey && !event.ctrlKey) return null;
  // On a keyboard of another script the place of the key counts: the key beside the one for "z" is "x" everywhere.
  let key = event.key;
  if (key.length === 1 && key.charCodeAt(0) > 0x7f && /^Key[A-Z]$/.test(event.code)) {
    key = event.shiftKey ? event.code.at(-1) : event.code.at(-1).toLowerCase();
  }
  // Caps Lock alone must not turn "unsure of this step" into "unsure of the whole solution".
  if (/^[A-Za-z]$/.test(key)) key = event.shiftKey ? key.toUpperCase() : key.toLowerCase();
  return event.ctrlKey || event.metaKey ? `Ctrl+${key}` : key;
}

const TYPING = "input:not([type=checkbox],[type=radio],[type=button]),textarea,select,[contenteditable]";

/** Whether the key belongs to the element it was pressed in. */
export function isTyped(event) {
  const { target, key } = event;
  if (!(target instanceof Element)) return false;
  if (target.closest(TYPING)) return true;
  return (key === "Enter" || key === " ") && Boolean(target.closest("button,a,summary,label"));
}

const DEFAULTS = { advance: "on", keys: "on" };

/** What an annotator has chosen for this browser. */
export function setting(name) {
  try {
    return localStorage.getItem(`stepmark:set:${name}`) ?? DEFAULTS[name];
  } catch {
    return DEFAULTS[name];
  }
}

export function choose(name, value) {
  try {
    localStorage.setItem(`stepmark:set:${name}`, value);
  } catch {
    // A full storage is reported where it matters: at the clicks that are not sent yet.
  }
}

function choice(name, words, values) {
  const field = make("select", {}, Object.entries(values).map(([value, shown]) => make("option", { value, selected: setting(name) === value }, shown)));
  field.addEventListener("change", () => choose(name, field.value));
  return make("label", {}, words, " ", field);
}

/** The dialog with the keys that hold now. */
export function showHelp(project, when) {
  const rows = keysOf(when);
  const groups = [...new Set(rows.map(({ group }) => group))].map((group) =>
    make(
      "section",
      {},
      make("h3", {}, group),
      make(
        "dl",
        {},
        rows
          .filter((row) => row.group === group)
          .flatMap(({ keys, words, label }) => [
            make("dt", {}, keys.map((key) => make("kbd", {}, keyName(key)))),
            make("dd", {}, label ? visible(project.reward_labels[label]) : words), // a project may call its ratings otherwise
          ]),
      ),
    ),
  );
  const modes = {
    first_error: "Find the first step that is wrong. Steps before it count as right; later ones are not judged.",
    per_step: "Rate each step on its own. After a wrong step you may stop: the steps behind it may stay unrated.",
  };
  const box = dialog(
    "Keys",
    make("p", { class: "note" }, modes[project.mode]),
    make("p", { class: "note" }, visible(project.description)),
    make("div", { class: "keys" }, groups),
    make(
      "div",
      { class: "row" },
      project.mode === "per_step" ? choice("advance", "After a rating by key", { on: "go to the next step", off: "stay" }) : null,
      choice("keys", "Single-letter keys", { on: "on", off: "off" }),
    ),
  );
  box.classList.add("wide");
  box.addEventListener("keydown", (event) => {
    if (event.key !== "?") return;
    event.preventDefault();
    box.close();
  });
}
