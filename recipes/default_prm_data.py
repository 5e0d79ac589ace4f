"""The step labels that the default PRM is trained on: right steps beside wrong ones, from worked problems, and people's ratings.

    python recipes/default_prm_data.py OUT --gsm8k train.jsonl.gz [--svamp svamp.jsonl.gz] [--prm800k phase1_train.jsonl.gz]
        [--samples samples.jsonl …] [--candidates candidates.jsonl.gz] [--benchmark problems.jsonl.gz …] [--test problems.jsonl.gz …]
        [--tokens 10000000] [--passes 1] [--held-out 135] [--seed 0]

Writes `gsm8k.jsonl`, `svamp.jsonl`, `prm800k.jsonl` and `samples.jsonl` in the folder OUT, in the layout that `stepmark train` reads, and
`held_out.jsonl`: whole solutions of other problems, of GSM8K and of PRM800K in equal parts, one right and one that ends at an error of each.
With `--tokens` the sources are cut to their shares of so many distinct tokens, problem by problem. A function of its seed.

--samples: solutions that models wrote, `{"problem", "solution" or "steps", "correct"}`, and where there are any `"reference"` (a worked
solution), `"first_errors"` (what people named, from 0), `"source"` and `"model"`. First errors are located by `default_prm_reference`.
--candidates: GSM8K test problems with samples of many models (`{"question", "gold", "candidates": [{"model", "text", "correct"}]}`). A hash of the
problem says what each is for (`part_of`): training (with --train-on-candidates; give the whole of every benchmark then), the choice of the
threshold (`threshold.jsonl`), or best-of-N alone (`best_of_n.txt`).
--taught: `taught.jsonl` of default_prm_teacher.py; candidates of these problems choose no threshold and are in no best-of-N figure.
--benchmark, --test: problems that nothing is trained on; those of --test may stand among the candidates.

`docs/label.md#errors-put-in-on-purpose` describes the rows, `docs/default-prm.md` the sources, the noise of the labels and the results.
"""

# ruff: noqa: T201
from __future__ import annotations

import argparse
import hashlib
import random
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar

from default_prm_branches import exact_labels
from default_prm_contrasts import contrasts
from default_prm_reference import label_by_reference

from stepmark import split
from stepmark.data.formats.own import to_row
from stepmark.data.formats.rows import LabelledRow
from stepmark.data.labelled import read_labelled
from stepmark.data.reading import read_rows
from stepmark.labels.exact import NUMBER, compute, number_of
from stepmark.problems.loading import Worked, read_gsm8k
from stepmark.records import Judgement, LabelledSolution, Problem, Solution, Step
from stepmark.store import atomic_rows
from stepmark.training.examples import Example, Target, by_problem, examples

Item = TypeVar("Item")

SHARES = {"gsm8k": 0.60, "svamp": 0.12, "prm800k": 0.28, "samples": 0.20}
"""Of the tokens, relative to each other."""
OTHERS = 4
"""Right samples of a problem that its wrong samples are compared with."""
DOUBT = 1 / 3
"""Votes of each kind that are added to people's: where one teacher named a step, another finds the solution right so far in 20 % (docs/default-prm.md)."""
GRAM = 13
"""Words in a row that two problems must share to count as the same."""
JOINED = 0.5
"""Share of PRM800K's step borders that are taken away: people cut more finely than models do."""
MAX_TOKENS = 512
"""Longer solutions are not counted, as training leaves them out (`--max-tokens`)."""


def read_svamp(file: Path) -> Iterator[Worked]:
    """SVAMP's problems (`Body`, `Question`, `Equation`, `Answer`), the equation as a worked line of one step."""
    for row in read_rows(str(file)):
        body, question = str(row.data["Body"]).strip(), str(row.data["Question"]).strip()
        equation = re.sub(r"(\d+)\.0\b", r"\1", str(row.data["Equation"])).replace(" ", "")
        if equation.startswith("(") and equation.endswith(")") and equation.count("(") == 1:
            equation = equation[1:-1]
        value = compute(equation)
        if value is None or value.denominator != 1 or value != Fraction(str(row.data["Answer"])):
            continue
        unit = re.search(r"[Hh]ow many (?:more |fewer |less |extra )?([a-z]+s)\b", question)
        text = f"{body}{'' if body.endswith(('.', '?', '!')) else '.'} {question}"
        result = f"{equation} = <<{equation}={value}>>{value}{' ' + unit[1] if unit else ''}"
        yield Worked(
            problem=Problem(text=text, answer=str(value), id=row.where, source="SVAMP"),
            lines=(f"The result is {result}.",),
        )


