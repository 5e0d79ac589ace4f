// Draws the tree of one problem, moves in it, and shows the way to the step that is picked. Texts come escaped from
// Python (`html` and the parts around the tree) or go in as text; nothing else is read from the data.
"use strict";
(() => {
  const COLUMN = 202, ROW = 42, WIDE = 170, HIGH = 34, EDGE = 14, FIRST = 84; // FIRST: how wide the problem is
  const SIGNS = { kept: "", pruned: "✗", finished: "■", chosen: "★" };
  const NOTHING = "(no text)"; // the policy ended here without another step
  const MANY = 300; // a tree of more nodes opens without its pruned branches
  const part = Object.fromEntries([...document.querySelectorAll("[id]")].map((one) => [one.id, one]));
  const { shown, view, sizer, ground, heads, tree, panel, find, pruned } = part;
  const edges = Object.fromEntries([...part.edges.children].map((one) => [one.classList[1], one]));

  let problem = 0; // its number in the page, from 1
  let data, root, all; // the page's data of it; the problem as a node; every node in the order of the tree
  let items = []; // the nodes that are drawn
  let columns = [];
  let picked;
  let size = 1;
  let extent = { wide: 1, high: 1 }; // of the tree at the size 1

  function make(tag, names = "", text = "") {
    const one = document.createElement(tag);
    if (names) one.className = names;
    if (text !== "") one.textContent = text;
    return one;
  }

  const digits = new Intl.NumberFormat("en");

  // The tree

  // Puts parents, children and depths into the nodes of the data.
  function grow(text) {
    root = { state: "root", round: -1, depth: 0, children: [], text, alive: true };
    for (const node of data.nodes) {
      node.children = [];
      node.parent = node.up === undefined ? root : data.nodes[node.up];
      node.depth = node.parent.depth + 1;
      node.parent.children.push(node);
    }
    // Children come after their parents: backwards, every node is met after all that lies under it.
    for (const node of [...data.nodes].reverse()) {
      node.alive = node.state !== "pruned" || node.children.some((child) => child.alive);
    }
    for (let node = data.nodes[data.chosen]; node; node = node.parent) node.main = true;
    all = []; // a node before its children, and these before the next node
    const waiting = [root];
    while (waiting.length) {
      const node = waiting.pop();
      node.order = all.push(node);
      waiting.push(...node.children.slice().reverse());
    }
  }

  // The steps from the first to this one.
  function way(node) {
    const steps = [];
    for (let one = node; one.parent; one = one.parent) steps.unshift(one);
    return steps;
  }

  // What is drawn after a node.
  const under = (node) => node.children.filter((child) => child.alive || pruned.checked);

  // Places as near as can be, by least squares, to those that are wanted, in this order and a row apart: the method
  // of pooled adjacent violators.
  function settle(column) {
    const blocks = [];
    column.forEach((item, at) => {
      let block = { sum: item.weight * (item.want - at * ROW), weight: item.weight, items: [item] };
      while (blocks.length && blocks.at(-1).sum / blocks.at(-1).weight >= block.sum / block.weight) {
        const before = blocks.pop();
        before.items.push(...block.items);
        block = { sum: before.sum + block.sum, weight: before.weight + block.weight, items: before.items };
      }
      blocks.push(block);
    });
    let at = 0;
    for (const block of blocks) for (const item of block.items) item.y = block.sum / block.weight + at++ * ROW;
  }

  const left = (depth) => EDGE + depth * COLUMN - (depth ? WIDE - FIRST : 0);

  // Gives every node that is drawn its place, in columns from left to right in which no line crosses another.
  function place() {
    root.y = 0;
    columns = [[root]];
    for (let column = columns[0]; column.length; ) {
      const next = [];
      for (const node of column) {
        const children = under(node);
        // What the search went on from stands beside its parent, so that the chosen path is a line.
        const alive = children.flatMap((child, at) => (child.alive ? [at] : []));
        const main = children.findIndex((child) => child.main);
        const middle = alive.length ? alive.reduce((a, b) => a + b) / alive.length : (children.length - 1) / 2;
        children.forEach((child, at) => {
          child.want = node.y + (at - (main < 0 ? middle : main)) * ROW;
          child.weight = child.main ? 1e6 : child.alive ? 4 : 1;
        });
        next.push(...children);
      }
      if (next.length) columns.push(next);
      settle(next);
      column = next;
    }
    items = columns.flat();
    const top = items.reduce((least, item) => Math.min(least, item.y), Infinity);
    for (const item of items) {
      item.x = left(item.depth);
      item.y += EDGE - top;
    }
    const high = items.reduce((most, item) => Math.max(most, item.y), 0) + HIGH + EDGE;
    items.sort((a, b) => a.order - b.order);
    extent = { high, wide: left(columns.length - 1) + WIDE + EDGE };
  }

  // The line from a node's parent to it, as a part of an SVG path.
  function line({ parent, x, y }) {
    const from = parent.x + (parent.parent ? WIDE : FIRST), bend = (x - from) / 2, down = (y - parent.y).toFixed(1);
    return `M${from} ${(parent.y + HIGH / 2).toFixed(1)}c${bend} 0 ${bend} ${down} ${x - from} ${down}`;
  }

  // Drawing

  function words(item) {
    if (item === root) return `Problem: ${root.text.slice(0, 160)}`;
    const score = item.said === undefined ? "not scored" : `score ${item.said}`;
    const often = item.times ? `written ${item.times} times, ` : "";
    return `Step ${item.depth}, ${score}, ${item.state}, ${often}round ${item.round}: ${(item.text || NOTHING).slice(0, 160)}`;
  }

  function box(item) {
    const one = make("div", `node ${item.state} ${item.level ?? ""}${item.main ? " main" : ""}`);
    item.box = one;
    one.item = item;
    one.style.left = `${item.x}px`;
    one.style.top = `${item.y}px`;
    one.tabIndex = -1;
    one.setAttribute("role", "treeitem");
    one.setAttribute("aria-level", item.depth + 1);
    one.setAttribute("aria-label", words(item));
    one.setAttribute("aria-selected", "false");
    if (item === root) {
      one.append(make("span", "what", "Problem"));
      return one;
    }
    // Of siblings that begin alike, what differs.
    const text = item.from ? `… ${item.text.slice(item.from)}` : item.text || NOTHING;
    one.append(make("b", "", item.said ?? "–"), make("span", "what", text.slice(0, 90).replaceAll("$", "")));
    one.title = item.text.slice(0, 400);
    one.lastChild.dir = "auto";
    if (item.times) one.append(make("em", "", `×${item.times}`));
    if (SIGNS[item.state]) one.append(make("i", "", SIGNS[item.state]));
    return one;
  }

  function draw() {
    place();
    for (const node of all) node.box = undefined;
    tree.replaceChildren(...items.map(box));
    ground.style.width = part.edges.style.width = `${extent.wide}px`;
    ground.style.height = part.edges.style.height = `${extent.high}px`;
    resize();
    heads.replaceChildren(
      ...columns.slice(1).map((_, at) => {
        const one = make("div", "", `Step ${at + 1}`);
        one.append(make("span", "", `${data.nodes.filter((node) => node.depth === at + 1).length} written`));
        one.style.left = `${left(at + 1)}px`;
        return one;
      }),
    );
    const drawn = { pruned: [], kept: [], chosen: [] };
    for (const item of items.slice(1)) drawn[item.main ? "chosen" : item.alive ? "kept" : "pruned"].push(line(item));
    for (const sort in drawn) edges[sort].setAttribute("d", drawn[sort].join(""));
    mark();
    sift();
  }

  function mark() {
    for (const one of tree.querySelectorAll(".on, .picked")) {
      one.classList.remove("on", "picked");
      one.setAttribute("aria-selected", "false");
      one.tabIndex = -1;
    }
    const steps = way(picked);
    for (const one of [root, ...steps]) one.box.classList.add("on");
    edges.picked.setAttribute("d", steps.map(line).join(""));
    picked.box.tabIndex = 0;
    picked.box.classList.add("picked");
    picked.box.setAttribute("aria-selected", "true");
  }

  // The way to a step, as a card of the report has it

  function step(node) {
    const row = make("li", `step ${node.level}${node === picked ? " here" : ""}`);
    const said = make("div", "said"), text = make("div", "txt");
    text.dir = "auto";
    if (node.html === undefined) text.textContent = node.text || NOTHING;
    else text.innerHTML = node.html; // escaped by Python
    said.append(text);
    const small = [];
    if (node.sumSaid !== undefined) small.push(`${data.aggregate} so far ${node.sumSaid}`);
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
    return steps.length && known.every((one) => one !== undefined) ? digits.format(known.reduce((a, b) => a + b)) : undefined;
  }

  function tell() {
    const steps = way(picked), top = make("div", "told"), title = make("h3");
    title.append(make("span", "name", picked === root ? "The problem" : `Step ${picked.depth}`));
    if (picked !== root) {
      const pills = make("span", "pills"), sort = { pruned: " bad", chosen: " best" }[picked.state] ?? "";
      pills.append(make("span", `pill${sort}`, `${SIGNS[picked.state]} ${picked.state}`.trim()), make("span", "pill", `round ${picked.round}`));
      title.append(pills);
    }
    top.append(title);
    if (picked.why) top.append(make("p", "odd", `${picked.state === "pruned" ? "Pruned" : "Note"}: ${picked.why}`));
    const facts = make("dl", "aggregates");
    const values = {
      [`${data.aggregate} so far`]: picked.sumSaid,
      "written times": picked.times,
      visits: picked.visits,
      value: picked.value,
      "written tokens": total(steps, "policy"),
      "graded tokens": total(steps, "prm"),
      "next steps": picked.children.length || undefined,
    };
    for (const [name, value] of Object.entries(values)) {
      if (value === undefined) continue;
      const pair = make("div");
      pair.append(make("dt", "", name), make("dd", "", value));
      facts.append(pair);
    }
    if (facts.children.length) top.append(facts);
    const list = make("ol", "steps");
    list.append(...steps.map(step));
    panel.replaceChildren(top, list);
    for (const row of list.children) row.dispatchEvent(new CustomEvent("formulas", { bubbles: true }));
    panel.scrollTop = panel.scrollHeight;
  }

  // Moving

  function pick(item, { focus = false, follow = true } = {}) {
    picked = item;
    if (item.box) {
      mark();
    } else {
      pruned.checked = true;
      draw();
    }
    tell();
    if (follow) item.box.scrollIntoView({ block: "nearest", inline: "nearest" });
    if (focus) item.box.focus({ preventScroll: true });
    history.replaceState(null, "", picked === root ? `#p${problem}` : `#p${problem}n${picked.id}`);
  }

  function next(key) {
    const column = columns[picked.depth], at = column.indexOf(picked);
    if (key === "ArrowUp") return column[at - 1];
    if (key === "ArrowDown") return column[at + 1];
    if (key === "ArrowLeft") return picked.parent;
    if (key === "Home") return root;
    if (key === "End") return data.nodes[data.chosen];
    const after = under(picked), value = (one) => one.score ?? -Infinity;
    return after.find((one) => one.main) ?? after.filter((one) => one.alive).sort((a, b) => value(b) - value(a))[0] ?? after[0];
  }

  tree.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || !/^(Arrow(Up|Down|Left|Right)|Home|End)$/.test(event.key)) return;
    const item = next(event.key);
    if (item) pick(item, { focus: true });
    event.preventDefault();
  });

  tree.addEventListener("click", ({ target }) => {
    const item = target.closest(".node")?.item;
    if (item) pick(item, { focus: true, follow: false });
  });

  // The search for a text

  function sift() {
    const text = find.value.trim().toLowerCase();
    for (const node of all) {
      node.hit = node !== root && text !== "" && node.text.toLowerCase().includes(text);
      node.box?.classList.toggle("aside", text !== "" && !node.hit && node !== root);
      node.box?.classList.toggle("hit", node.hit);
    }
    const found = all.filter((node) => node.hit).length;
    part.next.disabled = !found;
    part.found.textContent = text && `${digits.format(found)} of ${digits.format(data.nodes.length)} node${data.nodes.length === 1 ? "" : "s"}`;
  }

  function forward() {
    const hits = all.filter((node) => node.hit);
    if (hits.length) pick(hits.find((node) => node.order > picked.order) ?? hits[0]);
  }

  find.addEventListener("input", sift);
  find.addEventListener("keydown", (event) => event.key === "Enter" && forward());
  part.next.addEventListener("click", forward);

  // Size, and pruned branches

  // A transform, because it lays nothing out anew: `zoom` took a second at 1,000 nodes.
  function resize() {
    ground.style.transform = `scale(${size})`;
    sizer.style.width = `${extent.wide * size}px`;
    sizer.style.height = `${extent.high * size}px`;
    part.drawn.classList.toggle("far", size < 0.55); // letters would be too small to read
    follow();
  }

  const follow = () => (heads.style.transform = `translateX(${-view.scrollLeft}px) scale(${size})`);
  view.addEventListener("scroll", follow, { passive: true });

  function zoom(to) {
    const before = size, x = view.clientWidth / 2, y = view.clientHeight / 2;
    size = Math.min(2, Math.max(0.04, to));
    const across = (view.scrollLeft + x) / before, down = (view.scrollTop + y) / before;
    resize();
    view.scrollTo(across * size - x, down * size - y);
  }

  part.larger.addEventListener("click", () => zoom(size * 1.25));
  part.smaller.addEventListener("click", () => zoom(size / 1.25));
  const whole = () => Math.min(1, view.clientWidth / extent.wide, view.clientHeight / extent.high);
  part.whole.addEventListener("click", () => zoom(Math.abs(size - whole()) < 0.001 ? 1 : whole()));
  pruned.addEventListener("change", () => {
    while (!pruned.checked && !picked.alive) picked = picked.parent;
    draw();
    tell();
  });
  part.best.addEventListener("click", () => pick(data.nodes[data.chosen], { focus: true }));

  // One problem

  function open(number, id) {
    const of = (name) => data.nodes.find((node) => [node.id, ...(node.ids ?? [])].map(String).includes(name));
    if (number === problem) {
      const node = id === undefined ? root : of(id);
      return node && pick(node);
    }
    problem = number;
    data = JSON.parse(part[`d${number}`].textContent);
    part.about.innerHTML = data.about; // made and escaped by Python, as `after`
    part.after.innerHTML = data.after;
    grow(part.about.querySelector(".ask .txt")?.textContent ?? "");
    for (const link of document.querySelectorAll(".runs a")) {
      if (link.hash === `#p${number}`) link.setAttribute("aria-current", "true");
      else link.removeAttribute("aria-current");
    }
    picked = (id === undefined ? undefined : of(id)) ?? data.nodes[data.chosen] ?? root;
    pruned.checked = data.nodes.length <= MANY || !picked.alive;
    part.best.disabled = data.chosen === undefined;
    shown.hidden = false;
    zoom(1);
    draw();
    part.stage.style.setProperty("--tall", `${Math.ceil(extent.high) + 60}px`); // a small tree leaves no empty space
    tell();
    part.about.dispatchEvent(new CustomEvent("formulas", { bubbles: true }));
    view.scrollTo(0, root.y * size - view.clientHeight / 2);
    if (id !== undefined) picked.box.scrollIntoView({ block: "nearest", inline: "nearest" });
  }

  function visit() {
    const [, number, id] = /^#p(\d+)(?:n(\d+))?$/.exec(location.hash) ?? [];
    open(part[`d${number}`] ? Number(number) : problem || 1, id);
  }

  addEventListener("hashchange", visit);
  // Past the list of problems, which may be long.
  document.querySelector(".skip")?.addEventListener("click", () => tree.querySelector('[tabindex="0"]')?.focus());
  addEventListener("beforeprint", () => zoom(Math.min(1, 680 / extent.wide)));
  visit();
})();
