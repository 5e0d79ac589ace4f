"""Which published PRM, which aggregate: choices among 32 solutions against the majority vote.

    python -m benchmarks.which_prm [--quick] [--page docs/which-prm.md] [--edits StrictPRMBench/scores]

32 solutions each of 400 problems of GSM8K and of MATH-500 by one model, with the step scores that the authors of StrictPRMBench published
for five PRMs (MATH-500: one). Every figure is the expectation over subsets of N of the 32, with bootstrap intervals over problems; a lead
over the vote is paired. A solution that names no answer, or one that cannot be compared, is wrong and does not vote: many are cut off.

`--edits` is the folder `scores` of StrictPRMBench's repository: scores of right solutions before and after one step was deleted, a needed or
an inert one, in pairs that match in length and place. A good score falls with the needed step and stays with the inert one.

`--page` writes the page of the documentation. `--quick` takes 60 problems of each set.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.common import benchmark_parser, data_folder, finish, rows
from stepmark.evaluation.best_of_n import CandidateSet, Counting, SampledCandidate, items_of, statistic
from stepmark.evaluation.result import Figure, measured, shown
from stepmark.metrics.aggregate import aggregate, allowed
from stepmark.metrics.intervals import Floats, Statistic, ratio_statistic
from stepmark.records import StepScores
from stepmark.verifiers.base import answer_groups, load_verifier

Figures = Mapping[str, Figure]

SETS = {"gsm8k": ("GSM8K", "number"), "math500": ("MATH-500", "math")}
NAMES = {
    "qwen-7b": "Qwen2.5-Math-PRM-7B",
    "skywork-7b": "Skywork-o1-Open-PRM-7B",
    "skywork-1.5b": "Skywork-o1-Open-PRM-1.5B",
    "math-shepherd": "Math-Shepherd-7B",
    "rlhflow": "RLHFlow-8B",
}
SIZES = (1, 2, 4, 8, 16, 32)
MOST = SIZES[-1]
HOWS = allowed("probability")
WAYS = (*(f"best {how}" for how in HOWS), *(f"vote {how}" for how in HOWS if how != "sum-logit"))
WAYS_BY_N = ("best product", "best mean", "best last", "vote product", "vote last")
"""The ways that are best for one of the PRMs, and the product."""


def candidate_sets(problems: Sequence[Mapping[str, Any]], verifier: str) -> tuple[list[CandidateSet], float]:
    """The candidates with their answers compared, each text read once; their scores are put in by PRM. And the share without a verdict."""
    sets, unread, count = [], 0, 0
    with load_verifier(verifier) as judge:
        for row in problems:
            verdicts = [judge.verify(candidate["text"], row["gold"]) for candidate in row["candidates"]]
            unread += sum(verdict.correct is None for verdict in verdicts)
            count += len(verdicts)
            groups = answer_groups([verdict.answer for verdict in verdicts], judge)
            candidates = [
                SampledCandidate(correct=bool(verdict.correct), answer=group)
                for verdict, group in zip(verdicts, groups, strict=True)
            ]
            sets.append(CandidateSet(id=row["id"], candidates=tuple(candidates)))
    return sets, unread / count


def figures_of(sets: Sequence[CandidateSet], problems: Sequence[Mapping[str, Any]], prm: str) -> Figures:
    """Every figure of one PRM's scores."""
    scored = []
    for group, row in zip(sets, problems, strict=True):
        given = [
            StepScores(scores=tuple(candidate["scores"][prm]), kind="probability")
            for candidate in row["candidates"]
        ]
        candidates = zip(group.candidates, given, strict=True)
        scored.append(replace(group, candidates=tuple(replace(one, steps=own) for one, own in candidates)))
    made = items_of(scored, Counting(sizes=SIZES))
    return measured(made, statistic(made))


EDITED = {"qwen-7b": "qwen_prm", "skywork-7b": "skywork_prm", "skywork-1.5b": "skywork_prm_1_5b", "math-shepherd": "math_shepherd", "rlhflow": "rlhflow_prm"}  # fmt: skip
"""What the files of StrictPRMBench call each PRM."""
EDIT_HOWS = ("product", "min", "mean", "last")


