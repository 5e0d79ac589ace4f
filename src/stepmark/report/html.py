r"""HTML of texts, code and one graded solution, and the templates that all pages are made of.

Everything from outside is escaped here and by the templates, which escape whatever is put into them.

Which parts of a text are mathematics, which are code, and which are prose.

A dollar is more often money than mathematics in school problems, so `$…$` follows the rule of Pandoc's
Markdown (User's Guide, "tex_math_dollars"): no space after the opening dollar, none before the closing one, no
digit after it. Two plain words in a row between them make it prose, and so does a first dollar that follows a number
and is followed by punctuation. What is not closed is prose.
"""

from __future__ import annotations

import functools
import html
import re
import unicodedata
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, zip_longest
from typing import TYPE_CHECKING, Any, Literal

from stepmark.errors import InputError
from stepmark.report import colour
from stepmark.words import (
    ABSENT,
    INVISIBLE,
    amount,
    check_solution,
    code_point,
    first_error_words,
    number,
    one_line,
    visible,
)

if TYPE_CHECKING:
    from jinja2 import Environment
    from pygments.lexer import Lexer

_LONGEST = 5000
"""Characters of one formula at most. Also what keeps a text of many openings linear to read."""

_ENVIRONMENTS = (
    "align|alignat|aligned|alignedat|array|cases|CD|dcases|equation|gather|gathered|[bBpvV]?matrix|rcases|smallmatrix"
    "|split|subarray"
)
_OPENING = re.compile(
    r"(?P<fence>(?m:^)[ ]{0,12}(?P<ticks>```+|~~~+)[ ]*(?P<language>[\w+#.-]{0,30})[^\n`]*(?:\n|\Z))"
    r"|(?P<asy>\[asy\])"
    r"|(?P<escaped>\\[\\$`])"
    r"|(?P<display>\$\$|\\\[)"
    r"|(?P<inline>\\\()"
    rf"|\\begin\{{(?P<environment>(?:{_ENVIRONMENTS})\*?)\}}"
    r"|(?P<dollar>\$)"
    r"|(?P<quoted>(?P<marks>`+)(?!`))"
)
_CLOSING = {"$$": "$$", r"\[": r"\]", r"\(": r"\)"}
_NAMED_TEXT = re.compile(r"\\(?:text\w*|mbox|hbox|operatorname\*?|mathrm)\s*\{[^{}]*\}|\\[A-Za-z]+")
_WORDS = re.compile(r"[A-Za-z]{2,}[,.;:]?\s+[A-Za-z]{3,}|[A-Za-z]{3,}[,.;:]?\s+[A-Za-z]{2,}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Segment:
    """A stretch of text that is shown in one manner."""

    kind: Literal["prose", "inline", "display", "quoted", "code"]
    """Prose; a formula in the line; a formula on its own line; code in the line; a block of code."""
    text: str
    """Without the delimiters."""
    source: str
    """With them: the sources of all pieces, in order, are the whole text."""
    language: str = ""
    """What a code fence names; "" when it names none."""


def pieces(text: str) -> Iterator[Segment]:
    r"""Cut a text into prose, formulas and code, in order; their `source`s rejoin to the text.

    Formulas: `$…$`, `$$…$$`, `\(…\)`, `\[…\]` and the environments of amsmath. Code: fenced blocks (an unclosed
    fence runs to the end), backticks, and the figures between `[asy]` and `[/asy]` in the MATH data.
    """
    prose = at = 0
    while (opening := _OPENING.search(text, at)) is not None:
        piece = _closed(text, opening)
        if piece is None:
            at = opening.start() + (2 if opening["escaped"] else 1)
            if opening["quoted"] or opening["display"]:
                at = opening.end()
            continue
        if opening.start() > prose:
            yield _prose(text[prose : opening.start()])
        yield piece
        prose = at = opening.start() + len(piece.source)
    if prose < len(text):
        yield _prose(text[prose:])


def _prose(text: str) -> Segment:
    return Segment(kind="prose", text=text, source=text)


def _closed(text: str, opening: re.Match[str]) -> Segment | None:
    """The piece that starts here; None when nothing closes it, or when it is prose after all."""
    start, inside = opening.span()
    if opening["escaped"]:
        return None
    if ticks := opening["ticks"]:
        closing = re.compile(rf"^[ ]{{0,12}}{re.escape(ticks)}{re.escape(ticks[0])}*[ ]*$\n?", re.M).search(
            text, inside
        )
        body, end = (closing.start(), closing.end()) if closing else (len(text), len(text))
        return Segment(
            kind="code", text=text[inside:body], source=text[start:end], language=opening["language"].lower()
        )
    if opening["asy"]:
        end = text.find("[/asy]", inside, inside + _LONGEST)
        return (
            None
            if end < 0
            else Segment(kind="code", text=text[inside:end].strip("\n"), source=text[start : end + 6])
        )
    if marks := opening["marks"]:
        line = text.find("\n", inside)
        end = text.find(marks, inside, line if line >= 0 else len(text))
        if end <= inside or text[end + len(marks) : end + len(marks) + 1] == "`":
            return None
        return Segment(kind="quoted", text=text[inside:end], source=text[start : end + len(marks)])
    if opening["dollar"]:
        return _between_dollars(text, start)
    if environment := opening["environment"]:
        closer = rf"\end{{{environment}}}"
        end = text.find(closer, inside, inside + _LONGEST)
        if end < 0:
            return None
        source = text[start : end + len(closer)]
        return Segment(kind="display", text=source, source=source)
    closer = _CLOSING[opening.group()]
    end = text.find(closer, inside, inside + _LONGEST)
    if end < 0 or not text[inside:end].strip():
        return None
    return Segment(
        kind="display" if opening["display"] else "inline",
        text=text[inside:end].strip(),
        source=text[start : end + len(closer)],
    )


def _between_dollars(text: str, start: int) -> Segment | None:
    closing = re.compile(r"(?<!\\)(?:\\\\)*\$").search(text, start + 1, start + _LONGEST)
    if closing is None:
        return None
    end = closing.end() - 1
    formula = text[start + 1 : end]
    if not formula or formula[0].isspace() or formula[-1].isspace() or text[end + 1 : end + 2].isdigit():
        return None
    if start and text[start - 1].isalnum() and formula[0] in ".,;:!?)":
        return None  # "it costs 5$. Then 6$"
    if "\n\n" in formula or _WORDS.search(_NAMED_TEXT.sub(" 0 ", formula)):
        return None
    return Segment(kind="inline", text=formula, source=text[start : end + 1])


_LONGEST_CODE = 20_000
"""Longer blocks are shown without colours: a lexer is a set of regular expressions and the text is hostile."""


class Macros:
    """The macros of a template, as functions that give HTML."""

    def __init__(self, module: Any) -> None:
        self._module = module

    def __getattr__(self, name: str) -> Callable[..., str]:
        macro = getattr(self._module, name)
        return lambda *args: str(macro(*args))


@functools.cache
def template(name: str) -> Macros:
    """A file of `templates/`, whose macros are called with plain values."""
    return Macros(_environment().get_template(f"{name}.html.j2").module)


@functools.cache
def _environment() -> Environment:
    from jinja2 import Environment, PackageLoader, StrictUndefined
    from markupsafe import Markup

    made = Environment(
        loader=PackageLoader("stepmark.report"),
        autoescape=True,
        undefined=StrictUndefined,
        keep_trailing_newline=True,
        # Before escaping: control characters are written out in whatever a template shows.
        finalize=lambda value: visible(value) if type(value) is str else value,
    )
    classes = {"negative": "l0", "neutral": "l-", "positive": f"l{colour.LEVELS}"}
    made.globals |= {"levels": colour.LEVELS, "class_level": lambda name: classes.get(name, "l-")}
    filters: dict[str, Callable[..., Any]] = {
        "amount": amount,
        "line": one_line,
        "number": lambda value: ABSENT if value is None else number(value),
        "exact": repr,
        "level": colour.level_class,
        "marked": lambda text, language=None: Markup(text_html(text, language=language)),  # noqa: S704
        "inline": lambda text: Markup(_plain(text)),  # noqa: S704
    }
    made.filters |= filters
    return made


def esc(text: str) -> str:
    """Text for an element or a quoted attribute; control characters are written out."""
    return html.escape(visible(text), quote=True)


def text_html(text: str, *, language: str | None = None) -> str:
    """A text with its formulas and code marked up.

    Formulas come as `<span class="tex">` (or `<span class="tex tex-d">` for displayed ones) holding the escaped
    source, for a script to render; without the script they read as the author wrote them. After a character that takes no room
    stands `<bdi class="codepoint">` with its number; a formula with such a character in it is shown as it was written.

    With `language` the whole text is code of it ("" when that is not known).
    """
    if language is not None:
        return _boxed(_block(text, language))
    cut = list(pieces(text))
    return _boxed(
        "".join(
            _piece(piece, after_block=_is_block(cut, at - 1), before_block=_is_block(cut, at + 1))
            for at, piece in enumerate(cut)
        )
    )


def _boxed(marked_up: str, style: str = "") -> str:
    """Marked-up text with the number of each invisible character after it; no tag of ours has such a character."""

    def box(match: re.Match[str]) -> str:
        code = code_point(match[0])
        title = f"{code} {unicodedata.name(match[0], '')}".strip()
        return f'{match[0]}<bdi class="codepoint" title="{title}, an invisible character"{style}>{code}</bdi>'

    return INVISIBLE.sub(box, marked_up)


def has_formula(marked_up: str) -> bool:
    """Whether HTML from `text_html` holds a formula."""
    # Safe to search for: a quotation mark inside a text is always escaped.
    return '<span class="tex' in marked_up


def highlight(code: str, language: str) -> str:
    """Code as HTML, coloured where `language` is known to pygments; the text itself is unchanged."""
    code = visible(code)
    lexer = _lexer(language) if len(code) <= _LONGEST_CODE else None
    if lexer is None:
        return html.escape(code)
    parts = []
    for name, group in groupby(_named(lexer, code), key=lambda pair: pair[0]):
        inside = html.escape("".join(value for _, value in group))
        parts.append(f'<span class="hl-{name}">{inside}</span>' if name else inside)
    return "".join(parts)


def solution_fragment(
    problem: str,
    steps: Sequence[str],
    scores: Sequence[float | None],
    *,
    kind: str,
    first_error: int | None,
    headline: str,
    threshold: float | None = None,
    outcome: str | None = None,
    findings: Mapping[int, Sequence[str]] | None = None,
) -> str:
    """A graded solution for a notebook: one element, inline styles only, no script.

    Colours are translucent and the text keeps the notebook's own, so it is legible in light and dark mode.
    MathJax, where the notebook has it, sets the formulas and leaves every other dollar alone.

    Of `scores` None is a step that was not read; `first_error` is 0-based, -1 for none, None for not known; `headline` is the aggregate, such as "min
    0.123", `outcome` an outcome model's verdict, such as "outcome 0.91"; `findings` are what exact checks prove of a step, by its index.
    """
    check_solution(steps, scores, first_error)
    rows = [
        {
            "step": step,
            "score": score,
            "rgb": colour.shade(
                0.0 if (findings or {}).get(at) else colour.position(score, kind, threshold), "light"
            ).strong,
            "percent": round((colour.extent(score, kind, threshold) or 0) * 100),
            "is_error": at == first_error,
            "findings": (findings or {}).get(at, ()),
        }
        for at, (step, score) in enumerate(zip(steps, scores, strict=True))
    ]
    facts = [fact for fact in (headline, first_error_words(first_error), outcome) if fact]
    return template("fragment").graded(problem, facts, rows, FRAGMENT_ALPHA)


def steps_fragment(
    steps: Sequence[str], *, headline: str, problem: str | None = None, notes: Sequence[str] = ()
) -> str:
    """Steps that carry no score, for a notebook: numbered, with a word beside each where there is one.

    `headline` says such as how the text was cut; `notes` are one word a step, possibly empty, or none at all.
    """
    if notes and len(notes) != len(steps):
        raise InputError(f"{amount(len(steps), 'step')} and {amount(len(notes), 'note')}", field="notes")
    return template("fragment").plain(problem, headline, list(zip_longest(steps, notes)))


FRAGMENT_ALPHA = 0.18
"""How strongly a step of a fragment is tinted."""


_BOX = (
    ' style="font-size:.7em;padding:0 .25em;border:1px solid;border-radius:3px;opacity:.75;user-select:none"'
)


def _plain(text: str) -> str:
    parts = []
    for piece in pieces(text):
        if piece.kind in ("inline", "display") and not INVISIBLE.search(piece.source):
            parts.append(f'<span class="tex2jax_process mathjax_process">{esc(piece.source)}</span>')
        elif piece.kind == "code" and piece.text.strip():
            parts.append(
                f'<code style="display:block;white-space:pre-wrap;background:transparent;color:inherit">{esc(piece.text)}</code>'
            )
        elif piece.kind == "quoted":
            parts.append(f'<code style="background:transparent;color:inherit">{esc(piece.text)}</code>')
        else:
            parts.append(esc(piece.source))
    return _boxed("".join(parts), _BOX)


def _is_block(cut: list[Segment], at: int) -> bool:
    return 0 <= at < len(cut) and cut[at].kind in ("display", "code") and bool(cut[at].text.strip())


def _piece(piece: Segment, *, after_block: bool, before_block: bool) -> str:
    if piece.kind in ("inline", "display") and INVISIBLE.search(piece.source):
        return esc(piece.source)
    if piece.kind == "inline":
        return f'<span class="tex">{esc(piece.text)}</span>'
    if piece.kind == "display":
        return f'<span class="tex tex-d">{esc(piece.text)}</span>'
    if piece.kind == "quoted":
        return f"<code>{esc(piece.text)}</code>"
    if piece.kind == "code" and piece.text.strip():
        return _block(piece.text, piece.language)
    # A block brings its own line breaks: those that the author put around it would be blank lines.
    text = piece.source
    text = text.lstrip("\n") if after_block else text
    text = text.rstrip("\n") if before_block else text
    return esc(text)


def _block(code: str, language: str) -> str:
    return f'<pre class="code"><code>{highlight(code.rstrip(chr(10)), language)}</code></pre>'


@functools.lru_cache(maxsize=256)
def _lexer(language: str) -> Lexer | None:
    from pygments.lexers import get_lexer_by_name
    from pygments.util import ClassNotFound

    try:
        # Both options are there so that no newline is lost or added.
        return get_lexer_by_name(language, stripnl=False, ensurenl=False)
    except ClassNotFound:
        return None


def _named(lexer: Lexer, code: str) -> Iterator[tuple[str, str]]:
    from pygments.token import Token, is_token_subtype

    names = (
        (Token.Comment, "comment"),
        (Token.Keyword, "keyword"),
        (Token.Operator.Word, "keyword"),
        (Token.Literal.String, "string"),
        (Token.Literal.Number, "number"),
        (Token.Name.Function, "name"),
        (Token.Name.Class, "name"),
        (Token.Name.Decorator, "name"),
        (Token.Name.Builtin, "builtin"),
    )
    for token, value in lexer.get_tokens(code):
        yield next((name for of, name in names if is_token_subtype(token, of)), ""), value


CODE_NAMES = ("comment", "keyword", "string", "number", "name", "builtin")
"""The classes that `highlight` writes, each after "hl-"."""
