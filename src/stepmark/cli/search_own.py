"""`stepmark search own`: a search of one's own by name, with all that a run of the library's can do."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Literal

from cyclopts import Parameter

from stepmark.cli.own import Kind, Own, Settings, own
from stepmark.cli.paths import FileOrDash
from stepmark.cli.search_machines import Method, SearchOptions
from stepmark.cli.searching import run_search
from stepmark.evaluation.search_entrants import METHODS
from stepmark.search.remaking import remade
from stepmark.search.searching import Searching

_STEPS = "the flags of how steps are written (--temperature, --max-tokens, …)"
_SEARCH = Kind(
    what="search",
    call="search",
    base=Searching,
    wanted="a class, or a function whose call gives one, that is a frozen dataclass derived from stepmark.search.searching.Searching (or "
    "Choosing, Expanding) with a name and search(problem)",
    page="add-search.md",
    commands=METHODS,
    flags={
        "how": _STEPS,
        "grading": "--aggregate and the PRM",
        "budget": "--budget and --budget-flops, of an evaluation --budgets",
        "sizes": "--policy-parameters and --prm-parameters",
    },
)


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True, slots=True)
class StepFlags:
    """How the policy writes, as far as it is said: the fields of `search.searching.Steps`."""

    stop: str | None = None
    """The text that ends a step. Left out, here as below: what the search has as its default; of most, a new line."""
    max_tokens: int | None = None
    """The longest step; one that is not ended by then is given up. Of most searches, 256."""
    max_steps: int | None = None
    """The longest solution in steps. Of most searches, 40."""
    max_solution_tokens: int | None = None
    """The longest solution, where a solution is written in one go. Of most searches, 1024."""
    temperature: float | None = None
    """Of the samples. Of most searches, 0.7."""
    top_p: float | None = None
    """Sample among the likeliest tokens that together hold this share of the probability. Of most searches, 1."""
    seed: int | None = None
    """Another seed gives other samples. Of most searches, 0."""
    prompt: Literal["chat", "text"] | None = None
    """Ask as the user's turn of a chat, or as plain text, for base models. Of most searches, chat."""
    instruction: str | None = None
    """Said after the problem; "" for nothing. Of most searches: to go step by step and to box the answer."""


_UNSAID = StepFlags()


def own_command(
    file: FileOrDash | None = None,
    /,
    *,
    method: str,
    settings: Settings = (),
    steps: StepFlags = _UNSAID,
    options: SearchOptions,
) -> int:
    """A search of your own, by name. It is run, resumed and drawn as the library's are.

    A PRM is loaded and asked unless the class says asks_prm = False; the run tells which.

    Args:
        file: problems, as JSON lines: {"problem" or "question"}, and "answer" where there is one.
        method: "package.module:Class", or "package.module:function", whose call gives the search.
        settings: a field of its dataclass, as name=value; once for each.
        steps: how steps are written.
        options: the run's flags.
    """
    found = own_search(method, settings)
    search: Method = found.method
    said = {key: value for key, value in asdict(steps).items() if value is not None}
    search = remade(search, how=replace(search.how, **said))
    asked = f"asks the PRM {options.prm}" if search.asks_prm else "asks no PRM"
    print(f"{search.name} ({method}) {asked}", file=sys.stderr)
    return run_search(file, search, options, source=found.source)


def own_search(name: str, settings: Sequence[str], *, flag: str = "--method") -> Own:
    """The search behind a name; see `own.own`.

    Raises:
        UsageError: as there.
    """
    return own(name, settings, _SEARCH, flag=flag)
