"""Process rewards in verl: a reward manager, agent loops that carry its rewards, and advantage estimators.

Made for verl 0.9.1's default trainer (`trainer.use_v1`). There a custom estimator is given one tensor (B, T) of rewards and nothing else, and the
rollout puts a reward manager's result, a single number, on the last token. So outcome and step scores travel in one row of token rewards
(`completions.token_row`), which `StepAgentLoop` puts into the batch and the estimators take apart. Where tools are called (`StepToolAgentLoop`), a step
is a turn, and the mask of what the policy wrote goes to the reward manager with the rollout's extra fields. Importing this module registers everything:
`VERL_USE_EXTERNAL_MODULES=stepmark.rl.adapters.verl`, for all of Ray's workers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import cache, partial
from threading import Lock
from typing import Any

import torch

from stepmark.errors import MissingExtraError, UsageError
from stepmark.models.load import load_prm
from stepmark.rl.adapters.rating import (
    CARRIED,
    estimator,
    problem_of,
    rate,
    rate_turns,
    row_of,
    solution_scores,
)
from stepmark.rl.credit import Credit
from stepmark.rl.credit.assignment import CREDITS
from stepmark.rl.rewarding import RewardedCompletion

try:
    from verl.experimental.agent_loop import agent_loop
    from verl.experimental.agent_loop.single_turn_agent_loop import SingleTurnAgentLoop
    from verl.experimental.agent_loop.tool_agent_loop import ToolAgentLoop
    from verl.experimental.reward_loop.reward_manager import naive, register
    from verl.trainer.ppo.core_algos import register_adv_est
except ImportError as error:
    raise MissingExtraError(f"this adapter needs verl (pip install verl==0.9.1): {error}") from error

_loaded = cache(load_prm)
# verl asks for many completions at once, and a PRM in this process computes one thing at a time.
_ALONE = Lock()
_WRITTEN = "stepmark_written"
"""The extra field of a rollout with tools: its response mask."""


class StepOutput(agent_loop.AgentLoopOutput):  # type: ignore[misc]
    """A rollout whose reward is a row of token rewards."""

    reward_score: list[float] | None = None

    def as_dict(self) -> dict[str, Any]:
        """As verl's, with the row as `rm_scores`; verl's own puts a number on the last token."""
        row, self.reward_score = self.reward_score, None
        output: dict[str, Any] = super().as_dict()
        self.reward_score = row
        if row is not None:
            output["rm_scores"] = torch.tensor(row, dtype=torch.float32)
        return output


@agent_loop.register("stepmark_single_turn")
class StepAgentLoop(SingleTurnAgentLoop):  # type: ignore[misc]
    """verl's single turn, with room for token rewards: `actor_rollout_ref.rollout.agent.default_agent_loop=stepmark_single_turn`."""

    async def run(self, sampling_params: dict[str, Any], **row: Any) -> StepOutput:
        """As verl's."""
        return _with_room(await super().run(sampling_params, **row))


@agent_loop.register("stepmark_tool_agent")
class StepToolAgentLoop(ToolAgentLoop):  # type: ignore[misc]
    """verl's loop with tools, with room for token rewards: `actor_rollout_ref.rollout.agent.default_agent_loop=stepmark_tool_agent`."""

    async def run(self, sampling_params: dict[str, Any], **row: Any) -> StepOutput:
        """As verl's."""
        output = _with_room(await super().run(sampling_params, **row))
        output.extra_fields[_WRITTEN] = list(output.response_mask)
        return output


def _with_room(output: Any) -> StepOutput:
    return StepOutput(**{name: getattr(output, name) for name in output.model_fields_set})


