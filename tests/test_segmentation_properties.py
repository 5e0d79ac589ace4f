"""What holds of every way to cut, whatever the text."""

import ast
import time
from itertools import accumulate

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepmark.data.steps.splitting import WAYS, Segmentation, split
from stepmark.errors import InputError

EVERY = [way for way in WAYS if way != "agent"]
MARKER = "ки"


def cut(text: str, how: str) -> Segmentation:
    return split(text, how, marker=MARKER if how == "marker" else None)


def borders(segmentation: Segmentation) -> list[int]:
    """Where one step's share ends and the next begins."""
    return list(accumulate(len(step.raw) for step in segmentation))[:-1]


def check_lossless(text: str, how: str) -> None:
    try:
        segmentation = cut(text, how)
    except InputError:
        assert not text.replace(MARKER, "").strip()
        return
    assert segmentation.text == text
    assert segmentation.rejoin() == text
    assert "".join(step.raw for step in segmentation) == text
    assert segmentation.how in EVERY
    assert segmentation.how != "auto"
    assert segmentation.why
    for step in segmentation:
        assert step.text.strip()
        assert step.start is not None
        assert text[step.start : step.start + len(step.text)] == step.text
        # Layout is whitespace, or the marker that was asked for: nothing that could be graded is lost in it.
        layout = step.lead + step.tail
        assert not (layout.replace(MARKER, "") if how == "marker" else layout).strip()


# Characters and words on which the ways turn, more often than chance would give them.
TOKENS = st.one_of(
    st.sampled_from(
        ["\n", "\n\n", "\r\n", "\r", "\u2028", "\x0b", "\t", " ", "    ", "\u200b", "\ud800", "\0"]
    ),
    st.sampled_from(
        ["$", "$$", "\\[", "\\]", "\\(", "\\)", "\\\\", "\\", "`", "```", "```python\n", "~~~", "````\n"]
    ),
    st.sampled_from(
        ["\\begin{a}", "\\end{a}", "\\begin{b}", "\\end{b}", MARKER, "**", "- ", "#", "### ", "> "]
    ),
    st.sampled_from(
        ["1. ", "2. ", "3) ", "Step 1: ", "Step 2: ", ".", "...", "?", "。", "e.g. ", "Dr. ", "3.14"]
    ),
    st.sampled_from(
        ["x = 1", "def f():\n    ", "if a:\n", "else:", "return x", "import a", '"""', "# c", ";", "{", "}"]
    ),
    st.sampled_from(["a", "B", "5", "é", "我"]),
)
MIXTURES = st.lists(st.one_of(TOKENS, st.text(max_size=4)), max_size=30).map("".join)


@pytest.mark.parametrize("how", EVERY)
@settings(max_examples=50, deadline=None)
@given(text=st.one_of(st.text(max_size=80), MIXTURES))
def test_nothing_is_lost_and_no_step_is_blank(how, text):
    check_lossless(text, how)


# --- protected spans --------------------------------------------------------------------------------------------

# Free text has no character that could open or close anything.
FREE = st.text(alphabet="ab XY.?!:,\n\r\t12)#-*ки", max_size=25)
# What stands inside a formula: words, stops, line breaks, list numbers; no blank line in inline formulas.
INLINE = st.text(alphabet="ab XY.=+\n1)", max_size=15).map(
    lambda s: "x" + s.replace("\n\n", "\n").replace("\n \n", " ") + "z"
)
DISPLAY = st.text(alphabet="ab XY.=+\n1)#-", max_size=25)


@st.composite
def environments(draw, depth=2):
    name = draw(st.sampled_from(["align", "cases", "matrix*"]))
    inner = draw(DISPLAY)
    if depth and draw(st.booleans()):
        inner += draw(environments(depth=depth - 1)) + draw(DISPLAY)
    return f"\\begin{{{name}}}{inner}\\end{{{name}}}"


