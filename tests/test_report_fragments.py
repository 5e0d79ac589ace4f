"""How graded steps look: the colour scale, texts made visible, formulas and code found, terminal and notebook."""

from __future__ import annotations

import io
import math
import re
import subprocess
import sys
from collections.abc import Callable
from html import unescape
from html.parser import HTMLParser

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from html_tree import contrast
from stepmark.errors import InputError
from stepmark.records import GradedSolution, Solution, StepScores
from stepmark.report import colour
from stepmark.report.html import (
    CODE_NAMES,
    FRAGMENT_ALPHA,
    highlight,
    pieces,
    solution_fragment,
    steps_fragment,
    text_html,
)
from stepmark.report.terminal import solution_lines
from stepmark.words import amount, number, one_line, visible

PLACES = [at / 100 for at in range(101)]
MODES: list[colour.Mode] = ["light", "dark"]


class Seen(HTMLParser):
    """The elements and the text of a piece of HTML, as a browser would read them."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str, str]] = []
        self.text = ""
        self.open: list[str] = []
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag, "elements are closed in order"

    def handle_data(self, data: str) -> None:
        self.text += data


# The scale


@pytest.mark.parametrize(
    ("score", "kind", "threshold", "place"),
    [
        (0.0, "probability", 0.5, 0.0),
        (0.3, "probability", 0.9, 1 / 6),  # a third of the way to the threshold, which is in the middle
        (0.731, "probability", 0.754, 0.731 / 0.754 / 2),
        (0.754, "probability", 0.754, 0.5),
        (0.877, "probability", 0.754, 0.75),
        (1.0, "probability", 0.754, 1.0),
        (0.5, "probability", 1.0, 0.25),  # a threshold at an end: one half of the scale is left out
        (1.0, "probability", 1.0, 1.0),
        (0.0, "probability", 0.0, 0.5),
        (0.5, "probability", -3.0, 0.75),
        (0.5, "probability", 7.0, 0.25),
        (-0.5, "margin", 0.5, 1 / 6),
        (0.75, "margin", 0.5, 0.75),
        (1.0, "probability", None, 1.0),
        (-1.0, "margin", None, 0.0),
        (0.0, "margin", None, 0.5),
        (0.5, "margin", None, 0.75),
        (0.0, "log-ratio", None, 0.5),
        (2.0, "log-ratio", 2.0, 0.5),
        (math.log(3), "log-ratio", None, 0.75),  # odds of 3 to 1
        (1 - math.log(3), "unbounded", 1.0, 0.25),
        (1e9, "unbounded", None, 1.0),
        (-1e9, "unbounded", None, 0.0),
        (math.inf, "unbounded", None, 1.0),
        (-math.inf, "log-ratio", None, 0.0),
    ],
)
def test_position(score: float, kind: str, threshold: float | None, place: float) -> None:
    assert colour.position(score, kind, threshold) == pytest.approx(place, abs=1e-12)


@pytest.mark.parametrize(
    ("score", "kind"),
    [(1.01, "probability"), (-0.01, "probability"), (-1.5, "margin"), (math.nan, "unbounded")],
)
def test_a_score_out_of_range_is_refused(score: float, kind: str) -> None:
    with pytest.raises(InputError, match="expected a"):
        colour.position(score, kind)


@pytest.mark.parametrize("mode", MODES)
@given(
    st.sampled_from([("probability", 0.0), ("margin", -1.0)]),
    st.floats(0, 1),
    st.floats(0.01, 0.99),
)
def test_no_step_under_the_threshold_is_green(
    mode: colour.Mode, kind: tuple[str, float], score: float, threshold: float
) -> None:
    name, low = kind
    score, threshold = (low + (1 - low) * share for share in (score, threshold))
    place = colour.position(score, name, threshold)
    assert place is not None
    red, _, green = (colour.shade(at, mode).strong for at in (0.0, 0.5, 1.0))
    shade, amber = colour.shade(place, mode).strong, colour.shade(0.5, mode).strong
    if score < threshold:
        assert place <= 0.5 and colour.level(place) <= colour.LEVELS / 2
        # Between red and amber: no channel is nearer to green than amber is.
        assert all(min(r, a) <= c <= max(r, a) for c, r, a in zip(shade, red, amber, strict=True))
    else:
        assert place >= 0.5
        assert all(min(g, a) <= c <= max(g, a) for c, g, a in zip(shade, green, amber, strict=True))


@given(
    st.floats(-50, 50),
    st.floats(-50, 50),
    st.sampled_from(colour.KINDS),
    st.floats(-5, 5),
)
def test_position_keeps_the_order(a: float, b: float, kind: str, threshold: float) -> None:
    if kind in ("probability", "margin"):
        a, b = (max(-1.0 if kind == "margin" else 0.0, min(1.0, one / 50)) for one in (a, b))
    low, high = sorted((a, b))
    below, above = colour.position(low, kind, threshold), colour.position(high, kind, threshold)
    assert below is not None and above is not None
    assert 0 <= below <= above <= 1


@pytest.mark.parametrize("mode", MODES)
def test_text_on_every_tint_meets_aa(mode: colour.Mode) -> None:
    for place in [None, *PLACES]:
        shade = colour.shade(place, mode)
        for ink in (colour.INK[mode], colour.MUTED[mode]):
            assert contrast(ink, shade.tint) >= 4.5
            assert contrast(ink, colour.PAGE[mode]) >= 4.5
        assert contrast(shade.strong, colour.PAGE[mode]) >= 3
        assert contrast(shade.strong, shade.tint) >= 3


@pytest.mark.parametrize("mode", MODES)
def test_flags_figures_and_code_meet_aa(mode: colour.Mode) -> None:
    bad = colour.shade(0.0, mode).strong
    assert contrast(colour.PAGE[mode], bad) >= 4.5  # "First error", written in the page's colour on red
    assert tuple(colour.CODE[mode]) == CODE_NAMES
    for ink in colour.CODE[mode].values():
        assert contrast(ink, colour.PAGE[mode]) >= 4.5


@pytest.mark.parametrize(
    ("ground", "ink"),
    [((255, 255, 255), (33, 33, 33)), ((17, 17, 17), (224, 224, 224)), ((30, 30, 30), (204, 204, 204))],
    ids=["Jupyter light", "Jupyter dark", "VS Code dark"],
)
def test_fragment_is_legible_in_light_and_dark_notebooks(ground: colour.Rgb, ink: colour.Rgb) -> None:
    for place in [None, *PLACES]:
        strong = colour.shade(place, "light").strong
        assert contrast(ink, colour.over(strong, FRAGMENT_ALPHA, ground)) >= 4.5


# Texts and numbers


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[31mred\x1b[0m", "\\x1b[31mred\\x1b[0m"),
        ("ring\a back\b", "ring\\x07 back\\x08"),
        ("user\u202egpj.exe", "user\\u202egpj.exe"),
        ("a\u2066b\u2069c\x9bd\x7f", "a\\u2066b\\u2069c\\x9bd\\x7f"),
        ("nul\0 sur\udc80", "nul\\x00 sur\\udc80"),
        ("one\r\ntwo\rthree\tfour\n", "one\ntwo\\x0dthree\tfour\n"),
        ("می‌خواهم 👩‍🔬 שלום", "می‌خواهم 👩‍🔬 שלום"),
    ],
)
def test_visible(text: str, shown: str) -> None:
    assert visible(text) == shown


@given(st.text())
def test_what_is_visible_can_be_printed_and_encoded(text: str) -> None:
    shown = visible(text)
    shown.encode("utf-8")
    assert all(char in "\n\t" or ord(char) >= 0x20 for char in shown)
    assert visible(shown) == shown
    assert "\n" not in one_line(text)


UNSEEN = {
    "a\u200eb": ["U+200E"],
    "שלום\u200f!": ["U+200F"],
    "12\u200b3 \u2060 x\u00ady": ["U+200B", "U+2060", "U+00AD"],
    "<\u200c>&\u200d;": ["U+200C", "U+200D"],
    "ok\ufe0f 🙂\ufe0f\ufe0e": ["U+FE0F", "U+FE0E"],
    "tag\U000e0041": ["U+E0041"],
    "می\u200cخواهم 👩\u200d🔬 क्\u200dष ✔\ufe0f 1\ufe0f\u20e3 葛\ufe00": [],
    "plain\ttext\n": [],
}
"""Texts, and the characters in them that nobody sees. Joiners and variation selectors that act on something are seen."""


@pytest.mark.parametrize(("text", "codes"), UNSEEN.items())
@pytest.mark.parametrize(
    "page", [text_html, lambda text: steps_fragment([text], headline="")], ids=["page", "notebook"]
)
def test_characters_that_take_no_room_are_shown_by_their_number(
    page: Callable[[str], str], text: str, codes: list[str]
) -> None:
    boxes = re.findall(
        r'(.)<bdi class="codepoint" title="(\S+) [^"]*, an invisible character"[^>]*>(.*?)</bdi>', page(text)
    )
    # The character stays where it is, with its box after it.
    assert boxes == [(chr(int(code[2:], 16)), code, code) for code in codes]
    if page is text_html:
        assert unescape(re.sub("<bdi.*?</bdi>", "", page(text))) == text


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0.0, "0.000"),
        (1.0, "1.000"),
        (0.45678, "0.457"),
        (-0.25, "-0.250"),
        (0.00049, "0.00049"),
        (3e-12, "3e-12"),
        (123.456, "123.456"),
        (-20000.0, "-2e+04"),
        (-math.inf, "-inf"),
    ],
)
def test_number(value: float, shown: str) -> None:
    assert number(value) == shown


# Formulas and code


def cut(text: str) -> list[tuple[str, str]]:
    return [(piece.kind, piece.text) for piece in pieces(text)]


@pytest.mark.parametrize(
    "text",
    [
        "She earns $18 a day and $20 more, so $18+$20 = $38.",
        "5$ and 10$ are left; it costs 7$. Then 8$",
        "between $5-$10, or ($20)",
        "18 * $2 = $<<18*2=36>>36",
        "US$5,000 to US$6,000",
        "a price of $3 and twice as much$",
        "\\$5 and \\$6, an unclosed \\( or \\[ or $$ or \\begin{align} stays",
        "$$ $$ and \\(  \\)",
        "``quoted'' and `open",
        "a line break \\\\[2pt] is no display",
    ],
)
def test_prose_stays_prose(text: str) -> None:
    assert {kind for kind, _ in cut(text)} == {"prose"}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("so $x+1$ costs $5.", [("prose", "so "), ("inline", "x+1"), ("prose", " costs $5.")]),
        ("$5 an hour, and $x$ hours", [("prose", "$5 an hour, and "), ("inline", "x"), ("prose", " hours")]),
        (r"\(a\)\[ b \]$$c$$", [("inline", "a"), ("display", "b"), ("display", "c")]),
        (r"$\text{two plain words} = \$5$", [("inline", r"\text{two plain words} = \$5")]),
        (
            "\\begin{align*}a&=b\\\\[2pt]c&=d\\end{align*}.",
            [("display", "\\begin{align*}a&=b\\\\[2pt]c&=d\\end{align*}"), ("prose", ".")],
        ),
        (
            "a\n```python\nx = '$a$'\n```\nand `$b$`",
            [("prose", "a\n"), ("code", "x = '$a$'\n"), ("prose", "and "), ("quoted", "$b$")],
        ),
        ("~~~\n```\n~~~\nend", [("code", "```\n"), ("prose", "end")]),
        ("````md\n```\n````", [("code", "```\n")]),
        ("```c\nint x;", [("code", "int x;")]),
        ('[asy]\nlabel("$A$");\n[/asy] $B$', [("code", 'label("$A$");'), ("prose", " "), ("inline", "B")]),
        ("``a ` b``", [("quoted", "a ` b")]),
    ],
)
def test_formulas_and_code_are_found(text: str, expected: list[tuple[str, str]]) -> None:
    assert cut(text) == expected


@given(st.text(alphabet="$\\()[]{}` \n~abegin5.*asy/", max_size=120))
def test_pieces_rejoin(text: str) -> None:
    assert "".join(piece.source for piece in pieces(text)) == text


@given(
    st.text(max_size=80), st.sampled_from(["python", "c", "json", "haskell", "", "no-such-language", "text"])
)
@settings(deadline=None)
def test_highlight_shows_the_code_itself(code: str, language: str) -> None:
    seen = Seen(highlight(code, language))
    # pygments reads every line end as a newline.
    assert seen.text == visible(code).replace("\r", "\n")
    assert set(seen.tags) <= {"span"}


def test_formulas_are_marked_for_the_script_and_readable_without_it() -> None:
    html = text_html("If $x<y$ then\n$$x \\le y.$$\nDone, for $5 & $6.")
    assert '<span class="tex">x&lt;y</span>' in html
    assert '<span class="tex tex-d">x \\le y.</span>' in html
    assert html.endswith("Done, for $5 &amp; $6.")


# The notebook


HOSTILE = [
    "<script>alert(1)</script>",
    "</div></span><img src=x onerror=alert(1)>",
    "\"onmouseover='alert(1)' x=\"",
    "$\\href{javascript:alert(1)}{x}$ and [x](javascript:alert(1))",
    '```"><script>alert(1)</script>\n</code></pre><script>alert(1)</script>\n```',
    "`</code><b>` &lt;b&gt; &amp; \0 \x1b",
    "<!-- <style>*{display:none}</style> ]]> <svg/onload=alert(1)>",
]


def fragment(
    steps: list[str], scores: list[float | None], first_error: int | None, kind: str = "probability"
) -> Seen:
    return Seen(
        solution_fragment(
            "What is 2 < 3?", steps, scores, kind=kind, first_error=first_error, headline="min 0.1"
        )
    )


def test_fragment_shows_every_step_and_number() -> None:
    seen = fragment(["first", "second", "third"], [0.91, 0.1234, None], 1)
    for shown in (
        "What is 2 < 3?",
        "min 0.1",
        "first error: step 2",
        "0.910",
        "0.123",
        "not read",
        "✗ first error",
    ):
        assert shown in seen.text
    assert seen.text.index("first") < seen.text.index("second") < seen.text.index("third")
    assert seen.text.index("✗ first error") < seen.text.index("second")
    titles = [value for _, name, value in seen.attributes if name == "title"]
    assert titles == ["0.91", "0.1234"]  # the exact numbers


def test_fragment_stands_alone_and_is_inert() -> None:
    seen = fragment(HOSTILE, [0.5] * len(HOSTILE), -1)
    assert set(seen.tags) <= {"div", "span", "b", "code"}
    assert {name for _, name, _ in seen.attributes} <= {"class", "style", "dir", "title"}
    assert not any("url(" in value or "@import" in value for _, _, value in seen.attributes)
    assert seen.open == []
    for text in ("<script>alert(1)</script>", "onerror=alert(1)>", "\\x00 \\x1b", "&lt;b&gt;"):
        assert text in seen.text


def test_a_record_shows_itself() -> None:
    scored = GradedSolution(
        solution=Solution.of("1 + 1?", ["It is 3.", "So 3."]),
        step_scores=StepScores(scores=(0.25, 0.5), kind="probability"),
        score=0.125,
        aggregate="product",
        first_error=0,
        threshold=0.5,
        prm="p",
    )
    seen = Seen(scored._repr_html_())
    for shown in ("1 + 1?", "It is 3.", "0.250", "0.500", "product 0.125", "first error: step 1"):
        assert shown in seen.text


# The terminal


def printed(
    steps: list[str], scores: list[float | None], first_error: int | None, *, width: int = 80, colours: bool = False,
    encoding: str = "utf-8", **more: str,
) -> str:  # fmt: skip
    file = io.TextIOWrapper(io.BytesIO(), encoding=encoding, newline="\n")
    console = Console(
        file=file,
        width=width,
        force_terminal=colours,
        color_system="truecolor" if colours else None,
        legacy_windows=False,
        _environ={},
    )
    console.print(
        solution_lines(
            "What is 2 + 2?",
            steps,
            scores,
            kind="probability",
            first_error=first_error,
            headline="min 0.12",
            **more,
        )
    )
    file.flush()
    raw = file.buffer
    assert isinstance(raw, io.BytesIO)
    return raw.getvalue().decode(encoding)


def test_terminal_shows_every_step() -> None:
    out = printed(
        ["Two and two.", "That is five.", "Done."], [0.9, 0.12, None], 1, title="row 7", outcome="outcome 0.3"
    )
    lines = [line.rstrip() for line in out.splitlines()]
    assert lines[0] == "What is 2 + 2?"
    assert lines[1] == "row 7 · min 0.12 · first error: step 2 · outcome 0.3"
    assert lines[2] == "  1    0.900 ━━━━━━━─ Two and two."
    assert lines[3] == "  2    0.120 ━─────── ✗ first error"
    assert lines[4] == "                      That is five."
    assert lines[5] == "  3 not read          Done."


@pytest.mark.parametrize("width", [12, 30, 55, 56, 80, 200])
def test_terminal_wraps_and_loses_nothing(width: int) -> None:
    words = [f"word{at}" for at in range(40)]
    out = printed([" ".join(words), "数学" * 30], [0.9, 0.1], 1, width=width)
    assert re.findall(r"word\d+", out) == words
    assert out.count("数") == 30
    from rich.cells import cell_len

    assert max(cell_len(line) for line in out.splitlines()) <= width
    assert re.sub(r"\s+", " ", out).count("first error") == 2  # in the head and at the step


def test_no_color_is_obeyed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    file = io.StringIO()
    console = Console(file=file, width=80, force_terminal=True, legacy_windows=False)
    console.print(
        solution_lines("p", ["a", "b"], [0.9, 0.1], kind="probability", first_error=1, headline="min 0.100")
    )
    assert "first error" in file.getvalue()
    assert not re.search(r"\x1b\[[\d;]*(?:38|48|3[0-7]|4[0-7])[;m]", file.getvalue())


def test_terminal_obeys_neither_control_characters_nor_markup() -> None:
    steps = [
        "[bold red]x[/] [link=http://a]y[/link] :smile:",
        "\x1b]0;title\a\x1b[2J\b\b\u202e",
        "\x9b31m\rover",
    ]
    out = printed(steps, [0.5] * 3, -1, width=120)
    assert "[bold red]x[/] [link=http://a]y[/link] :smile:" in out
    assert "\\x1b]0;title\\x07\\x1b[2J\\x08\\x08\\u202e" in out
    assert "\\x9b31m\\x0dover" in out
    assert not set(out) & set("\x1b\a\b\r\x9b\u202e")


def test_importing_show_loads_nothing_heavy() -> None:
    code = (
        "import sys, stepmark.report.terminal, stepmark.report.html, stepmark.report.page\n"
        "print(sorted({'rich', 'pygments', 'pydantic', 'torch'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_number_and_what_it_counts() -> None:
    assert [amount(n, "step") for n in (0, 1, 2, 2000)] == ["0 steps", "1 step", "2 steps", "2,000 steps"]
    assert [amount(n, "reply", "replies") for n in (1, 2)] == ["1 reply", "2 replies"]
    assert amount(None, "token") == "an unknown number of tokens"