def write_contrasts(problems: Iterable[Worked], out: Path, seed: int) -> int:
    """All branches of all problems as labelled solutions; how many."""
    return write(_contrasts(enumerate(problems), seed), out).rows


def _contrasts(
    numbered: Iterable[tuple[int, Worked]], seed: int, passes: int = 1
) -> Iterator[list[LabelledSolution]]:
    for number, worked in numbered:
        seeds = [seed * 1_000_003 + number + k * 500_009_003 for k in range(passes)]
        rows = [row for one in seeds for row in contrasts(worked, random.Random(one))]
        # A solution that cannot be written as prose keeps its own words.
        plain = (row for one in seeds for row in exact_labels(worked, random.Random(one)))
        yield rows or list(dict.fromkeys(plain))


def normal(text: str) -> str:
    """A problem's words, for comparing: lower case, without signs."""
    return " ".join(re.findall(r"[a-z0-9]+", text.lower()))


class Problems:
    """Problems that others are compared with: the same words, or `GRAM` words in a row."""

    def __init__(self, files: Iterable[Path]) -> None:
        """Read the problems of files, whatever their column is called."""
        names = ("problem", "question", "original_question", "modified_question", "instruction")
        rows = (row.data for file in files for row in read_rows(str(file)))
        self._texts = {normal(str(row[name])) for row in rows for name in names if row.get(name)}
        self._grams = {gram for text in self._texts for gram in _grams(text)}

    def __contains__(self, problem: object) -> bool:
        """Whether a problem is one of them."""
        text = normal(str(problem))
        return text in self._texts or any(gram in self._grams for gram in _grams(text))


def _grams(text: str) -> list[tuple[str, ...]]:
    words = text.split()
    return [tuple(words[i : i + GRAM]) for i in range(len(words) - GRAM + 1)]


def part_of(problem: str) -> Literal["training", "threshold", "best-of-N"]:
    """What a candidates problem is for, by the SHA-256 of its normalised words modulo 10: 0 to 2, 3 to 5, 6 to 9."""
    part = int(hashlib.sha256(normal(problem).encode()).hexdigest()[:8], 16) % 10
    return "training" if part < 3 else "threshold" if part < 6 else "best-of-N"


def sampled(
    rows: Iterable[Mapping[str, Any]], worked: Mapping[str, Sequence[str]]
) -> list[list[LabelledSolution]]:
    """Samples of models by problem, with soft labels: the probability that a step is right, as `share`.

    Where people named the first error, the share of them who named a later step, with `DOUBT`. Else by the final answer, and where it is
    wrong, by the worked solution and right samples of the same problem.

    Args:
        rows: as `--samples`.
        worked: worked solutions by normalised problem.
    """
    groups: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for row in rows:
        groups[normal(row["problem"])].append(row)
    return [
        [
            made
            for row in group
            if (made := _sample(row, _references(group, worked.get(name, ())))) is not None
        ]
        for name, group in groups.items()
    ]


def candidates(
    file: Path, benchmark: Problems, taught: Problems | None = None
) -> dict[Literal["training", "threshold", "best-of-N"], list[dict[str, Any]]]:
    """Samples of many models on GSM8K test problems, by what their problem is for; those of a benchmark's problems are for best-of-N alone, those
    of problems that a teacher's labels were learnt on (`taught`) for training alone."""
    parts: dict[Literal["training", "threshold", "best-of-N"], list[dict[str, Any]]] = {
        "training": [],
        "threshold": [],
        "best-of-N": [],
    }
    for row in read_rows(str(file)):
        problem = str(row.data["question"])
        part = "best-of-N" if problem in benchmark else part_of(problem)
        if taught is not None and problem in taught:
            part = "training"
        parts[part] += [
            {
                "problem": problem,
                "solution": sample["text"],
                "answer": str(row.data["gold"]),
                "correct": sample["correct"],
                "model": sample["model"],
                "source": "GSM8K test candidates",
            }
            for sample in row.data["candidates"]
            if str(sample["text"]).strip()
        ]
    return parts


def _references(group: Sequence[Mapping[str, Any]], worked: Sequence[str]) -> list[str]:
    given = dict.fromkeys([*worked, *(row["reference"] for row in group if row.get("reference"))])
    right = [_text(row) for row in group if row.get("correct")]
    return [*given, *dict.fromkeys(right[:OTHERS])]


def _text(row: Mapping[str, Any]) -> str:
    return row["solution"] if "solution" in row else "\n".join(row["steps"])


