"""Generative PRMs: a language model writes a critique of each step, and the verdict in it is the score.

    prm = generative_prm("thinkprm", LocalPolicy.load("launch/ThinkPRM-1.5B"), samples=4)
    prm.score("What is 2 + 3?", steps=["2 + 3 = 6"])

The family (`models/critics.py`) owns the prompts and reads the verdicts, the policy (`models/policies/`) runs the model, and `backends` brings them
together. A checkpoint that stepmark trained says in its `stepmark.json` which critic it is (`CriticSpec`); of others the family is named.

"""

from __future__ import annotations

from collections.abc import Awaitable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, final

from stepmark.backends import CachedPolicy, Completing, ReplyStore, run_tasks
from stepmark.backends.replies import MemoryReplies
from stepmark.errors import CheckpointError, InputError, UsageError
from stepmark.models.critics import RPRM, Critic, Critiqued, GenPRM, ThinkPRM, refuse_markers
from stepmark.models.files import present, read_object
from stepmark.models.identity import named
from stepmark.models.policies import Policy
from stepmark.models.prm import PRM, Ledger, Session
from stepmark.models.spec import SPEC_FILE
from stepmark.records import Refusal, ScoreKind, Solution, StepScores, read_record
from stepmark.registry import unknown_name

Settings = ThinkPRM | GenPRM | RPRM


@dataclass(frozen=True, kw_only=True, slots=True)
class GenerativeFamily:
    """One family of generative PRMs, for lists and for `generative_prm`."""

    summary: str
    """What it is, in one line."""
    source: str
    """Paper and checkpoints."""
    aggregate: str
    """How one number is made of the step scores."""
    score_kind: ScoreKind
    settings: type[Settings]
    """Its settings, which are also its critic."""


