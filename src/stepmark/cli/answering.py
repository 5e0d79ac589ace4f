"""The isolation of programs that a command's verifier runs."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Protocol, TypeVar

if TYPE_CHECKING:
    from stepmark.problems.code_sandbox import Isolation


class VerifierOptions(Protocol):
    """The options of a command that may run programs, a frozen dataclass."""

    @property
    def verifier(self) -> str:
        """Its name."""

    @property
    def isolation(self) -> Isolation | None:
        """As the flag says."""


_Options = TypeVar("_Options", bound=VerifierOptions)


def checked_isolation(
    verifier: str | None, isolation: Isolation | None, *, here: bool = True
) -> Isolation | None:
    """What keeps the programs of a run apart from this machine; None where no programs run. Prints it on standard error.

    Args:
        verifier: its name; None for none.
        isolation: as the flag says.
        here: programs run on this machine; False: on the workers of a cluster, each of which tries the isolation itself.

    Raises:
        UsageError: an isolation that does not work on this machine, or for a verifier that runs no programs.
    """
    from stepmark.problems.answers import isolation_of, load_verifier, report_isolation

    found = isolation_of(verifier, isolation)
    if found is not None:
        assert verifier is not None
        if here:
            load_verifier(verifier, isolation=found).close()
        report_isolation(verifier, found)
    return found


def isolated(options: _Options, *, here: bool = True) -> _Options:
    """The options with the isolation filled in, see `checked_isolation`."""
    isolation = checked_isolation(options.verifier, options.isolation, here=here)
    return replace(options, isolation=isolation)  # type: ignore[type-var]