def _sample(row: Mapping[str, Any], references: Sequence[str]) -> LabelledSolution | None:
    text, correct, named = _text(row), row.get("correct"), row.get("first_errors")
    if correct is None or not text.strip():
        return None
    steps = row["steps"] if "steps" in row else split(text).steps
    solution = Solution.of(row["problem"], steps)
    solution = replace(
        solution,
        source=row.get("model"),
        problem=replace(solution.problem, source=row.get("source"), answer=row.get("answer")),
    )
    if named:
        shares = [
            (sum(first > at for first in named) + DOUBT) / (len(named) + 2 * DOUBT)
            for at in range(max(named) + 1)
        ]
        judged = [(_soft("human", share, f"{len(named)} named the first error"),) for share in shares]
        return LabelledSolution(
            solution=solution, judgements=(*judged, *((),) * (len(solution.steps) - len(judged)))
        )
    if not correct and (not references or _ends_in(text, str(row.get("answer") or ""))):
        return None  # nothing to compare with, or a right answer that the set's own check did not see
    labelled = label_by_reference(solution, references, correct=correct)
    if labelled is None:
        return None
    return replace(
        labelled, judgements=tuple(tuple(_softened(j) for j in step) for step in labelled.judgements)
    )


def _ends_in(text: str, answer: str) -> bool:
    """Whether the last number of a text is the reference answer."""
    shown, value = NUMBER.findall(text), compute(answer)
    return bool(shown) and number_of(shown[-1]) == value


def _softened(judgement: Judgement) -> Judgement:
    """A rating with its confidence as the probability that the step is right."""
    sure = judgement.confidence or 0.0
    return _soft(judgement.judge, sure if judgement.rating == 1 else 1 - sure, judgement.note)


def _soft(judge: str, share: float, note: str | None) -> Judgement:
    return Judgement(kind="value", judge=judge, share=round(share, 4), note=note)


class Wrote(NamedTuple):
    """What went into a file."""

    problems: int
    rows: int
    tokens: int
    """Distinct ones; 0 where nobody counted."""


def write(
    groups: Iterable[Sequence[LabelledSolution]],
    out: Path,
    *,
    limit: float | None = None,
    size: Callable[[Sequence[LabelledSolution]], int] = lambda group: 0,
    without: frozenset[str] = frozenset(),
) -> Wrote:
    """Groups of labelled solutions, one a problem, until there are as many tokens as are wanted.

    Args:
        groups: in the order in which they are taken.
        out: the file.
        limit: tokens; None takes all.
        size: distinct tokens of a group.
        without: texts of problems that are held out.
    """
    problems = rows = tokens = 0
    with atomic_rows(out) as line:
        for group in groups:
            if limit is not None and tokens >= limit:
                break
            kept = [row for row in group if row.solution.problem.text not in without]
            for row in kept:
                line(to_row(row))
            problems, rows, tokens = problems + bool(kept), rows + len(kept), tokens + size(kept)
    return Wrote(problems=problems, rows=rows, tokens=tokens)


def coarsen(example: Example, share: float, seed: int) -> Example:
    """Join a step with the one after, with the probability `share`, so that a grader sees steps of many lengths.

    Whether a border goes is decided by the text before it: solutions that share a prefix keep sharing it. A joined step has the target of
    its last part, which is sound up to the first error only, so a border right after a wrong step stays, as does one at an
    observation.
    """
    steps: list[Step] = []
    targets: list[Target | None] = []
    text = ""
    for i, (step, target) in enumerate(zip(example.solution.steps, example.targets, strict=True)):
        text = f"{text.rstrip()} {step.text.lstrip()}" if text else step.text
        stays = (
            i == len(example.targets) - 1
            or bool(step.observation.strip())
            or (target is not None and target.value == 0.0)
        )
        prefix = "\x00".join([str(seed), example.solution.problem.text, *example.solution.texts[: i + 1]])
        draw = int.from_bytes(hashlib.sha256(prefix.encode()).digest()[:4], "big") / 2**32
        if stays or draw >= share:
            steps.append(Step(text=text, observation=step.observation))
            targets.append(target)
            text = ""
    solution = replace(example.solution, steps=tuple(steps), split=None)
    return replace(example, solution=solution, targets=tuple(targets))


