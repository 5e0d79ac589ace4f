"""A PRM behind a vLLM `/pooling` server: tokens go out, logits a step come back.

Token ids are sent, never text: in text mode a server adds special tokens and template messages of its own.
Raw logits are asked for (`use_activation: false`), so the same readout as in process makes the scores. The
server may pool every token, or only step tags (`tok_pooling_type: STEP`, the default for
`Qwen2ForProcessRewardModel`); anything else is refused.

Source: vLLM 0.33, `POST /pooling`, task token_classify.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from stepmark.errors import BackendError, CheckpointError
from stepmark.models.encoding import Encoded, Encoder
from stepmark.models.heads import Neutral, step_scores
from stepmark.models.http import AGAIN, Closing, DeclinedError, Patience, Server
from stepmark.models.identity import named
from stepmark.models.local import WindowedPRM
from stepmark.models.prm import Ledger, Session, WholePrefixSession
from stepmark.models.spec import ConfidenceHead, LogRatioHead, ScoringSpec, VocabHead
from stepmark.records import StepScores


class PoolingPRM(WindowedPRM, Closing):
    """Scores through a server. Made by `load_prm` from an address.

    Args:
        address: `http://host:port`; `/pooling` and `/v1/models` are added.
        model: the served model's name; None asks the server, which must then serve one.
        identity: gives what tells tokenizer and reading from others; the server adds what it reports of the model.
        batch: solutions a request.
        pause: seconds before the first retry; doubled at each.
        api_key_env: name of the environment variable that holds the API key; None sends none.

    Raises:
        UsageError: that variable is not set.
        BackendError: the server cannot be reached or answers something that is not one row of logits a step.
        CheckpointError: a family that `/pooling` cannot serve.
    """

    def __init__(
        self,
        address: str,
        spec: ScoringSpec,
        encoder: Encoder,
        *,
        identity: Callable[[], str],
        model: str | None = None,
        neutral: Neutral = "positive",
        batch: int = 32,
        timeout: float = 300.0,
        pause: float = 0.5,
        api_key_env: str | None = None,
    ) -> None:
        if isinstance(spec.readout.head, ConfidenceHead | LogRatioHead | VocabHead):
            raise CheckpointError(
                f"{spec.family} reads the language-model head, which /pooling does not serve; load it in this process"
            )
        super().__init__(address, spec, encoder, Ledger(), 4096, identity)
        patience = Patience(retries=3, first_wait=pause, timeout=timeout)
        self._server = Server(
            address, patience=patience, key=api_key_env, rng=random.Random(0), again=AGAIN | {504}
        )
        self._neutral, self._batch = neutral, batch
        self._model = model or self._only_model()

    def _place(self) -> dict[str, object]:
        return {"model": self._model}

    @property
    def identity(self) -> str:
        """See `PRM.identity`. Of weights that lie on the server it has what the server reports: the model's name, folder and length."""
        try:
            listed = self._models()
        except (
            BackendError
        ):  # a server that lists no models; one that is gone fails when it is asked for scores
            listed = []
        reported = [
            {key: entry.get(key) for key in ("id", "root", "parent", "max_model_len")}
            for entry in listed
            if entry.get("id") == self._model
        ]
        return named(super().identity, self._model, reported)

    def open_session(self, *, memory_tokens: int | None = None) -> Session:
        """See `PRM.open_session`."""
        del memory_tokens
        return WholePrefixSession(self, "a server keeps no state for us")

    def close(self) -> None:
        """Close the connections. Leaving a `with` block does it too."""
        self._server.close()

    def _models(self) -> list[dict[str, Any]]:
        listed = self._ask("/v1/models", None).get("data")
        return [entry for entry in listed if isinstance(entry, dict)] if isinstance(listed, list) else []

    def _only_model(self) -> str:
        names = [entry.get("id") for entry in self._models()]
        if len(names) != 1 or not isinstance(names[0], str):
            raise BackendError(f"{self.name} serves {names}; name one with `model`")
        return names[0]

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
                f"{self.name}/pooling: {len(encoded)} solutions sent, "
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
        reads = [r for r in e.reads if r is not None]
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
                f"{self.name}/pooling: expected {len(reads)} rows (one a step) or {len(e.ids)} (one a token), found the "
                f"shape {tuple(logits.shape)}; is the step tag of the server the mark of {self.spec.family}?"
            )
        if len(logits) == len(e.ids):
            logits = logits[torch.tensor(reads)]
        try:
            scores, classes = step_scores(self.spec.readout, logits, self._neutral)
        except CheckpointError as error:  # here it is the server that gave what the family cannot have
            raise BackendError(f"{self.name}/pooling: {error}") from error
        return self.scores_of(e, scores, classes)

    def _ask(self, path: str, body: dict[str, Any] | None) -> Mapping[str, Any]:
        try:
            return self._server.ask(path, body, lambda data: data)
        except DeclinedError as declined:
            raise declined.as_backend_error() from None
