"""The HTML report: what it shows equals what it was given, nothing in it acts, and Chromium draws it."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from importlib.resources import files
from pathlib import Path

import pytest

from chromium import dumped
from html_tree import Element, Tree
from stepmark.errors import InputError
from stepmark.records import GradedSolution, Problem, ScoreKind, Solution, Step, StepScores
from stepmark.scoring.report import write_report


def scored(
    problem: str | Problem,
    steps: Sequence[str | Step],
    scores: Sequence[float | None],
    *,
    kind: ScoreKind = "probability",
    first_error: int | None = -1,
    score: float | None = 0.5,
    aggregate: str = "min",
    threshold: float | None = 0.5,
    outcome: float | None = None,
    prm: str = "prm-a",
    id: str | None = None,
    split: str | None = None,
    **more: object,
) -> GradedSolution:
    return GradedSolution(
        solution=Solution(
            problem=Problem(text=problem) if isinstance(problem, str) else problem,
            steps=tuple(Step(text=step) if isinstance(step, str) else step for step in steps),
            id=id,
            split=split,
        ),
        step_scores=StepScores(scores=tuple(scores), kind=kind, **more),  # type: ignore[arg-type]
        score=score,
        aggregate=aggregate,
        first_error=first_error,
        threshold=threshold,
        prm=prm,
        outcome=outcome,
        outcome_model=None if outcome is None else "orm-b",
    )


def report(path: Path, solutions: Iterable[GradedSolution], **more: object) -> Element:
    write_report(path / "report.html", solutions, **{"title": "A report", **more})  # type: ignore[arg-type]
    return Tree((path / "report.html").read_text(encoding="utf-8")).root


CUBIC = "Let $f(x) = x^3 - 6x^2 + 9x + 2$. Find the sum of the values of $f$ at its local extrema."
EXAMPLES = [
    scored(
        CUBIC,
        ["$$f'(x) = 3(x-1)(x-3)$$", "$f(1) + f(3) = 6 + 2$"],
        [0.9, 0.8],
        score=0.8,
        outcome=0.95,
        id="r1",
    ),
    scored(CUBIC, ["$f'(x) = 3x^2$", "So $8$."], [0.25, 0.5], score=0.25, first_error=0, outcome=0.875),
    scored(CUBIC, ["By symmetry", "$2 f(2) = 8$"], [0.7, 0.6], score=0.6, outcome=0.125),
    scored("What does 2 * $3 cost?", ["It costs $6, not $5."], [0.99], score=0.99),
    scored("Another?", ["Not read."], [None], score=None, first_error=None),
]


def figures(page: Element) -> dict[str, str]:
    return {tile.one("span").text: tile.one("b").text for tile in page.find(".tile")}


# What it shows


def test_solutions_of_a_problem_stand_side_by_side(tmp_path: Path) -> None:
    # The third solution of the first problem comes last: it still belongs to it.
    page = report(tmp_path, [*EXAMPLES[:2], *EXAMPLES[3:], EXAMPLES[2]])
    sections = page.find(".problem")
    assert [len(section.find(".card")) for section in sections] == [3, 1, 1]
    assert [section.one(".ask").one("h2").text for section in sections] == [
        "Problem 1",
        "Problem 2",
        "Problem 3",
    ]
    assert sections[0].one(".ask").one(".txt").text == CUBIC.replace("$", "")
    assert sections[1].one(".ask").one(".txt").text == "What does 2 * $3 cost?"
    first = sections[0].find(".card")
    assert [card.one(".name").text for card in first] == ["Solution 1", "Solution 2", "Solution 3"]
    assert [card.find(".txt")[-1].text for card in first] == ["f(1) + f(3) = 6 + 2", "So 8.", "2 f(2) = 8"]


def test_numbers_are_those_given(tmp_path: Path) -> None:
    exact = (0.123456789, 0.987654321, 1e-9)
    page = report(
        tmp_path, [scored("p", ["a", "b", "c"], exact, first_error=0, score=1e-9, outcome=0.3333333333)]
    )
    steps = [one.one(".val") for one in page.find(".step")]
    assert [float(one.attributes["data-score"]) for one in steps] == list(exact)
    assert [one.one("b").text for one in steps] == ["0.123", "0.988", "1e-09"]
    assert [float(one.attributes["data-score"]) for one in page.find(".verdict")] == [1e-9, 0.3333333333]
    # The first bar inside the meter is as long as the score.
    widths = [one.one(".meter").find("i")[1].attributes["style"] for one in steps]
    assert widths == ["width:12.35%", "width:98.77%", "width:1e-07%"]
    assert [one.one(".n").text for one in page.find(".step")] == ["1", "2", "3"]


def test_aggregates_are_shown_where_they_mean_something(tmp_path: Path) -> None:
    rows: list[tuple[ScoreKind, tuple[float | None, ...], dict[str, str]]] = [
        # 0.5 * 0.25 = 0.125; (0.5 + 0.25) / 2 = 0.375
        ("probability", (0.5, 0.25), {"product": "0.125", "mean": "0.375", "last": "0.250", "max": "0.500"}),
        ("margin", (0.5, -0.25), {"product": "–", "mean": "0.125", "last": "-0.250", "max": "0.500"}),
        ("log-ratio", (3.0, -1.0), {"product": "–", "mean": "1.000", "last": "-1.000", "max": "3.000"}),
        ("unbounded", (3.0, -1.0), {"product": "–", "mean": "–", "last": "-1.000", "max": "3.000"}),
        ("probability", (None, 0.25), {"product": "–", "mean": "–", "last": "0.250", "max": "–"}),
        ("probability", (0.25, None), {"product": "–", "mean": "–", "last": "–", "max": "–"}),
    ]
    solutions = [
        scored(f"p{at}", ["a", "b"], scores, kind=kind, score=0.0625, threshold=None)
        for at, (kind, scores, _) in enumerate(rows)
    ]
    cards = report(tmp_path, solutions).find(".card")
    for card, (_, _, expected) in zip(cards, rows, strict=True):
        shown = {one.one("dt").text: one.one("dd").text for one in card.one(".aggregates").find("div")}
        # The one that was asked for is the record's own number, not one made again.
        assert shown == {**expected, "min": "0.062"}
        assert card.one(".used").one("dt").text == "min"


def test_the_first_error_is_flagged_and_no_other(tmp_path: Path) -> None:
    page = report(tmp_path, EXAMPLES)
    flagged = [one for one in page.find(".step") if "first" in one.classes]
    assert [one.find(".txt")[0].text for one in flagged] == ["f'(x) = 3x^2"]
    assert len(page.find(".flag")) == 1
    pills = [card.one(".pills").find(".pill")[-1].text for card in page.find(".card")]
    assert pills == ["No error", "First error: step 1", "No error", "No error", "First error: not known"]


def test_best_is_marked_where_there_is_something_to_compare(tmp_path: Path) -> None:
    several = [
        scored("p", ["a"], [0.4], score=0.4),
        scored("p", ["a"], [0.9], score=0.9),
        scored("p", ["a"], [0.9], score=0.9),
        scored("p", ["a"], [None], score=None, first_error=None),
        scored("p", ["a"], [0.99], score=0.99, prm="prm-b"),  # another PRM: not comparable
        scored("q", ["a"], [0.99], score=0.99),
    ]
    cards = report(tmp_path, several).find(".card")
    assert [bool(card.find(".best")) for card in cards] == [False, True, True, False, False, False]


def test_outcome_stands_beside_the_steps(tmp_path: Path) -> None:
    page = report(tmp_path, EXAMPLES)
    cards = page.find(".card")
    assert [[one.one("b").text for one in card.find(".verdict")] for card in cards] == [
        ["0.800", "0.950"],
        ["0.250", "0.875"],
        ["0.600", "0.125"],
        ["0.990"],
        ["–"],
    ]
    assert cards[0].find(".verdict")[1].one("span").text == "outcome · orm-b"


def test_the_top_counts_everything(tmp_path: Path) -> None:
    page = report(
        tmp_path, EXAMPLES, settings={"aggregate": "min", "split": "<auto>"}, note="One more thing."
    )
    assert figures(page) == {
        "solutions": "5",
        "problems": "3",
        "with an error": "1",
        "no error": "3",
        "not known": "1",
    }
    assert page.one("head").one("title").text == page.one("h1").text == "A report"
    assert page.one(".settings").one("dl").text == "aggregateminsplit<auto>"
    facts = [one.text for one in page.one(".about").find("p")]
    assert all(any(name in fact for fact in facts) for name in ("prm-a", "orm-b", "min", "0.5"))
    assert facts[-1] == "One more thing."


def test_classes_critiques_and_observations(tmp_path: Path) -> None:
    rich = scored(
        "p",
        [Step(text="call(1)", observation="returned <2>"), Step(text="so 2", observation="long " * 200)],
        [0.75, 0.5],
        classes=((0.125, 0.125, 0.75), None),
        class_names=("negative", "neutral", "positive"),
        critiques=(("It is $2$.", "Right <b>."), ()),
    )
    first, second = report(tmp_path, [rich]).find(".step")
    assert first.one(".classes").text == "negative 0.125 · neutral 0.125 · positive 0.750"
    assert [one.attributes["style"] for one in first.one(".stack").find("i")] == [
        "flex-grow:0.1250",
        "flex-grow:0.1250",
        "flex-grow:0.7500",
    ]
    folded = first.one(".critiques")
    assert folded.tag == "details" and "open" not in folded.attributes
    assert [one.text for one in folded.find(".txt")] == ["It is 2.", "Right <b>."]
    assert first.one(".seen").one(".txt").text == "returned <2>" and first.one(".seen").tag == "div"
    assert (
        second.one(".seen").tag == "details" and not second.find(".classes") and not second.find(".critiques")
    )


# The file


def test_equal_input_gives_an_equal_file(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_report(tmp_path / f"{name}.html", EXAMPLES, title="t")
    assert (tmp_path / "a.html").read_bytes() == (tmp_path / "b.html").read_bytes()


def test_a_failure_leaves_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    path.write_text("the old one")

    def failing() -> Iterator[GradedSolution]:
        yield EXAMPLES[0]
        raise InputError("the stream broke")

    with pytest.raises(InputError, match="the stream broke"):
        write_report(path, failing(), title="t")
    with pytest.raises(InputError, match=r"solution 'r1'.*2 in all, found 1"):
        broken = replace(EXAMPLES[0], step_scores=replace(EXAMPLES[0].step_scores, scores=(0.5,)))
        write_report(path, [broken], title="t")
    with pytest.raises(InputError, match="expected a probability"):
        write_report(path, [scored("p", ["s"], [1.5])], title="t")
    assert path.read_text() == "the old one"
    assert list(tmp_path.iterdir()) == [path]


# Nothing from outside acts

TAGS = {
    "html", "head", "meta", "title", "style", "body", "header", "nav", "main", "section", "article", "div",
    "bdi", "span", "h1", "h2", "h3", "p", "b", "i", "a", "ol", "li", "dl", "dt", "dd", "details", "summary",
    "figure", "figcaption", "svg", "g", "rect", "line", "text", "fieldset", "legend", "label", "input",
    "pre", "code", "script",
}  # fmt: skip
ATTACKS = [
    "<script>document.title='hacked'</script>",
    "</script><script>document.title='hacked'</script>",
    "</style></title></textarea><img src=x onerror=\"document.title='hacked'\">",
    "\"><svg onload=document.title='hacked'>",
    "' onmouseover=document.title='hacked' x='",
    "$\\href{javascript:document.title='hacked'}{x}$",
    "$$\\html@mathml{<img src=x>}{y} \\htmlData{onclick=alert(1)}{z} \\url{javascript:alert(1)}$$",
    "$</span><script>document.title='hacked'</script>$",
    "$\\includegraphics{http://example.org/x.png}$",
    "\\begin{align}</script><script>document.title='hacked'</script>\\end{align}",
    "```</pre><script>document.title='hacked'</script>\n</code></pre><script>document.title='hacked'</script>\n```",
    "`<script>document.title='hacked'</script>`",
    "<meta http-equiv=refresh content='0;url=http://example.org'><base href=http://example.org>",
    "nul \0 and \x1b[31m and \u202e and \ud800 and &lt;b&gt; &#60;script&#62;",
    "<!-- --> <![CDATA[ ]]> <?php ?> <link rel=stylesheet href=//example.org/x.css> url(http://example.org)",
    "$\\gdef\\frac#1#2{STOLEN}\\global\\let\\sqrt\\relax$",
    "left\u200eto right\u200f and no\u200bspace",
]


def attacked(path: Path) -> Element:
    solutions = []
    for at, text in enumerate(ATTACKS):
        rich = scored(
            Problem(text=text, id=text, source=text, answer=text),
            [Step(text=text, observation=text), Step(text=text, lead=f"```{text}\n", tail="\n```")],
            [0.4, 0.6],
            first_error=0,
            score=0.4,
            aggregate=text if at % 2 else "min",
            outcome=0.9,
            prm=text,
            id=text,
            classes=((0.5, 0.5), (0.5, 0.5)),
            class_names=(text, "other"),
            critiques=((text,), ()),
        )
        solutions.append(replace(rich, outcome_model=text))
    return report(
        path, solutions, title=ATTACKS[1], settings={text: text for text in ATTACKS}, note=ATTACKS[2]
    )


def test_hostile_texts_are_inert(tmp_path: Path) -> None:
    page = attacked(tmp_path)
    assert {one.tag for one in page.all()} - {"root"} <= TAGS
    for one in page.all():
        for name, value in one.attributes.items():
            assert not name.startswith("on") and name not in (
                "src",
                "srcset",
                "srcdoc",
                "action",
                "xlink:href",
            )
            if name == "href":
                assert re.fullmatch(r"#[ps]\d+", value)
            if name == "style":
                assert re.fullmatch(r"(width|--at):[\d.e-]+%|flex-grow:[\d.]+", value)
            if name == "class":
                assert "hacked" not in value
    assert len(page.find("script")) == 2 and len(page.find("style")) == 1


def test_only_our_scripts_may_run_and_nothing_is_loaded(tmp_path: Path) -> None:
    page = attacked(tmp_path)
    policy = next(
        one.attributes["content"]
        for one in page.find("meta")
        if one.attributes.get("http-equiv") == "Content-Security-Policy"
    )
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    scripts = [one.text for one in page.find("script")]
    digests = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in scripts]
    assert rules == {
        "default-src": "'none'",
        "script-src": " ".join(f"'sha256-{digest}'" for digest in digests),
        "style-src": "'unsafe-inline'",
        "font-src": "data:",
        "img-src": "data:",
        "base-uri": "'none'",
        "form-action": "'none'",
    }
    show = files("stepmark.report")
    assert scripts == [
        (show / name).read_text(encoding="utf-8") for name in ("vendor/katex/katex.min.js", "page.js")
    ]
    # It is the first thing of the head but the character set, so it governs everything after it.
    assert [one.tag for one in page.one("head").children if isinstance(one, Element)][:2] == ["meta", "meta"]
    style = page.one("style").text
    loads = re.findall(r"url\(([^)]{0,30})|@import", style)
    assert len(loads) == 20 and all(url.startswith("data:font/woff2;base64,") for url in loads)


def test_vendored_katex_is_what_its_page_says() -> None:
    folder = files("stepmark.report") / "vendor/katex"
    assert "katex@0.19.1" in (folder / "README.md").read_text()
    assert 'version:"0.19.1"' in (folder / "katex.min.js").read_text()
    assert "MIT" in (folder / "LICENSE").read_text()
    assert sum(one.name.endswith(".woff2") for one in (folder / "fonts").iterdir()) == 20


# In a browser


@pytest.fixture
def drawn(tmp_path: Path) -> tuple[Element, str]:
    """A page of attacks after Chromium ran its scripts, and what Chromium wrote to its log."""
    steps = [*ATTACKS, "$\\frac{1}{2}$, $\\sqrt{3}$.", "$\\frac{1}$ is no fraction", "It costs $5 or $6."]
    report(tmp_path, [scored("$x$", steps, [0.9] * len(steps), score=0.9)], title=ATTACKS[1])
    # Formulas are drawn as they come into view. A busy machine may dump the page before that: then it is dumped again.
    for attempt in range(4):
        page, log = dumped(tmp_path / "report.html", tmp_path / f"profile{attempt}")
        root = Tree(page).root
        if all("data-done" in one.attributes for one in root.find(".tex")):
            break
    return root, log


def test_chromium_renders_formulas_and_runs_nothing_else(drawn: tuple[Element, str]) -> None:
    page, log = drawn
    formulas = page.find(".tex")
    assert all("data-done" in one.attributes for one in formulas)
    # Every formula: the problem's, the six of the attacks, and the three of the last steps.
    assert len(page.find(".katex")) + len(page.find(".katex-error")) == len(formulas) == 10
    assert page.one("head").one("title").text == ATTACKS[1]
    assert len(page.find("script")) == 2 and not page.find("img")
    assert not [one for one in page.find("a") if not one.attributes["href"].startswith("#")]
    assert not [name for one in page.all() for name in one.attributes if name.startswith("on")]
    assert "CONSOLE" not in log


def test_chromium_keeps_formulas_apart_and_money_alone(drawn: tuple[Element, str]) -> None:
    *_, fraction, broken, money = drawn[0].find(".step")
    # The step before redefined \frac and \sqrt for all: these are a fraction and a root all the same.
    assert fraction.find("mfrac") and fraction.find("msqrt")
    assert broken.one(".katex-error").text == "\\frac{1}"
    assert money.one(".txt").text == "It costs $5 or $6."
