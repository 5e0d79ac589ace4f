from typing import Any

from stepmark.data.reading import read_rows as read_rows
from stepmark.evaluation.base import Evaluation as Evaluation
from stepmark.evaluation.base import Run as Run
from stepmark.evaluation.benchmark import Rated as Rated
from stepmark.evaluation.best_of_n import BestOfNAccuracy as BestOfNAccuracy
from stepmark.evaluation.blame import Blame as Blame
from stepmark.evaluation.calibration import Calibration as Calibration
from stepmark.evaluation.cases import Case as Case
from stepmark.evaluation.cases import ratings_until as ratings_until
from stepmark.evaluation.cases import step_labels as step_labels
from stepmark.evaluation.cases import unique as unique
from stepmark.evaluation.comparison import compare as compare
from stepmark.evaluation.disagreement import Disagreement as Disagreement
from stepmark.evaluation.drift import Drift as Drift
from stepmark.evaluation.first_errors import FirstErrors as FirstErrors
from stepmark.evaluation.labels import LabelAgreement as LabelAgreement
from stepmark.evaluation.prm_score import PRMScore as PRMScore
from stepmark.evaluation.result import EvaluationResult as EvaluationResult
from stepmark.evaluation.result import Figure as Figure
from stepmark.evaluation.robustness import Robustness as Robustness
from stepmark.evaluation.search import SearchContest as SearchContest
from stepmark.evaluation.verifier import VerifierAccuracy as VerifierAccuracy
from stepmark.metrics.intervals import shares as shares
from stepmark.report.evaluation import Report as Report
from stepmark.report.evaluation import Section as Section
from stepmark.report.evaluation import Tile as Tile
from stepmark.report.tables import Table as Table
from stepmark.settings import settings as settings

def __getattr__(name: str) -> Any: ...  # a step benchmark
