"""What a worker on a cluster answers with: a policy and a verifier, built there from their names."""

from __future__ import annotations

from typing import Literal

from stepmark.batching import Answerer
from stepmark.models.policies import Dtype
from stepmark.problems.code_sandbox import Isolation

BUILD = "stepmark.labels.workers:build"
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
    """The answerers of a policy and of a verifier.

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
    from stepmark.models import policies
    from stepmark.problems import answers

    built: dict[type, Answerer] = {}
    if verifier is not None:
        built |= answers.answerers(answers.load_verifier(verifier, percent=percent, isolation=isolation))
    if policy is not None:
        built |= policies.answerers(policies.load_policy(policy, dtype=dtype, device=device))
    return built
