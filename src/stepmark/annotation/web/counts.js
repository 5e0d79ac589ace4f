// How far an item is, in words and figures, for the bar at the foot.

import { make, visible } from "./dom.js";

/** What is said of the item now. */
export function countsOf(work) {
  const { folding, project, view } = work;
  const all = view.steps.length;
  const chip = (kind, words) => make("span", { class: `chip ${kind}` }, visible(words));
  const parts = [];
  if (folding.mode === "first_error") {
    const first = folding.firstError;
    if (first === null) parts.push(chip("none", "first error: not marked yet"));
    else if (first < 0) parts.push(chip("good", `no error in ${all} steps`));
    else parts.push(chip("bad", `first error: step ${first + 1} of ${all}`));
  } else {
    const seen = { "-1": 0, 0: 0, 1: 0, null: 0 };
    for (let step = 0; step < all; step++) seen[folding.rating(step)]++;
    const { correct, neutral, incorrect } = project.reward_labels;
    parts.push(chip("good", `${seen[1]} ${correct.toLowerCase()}`));
    if (folding.allowNeutral) parts.push(chip("warn", `${seen[0]} ${neutral.toLowerCase()}`));
    parts.push(chip("bad", `${seen[-1]} ${incorrect.toLowerCase()}`));
    if (seen[null]) parts.push(chip("none", `${seen[null]} not judged`));
  }
  if (folding.unsure(null)) parts.push(chip("odd", "unsure of the whole"));
  const left = work.unverified.length;
  if (left) parts.push(chip("odd", `${left} to verify`));
  return parts;
}

/** Where the annotator's work is now: saved, on its way, or waiting in this browser. */
export function saveWords({ trouble, unsent, held, doing }) {
  const waiting = `${unsent} not sent`;
  if (trouble === "storage") return ["bad", "The browser's storage is full: keep this tab open until all is saved"];
  if (held) return ["bad", `${waiting}: needs your decision`];
  if (trouble === "offline") return ["odd", `${waiting}: offline, kept in this browser`];
  if (trouble === "login") return ["odd", `${waiting}: log in again`];
  if (trouble === "busy") return ["odd", `${waiting}: the server asks to wait`];
  if (unsent || doing) return ["", "Saving …"];
  return ["good", "Saved"];
}
