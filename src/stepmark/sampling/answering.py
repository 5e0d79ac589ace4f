"""What answers a run that writes and verifies: a policy and a verifier, in this process or on the workers of a Ray cluster."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Any, Literal, final

from stepmark.batching import Answerer, Write
from stepmark.batching.cluster_settings import Cluster
from stepmark.models import policies
from stepmark.models.lazy import Lazy, arguments_of, check_models
from stepmark.models.policies import Dtype, PolicyLike, load_policy, policy_of
from stepmark.problems import answers
from stepmark.problems.answers import VerifierLike, load_verifier, open_verifier, report_isolation
from stepmark.problems.code_sandbox import Isolation

BUILD = "stepmark.sampling.answering:build"
"""`build`, as `batching.cluster.Build` names it."""


def build(
    *,
    policy: str | None,
    verifier: str | None,
    dtype: Dtype = "auto",
    device: str = "auto",
    percent: Literal["distinct", "sign"] = "distinct",
    isolation: Isolation | None = None,
) -> dict[type, Answerer]:
    """The answerers of a policy and of a verifier, on a worker.

    Args:
        policy: an address, see `models.policies.load_policy`; None for no policy.
        verifier: a name, see `problems.answers.load_verifier`; None for no verifier. It is never closed: what it
            holds ends with this process.
        dtype: of a local policy.
        device: of a local policy.
        percent: see `problems.answers.load_verifier`.
        isolation: see `problems.answers.load_verifier`.

    Raises:
        StepmarkError: whatever those two raise.
    """
    built: dict[type, Answerer] = {}
    if verifier is not None:
        built |= answers.answerers(load_verifier(verifier, percent=percent, isolation=isolation))
    if policy is not None:
        built |= policies.answerers(load_policy(policy, dtype=dtype, device=device))
    return built


@final
class Answering:
    """The policy and the verifier of a run; checked when this is made, loaded by `open` and `load`.

    Args:
        policy: it, or its name; None for none.
        verifier: it, or its name; None for none.
        percent: see `problems.answers.load_verifier`.
        isolation: see `problems.answers.load_verifier`.
        cluster: whose workers answer; None for this process.

    Raises:
        UsageError: one that cannot be loaded as it is named, or settings that do not go together.
    """

    def __init__(
        self,
        policy: PolicyLike | None,
        verifier: VerifierLike | None,
        *,
        percent: Literal["distinct", "sign"] = "distinct",
        isolation: Isolation | None = None,
        cluster: Cluster | None = None,
    ) -> None:
        self._policy = None if policy is None else policy_of(policy)
        self._verifier = verifier
        self._percent = percent
        self._isolation = isolation
        check_models(cluster, self._policy, None if isinstance(verifier, str) else verifier)
        asked = self._policy is not None or verifier is not None
        self._cluster = cluster if cluster is not None and cluster.ray is not None and asked else None
        self.policy_name = None if self._policy is None else self._policy.name
        """As the caller wrote it; the name of a policy that was loaded before."""
        self.verifier_facts = answers.verifier_facts(verifier, percent, isolation)
        """What a manifest says of the verifier."""
        self.answerers: Mapping[type, Answerer] = {}
        """What answers; filled by `load`."""
        self.tokens_written: Callable[[], int] = lambda: 0
        """Tokens that the policy has written so far."""

    def open(self, stack: ExitStack, *, shown: bool) -> None:
        """Load the verifier, so that one that does not work here is refused before the run begins.

        Args:
            stack: closes it.
            shown: report what keeps its programs apart from this machine.
        """
        if self._verifier is None:
            return
        if self._cluster is None:
            verifier = open_verifier(
                self._verifier, percent=self._percent, isolation=self._isolation, shown=shown
            )
            self.answerers = answers.answerers(stack.enter_context(verifier))
        elif shown:
            report_isolation(self._verifier, self._isolation)

    def load(self, stack: ExitStack, *, most: int) -> dict[str, str]:
        """Load the policy, or both on the workers of the cluster.

        Args:
            stack: ends the workers.
            most: how many workers there are at most, where no setting says how many.

        Returns:
            The policy's identity, as manifests name it.
        """
        if self._cluster is not None:
            from stepmark.batching.cluster import Build

            settings: dict[str, Any] = {
                **arguments_of(self._policy),
                "policy": self.policy_name,
                "verifier": self._verifier,
                "percent": self._percent,
                "isolation": self._isolation,
            }
            workers = stack.enter_context(
                self._cluster.start(Build(function=BUILD, settings=settings), most=most)
            )
            self.answerers = workers.answerers
            self.tokens_written = lambda: workers.tokens_written
        elif self._policy is not None:
            policy = self._policy.load() if isinstance(self._policy, Lazy) else self._policy
            self.answerers = {**self.answerers, **policies.answerers(policy)}
            self.tokens_written = lambda: policy.tokens_written
        return {"policy": self.answerers[Write].identity} if Write in self.answerers else {}
