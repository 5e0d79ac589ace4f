"""A PRM behind a vLLM `/pooling` server: tokens go out, logits a step come back.

Raw logits are asked for (`use_activation: false`), so the same readout as in process makes the scores. The
server may pool every token, or only step tags (`tok_pooling_type: STEP`, the default for
`Qwen2ForProcessRewardModel`); anything else is refused.

Source: vLLM 0.33, `POST /pooling`, task token_classify.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, final

import torch

from stepmark.errors import BackendError, CheckpointError
from stepmark.models.encoding import Encoded
from stepmark.models.prm import Session, WholePrefixSession
from stepmark.models.served import ServedPRM, read_positions
from stepmark.models.spec import ConfidenceHead, LogRatioHead, TokenHead, VocabHead
from stepmark.records import StepScores
from stepmark.show.text import amount


@final
class PoolingPRM(ServedPRM):
    """Scores through `/pooling`; a `BackendError` where it answers something that is not one row of logits a step. Arguments as of `ServedPRM`."""

    def _prepare(self) -> None:
        if isinstance(self.spec.readout.head, ConfidenceHead | LogRatioHead | TokenHead | VocabHead):
            raise CheckpointError(
                f"{self.spec.family} reads the language-model head, which /pooling does not serve; load it in this process"
            )

    def open_session(self, *, memory_tokens: int | None = None) -> Session:
        """See `PRM.open_session`."""
        del memory_tokens
        return WholePrefixSession(self, "a server keeps no state for us")

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
        data = self._ask("/pooling", body).get("data")
        if not isinstance(data, list) or len(data) != len(encoded):
            raise BackendError(
                f"{self.name}/pooling: {amount(len(encoded), 'solution')} sent, "
                f"{len(data) if isinstance(data, list) else 'no list'} answered"
            )
        by_index = {str(entry.get("index")): entry for entry in data if isinstance(entry, dict)}
        result = []
        for i, e in enumerate(encoded):
            if str(i) not in by_index:
                raise BackendError(f"{self.name}/pooling: no answer has index {i}")
            result.append(self._read(e, by_index[str(i)].get("data")))
            tokens = len(e.ids)
            self.ledger.tokens_in += tokens
            self.ledger.tokens_distinct += tokens
            self.ledger.tokens_computed += tokens
        return result

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
