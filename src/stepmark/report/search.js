// Draws the tree of one problem, moves in it, and shows the way to the step that is picked. Texts come escaped from
// Python (`html` and the parts around the tree) or go in as text; nothing else is read from the data.
"use strict";
(() => {
  const { grown, left, line, placed, under, way } = searchTree;
  const { NOTHING, SIGNS, count, digits, make, told } = searchPath;
  const FOLD_FROM = 300; // a tree of more nodes opens with its pruned branches folded
  const part = Object.fromEntries([...document.querySelectorAll("[id]")].map((one) => [one.id, one]));
  const { shown, view, sizer, ground, heads, tree, panel, find, least, most, upto, fold } = part;
  const edges = Object.fromEntries([...part.edges.children].map((one) => [one.classList[1], one]));

  let problem = 0; // its number in the page, from 1
  let data, root, all; // the page's data of it; the problem as a node; every node in the order of the tree
  let unlike = new Set(); // nodes whose pruned branches are not as the check box says
  let items = []; // what is drawn: nodes and folded branches
  let columns = [];
  let picked;
  let size = 1;
  let extent = { wide: 1, high: 1 }; // of the tree at the size 1
  let growing;

  function read(number) {
    data = JSON.parse(part[`d${number}`].textContent);
    part.about.innerHTML = data.about; // made and escaped by Python, as `after`
    part.after.innerHTML = data.after;
    ({ root, all } = grown(data, part.about.querySelector(".ask .txt")?.textContent ?? ""));
  }

  const isFolded = (node) => fold.checked !== unlike.has(node);

  // Drawing

  function words(item) {
    if (item === root) return `Problem: ${root.text.slice(0, 160)}`;
    if (item.lost) return `${count(item.lost.length, "pruned branch")}, folded`;
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
    if (item.lost) one.setAttribute("aria-expanded", "false");
    else if (item.children.length) one.setAttribute("aria-expanded", "true");
    if (item.lost) {
      one.append(make("span", "what", `+ ${item.lost.length} pruned`));
    } else if (item === root) {
      one.append(make("span", "what", "Problem"));
    } else {
      // Of siblings that begin alike, what differs.
      const text = item.from ? `… ${item.text.slice(item.from)}` : item.text || NOTHING;
      one.append(make("b", "", item.said ?? "–"), make("span", "what", text.slice(0, 90).replaceAll("$", "")));
      one.title = item.text.slice(0, 400);
      one.lastChild.dir = "auto";
      if (item.times) one.append(make("em", "", `×${item.times}`));
      if (SIGNS[item.state]) one.append(make("i", "", SIGNS[item.state]));
    }
    return one;
  }

  function draw() {
    let wide, high;
    ({ columns, items, wide, high } = placed(root, isFolded));
    for (const node of all) node.box = undefined;
    tree.replaceChildren(...items.map(box));
    extent = { wide, high };
    ground.style.width = part.edges.style.width = `${wide}px`;
    ground.style.height = part.edges.style.height = `${high}px`;
    resize();
    heads.replaceChildren(
      ...columns.slice(1).map((column, at) => {
        const nodes = column.flatMap((item) => item.lost ?? [item]);
        const pruned = nodes.filter((node) => node.state === "pruned").length;
        const one = make("div", "", `Step ${at + 1}`);
        const ended = nodes.filter((node) => node.state === "finished" || (node.state === "chosen" && !node.children.length)).length;
        const parts = { kept: nodes.length - pruned - ended, pruned, finished: ended };
        one.append(make("span", "", Object.keys(parts).filter((word) => parts[word]).map((word) => `${parts[word]} ${word}`).join(" · ")));
        one.style.left = `${left(at + 1)}px`;
        return one;
      }),
    );
    grow();
    sift();
  }

  const since = (item) => (item.lost ? Math.min(...item.lost.map((node) => node.round)) : item.round);

  // What was there after a round; the places are those of the whole tree, so that nothing jumps.
  function grow() {
    const last = Number(upto.value);
    const drawn = { pruned: [], kept: [], chosen: [] };
    for (const item of items) {
      item.later = since(item) > last;
      item.box.classList.toggle("later", item.later);
      if (item === root || item.later) continue;
      drawn[item.main ? "chosen" : item.lost || !item.alive ? "pruned" : "kept"].push(line(item));
    }
    for (const sort in drawn) edges[sort].setAttribute("d", drawn[sort].join(""));
    const of = data.rounds[last];
    part.grown.textContent = `${last} of ${upto.max}${of ? ` (${of})` : ""}`;
    mark();
  }

  function mark() {
    for (const one of tree.querySelectorAll(".on, .picked")) {
      one.classList.remove("on", "picked");
      one.setAttribute("aria-selected", "false");
      one.tabIndex = -1;
    }
    const steps = way(picked).filter((one) => one.box && !one.later);
    for (const one of [root, ...steps]) one.box.classList.add("on");
    edges.picked.setAttribute("d", steps.map(line).join(""));
    const last = steps.at(-1) ?? root; // the picked one, but where that was not yet written in the round that is shown
    last.box.tabIndex = 0;
    if (last !== picked) return;
    last.box.classList.add("picked");
    last.box.setAttribute("aria-selected", "true");
  }

  // The way to a step

  function tell() {
    const fold = { folded: isFolded(picked), turn: () => (turn(picked), panel.querySelector(".told button")?.focus()) };
    panel.replaceChildren(...told(picked, data, fold));
    for (const row of panel.querySelectorAll(".step")) row.dispatchEvent(new CustomEvent("formulas", { bubbles: true }));
    atEnd = true;
    panel.scrollTop = panel.scrollHeight;
    sizes.disconnect();
    sizes.observe(panel.lastChild);
  }

  // The picked step is the last: it stays in sight while formulas above it are set, until the reader scrolls.
  let atEnd = true;
  const sizes = new ResizeObserver(() => atEnd && (panel.scrollTop = panel.scrollHeight));
  for (const kind of ["wheel", "pointerdown", "keydown", "touchstart"]) panel.addEventListener(kind, () => (atEnd = false), { passive: true });

  // Moving

  function near(item) {
    const box = item.box.getBoundingClientRect(), frame = view.getBoundingClientRect();
    const side = 24;
    if (box.left < frame.left + side) view.scrollLeft += box.left - frame.left - side;
    if (box.right > frame.right - side) view.scrollLeft += box.right - frame.right + side;
    if (box.top < frame.top + side) view.scrollTop += box.top - frame.top - side;
    if (box.bottom > frame.bottom - side) view.scrollTop += box.bottom - frame.bottom + side;
  }

  function pick(item, { focus = false, follow = true } = {}) {
    if (item.lost) {
      const { parent, lost } = item;
      turn(parent);
      return pick(lost[0], { focus, follow });
    }
    stop();
    if (item.round > Number(upto.value)) {
      upto.value = upto.max;
      grow();
    }
    if (!item.box) {
      for (const { parent: node } of way(item)) if (isFolded(node)) flip(node);
      draw();
    }
    picked = item;
    mark();
    tell();
    if (follow) near(item);
    if (focus) item.box.focus({ preventScroll: true });
    remember();
  }

  const flip = (node) => (unlike.has(node) ? unlike.delete(node) : unlike.add(node));

  // Folds or unfolds the pruned branches under a node; it stays where it is in the window.
  function turn(node) {
    if (!node.children.some((child) => !child.alive)) return;
    const before = node.box?.getBoundingClientRect();
    flip(node);
    if (isFolded(node) && way(picked).some((one) => one.parent === node && !one.alive)) picked = node;
    draw();
    tell();
    const after = node.box?.getBoundingClientRect();
    if (before && after) {
      view.scrollLeft += after.left - before.left;
      view.scrollTop += after.top - before.top;
    }
  }

  let remembering;
  function remember() {
    clearTimeout(remembering);
    const hash = picked === root ? `#p${problem}` : `#p${problem}n${picked.id}`;
    remembering = setTimeout(() => history.replaceState(null, "", hash), 250); // browsers bound how often
  }

  const seen = (item) => item && !item.later;

  function next(key) {
    const column = columns[picked.depth];
    const at = column.indexOf(picked);
    if (key === "ArrowUp") return column.slice(0, at).filter(seen).at(-1);
    if (key === "ArrowDown") return column.slice(at + 1).find(seen);
    if (key === "ArrowLeft") return picked.parent;
    if (key === "Home") return root;
    if (key === "End") return data.nodes[data.chosen];
    if (key !== "ArrowRight") return undefined;
    const after = under(picked, isFolded).filter(seen);
    const value = (one) => one.score ?? -Infinity;
    return after.find((one) => one.main) ?? after.filter((one) => one.alive).sort((a, b) => value(b) - value(a))[0] ?? after[0];
  }

  tree.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === " " || event.key === "Enter") {
      turn(picked);
      picked.box?.focus({ preventScroll: true });
    } else {
      const item = next(event.key);
      if (!/^(Arrow(Up|Down|Left|Right)|Home|End)$/.test(event.key)) return;
      if (item) pick(item, { focus: true });
    }
    event.preventDefault();
  });

  tree.addEventListener("click", ({ target }) => {
    const item = target.closest(".node")?.item;
    if (item) pick(item, { focus: true, follow: false });
  });

  // Filters

  function sift() {
    const text = find.value.trim().toLowerCase();
    const low = least.value === "" ? -Infinity : Number(least.value), high = most.value === "" ? Infinity : Number(most.value);
    const asked = text !== "" || least.value !== "" || most.value !== "";
    let found = 0;
    for (const node of data.nodes) {
      const scored = low === -Infinity && high === Infinity ? true : node.score !== undefined && node.score >= low && node.score <= high;
      node.hit = asked && scored && node.text.toLowerCase().includes(text);
      found += node.hit;
    }
    for (const item of items) {
      const hits = item.lost ? item.lost.some(holds) : item.hit;
      item.box.classList.toggle("aside", asked && !hits && item !== root);
      item.box.classList.toggle("hit", asked && Boolean(hits));
    }
    part.next.disabled = !found;
    part.found.textContent = asked ? `${digits.format(found)} of ${count(data.nodes.length, "node")}` : "";
  }

  const holds = (node) => node.hit || node.children.some(holds);

  function forward(back = false) {
    const hits = all.filter((node) => node.hit);
    if (!hits.length) return;
    const after = back ? hits.filter((node) => node.order < picked.order).at(-1) : hits.find((node) => node.order > picked.order);
    pick(after ?? hits.at(back ? -1 : 0));
  }

  for (const field of [find, least, most]) {
    field.addEventListener("input", sift);
    field.addEventListener("keydown", (event) => event.key === "Enter" && forward(event.shiftKey));
  }
  part.next.addEventListener("click", () => forward());

  // Size, growth, folding

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

  function zoom(to, x = view.clientWidth / 2, y = view.clientHeight / 2) {
    const before = size;
    size = Math.min(2, Math.max(0.04, to));
    const across = (view.scrollLeft + x) / before, down = (view.scrollTop + y) / before;
    resize();
    view.scrollTo(across * size - x, down * size - y);
  }

  part.larger.addEventListener("click", () => zoom(size * 1.25));
  part.smaller.addEventListener("click", () => zoom(size / 1.25));
  const whole = () => Math.min(1, view.clientWidth / extent.wide, view.clientHeight / extent.high);
  part.whole.addEventListener("click", () => zoom(Math.abs(size - whole()) < 0.001 ? 1 : whole()));
  view.addEventListener(
    "wheel",
    (event) => {
      if (!event.ctrlKey && !event.metaKey) return;
      event.preventDefault();
      const frame = view.getBoundingClientRect();
      zoom(size * Math.exp(-event.deltaY / 400), event.clientX - frame.left, event.clientY - frame.top);
    },
    { passive: false },
  );
  view.addEventListener("pointerdown", (event) => {
    // A finger scrolls by itself.
    if (event.button || event.pointerType === "touch" || event.target.closest(".node")) return;
    const from = { x: event.clientX + view.scrollLeft, y: event.clientY + view.scrollTop };
    const move = ({ clientX, clientY }) => view.scrollTo(from.x - clientX, from.y - clientY);
    view.setPointerCapture(event.pointerId);
    view.classList.add("held");
    view.addEventListener("pointermove", move);
    view.addEventListener("lostpointercapture", () => (view.classList.remove("held"), view.removeEventListener("pointermove", move)), { once: true });
  });

  function stop() {
    clearInterval(growing);
    growing = undefined;
    part.play.textContent = "▶";
  }

  part.play.addEventListener("click", () => {
    if (growing) return stop();
    if (upto.value === upto.max) upto.value = upto.min;
    grow();
    part.play.textContent = "❚❚";
    growing = setInterval(() => {
      upto.stepUp();
      grow();
      const fresh = items.filter((item) => !item.lost && item.round === Number(upto.value));
      if (fresh.length) near(fresh.find((item) => item.main) ?? fresh[0]);
      if (upto.value === upto.max) stop();
    }, 400);
  });
  upto.addEventListener("input", () => (stop(), grow()));
  fold.addEventListener("change", () => {
    unlike = new Set();
    if (fold.checked) while (!picked.alive) picked = picked.parent;
    draw();
    tell();
    if (picked.box) near(picked);
  });
  part.best.addEventListener("click", () => pick(data.nodes[data.chosen], { focus: true }));

  // One problem

  function open(number, id) {
    const of = (name) => data.nodes.find((node) => [node.id, ...(node.ids ?? [])].map(String).includes(name));
    if (number === problem) {
      const node = id === undefined ? root : of(id);
      return node && pick(node);
    }
    stop();
    clearTimeout(remembering);
    problem = number;
    read(number);
    for (const link of document.querySelectorAll(".runs a")) {
      if (link.hash === `#p${number}`) link.setAttribute("aria-current", "true");
      else link.removeAttribute("aria-current");
    }
    unlike = new Set();
    picked = (id === undefined ? undefined : of(id)) ?? data.nodes[data.chosen] ?? root;
    fold.checked = data.nodes.length > FOLD_FROM;
    for (const node of way(picked)) if (!node.alive && isFolded(node.parent)) unlike.add(node.parent);
    const made = data.nodes.map((node) => node.round);
    upto.min = made.length ? Math.min(...made) : 0;
    upto.max = made.length ? Math.max(...made) : 0;
    upto.value = upto.max; // afterwards, because the old end bounds it
    part.best.disabled = data.chosen === undefined;
    shown.hidden = false;
    zoom(1);
    draw();
    part.stage.style.setProperty("--tall", `${Math.ceil(extent.high) + 60}px`); // a small tree leaves no empty space
    tell();
    part.about.dispatchEvent(new CustomEvent("formulas", { bubbles: true }));
    view.scrollTo(0, root.y * size - view.clientHeight / 2);
    if (id !== undefined) near(picked);
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
