// Which parts of a text are mathematics, which are code, and which are prose: the rules of `stepmark/show/pieces.py`, where
// they are explained; a test cuts the same texts with both.

const LONGEST = 5000; // characters of one formula; also what keeps a text of many openings linear to read
const ENVIRONMENTS =
  "align|alignat|aligned|alignedat|array|cases|CD|dcases|equation|gather|gathered|[bBpvV]?matrix|rcases|smallmatrix|split|subarray";
const OPENING = new RegExp(
  [
    "(?<fence>^[ ]{0,12}(?<ticks>```+|~~~+)[ ]*(?<language>[\\p{L}\\p{N}_+#.-]{0,30})[^\\n`]*(?:\\n|(?![\\s\\S])))",
    "(?<asy>\\[asy\\])",
    "(?<escaped>\\\\[\\\\$`])",
    "(?<display>\\$\\$|\\\\\\[)",
    "(?<inline>\\\\\\()",
    `\\\\begin\\{(?<environment>(?:${ENVIRONMENTS})\\*?)\\}`,
    "(?<dollar>\\$)",
    "(?<quoted>(?<marks>`+)(?!`))",
  ].join("|"),
  "gmu",
);
const CLOSING = { $$: "$$", "\\[": "\\]", "\\(": "\\)" };
const NAMED_TEXT = /\\(?:text\w*|mbox|hbox|operatorname\*?|mathrm)\s*\{[^{}]*\}|\\[A-Za-z]+/g;
const WORDS = /[A-Za-z]{2,}[,.;:]?\s+[A-Za-z]{3,}|[A-Za-z]{3,}[,.;:]?\s+[A-Za-z]{2,}/;

function find(text, what, from, to = from + LONGEST) {
  const at = text.indexOf(what, from);
  return at < 0 || at + what.length > to ? -1 : at;
}

function betweenDollars(text, start) {
  const closing = /(?<!\\)(?:\\\\)*\$/g;
  closing.lastIndex = 1;
  const found = closing.exec(text.slice(start, start + LONGEST));
  if (!found) return null;
  const end = start + found.index + found[0].length - 1;
  const formula = text.slice(start + 1, end);
  if (!formula || /^\s|\s$/.test(formula) || /\d/.test(text.charAt(end + 1))) return null;
  if (start && /[\p{L}\p{N}]/u.test(text[start - 1]) && ".,;:!?)".includes(formula[0])) return null;
  if (formula.includes("\n\n") || WORDS.test(formula.replace(NAMED_TEXT, " 0 "))) return null;
  return { kind: "inline", text: formula, source: text.slice(start, end + 1) };
}

function closed(text, opening) {
  const start = opening.index;
  const inside = start + opening[0].length;
  const { escaped, ticks, language, asy, marks, dollar, environment, display } = opening.groups;
  if (escaped) return null;
  if (ticks) {
    const closing = new RegExp(`^[ ]{0,12}${ticks}${ticks[0]}*[ ]*$\\n?`, "gm");
    closing.lastIndex = inside;
    const found = closing.exec(text);
    const [body, end] = found ? [found.index, found.index + found[0].length] : [text.length, text.length];
    return { kind: "code", text: text.slice(inside, body), source: text.slice(start, end), language: language.toLowerCase() };
  }
  if (asy) {
    const end = find(text, "[/asy]", inside);
    return end < 0 ? null : { kind: "code", text: text.slice(inside, end).replace(/^\n+|\n+$/g, ""), source: text.slice(start, end + 6), language: "" };
  }
  if (marks) {
    const line = text.indexOf("\n", inside);
    const end = find(text, marks, inside, line < 0 ? text.length : line);
    if (end <= inside || text[end + marks.length] === "`") return null;
    return { kind: "quoted", text: text.slice(inside, end), source: text.slice(start, end + marks.length) };
  }
  if (dollar) return betweenDollars(text, start);
  if (environment) {
    const closer = `\\end{${environment}}`;
    const end = find(text, closer, inside);
    const source = text.slice(start, end + closer.length);
    return end < 0 ? null : { kind: "display", text: source, source };
  }
  const closer = CLOSING[opening[0]];
  const end = find(text, closer, inside);
  if (end < 0 || !text.slice(inside, end).trim()) return null;
  return { kind: display ? "display" : "inline", text: text.slice(inside, end).trim(), source: text.slice(start, end + closer.length) };
}

/** Cut a text into { kind, text, source, language }; the sources, in order, are the whole text. */
export function pieces(text) {
  const cut = [];
  const prose = (from, to) => to > from && cut.push({ kind: "prose", text: text.slice(from, to), source: text.slice(from, to) });
  let from = 0;
  OPENING.lastIndex = 0;
  for (let opening; (opening = OPENING.exec(text)); ) {
    const start = opening.index;
    const piece = closed(text, opening);
    if (piece) {
      prose(from, start);
      cut.push(piece);
      OPENING.lastIndex = from = start + piece.source.length;
    } else if (opening.groups.quoted || opening.groups.display) OPENING.lastIndex = start + opening[0].length;
    else OPENING.lastIndex = start + (opening.groups.escaped ? 2 : 1);
  }
  prose(from, text.length);
  return cut;
}
