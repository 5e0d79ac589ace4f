"""The implicit PRM: a language model fitted to outcomes alone, whose log-ratio to its base then scores every step.

Yuan et al. 2024, "Free process rewards without process labels" (arXiv:2412.01981): if the outcome reward is written as
beta * log(policy / reference) of the whole answer, then the same ratio summed up to a step's end tells the outcome that is to be
expected from there on, without a label on any step.

The reference is the base: with LoRA the same network with its adapter switched off, with all weights a frozen second copy. Its
log-probabilities do not change, so they are computed once for each tree and kept, four bytes a token.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from stepmark.errors import UsageError
from stepmark.models.backbone import load_backbone
from stepmark.models.checkpoint import Tensors
from stepmark.models.heads import output_rows
from stepmark.models.spec import ChatLayout, Layout, LogRatioHead, Readout, ScoringSpec, TextLayout
from stepmark.settings import settings
from stepmark.training.examples import Dropped, Example
from stepmark.training.logprobs import answer_tokens, token_logprobs
from stepmark.training.net import Net, hidden_states
from stepmark.training.objectives.base import Fitted
from stepmark.training.packing import TrainingItem, items_of

Floats = npt.NDArray[np.float32]


@settings
class _Implicit(ABC):
    """What both forms share. Abstract: `_loss`."""

    name: ClassVar[str]
    outcomes: ClassVar[bool] = True
    marked: ClassVar[bool] = False
    """The text itself is read; a token that the base has never seen would only add to its log-ratio."""
    beta: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 0.05
    """Scale of the log-ratio, in training and when the checkpoint is read. EurusPRM was trained with 0.05."""

    def spec(self, layout: Layout, base: str) -> ScoringSpec:
        """The log-ratio to the base, summed to each step's end.

        Raises:
            UsageError: a layout without one text for all steps.
        """
        if not isinstance(layout, TextLayout | ChatLayout):
            raise UsageError(f"an implicit PRM is read in one text, not in the layout {layout.kind!r}")
        return ScoringSpec(
            family="stepmark-implicit",
            summary="stepmark's own implicit PRM: the log-ratio to its base, summed to each step's end",
            source="trained by `stepmark train`; Yuan et al. 2024",
            layout=layout,
            readout=Readout(head=LogRatioHead(beta=self.beta, reference=base), activation="identity"),
            score_kind="log-ratio",
            aggregate="min",
            aggregate_source="ImplicitPRM's default for best-of-N",
            threshold=0.0,
        )

    def head(self, net: Net) -> torch.nn.Module:
        """The language-model head and the reference; nothing new is trained."""
        return LogRatios(net)

    def wanted(self, example: Example) -> Example:
        """The example as it is: its outcome is fitted, and labels of steps, where there are any, are for measuring."""
        return example

    def items(
        self, group: Sequence[Example], net: Net, *, budget: int, dropped: Dropped, every_step: bool
    ) -> Iterator[TrainingItem]:
        """Trees of solutions whose outcome is known."""
        for example in group:
            if example.outcome is None:
                dropped.note("rows without an outcome", example.where)
        judged = [example for example in group if example.outcome is not None]
        for item in items_of(
            judged, net.encoder, budget=budget, dropped=dropped, every_step=every_step, outcomes=True
        ):
            why = self._unfit(item)
            if why and not every_step:
                dropped.note(why, item.rows[0].example.where, len(item.rows))
                continue
            yield item

    def fit(self, net: Net, batch: Sequence[TrainingItem]) -> Fitted:
        """Forward pass and loss."""
        head = net.head
        assert isinstance(head, LogRatios)
        ratios = self.beta * head(batch)
        offsets = np.cumsum([0, *(len(item.tree) for item in batch)])
        rows = [
            (item, row, int(offset))
            for item, offset in zip(batch, offsets[:-1], strict=True)
            for row in item.rows
        ]
        answers = [offset + row.path[row.answer :] for _, row, offset in rows]
        begins = np.cumsum([0, *(len(answer) for answer in answers)])
        # One cumulative sum over all answers, in float64: what a row has come to is the difference of two entries.
        flat = torch.from_numpy(np.concatenate(answers)).to(ratios.device)
        owns = [
            np.ones(len(row.path) - row.answer, bool) if row.own is None else row.own for _, row, _ in rows
        ]
        own = torch.from_numpy(np.concatenate(owns)).to(ratios.device)
        sums = F.pad((ratios[flat].double() * own).cumsum(0), (1, 0))
        totals = (sums[begins[1:].tolist()] - sums[begins[:-1].tolist()]).float()
        loss, labels, first = ratios.sum() * 0.0, 0.0, 0
        known = sums.detach().cpu().numpy()
        scores: list[float] = []
        for item in batch:
            sides = np.asarray([bool(row.example.outcome) for row in item.rows])
            right, wrong = (first + np.flatnonzero(side) for side in (sides, ~sides))
            part, count = self._loss(totals[right.tolist()], totals[wrong.tolist()])
            loss, labels = loss + part, labels + count
            item_scores = [0.0] * len(item.reads)
            for begin, row in zip(begins[first:], item.rows, strict=False):
                for place in row.reads:
                    if place is not None:
                        # The depth of a token is its place in the row.
                        length = int(item.tree.depths[item.reads[place]]) - row.answer + 1
                        item_scores[place] = float(known[begin + length] - known[begin])
            scores += item_scores
            first += len(item.rows)
        return Fitted(loss=loss, labels=labels, scores=tuple(scores))

    @abstractmethod
    def _loss(self, right: Tensor, wrong: Tensor) -> tuple[Tensor, float]:
        """Sum of losses of one tree, and of how many labels, from the log-ratios of its whole answers: [right], [wrong]."""

    def _unfit(self, item: TrainingItem) -> str:
        """Why a tree cannot be trained on; empty where it can."""
        return ""


@settings
class ImplicitCrossEntropy(_Implicit):
    """Binary cross-entropy of the whole answer's log-ratio against its outcome: one label a solution, and no pairs needed; the form
    that Yuan et al. 2024 found to need the least data."""

    name: ClassVar[str] = "implicit-ce"

    def _loss(self, right: Tensor, wrong: Tensor) -> tuple[Tensor, float]:
        return F.softplus(-right).sum() + F.softplus(wrong).sum(), float(len(right) + len(wrong))


@settings
class ImplicitDPO(_Implicit):
    """A right solution's log-ratio above a wrong one's of the same problem (Rafailov et al. 2023, equation 7, on outcomes as in Yuan et
    al. 2024).

    Pairs are all of a right and a wrong solution that stand in one tree: every answer is computed once, so that a pair costs a
    subtraction. With n right and m wrong ones there are n * m pairs, which are not as many labels: together they weigh min(n, m), as
    many as could be made with each solution in one pair only. A problem with many samples does not outweigh the others by their product.
    """

    name: ClassVar[str] = "implicit-dpo"

    def _loss(self, right: Tensor, wrong: Tensor) -> tuple[Tensor, float]:
        if not (len(right) and len(wrong)):
            return right.sum() + wrong.sum(), 0.0
        labels = min(len(right), len(wrong))
        return F.softplus(wrong[None, :] - right[:, None]).mean() * labels, float(labels)

    def _unfit(self, item: TrainingItem) -> str:
        sides = {row.example.outcome for row in item.rows}
        return "" if len(sides) == 2 else "solutions without one of the other outcome in the same tree"


class LogRatios(torch.nn.Module):
    """log policy - log reference of the answers' tokens. It owns no parameters that are trained.

    Raises:
        CheckpointError: the base has no language-model head.
    """

    def __init__(self, net: Net) -> None:
        super().__init__()
        # In lists, so that torch takes neither for a part of the head: the policy has its own place, the reference none.
        self._net = [net]
        self._frozen: list[tuple[Any, Tensor]] = []
        self._kept: dict[bytes, Floats] = {}
        net.output()
        if net.weights.full:
            self._frozen.append(_frozen_copy(net))

    def forward(self, batch: Sequence[TrainingItem]) -> Tensor:
        """[tokens] of the batch, float32; 0 for tokens of no answer."""
        net = self._net[0]
        policy = token_logprobs(net.hidden(batch), net.output(), batch, answer_tokens(batch))
        reference = np.concatenate([self.reference(item) for item in batch])
        return policy - torch.from_numpy(reference).to(policy.device)

    def reference(self, item: TrainingItem) -> Floats:
        """The reference's log-probabilities [tokens] of one tree; computed once, and tree by tree, so that what else is in a batch
        and whether a run was resumed do not move them by a rounding."""
        answers = answer_tokens([item])
        key = hashlib.sha256(
            b"".join(a.tobytes() for a in (item.tree.ids, item.tree.parents, answers))
        ).digest()
        if key not in self._kept:
            self._kept[key] = self._computed(item, answers)
        return self._kept[key]

    def _computed(self, item: TrainingItem, answers: npt.NDArray[np.int64]) -> Floats:
        net = self._net[0]
        with torch.no_grad():
            if self._frozen:
                backbone, output = self._frozen[0]
                hidden = hidden_states(backbone, [item], net.device)
            else:
                training = net.model.training
                net.model.eval()
                with net.model.disable_adapter():
                    hidden, output = net.hidden([item]), net.output()
                net.model.train(training)
            logprobs: Floats = token_logprobs(hidden, output, [item], answers).cpu().numpy()
        return logprobs


def _frozen_copy(net: Net) -> tuple[Any, Tensor]:
    backbone = load_backbone(net.base, dtype=net.dtype, device=net.device).requires_grad_(False)
    if net.tied:
        output: Tensor = backbone.get_input_embeddings().weight
    else:
        output = output_rows(Tensors(net.base), backbone).to(net.device, net.dtype)
    return backbone, output
