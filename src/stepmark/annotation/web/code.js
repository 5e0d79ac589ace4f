// Code in a few colours: comments, strings, numbers and the words that most languages share. The text itself stays as it is.

import { boxed, make } from "./dom.js";

const LONGEST = 20_000; // longer blocks are shown without colours
const HASH = new Set(["", "py", "python", "sh", "bash", "shell", "yaml", "toml", "ruby", "r"]);
const WORDS =
  "and|as|assert|async|await|break|case|class|const|continue|def|del|do|done|elif|else|esac|except|export|fi|finally|fn|for|from|func|" +
  "function|global|if|impl|import|in|is|lambda|let|match|mut|new|nonlocal|not|or|pass|pub|raise|return|struct|switch|then|throw|try|use|" +
  "var|while|with|yield|True|False|None|true|false|null";

/** Nodes and strings for the text. */
export function coloured(text, language) {
  if (text.length > LONGEST || language === "text" || language === "output") return boxed(text);
  const comment = HASH.has(language) ? "(?<![\\w$&])#[^\\n]*" : "//[^\\n]*|/\\*[\\s\\S]*?\\*/";
  const token = new RegExp(
    `(?<comment>${comment})|(?<string>"""[\\s\\S]*?"""|'''[\\s\\S]*?'''|"(?:\\\\.|[^"\\\\\\n])*"|'(?:\\\\.|[^'\\\\\\n])*')` +
      `|(?<number>\\b\\d[\\w.]*)|(?<keyword>\\b(?:${WORDS})\\b)`,
    "g",
  );
  const nodes = [];
  let at = 0;
  for (const found of text.matchAll(token)) {
    const kind = Object.entries(found.groups).find(([, value]) => value !== undefined)[0];
    nodes.push(...boxed(text.slice(at, found.index)), make("span", { class: `hl-${kind}` }, boxed(found[0])));
    at = found.index + found[0].length;
  }
  nodes.push(...boxed(text.slice(at)));
  return nodes.filter((node) => node !== "");
}

/** JSON on several lines; anything else as it is. Only white space changes: a parser would round the numbers. */
export function indented(text) {
  if (!/^\s*[[{]/.test(text) || text.includes("\n") || text.length > LONGEST || !isJson(text)) return text;
  let depth = 0;
  const line = () => `\n${"  ".repeat(depth)}`;
  return text.trim().replace(/"(?:\\.|[^"\\])*"|\[\s*\]|\{\s*\}|[[\]{},:]|\s+/g, (token) => {
    if (token[0] === '"' || (token.length > 1 && /^[[{]/.test(token))) return token;
    if (token === "{" || token === "[") return (depth++, token + line());
    if (token === "}" || token === "]") return (depth--, line() + token);
    if (token === ",") return token + line();
    return token === ":" ? ": " : "";
  });
}

function isJson(text) {
  try {
    JSON.parse(text);
    return true;
  } catch {
    return false;
  }
}
