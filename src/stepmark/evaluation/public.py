"""What `stepmark.evaluate` is: a function, and the place of the evaluations and of what one of your own is made of."""

from __future__ import annotations

from inspect import signature
from typing import Any, final

from stepmark.data.reading import read_rows as _read_rows
from stepmark.evaluation.benchmarks import declared as _declared
from stepmark.evaluation.best_of_n import BestOfN as _BestOfN
from stepmark.evaluation.calibration import Calibration as _Calibration
from stepmark.evaluation.cases import Case as _Case
from stepmark.evaluation.cases import ratings_until as _ratings_until
from stepmark.evaluation.cases import unique as _unique
from stepmark.evaluation.compare import compare as _compare
from stepmark.evaluation.disagreement import Disagreement as _Disagreement
from stepmark.evaluation.drift import Drift as _Drift
from stepmark.evaluation.evaluation import EVALUATIONS as _EVALUATIONS
from stepmark.evaluation.evaluation import Evaluation as _Evaluation
from stepmark.evaluation.evaluation import Run as _Run
from stepmark.evaluation.evaluation import Views as _Views
from stepmark.evaluation.result import Figure as _Figure
from stepmark.evaluation.result import Result as _Result
from stepmark.evaluation.robustness import Robustness as _Robustness
from stepmark.evaluation.run import evaluate as _evaluate
from stepmark.evaluation.search import SearchContest as _SearchContest
from stepmark.evaluation.verifier import VerifierAccuracy as _VerifierAccuracy
from stepmark.metrics.intervals import shares as _shares
from stepmark.settings import settings as _settings
from stepmark.show.evaluation import Section as _Section
from stepmark.show.evaluation import Tile as _Tile
from stepmark.show.tables import Table as _Table

__all__ = ["EvaluateAPI", "evaluate"]


@final
class EvaluateAPI:
    """`stepmark.evaluate(method, prm, data=…)`, the evaluations that it takes, and what one of your own is made of."""

    __name__ = "evaluate"
    __call__ = staticmethod(_evaluate)
    __signature__ = signature(_evaluate)
    BestOfN = _BestOfN
    SearchContest = _SearchContest
    Robustness = _Robustness
    Disagreement = _Disagreement
    VerifierAccuracy = _VerifierAccuracy
    Calibration = _Calibration
    Drift = _Drift
    Result = _Result
    Figure = _Figure
    compare = staticmethod(_compare)
    # What an evaluation of your own is made of.
    Evaluation = _Evaluation
    settings = staticmethod(_settings)
    Run = _Run
    Case = _Case
    Views = _Views
    Section = _Section
    Table = _Table
    Tile = _Tile
    read_rows = staticmethod(_read_rows)
    ratings_until = staticmethod(_ratings_until)
    unique = staticmethod(_unique)
    shares = staticmethod(_shares)

    def __getattr__(self, name: str) -> Any:
        """A step benchmark, by the name of its class."""
        return _benchmark(name)

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *_benchmarks()]


def _benchmarks() -> dict[str, str]:
    return {place.partition(":")[2]: place for place, _ in _declared().values()}


def _benchmark(name: str) -> Any:
    if name not in (known := _benchmarks()):
        raise AttributeError(f"stepmark.evaluate has no {name!r}")
    return _EVALUATIONS.load(known[name])


evaluate = EvaluateAPI()
