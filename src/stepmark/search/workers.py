"""The models of a search, in this process or on a worker of a cluster: what answers, what must be known of them, what they have spent."""

from __future__ import annotations

from typing import Any

from stepmark.batching import Answerer
from stepmark.batching.cluster_worker import Built, Fact
from stepmark.models.policies import Policy
from stepmark.models.prm import PRM

BUILD = "stepmark.search.workers:build"
"""`build`, as `batching.cluster.Build` names it."""


def build(
    *,
    policy: str,
    prm: str | None,
    family: str | None = None,
    tokenizer: str | None = None,
    dtype: str = "auto",
    device: str = "auto",
    memory_tokens: int | None = None,
    policy_memory_tokens: int = 0,
) -> Built:
    """A policy and a PRM that answer what a search asks of them.

    Args:
        policy: as `models.policies.load_policy` takes it.
        prm: as `models.load.load_prm` takes it; None where the search asks none.
        family, tokenizer: of the PRM, see `load_prm`.
        dtype, device: of both, where they compute in this process.
        memory_tokens: tokens whose keys and values the PRM keeps at most.
        policy_memory_tokens: the same of the policy.

    Returns:
        Facts: of the PRM `name`, `score_kind`, `aggregate`, `threshold` and `whole_prefixes` (why it must read them; "" where it need
        not), of both `parameters` and `attention` (see `models.sizes.Weights`) where they are known. Counters: `policy.written`,
        `prm.read`, and of a policy that keeps what it reads `policy.given`, `policy.computed`, `policy.again`.

    Raises:
        StepmarkError: whatever those two raise.
    """
    from stepmark.models import policies, scorer
    from stepmark.models.load import load_prm
    from stepmark.models.named import idle_settings

    facts: dict[str, Fact] = {}
    answerers: dict[type, Answerer] = {}
    judge = None
    if prm is not None:
        idle = idle_settings(prm, family=family, tokenizer=tokenizer)
        computing: dict[str, Any] = {"dtype": dtype, "device": device}
        read = {name: value for name, value in computing.items() if name not in idle}
        judge = load_prm(prm, family=family, tokenizer=tokenizer, **read)
        answerers |= scorer.answerers(judge, memory_tokens=memory_tokens)
        facts |= {
            "prm.name": judge.name,
            "prm.score_kind": judge.score_kind,
            "prm.aggregate": judge.default_aggregate,
            "prm.threshold": judge.default_threshold,
            "prm.whole_prefixes": scorer.why_whole_prefixes(judge),
            **_size_facts("prm", judge),
        }
    writer = policies.load_policy(
        policy, dtype=dtype, device=device, counts=True, memory_tokens=policy_memory_tokens
    )
    answerers |= policies.answerers(writer)
    facts |= _size_facts("policy", writer)

    def counters() -> dict[str, int]:
        found = {"policy.written": writer.tokens_written}
        if judge is not None:
            found["prm.read"] = judge.ledger.tokens_computed + judge.ledger.tokens_written
        reading = policies.reading_of(writer)
        if reading is not None:
            found |= {
                "policy.given": reading.given,
                "policy.computed": reading.computed,
                "policy.again": reading.again,
            }
        return found

    return Built(answerers=answerers, facts=facts, counters=counters)


def _size_facts(which: str, machine: Policy | PRM) -> dict[str, Fact]:
    from stepmark.models.sizes import weights_of

    weights = weights_of(machine)
    if weights is None:
        return {}
    return {f"{which}.parameters": weights.parameters, f"{which}.attention": weights.attention}