def rated(file: Path, seed: int) -> list[list[LabelledSolution]]:
    """PRM800K's ratings by problem, as `stepmark train` reads them, half of the borders between steps taken away."""
    return [
        [
            LabelledSolution(
                solution=example.solution,
                judgements=tuple(
                    ()
                    if t is None
                    else (Judgement(kind="correctness", judge="human", rating=1 if t.value else -1),)
                    for t in example.targets
                ),
            )
            for example in (coarsen(one, JOINED, seed) for one in group)
        ]
        for group in by_problem(examples(read_labelled(file)))
    ]


def whole(right: LabelledSolution | None, wrong: LabelledSolution | None) -> list[LabelledSolution]:
    """A right solution and one that ends at its first error, every step judged; none unless there are both."""
    if right is None or wrong is None:
        return []
    pairs: tuple[tuple[LabelledSolution, Literal[-1, 1]], ...] = ((right, 1), (wrong, -1))
    return [
        LabelledSolution(
            solution=row.solution,
            judgements=tuple(
                (Judgement(kind="correctness", judge="recipe", rating=rating if at == last else 1),)
                for at in range(last + 1)
            ),
        )
        for row, rating in pairs
        for last in (len(row.solution.steps) - 1,)
    ]


def held_contrast(worked: Worked, rng: random.Random) -> list[LabelledSolution]:
    """The worked solution in prose, and one of its wrong branches."""
    rows = list(contrasts(worked, rng, changed=0.0, joined=JOINED))
    good = [row for row in rows if _last(row) == 1]
    bad = [row for row in rows if _last(row) == -1]
    return whole(
        max(good, key=lambda row: len(row.solution.steps), default=None), rng.choice(bad) if bad else None
    )


def held_rated(
    group: Sequence[LabelledSolution], finished: frozenset[str], rng: random.Random
) -> list[LabelledSolution]:
    """A right solution that comes to its end, and one that ends at an error.

    Args:
        group: of one problem.
        finished: last words of PRM800K's right solutions.
        rng: chooses.
    """
    good = [row for row in group if _last(row) == 1 and row.solution.steps[-1].text.endswith(tuple(finished))]
    bad = [row for row in group if _last(row) == -1]
    return whole(rng.choice(good) if good else None, rng.choice(bad) if bad else None)


def _last(row: LabelledSolution) -> int | None:
    judged = row.judgements[-1]
    return judged[0].rating if judged else None