FORMULAS = st.one_of(
    INLINE.filter(lambda s: "\n\n" not in s and not any(not line.strip() for line in s.splitlines())).map(
        "${}$".format
    ),
    INLINE.map("\\({}\\)".format),
    DISPLAY.map("\\[{}\\]".format),
    DISPLAY.map("$${}$$".format).filter(lambda s: "$$$" not in s),
    environments(),
    st.tuples(DISPLAY, environments()).map(lambda two: f"\\[{two[0]}{two[1]}\\]"),
)
FENCES = st.tuples(
    st.sampled_from(["```", "~~~~"]),
    st.sampled_from(["", "python", "js title=x"]),
    st.text(alphabet="ab =:\n1.)#$\\[", max_size=40),
).map(lambda parts: f"{parts[0]}{parts[1]}\n{parts[2]}\n{parts[0]}")


@st.composite
def texts_with_spans(draw, spans):
    """A text made of free pieces and protected ones, and where the protected ones lie."""
    text, places = draw(FREE), []
    for span in draw(st.lists(spans, min_size=1, max_size=5)):
        # A formula stands apart from words, a fence on lines of its own.
        edge = "\n" if span[0] in "`~" else draw(st.sampled_from([" ", "\n"]))
        text += edge
        places.append((len(text), len(text) + len(span)))
        text += span + edge + draw(FREE)
    return text, places


@pytest.mark.parametrize("how", EVERY)
@settings(max_examples=50, deadline=None)
@given(case=texts_with_spans(st.one_of(FORMULAS, FENCES)))
def test_no_cut_falls_inside_a_formula_or_fence(how, case):
    text, places = case
    check_lossless(text, how)
    segmentation = cut(text, how)
    if segmentation.how == "code":
        # Inside fences, "code" cuts by its own rules.
        places = [(start, end) for start, end in places if text[start] not in "`~"]
    for border in borders(segmentation):
        for start, end in places:
            assert not start < border < end, (text[start:end], text[:border])


# --- cutting what is cut ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["line", "blank-line", "token", "marker", "whole"])
@settings(max_examples=60, deadline=None)
@given(text=FREE.filter(lambda s: s.replace(MARKER, "").strip()))
def test_a_step_of_plain_text_cannot_be_cut_again(how, text):
    for step in cut(text, how):
        assert cut(step.text, how).texts == (step.text,)


@settings(max_examples=100, deadline=None)
@given(text=st.text(max_size=60).filter(str.strip))
def test_lines_are_pythons_lines(text):
    plain = text.translate(dict.fromkeys(map(ord, "$\\`~"), "x"))
    assert list(split(plain, "line").texts) == [line for line in plain.splitlines() if line.strip()]


@settings(max_examples=100, deadline=None)
@given(text=st.text(max_size=60).filter(str.strip))
def test_tokens_are_pythons_words(text):
    plain = text.translate(dict.fromkeys(map(ord, "$\\`~"), "x"))
    assert list(split(plain, "token").texts) == plain.split()


# --- code -------------------------------------------------------------------------------------------------------

SIMPLE = st.one_of(
    st.sampled_from(
        ["x = 1", "f(x); g(y)", "import os", "from a import b", "pass", "x = 1  # é", "'docstring'"]
    ),
    st.sampled_from(['y = """a\n  b\n\n# c\n"""', "z = [\n 1,\n\n 2]", "del x, \\\n y", "# comment", ""]),
)
HEADS = st.sampled_from(
    ["def f(a,\n  b=1):", "class A(B):", "for i in x:", "while x:", "with a as b, c:", "async def g():", "@d\n@e\ndef h():"]
)  # fmt: skip


def _block(statements: list[str], indent: str) -> str:
    """Statements as an indented block; lines inside strings and brackets are left as they are."""
    return (
        "".join(f"{indent}{statement}\n" if statement else "\n" for statement in statements)
        + f"{indent}x = 0\n"
    )


