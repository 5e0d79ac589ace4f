"""The models of a search, in this process or on a worker of a cluster: what answers, what must be known of them, what they have spent."""

from __future__ import annotations

import json

from stepmark.batching import Answerer
from stepmark.batching.cluster_worker import Built, Fact
from stepmark.models.policies import Policy
from stepmark.models.prm import PRM, Weights

BUILD = "stepmark.search.workers:build"
"""`build`, as `batching.cluster.Build` names it."""


def build(
    *,
    policy: str,
    policy_arguments: str,
    prm: str | None,
    prm_arguments: str,
    memory_tokens: int | None = None,
    policy_memory_tokens: int = 0,
) -> Built:
    """A policy and a PRM by their names, on a worker; see `built`.

    Args:
        policy: as `models.policies.load_policy` takes it.
        policy_arguments: its other arguments, as JSON.
        prm: as `models.load.load_prm` takes it; None where the search asks none.
        prm_arguments: its other arguments, as JSON.
        memory_tokens: tokens whose keys and values the PRM keeps at most.
        policy_memory_tokens: the same of the policy.

    Raises:
        StepmarkError: whatever those two raise.
    """
    from stepmark.models.load import load_prm
    from stepmark.models.policies import load_policy

    judge = None if prm is None else load_prm(prm, **json.loads(prm_arguments))
    writer = load_policy(
        policy, **{**json.loads(policy_arguments), "counts": True, "memory_tokens": policy_memory_tokens}
    )
    return built(writer, judge, memory_tokens=memory_tokens)


def built(policy: Policy, prm: PRM | None, *, memory_tokens: int | None = None) -> Built:
    """What answers the requests of a search.

    Args:
        policy: writes.
        prm: scores; None where the search asks none.
        memory_tokens: tokens whose keys and values the PRM keeps at most.

    Returns:
        Facts: of the PRM `name`, `score_kind`, `aggregate`, `threshold` and `whole_prefixes` (why it must read them; "" where it need
        not), of both `parameters` and `attention` (see `models.prm.Weights`) where they are known. Counters: `policy.written`,
        `prm.read`, and of a policy that keeps what it reads `policy.given`, `policy.computed`, `policy.again`.
    """
    from stepmark.models import policies, scorer

    facts: dict[str, Fact] = {}
    answerers: dict[type, Answerer] = {}
    if prm is not None:
        answerers |= scorer.answerers(prm, memory_tokens=memory_tokens)
        facts |= {
            "prm.name": prm.name,
            "prm.score_kind": prm.score_kind,
            "prm.aggregate": prm.default_aggregate,
            "prm.threshold": prm.default_threshold,
            "prm.whole_prefixes": scorer.why_whole_prefixes(prm),
            **_size_facts("prm", prm.size),
        }
    answerers |= policies.answerers(policy)
    facts |= _size_facts("policy", policies.size_of(policy))

    def counters() -> dict[str, int]:
        counts = {"policy.written": policy.tokens_written}
        if prm is not None:
            counts["prm.read"] = prm.ledger.tokens_computed + prm.ledger.tokens_written
        reading = policies.reading_of(policy)
        if reading is not None:
            counts |= {
                "policy.given": reading.given,
                "policy.computed": reading.computed,
                "policy.again": reading.again,
            }
        return counts

    return Built(answerers=answerers, facts=facts, counters=counters)


def _size_facts(which: str, weights: Weights | None) -> dict[str, Fact]:
    if weights is None:
        return {}
    return {f"{which}.parameters": weights.parameters, f"{which}.attention": weights.attention}