def _tokens_of(base: str) -> Callable[[Sequence[LabelledSolution]], int]:
    """How many distinct tokens the trees of a group hold, as training packs them."""
    from stepmark.models.backbone import load_tokenizer
    from stepmark.models.encoding import Encoder
    from stepmark.models.places import find_checkpoint
    from stepmark.training.examples import Dropped, by_problem, examples
    from stepmark.training.net import layout_for
    from stepmark.training.packing import items_of

    tokenizer = load_tokenizer(find_checkpoint(base))
    encoder = Encoder(
        tokenizer, layout_for(tokenizer, mark=None, layout="auto", marked=True), max_tokens=MAX_TOKENS
    )

    def size(group: Sequence[LabelledSolution]) -> int:
        ready = examples(LabelledRow(labelled=row, where="") for row in group)
        return sum(
            len(item.tree)
            for one in by_problem(ready)
            for item in items_of(one, encoder, budget=2 * MAX_TOKENS, dropped=Dropped())
        )

    return size


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path)
    parser.add_argument("--gsm8k", type=Path, required=True)
    parser.add_argument("--svamp", type=Path)
    parser.add_argument("--prm800k", type=Path)
    parser.add_argument("--samples", type=Path, nargs="+", action="extend", default=[])
    parser.add_argument("--candidates", type=Path)
    parser.add_argument(
        "--train-on-candidates", action="store_true", help="their training part joins the samples"
    )
    parser.add_argument("--taught", type=Path, help="rows of the problems that default_prm_teacher.py used")
    parser.add_argument("--benchmark", type=Path, nargs="+", action="extend", default=[])
    parser.add_argument("--test", type=Path, nargs="+", action="extend", default=[])
    parser.add_argument("--tokens", type=int)
    parser.add_argument("--passes", type=int, default=1, help="trees of errors a worked problem")
    parser.add_argument("--held-out", type=int, default=0, help="problems of GSM8K, and as many of PRM800K")
    parser.add_argument("--base", default="stepmark:smollm2-135m-instruct", help="whose tokens are counted")
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    asked.out.mkdir(parents=True, exist_ok=True)
    size = (lambda group: 0) if asked.tokens is None else _tokens_of(asked.base)

    benchmark, tests = Problems(asked.benchmark), Problems(asked.test)

    def is_new(source: str, items: Iterable[Item], text: Callable[[Item], str]) -> list[Item]:
        """What is of no benchmark's and no test set's problem."""
        every = list(items)
        new = [item for item in every if text(item) not in benchmark and text(item) not in tests]
        if len(new) < len(every):
            print(
                f"{source}: left out {len(every) - len(new):,} of {len(every):,}, of problems that are tested on"
            )
        return new

    held: list[LabelledSolution] = []
    gsm8k = is_new("gsm8k", enumerate(read_gsm8k(asked.gsm8k)), lambda item: item[1].problem.text)
    worked = {normal(item.problem.text): ["\n".join(item.lines)] for _, item in gsm8k}
    gsm8k_held: set[int] = set()
    if asked.tokens is not None or asked.held_out:
        # By chance: cut short, the first problems of a file are no fair share of it.
        random.Random(asked.seed).shuffle(gsm8k)
    for number, one in gsm8k:
        if len(gsm8k_held) == asked.held_out:
            break
        pair = held_contrast(one, random.Random(-1 - number))
        held += pair
        gsm8k_held |= {number} if pair else set()
    sources: dict[str, Iterable[Sequence[LabelledSolution]]] = {
        "gsm8k": _contrasts(((n, w) for n, w in gsm8k if n not in gsm8k_held), asked.seed, asked.passes)
    }
    if asked.svamp is not None:
        svamp = is_new("svamp", enumerate(read_svamp(asked.svamp)), lambda item: item[1].problem.text)
        worked |= {normal(item.problem.text): ["\n".join(item.lines)] for _, item in svamp}
        if asked.tokens is not None:
            random.Random(asked.seed).shuffle(svamp)
        sources["svamp"] = _contrasts(svamp, asked.seed, asked.passes)
    if asked.prm800k is not None:
        groups = is_new(
            "prm800k", rated(asked.prm800k, asked.seed), lambda group: group[0].solution.problem.text
        )
        random.Random(asked.seed).shuffle(groups)
        finished = frozenset(
            row.solution.steps[-1].text.strip()
            for row in read_labelled(asked.prm800k)
            if isinstance(row.meta.get("prm800k"), dict) and row.meta["prm800k"].get("solution")
        )
        rest: list[list[LabelledSolution]] = []
        count = 0
        for number, group in enumerate(groups):
            pair = held_rated(group, finished, random.Random(number)) if count < asked.held_out else []
            held, count = held + pair, count + bool(pair)
            if not pair:
                rest.append(group)
        sources["prm800k"] = rest
    samples: list[Mapping[str, Any]] = is_new(
        "samples",
        (row.data for file in asked.samples for row in read_rows(str(file))),
        lambda row: str(row["problem"]),
    )
    if asked.candidates is not None:
        parts = candidates(asked.candidates, benchmark, Problems([asked.taught]) if asked.taught else None)
        if asked.train_on_candidates:
            samples += parts["training"]
        with atomic_rows(asked.out / "threshold.jsonl") as line:
            for row in parts["threshold"]:
                line(row)
        names = sorted({row["problem"] for row in parts["best-of-N"]})
        (asked.out / "best_of_n.txt").write_text("".join(f"{name}\n" for name in names))
        print("candidates: " + ", ".join(f"{len(rows):,} samples for {part}" for part, rows in parts.items()))
    if samples:
        grouped = sampled(samples, worked)
        random.Random(asked.seed).shuffle(grouped)
        sources["samples"] = grouped
    without = frozenset(row.solution.problem.text for row in held)
    if held:
        wrote = write([held], asked.out / "held_out.jsonl")
        print(f"held out: {wrote.rows} solutions of {len(without)} problems")
    tokens = 0
    # The smallest share first: what a source lacks goes to those after it.
    ordered = sorted(sources, key=SHARES.__getitem__)
    together = sum(SHARES[name] for name in ordered)
    for at, name in enumerate(ordered):
        left = sum(SHARES[other] for other in ordered[at:])
        limit = (
            None
            if asked.tokens is None
            else SHARES[name] * max(asked.tokens / together, (asked.tokens - tokens) / left)
        )
        wrote = write(sources[name], asked.out / f"{name}.jsonl", limit=limit, size=size, without=without)
        tokens += wrote.tokens
        counted = f", {wrote.tokens:,} tokens" if asked.tokens is not None else ""
        print(f"{name}: {wrote.rows:,} rows of {wrote.problems:,} problems{counted}", flush=True)
    if asked.tokens is not None:
        print(f"together: {tokens:,} distinct tokens")


if __name__ == "__main__":
    main()