@st.composite
def programs(draw, depth=3, indent=""):
    parts = []
    for _ in range(draw(st.integers(1, 5))):
        if depth and draw(st.booleans()):
            inner = draw(programs(depth=depth - 1, indent=indent + "  "))
            kind = draw(st.sampled_from(["head", "if", "try"]))
            if kind == "head":
                parts.append(
                    indent + draw(HEADS).replace("\n@", f"\n{indent}@").replace("\ndef", f"\n{indent}def")
                )
                parts.append("\n" + inner)
            elif kind == "if":
                other = draw(programs(depth=depth - 1, indent=indent + "  "))
                word = draw(st.sampled_from(["elif b:", "else:"]))
                parts.append(f"{indent}if a:\n{inner}{indent}{word}\n{other}")
            else:
                parts.append(
                    f"{indent}try:\n{inner}{indent}except E:\n{indent}  pass\n{indent}finally:\n{inner}"
                )
        else:
            parts.append(_block(draw(st.lists(SIMPLE, max_size=6)), indent))
    return "".join(parts)


@settings(max_examples=60, deadline=None)
@given(code=programs(), end=st.sampled_from(["\n", "\r\n"]))
def test_python_is_cut_between_statements_only(code, end):
    tree = ast.parse(code)  # the generator writes Python
    text = code.replace("\n", end)
    segmentation = split(text, "code", language="python")
    assert segmentation.rejoin() == text
    assert segmentation.why == "asked for"
    rows = {text.count("\n", 0, border) + 1 for border in borders(segmentation)}
    for border in borders(segmentation):
        assert text[border - 1] in "\r\n"
    for node in ast.walk(tree):
        # No border inside a statement that holds no other.
        if isinstance(node, ast.stmt) and not getattr(node, "body", None):
            assert node.end_lineno is not None
            assert not rows & set(range(node.lineno + 1, node.end_lineno + 1))
    assert ast.dump(ast.parse(segmentation.rejoin())) == ast.dump(tree)


# --- bounded work -----------------------------------------------------------------------------------------------

LONG = 100_000
UNITS = {
    "auto": [
        "$",
        "$x",
        "\\(a",
        "```py\n",
        ". ",
        "1.\n2.\n",
        "1. a\n\nB\n\n",
        "# c\n",
        "{\n}\n",
        "a\\\n",
        "(",
        "x=1\n",
    ],
    "line": ["$$ ", "\\[", "\\begin{a}", "\\begin{a}\\end{b}", "````\n```a\n", "` a", " \na"],
    "numbered": ["1. a\n2. b\n\nC\n\n", "Step 1:\n", "# ", "- " + " " * 999, "Step "],
    "sentence": ["?!", "...", ".'", "A. B", ". . ", " a", "e.g. 1. "],
    "code": ["if a:\n", " {\n}\n", "x;", "elif a:\n b\n", "\t"],
    "marker": ["ки ", "ки$", "\\[ки\\]"],
}


@pytest.mark.parametrize(("how", "unit"), [(how, unit) for how, units in UNITS.items() for unit in units])
def test_a_long_text_of_one_kind_takes_linear_time(how, unit):
    def seconds(length):
        text = (unit * (length // len(unit) + 1))[: length - 1] + "a"
        start = time.process_time()  # of this process alone: a busy machine must not look quadratic
        assert cut(text, how).rejoin() == text
        return time.process_time() - start

    def linear(rounds):
        short, long = (min(seconds(length) for _ in range(rounds)) for length in (LONG // 4, LONG))
        return long < 8 * short + 0.3  # four times the text: linear work takes 4 times, quadratic work 16

    seconds(1000)
    assert any(map(linear, (1, 3, 9)))  # again where the machine may have been at fault


def test_deep_and_long_shapes_end():
    stairs = "\n".join(" " * depth + "a" for depth in range(630))
    chain = "if a:\n    b\n" + "elif a:\n    b\n" * 14_000
    short_chain = "if a:\n    b\n" + "elif a:\n    b\n" * 150
    bars = "".join("`" * n + "a\n" for n in range(600, 3, -1))
    for text in (stairs, chain, short_chain, bars):
        for how in EVERY:
            if how != "marker":
                assert split(text, how).rejoin() == text
    assert len(split(short_chain, "code")) == 151
