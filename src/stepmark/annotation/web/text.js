// Texts of others in the page: prose, formulas and code. Everything goes in as text nodes; KaTeX renders formulas when they come
// near the window, without trust.

import { boxed, hides, make, visible } from "./dom.js";
import { pieces } from "./pieces.js";

const isBlock = (piece) => Boolean(piece && (piece.kind === "display" || piece.kind === "code") && piece.text.trim());

/** A block of code. */
export function codeBlock(text) {
  return make("pre", { class: "code" }, make("code", {}, ...boxed(visible(text.replace(/\n$/, "")))));
}

/** The element with the text in it, formulas waiting to be rendered. */
export function fill(element, text) {
  const cut = pieces(text);
  const nodes = cut.flatMap((piece, at) => {
    if ((piece.kind === "inline" || piece.kind === "display") && !hides(piece.source)) {
      const formula = make("span", { class: piece.kind === "inline" ? "tex" : "tex tex-d" }, visible(piece.text));
      near.observe(formula);
      return formula;
    }
    if (piece.kind === "quoted") return make("code", {}, boxed(visible(piece.text)));
    if (piece.kind === "code" && piece.text.trim()) return codeBlock(piece.text);
    // A block brings its own line breaks: those that the author put around it would be blank lines.
    let words = piece.source;
    if (isBlock(cut[at - 1])) words = words.replace(/^\n+/, "");
    if (isBlock(cut[at + 1])) words = words.replace(/\n+$/, "");
    return boxed(visible(words));
  });
  element.replaceChildren(...nodes);
  element.dir = "auto";
  return element;
}

/** A text in an element of its own. */
export function prose(text, kind = "txt") {
  return fill(make("div", { class: kind }), text);
}

// Not `throwOnError: false`: KaTeX would write its error with a style attribute, which the page's security policy refuses.
const SETTINGS = { throwOnError: true, trust: false, strict: "ignore", maxExpand: 200, maxSize: 20 };

const near = new IntersectionObserver(
  (seen) => {
    for (const { isIntersecting, target } of seen) {
      if (!isIntersecting) continue;
      near.unobserve(target);
      render(target);
    }
  },
  { rootMargin: "800px" },
);

function render(formula) {
  const source = formula.textContent;
  formula.dataset.done = "";
  try {
    // Fresh macros each time: a \gdef in one formula must not change how another one is shown.
    globalThis.katex.render(source, formula, { ...SETTINGS, macros: {}, displayMode: formula.classList.contains("tex-d") });
  } catch {
    formula.textContent = source;
    formula.classList.add("katex-error");
  }
}
