"""PRMs behind a vLLM server of classifiers: tokens go out, what the head gives comes back.

Of `/pooling`, raw logits are asked for (`use_activation: false`), so the same readout as in process makes the scores. The server may pool every
token, or only step tags (`tok_pooling_type: STEP`, the default for `Qwen2ForProcessRewardModel`); anything else is refused.

`/classify` reads the last token, so each step is a text of its own, of which the server's prefix cache knows most. It gives probabilities.

Source: vLLM 0.33, `POST /pooling`, task token_classify; `POST /classify`, whose activation is the sigmoid where `problem_type` in config.json is
multi_label_classification, and a softmax otherwise.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, final

import torch

from stepmark.errors import BackendError, CheckpointError
from stepmark.models.encoding import Encoded
from stepmark.models.http import usage_of
from stepmark.models.prm import Session
from stepmark.models.served import ServedPRM, read_positions
from stepmark.records import StepScores
from stepmark.words import amount


class ClassifierPRM(ServedPRM):
    """What PRMs behind a server of classifiers share. Abstract: `_window`. Arguments as of `ServedPRM`."""

    def _prepare(self) -> None:
        if not self.spec.readout.head.on_state:
            raise CheckpointError(
                f"{self.spec.family} reads the language-model head, which a classifier has not; load it in this process"
            )

    def open_session(self, *, memory_tokens: int | None = None) -> Session:
        """See `PRM.open_session`."""
        del memory_tokens
        return Session(self, "a server keeps no state for us")

    def _answers(self, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
        """An answer to each text of `input`, in order; the ledger counts as computed what the server does not report as cached."""
        texts, answer = body["input"], self._ask(path, body)
        data, cached = answer.get("data"), usage_of(answer, "prompt_tokens_details", "cached_tokens") or 0
        if not isinstance(data, list) or len(data) != len(texts):
            raise BackendError(
                f"{self.name}{path}: {amount(len(texts), 'text')} sent, "
                f"{len(data) if isinstance(data, list) else 'no list'} answered"
            )
        by_index = {str(entry.get("index")): entry for entry in data if isinstance(entry, dict)}
        for at, ids in enumerate(texts):
            if str(at) not in by_index:
                raise BackendError(f"{self.name}{path}: no answer has index {at}")
            self.ledger.tokens_in += len(ids)
            self.ledger.tokens_distinct += len(ids)
            self.ledger.tokens_computed += len(ids)
        self.ledger.tokens_computed -= min(cached, sum(map(len, texts)))
        return [by_index[str(at)] for at in range(len(texts))]


@final
class ClassifyPRM(ClassifierPRM):
    """Scores through `/classify`, of several labels; a `BackendError` where it answers something that is not one probability a label."""

    def _window(self, encoded: list[Encoded]) -> list[StepScores]:
        texts = [e.ids[: read + 1].tolist() for e in encoded for read in read_positions(e)]
        rows: list[list[float]] = []
        for start in range(0, len(texts), self._batch):
            body = {"model": self._model, "input": texts[start : start + self._batch]}
            rows += [self._probabilities(answer.get("probs")) for answer in self._answers("/classify", body)]
        results = []
        for e in encoded:
            mine = [rows.pop(0) for _ in read_positions(e)]
            scored = (
                self._scores(torch.logit(torch.tensor(mine, dtype=torch.float64), eps=1e-9), "/classify")
                if mine
                else ([], None)
            )
            results.append(self.scores_of(e, *scored))
        return results

    def _probabilities(self, given: Any) -> list[float]:
        names = self.spec.readout.class_names or ()
        numbers = isinstance(given, list) and all(isinstance(p, int | float) and 0 <= p <= 1 for p in given)
        if not numbers or len(given) != len(names):
            raise BackendError(
                f"{self.name}/classify: expected a probability of each of {amount(len(names), 'label')}, found {str(given)[:80]}; is it "
                f"{self.spec.family} that is served?"
            )
        if len(names) > 1 and abs(sum(given) - 1) < 1e-3:
            raise BackendError(
                f"{self.name}/classify: the probabilities of {amount(len(names), 'label')} sum to 1: the server takes a softmax of them, and the labels "
                'are independent; put "problem_type": "multi_label_classification" into the checkpoint\'s config.json'
            )
        return [float(p) for p in given]


@final
class PoolingPRM(ClassifierPRM):
    """Scores through `/pooling`; a `BackendError` where it answers something that is not one row of logits a step. Arguments as of `ServedPRM`."""

    def _window(self, encoded: list[Encoded]) -> list[StepScores]:
        return [
            scores
            for start in range(0, len(encoded), self._batch)
            for scores in self._send(encoded[start : start + self._batch])
        ]

    def _send(self, encoded: Sequence[Encoded]) -> list[StepScores]:
        body = {
            "model": self._model,
            "input": [e.ids.tolist() for e in encoded],
            "task": "token_classify",
            "use_activation": False,
        }
        return [
            self._read(e, answer.get("data"))
            for e, answer in zip(encoded, self._answers("/pooling", body), strict=True)
        ]

    def _read(self, e: Encoded, rows: Any) -> StepScores:
        reads = read_positions(e)
        if not reads:
            return self.scores_of(e, [], None)
        try:
            logits = torch.tensor(rows, dtype=torch.float32)
        except (TypeError, ValueError, RuntimeError, OverflowError) as error:
            raise BackendError(
                f"{self.name}/pooling: rows of numbers expected, found {str(rows)[:80]}"
            ) from error
        if logits.dim() != 2 or len(logits) not in (len(reads), len(e.ids)):
            raise BackendError(
                f"{self.name}/pooling: expected {amount(len(reads), 'row')} (one a step) or {len(e.ids)} (one a token), found the "
                f"shape {tuple(logits.shape)}; is the step tag of the server the mark of {self.spec.family}?"
            )
        if len(logits) == len(e.ids):
            logits = logits[torch.tensor(reads)]
        return self.scores_of(e, *self._scores(logits, "/pooling"))
