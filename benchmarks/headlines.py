"""What papers say of PRMs, tried with models that are trained here, in a world where every step is known to be right or wrong.

`python -m benchmarks.headlines [--quick] [--out headlines] [--only ROW …]`. The problems are those of `stepmark:arithmetic` (`--steps 3 6 --largest 99
--surface formula`), the solutions its own, the base of all graders `stepmark:calculator`. Problems of training and test are of different seeds.
Everything lies in the folder `out`; the same command resumes a killed run. Intervals: a paired bootstrap over test problems. A claim "holds" where the
interval of its difference is above 0, "does not hold" where it is below, and is "open" where it contains 0.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch

import stepmark
from benchmarks.common import benchmark_parser, finish
from benchmarks.label import measured
from stepmark.errors import InputError
from stepmark.labels.bayes import BayesianSearch
from stepmark.labels.labellers import label
from stepmark.labels.labelling import Labeller, Labelling, Rollouts
from stepmark.labels.rollout import BinarySearch, EveryStep
from stepmark.metrics.aggregate import aggregate
from stepmark.metrics.binary import auc
from stepmark.metrics.first_error import first_errors
from stepmark.metrics.intervals import Floats, Statistic, bootstrap, ratio_statistic, shares
from stepmark.problems.arithmetic import read_arithmetic
from stepmark.problems.arithmetic_world import ArithmeticPolicy, true_labels, wrong_solutions
from stepmark.records import Solution
from stepmark.training import ImplicitCrossEntropy, Training
from stepmark.training.examples import LabelRules
from stepmark.training.objectives.base import StepObjective
from stepmark.training.objectives.steps import HardLabels, Outcome, SoftLabels
from stepmark.verifiers.base import BatchVerifier, load_verifier

POLICY, BASE = "stepmark:arithmetic", "stepmark:calculator"
MOST = 16


Difference = tuple[float, float, float]
"""Value, low and high end of its interval."""


@dataclass(frozen=True, kw_only=True)
class Size:
    """How much is computed."""

    problems: int = 300
    """Training problems, eight solutions each."""
    rollouts: int = 120
    """Of them, those whose first four solutions are labelled by rollouts."""
    test: int = 200
    search: int = 100
    first_errors: int = 150
    epochs: int = 5


QUICK = Size(problems=60, rollouts=20, test=60, search=30, first_errors=40, epochs=3)


@dataclass(frozen=True, kw_only=True)
class Row:
    """A claim and what was measured."""

    claim: str
    source: str
    measured: str
    difference: Difference
    """In points or as the claim has it: value, low, high. Above 0 means that the claim holds."""

    @property
    def verdict(self) -> str:
        """What the interval says of the claim."""
        _, low, high = self.difference
        return "holds" if low > 0 else "does not hold" if high < 0 else "open"

    def line(self) -> str:
        """The row of a Markdown table."""
        value, low, high = self.difference
        return f"| {self.claim} | {self.source} | {self.measured} | {value:+.1f} [{low:+.1f}, {high:+.1f}] | {self.verdict} |"


def lines_of(text: str) -> tuple[str, ...]:
    """The steps of a solution of the tiny policy: its lines."""
    return tuple(line for line in text.split("\n") if line.strip())


def known_labels(problem: str, steps: Sequence[str]) -> list[bool]:
    """Whether each step is right in itself, up to the first that is not; a line that says nothing readable is wrong."""
    asked, labels = read_arithmetic(problem), list[bool]()
    for end in range(1, len(steps) + 1):
        try:
            labels.append(true_labels(asked, steps[:end])[0][-1])
        except InputError:
            labels.append(False)
        if not labels[-1]:
            break
    return labels


def interval(column: Floats, over: Floats | None = None) -> Difference:
    """The sum of one column over the sum of another (none: the mean), with its bootstrap interval, in points."""
    below = np.ones(len(column)) if over is None else over
    return _points(ratio_statistic({"value": (column, below)}), len(column))


def _points(statistic: Statistic, count: int) -> Difference:
    found = bootstrap(statistic, range(count))["value"]
    assert found.value is not None
    # A difference that is 0 on every problem has no interval.
    low, high = (found.value if end is None else end for end in (found.low, found.high))
    return 100 * found.value, 100 * low, 100 * high


def percent(column: Floats) -> str:
    """A mean in percent."""
    return f"{100 * float(column.mean()):.1f}"


class World:
    """Problems, solutions, labels and graders, each made once and kept in the folder."""

    def __init__(self, base: str, out: Path, size: Size) -> None:
        self.base, self.out, self.size = base, out, size
        out.mkdir(parents=True, exist_ok=True)

    def _problems(self, name: str, count: int, seed: int) -> Path:
        file = self.out / f"{name}.jsonl"
        if not file.is_file():
            stepmark.ArithmeticWorld.make_problems(
                count=count, out=file, steps=(3, 6), surface="formula", largest=99, seed=seed
            )
        return file

    def _sampled(self, name: str, count: int, seed: int, n: int) -> list[dict[str, Any]]:
        file = self.out / f"{name}-{n}.jsonl"
        stepmark.sample(
            self._problems(name, count, seed),
            POLICY,
            n=n,
            temperature=1.0,
            verifier="number",
            out=file,
            progress=False,
        )
        return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]

    @cached_property
    def training(self) -> list[dict[str, Any]]:
        """Solutions of the training problems with exact labels up to the first error, and outcomes."""
        rows = []
        for row in self._sampled("train", self.size.problems, 1, 8):
            steps = lines_of(row["solution"])
            labels = known_labels(row["problem"], steps)
            unknown = [None] * (len(steps) - len(labels))
            rows.append(
                {
                    "problem": row["problem"],
                    "steps": list(steps),
                    "labels": [*labels, *unknown],
                    "meta": {"outcome": bool(row["meta"]["outcome"])},
                    "id": row["id"],
                }
            )
        return rows

    @cached_property
    def tested(self) -> list[dict[str, Any]]:
        """Sixteen solutions of each test problem, one after the other."""
        return self._sampled("test", self.size.test, 2, MOST)

    @cached_property
    def groups(self) -> list[list[int]]:
        """Places in `tested`, by problem."""
        groups = defaultdict(list)
        for at, row in enumerate(self.tested):
            groups[row["problem"]].append(at)
        return list(groups.values())

    @cached_property
    def right(self) -> Floats:
        """1 where the answer is right."""
        return np.array([float(bool(row["meta"]["outcome"])) for row in self.tested])

    @cached_property
    def known(self) -> list[list[bool]]:
        """Exact labels of the test solutions."""
        return [known_labels(row["problem"], lines_of(row["solution"])) for row in self.tested]

    @cached_property
    def rollouts(self) -> list[Labelling]:
        """Some training solutions, labelled by four rollouts a step; their rows are in `rollouts.jsonl`."""
        first, seen = list[dict[str, Any]](), defaultdict[str, int](int)
        for row in self.training:
            if len(seen) == self.size.rollouts and row["problem"] not in seen:
                break
            seen[row["problem"]] += 1
            if seen[row["problem"]] <= 4:
                first.append(row)
        lines = (self.out / "train.jsonl").read_text(encoding="utf-8").splitlines()
        answers = {problem["problem"]: problem["answer"] for problem in map(json.loads, lines)}
        asked = [
            {key: row[key] for key in ("problem", "steps", "id")} | {"answer": answers[row["problem"]]}
            for row in first
        ]
        return list(
            stepmark.label(
                asked,
                POLICY,
                method=EveryStep(k=4, how=Rollouts(temperature=1.0)),
                verifier="number",
                out=self.out / "rollouts.jsonl",
                progress=False,
            )
        )

    def exact_of(self, labellings: Iterable[Labelling]) -> list[dict[str, Any]]:
        """The same solutions, exactly labelled."""
        ids = {one.labelled.solution.id for one in labellings}
        return [row for row in self.training if row["id"] in ids]

    def grader(self, name: str, rows: Sequence[Mapping[str, Any]] | Path, objective: Any) -> Scores:
        """A grader trained on rows, and what it makes of the test solutions."""
        kept = self.out / f"{name}.scores.json"
        if not kept.is_file():
            # Small sets are read more often, so that all are fitted.
            count = len(self.rollouts) if isinstance(rows, Path) else len(rows)
            times = max(1.0, min(6.0, (len(self.training) / count) ** 0.5))
            step = isinstance(objective, StepObjective)
            done = stepmark.train(
                str(rows) if isinstance(rows, Path) else list(rows),
                base=self.base,
                out=self.out / name,
                objective=objective,
                rules=LabelRules(labels="value" if isinstance(rows, Path) else "auto"),
                training=Training(
                    full=True, learning_rate=5e-4, head_rate=20 if step else 1, mark="\n", dtype="float32",
                    epochs=round(self.size.epochs * times), held_out=0, token_budget=1024 if times < 2 else 512,
                ),
                progress=False,
            )  # fmt: skip
            scores = _graded(done.folder, self.tested)
            kept.write_text(json.dumps(scores), encoding="utf-8")
        return Scores(world=self, name=name, steps=json.loads(kept.read_text(encoding="utf-8")))

    def process(
        self, name: str, rows: Sequence[Mapping[str, Any]] | Path, kind: type[HardLabels] = HardLabels
    ) -> Scores:
        """A PRM: token features, and language modelling of right steps beside the labels."""
        return self.grader(name, rows, kind(token_features=True, language_weight=1.0, language_tokens="all"))

    @cached_property
    def prm(self) -> Scores:
        """The PRM of all training solutions with exact labels."""
        return self.process("prm", self.training)

    @cached_property
    def orm(self) -> Scores:
        """The outcome model of the same solutions, with the same head."""
        return self.grader("orm", self.training, Outcome(token_features=True))

    def chosen(self, scores: Floats, n: int) -> Floats:
        """For each test problem, whether the solution with the highest score of the first n is right."""
        return np.array([self.right[max(group[:n], key=lambda at: scores[at])] for group in self.groups])

    def voted(self, n: int) -> Floats:
        """For each test problem, the chance that a majority vote of the first n is right, ties drawn."""
        found = []
        for group in self.groups:
            counts = defaultdict[str, list[float]](list)
            for at in group[:n]:
                counts[lines_of(self.tested[at]["solution"])[-1]].append(self.right[at])
            most = max(map(len, counts.values()))
            found.append(float(np.mean([right[0] for right in counts.values() if len(right) == most])))
        return np.array(found)

    def oracle(self, n: int) -> Floats:
        """For each test problem, whether any of the first n is right."""
        return np.array([max(self.right[at] for at in group[:n]) for group in self.groups])


def _graded(folder: Path, tested: Sequence[Mapping[str, Any]]) -> list[list[float]]:
    prm = stepmark.load_prm(str(folder), dtype="float32")
    solutions = (Solution.of(row["problem"], lines_of(row["solution"])) for row in tested)
    return [
        [score for score in cast("Any", result).scores if score is not None]
        for result in prm.score_many(solutions)
    ]


@dataclass(frozen=True, kw_only=True)
class Scores:
    """What a grader makes of the test solutions."""

    world: World
    name: str
    steps: list[list[float]]

    def whole(self, how: str = "min") -> Floats:
        """One number a solution."""
        return np.array([scores[-1] if len(scores) == 1 else _made(scores, how) for scores in self.steps])

    def best(self, n: int = MOST, how: str = "min") -> Floats:
        """See `World.chosen`."""
        return self.world.chosen(self.whole(how), n)

    @property
    def auc(self) -> float:
        """Of right steps against first errors."""
        pairs = [
            (s, k)
            for scores, known in zip(self.steps, self.world.known, strict=True)
            for s, k in zip(scores, known, strict=False)
        ]
        return float(auc([s for s, _ in pairs], [float(k) for _, k in pairs]))

    @property
    def f1(self) -> float:
        """Of first errors at 0.5."""
        truth = [known.index(False) if False in known else -1 for known in self.world.known]
        return first_errors(self.steps, truth, 0.5).f1


def _made(scores: Sequence[float], how: str) -> float:
    made = aggregate(scores, how, kind="unbounded" if how in ("min", "last", "mean") else "probability")
    assert made is not None
    return made


def best_of_n(world: World) -> list[Row]:
    prm, orm = world.prm, world.orm
    for n in (1, 2, 4, 8, MOST):
        print(
            f"best of {n:2}: vote {percent(world.voted(n))}, outcome model {percent(orm.best(n))}, PRM {percent(prm.best(n))}, any right {percent(world.oracle(n))}"
        )
    vote, outcome, process = world.voted(MOST), orm.best(), prm.best()
    way = float((process - vote).mean() / (world.oracle(MOST) - vote).mean())
    print(
        f"PRM: AUC of steps {prm.auc:.4f}, first-error F1 {prm.f1:.3f}, {100 * way:.0f} % of the way from vote to any right"
    )
    lightman = "Lightman et al. 2023, figure 3"
    seen = f"vote {percent(vote)}, outcome model {percent(outcome)}, PRM {percent(process)} % of {len(vote)} problems"
    grown = (process - vote) - (prm.best(4) - world.voted(4))
    return [
        Row(claim="best of 16: a PRM chooses better than the vote", source=lightman, measured=seen, difference=interval(process - vote)),
        Row(claim="… and better than an outcome model", source=lightman, measured="the same", difference=interval(process - outcome)),
        Row(claim="an outcome model chooses better than the vote", source=lightman, measured="the same", difference=interval(outcome - vote)),
        Row(claim="the PRM's lead over the vote grows from N = 4 to 16", source=lightman,
            measured=f"{100 * float((prm.best(4) - world.voted(4)).mean()):.1f}, then {100 * float((process - vote).mean()):.1f} points", difference=interval(grown)),
    ]  # fmt: skip


def fewer_labels(world: World) -> list[Row]:
    rows = []
    problems = list(dict.fromkeys(row["problem"] for row in world.training))
    table = []
    for share in (20, 5):
        some = set(problems[: max(2, len(problems) // share)])
        part = [row for row in world.training if row["problem"] in some]
        prm = world.process(f"prm-{share}", part)
        table.append((len(part), prm))
        print(f"{len(part)} labelled solutions: PRM {percent(prm.best())}, AUC {prm.auc:.4f}")
    outcome = world.orm.best()
    for count, prm in table:
        rows.append(
            Row(claim=f"a PRM of {count} labelled solutions beats an outcome model of {len(world.training)}", source="Lightman et al. 2023, figure 4",
                measured=f"{percent(prm.best())} against {percent(outcome)} %", difference=interval(prm.best() - outcome))
        )  # fmt: skip
    return rows


def rollout_labels(world: World) -> list[Row]:
    rows = world.rollouts
    exact = world.process("prm-exact-few", world.exact_of(rows))
    file = world.out / "rollouts.jsonl"
    hard, soft = (
        world.process("prm-rollouts-hard", file),
        world.process("prm-rollouts-soft", file, SoftLabels),
    )
    for one in (exact, hard, soft):
        print(
            f"{one.name}: product {percent(one.best(how='product'))}, minimum {percent(one.best())}, AUC {one.auc:.4f}"
        )
    vote, count = world.voted(MOST), f"{len(rows)} solutions, 4 rollouts a step"
    product = {one.name: one.best(how="product") for one in (exact, hard, soft)}
    known, firm, shared = product.values()
    return [
        Row(claim="a PRM of rollouts chooses better than the vote, by the product", source="Wang et al. 2023 (Math-Shepherd)",
            measured=f"{percent(firm)} against {percent(vote)} %; {count}", difference=interval(firm - vote)),
        Row(claim="rollouts train a PRM within 5 points of exact labels, by the product", source="Wang et al. 2023 (Math-Shepherd)",
            measured=f"{percent(firm)} against {percent(known)} %", difference=interval(firm - known + 0.05)),
        Row(claim="… by the minimum", source="Wang et al. 2023 (Math-Shepherd)",
            measured=f"{percent(hard.best())} against {percent(exact.best())} %", difference=interval(hard.best() - exact.best() + 0.05)),
        Row(claim="hard labels of rollouts train better than soft ones, by the product", source="Zhang et al. 2025, section 3.1.4",
            measured=f"{percent(firm)} against {percent(shared)} %", difference=interval(firm - shared)),
    ]  # fmt: skip


def fewer_tokens(world: World) -> list[Row]:
    cases = list(wrong_solutions(world.size.first_errors, seed=0))
    truth = np.array([case.first_error for case in cases])
    columns = {}
    methods: dict[str, Labeller] = {
        "every step": EveryStep(k=8),
        "binary": BinarySearch(k=8),
        "bayes": BayesianSearch(max_rollouts=16, at_budget="guess"),
    }
    for name, labeller in methods.items():
        with load_verifier("number") as verifier:
            found = list(
                label((c.solution for c in cases), labeller, ArithmeticPolicy(), BatchVerifier(verifier))
            )
        columns[name] = measured(found, truth)
        print(
            f"{name}: exact {percent(columns[name]['exact'])} %, {columns[name]['tokens'].mean():.0f} tokens"
        )
    rows = []
    for name, other, source in (
        ("binary", "every step", "Luo et al. 2024 (OmegaPRM)"),
        ("bayes", "binary", "ours"),
    ):
        a, b = columns[name], columns[other]
        saved = interval(b["tokens"] - a["tokens"], b["tokens"])
        rows.append(
            Row(claim=f"{name} search finds the first error for fewer tokens than {other}", source=source,
                measured=f"{percent(a['exact'])} against {percent(b['exact'])} % exact; % of tokens saved",
                difference=saved)
        )  # fmt: skip
    return rows


def aggregates(world: World) -> list[Row]:
    least, product = world.prm.best(how="min"), world.prm.best(how="product")
    spread = interval(product - least)
    return [
        Row(claim="product and minimum differ by less than 3 points", source="Lightman et al. 2023, table 4",
            measured=f"product {percent(product)}, minimum {percent(least)} %; 3 minus the distance",
            difference=(3 - abs(spread[0]), 3 - max(abs(spread[1]), abs(spread[2])), 3 - (0 if spread[1] < 0 < spread[2] else min(abs(spread[1]), abs(spread[2]))))),
    ]  # fmt: skip


def implicit(world: World) -> list[Row]:
    free = world.grader("implicit", world.training, ImplicitCrossEntropy(beta=0.5))
    vote = world.voted(MOST)
    chosen = world.chosen(np.array([scores[-1] for scores in free.steps]), MOST)
    print(
        f"implicit: last score {percent(chosen)}, minimum {percent(free.best())}, AUC {free.auc:.4f}, F1 {free.f1:.3f}"
    )
    return [
        Row(claim="an implicit PRM, of outcomes alone, chooses better than the vote", source="Yuan et al. 2024",
            measured=f"{percent(chosen)} against {percent(vote)} %", difference=interval(chosen - vote)),
        Row(claim="… and a PRM of step labels finds errors better (AUC)", source="Yuan et al. 2024; ProcessBench 2024",
            measured=f"{100 * world.prm.auc:.1f} against {100 * free.auc:.1f}", difference=_auc_gap(world.prm, free)),
    ]  # fmt: skip


def _auc_gap(a: Scores, b: Scores) -> Difference:
    """AUC of a above that of b in points, problems drawn."""
    world, gaps = a.world, []
    dice = np.random.default_rng(0)
    parts = []
    for group in world.groups:
        pairs = [
            (x, y, k)
            for at in group
            for x, y, k in zip(a.steps[at], b.steps[at], world.known[at], strict=False)
        ]
        parts.append(np.array(pairs, dtype=float).reshape(-1, 3))
    for _ in range(300):
        drawn = np.concatenate([parts[at] for at in dice.integers(0, len(parts), len(parts))])
        gaps.append(_auc(drawn, 0) - _auc(drawn, 1))
    return 100 * (a.auc - b.auc), 100 * float(np.quantile(gaps, 0.025)), 100 * float(np.quantile(gaps, 0.975))


def _auc(pairs: Floats, column: int) -> float:
    return float(auc(pairs[:, column].tolist(), pairs[:, 2].tolist()))


def searches(world: World) -> list[Row]:
    file = world._problems("test", world.size.test, 2)
    problems = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()][
        : world.size.search
    ]
    assert world.prm.name == "prm"
    answers = {problem["problem"]: problem["answer"] for problem in problems}
    right: dict[str, Floats] = {}
    for method, settings in (("beam", ["width=2", "expand=2"]), ("best-of-n", ["n=4"])):
        found = list(
            stepmark.search(
                problems,
                POLICY,
                str(world.out / "prm"),
                method=method,
                settings=[*settings, "how.temperature=1"],
                verifier="number",
                out=world.out / f"{method}.jsonl",
                progress=False,
            )
        )
        right[method] = np.array(
            [
                float(one.solution is not None and one.solution.answer == answers[one.problem.text])
                for one in found
            ]
        )
        tokens = sum(one.cost.decoded or 0 for one in found) / len(found)
        print(f"{method}: {percent(right[method])} %, {tokens:.0f} tokens a problem")
    return [
        Row(
            claim="beam search (2 beams of 2 steps) beats best of 4",
            source="Snell et al. 2024",
            measured=f"{percent(right['beam'])} against {percent(right['best-of-n'])} % of {len(problems)} problems",
            difference=interval(right["beam"] - right["best-of-n"]),
        )
    ]


def rankings(world: World) -> list[Row]:
    """Graders by what finds errors, and by what chooses: every grader that was trained here."""
    names = sorted(file.name.removesuffix(".scores.json") for file in world.out.glob("*.scores.json"))
    graders = [
        Scores(
            world=world,
            name=name,
            steps=json.loads((world.out / f"{name}.scores.json").read_text(encoding="utf-8")),
        )
        for name in names
    ]
    graders = [one for one in graders if max(map(len, one.steps)) > 1]
    if len(graders) < 4:
        return []
    choices = np.array([one.best() for one in graders])
    aucs = np.array([one.auc for one in graders])
    best, finder = int(choices.mean(1).argmax()), int(aucs.argmax())
    print(
        *(
            f"{one.name}: best of 16 {percent(c)}, AUC {100 * a:.2f}"
            for one, c, a in zip(graders, choices, aucs, strict=True)
        ),
        sep="\n",
    )
    return [
        Row(
            claim="the PRM that chooses best is not the one with the highest AUC of steps",
            source="Zheng et al. 2024 (ProcessBench)",
            measured=f"of {len(graders)}: {graders[best].name} chooses best, {graders[finder].name} finds errors best",
            difference=interval(choices[best] - choices[finder]),
        )
    ]


def consensus(world: World) -> list[Row]:
    """First errors by rollouts, by false calculations (a judge of one kind of error), and where the two agree."""
    rows = world.rollouts
    truth, by_rollout, by_check = [], [], []
    for labelling, exact in zip(rows, world.exact_of(rows), strict=True):
        labels = [label for label in exact["labels"] if label is not None]
        truth.append(labels.index(False) if False in labels else -1)
        by_rollout.append(labelling.first_error)
        found = stepmark.check(exact["problem"], exact["steps"])
        by_check.append(min((one.step for one in found), default=-1))
    same = [a == b for a, b in zip(by_rollout, by_check, strict=True)]
    alone = np.array([float(a == t) for a, t in zip(by_rollout, truth, strict=True)])
    agreed = np.array(same)
    print(
        f"rollouts right in {percent(alone)} %, where both agree ({percent(agreed.astype(float))} % of the solutions) {percent(alone[agreed])} %"
    )

    def gained(weights: Floats) -> dict[str, Floats]:
        among = shares(weights @ (alone * agreed), weights @ agreed.astype(float))
        return {"value": among - shares(weights @ alone, weights.sum(axis=1))}

    return [
        Row(
            claim="where rollouts and a second judge agree, first errors are labelled better",
            source="Zhang et al. 2025",
            measured=f"{percent(alone[agreed])} against {percent(alone)} % right; they agree on {percent(agreed.astype(float))} %",
            difference=_points(gained, len(alone)),
        )
    ]


ROWS: dict[str, Callable[[World], list[Row]]] = {
    "best-of-n": best_of_n,
    "fewer-labels": fewer_labels,
    "rollouts": rollout_labels,
    "first-errors": fewer_tokens,
    "aggregates": aggregates,
    "implicit": implicit,
    "searches": searches,
    "consensus": consensus,
    "rankings": rankings,
}


def main() -> None:
    parser = benchmark_parser(__doc__, quick="fewer problems and solutions")
    parser.add_argument("--out", type=Path, default=Path("headlines"))
    parser.add_argument("--base", default=BASE, help="the base of all graders")
    parser.add_argument("--only", nargs="*", choices=list(ROWS), default=list(ROWS))
    asked = parser.parse_args()
    torch.set_num_threads(min(2, torch.get_num_threads()))
    world = World(
        asked.base, asked.out / ("quick" if asked.quick else "full"), QUICK if asked.quick else Size()
    )
    rows: list[Row] = []
    for name in asked.only:
        rows += ROWS[name](world)
    print("\n| claim | source | measured here | difference | |\n| --- | --- | --- | ---: | --- |")
    print(*(row.line() for row in rows), sep="\n")
    figures = {row.claim: row.difference[0] for row in rows}
    finish("headlines", figures, {})


if __name__ == "__main__":
    main()
