"""`stepmark search`: solutions found with a policy and a PRM; a command a method. A method's flags are the fields of its search."""

from __future__ import annotations

from typing import Annotated, TypeAlias

from cyclopts import App, Parameter

from stepmark.cli.paths import FileOrDash
from stepmark.cli.searching import SearchOptions, run_search
from stepmark.search.adaptive import Adaptive
from stepmark.search.beam import BeamSearch
from stepmark.search.best_of_n import BestOfN, Greedy, Majority, WeightedVote
from stepmark.search.dvts import DiverseTrees
from stepmark.search.mcts import MCTS
from stepmark.search.rebase import Rebase
from stepmark.search.rejection import EarlyRejection
from stepmark.search.searching import Budget, Grading, Sizes, Steps

# A search knows nothing of the command line, so what its fields are there is said here: how the policy writes is flags of its own, the
# others are options of the run.
Parameter(name="*")(Steps)
for _settings in (Grading, Budget, Sizes):
    Parameter(parse=False)(_settings)

_FLAGS = Parameter(name="*")
GreedyFlags: TypeAlias = Annotated[Greedy, _FLAGS]
BestOfNFlags: TypeAlias = Annotated[BestOfN, _FLAGS]
MajorityFlags: TypeAlias = Annotated[Majority, _FLAGS]
WeightedVoteFlags: TypeAlias = Annotated[WeightedVote, _FLAGS]
BeamFlags: TypeAlias = Annotated[BeamSearch, _FLAGS]
DiverseFlags: TypeAlias = Annotated[DiverseTrees, _FLAGS]
RebaseFlags: TypeAlias = Annotated[Rebase, _FLAGS]
MCTSFlags: TypeAlias = Annotated[MCTS, _FLAGS]
AdaptiveFlags: TypeAlias = Annotated[Adaptive, _FLAGS]
RejectionFlags: TypeAlias = Annotated[EarlyRejection, _FLAGS]
_GREEDY, _BEST, _MAJORITY, _VOTE = Greedy(), BestOfN(), Majority(), WeightedVote()
_BEAM, _DIVERSE, _REBASE, _MCTS = BeamSearch(), DiverseTrees(), Rebase(), MCTS()
_ADAPTIVE, _REJECTION = Adaptive(), EarlyRejection()

app = App(
    name="search",
    help="Search for solutions with a policy and a PRM, within a budget.",
    help_format="plaintext",
    default_parameter=Parameter(negative=""),
)


@app.command(name="greedy")
def greedy_command(
    file: FileOrDash | None = None, /, *, search: GreedyFlags = _GREEDY, options: SearchOptions
) -> int:
    """One solution, always the likeliest token; asks no PRM.

    Args:
        file: problems, as JSON lines: {"problem" or "question"}, and "answer" where there is one.
        search: the method's flags.
        options: the run's flags.
    """
    return run_search(file, search, options, needs_prm=False)


@app.command(name="best-of-n")
def best_of_n_command(
    file: FileOrDash | None = None, /, *, search: BestOfNFlags = _BEST, options: SearchOptions
) -> int:
    """N solutions, and the one that the PRM scores highest.

    Args:
        file: problems, as JSON lines: {"problem" or "question"}, and "answer" where there is one.
        search: the method's flags.
        options: the run's flags.
    """
    return run_search(file, search, options)


@app.command(name="majority")
def majority_command(
    file: FileOrDash | None = None, /, *, search: MajorityFlags = _MAJORITY, options: SearchOptions
) -> int:
    """N solutions, and the commonest answer; asks no PRM.

    Args:
        file: problems, as JSON lines: {"problem" or "question"}, and "answer" where there is one.
        search: the method's flags.
        options: the run's flags.
    """
    return run_search(file, search, options, needs_prm=False)


@app.command(name="weighted-vote")
def weighted_vote_command(
    file: FileOrDash | None = None, /, *, search: WeightedVoteFlags = _VOTE, options: SearchOptions
) -> int:
    """N solutions, and the answer with the highest sum of PRM scores.

    Args:
        file: problems, as JSON lines: {"problem" or "question"}, and "answer" where there is one.
        search: the method's flags.
        options: the run's flags.
    """
    return run_search(file, search, options)


@app.command(name="beam")
def beam_command(
    file: FileOrDash | None = None, /, *, search: BeamFlags = _BEAM, options: SearchOptions
) -> int:
    """Step by step: k steps after each beam, the best b go on.

    Args:
        file: problems, as JSON lines: {"problem" or "question"}, and "answer" where there is one.
        search: the method's flags.
        options: the run's flags.
    """
    return run_search(file, search, options)


@app.command(name="dvts")
def dvts_command(
    file: FileOrDash | None = None, /, *, search: DiverseFlags = _DIVERSE, options: SearchOptions
) -> int:
    """Diverse trees: subtrees that do not compete, each of which goes on from its best step.

    Args:
        file: problems, as JSON lines: {"problem" or "question"}, and "answer" where there is one.
        search: the method's flags.
        options: the run's flags.
    """
    return run_search(file, search, options)


@app.command(name="rebase")
def rebase_command(
    file: FileOrDash | None = None, /, *, search: RebaseFlags = _REBASE, options: SearchOptions
) -> int:
    """Each round's steps shared out by the softmax of the scores (REBASE).

    Args:
        file: problems, as JSON lines: {"problem" or "question"}, and "answer" where there is one.
        search: the method's flags.
        options: the run's flags.
    """
    return run_search(file, search, options)


@app.command(name="mcts")
def mcts_command(
    file: FileOrDash | None = None, /, *, search: MCTSFlags = _MCTS, options: SearchOptions
) -> int:
    """Monte Carlo tree search with PUCT and the PRM's value.

    Args:
        file: problems, as JSON lines: {"problem" or "question"}, and "answer" where there is one.
        search: the method's flags.
        options: the run's flags.
    """
    return run_search(file, search, options)


@app.command(name="adaptive")
def adaptive_command(
    file: FileOrDash | None = None, /, *, search: AdaptiveFlags = _ADAPTIVE, options: SearchOptions
) -> int:
    """Best-of-N with an N of each problem's own, from a calibrated PRM.

    Args:
        file: problems, as JSON lines: {"problem" or "question"}, and "answer" where there is one.
        search: the method's flags.
        options: the run's flags.
    """
    return run_search(file, search, options)


@app.command(name="early-rejection")
def early_rejection_command(
    file: FileOrDash | None = None, /, *, search: RejectionFlags = _REJECTION, options: SearchOptions
) -> int:
    """Beam search that judges a step by its first tokens and writes only the best to their end.

    Args:
        file: problems, as JSON lines: {"problem" or "question"}, and "answer" where there is one.
        search: the method's flags.
        options: the run's flags.
    """
    return run_search(file, search, options)
