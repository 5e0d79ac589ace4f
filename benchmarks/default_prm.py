"""What the shipped PRM is worth: every evaluation, on the development data, by the same commands that users run.

`python -m benchmarks.default_prm [--quick] [--prm NAME] [--out FOLDER] [--docs]` needs the development data and says so when it is
absent. Of candidates, changed solutions and PRMBench it takes a part, evenly spaced (`limit`); that takes three quarters of an hour on a core without AMX. It resumes: what was graded stays in the folder. `--docs` writes the tables, each under the command that made it, to
`docs/default-prm-figures.md`.
"""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.common import benchmark_parser, data_folder, finish
from stepmark.cli import main as stepmark

PAGE = Path(__file__).resolve().parents[1] / "docs" / "default-prm-figures.md"

PROCESSBENCH = ("processbench/gsm8k.dev.jsonl.gz", "processbench/math.dev.jsonl.gz")
CANDIDATES = ("gsm8k/candidates_16_models.dev.jsonl.gz",)


@dataclass(frozen=True, kw_only=True)
class Run:
    """One `stepmark evaluate` command."""

    name: str
    """Its folder."""
    evaluation: str
    data: tuple[str, ...]
    more: tuple[str, ...] = ()
    """Further words."""
    scores_of: str | None = None
    """An earlier run whose scores are measured again."""
    quick: int = 20
    """Problems with --quick."""
    limit: int | None = None
    """Problems otherwise; None for all."""
    tables: tuple[str, ...] = ()
    """Beginnings of the titles of the tables that the documentation shows; none: the run has no part there."""
    columns: tuple[str, ...] = ()
    """The columns that it shows; none: all."""
    rows: tuple[str, ...] = ()
    """Beginnings of the first cells of the rows that it shows; none: all."""
    note: bool = True
    """Whether the note under a table belongs to what is shown of it."""


RUNS = (
    Run(
        name="processbench",
        evaluation="processbench",
        data=PROCESSBENCH,
        quick=60,
        tables=("ProcessBench",),
        columns=("Part", "Error accuracy", "Correct accuracy", "F1"),
    ),
    Run(
        name="processbench-tuned",
        evaluation="processbench",
        data=PROCESSBENCH,
        more=("--threshold", "tuned:gsm8k"),
        scores_of="processbench",
        quick=60,
    ),
    Run(
        name="processbench-oracle",
        evaluation="processbench",
        data=PROCESSBENCH,
        more=("--threshold", "oracle"),
        scores_of="processbench",
        quick=60,
    ),
    Run(
        name="processbench-checks",
        evaluation="processbench",
        data=PROCESSBENCH,
        more=("--checks", "all"),
        scores_of="processbench",
        quick=60,
        tables=("ProcessBench",),
        columns=("Part", "Error accuracy", "Correct accuracy", "F1"),
    ),
    Run(
        name="prmbench",
        evaluation="prmbench",
        data=("prmbench/prmbench.dev.jsonl.gz",),
        quick=10,
        limit=300,
        tables=("PRMBench",),
        columns=("Part", "F1, wrong steps", "PRMScore"),
        rows=("simplicity", "soundness", "sensitivity", "overall"),
        note=False,
    ),
    Run(
        name="best-of-n",
        evaluation="best-of-n",
        data=CANDIDATES,
        quick=4,
        limit=100,
    ),
    Run(
        name="calibration",
        evaluation="calibration",
        data=PROCESSBENCH,
        scores_of="processbench",
        quick=60,
    ),
    Run(
        name="disagreement",
        evaluation="disagreement",
        data=PROCESSBENCH,
        more=("--process", "scores"),
        scores_of="processbench",
        quick=60,
        tables=("Where process and outcome",),
        rows=("overall",),
        columns=("Steps judged by", "Lucky, of right answers", "Unlucky, of wrong answers"),
        note=False,
    ),
    Run(
        name="drift",
        evaluation="drift",
        data=CANDIDATES,
        scores_of="best-of-n",
        quick=4,
        limit=100,
    ),
    Run(
        name="robustness",
        evaluation="robustness",
        data=PROCESSBENCH[:1],
        quick=5,
        limit=40,
        tables=("What each change",),
        columns=("Change", "Attack succeeds", "Verdict fooled", "Error missed"),
    ),
)