GENERATIVE: Mapping[str, GenerativeFamily] = {
    "thinkprm": GenerativeFamily(
        summary="long critique of each prefix, then P(yes) that the solution so far is correct",
        source="Khalifa et al. 2025, arXiv:2504.16828; launch/ThinkPRM-1.5B, -7B, -14B",
        # The authors score the whole solution once, which is our last prefix.
        aggregate="last",
        score_kind="probability",
        settings=ThinkPRM,
    ),
    "genprm": GenerativeFamily(
        summary="a conversation, one turn a step: analysis, then P(Yes); generated code is not run",
        source="Zhao et al. 2025, arXiv:2504.00891; GenPRM/GenPRM-1.5B, -7B, -32B",
        # The authors' code offers last, average and min without a default; min is ours.
        aggregate="min",
        score_kind="probability",
        settings=GenPRM,
    ),
    "r-prm": GenerativeFamily(
        summary="analyses of each step in its context, then the mean of P(Yes)",
        source="She et al. 2025, arXiv:2503.21295; kevinpro/R-PRM-7B-SFT, -DPO",
        # The authors' code has no aggregation; min is ours.
        aggregate="min",
        score_kind="probability",
        settings=RPRM,
    ),
}
"""The families, by name."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CriticSpec:
    """How a generative checkpoint of our own is read: what `ScoringSpec` is for the others, in the same file."""

    settings: Settings

    @property
    def family(self) -> str:
        """Its name in `GENERATIVE`."""
        return next(name for name, family in GENERATIVE.items() if family.settings is type(self.settings))

    def data(self) -> dict[str, Any]:
        """As it stands in `stepmark.json`: `{"critic": FAMILY, "settings": {...}}`."""
        return {"critic": self.family, "settings": asdict(self.settings)}


def critic_spec_of(folder: Path) -> CriticSpec | None:
    """What a checkpoint's own `stepmark.json` says of it; None where there is none, or it is of another kind of PRM.

    Raises:
        CheckpointError: it names a critic that there is not, or settings that it does not have.
    """
    file = folder / SPEC_FILE
    if not present(file):
        return None
    data = read_object(file)
    if "critic" not in data:
        return None
    family, settings = data["critic"], data.get("settings", {})
    if not isinstance(family, str) or family not in GENERATIVE or not isinstance(settings, dict):
        raise CheckpointError(
            f"{file}: expected a critic of {', '.join(GENERATIVE)} and its settings as an object, found {family!r}"
        )
    try:
        return CriticSpec(settings=read_record(GENERATIVE[family].settings, settings))
    except InputError as error:
        raise CheckpointError(f"{file}: {error}") from error


def generative_prm(
    family: str | Settings,
    policy: Policy,
    *,
    samples: int | None = None,
    seed: int = 0,
    store: ReplyStore | None = None,
    in_flight: int = 16,
) -> GenerativePRM:
    """A generative PRM.

    Args:
        family: a name in `GENERATIVE`, or settings (`ThinkPRM(...)`, `GenPRM(...)`, `RPRM(...)`).
        policy: runs the checkpoint.
        samples: critiques a step; None for the family's default, or as the settings say.
        seed: part of every sample; used with a family name (settings have their own).
        store: records every critique, so that an interrupted run is resumed and nothing is asked twice
            (`backends.replies.ReplyFile`). Without one, the replies used last are remembered in memory.
        in_flight: solutions under way at once.

    Raises:
        UnknownNameError: no such family.
        UsageError: a setting that cannot work.
    """
    settings = critic_settings(family, samples=samples, seed=seed)
    aggregate = next(f.aggregate for f in GENERATIVE.values() if f.settings is type(settings))
    return GenerativePRM(settings, policy, aggregate=aggregate, store=store, in_flight=in_flight)


def critic_settings(family: str | Settings, *, samples: int | None, seed: int) -> Settings:
    """The settings of a generative PRM; see `generative_prm`, also for what it raises."""
    if isinstance(family, str):
        if family not in GENERATIVE:
            raise unknown_name("family of generative PRMs", family, GENERATIVE)
        settings: Settings = replace(GENERATIVE[family].settings(), seed=seed)
    else:
        settings = family
    if samples is not None:
        settings = replace(settings, samples=samples)
    if settings.samples < 1:
        raise UsageError(f"samples must be at least 1, found {settings.samples}")
    return settings


def check(solution: Solution, markers: Sequence[str]) -> None:
    """Refuse (`InputError`) a solution that a critic cannot read: a blank problem or step, or a marker of a chat template or of the family in a text."""
    if not solution.problem.text.strip():
        raise InputError("expected a problem, found none", field="problem")
    if not solution.steps:
        raise InputError("expected at least one step, found none", field="steps")
    refuse_markers(solution.problem.text, "problem", markers)
    for t, step in enumerate(solution.steps):
        if not step.text.strip():
            raise InputError("expected text in every step, found a blank one", field=f"steps[{t}]")
        refuse_markers(step.text, f"steps[{t}]", markers)
        refuse_markers(step.observation, f"steps[{t}].observation", markers)


def context_of(solution: Solution) -> tuple[str, ...]:
    """Each step as the later ones see it: with what the world answered after it."""
    return tuple(
        step.text + (f"\n{step.observation.strip()}" if step.observation.strip() else "")
        for step in solution.steps
    )


@final
class GenerativePRM(PRM):
    """A critic and the policy that writes for it; a `models.prm.PRM`. Arguments as for `generative_prm`.

    The critiques of a prefix are the same for every solution that begins so: samples 0 to k-1 of one request (`Completions.first`), asked once
    and shared. So the score of a step depends on its prefix, the settings and the seed, and not on what else is scored.

    The score of a step is a probability in [0, 1]: the mean over the critiques that gave a verdict. Those that gave none are left out and
    counted in `without_verdict`; a step without any is an `InputError` that names the step, never a number.

    The ledger counts solutions, steps and the tokens written (replayed critiques are free).
    """

    score_kind: ScoreKind = "probability"
    default_threshold: float | None = 0.5

    def __init__(
        self,
        critic: Critic,
        policy: Policy,
        *,
        aggregate: str,
        store: ReplyStore | None = None,
        in_flight: int = 16,
    ) -> None:
        self.critic = critic
        self.default_aggregate = aggregate
        self.ledger = Ledger()
        self.without_verdict = 0
        # Marked where the scores are not causal.
        self.name = policy.name if critic.causal else f"{policy.name} (not causal)"
        self._policy = policy
        self._store = store if store is not None else MemoryReplies()
        self._in_flight = in_flight

    def __repr__(self) -> str:
        kind = type(self.critic)
        names = [name for name, family in GENERATIVE.items() if family.settings is kind]
        return self.describe(family=next(iter(names), kind.__name__), place={"policy": self._policy})

    @property
    def identity(self) -> str:
        """See `PRM.identity`: the policy's, with the critic's settings."""
        return named(self._policy.identity, self.critic)

    @property
    def causal(self) -> bool:
        """Whether the score of step t depends on the steps up to t only."""
        return self.critic.causal

    def open_session(self, *, memory_tokens: int | None = None) -> Session:
        """See `PRM.open_session`."""
        del memory_tokens
        return Session(self, "a generative PRM writes about the whole solution each time")

    def score_many(
        self, solutions: Iterable[Solution], *, keep_going: bool = False
    ) -> Iterator[StepScores | Refusal]:
        """Score a stream of solutions; see `PRM.score_many`.

        `in_flight` solutions are graded together, their requests in common batches. A failing
        policy (`BackendError`) ends the run even with `keep_going`; with a `store`, the next run goes on.
        """
        policy = CachedPolicy(self._policy, self._store)
        before = self._policy.tokens_written

        def graded(solution: Solution) -> Awaitable[Critiqued | InputError]:
            return self._graded(solution, policy)

        with closing(run_tasks(solutions, graded, in_flight=self._in_flight)) as results:
            for solution, result in results:
                written = self._policy.tokens_written
                self.ledger.tokens_written += written - before
                before = written
                if isinstance(result, InputError):
                    if not keep_going:
                        raise result
                    yield Refusal(solution=solution, error=result)
                    continue
                self.ledger.solutions += 1
                self.ledger.steps += len(result.scores)
                self.without_verdict += result.without_verdict
                yield StepScores(scores=result.scores, kind=self.score_kind, critiques=result.critiques)

    async def _graded(self, solution: Solution, policy: Completing) -> Critiqued | InputError:
        """Grade one solution; its own error is its result, so that it does not cost the others."""
        try:
            check(solution, self.critic.markers)
            return await self.critic.grade(
                solution.problem.text, solution.texts, context_of(solution), policy
            )
        except InputError as error:
            return error.at(solution.id) if solution.id is not None else error
