"""What `stepmark.rl` is: a function, and the place of its settings and credit methods."""

from __future__ import annotations

from typing import final

from stepmark.rl import hacking as _hacking
from stepmark.rl import settings as _settings
from stepmark.rl.adapters.completions import advantages as _advantages
from stepmark.rl.adapters.completions import rate as _rate
from stepmark.rl.batch import Batch as _Batch
from stepmark.rl.credit import Assigned as _Assigned
from stepmark.rl.credit import Needs as _Needs
from stepmark.rl.credit import methods as _methods
from stepmark.rl.credit import turns as _turns
from stepmark.rl.run import TrainedPolicy as _TrainedPolicy
from stepmark.rl.run import rl as _rl

__all__ = ["RLAPI"]


@final
class RLAPI:
    """`stepmark.rl(problems, policy, prm, …)`, its settings, and the credit methods that it takes."""

    __call__ = staticmethod(_rl)
    GRPO = _methods.GRPO
    RLOO = _methods.RLOO
    ProcessGRPO = _methods.ProcessGRPO
    MinForm = _methods.MinForm
    ProgressAdvantage = _methods.ProgressAdvantage
    PRIME = _methods.PRIME
    PPO = _methods.PPO
    Discounted = _methods.Discounted
    MTGRPO = _methods.MTGRPO
    Training = _settings.Training
    Implicit = _settings.Implicit
    Refitting = _settings.Refitting
    Watch = _hacking.Watch
    TrainedPolicy = _TrainedPolicy
    Watched = _hacking.Watched
    # What a credit method of your own is made of.
    Batch = _Batch
    Needs = _Needs
    Assigned = _Assigned
    # Credit for the turns of conversations.
    turns = _turns
    # What a trainer of another library calls.
    rate = staticmethod(_rate)
    advantages = staticmethod(_advantages)
