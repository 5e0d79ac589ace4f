"""PRMs behind a server that takes token ids: what `pooling.PoolingPRM` and `completions.CompletionsPRM` share.

Token ids are sent, never text: in text mode a server adds special tokens and template messages of its own.
"""

from __future__ import annotations

import random
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from torch import Tensor

from stepmark.errors import BackendError, CheckpointError
from stepmark.models.encoding import Encoded, Encoder
from stepmark.models.heads import Neutral, step_scores
from stepmark.models.http import AGAIN, Closing, DeclinedError, Patience, Server, root_of
from stepmark.models.identity import named
from stepmark.models.local_prm import WindowedPRM
from stepmark.models.prm import Ledger
from stepmark.models.spec import ScoringSpec


class ServedPRM(WindowedPRM, Closing):
    """Scores through a server. Abstract: `_prepare` refuses what such a server cannot serve, `_window` scores. Made by `load_prm` from an address.

    Args:
        address: `http://host:port`; the paths are added.
        model: the served model's name; None asks the server, which must then serve one.
        identity: gives what tells tokenizer and reading from others; the server adds what it reports of the model.
        batch: solutions a request; or requests under way at once, where each is of one solution.
        timeout: seconds without a byte before an attempt counts as failed.
        pause: seconds before the first retry; doubled at each.
        api_key_env: name of the environment variable that holds the API key; None sends none.

    Raises:
        UsageError: that variable is not set, or no address of a server.
        BackendError: the server cannot be reached, serves several models and none is named, or not the one that is named.
        CheckpointError: a family that such a server cannot serve.
    """

    together: ClassVar[int] = 4096
    """Tokens of solutions that are sent together, a quarter of them."""

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
        address = root_of(address)
        super().__init__(address, spec, encoder, Ledger(), self.together, identity)
        self._prepare()
        patience = Patience(retries=3, first_wait=pause, timeout=timeout)
        self._server = Server(
            address, patience=patience, key=api_key_env, rng=random.Random(0), again=AGAIN | {504}
        )
        self._neutral, self._batch = neutral, batch
        listed = self._listed()
        names: list[Any] = [entry.get("id") for entry in listed]
        if model is None and (len(names) != 1 or not isinstance(names[0], str)):
            raise BackendError(f"{self.name} serves {names}; name one with `model`")
        if model is not None and names and model not in names:
            raise BackendError(f"{self.name} serves {names} and not {model!r}; name one of them with `model`")
        self._model: str = names[0] if model is None else model
        self._entry = next((entry for entry in listed if entry.get("id") == self._model), None)
        """What the server lists of the model; None where it lists no models."""
        self._begin()

    @abstractmethod
    def _prepare(self) -> None:
        """Refuse (`CheckpointError`) a PRM that such a server cannot serve; nothing is asked yet."""

    def _begin(self) -> None:
        """Ask the server how it has to be asked."""

    def _place(self) -> dict[str, object]:
        return {"model": self._model}

    @property
    def identity(self) -> str:
        """See `PRM.identity`. Of weights that lie on the server it has what the server reports: the model's name, folder and length."""
        keys = ("id", "root", "parent", "max_model_len")
        reported = [] if self._entry is None else [{key: self._entry.get(key) for key in keys}]
        return named(super().identity, self._model, reported)

    def close(self) -> None:
        """Close the connections. Leaving a `with` block does it too."""
        self._server.close()

    def _listed(self) -> list[dict[str, Any]]:
        """The models that the server lists; nothing where it has no such list."""
        try:
            listed = self._server.ask("/v1/models", None, lambda data: data.get("data"))
        except DeclinedError as declined:
            if declined.status in (404, 405):
                return []
            raise declined.as_backend_error() from None
        return [entry for entry in listed if isinstance(entry, dict)] if isinstance(listed, list) else []

    def _scores(self, logits: Tensor, path: str) -> tuple[list[float], Sequence[tuple[float, ...]] | None]:
        """Scores of logits [rows, classes] that the server gave, and the class probabilities of PRMs of three classes."""
        try:
            return step_scores(self.spec.readout, logits, self._neutral)
        except CheckpointError as error:  # here it is the server that gave what the family cannot have
            raise BackendError(f"{self.name}{path}: {error}") from error

    def _ask(self, path: str, body: dict[str, Any]) -> Mapping[str, Any]:
        try:
            return self._server.ask(path, body, lambda data: data)
        except DeclinedError as declined:
            raise declined.as_backend_error() from None


def read_positions(encoded: Encoded) -> list[int]:
    """Where steps are read, without those that were cut off."""
    return [read for read in encoded.reads if read is not None]
