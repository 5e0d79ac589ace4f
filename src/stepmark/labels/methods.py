"""The labellers by name, the library's and a caller's own, and which of them ask a policy and a verifier."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from stepmark.labels.bayes import BayesianSearch
from stepmark.labels.formulas import Formulas
from stepmark.labels.judge import Judge
from stepmark.labels.labelling import Labeller
from stepmark.labels.rollout import BinarySearch, EveryStep, RolloutLabeller
from stepmark.labels.tree import RolloutTree
from stepmark.own import Kind, load_method

METHODS: Mapping[str, Callable[[], Labeller]] = {
    "rollout": EveryStep,
    "binary": BinarySearch,
    "bayes": BayesianSearch,
    "tree": RolloutTree,
    "judge": Judge,
    "formulas": Formulas,
}
"""The library's labellers. To add one: a module with its class, and a line here."""

_OWN = Kind(
    what="labeller",
    call="label",
    wanted="a class, or a function whose call gives one, that is a frozen dataclass of its settings with a name and label(solution)",
    page="add-labeller.md",
)


def load_labeller(
    method: str | Labeller, settings: Sequence[str] = ()
) -> tuple[Labeller, Mapping[str, Any] | None]:
    """A labeller, and where it is from if it is a caller's own; see `own.load_method`."""
    return load_method(method, settings, _OWN, METHODS)


def needs_policy(labeller: Labeller) -> bool:
    """Whether a labeller cannot work without a policy; one of the caller's own may do without."""
    return isinstance(labeller, RolloutLabeller | BayesianSearch | Judge)


def asks_policy(labeller: Labeller) -> bool:
    """Whether a labeller asks a policy, if there is one."""
    return not isinstance(labeller, Formulas)


def asks_verifier(labeller: Labeller) -> bool:
    """Whether a labeller asks for verdicts on final answers."""
    return not isinstance(labeller, Formulas | Judge)


def texts_of(labeller: Labeller) -> str:
    """What the texts that a policy writes for a labeller are called."""
    return "replies" if isinstance(labeller, Judge) else "rollouts" if needs_policy(labeller) else "texts"


def named_after(labeller: Labeller, policy: str | None) -> Labeller:
    """A judge without a name of its own is named after its policy, since its opinion is that model's."""
    if isinstance(labeller, Judge) and labeller.name == "judge":
        return replace(labeller, name=f"judge:{policy}")
    return labeller
