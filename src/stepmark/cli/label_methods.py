"""The methods of `stepmark label` that label a file of solutions. A method's flags are the fields of its labeller."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, TypeAlias

from cyclopts import Parameter

from stepmark.cli.flags import ColumnsFlag, Flag, Settings
from stepmark.cli.labelling import LabelOptions, run_labeller
from stepmark.cli.paths import FileOrDash
from stepmark.labels.bayes import BayesianSearch
from stepmark.labels.first_error import BinarySearch
from stepmark.labels.formulas import Formulas
from stepmark.labels.judge import Judge
from stepmark.labels.labelling import Labeller, Rollouts
from stepmark.labels.posterior import RatePrior
from stepmark.labels.rollout import EveryStep
from stepmark.labels.tree import RolloutTree
from stepmark.own import Kind, own

# A labeller knows nothing of the command line, so what its fields are there is said here: how rollouts are sampled is
# flags of its own, beliefs about success rates are for Python alone.
Parameter(name="*")(Rollouts)
Parameter(parse=False)(RatePrior)

_FLAGS = Parameter(name="*")
EveryStepFlags: TypeAlias = Annotated[EveryStep, _FLAGS]
BinaryFlags: TypeAlias = Annotated[BinarySearch, _FLAGS]
BayesFlags: TypeAlias = Annotated[BayesianSearch, _FLAGS]
TreeFlags: TypeAlias = Annotated[RolloutTree, _FLAGS]
JudgeFlags: TypeAlias = Annotated[Judge, _FLAGS]
FormulasFlags: TypeAlias = Annotated[Formulas, _FLAGS]
_EVERY_STEP, _BINARY, _BAYES, _TREE = EveryStep(), BinarySearch(), BayesianSearch(), RolloutTree()
_JUDGE, _FORMULAS = Judge(), Formulas()


def rollout_command(
    file: FileOrDash, /, *, labeller: EveryStepFlags = _EVERY_STEP, options: LabelOptions
) -> int:
    """Label every step by k rollouts from the prefix that it ends (Math-Shepherd): the share that reaches the right answer.

    Args:
        file: solutions with reference answers, as JSON lines: {"problem", "steps" or "solution", "answer"}.
        labeller: the method's flags.
        options: the run's flags.
    """
    return run_labeller(file, labeller, options)


def binary_command(file: FileOrDash, /, *, labeller: BinaryFlags = _BINARY, options: LabelOptions) -> int:
    """Find the first error of wrong solutions by binary search (OmegaPRM): k rollouts at each probed prefix.

    Args:
        file: solutions with reference answers, as JSON lines: {"problem", "steps" or "solution", "answer"}.
        labeller: the method's flags.
        options: the run's flags.
    """
    return run_labeller(file, labeller, options)


def bayes_command(file: FileOrDash, /, *, labeller: BayesFlags = _BAYES, options: LabelOptions) -> int:
    """Find the first error of wrong solutions by Bayesian search: each rollout where it tells most for its tokens.

    Args:
        file: solutions with reference answers, as JSON lines: {"problem", "steps" or "solution", "answer"}.
        labeller: the method's flags.
        options: the run's flags.
    """
    return run_labeller(file, labeller, options)


def tree_command(file: FileOrDash, /, *, labeller: TreeFlags = _TREE, options: LabelOptions) -> int:
    """Grow a tree of rollouts for each problem (OmegaPRM): every rollout may become a solution that is searched in turn.

    All solutions of one problem in the file are paths of its one tree, so that no prefix is rolled out twice. The output holds the
    given solutions, those of a problem together, and after them all that were labelled on the way, a row each.

    Args:
        file: solutions with reference answers, as JSON lines: {"problem", "steps" or "solution", "answer"}.
        labeller: the method's flags.
        options: the run's flags.
    """
    return run_labeller(file, labeller, options)


def judge_command(file: FileOrDash, /, *, labeller: JudgeFlags = _JUDGE, options: LabelOptions) -> int:
    """Ask a language model for the first wrong step, several times, and take the vote; no reference answer is needed.

    Args:
        file: solutions, as JSON lines: {"problem", "steps" or "solution"}.
        labeller: the method's flags; --name is "judge:" and the policy unless given.
        options: the run's flags; --policy names the judge.
    """
    if labeller.name == _JUDGE.name:
        labeller = replace(labeller, name=f"{labeller.name}:{options.policy}")
    return run_labeller(file, labeller, options, needs_verifier=False, texts="replies")


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True, slots=True)
class FileOptions:
    """What a method takes that needs no model."""

    out: str
    """Write the labelled solutions to this file (format stepmark-labels), packed if it ends in .gz."""
    split: str = "auto"
    """How a text is cut into steps: auto, line, blank-line, numbered, sentence, marker, code, agent, whole."""
    columns: ColumnsFlag = None
    """Which column of FILE is what, where the names differ: problem=question,solution=response (docs: files)."""
    keep_going: Flag = False
    """Leave out rows that cannot be labelled, and list them at the end."""


def formulas_command(
    file: FileOrDash, /, *, labeller: FormulasFlags = _FORMULAS, options: FileOptions
) -> int:
    """Check the calculations that steps write down, exactly; a step with a false one is wrong. Needs no model.

    Args:
        file: solutions, as JSON lines: {"problem", "steps" or "solution"}.
        labeller: the method's flags.
        options: the run's flags.
    """
    run = LabelOptions(
        out=options.out, split=options.split, columns=options.columns, keep_going=options.keep_going
    )
    return run_labeller(file, labeller, run, needs_policy=False, needs_verifier=False)


_LABELLER = Kind(
    what="labeller",
    call="label",
    wanted="a class, or a function whose call gives one, that is a frozen dataclass of its settings with a name and label(solution)",
    page="add-labeller.md",
)


def own_command(file: FileOrDash, /, *, method: str, settings: Settings = (), options: LabelOptions) -> int:
    """Label with a labeller of your own, by name; what it asks for is answered by --policy and --verifier.

    Args:
        file: solutions, as JSON lines: {"problem", "steps" or "solution"}, and "answer" where the labeller needs it.
        method: "package.module:Class", or "package.module:function", whose call gives the labeller.
        settings: a field of its dataclass, as name=value; once for each. Of a field that is one itself: how.temperature=0.5.
        options: the run's flags.
    """
    found = own(method, settings, _LABELLER)
    labeller: Labeller = found.method
    return run_labeller(
        file,
        labeller,
        options,
        needs_policy=options.policy is not None,
        texts="texts",
        source=found.source,
    )
