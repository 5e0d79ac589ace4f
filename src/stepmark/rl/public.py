"""What `stepmark.rl` is: a function, and the place of its settings and credit methods."""

from __future__ import annotations

from typing import final

from stepmark.rl.adapters.completions import advantages as _advantages
from stepmark.rl.adapters.completions import rate as _rate
from stepmark.rl.batch import Batch as _Batch
from stepmark.rl.credit import Assigned as _Assigned
from stepmark.rl.credit import Needs as _Needs
from stepmark.rl.credit import turns as _turns
from stepmark.rl.credit.methods import GRPO as _GRPO
from stepmark.rl.credit.methods import PAPO as _PAPO
from stepmark.rl.credit.methods import PPO as _PPO
from stepmark.rl.credit.methods import PRIME as _PRIME
from stepmark.rl.credit.methods import MinForm as _MinForm
from stepmark.rl.credit.methods import ProcessGRPO as _ProcessGRPO
from stepmark.rl.credit.methods import ProgressAdvantage as _ProgressAdvantage
from stepmark.rl.credit.methods import StepPPO as _StepPPO
from stepmark.rl.hacking import Baseline as _Baseline
from stepmark.rl.hacking import Cusum as _Cusum
from stepmark.rl.hacking import Watch as _Watch
from stepmark.rl.hacking import Watched as _Watched
from stepmark.rl.run import TrainedPolicy as _TrainedPolicy
from stepmark.rl.run import rl as _rl
from stepmark.rl.settings import Implicit as _Implicit
from stepmark.rl.settings import Refitting as _Refitting
from stepmark.rl.settings import Training as _Training

__all__ = ["RLAPI"]


@final
class RLAPI:
    """`stepmark.rl(problems, policy, prm, …)`, its settings, and the credit methods that it takes."""

    __call__ = staticmethod(_rl)
    GRPO = _GRPO
    ProcessGRPO = _ProcessGRPO
    MinForm = _MinForm
    ProgressAdvantage = _ProgressAdvantage
    PRIME = _PRIME
    PAPO = _PAPO
    PPO = _PPO
    StepPPO = _StepPPO
    Training = _Training
    Implicit = _Implicit
    Refitting = _Refitting
    Watch = _Watch
    Cusum = _Cusum
    TrainedPolicy = _TrainedPolicy
    Watched = _Watched
    Baseline = _Baseline
    # What a credit method of your own is made of.
    Batch = _Batch
    Needs = _Needs
    Assigned = _Assigned
    # Credit for the turns of conversations.
    turns = _turns
    # What a trainer of another library calls.
    rate = staticmethod(_rate)
    advantages = staticmethod(_advantages)
