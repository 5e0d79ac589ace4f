"""Makes the figures of the concept pages, and the numbers that their text quotes.

`OMP_NUM_THREADS=1 python docs/concept_figures.py [NAME … | --check]`: about a minute of one core, without a network.

It writes `_static/concepts/NAME.svg`, all of them or those that are named, and `_static/concepts/numbers.json`. With `--check` it writes nothing and says which numbers have changed. All is
computed from seeds; only `separators` trains a network, whose figures differ a little between processors.
"""

from __future__ import annotations

import base64
import json
import re
import sys
import tempfile
from collections.abc import Callable, Mapping
from contextlib import chdir, redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from statistics import fmean

import concept_choices as choices
import concept_values as values
from concept_world import Found, percent

from stepmark import Solution, load_prm
from stepmark.cli import main as stepmark
from stepmark.data.reading import read_rows
from stepmark.metrics.binary import auc
from stepmark.report import colour
from stepmark.report.plots import Bars, Plot, Series, svg
from stepmark.store import atomic_write

STATIC = Path(__file__).parent / "_static" / "concepts"
MARKS = {
    "\n<file_sep>": "as trained",
    "<file_sep>": "no line break before it",
    "\n\n<file_sep>": "two line breaks before it",
    "\n": "the line break instead of it",
}
"""What ends a step when the trained grader is read, and its name in the figure."""
PREDICTABLE: Mapping[str, Callable[[], Found]] = {
    "outcome-and-process": values.outcome_and_process,
    "granularity": values.granularity,
    "prefixes": values.prefixes,
    "recovery": values.recovery,
    "any-of-k": values.any_of_k,
    "finite-k": values.finite_k,
    "policies": values.policies,
    "aggregation": choices.aggregation,
    "best-of-n": choices.best_of_n,
    "hacking": choices.hacking,
    "length": choices.length,
    "thresholds": choices.thresholds,
}
"""Figure: the experiment, without a network."""


def separators() -> Found:
    """A grader that is trained here, read with other ends of a step."""
    world = ["--steps", "3", "6", "--largest", "99", "--surface", "formula"]
    with tempfile.TemporaryDirectory() as folder, chdir(folder):
        for name, seed, count in (("train", 1, 300), ("test", 2, 60)):
            files = ["--out", f"{name}.problems.jsonl", "--solutions", f"{name}.right.jsonl"]
            _run(["problems", "arithmetic", "--count", str(count), *world, "--seed", str(seed), *files])
            _run(["label", "exact", f"{name}.right.jsonl", "--wrong", "6", "--keep-going", "--out", f"{name}.jsonl"])  # fmt: skip
        _run(
            ["train", "train.jsonl", "--base", "stepmark:arithmetic", "--full", "--learning-rate", "2e-3", "--epochs", "1",
             "--token-budget", "1024", "--dtype", "float32", "--evaluations", "1", "--out", "prm"]
        )  # fmt: skip
        rows = [row.data for row in read_rows(Path("test.jsonl"))]
        spec = Path("prm/stepmark.json")
        trained = json.loads(spec.read_text(encoding="utf-8"))
        figures = {}
        for mark in MARKS:
            layout = trained["layout"] | {"mark": mark}
            spec.write_text(json.dumps(trained | {"layout": layout}), encoding="utf-8")
            figures[mark] = _read("prm", rows)
    numbers = {}
    for mark, (mean, flagged, area) in figures.items():
        numbers[f"{MARKS[mark]}, mean"] = f"{mean:.2f}"
        numbers[f"{MARKS[mark]}, flagged"] = percent(flagged)
        numbers[f"{MARKS[mark]}, AUC"] = f"{area:.2f}"
    return Found(
        plot=Bars(
            title="One grader, read at four ends of a step",
            y_label="share of steps; AUC",
            labels=tuple(MARKS.values()),
            series=(
                Series(name="AUC of step scores", y=tuple(area for _, _, area in figures.values())),
                Series(
                    name="right steps called wrong", y=tuple(flagged for _, flagged, _ in figures.values())
                ),
            ),
        ),
        numbers=numbers,
    )


