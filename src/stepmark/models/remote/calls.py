"""What the client and its sessions share: answers read by the wire models that the server declares, requests cut to what the server takes, and its
errors as errors of a PRM in this process."""

from __future__ import annotations

import random
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, TypeVar, final

import httpx
from pydantic import ValidationError

from stepmark.errors import (
    BackendError,
    InputError,
    MarkerInTextError,
    StepmarkError,
    TooLongError,
    UsageError,
)
from stepmark.models.http import DeclinedError, Patience, Server, key_variable, root_of
from stepmark.models.prm import Ledger
from stepmark.models.remote.wire import Answer, ErrorBody, ModelsAnswer, PRMFacts, SessionFullError

Item = TypeVar("Item")
Value = TypeVar("Value")
AnyAnswer = TypeVar("AnyAnswer", bound=Answer)
_ERRORS = {"too_long": TooLongError, "marker_in_text": MarkerInTextError, "session_full": SessionFullError}


@final
class ServedModel(PRMFacts):
    """A PRM that a server serves, as `/v1/models` lists it."""

    id: str
    """Its name in requests."""


@final
class Calls:
    """The requests of one client; see `Client` for the arguments."""

    def __init__(
        self,
        address: str,
        model: str | None,
        patience: Patience,
        batch: int,
        transport: httpx.BaseTransport | None,
        sleep: Callable[[float], None],
        rng: random.Random | None,
        clock: Callable[[], float],
    ) -> None:
        if batch < 1:
            raise UsageError(f"batch: expected 1 or more solutions, found {batch}")
        self.server = Server(
            root_of(address),
            patience=patience,
            key=key_variable(),
            transport=transport,
            sleep=sleep,
            rng=rng,
            clock=clock,
        )
        self.name, self.ledger = model, Ledger()
        self.batch = batch
        """Solutions, or steps of a session, in a request. A server that takes less (413), or is too slow for as much (504), lowers it."""
        self._counting = threading.Lock()
        self._model: ServedModel | None = None

    def listing(self) -> tuple[tuple[ServedModel, ...], tuple[str, ...]]:
        """The PRMs that are served, and the names of other models; see `Client.models`."""

        def read(answer: ModelsAnswer) -> tuple[tuple[ServedModel, ...], tuple[str, ...]]:
            prms = [ServedModel(id=item.id, **dict(item.stepmark)) for item in answer.data if item.stepmark]
            return tuple(prms), tuple(item.id for item in answer.data if item.stepmark is None)

        try:
            return self.ask("/v1/models", None, ModelsAnswer, read)
        except DeclinedError as declined:
            raise complaint(declined) from None

    def model(self) -> ServedModel:
        """See `Client.model`."""
        if self._model is None:
            prms, _ = self.listing()
            named = [prm for prm in prms if self.name in (None, prm.id)]
            if len(named) != 1:
                names = ", ".join(repr(prm.id) for prm in prms) or "none"
                asked = "one has to be named" if self.name is None else f"{self.name!r} was asked for"
                raise UsageError(f"{self.server.address}: {asked}, and the PRMs that it serves are: {names}")
            self._model = named[0]
            self.batch = min(self.batch, self._model.max_solutions)
        return self._model

    def ask(
        self,
        path: str,
        body: dict[str, Any] | None,
        model: type[AnyAnswer],
        read: Callable[[AnyAnswer], Value],
        *,
        timeout: float | None = None,
    ) -> Value:
        """POST a body (GET without one) and read the answer by its wire model.

        Raises:
            DeclinedError: the server declines.
            BackendError: no answer, or one that is not what it must be.
        """

        def parse(data: Any) -> Value:
            try:
                return read(model.model_validate(data))
            except ValidationError as error:
                why = _first(error)
            except InputError as error:
                why = str(error)
            raise BackendError(f"{self.server.address}{path}: {why}; no score was made from it")

        tell = body is not None and path != "/v1/sessions"
        return self.server.ask(path, body, parse, timeout=timeout, tell=tell)

    def send_in_parts(
        self,
        items: Sequence[Item],
        under: str,
        send: Callable[[Sequence[Item]], list[Value | InputError]],
    ) -> list[Value | InputError]:
        """Send items, which are under a field of the request, together; halve a request that is too large or too slow, and leave out items that the server
        refuses.

        Raises:
            UsageError: the server declines the request for a reason that is in no single item.
            BackendError: the server failed, or answered nonsense.
        """
        results: dict[int, Value | InputError] = {}
        waiting = [list(range(len(items)))] if items else []
        while waiting:
            group = waiting.pop()
            try:
                answered = send([items[i] for i in group])
            except DeclinedError as declined:
                match = re.match(rf"{under}\.(\d+)(\.|$)(?!split$|marker$)", declined.field or "")
                number = int(match[1]) if match and declined.status in (400, 413) else len(group)
                if number < len(group):
                    kind = TooLongError if declined.status == 413 else InputError
                    results[group.pop(number)] = kind(declined.message, field=_own_field(declined.field))
                    waiting += [group] if group else []
                elif declined.status in (413, 504) and len(group) > 1:
                    self.batch = len(group) // 2
                    waiting += [group[self.batch :], group[: self.batch]]
                elif declined.status == 413:
                    results[group[0]] = TooLongError(f"too large for the server: {declined.message}")
                else:
                    raise complaint(declined) from None
            else:
                results |= dict(zip(group, answered, strict=True))
        return [results[i] for i in range(len(items))]

    def parts(self, items: Iterable[Item]) -> Iterator[list[Item]]:
        """A stream in parts of a request; reads no further than the part that it yields."""
        rest = iter(items)
        while part := list(islice(rest, self.batch)):
            yield part

    def count(self, **counts: int) -> None:
        """Add to fields of the ledger. Tokens that are computed are distinct but for those that are read again."""
        with self._counting:  # several threads may share a client
            for name, value in counts.items():
                setattr(self.ledger, name, getattr(self.ledger, name) + value)
            self.ledger.tokens_distinct = self.ledger.tokens_computed - self.ledger.tokens_again


