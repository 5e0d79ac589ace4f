"""TRL's `GRPOTrainer` with a credit method of `stepmark.rl.credit`: an advantage for each token instead of one for each completion.

Made for and tested with TRL 1.16.0, whose `_compute_loss` takes advantages of shape (B, T) "to support subclasses". Import it only where TRL is:
`pip install trl`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from torch import Tensor

from stepmark.errors import MissingExtraError
from stepmark.models.prm import PRM
from stepmark.rl.adapters import rating as rows
from stepmark.rl.adapters.rating import rate_turns
from stepmark.rl.credit import Credit
from stepmark.rl.credit.assignment import check_kind

try:
    from accelerate.utils import gather_object
    from trl import GRPOTrainer
except ImportError as error:
    raise MissingExtraError(f"this adapter needs TRL (pip install trl==1.16.0): {error}") from error


class ProcessGRPOTrainer(GRPOTrainer):  # type: ignore[misc]
    """GRPO whose advantages are a credit method's, from TRL's own rewards (the outcome) and a PRM's score of each step.

    Other arguments are TRL's. Every process scores its own completions, so each needs the PRM; scores go to all of them before credit
    is assigned, since a group may lie on several. With `tools` or an `environment_factory` a step is a turn, and tool output gets no credit. Counts, clipping, KL (`beta`), vLLM and logging are TRL's. In evaluation TRL's own
    advantages stay and the PRM is not asked.

    Args:
        credit: a method of `credit.methods` that needs no critic and no token rewards.
        prm: scores steps; None where the method needs none.
        split: how completions without tools are cut into steps (`stepmark split`).
        problem: the column that holds the problem's text; None for the prompt's last user message, or the prompt.

    Raises:
        UsageError: a method that needs what there is not.
        InputError: while it trains: a score that is no finite number.
    """

    def __init__(
        self,
        *args: Any,
        credit: Credit,
        prm: PRM | None = None,
        split: str = "line",
        problem: str | None = None,
        **options: Any,
    ) -> None:
        rows.check_credit(credit, prm=prm is not None)
        if prm is not None:
            check_kind(credit, prm.score_kind, prm=prm.name)
        self._credit, self._prm, self._split, self._problem = credit, prm, split, problem
        self._rewarded: tuple[Any, Any, Any, Tensor] | None = None
        super().__init__(*args, **options)

    def _calculate_rewards(
        self, inputs: Any, prompts: Any, completions: Any, completion_ids_list: Any
    ) -> Any:
        # Only listened to: TRL keeps neither its rewards nor the unpadded ids.
        rewards = super()._calculate_rewards(inputs, prompts, completions, completion_ids_list)
        self._rewarded = (inputs, prompts, completion_ids_list, rewards)
        return rewards

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        output: dict[str, Any] = super()._generate_and_score_completions(inputs)
        if self.model.training:
            output["advantages"] = self._credited(output)
        self._rewarded = None
        return output

    def _credited(self, output: dict[str, Any]) -> Tensor:
        """(B, T) of this process's completions, 0 where TRL does not train."""
        assert self._rewarded is not None
        inputs, prompts, ids, rewards = self._rewarded
        problems = [rows.problem_of(p, row, self._problem) for p, row in zip(prompts, inputs, strict=True)]
        decode = partial(self.processing_class.decode, skip_special_tokens=True)
        written: list[list[int]] | None = None
        if "tool_mask" in output:
            written = [m[: len(i)].tolist() for m, i in zip(output["tool_mask"], ids, strict=True)]
            mine = rate_turns(problems, ids, written, decode, prm=self._prm)
        else:
            mine = rows.rate(problems, ids, decode, prm=self._prm, split=self._split)
        every = gather_object(mine)  # in the order of the processes, as TRL's rewards are
        weighted = (rewards * self.reward_weights.to(rewards.device)).nansum(1)
        weighted[rewards.isnan().all(1)] = math.nan  # nansum would make 0 of what no function could rate
        mask: Tensor = output["completion_mask"]
        result = rows.advantages(
            every,
            [row // self.num_generations for row in range(len(every))],
            weighted.tolist(),
            self._credit,
            asked=self._prm is not None,
            tokens=max(mask.shape[1], *(len(item.drawn.ids) for item in every)),
            written=None if written is None else gather_object(written),
        )
        for name, figure in rows.figures(every).items():
            self._metrics["train"][f"prm/{name}"].append(figure)
        first = self.accelerator.process_index * len(mine)
        return result[first : first + len(mine), : mask.shape[1]].to(mask.device) * mask


def prm_reward(
    prm: PRM, *, aggregate: str | None = None, split: str = "line", problem: str | None = None
) -> Callable[..., list[float | None]]:
    """A plain TRL reward function: one number for each completion, for those who want no more of the steps.

    A blank completion and one that the PRM cannot read get None: to TRL that is 0 beside another function's reward, and else a completion that is left
    out. A PRM as the only reward is what gets hacked: give a verifier's reward beside it.

    Args:
        prm, split, problem: as `ProcessGRPOTrainer`'s.
        aggregate: how one number is made of the step scores (`metrics.aggregate`); None for the PRM's own way.
    """

    def reward(prompts: Sequence[Any], completions: Sequence[Any], **columns: Any) -> list[float | None]:
        texts = [
            completion if isinstance(completion, str) else completion[-1]["content"] or ""
            for completion in completions
        ]
        results = (
            [{problem: value} for value in columns[problem]] if problem in columns else [{}] * len(texts)
        )
        problems = [
            rows.problem_of(prompt, row, problem) for prompt, row in zip(prompts, results, strict=True)
        ]
        return rows.solution_scores(prm, problems, texts, aggregate=aggregate, split=split)

    # TRL names the reward by it in its log.
    reward.__name__ = f"prm_{aggregate or prm.default_aggregate}"
    return reward