def _run(words: list[str]) -> None:
    said = StringIO()
    with redirect_stderr(said), redirect_stdout(said):
        code = stepmark(words)
    if code:
        raise SystemExit(f"stepmark {' '.join(words)}: {said.getvalue()}")


def _read(folder: str, rows: list[dict[str, object]]) -> tuple[float, float, float]:
    """Mean score, share of right steps under the threshold, and AUC up to the first error."""
    solutions, labels = [], []
    for row in rows:
        found: dict[str, object] = row["solution"]  # type: ignore[assignment]
        steps: list[str | dict[str, str]] = found["steps"]  # type: ignore[assignment]
        texts = [one if isinstance(one, str) else one["text"] for one in steps]
        problem: dict[str, str] = found["problem"]  # type: ignore[assignment]
        judged: list[list[dict[str, int]]] = row["judgements"]  # type: ignore[assignment]
        solutions.append(Solution.of(problem["text"], texts))
        labels.append([step[0]["rating"] if step else None for step in judged])
    prm = load_prm(folder, dtype="float32")
    scores: list[float] = []
    truth: list[float] = []
    for found_scores, ratings in zip(prm.score_many(solutions), labels, strict=True):
        for score, rating in zip(found_scores.scores, ratings, strict=True):  # type: ignore[union-attr]
            if rating is None or score is None:
                continue
            scores.append(score)
            truth.append(float(rating > 0))
            if rating < 0:
                break
    right = [score for score, value in zip(scores, truth, strict=True) if value]
    threshold = prm.default_threshold or 0.5
    return fmean(scores), sum(score < threshold for score in right) / len(right), auc(scores, truth)


def picture(plot: Plot) -> str:
    """A plot as an SVG file on a card with its title, light or dark as the reader's system is."""
    images, styles = [], []
    for mode in ("light", "dark"):
        drawn = svg(plot, mode)
        size = re.search(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', drawn)
        if size is None:
            raise ValueError("expected a picture with a viewBox from 0 0")
        width, height = (float(number) for number in size.groups())
        data = base64.b64encode(drawn.encode()).decode("ascii")
        images.append(
            f'<image class="{mode}" width="{width:g}" height="{height:g}" href="data:image/svg+xml;base64,{data}"/>'
        )
        panel, line, ink = (colour.hexa(table[mode]) for table in (colour.PAGE, colour.LINE, colour.INK))
        styles.append(f"rect{{fill:{panel};stroke:{line}}}text{{fill:{ink}}}")
    box = f"{width + 28:g} {height + 54:g}"
    wide, tall = box.split()
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{wide}" height="{tall}" viewBox="-14 -40 {box}">'
        f"<style>.dark{{display:none}}{styles[0]}@media (prefers-color-scheme:dark){{.light{{display:none}}.dark{{display:inline}}{styles[1]}}}</style>"
        f'<rect x="-13.5" y="-39.5" width="{width + 27:g}" height="{height + 53:g}" rx="8"/>'
        f'<text x="4" y="-15" style="font-family:system-ui,sans-serif;font-size:14.5px;font-weight:600">{plot.title}</text>'
        f"{''.join(images)}</svg>\n"
    )


def main() -> int:
    """Make what is asked for, or everything; or compare."""
    words = sys.argv[1:]
    makers = {**PREDICTABLE, "separators": separators}
    check = words == ["--check"]
    names = list(makers) if check or not words else words
    if not set(names) <= set(makers):
        sys.stderr.write(f"{__doc__}\nThe figures: {', '.join(makers)}\n")
        return 2
    file = STATIC / "numbers.json"
    known: dict[str, dict[str, str]] = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    found = {name: makers[name]() for name in names}
    numbers = {name: found[name].numbers if name in found else known[name] for name in makers}
    if check:
        for name in makers:
            if known.get(name) != numbers[name]:
                sys.stdout.write(f"{name}: {known.get(name)} in the file, {numbers[name]} now\n")
        return int(known != numbers)
    STATIC.mkdir(parents=True, exist_ok=True)
    for name, one in found.items():
        with atomic_write(STATIC / f"{name}.svg") as out:
            out.write(picture(one.plot))
    with atomic_write(file) as out:
        out.write(json.dumps(numbers, indent=1, ensure_ascii=False) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
