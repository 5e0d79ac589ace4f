"""Turn rewards in SkyRL: a generator that scores the turns of another one, and advantage estimators.

Made for and tested with SkyRL 0.3.0. Its trainer takes a generator's `rewards` as a number a trajectory or as a row of token rewards, and a
custom estimator is given these rows and nothing else. So outcome and turn scores travel in one row (`completions.token_row`): each
turn's score at its last token, the outcome at the trajectory's last. Importing this module registers `stepmark-NAME` for every method of
`completions.CARRIED`; `trainer.algorithm.advantage_estimator=stepmark-mt-grpo` names one.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

from stepmark.errors import MissingExtraError, UsageError
from stepmark.models.prm import PRM
from stepmark.rl.adapters.rating import CARRIED, estimator, figures, problem_of, rate_turns, row_of
from stepmark.rl.credit import Credit
from stepmark.rl.credit.assignment import CREDITS

try:
    from skyrl.backends.skyrl_train.utils.ppo_utils import register_advantage_estimator
    from skyrl.train.generators.base import GeneratorInterface
except ImportError as error:
    raise MissingExtraError(f"this adapter needs SkyRL (pip install skyrl==0.3.0): {error}") from error


class TurnRewardGenerator(GeneratorInterface):  # type: ignore[misc]
    """A generator whose trajectories have a reward for each turn, by a PRM, beside their own outcome.

    The outcome is the sum of the inner generator's rewards of a trajectory. In evaluation, and for trajectories that the PRM cannot read, there are no turn
    scores. Give it where SkyRL makes the generator: `BasePPOExp.get_generator`.

    Args:
        generator: writes the trajectories, each whole (`generator.step_wise_trajectories=false`).
        tokenizer: of the policy.
        prm: scores turns.
        problem: the key of `env_extras` with the problem's text; None for the prompt's last user message.
    """

    def __init__(self, generator: Any, tokenizer: Any, prm: PRM, *, problem: str | None = None) -> None:
        self._generator, self._prm, self._problem = generator, prm, problem
        self._decode = partial(tokenizer.decode, skip_special_tokens=True)

    async def generate(self, input_batch: Any) -> Any:
        """The inner generator's output with `rewards` as rows of token rewards, and `prm/…` among its metrics.

        Raises:
            UsageError: trajectories in pieces, of which none is a whole conversation.
        """
        output = await self._generator.generate(input_batch)
        about = input_batch.get("batch_metadata")
        if about is not None and about.training_phase == "eval":
            return output
        if output.get("is_last_step") is not None:
            raise UsageError("expected whole trajectories: set generator.step_wise_trajectories to false")
        return await asyncio.to_thread(self._rewarded, input_batch, output)

    def _rewarded(self, input_batch: Any, output: Any) -> Any:
        rows = input_batch.get("env_extras") or [{}] * len(output["response_ids"])
        problems = [
            problem_of(prompt, row, self._problem)
            for prompt, row in zip(input_batch["prompts"], rows, strict=True)
        ]
        rated = rate_turns(
            problems, output["response_ids"], output["loss_masks"], self._decode, prm=self._prm
        )
        outcomes = [float(sum(item)) if isinstance(item, list) else float(item) for item in output["rewards"]]
        rewards = [row_of(item, outcome) for item, outcome in zip(rated, outcomes, strict=True)]
        metrics = (output.get("rollout_metrics") or {}) | {
            f"prm/{name}": value for name, value in figures(rated).items()
        }
        return {**output, "rewards": rewards, "rollout_metrics": metrics}


def register_credit(name: str, credit: Credit) -> None:
    """Have `trainer.algorithm.advantage_estimator=NAME` mean a credit method with these settings, in the process that imports this."""
    estimate = estimator(credit)

    def estimated(token_level_rewards: Any, response_mask: Any, index: Any, config: Any, **_: Any) -> Any:
        if config.use_kl_in_reward:
            raise UsageError(
                "trainer.algorithm.use_kl_in_reward hides where turns end; set trainer.algorithm.use_kl_loss instead"
            )
        return estimate(token_level_rewards, response_mask, index)

    register_advantage_estimator(name)(estimated)


for _name in CARRIED:
    register_credit(f"stepmark-{_name}", CREDITS.load(_name)())
