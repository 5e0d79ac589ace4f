"""`stepmark search`: solutions found with a policy and a PRM; a command a method. A method's flags are the fields of its search."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

from cyclopts import App, Parameter

from stepmark.cli.paths import FileOrDash
from stepmark.cli.search_machines import Method, SearchOptions
from stepmark.cli.searching import run_search
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

app = App(
    name="search",
    help="Search for solutions with a policy and a PRM, within a budget.",
    help_format="plaintext",
    default_parameter=Parameter(negative=""),
)

_METHODS: tuple[tuple[Callable[[], Method], str], ...] = (
    (Greedy, "One solution, always the likeliest token; asks no PRM."),
    (BestOfN, "N solutions, and the one that the PRM scores highest."),
    (Majority, "N solutions, and the commonest answer; asks no PRM."),
    (WeightedVote, "N solutions, and the answer with the highest sum of PRM scores."),
    (BeamSearch, "Step by step: k steps after each beam, the best b go on."),
    (
        DiverseTrees,
        "Diverse trees: subtrees that do not compete, each of which goes on from its best step.",
    ),
    (Rebase, "Each round's steps shared out by the softmax of the scores (REBASE)."),
    (MCTS, "Monte Carlo tree search with PUCT and the PRM's value."),
    (Adaptive, "Best-of-N with an N of each problem's own, from a calibrated PRM."),
    (
        EarlyRejection,
        "Beam search that judges a step by its first tokens and writes only the best to their end.",
    ),
)


def _command(method: Callable[[], Method], what: str) -> Callable[..., int]:
    """The command of a method."""
    default = method()

    def command(
        file: FileOrDash | None = None, /, *, search: Method = default, options: SearchOptions
    ) -> int:
        return run_search(file, search, options)

    command.__annotations__ |= {"search": Annotated[method, Parameter(name="*")]}
    command.__doc__ = f"""{what}

    Args:
        file: problems, as JSON lines: {{"problem" or "question"}}, and "answer" where there is one.
        search: the method's flags.
        options: the run's flags.
    """
    return command


for _method, _what in _METHODS:
    app.command(_command(_method, _what), name=_method().name)
app.command(
    "stepmark.cli.search_own:own_command",
    name="own",
    help="A search of your own: --method package.module:Class. A PRM is asked unless the class says asks_prm = False.",
)
