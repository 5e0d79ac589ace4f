// Elements and words. Texts of others go in as text nodes here and nowhere as HTML.

/** An element. `props`: properties, with `class`, `data`, `aria` (attributes after "aria-"), `on` (listeners), `attr`. */
export function make(tag, props = {}, ...children) {
  const one = document.createElement(tag);
  for (const [name, value] of Object.entries(props)) {
    if (value === undefined || value === null) continue;
    if (name === "class") one.className = value;
    else if (name === "data") Object.assign(one.dataset, value);
    else if (name === "aria") for (const [key, said] of Object.entries(value)) one.setAttribute(`aria-${key}`, said);
    else if (name === "attr") for (const [key, said] of Object.entries(value)) one.setAttribute(key, said);
    else if (name === "on") for (const [event, hear] of Object.entries(value)) one.addEventListener(event, hear);
    else one[name] = value;
  }
  one.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return one;
}

// As `stepmark.show.text.visible`: control characters, line separators, bidirectional overrides, lone surrogates.
const UNSEEN = /[\0-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ufeff]|[\ud800-\udbff](?![\udc00-\udfff])|(?<![\ud800-\udbff])[\udc00-\udfff]/g;

/** A text with every control character written out, so that nothing is hidden and nothing reorders what surrounds it. */
export function visible(text) {
  return text.replaceAll("\r\n", "\n").replace(UNSEEN, (found) => {
    const code = found.charCodeAt(0);
    return code < 0x100 ? `\\x${code.toString(16).padStart(2, "0")}` : `\\u${code.toString(16).padStart(4, "0")}`;
  });
}

// As `stepmark.show.text.INVISIBLE`: what takes no room and is left alone above.
const SHAPED = "\\u0600-\\u1fff\\u2190-\\u2bff\\ua000-\\uabff\\ufb50-\\ufdff\\ufe70-\\ufefc\\u{1f000}-\\u{1faff}";
const VARIED = `#*0-9©®\\u203c-\\u3299\\u3400-\\u9fff${SHAPED}\\u{20000}-\\u{3ffff}`;
const INVISIBLE = new RegExp(
  "[\\u00ad\\u034f\\u061c\\u115f\\u1160\\u17b4\\u17b5\\u180e\\u200b\\u200e\\u200f\\u2060-\\u2065\\u206a-\\u206f\\u3164\\uffa0\\ufff9-\\ufffb" +
    "\\u{1d173}-\\u{1d17a}\\u{e0000}-\\u{e0fff}]" +
    `|(?<![${SHAPED}\\ufe0f])[\\u200c\\u200d]|[\\u200c\\u200d](?![${SHAPED}\\ufe0f])|(?<![${VARIED}])[\\ufe00-\\ufe0f]`,
  "gu",
);

/** Whether a text holds characters that take no room. */
export const hides = (text) => text.search(INVISIBLE) >= 0;

/** A text as nodes and strings, with a box after each character that takes no room: its number. */
export function boxed(text) {
  const nodes = [];
  let at = 0;
  for (const { 0: found, index } of text.matchAll(INVISIBLE)) {
    const code = `U+${found.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}`;
    const end = index + found.length;
    nodes.push(text.slice(at, end), make("bdi", { class: "codepoint", title: `${code}, an invisible character` }, code));
    at = end;
  }
  return at ? [...nodes, text.slice(at)] : [text];
}

/** A page with a title and a line about it. */
export function page(title, about, ...content) {
  return make("section", { class: "page" }, make("h1", {}, title), about ? make("p", { class: "note" }, about) : null, ...content);
}

export function button(words, press, props = {}) {
  return make("button", { type: "button", on: { click: press }, ...props }, words);
}

/** "1 step", "2 steps". */
export function count(number, noun, many = `${noun}s`) {
  return `${number.toLocaleString("en")} ${number === 1 ? noun : many}`;
}

/** A share of 1 in per cent; an en dash for none. */
export function percent(share) {
  return share === null || share === undefined ? "–" : `${(100 * share).toFixed(share > 0 && share < 0.1 ? 1 : 0)}%`;
}

/** A number with so many decimals; an en dash for none. */
export function digits(value, places = 2) {
  return value === null || value === undefined ? "–" : value.toFixed(places);
}

/** Seconds for people: "45 s", "3 min 5 s", "2 h 10 min", "4 d 3 h". */
export function duration(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  if (seconds > 0 && seconds < 1) return "<1 s";
  const whole = Math.round(seconds);
  if (whole < 60) return `${whole} s`;
  if (whole < 3600) return `${Math.floor(whole / 60)} min${whole % 60 ? ` ${whole % 60} s` : ""}`;
  if (whole < 48 * 3600) return `${Math.floor(whole / 3600)} h ${Math.round((whole % 3600) / 60)} min`;
  return `${Math.floor(whole / 86400)} d ${Math.round((whole % 86400) / 3600)} h`;
}

/** A Unix time in the reader's own time zone. */
export function moment(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  return new Intl.DateTimeFormat("en-GB", { dateStyle: "medium", timeStyle: "short" }).format(seconds * 1000);
}

/** Say something to a screen reader, and to everybody when `shown`. */
export function say(words, { shown = false, bad = false } = {}) {
  const place = document.getElementById("said");
  // The same words twice in a row must be heard twice.
  place.textContent = place.textContent === words ? `${words}\u00a0` : words;
  if (shown) toast(words, bad);
}

let leaving;

function toast(words, bad) {
  document.querySelector(".toast")?.remove();
  clearTimeout(leaving);
  const one = make("p", { class: bad ? "toast bad" : "toast", aria: { hidden: "true" } }, words);
  document.body.append(one);
  leaving = setTimeout(() => one.remove(), bad ? 6000 : 2600);
}

/** A modal dialog, open; it leaves the page when it closes. */
export function dialog(title, ...content) {
  const heading = make("h2", { id: `d${Math.random().toString(36).slice(2)}` }, title);
  const close = button("×", () => one.close(), { class: "close", aria: { label: "Close" } });
  const one = make("dialog", { aria: { labelledby: heading.id } }, close, heading, ...content);
  document.body.append(one);
  one.addEventListener("click", (event) => event.target === one && one.close());
  one.addEventListener("close", () => one.remove());
  one.showModal();
  return one;
}

/** A text to be taken away, with a button that copies it. */
export function copied(text, label) {
  const shown = make("input", { readOnly: true, value: text, class: "token", aria: { label } });
  const copy = button("Copy", async () => {
    shown.select();
    try {
      await navigator.clipboard.writeText(text);
      copy.textContent = "Copied";
    } catch {
      // Not allowed, or not https: the reader's own keys still do it.
      copy.textContent = "Selected: press Ctrl+C";
    }
  });
  return make("div", { class: "row" }, shown, copy);
}

/** Rows of cells under a head, for narrow windows inside an own scrolling box. `heads`: strings, or [string, class]. */
export function table(caption, heads, rows) {
  const named = heads.map((head) => (Array.isArray(head) ? head : [head, ""]));
  const top = named.map(([words, kind]) => make("th", { scope: "col", class: kind }, words));
  const body = rows.map((cells) =>
    make("tr", {}, cells.map((cell, at) => make("td", { class: named[at][1] }, cell instanceof Node ? cell : visible(String(cell ?? "–"))))),
  );
  return make(
    "div",
    { class: "scroll", tabIndex: 0, attr: { role: "region" }, aria: { label: caption } },
    make("table", {}, make("caption", { class: "unseen" }, caption), make("thead", {}, make("tr", {}, top)), make("tbody", {}, body)),
  );
}
