"""HTML of texts, code and one graded solution, and the templates that all pages are made of.

Everything from outside is escaped here and by the templates, which escape whatever is put into them.
"""

from __future__ import annotations

import functools
import html
import re
import unicodedata
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby, zip_longest
from typing import TYPE_CHECKING, Any

from stepmark.errors import InputError
from stepmark.show import colour
from stepmark.show.pieces import Piece, pieces
from stepmark.show.text import (
    ABSENT,
    INVISIBLE,
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
        loader=PackageLoader("stepmark.show"),
        autoescape=True,
        undefined=StrictUndefined,
        keep_trailing_newline=True,
        # Before escaping: control characters are written out in whatever a template shows.
        finalize=lambda value: visible(value) if type(value) is str else value,
    )
    classes = {"negative": "l0", "neutral": "l-", "positive": f"l{colour.LEVELS}"}
    made.globals |= {"levels": colour.LEVELS, "class_level": lambda name: classes.get(name, "l-")}
    filters: dict[str, Callable[..., Any]] = {
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

    Args:
        text: as a person or a model wrote it.
        language: the whole text is code of this language ("" when that is not known).
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

    def box(found: re.Match[str]) -> str:
        code = code_point(found[0])
        title = f"{code} {unicodedata.name(found[0], '')}".strip()
        return f'{found[0]}<bdi class="codepoint" title="{title}, an invisible character"{style}>{code}</bdi>'

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
    MathJax, where the notebook has it, is told to set the formulas and to leave every other dollar alone.

    Args:
        problem: its text.
        steps: their texts.
        scores: one a step; None for a step that was not read.
        kind: the scores' kind (`stepmark.show.colour.KINDS`).
        first_error: 0-based, -1 for none, None for not known.
        headline: the aggregate, such as "min 0.123".
        threshold: where scores turn from bad to good, for the colours.
        outcome: an outcome model's verdict, such as "outcome 0.91".
        findings: what exact checks prove of a step, by its index: {1: ["60 * 2.5 = 120: it is 150"]}.

    Raises:
        InputError: not one score a step, a score out of the range of its kind, or no such first error.
        ScoreKindError: no such kind.
    """
    check_solution(steps, scores, first_error)
    rows = [
        {
            "step": step,
            "score": score,
            "rgb": colour.shade(colour.position(score, kind, threshold), "light").strong,
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

    Args:
        steps: their texts.
        headline: what stands above, such as how the text was cut.
        problem: its text, if it is to be shown.
        notes: one word a step, possibly empty ("right", "wrong"); or none at all.

    Raises:
        InputError: notes are given, and not one a step.
    """
    if notes and len(notes) != len(steps):
        raise InputError(f"{len(steps)} steps and {len(notes)} notes", field="notes")
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


def _is_block(cut: list[Piece], at: int) -> bool:
    return 0 <= at < len(cut) and cut[at].kind in ("display", "code") and bool(cut[at].text.strip())


def _piece(piece: Piece, *, after_block: bool, before_block: bool) -> str:
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
