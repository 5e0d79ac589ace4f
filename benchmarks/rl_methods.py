"""The runs that the benchmark of policy training compares: credit methods, the run that is hacked, and its defences."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from stepmark.rl.credit import Credit
from stepmark.rl.credit.assignment import (
    GRPO,
    PPO,
    PRIME,
    MinForm,
    ProcessGRPO,
    ProgressAdvantage,
)

OUTCOME, HACKED = "outcome", "PRM alone, no KL"


@dataclass(frozen=True, kw_only=True)
class Method:
    """A run's credit method and what differs from the others' settings."""

    credit: Credit
    kl_weight: float = 0.0
    value_weight: float = 0.5
    rate: float = 1.0
    """Times the learning rate of all."""

    @property
    def process(self) -> bool:
        """Whether steps or tokens are rewarded, and not the outcome alone."""
        return self.credit.needs.steps or self.credit.needs.tokens


LEARNING: Mapping[str, Method] = {
    OUTCOME: Method(credit=GRPO()),
    "process, half outcome": Method(credit=ProcessGRPO(process_weight=0.5)),
    "delta, fifth outcome": Method(credit=ProcessGRPO(process_weight=0.8, shaping="delta")),
    "min-form": Method(credit=MinForm()),
    # What a gradient with less noise in it allows; beside the baseline, so that nobody need guess what it gains by it.
    "delta, twice the rate": Method(credit=ProcessGRPO(process_weight=0.8, shaping="delta"), rate=2.0),
    "min-form, twice the rate": Method(credit=MinForm(), rate=2.0),
    "outcome, twice the rate": Method(credit=GRPO(), rate=2.0),
    "progress": Method(credit=ProgressAdvantage()),
    # At PRIME's own settings (weight 1, twice the policy's rate) policy and implicit PRM drove each other off: 43 % fell to 0.5 %.
    "prime": Method(credit=PRIME(process_weight=0.2)),
    # At 0.5 the critic's gradient is seven times the policy's, and Adam divides both by it.
    "ppo": Method(credit=PPO(), value_weight=0.05),
}
"""Compared by how fast they learn."""
HACKING: Mapping[str, Method] = {
    HACKED: Method(credit=ProcessGRPO()),
    "clip": Method(credit=ProcessGRPO(shaping="clip")),
    "delta": Method(credit=ProcessGRPO(shaping="delta")),
    "KL 0.05": Method(credit=ProcessGRPO(), kl_weight=0.05),
    "process, half outcome": LEARNING["process, half outcome"],
}
"""The PRM alone, and one defence each. Two of them are runs of `LEARNING` too."""
METHODS: Mapping[str, Method] = {**LEARNING, **HACKING}
