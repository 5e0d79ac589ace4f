"""What an evaluation is, and what a run gives it: data, scores, figures with intervals.

An evaluation is a frozen dataclass whose fields are its settings. It reads cases from the data, makes one item a case of their
scores, says by a statistic which figures the items give, and what its report shows. Everything else is the run's work
(`stepmark.evaluate`): files and their hashes, the limit, the grading pass that resumes, the bootstrap, the files that are written.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, is_dataclass
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from stepmark.data.columns import Columns
from stepmark.data.reading import Source
from stepmark.errors import BackendError, StepmarkError, UsageError
from stepmark.evaluation.benchmarks import declared
from stepmark.evaluation.cases import Case
from stepmark.evaluation.result import EvaluationResult, Figure, Item, made_folder, measured, shown
from stepmark.evaluation.scores import Sheet, grade_cases, read_scores
from stepmark.models.lazy import Lazy
from stepmark.models.load import load_prm, prm_identity
from stepmark.models.policies import Policy
from stepmark.models.prm import PRM
from stepmark.records import DEFAULT_AXIS
from stepmark.registry import Registry
from stepmark.report.evaluation import Report, Section
from stepmark.report.tables import Table
from stepmark.store import differences, held, run_input
from stepmark.words import amount

if TYPE_CHECKING:  # NumPy, which no help needs
    from stepmark.metrics.intervals import Statistic


@dataclass(frozen=True, kw_only=True)
class Run:
    """One run of an evaluation: its inputs, and what it does for the evaluation."""

    data: tuple[Source, ...] = ()
    """Names of files, or rows in Python."""
    columns: Columns | None = None
    """Names of columns, where they differ."""
    axis: str | None = None
    """Which judgements of the data count, where there are several axes; None: whether the step is right, or each axis apart."""
    limit: int | None = None
    """Take only this many problems."""
    resamples: int = 1000
    """Bootstrap resamples over problems."""
    seed: int = 0
    """Seed of the resamples and of random changes."""
    scores: str | Path | None = None
    """A file of scores that stands for the PRM."""
    model_name: str | None = None
    """Which model's scores, where that file holds several."""
    prm: PRM | Lazy[PRM] | None = None
    orm: Lazy[PRM] | None = None
    """An outcome reward model."""
    policy: Policy | Lazy[Policy] | None = None
    folder: Path = Path()
    """Where scores and samples are kept."""
    progress: bool = False
    """Whether the progress is shown, on standard error."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """What the result says of the run."""
    inputs: list[dict[str, Any]] = field(default_factory=list)
    """Name, size and hash of each input."""
    facts: list[str] = field(default_factory=list)
    """Sentences for the top of the report, such as what was left out."""

    def note(self, text: str) -> None:
        """Print a line on standard error, where the progress is shown."""
        if self.progress:
            sys.stderr.write(f"{text}\n")
            sys.stderr.flush()

    def add_input(self, source: Source) -> Source:
        """Record an input by its hash, and give what is read."""
        read = run_input(source, again=True)
        manifest = read.manifest or {}
        self.inputs.append({"name": read.name, **manifest})
        return read.source

    def take(self, cases: Sequence[Case]) -> list[Case]:
        """The cases of `limit` problems, evenly spaced in the order of the data; all of them without a limit."""
        if self.limit is None:
            return list(cases)
        chosen = set(self.spaced(list(dict.fromkeys((case.group, case.problem) for case in cases))))
        taken = [case for case in cases if (case.group, case.problem) in chosen]
        if len(taken) < len(cases):
            self.facts.append(
                f"Only {len(taken):,} of the data's {amount(len(cases), 'solution')} were taken (limit {self.limit}), evenly spaced."
            )
        return taken

    def spaced(self, values: Sequence[Any]) -> list[Any]:
        """At most `limit` of some values, evenly spaced."""
        if self.limit is None or self.limit >= len(values):
            return list(values)
        return [values[at * len(values) // self.limit] for at in range(self.limit)]

    def grade(self, cases: Sequence[Case], *, outcome: bool = False) -> Sheet:
        """The cases with their scores: of the file `scores`, of an earlier run with the same settings, or graded now.

        Args:
            cases: solutions of one problem are brought together for grading.
            outcome: ask the outcome reward model, which reads only the last step; its scores have a file of their own.
        """
        if not cases:
            raise UsageError("there is nothing to evaluate in the data")
        if self.scores is not None and not outcome:
            return read_scores(self.scores, cases, model=self.model_name)
        model = self.orm if outcome else self.prm
        assert model is not None
        path = made_folder(self.folder) / ("outcomes.jsonl" if outcome else "scores.jsonl")
        manifest = json.loads(
            json.dumps(
                {
                    "command": f"evaluate {self.settings.get('evaluation', '')}".strip(),
                    "data": self.inputs,
                    "limit": self.limit,
                    # The texts themselves: how they are cut, changed or read may differ between versions.
                    "cases": _digest(cases),
                    "settings": {
                        key: value for key, value in settings_of(model).items() if key != "token_budget"
                    },
                }
            )
        )
        if path.exists():
            self._check_earlier(path, manifest, model)
            return read_scores(path, cases)
        together: dict[str, list[Case]] = {}
        for case in cases:
            together.setdefault(case.problem, []).append(case)
        ordered = [case for group in together.values() for case in group]
        kept = f"the scores so far are kept in {path}.part; the same command continues"
        try:
            with held(path.parent):
                grade_cases(ordered, self.loaded(model), path, manifest, shown=self.progress)
        except KeyboardInterrupt:
            raise KeyboardInterrupt(kept) from None
        except BackendError as error:
            error.add_note(kept)
            raise
        return read_scores(path, cases)  # in the order of the data, and exactly what is on disk

    def _check_earlier(self, path: Path, manifest: dict[str, Any], model: PRM | Lazy[PRM]) -> None:
        """Refuse finished scores of other settings or of another model."""
        check_same(path, manifest)
        try:
            identity = identity_before_loading(model)
        except StepmarkError as error:
            error.add_note(f"{path} has scores of an earlier run; `scores` {path} measures them as they are")
            raise
        check_same(path, manifest | {"models": {"prm": identity}})
        self.note(f"{path} has the scores of an earlier run with these settings, by {identity}")

    def loaded(self, model: Any) -> Any:
        """A model, loaded if it was only named."""
        if not isinstance(model, Lazy):
            return model
        if self.progress and sys.stderr.isatty():
            self.note(f"loading {model.name} ...")
        return model.load()

    def figures(
        self, items: Sequence[Item], statistic: Statistic, policies: Mapping[str, str] | None = None
    ) -> dict[str, Figure]:
        """All figures of a statistic, with bootstrap intervals over problems; see `result.measured`."""
        return measured(items, statistic, policies=policies, resamples=self.resamples, seed=self.seed)

    def result(
        self,
        method: Evaluation,
        report: Report,
        figures: Mapping[str, Figure],
        items: Iterable[Item],
        *,
        prm: str = "",
        identity: str | None = None,
        **settings: Any,
    ) -> EvaluationResult:
        """The finished result: the report with the facts and the settings of the run."""
        whose = {} if identity is None else {"prm_identity": identity}
        about = {
            "facts": (*report.facts, *self.facts),
            "sections": tuple(section for section in report.sections if section.items),
            "settings": {**self.settings, **plain_settings(method), **settings, **whose},
        }
        return EvaluationResult(
            **{**vars(report), **about},
            evaluation=method.name,
            prm=prm,
            figures=dict(figures),
            items=tuple(items),
            data=tuple(self.inputs),
            statistic=method.statistic,
        )


class Evaluation:
    """An evaluation: a frozen dataclass whose fields are its settings.

    A subclass has a `name` and says `items`, `statistic` and, unless every labelled solution that stepmark reads will do, `read`. One that
    needs more than a single pass of grading says `measure` instead.
    """

    name: ClassVar[str] = ""
    """Of its results and its folder."""
    models: ClassVar[tuple[str, ...]] = ("prm",)
    """The models that it uses: prm, orm, policy."""
    reads_scores: ClassVar[bool] = True
    """Whether a file of scores can stand for the PRM."""
    dataset: ClassVar[str | None] = None
    """The hub repository that the data "hub" downloads."""
    files: ClassVar[tuple[str, ...]] = ()
    """The names of the data's files, where they are published."""

    def asks_prm(self, run: Run) -> bool:
        """Whether the PRM is asked; else its settings are refused."""
        return run.scores is None

    def check(self, run: Run) -> None:
        """Refuse settings that cannot work, before anything is read or loaded."""

    def read(self, run: Run) -> Sequence[Case]:
        """The cases of the data."""
        from stepmark.evaluation.sources import read_cases

        return read_cases(run.data, columns=run.columns, axis=run.axis or DEFAULT_AXIS)

    def items(self, sheet: Sheet) -> Sequence[Item]:
        """What the figures rest on: plain JSON, each with `id` and `problem`."""
        raise UsageError(
            f"{type(self).__name__}: expected a method items(sheet), or measure(run); found neither"
        )

    def statistic(self, items: Sequence[Item]) -> Statistic:
        """The figures as a function of weights of the items: shape (B, items) to named arrays of shape (B,), nan where one is undefined."""
        raise UsageError(
            f"{type(self).__name__}: expected a method statistic(items), or measure(run); found neither"
        )

    def report(self, figures: Mapping[str, Figure], items: Sequence[Item], sheet: Sheet) -> Report:
        """What is shown. Default: a table of all figures."""
        rows = tuple((name, shown(figure, scale=1, digits=4)) for name, figure in figures.items())
        table = Table(title="Figures", columns=("Figure", "Value"), rows=rows)
        return Report(
            title=f"{self.name}: {sheet.prm}",
            facts=(f"{counted(items, 'item')}.", INTERVALS),
            sections=(Section(title="Figures", items=(table,)),),
        )

    def measure(self, run: Run) -> EvaluationResult:
        """Read the cases, grade them, and make the result."""
        return self.of_sheet(run.grade(run.take(self.read(run))), run)

    def of_sheet(self, sheet: Sheet, run: Run) -> EvaluationResult:
        """The result of graded cases."""
        items = self.items(sheet)
        figures = run.figures(items, self.statistic(items))
        report = self.report(figures, items, sheet)
        return run.result(self, report, figures, items, prm=sheet.prm, identity=sheet.identity)


