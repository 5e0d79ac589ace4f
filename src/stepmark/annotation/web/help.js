// The overlay with the keys, drawn from their table, and the few choices that a person has.

import { dialog, make, visible } from "./dom.js";
import { choose, keyName, keysOf, setting } from "./keys.js";

function choice(name, words, values) {
  const field = make("select", { on: { change: ({ target }) => choose(name, target.value) } });
  for (const [value, shown] of Object.entries(values)) field.append(make("option", { value, selected: setting(name) === value }, shown));
  return make("label", {}, words, " ", field);
}

export function showHelp(project, when) {
  const groups = grouped(keysOf(when));
  const parts = [...groups].map(([group, rows]) =>
    make(
      "section",
      {},
      make("h3", {}, group),
      make(
        "dl",
        {},
        rows.flatMap(({ keys, words, label }) => [
          make("dt", {}, keys.map((key) => make("kbd", {}, keyName(key)))),
          // A project may call its ratings otherwise.
          make("dd", {}, label ? visible(project.reward_labels[label]) : words),
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
    project.description ? make("p", { class: "note" }, visible(project.description)) : null,
    make("div", { class: "keys" }, parts),
    make(
      "div",
      { class: "choices-row" },
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

function grouped(rows) {
  const groups = new Map();
  for (const row of rows) groups.set(row.group, [...(groups.get(row.group) ?? []), row]);
  return groups;
}
