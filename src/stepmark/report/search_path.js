// The way to one step of a search, with scores, as a card of the report; and what other scripts make elements with.
"use strict";
const searchPath = (() => {
  const SIGNS = { kept: "", pruned: "✗", finished: "■", chosen: "★" };
  const NOTHING = "(no text)"; // the policy ended here without another step

  function make(tag, names = "", text = "") {
    const one = document.createElement(tag);
    if (names) one.className = names;
    if (text !== "") one.textContent = text;
    return one;
  }

  const digits = new Intl.NumberFormat("en");
  const count = (number, word) => `${digits.format(number)} ${word}${number === 1 ? "" : word.endsWith("ch") ? "es" : "s"}`;

  function fact(list, name, value) {
    if (value === undefined) return;
    const pair = make("div");
    pair.append(make("dt", "", name), make("dd", "", value));
    list.append(pair);
  }

  function step(node, here, aggregate) {
    const row = make("li", `step ${node.level}${here ? " here" : ""}`);
    const said = make("div", "said"), text = make("div", "txt");
    text.dir = "auto";
    if (node.html === undefined) text.textContent = node.text || NOTHING;
    else text.innerHTML = node.html; // escaped by Python
    said.append(text);
    const small = [];
    if (node.sumSaid !== undefined) small.push(`${aggregate} so far ${node.sumSaid}`);
    if (node.policy !== undefined || node.prm !== undefined) small.push(`tokens: ${node.policy ?? "–"} written, ${node.prm ?? "–"} graded`);
    if (small.length) said.append(make("p", "note", small.join(" · ")));
    const value = make("span", node.said === undefined ? "val unread" : "val", node.said === undefined ? "not scored" : "");
    if (node.said !== undefined) {
      const bar = make("i", "meter"), filled = make("i");
      filled.style.width = `${node.at * 100}%`;
      bar.append(filled);
      value.title = node.score;
      value.append(make("b", "", node.said), bar);
    }
    row.append(make("span", "n", node.depth), said, value);
    return row;
  }

  function total(steps, key) {
    const known = steps.map((node) => node[key]);
    return known.every((one) => one !== undefined) ? digits.format(known.reduce((a, b) => a + b, 0)) : undefined;
  }

  /** Of a step: what became of it, and all the steps up to it, as a card of the report has them. */
  function told(picked, data, { folded, turn }) {
    const steps = searchTree.way(picked);
    const top = make("div", "told"), title = make("h3");
    title.append(make("span", "name", !picked.parent ? "The problem" : `Step ${picked.depth}`));
    if (picked.parent) {
      const pills = make("span", "pills");
      const sort = { pruned: " bad", chosen: " best" }[picked.state] ?? "";
      pills.append(make("span", `pill${sort}`, `${SIGNS[picked.state]} ${picked.state}`.trim()), make("span", "pill", `round ${picked.round}`));
      title.append(pills);
    }
    top.append(title);
    if (picked.why) top.append(make("p", "odd", `${picked.state === "pruned" ? "Pruned" : "Note"}: ${picked.why}`));
    const facts = make("dl", "aggregates");
    fact(facts, `${data.aggregate} so far`, picked.sumSaid);
    if (picked.times) fact(facts, "written", `${digits.format(picked.times)} times`);
    fact(facts, "visits", picked.visits);
    fact(facts, "value", picked.value);
    fact(facts, "written tokens", total(steps, "policy"));
    fact(facts, "graded tokens", total(steps, "prm"));
    const alive = picked.children.filter((child) => child.alive).length;
    if (picked.children.length) fact(facts, "next steps", picked.children.length);
    if (picked.children.length) fact(facts, "kept of them", alive);
    if (facts.children.length) top.append(facts);
    const lost = picked.children.length - alive;
    if (lost) {
      const button = make("button", "", `${folded ? "Unfold" : "Fold"} ${count(lost, "pruned branch")}`);
      button.type = "button";
      button.addEventListener("click", turn);
      top.append(button);
    }
    const list = make("ol", "steps");
    list.append(...steps.map((node) => step(node, node === picked, data.aggregate)));
    return [top, list];
  }

  return { NOTHING, SIGNS, count, digits, make, told };
})();