def counted(items: Sequence[Item], what: str = "solution") -> str:
    """How many items of how many problems, in words."""
    return f"{amount(len(items), what)} of {amount(len({item['problem'] for item in items}), 'problem')}"


INTERVALS = "In brackets: 95 % bootstrap intervals over problems."
"""What most reports say of their intervals."""


def plain_settings(method: Evaluation) -> dict[str, Any]:
    """The fields of an evaluation as JSON."""
    values: dict[str, Any] = asdict(method) if is_dataclass(method) else {}
    plain: dict[str, Any] = json.loads(json.dumps(values, default=str))
    return plain


def settings_of(model: PRM | Lazy[PRM]) -> dict[str, Any]:
    """A PRM's name, and what it is loaded with where that is not the default."""
    if not isinstance(model, Lazy):
        return {"prm": model.name}
    defaults = {parameter.name: parameter.default for parameter in signature(load_prm).parameters.values()}
    given = {key: value for key, value in model.arguments.items() if value != defaults[key]}
    return {"prm": model.name, **given}


def identity_before_loading(model: PRM | Lazy[PRM]) -> str:
    """The identity of a PRM, without reading a checkpoint's weights into memory."""
    return prm_identity(model.name, model.arguments) if isinstance(model, Lazy) else model.identity


def _digest(cases: Sequence[Case]) -> str:
    digest = hashlib.sha256()
    for case in cases:
        solution = case.solution
        text = json.dumps(
            [case.id, solution.problem.text, *((step.text, step.observation) for step in solution.steps)]
        )
        digest.update(text.encode() + b"\n")
    return digest.hexdigest()