def complaint(declined: DeclinedError) -> StepmarkError:
    """A declined request as an error for the caller: a wrong setting, or another server than expected."""
    if declined.status in (400, 413) or (declined.status == 404 and declined.field == "model"):
        named = f", field {declined.field!r}" if declined.field else ""
        return UsageError(f"{declined.url}{named}: {declined.message}")
    hint = "; is it a stepmark server?" if declined.status in (404, 405) and declined.type is None else ""
    return BackendError(f"{declined.as_backend_error()}{hint}")


def utf8(text: str, field: str) -> str:
    """The text; an `InputError` for half of a surrogate pair, which UTF-8 does not have."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        half = f"half of a surrogate pair ({text[error.start]!a}) in the text: that is no character"
        raise InputError(half, field=field) from None
    return text


def nonsense(place: str, expected: str, actual: object) -> InputError:
    """An answer that is not what it must be."""
    return InputError(f"expected {expected}, found {actual!r:.80}", field=place)


def _first(error: ValidationError) -> str:
    """The first error of an answer."""
    first = error.errors(include_url=False)[0]
    place = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in first["loc"]).lstrip(".")
    if first["type"] == "missing":
        return f"{place}: expected a value, found nothing"
    return f"{place}: expected {first['msg'].removeprefix('Input should be ')}, found {first['input']!r:.80}"


def _own_field(field: str | None) -> str | None:
    """`steps[1]` for `solutions.3.steps.1`: from the solution on, as errors in this process name it."""
    own = re.sub(r"^(solutions|candidates|steps)\.\d+(\.|$)(?=\D|$)", "", field or "")
    return re.sub(r"\.(\d+)(?=\.|$)", r"[\1]", own) or None


def read_error(body: ErrorBody) -> InputError:
    """The error of a single result, as a PRM in this process raises it."""
    return _ERRORS.get(body.type, InputError)(body.message, where=body.where, field=_own_field(body.field))
