"""What papers say of PRMs, tried with models that are trained here, in a world where every step is known to be right or wrong.

`python -m benchmarks.headlines [--quick] [--out headlines] [--only ROW …] [--page docs/headlines.md]`. The problems are those of `stepmark:arithmetic`
(`--steps 3 6 --largest 99 --surface formula`), the solutions its own, the base of all graders `stepmark:calculator`. Problems of training and test are of
different seeds. Everything lies in the folder `out`; the same command resumes a killed run, and rows that are finished are read. Intervals: a paired
bootstrap over test problems. A claim "holds" where the interval of its difference is above 0, "does not hold" where it is below, and is "open" where it
contains 0. `--page` writes all finished rows as a page.
"""

from __future__ import annotations

import json
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
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
from stepmark.rl import GRPO, PolicyTraining, ProcessGRPO
from stepmark.rl.credit import Credit
from stepmark.store import atomic_write
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
    updates: int = 40
    """Of policies, with 64 solutions each."""


QUICK = Size(problems=60, rollouts=20, test=60, search=30, first_errors=40, epochs=3, updates=4)


@dataclass(frozen=True, kw_only=True)
class Row:
    """A claim and what was measured."""

    claim: str
    source: str
    measured: str
    difference: Difference
    """In points or as the claim has it: value, low, high. Above 0 means that the claim holds."""
    thought: str = ""
    """What we think of it."""

    @property
    def verdict(self) -> str:
        """What the interval says of the claim."""
        _, low, high = self.difference
        return "holds" if low > 0 else "does not hold" if high < 0 else "open"

    def line(self) -> str:
        """The row of a Markdown table."""
        value, low, high = self.difference
        return f"| {self.claim} | {self.source} | {self.measured} | {value:+.1f} [{low:+.1f}, {high:+.1f}] | {self.verdict} |"