def check_same(path: Path, manifest: Mapping[str, Any]) -> None:
    """Refuse to reuse a finished file that was made with another manifest."""
    beside = path.with_name(path.name + ".manifest.json")
    old = json.loads(beside.read_text(encoding="utf-8")) if beside.is_file() else {}
    changed = "; ".join(differences({key: old.get(key) for key in manifest}, manifest))
    if changed:
        raise UsageError(
            f"{path} was made with other settings: {changed}. Choose another `out`, delete it, or measure it as it is with "
            f"`scores` {path}"
        )


_OTHERS = {
    "best-of-n": "stepmark.evaluation.best_of_n:BestOfNAccuracy",
    "search": "stepmark.evaluation.search:SearchContest",
    "robustness": "stepmark.evaluation.robustness:Robustness",
    "disagreement": "stepmark.evaluation.disagreement:Disagreement",
    "labels": "stepmark.evaluation.labels:LabelAgreement",
    "verifier": "stepmark.evaluation.verifier:VerifierAccuracy",
    "calibration": "stepmark.evaluation.calibration:Calibration",
    "drift": "stepmark.evaluation.drift:Drift",
}

EVALUATIONS = Registry(
    "evaluation",
    {**declared(), **_OTHERS},
    call="items",
    base=lambda: Evaluation,
    expected="a class that is a frozen dataclass derived from stepmark.evaluation.Evaluation, with a name, items(sheet) and statistic(items)",
    page="extending.md",
)
"""The library's evaluations. A step benchmark is added by its file in `benchmarks/`, any other evaluation here."""


def load_evaluation(
    method: str | Evaluation, settings: Sequence[str] = ()
) -> tuple[Evaluation, Mapping[str, Any] | None]:
    """An evaluation, and where it is from if it is a caller's own; see `Registry.method`."""
    return EVALUATIONS.method(method, settings)