def main() -> None:
    parser = benchmark_parser(__doc__)
    parser.add_argument("--prm", default="default")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--docs", action="store_true", help="write docs/default-prm-figures.md")
    arguments = parser.parse_args()
    folder = data_folder()
    if folder is None:
        print("skipped: no development data; set STEPMARK_DATA to a folder with processbench/*.dev.jsonl.gz")
        return
    out = arguments.out or Path("evaluation") / ("default-quick" if arguments.quick else "default")
    results: dict[str, dict[str, Any]] = {}
    commands: dict[str, list[str]] = {}
    for run in RUNS:
        limit = run.quick if arguments.quick else run.limit
        data = [str(folder / name) for name in run.data]
        words = ["evaluate", run.evaluation, "--data", *data, "--out", str(out / run.name), *run.more]
        words += ["--limit", str(limit)] if limit is not None else []
        if run.scores_of is None:
            words += ["--prm", arguments.prm, "--dtype", arguments.dtype]
        else:
            words += ["--scores", str(out / run.scores_of / "scores.jsonl")]
        print(f"$ stepmark {shlex.join(words)}", flush=True)
        if (code := stepmark(words)) != 0:
            raise SystemExit(code)
        results[run.name] = json.loads((out / run.name / "result.json").read_text(encoding="utf-8"))
        commands[run.name] = [
            word.replace(str(folder) + "/", "").replace(str(out), "evaluation") for word in words
        ]
    if arguments.docs:
        PAGE.write_text(page(results, commands), encoding="utf-8")
        print(f"wrote {PAGE}")
    finish(
        "default_prm",
        figures(results),
        {"processbench-checks/gsm8k/f1": 47.9, "processbench-checks/math/f1": 29.5},
    )


def figures(results: dict[str, dict[str, Any]]) -> dict[str, float]:
    """The headline figures, in percent, by RUN/FIGURE."""
    wanted = {
        "processbench": ("gsm8k/f1", "gsm8k/error", "gsm8k/correct", "math/f1", "math/error", "math/correct"),
        "processbench-oracle": ("gsm8k/f1", "math/f1"),
        "processbench-checks": ("gsm8k/f1", "math/f1"),
        "prmbench": ("overall/prmscore",),
    }
    found: dict[str, float] = {}
    for run, names in wanted.items():
        by_name = {one["name"]: one["value"] for one in results[run]["figures"]}
        found |= {f"{run}/{name}": 100 * by_name[name] for name in names if by_name[name] is not None}
    return found


def page(results: dict[str, dict[str, Any]], commands: dict[str, list[str]]) -> str:
    """The documentation's page."""
    from stepmark.report.tables import Table, markdown

    parts = [
        "# Figures of the default PRM",
        "Generated by `python -m benchmarks.default_prm --docs` from the development halves of public data; each command prints more rows and "
        "columns than are shown. The threshold is the PRM's own. In brackets: 95 % bootstrap intervals over problems.",
        "The choice among candidates is in [](default-prm.md#what-the-recipe-changed).",
    ]
    for run in RUNS:
        if not run.tables:
            continue
        result = results[run.name]
        parts.append(f"## {result['title'].split(':')[0]}{_beside(run)}")
        parts.append(f"```{{code-block}} console\n$ stepmark {shlex.join(commands[run.name])}\n```")
        # The first fact says what was measured; the report of the run has the others.
        facts = [fact.replace("\n", " ") for fact in result["facts"][:1]]
        parts += [fact for fact in facts if fact not in parts]
        titled = [
            data
            for data in result["tables"]
            if data["title"].startswith(run.tables) and set(run.columns) <= set(data["columns"])
        ]
        if not titled:
            titles = [data["title"] for data in result["tables"]]
            raise SystemExit(f"{run.name}: expected a table {' or '.join(run.tables)}…, found {titles}")
        for data in titled:
            shown = [at for at, name in enumerate(data["columns"]) if not run.columns or name in run.columns]
            table = Table(
                title=data["title"],
                columns=tuple(data["columns"][at] for at in shown),
                rows=tuple(
                    tuple(row[at] for at in shown)
                    for row in data["rows"]
                    if not run.rows or row[0].startswith(run.rows)
                ),
                note=data["note"] if run.note and data["note"] not in "\n".join(parts) else "",
                align=tuple(data["align"][at] for at in shown),
            )
            parts.append(markdown(table).rstrip())
    return "\n\n".join(parts) + "\n"


def _beside(run: Run) -> str:
    if "--checks" in run.more:
        return ", with the exact checks"
    return f", threshold {run.more[1]}" if run.more[:1] == ("--threshold",) else ""


if __name__ == "__main__":
    main()