def edits_of(folder: Path, prm: str, name: str) -> Figures:
    """Of each aggregate the share of deletions after which it falls, of needed and of inert steps, and their difference."""
    sides = {}
    for side in ("necessary", "inert"):
        lines = (folder / f"{EDITED[prm]}_{name}_{side}.jsonl").read_text(encoding="utf-8").splitlines()
        sides[side] = {row["match_group_id"]: row for row in map(json.loads, lines)}
    pairs = [
        {"id": group, "problem": group, **{side: sides[side][group] for side in sides}}
        for group in sides["necessary"]
        if group in sides["inert"]
    ]

    def figures(found: Sequence[Mapping[str, Any]]) -> Statistic:
        columns = {
            f"{side}/{how}": (
                [
                    float(
                        aggregate(pair[side]["modified_step_scores"], how)
                        < aggregate(pair[side]["clean_step_scores"], how)
                    )
                    for pair in found
                ],
                [1.0] * len(found),
            )
            for side in sides
            for how in EDIT_HOWS
        }
        shares = ratio_statistic(columns)

        def compute(weights: Floats) -> dict[str, Floats]:
            values = dict(shares(weights))
            for how in EDIT_HOWS:
                values[f"difference/{how}"] = values[f"necessary/{how}"] - values[f"inert/{how}"]
            return values

        return compute

    return measured(pairs, figures(pairs))


def edits_section(edits: Mapping[str, Mapping[str, Figures]]) -> list[str]:
    """The part of the page about deleted steps."""
    lines = [
        "## Does a score see a missing step?",
        "",
        "StrictPRMBench deletes one step of right solutions: a needed or an inert one by its authors' rules, in 200 pairs a set that match in place "
        "and length. The share of deletions after which the score falls, needed against inert, and the difference with its interval. 100 against "
        "0 would be perfect. An aggregate that chooses well need not see missing steps: fewer factors make a larger product, and a mean moves with any step.",
        "",
    ]
    for name, by_prm in edits.items():
        body = []
        for prm, figures in by_prm.items():
            cells = [
                f"{value(figures, f'necessary/{how}'):.0f} against {value(figures, f'inert/{how}'):.0f}: {_signed(figures[f'difference/{how}'])}"
                for how in EDIT_HOWS
            ]
            body.append([NAMES[prm], *cells])
        lines += [f"### {SETS[name][0]}: deleted steps", ""]
        lines += table(["falls, %", *(f"`{how}`" for how in EDIT_HOWS)], body)
    return lines


def table(head: Sequence[str], body: Sequence[Sequence[str]]) -> list[str]:
    """A table in Markdown, the first column to the left."""
    rule = ["---", *["---:"] * (len(head) - 1)]
    return [f"| {' | '.join(cells)} |" for cells in (head, rule, *body)] + [""]


def lead(figures: Figures, way: str, n: int = MOST) -> str:
    """The lead over the vote in points with its interval; in bold where the interval is above 0."""
    figure = figures[f"over majority/{way}/{n}"]
    text = _signed(figure)
    return f"**{text}**" if figure.low is not None and figure.low > 0 else text


def value(figures: Figures, name: str) -> float:
    """A figure in percent or points."""
    figure = figures[name].value
    assert figure is not None
    return 100 * figure


def ranked(figures: Figures, ways: Sequence[str]) -> list[str]:
    """Ways by falling accuracy among 32."""
    return sorted(ways, key=lambda way: -value(figures, f"accuracy/{way}/{MOST}"))


def learned(name: str, by_prm: Mapping[str, Figures]) -> Iterator[str]:
    """What the figures of one set say, a line each."""
    chosen = [f"best {how}" for how in HOWS]
    for prm, figures in by_prm.items():
        order, votes = (
            ranked(figures, chosen),
            ranked(figures, [way for way in WAYS if way.startswith("vote")]),
        )
        held_out = figures.get(f"held out/over majority/{MOST}")
        yield (
            f"- {name}, **{NAMES[prm]}**: `{order[0][5:]}` chooses best ({lead(figures, order[0])}), `{order[-1][5:]}` worst "
            f"({lead(figures, order[-1])}); the best weighted vote is by `{votes[0][5:]}` ({lead(figures, votes[0])}). "
            f"The best of all ways, chosen on one half of the problems and measured on the other: {_signed(held_out)}."
        )


def _title(way: str) -> str:
    return f"{'highest' if way.startswith('best') else 'vote by'} `{way[5:]}`"


def _signed(figure: Figure | None) -> str:
    text = shown(figure)
    return text if text.startswith(("-", "–", "0.0")) else f"+{text}"


