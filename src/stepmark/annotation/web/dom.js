// Elements and words. Texts of others go in as text nodes; `rich` alone takes HTML, which the server has made of them, escaped.

/** An element. `props`: properties, with `class`, `data`, `aria` (attributes after "aria-"), `attr`, `press` (a click). */
export function make(tag, props = {}, ...children) {
  const one = document.createElement(tag);
  for (const [name, value] of Object.entries(props)) {
    if (value === undefined || value === null) continue;
    if (name === "class") one.className = value;
    else if (name === "data") Object.assign(one.dataset, value);
    else if (name === "aria") for (const [key, said] of Object.entries(value)) one.setAttribute(`aria-${key}`, said);
    else if (name === "attr") for (const [key, said] of Object.entries(value)) one.setAttribute(key, said);
    else if (name === "press") one.addEventListener("click", value);
    else one[name] = value;
  }
  one.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return one;
}

// As `stepmark.words.visible`: control characters, line separators, bidirectional overrides.
const UNSEEN = /[\0-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ufeff]/g;

/** A text with every control character written out, so that nothing is hidden and nothing reorders what surrounds it. */
export function visible(text) {
  return text.replaceAll("\r\n", "\n").replace(UNSEEN, (found) => `\\u${found.charCodeAt(0).toString(16).padStart(4, "0")}`);
}

// Not `throwOnError: false`: KaTeX would write its error with a style attribute, which the page's security policy refuses.
const KATEX = { throwOnError: true, trust: false, strict: "ignore", maxExpand: 200, maxSize: 20 };

const near = new IntersectionObserver(
  (seen) => {
    for (const { isIntersecting, target } of seen) {
      if (!isIntersecting) continue;
      near.unobserve(target);
      const source = target.textContent;
      target.dataset.done = "";
      try {
        // Fresh macros each time: a \gdef in one formula must not change how another one is shown.
        globalThis.katex.render(source, target, { ...KATEX, macros: {}, displayMode: target.classList.contains("tex-d") });
      } catch {
        target.textContent = source;
        target.classList.add("katex-error");
      }
    }
  },
  { rootMargin: "800px" },
);

/** A text that the server made HTML of (`items.view`); formulas are rendered when they come near the window. */
export function rich(html, kind = "txt") {
  const one = make("div", { class: kind, dir: "auto" });
  one.innerHTML = html;
  for (const formula of one.querySelectorAll(".tex")) near.observe(formula);
  return one;
}

/** A part of an item (`items.view`), folded where it is long. */
export function partOf({ kind, label, html, long }, role = "") {
  const body = rich(html);
  const name = make("b", {}, label);
  const words = { call: ["calls ", name], output: [name, " answers"] }[kind] ?? [label || role];
  const one = make("div", { class: `part ${kind}` }, words[0] ? make("span", { class: "label" }, words) : null, body);
  if (!long) return one;
  const toggle = button(`Unfold (${long})`, () => one.dispatchEvent(new CustomEvent("fold", { detail: one.classList.contains("folded") })), { class: "small unfold", aria: { expanded: "false" } });
  one.classList.add("folding", "folded");
  one.addEventListener("fold", ({ detail: open }) => {
    one.classList.toggle("folded", !open);
    toggle.textContent = open ? "Fold" : `Unfold (${long})`;
    toggle.setAttribute("aria-expanded", String(open));
  });
  one.append(toggle);
  return one;
}

/** Fold or unfold everything long inside an element; what opens something opens it all. */
export function foldIn(element) {
  const parts = [...element.querySelectorAll(".folding")];
  const open = parts.some((part) => part.classList.contains("folded"));
  for (const part of parts) part.dispatchEvent(new CustomEvent("fold", { detail: open }));
  return parts.length > 0;
}

export function button(words, press, props = {}) {
  return make("button", { type: "button", press, ...props }, words);
}

export const key = (name) => make("kbd", { aria: { hidden: "true" } }, name);

/** "1 step", "2 steps". */
export function count(number, noun) {
  return `${number.toLocaleString("en")} ${noun}${number === 1 ? "" : "s"}`;
}

/** A page with a title and a line about it. */
export function page(title, about, ...content) {
  return make("section", { class: "page" }, make("h1", {}, title), about ? make("p", { class: "note" }, about) : null, ...content);
}

/** A page that has nothing to show but words. */
export function nothing(title, words, ...more) {
  return make("section", { class: "nothing" }, make("h1", {}, title), make("p", {}, visible(words)), ...more);
}

let leaving;

/** Say something to a screen reader, and to everybody when `shown`. */
export function say(words, { shown = false, bad = false } = {}) {
  const place = document.getElementById("said");
  // The same words twice in a row must be heard twice.
  place.textContent = place.textContent === words ? `${words}\u00a0` : words;
  if (!shown) return;
  document.querySelector(".toast")?.remove();
  clearTimeout(leaving);
  const toast = make("p", { class: bad ? "toast bad" : "toast", aria: { hidden: "true" } }, words);
  document.body.append(toast);
  leaving = setTimeout(() => toast.remove(), bad ? 6000 : 2600);
}

/** A modal dialog, open; it leaves the page when it closes. */
export function dialog(title, ...content) {
  const heading = make("h2", { id: "dialog-title" }, title);
  const close = button("×", () => one.close(), { class: "close", aria: { label: "Close" } });
  const one = make("dialog", { aria: { labelledby: heading.id } }, close, heading, ...content);
  document.body.append(one);
  one.addEventListener("click", (event) => event.target === one && one.close());
  one.addEventListener("close", () => one.remove());
  one.showModal();
  return one;
}

/** Rows of cells under a head, inside a scrolling box. `heads`: strings, or [string, class]. */
export function table(caption, heads, rows) {
  const named = heads.map((head) => (Array.isArray(head) ? head : [head, ""]));
  const top = named.map(([words, kind]) => make("th", { scope: "col", class: kind }, words));
  const cell = (content, at) => make("td", { class: named[at][1] }, content instanceof Node ? content : visible(String(content ?? "–")));
  const body = rows.map((cells) => make("tr", {}, cells.map(cell)));
  return make(
    "div",
    { class: "scroll", tabIndex: 0, attr: { role: "region" }, aria: { label: caption } },
    make("table", {}, make("caption", { class: "unseen" }, caption), make("thead", {}, make("tr", {}, top)), make("tbody", {}, body)),
  );
}