@dataclass(frozen=True, kw_only=True)
class Block:
    """Rows that are measured together."""

    rows: list[Row]
    notes: list[str]
    """Figures beside them."""


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
        self.notes: list[str] = []
        out.mkdir(parents=True, exist_ok=True)

    def note(self, text: str) -> None:
        """A figure beside the rows."""
        print(text, flush=True)
        self.notes.append(text)

    def block(self, name: str) -> Block:
        """The rows of a name, measured now or read."""
        file = self.out / f"{name}.rows.json"
        if not file.is_file():
            self.notes = []
            block = Block(rows=ROWS[name](self), notes=self.notes)
            with atomic_write(file) as written:
                json.dump(asdict(block), written, indent=1)
        found = json.loads(file.read_text(encoding="utf-8"))
        rows = [Row(**row | {"difference": tuple(row["difference"])}) for row in found["rows"]]
        return Block(rows=rows, notes=found["notes"])

    def _problems(self, name: str, count: int, seed: int) -> Path:
        file = self.out / f"{name}.jsonl"
        if not file.is_file():
            stepmark.ArithmeticWorld.make_problems(
                count=count, out=file, steps=(3, 6), surface="formula", largest=99, seed=seed
            )
        return file

    def sampled_by(
        self, policy: str, name: str, problems: str, count: int, seed: int, n: int
    ) -> list[dict[str, Any]]:
        """Solutions of problems, whose rows are in `NAME-N.jsonl`."""
        file = self.out / f"{name}-{n}.jsonl"
        stepmark.sample(
            self._problems(problems, count, seed),
            policy,
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
        return self.labelled(self.sampled_by(POLICY, "train", "train", self.size.problems, 1, 8))

    def labelled(self, solutions: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Solutions with exact labels up to the first error, and outcomes."""
        rows = []
        for row in solutions:
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
        return self.sampled_by(POLICY, "test", "test", self.size.test, 2, MOST)

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
        world.note(
            f"best of {n}: vote {percent(world.voted(n))}, outcome model {percent(orm.best(n))}, PRM {percent(prm.best(n))}, any right {percent(world.oracle(n))}"
        )
    vote, outcome, process = world.voted(MOST), orm.best(), prm.best()
    way = float((process - vote).mean() / (world.oracle(MOST) - vote).mean())
    world.note(
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
        world.note(f"{len(part)} labelled solutions: PRM {percent(prm.best())}, AUC {prm.auc:.4f}")
    outcome = world.orm.best()
    for count, prm in table:
        rows.append(
            Row(claim=f"a PRM of {count:,} labelled solutions beats an outcome model of {len(world.training):,}", source="Lightman et al. 2023, figure 4",
                measured=f"{percent(prm.best())} against {percent(outcome)} %", difference=interval(prm.best() - outcome),
                thought="It is not worse with a twentieth of the solutions. Over an outcome model of 120 solutions such a PRM is 7.0 points ahead ([the tiny recipe](training.md#measured))." if count < 200 else "")
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
        world.note(
            f"{one.name}: product {percent(one.best(how='product'))}, minimum {percent(one.best())}, AUC {one.auc:.4f}"
        )
    vote, count = world.voted(MOST), f"{len(rows)} solutions, 4 rollouts a step"
    product = {one.name: one.best(how="product") for one in (exact, hard, soft)}
    known, firm, shared = product.values()
    return [
        Row(claim="a PRM of rollouts chooses better than the vote, by the product", source="Wang et al. 2023 (Math-Shepherd)",
            measured=f"{percent(firm)} against {percent(vote)} %; {count}", difference=interval(firm - vote)),
        Row(claim="rollouts train a PRM within 5 points of exact labels, by the product", source="Wang et al. 2023 (Math-Shepherd)",
            measured=f"{percent(firm)} against {percent(known)} %; 5 less the loss", difference=interval(firm - known + 0.05),
            thought="The loss is 3 points of hard labels, and none of soft ones."),
        Row(claim="… by the minimum", source="Wang et al. 2023 (Math-Shepherd)",
            measured=f"{percent(hard.best())} against {percent(exact.best())} %; 5 less the loss", difference=interval(hard.best() - exact.best() + 0.05),
            thought="Labels of rollouts are noisy: one right step that is called doubtful decides the minimum, and the product hardly."),
        Row(claim="hard labels of rollouts train better than soft ones, by the product", source="Zhang et al. 2025, section 3.1.4",
            measured=f"{percent(firm)} against {percent(shared)} %", difference=interval(firm - shared),
            thought="Four rollouts of a policy that solves a third of the problems call a right step wrong where all four fail; a soft label says how sure that is. Zhang et al. had stronger policies and filtered their labels."),
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
        world.note(
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
                difference=saved,
                thought="It pays with exactness: one unlucky batch of rollouts sends it the wrong way." if name == "binary" else "")
        )  # fmt: skip
    return rows


def aggregates(world: World) -> list[Row]:
    rows = []
    soft = world.process("prm-rollouts-soft", world.out / "rollouts.jsonl", SoftLabels)
    for claim, one, thought in (
        ("product and minimum differ by less than 3 points, with exact labels", world.prm, ""),
        (
            "… with labels of rollouts, soft",
            soft,
            "One right step that noisy labels call doubtful decides the minimum.",
        ),
    ):
        least, product = one.best(how="min"), one.best(how="product")
        value, low, high = interval(product - least)
        nearest = 0.0 if low < 0 < high else min(abs(low), abs(high))
        rows.append(
            Row(claim=claim, source="Lightman et al. 2023, table 4", thought=thought,
                measured=f"product {percent(product)}, minimum {percent(least)} %; 3 less the distance",
                difference=(3 - abs(value), 3 - max(abs(low), abs(high)), 3 - nearest))
        )  # fmt: skip
    return rows


def implicit(world: World) -> list[Row]:
    free = world.grader("implicit", world.training, ImplicitCrossEntropy(beta=0.5))
    vote = world.voted(MOST)
    chosen = world.chosen(np.array([scores[-1] for scores in free.steps]), MOST)
    world.note(
        f"implicit: last score {percent(chosen)}, minimum {percent(free.best())}, AUC {free.auc:.4f}, F1 {free.f1:.3f}"
    )
    return [
        Row(claim="an implicit PRM, of outcomes alone, chooses better than the vote", source="Yuan et al. 2024",
            measured=f"{percent(chosen)} against {percent(vote)} %", difference=interval(chosen - vote),
            thought="Its last score sums what the language model gained on every token of the solution, so that likely steps hide one wrong step; the minimum over steps chooses better (below). Yuan et al. trained models of 8 billion weights on more solutions."),
        Row(claim="… and a PRM of step labels finds errors better (AUC)", source="Yuan et al. 2024; ProcessBench 2024",
            measured=f"{100 * world.prm.auc:.1f} against {100 * free.auc:.1f}", difference=auc_gap(pairs_of(world.prm.steps, world.tested), pairs_of(free.steps, world.tested))),
    ]  # fmt: skip


Pairs = list[Floats]
"""For each test problem, rows of a step's score and whether it is right."""


def pairs_of(steps: Sequence[Sequence[float]], tested: Sequence[Mapping[str, Any]]) -> Pairs:
    """Scores of solutions against exact labels, up to the first error, by problem in the order of the solutions."""
    parts = defaultdict[str, list[tuple[float, bool]]](list)
    for scores, row in zip(steps, tested, strict=True):
        known = known_labels(row["problem"], lines_of(row["solution"]))
        parts[row["problem"]] += zip(scores, known, strict=False)
    return [np.array(part, dtype=float).reshape(-1, 2) for part in parts.values()]


def auc_gap(a: Pairs, b: Pairs) -> Difference:
    """AUC of a above that of b in points, problems drawn."""
    dice, every = np.random.default_rng(0), np.arange(len(a))
    draws = [every] + [dice.integers(0, len(a), len(a)) for _ in range(300)]
    value, *gaps = (100 * (_auc(a, drawn) - _auc(b, drawn)) for drawn in draws)
    return value, float(np.quantile(gaps, 0.025)), float(np.quantile(gaps, 0.975))


def _auc(parts: Pairs, drawn: Any) -> float:
    scores, known = np.concatenate([parts[at] for at in drawn]).T
    return float(auc(scores.tolist(), known.tolist()))


def searches(world: World) -> list[Row]:
    """Beam search and, for as many tokens, best of N."""
    file = world._problems("test", world.size.test, 2)
    lines = file.read_text(encoding="utf-8").splitlines()[: world.size.search]
    problems = [json.loads(line) for line in lines]
    assert world.prm.name == "prm"
    length = float(np.mean([row["meta"]["tokens"] for row in world.tested]))
    leads, seen = dict[tuple[bool, int], Floats](), dict[tuple[bool, int], str]()
    for equal, width in ((True, 2), (True, 4), (False, 2), (False, 4)):
        found = list(
            stepmark.search(
                problems,
                POLICY,
                str(world.out / "prm"),
                method="beam",
                settings=[f"width={width}", f"expand={width}", f"merge_equal={str(not equal).lower()}", "how.temperature=1"],
                verifier="number",
                out=world.out / f"beam-{width * width}{'-equal' if equal else ''}.jsonl",
                progress=False,
            )
        )  # fmt: skip
        answered = zip(found, problems, strict=True)
        right = np.array(
            [
                float(one.solution is not None and one.solution.answer == row["answer"])
                for one, row in answered
            ]
        )
        tokens = float(np.mean([cast("int", one.cost.decoded) for one in found]))
        n = min(MOST, max(1, round(tokens / length)))
        best = world.prm.best(n)[: len(problems)]
        leads[equal, width] = right - best
        seen[equal, width] = f"{percent(right)} against {percent(best)} %"
        world.note(
            f"{width} beams of {width} steps, equal steps {'kept' if equal else 'merged'}: {percent(right)} %, {tokens:.0f} tokens a problem; best of {n}: {percent(best)} %, {n * length:.0f} tokens"
        )
    world.note(f"any right of {MOST} samples: {percent(world.oracle(MOST)[: len(problems)])} %")
    snell = "Snell et al. 2024"
    return [
        Row(claim="2 beams of 2 steps beat best of N for the same tokens", source=snell,
            measured=f"{seen[True, 2]} of {len(problems)} problems", difference=interval(leads[True, 2])),
        Row(claim="… and 4 beams of 4 steps", source=snell,
            measured=seen[True, 4], difference=interval(leads[True, 4])),
        Row(claim="the lead of beam search shrinks as the budget grows", source=snell,
            measured="the first lead less the second", difference=interval(leads[True, 2] - leads[True, 4]),
            thought="At large budgets beam search exploits the PRM's errors, and this PRM makes few. Sixteen tries of each step solve problems that none of sixteen whole samples solves."),
        Row(claim="beams that say different things search better than equal ones (4 beams of 4 steps)", source="ours",
            measured=f"{seen[False, 4]}; equal ones {seen[True, 4]}", difference=interval(leads[False, 4] - leads[True, 4]),
            thought="Such beams are those of `merge_equal=true`. Under a PRM that knows which steps are wrong, wrong ones then fill the other beams, and the hard step is tried from one right beam only."),
    ]  # fmt: skip


def policy_after(world: World, name: str, credit: Credit) -> list[dict[str, Any]]:
    """Four solutions of each test problem by a policy that was trained so, in the folder `policy-NAME`."""
    folder = world.out / f"policy-{name}"
    stepmark.train_policy(
        world._problems("policy", 8 * world.size.updates + 8, 7),
        POLICY,
        None if name == "outcome" else str(world.out / "prm"),
        out=folder,
        credit=credit,
        held_out=8,
        training=PolicyTraining(
            updates=world.size.updates,
            problems=8,
            group=8,
            max_tokens=160,
            learning_rate=3e-4,
            evaluate_every=world.size.updates,
        ),
        verifier="number",
        dtype="float32",
        progress=False,
    )
    return world.sampled_by(str(folder), f"policy-{name}", "test", world.size.test, 2, 4)


def rewards(world: World) -> list[Row]:
    """Policies after as many updates."""
    assert world.prm.name == "prm"
    credits: dict[str, Credit] = {
        "outcome": GRPO(),
        "both": ProcessGRPO(process_weight=0.8, shaping="delta"),
        "alone": ProcessGRPO(),
    }
    right = {}
    for name, credit in credits.items():
        rows = policy_after(world, name, credit)
        right[name] = np.array([float(bool(row["meta"]["outcome"])) for row in rows]).reshape(-1, 4).mean(1)
    before = np.array([world.right[group[:4]].mean() for group in world.groups])
    seen = ", ".join(f"{name} {percent(column)}" for name, column in right.items())
    count = 64 * world.size.updates
    world.note(f"accuracy of one sample before {percent(before)} %, after {count:,} rollouts: {seen} %")
    return [
        Row(claim="a PRM's reward beside the outcome's teaches more in as many rollouts of GRPO", source="Wang et al. 2023; Cui et al. 2025 (PRIME)",
            measured=f"{percent(right['both'])} against {percent(right['outcome'])} %, {percent(before)} % before; {count:,} rollouts, one seed",
            difference=interval(right["both"] - right["outcome"]),
            thought="Too short to tell: solutions have about five steps, so the outcome alone says much. Five seeds and a PRM that never errs gave three tenths fewer rollouts ([reward hacking](pitfalls.md#measured-on-the-arithmetic-world))."),
        Row(claim="without an outcome and a KL term it is hacked: it teaches less than the outcome alone", source="Cheng et al. 2025 (PURE)",
            measured=f"{percent(right['alone'])} against {percent(right['outcome'])} %", difference=interval(right["outcome"] - right["alone"]),
            thought="This PRM is too good to be hacked in so few updates: its AUC of steps is 0.996. A worse one was hacked in all of five runs of 25 updates ([reward hacking](pitfalls.md#measured-on-the-arithmetic-world))."),
    ]  # fmt: skip


def drift(world: World) -> list[Row]:
    """A PRM on solutions of the policy that was trained against it, and one that saw solutions of that policy."""
    moved = policy_after(world, "alone", ProcessGRPO())
    start = [at for group in world.groups for at in group[:4]]
    before = pairs_of([world.prm.steps[at] for at in start], [world.tested[at] for at in start])
    after = pairs_of(_graded(world.out / "prm", moved), moved)
    new = world.sampled_by(
        str(world.out / "policy-alone"), "policy-alone-train", "train", world.size.problems, 1, 1
    )
    count = min(len(new), len(world.training) // 2)
    old = world.training[: 2 * count]
    mixed = [*old[:count], *world.labelled(new[:count])]
    world.process("prm-old", old)
    world.process("prm-mixed", mixed)
    stale, fresh = (pairs_of(_graded(world.out / name, moved), moved) for name in ("prm-old", "prm-mixed"))
    every = range(len(moved) // 4)
    areas = [100 * _auc(one, every) for one in (before, after, stale, fresh)]
    return [
        Row(claim="a frozen PRM finds errors worse once the policy was trained against it (AUC)", source="Gao et al. 2023",
            measured=f"{areas[0]:.1f} before, {areas[1]:.1f} after", difference=auc_gap(before, after),
            thought="The errors of the new policy are those of the old one, fewer of them: it was not driven into what the PRM cannot read."),
        Row(claim="a PRM that saw the new policy's solutions finds its errors better", source="Wang et al. 2023",
            measured=f"{areas[3]:.1f} against {areas[2]:.1f}, of {2 * count} labelled solutions each, half of them new or none", difference=auc_gap(fresh, stale),
            thought="There was nothing to repair (the row above)."),
    ]  # fmt: skip


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
    pairs = [pairs_of(one.steps, world.tested) for one in graders]
    every = np.arange(len(world.groups))
    gained = np.zeros(len(every))
    for one, choice, parts in zip(graders, choices, pairs, strict=True):
        world.note(
            f"{one.name}: best of 16 by the minimum {percent(choice)}, AUC of steps {100 * _auc(parts, every):.2f}"
        )
    # Both are named by one half of the problems and compared on the other: the best of noisy figures is not its own judge.
    for half in (0, 1):
        named, compared = every[every % 2 == half], every[every % 2 != half]
        best = int(choices[:, named].mean(1).argmax())
        finder = int(np.argmax([_auc(parts, named) for parts in pairs]))
        gained[compared] = choices[best, compared] - choices[finder, compared]
        world.note(
            f"by half {half + 1} of the problems, {graders[best].name} chooses best and {graders[finder].name} finds errors best"
        )
    return [
        Row(claim="the PRM that chooses best chooses better than the one with the highest AUC of steps", source="Zheng et al. 2024 (ProcessBench)",
            measured=f"of {len(graders)} PRMs, each pair named by the other half of the problems", difference=interval(gained),
            thought="Graders of one base and one head differ in their labels alone, and here the same labels help both."),
    ]  # fmt: skip


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
    world.note(
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
    "rewards": rewards,
    "drift": drift,
    "rankings": rankings,
}


def page(world: World, blocks: Mapping[str, Block]) -> str:
    """What was measured, as a page."""
    rows = [row for block in blocks.values() for row in block.rows]
    explained = [row for row in rows if row.thought]
    size = world.size
    parts = [
        PAGE.format(test=size.test, training=size.problems * 8, problems=size.problems),
        "\n".join([HEADER, *(row.line() for row in rows)]),
        "What we think:" if explained else "",
        "\n".join(f"- **{row.claim}** ({row.verdict}). {row.thought}" for row in explained),
        "## Figures beside the table",
        *("\n".join([f"**{name}**", "", *(f"- {note}" for note in block.notes)]) for name, block in blocks.items() if block.notes),
    ]  # fmt: skip
    return "\n\n".join(part for part in parts if part) + "\n"


HEADER = "| claim | source | measured here | difference | |\n| --- | --- | --- | ---: | --- |"
PAGE = """# What papers claim, tried here

Does a claim about PRMs hold where every step is known to be right or wrong? `python -m benchmarks.headlines` trains small graders and policies and tries it; a killed run resumes.

```{{code-block}} console
$ python -m benchmarks.headlines --page docs/headlines.md
$ python -m benchmarks.headlines --quick
```

The solutions are those of the [tiny policy](sample.md#a-policy-with-weights), which learnt misconceptions; the graders are made of a [base of the same size that calculates rightly](sample.md#a-base-that-calculates), with the [head that reads the step's tokens](training.md#objectives). A PRM and an outcome model of a row have base, head, solutions and passes in common; a PRM is also fitted to write its right steps. {test} test problems with 16 solutions each, {training:,} solutions of {problems} others to train on; differences in points with 95 % intervals, a paired bootstrap over problems (of first errors and consensus: over solutions). A claim holds where the interval is above 0. With rollout labels, the product was chosen as the aggregate after both it and the minimum had been seen on these problems, so those rows flatter it a little. Everything was trained with one seed, in about half an hour of one core.

Policies trained with such PRMs for longer: [reward hacking](pitfalls.md#reward-hacking)."""


def main() -> None:
    parser = benchmark_parser(__doc__, quick="fewer problems and solutions")
    parser.add_argument("--out", type=Path, default=Path("headlines"))
    parser.add_argument("--base", default=BASE, help="the base of all graders")
    parser.add_argument("--only", nargs="*", choices=list(ROWS), default=list(ROWS))
    parser.add_argument("--page", type=Path, help="write all finished rows as a page")
    asked = parser.parse_args()
    torch.set_num_threads(min(2, torch.get_num_threads()))
    world = World(
        asked.base, asked.out / ("quick" if asked.quick else "full"), QUICK if asked.quick else Size()
    )
    for name in asked.only:
        began = time.process_time()
        world.block(name)
        print(f"{name}: {time.process_time() - began:.0f} s of processor", flush=True)
    blocks = {name: world.block(name) for name in ROWS if (world.out / f"{name}.rows.json").is_file()}
    rows = [row for block in blocks.values() for row in block.rows]
    print("", HEADER, *(row.line() for row in rows), sep="\n")
    if asked.page is not None:
        with atomic_write(asked.page) as written:
            written.write(page(world, blocks))
    figures = {row.claim: row.difference[0] for row in rows}
    finish("headlines", figures, {})


if __name__ == "__main__":
    main()