def page(
    measurements: Mapping[str, Mapping[str, Figures]],
    counts: Mapping[str, tuple[int, float]],
    edits: Mapping[str, Mapping[str, Figures]],
) -> str:
    """The page of the documentation."""
    lines = [
        "# Which PRM, which aggregate?",
        "",
        "Choosing among the same solutions by published PRMs: what each gains over a majority vote, by how its step scores become one number.",
        "",
        "```{code-block} console",
        "$ python -m benchmarks.which_prm --page docs/which-prm.md --edits StrictPRMBench/scores",
        "```",
        "",
        f"writes this page. The solutions, {MOST} a problem by one model (temperature 0.8), and the scores are those of StrictPRMBench (CC-BY-4.0): "
        + ", ".join(
            f"{counts[name][0]} problems of {SETS[name][0]} ({100 * counts[name][1]:.1f} % of the solutions name no answer that can be compared: wrong)"
            for name in measurements
        )
        + ". Every figure is the expectation over subsets of N; in brackets 95 % bootstrap intervals over problems, paired where two "
        "choices are compared. For your own solutions and PRM: "
        "[`stepmark evaluate best-of-n`](evaluate.md#best-of-n).",
        "",
    ]
    head = ["%", *(SETS[name][0] for name in measurements)]
    firsts = {name: next(iter(by_prm.values())) for name, by_prm in measurements.items()}
    lines += table(
        head,
        [
            [title, *(shown(of[key]) for of in firsts.values())]
            for title, key in (
                ("one sample", "accuracy/single/1"),
                *((f"vote of {n}", f"accuracy/majority/{n}") for n in (4, 8, MOST)),
                (f"a right one is among {MOST}", f"accuracy/oracle/{MOST}"),
            )
        ],
    )
    lines += ["## What the figures say", ""]
    for name, by_prm in measurements.items():
        lines += learned(SETS[name][0], by_prm)
    lines += [
        "",
        "In bold: the interval is above 0. Where nothing of a PRM is, the vote of as many solutions is enough. How scores are best reduced depends on the "
        "PRM: measure it on problems of your own before you rely on a choice.",
        "",
    ]
    for name, by_prm in measurements.items():
        title = SETS[name][0]
        lines += [f"## {title}: choice among {MOST}, points over the vote", ""]
        lines += [
            f"The vote is right in {shown(firsts[name][f'accuracy/majority/{MOST}'])} %. In bold: the interval is above 0.",
            "",
        ]
        lines += table(
            ["", *(NAMES[prm] for prm in by_prm)],
            [
                [
                    _title(way),
                    *(lead(of, way) for of in by_prm.values()),
                ]
                for way in WAYS
            ],
        )
    lines += edits_section(edits) if edits else []
    lines += ["## By N", "", "Points over the vote of as many solutions.", ""]
    for name, by_prm in measurements.items():
        for prm, figures in by_prm.items():
            lines += [f"### {SETS[name][0]}, {NAMES[prm]}", ""]
            body = [[_title(way), *(lead(figures, way, n) for n in SIZES[1:])] for way in WAYS_BY_N]
            lines += table(["", *(f"N = {n}" for n in SIZES[1:])], body)
    return "\n".join(lines).rstrip() + "\n"


def main() -> None:
    """Run it."""
    parser = benchmark_parser(__doc__, "60 problems of each set")
    parser.add_argument("--page", type=Path, help="write the page of the documentation there")
    parser.add_argument("--edits", type=Path, help="the folder `scores` of StrictPRMBench's repository")
    arguments = parser.parse_args()
    folder = data_folder()
    if folder is None or not (folder / "strictprm").is_dir():
        print("the development data is not there; name its folder in STEPMARK_DATA")
        finish("which_prm", {}, {})
        return
    measurements: dict[str, dict[str, Figures]] = {}
    counts: dict[str, tuple[int, float]] = {}
    summary: dict[str, float] = {}
    for name, (_, verifier) in SETS.items():
        problems = rows(folder / "strictprm" / f"{name}.dev.jsonl.gz")
        problems = problems[:: max(1, len(problems) // 60)] if arguments.quick else problems
        sets, unread = candidate_sets(problems, verifier)
        counts[name] = len(problems), unread
        prms = [prm for prm in NAMES if prm in problems[0]["candidates"][0]["scores"]]
        measurements[name] = {prm: figures_of(sets, problems, prm) for prm in prms}
        for prm, figures in measurements[name].items():
            summary |= {
                f"{name}/single": value(figures, "accuracy/single/1"),
                f"{name}/vote": value(figures, f"accuracy/majority/{MOST}"),
                f"{name}/oracle": value(figures, f"accuracy/oracle/{MOST}"),
                **{f"{name}/{prm}/{way}": value(figures, f"accuracy/{way}/{MOST}") for way in WAYS},
            }
            for way in WAYS:
                print(
                    f"{name:8} {prm:14} {way:16} " + "  ".join(f"{lead(figures, way, n)}" for n in SIZES[1:])
                )
    edits: dict[str, dict[str, Figures]] = {}
    if arguments.edits is not None:
        edits = {name: {prm: edits_of(arguments.edits, prm, name) for prm in NAMES} for name in SETS}
        summary |= {
            f"{name}/{prm}/edits {how}": value(figures, f"difference/{how}")
            for name, by_prm in edits.items()
            for prm, figures in by_prm.items()
            for how in EDIT_HOWS
        }
    if arguments.page is not None:
        arguments.page.write_text(page(measurements, counts, edits), encoding="utf-8")
    finish("which_prm", summary, {})


if __name__ == "__main__":
    main()
