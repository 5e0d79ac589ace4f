"""What a search has spent on a problem, and what it may still ask for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

from stepmark.batching import Write, Written
from stepmark.errors import UsageError
from stepmark.search.nodes import added
from stepmark.search.searching import Budget, Cost, Sizes


@final
class Spending:
    """The account of one search.

    Args:
        budget: what may be spent.
        sizes: of the models, for operations.
        scored: whether a PRM reads what is written.

    Raises:
        UsageError: a budget of operations without the sizes that they are counted by.
    """

    def __init__(self, budget: Budget, sizes: Sizes, *, scored: bool) -> None:
        self._budget, self._sizes, self._scored = budget, sizes, scored
        self._prompt: int | None = 0
        self._new: int | None = None
        self._decoded: int | None = 0
        self._told: int | None = 0
        self._prm_prompt: int | None = 0
        self._prm: int | None = 0
        self._flops: dict[str, float | None] = {"policy": 0.0, "prm": 0.0}
        self._writes = self._samples = self._scores = 0
        self._context = 0
        if budget.flops is not None and (sizes.policy is None or (scored and sizes.prm is None)):
            raise UsageError("a budget of operations needs the sizes of the models that it is counted by")

    def allow(self, samples: int, limit: int, longest: int) -> tuple[int, int]:
        """How many of some samples may be asked for now, and how many tokens each.

        Where the rest of the budget would not do for all of them at their longest, so many are asked for as it does at the length
        seen so far (one, where none was seen), and the others afterwards: what is cut off is of no use.

        Args:
            samples: how many are wanted.
            limit: the longest that is wanted.
            longest: the longest one so far; 0 for none.

        Returns:
            Samples, 0 where nothing more may be written; and `max_tokens` of each.
        """
        left = self._left(limit)
        if left is None or left >= samples * limit:
            return samples, limit
        if left < 1:
            return 0, limit
        count = min(samples, max(1, left // longest)) if longest else 1
        return count, min(limit, left // count)

    def wrote(self, write: Write, reply: Sequence[Written]) -> None:
        """Enter what was written."""
        self._writes += 1
        self._samples += len(reply)
        told = [one.prompt_tokens for one in reply]
        prompt = told[0] if told else None
        if prompt is None and self._budget.flops is not None:
            raise UsageError(
                "a budget of operations needs a policy that says how many tokens its prompts have; give a budget of tokens"
            )
        if self._writes == 1:
            self._new = prompt
            self._operations("policy", prompt, 0)
        self._prompt = added(self._prompt, prompt)
        self._told = added(self._told, reply[0].cached_tokens if reply else None)
        for one in reply:
            if one.tokens is None and (self._budget.tokens is not None or self._budget.flops is not None):
                raise UsageError("this policy does not say how many tokens it writes; leave the budget out")
            self._decoded = added(self._decoded, one.tokens)
            self._operations("policy", one.tokens, prompt)
            self._context = max(self._context, (prompt or 0) + (one.tokens or 0))

    def read(self, tokens: int | None, before: int) -> None:
        """Enter what the PRM read.

        Args:
            tokens: how many.
            before: tokens before them.
        """
        self._scores += 1
        if tokens is None and (self._budget.tokens is not None or self._budget.flops is not None):
            raise UsageError("this PRM does not say how many tokens it reads; leave the budget out")
        self._prm = added(self._prm, tokens)
        self._prm_prompt = added(self._prm_prompt, None if tokens is None else before + tokens)
        self._operations("prm", tokens, before)

    def cost(self) -> Cost:
        """The cost so far."""
        return Cost(
            prompt=self._prompt,
            new=self._new if self._writes else 0,
            told_cached=self._told,
            decoded=self._decoded,
            prm_prompt=self._prm_prompt,
            prm=self._prm,
            policy_flops=self._flops["policy"],
            prm_flops=self._flops["prm"],
            writes=self._writes,
            samples=self._samples,
            scores=self._scores,
        )

    def _left(self, limit: int) -> int | None:
        """Tokens that may still be written, a PRM's reading of them kept back; None for any number."""
        lefts = []
        if self._budget.tokens is not None:
            assert self._decoded is not None
            assert self._prm is not None
            left = self._budget.tokens - self._decoded - self._prm
            lefts.append(left // 2 if self._scored else left)
        if self._budget.flops is not None:
            spent = [flops for flops in self._flops.values() if flops is not None]
            assert len(spent) == 2  # what they are made of was refused where it was not told
            assert self._sizes.policy is not None
            at = self._context + limit  # the dearest token of the request
            each = self._sizes.policy.flops(1, at)
            if self._scored and self._sizes.prm is not None:
                each += self._sizes.prm.flops(1, at)
            lefts.append(int((self._budget.flops - sum(spent)) // each))
        return min(lefts) if lefts else None

    def _operations(self, model: str, tokens: int | None, before: int | None) -> None:
        size = self._sizes.policy if model == "policy" else self._sizes.prm
        known = self._flops[model]
        if known is None or size is None or tokens is None or before is None:
            self._flops[model] = None
        else:
            self._flops[model] = known + size.flops(tokens, before)
