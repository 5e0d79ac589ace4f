// The tree of one search: what lies under what, what is folded, and where each step stands in the picture.
"use strict";
const searchTree = (() => {
  const COLUMN = 202, ROW = 42, WIDE = 170, HIGH = 34, EDGE = 14, FIRST = 84; // FIRST: how wide the problem is

  /** Puts parents, children and depths into the nodes of the data; the problem is the root. */
  function grown(data, text) {
    const root = { state: "root", round: -1, depth: 0, children: [], text };
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
    root.alive = true;
    for (let node = data.nodes[data.chosen]; node; node = node.parent) node.main = true;
    const all = []; // a node before its children, and these before the next node
    const waiting = [root];
    while (waiting.length) {
      const node = waiting.pop();
      node.order = all.push(node);
      waiting.push(...node.children.slice().reverse());
    }
    return { root, all };
  }

  /** The steps from the first to this one. */
  function way(node) {
    const steps = [];
    for (let one = node; one.parent; one = one.parent) steps.unshift(one);
    return steps;
  }

  /** What is drawn after a node: its children, or those of them that are alive and one item for all pruned branches. */
  function under(node, isFolded) {
    const lost = node.children.filter((child) => !child.alive);
    if (!lost.length || !isFolded(node)) return node.children;
    const rest = node.children.filter((child) => child.alive);
    node.marker ??= { state: "folded", parent: node, children: [], depth: node.depth + 1, lost, order: lost[0].order };
    return [...rest, node.marker];
  }

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

  /** Gives every item that is drawn its place, in columns from left to right in which no line crosses another. */
  function placed(root, isFolded) {
    root.y = 0;
    const columns = [[root]];
    for (let column = columns[0]; column.length; ) {
      const next = [];
      for (const node of column) {
        const items = under(node, isFolded);
        // What the search went on from stands beside its parent, so that the chosen path is a line.
        const alive = items.flatMap((child, at) => (child.alive ? [at] : []));
        const main = items.findIndex((child) => child.main);
        const middle = alive.length ? alive.reduce((a, b) => a + b) / alive.length : (items.length - 1) / 2;
        items.forEach((child, at) => {
          child.want = node.y + (at - (main < 0 ? middle : main)) * ROW;
          child.weight = child.main ? 1e6 : child.alive ? 4 : 1;
        });
        next.push(...items);
      }
      if (next.length) columns.push(next);
      settle(next);
      column = next;
    }
    const items = columns.flat();
    const top = items.reduce((least, item) => Math.min(least, item.y), Infinity);
    for (const item of items) {
      item.x = left(item.depth);
      item.y += EDGE - top;
    }
    const high = items.reduce((most, item) => Math.max(most, item.y), 0) + HIGH + EDGE;
    items.sort((a, b) => a.order - b.order);
    return { columns, items, high, wide: left(columns.length - 1) + WIDE + EDGE };
  }

  /** The line from an item's parent to it, as a part of an SVG path. */
  function line({ parent, x, y }) {
    const from = parent.x + (parent.parent ? WIDE : FIRST), bend = (x - from) / 2, down = (y - parent.y).toFixed(1);
    return `M${from} ${(parent.y + HIGH / 2).toFixed(1)}c${bend} 0 ${bend} ${down} ${x - from} ${down}`;
  }

  return { grown, left, line, placed, under, way };
})();