@register("stepmark")
class StepRewardManager(naive.NaiveRewardManager):  # type: ignore[misc]
    """The outcome by verl's reward function, and a PRM's score of each step: `reward.reward_manager.name=stepmark`.

    Settings stand in `reward.reward_kwargs`: `prm` (what `load_prm` takes: an address, a folder, "package.module:factory"), `split` ("line"), `problem` (the
    key of `extra_info` that holds the problem's text; without it the last user message). With tools `split` is not used: a step is a turn. Each of `reward.num_workers` loads the PRM and asks it for one
    completion at a time. A completion that the PRM cannot read has no step scores.

    Raises:
        UsageError: no `prm`, or a setting that there is not.
    """

    def __init__(
        self,
        config: Any,
        tokenizer: Any,
        compute_score: Any,
        reward_router_address: str | None = None,
        reward_model_tokenizer: Any = None,
    ) -> None:
        super().__init__(config, tokenizer, compute_score, reward_router_address, reward_model_tokenizer)
        self._how = dict(config.reward.get("reward_kwargs") or {})
        if "prm" not in self._how or self._how.keys() - {"prm", "split", "problem"}:
            raise UsageError(f"reward_kwargs: expected prm, split, problem; found {sorted(self._how)}")

    async def run_single(self, data: Any) -> dict[str, Any]:
        """`reward_score`: the row of the last rollout in `data`; `reward_extra_info`: verl's, the `outcome`, and the number of `steps`."""
        result = await super().run_single(data)
        item = data[len(data) - 1]
        responses = item.batch["responses"]
        ids = responses[: int(item.batch["attention_mask"][-len(responses) :].sum())].tolist()
        columns = item.non_tensor_batch.get("extra_info") or {}
        problem = problem_of(list(item.non_tensor_batch["raw_prompt"]), columns, self._how.get("problem"))
        written = (item.non_tensor_batch.get("tool_extra_fields") or {}).get(_WRITTEN)
        rated = await asyncio.to_thread(self._rate, problem, ids, written)
        outcome = float(result["reward_score"])
        extra = {**result["reward_extra_info"], "outcome": outcome, "steps": len(rated.steps)}
        return {"reward_score": row_of(rated, outcome, written=written), "reward_extra_info": extra}

    def _rate(self, problem: str, ids: list[int], written: Sequence[int] | None) -> RewardedCompletion:
        decode = partial(self.tokenizer.decode, skip_special_tokens=True)
        with _ALONE:
            prm, split = _loaded(self._how["prm"]), self._how.get("split", "line")
            if written is not None:
                return rate_turns([problem], [ids], [written], decode, prm=prm)[0]
            return rate([problem], [ids], decode, prm=prm, split=split)[0]

    @classmethod
    def assemble_rm_scores(cls, data: Any, scores: Sequence[Sequence[float]]) -> torch.Tensor:
        """(B, T): the rows of `run_single`, padded with 0."""
        width = data.batch["responses"].shape[1]
        return torch.tensor([[*row, *[0.0] * (width - len(row))] for row in scores])


def prm_score(
    data_source: str,
    solution_str: str,
    ground_truth: str,
    extra_info: dict[str, Any],
    *,
    prm: str,
    unread: float,
    aggregate: str | None = None,
    split: str = "line",
    problem: str = "question",
) -> dict[str, float]:
    """A plain verl reward function: one number for each completion; alone it is what gets hacked.

    `reward.custom_reward_function.path=pkg://stepmark.rl.adapters.verl`, `.name=prm_score`, settings in `.reward_kwargs`. `unread` is the reward of a completion
    that is blank or that the PRM cannot read; `problem` is the key of `extra_info` with the problem's text; the others are `trl.prm_reward`'s.
    """
    text = problem_of(None, extra_info, problem)
    with _ALONE:
        score = solution_scores(_loaded(prm), [text], [solution_str], aggregate=aggregate, split=split)[0]
    return {"score": unread if score is None else score}


def register_credit(name: str, credit: Credit) -> None:
    """Have `algorithm.adv_estimator=NAME` mean a credit method with these settings; in a module that all of Ray's workers import."""
    register_adv_est(name)(estimator(credit))


for _name in CARRIED:
    register_credit(f"stepmark-{_name}", CREDITS.load(_name)())
