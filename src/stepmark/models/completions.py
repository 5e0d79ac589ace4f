"""A PRM whose verdicts are tokens, behind vLLM or SGLang: token ids go out, log-probabilities of the verdicts come back.

At a step's end the model's next token is its verdict. The softmax over the log-probabilities of the candidates is the softmax over their logits, so
the same readout as in process makes the scores. Prefixes come from the server's own cache; it reports how many tokens it took from there.

vLLM, `POST /v1/completions`: a request for each step end, with the tokens up to it, `max_tokens` 1 and the candidates in `logprob_token_ids`.
`prompt_logprobs` would need one request a solution, but a request with it reads nothing from the prefix cache, and it lists the likeliest tokens,
among which a candidate need not be.

SGLang, `POST /generate`: a request for each solution. `input_token_ids_logprobs` begins at `logprob_start_len` with None; its row i is for the token
after position `logprob_start_len + i - 1`, and what follows the last position is in `output_token_ids_logprobs`. Only tokens before
`logprob_start_len` come from its cache, so it is the first step end that is not known yet.

Sources: vLLM 0.32, entrypoints/openai/completion/protocol.py and sampling_params.py; SGLang 0.5.12, managers/io_struct.py (GenerateReqInput),
managers/schedule_batch.py.
"""

from __future__ import annotations

import hashlib
import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, final

import torch

from stepmark.backends import Ready, StepScore
from stepmark.errors import BackendError, CheckpointError, InputError, TooLongError
from stepmark.models.encoding import Encoded
from stepmark.models.heads import verdict_ids
from stepmark.models.packed_tree import pack
from stepmark.models.prm import Session
from stepmark.models.served import ServedPRM, read_positions
from stepmark.models.spec import VocabHead
from stepmark.records import Solution, StepScores
from stepmark.words import amount

_LOG = logging.getLogger("stepmark")
_NEVER = -9999.0
"""What vLLM writes in the place of minus infinity."""
_AS_IT_IS = {
    "temperature": 1.0,
    "top_p": 1.0,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
    "frequency_penalty": 0.0,
    "presence_penalty": 0.0,
}
"""Nothing that changes a distribution, whatever the checkpoint's generation_config.json says."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Ask:
    """One request: the verdicts after some tokens of a text."""

    ids: list[int]
    """Token ids, up to the last position."""
    reads: tuple[int, ...]
    """Positions, ascending; the last one is that of the last token."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Reply:
    """What a server answers."""

    rows: list[list[float]]
    """The candidates' log-probabilities after each position, [reads, candidates]."""
    read: Any
    """Tokens that the server counted in the request."""
    cached: int | None
    """Those of them that came from its cache; None where it does not say."""


# Both dialects have these methods: the requests for the verdicts after some positions (ascending) of a text, the body of one, and its reply, whose
# lookups may fail in any way: the caller makes one error of them.


class _Vllm:
    path = "/v1/completions"
    start = "vllm serve CHECKPOINT --enable-prompt-tokens-details"

    def asks(self, ids: list[int], reads: Sequence[int]) -> Iterator[Ask]:
        return (Ask(ids=ids[: read + 1], reads=(read,)) for read in reads)

    def body(self, ask: Ask, model: str, candidates: list[int]) -> dict[str, Any]:
        # No seed: with chunked prefill, one of a request's own kills vLLM's CPU engine (0.32).
        return {
            "model": model,
            "prompt": ask.ids,
            "max_tokens": 1,
            "logprobs": len(candidates),
            "logprob_token_ids": candidates,
            "return_tokens_as_token_ids": True,
            **_AS_IT_IS,
        }

    def reply(self, data: Any, ask: Ask, candidates: list[int]) -> Reply:
        [choice] = data["choices"]
        [table] = choice["logprobs"]["top_logprobs"]
        details = data["usage"].get("prompt_tokens_details") or {}
        return Reply(
            rows=[[table[f"token_id:{token}"] for token in candidates]],
            read=data["usage"]["prompt_tokens"],
            cached=details.get("cached_tokens"),
        )


class _Sglang:
    path = "/generate"
    start = "python -m sglang.launch_server --model-path CHECKPOINT"

    def asks(self, ids: list[int], reads: Sequence[int]) -> Iterator[Ask]:
        yield Ask(ids=ids[: reads[-1] + 1], reads=tuple(reads))

    def body(self, ask: Ask, model: str, candidates: list[int]) -> dict[str, Any]:
        return {
            "input_ids": ask.ids,
            "sampling_params": {"max_new_tokens": 0, **_AS_IT_IS},
            "return_logprob": True,
            "logprob_start_len": ask.reads[0],
            "token_ids_logprob": candidates,
        }

    def reply(self, data: Any, ask: Ask, candidates: list[int]) -> Reply:
        facts = data["meta_info"]
        inside, after = facts["input_token_ids_logprobs"], facts["output_token_ids_logprobs"]
        start, last = ask.reads[0], ask.reads[-1]
        if len(inside) != len(ask.ids) - start:
            raise ValueError(f"{amount(len(inside), 'row')} for {amount(len(ask.ids) - start, 'token')}")
        rows = []
        for read in ask.reads:
            row = {entry[1]: entry[0] for entry in (after[0] if read == last else inside[read + 1 - start])}
            rows.append([row[token] for token in candidates])
        return Reply(rows=rows, read=facts["prompt_tokens"], cached=facts.get("cached_tokens"))


@final
class CompletionsPRM(ServedPRM):
    """Scores through a server that writes text: SGLang where `/v1/models` says so, else vLLM. Arguments as of `ServedPRM`.

    The ledger counts as computed what the server does not report as cached.

    Raises:
        BackendError: as `ServedPRM`, or the server does not give log-probabilities of chosen tokens.
        CheckpointError: a family that is not read by comparing tokens, or a verdict that is no token.
    """

    together = 16_384

    def _prepare(self) -> None:
        head = self.spec.readout.head
        if not isinstance(head, VocabHead) or self.spec.readout.activation not in (
            "softmax",
            "margin",
        ):
            raise CheckpointError(
                f"{self.spec.family} is not read by comparing tokens, and a completions server gives nothing else; load it in this process"
            )
        self._candidates = verdict_ids(head, self.encoder.tokenizer)

    def _begin(self) -> None:
        entry = self._entry or {}
        self._dialect: _Vllm | _Sglang = _Sglang() if entry.get("owned_by") == "sglang" else _Vllm()
        if isinstance(length := entry.get("max_model_len"), int):
            # Both servers want room for a token to write.
            self.encoder.max_tokens = min(length - 1, self.encoder.max_tokens or length)
        probe = self._send(Ask(ids=self._candidates[:1], reads=(0,)))
        self._reports = probe.cached is not None
        if not self._reports:
            _LOG.warning(
                "%s does not report what it takes from its cache, so every token counts as computed; start it with: %s",
                self.name,
                self._dialect.start,
            )

    def open_session(self, *, memory_tokens: int | None = None) -> Session:
        """See `PRM.open_session`. Prefixes are kept by the server."""
        del memory_tokens
        if self.spec.outcome_only:
            return Session(self, "an outcome model gives a whole solution one score")
        unknown = f"the server does not report what it takes from its cache ({self._dialect.start})"
        return _CompletionsSession(self, "" if self._reports else unknown)

    def score_last(self, solutions: Sequence[Solution]) -> list[StepScore | InputError]:
        """The score of the last step of each solution; only that is asked for. An `InputError` for what cannot be read."""
        results: dict[int, StepScore | InputError] = {}
        readable: list[tuple[int, Encoded]] = []
        for index, solution in enumerate(solutions):
            try:
                encoded = self.encoder.encode(solution)
                if encoded.reads[-1] is None:
                    raise TooLongError("the step lies past what this model reads")
            except InputError as error:
                results[index] = error
            else:
                readable.append((index, encoded))
        jobs = [(e, read_positions(e)[-1:]) for _, e in readable]
        for (index, e), rows in zip(readable, self._rows(jobs), strict=True):
            [score], classes = self._verdicts(rows)
            above = e.reads[-2] if len(e.reads) > 1 else None
            before = e.problem_tokens if above is None else above + 1
            results[index] = StepScore(
                score=score,
                tokens=len(e.ids) - before,
                root=e.problem_tokens,
                classes=None if classes is None else classes[0],
            )
        self.ledger.steps += len(readable)
        return [results[index] for index in range(len(solutions))]

    def _window(self, encoded: list[Encoded]) -> list[StepScores]:
        rows = self._rows([(e, read_positions(e)) for e in encoded])
        return [
            self.scores_of(e, *(self._verdicts(read) if read else ([], None)))
            for e, read in zip(encoded, rows, strict=True)
        ]

    def _verdicts(self, rows: list[list[float]]) -> tuple[list[float], Sequence[tuple[float, ...]] | None]:
        return self._scores(torch.tensor(rows, dtype=torch.float64), self._dialect.path)

    def _rows(self, jobs: Sequence[tuple[Encoded, list[int]]]) -> list[list[list[float]]]:
        """Log-probabilities of the candidates at some positions of each solution, [reads, candidates] each. What several share is asked once."""
        keys = [list(_keys(e, reads)) for e, reads in jobs]
        asked: dict[bytes, None] = {}
        asks: list[Ask] = []
        order: list[bytes] = []
        for (e, reads), own in zip(jobs, keys, strict=True):
            new = [(read, key) for read, key in zip(reads, own, strict=True) if key not in asked]
            asked |= dict.fromkeys(key for _, key in new)
            if new:
                asks += self._dialect.asks(e.ids.tolist(), [read for read, _ in new])
                order += [key for _, key in new]
        pool = ThreadPoolExecutor(self._batch)
        try:
            replies = [future.result() for future in [pool.submit(self._send, ask) for ask in asks]]
        finally:
            pool.shutdown(wait=True, cancel_futures=True)
        rows = dict(zip(order, (row for reply in replies for row in reply.rows), strict=True))
        self.ledger.tokens_in += sum(len(e.ids) for e, _ in jobs)
        if jobs:
            self.ledger.tokens_distinct += len(pack([e.ids for e, _ in jobs]))
        self.ledger.tokens_computed += sum(
            len(ask.ids) - (reply.cached or 0) for ask, reply in zip(asks, replies, strict=True)
        )
        return [[rows[key] for key in own] for own in keys]

    def _send(self, ask: Ask) -> Reply:
        path, body = self._dialect.path, self._dialect.body(ask, self._model, self._candidates)
        try:
            data: Mapping[str, Any] = self._ask(path, body)
        except BackendError as error:
            raise type(error)(f"{error}; {self.spec.family} is served by: {self._dialect.start}") from error
        try:
            reply = self._dialect.reply(data, ask, self._candidates)
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise BackendError(
                f"{self.name}{path}: expected the log-probabilities of the tokens {self._candidates}, found {str(data)[:200]} "
                f"({type(error).__name__}: {error}); use vLLM 0.32 or later ({_Vllm.start}) or SGLang 0.5 or later ({_Sglang.start})"
            ) from error
        if reply.read != len(ask.ids):
            raise BackendError(
                f"{self.name}{path}: {amount(len(ask.ids), 'token')} sent, {reply.read!r} read"
            )
        for row in reply.rows:
            if not all(isinstance(value, float | int) and math.isfinite(value) for value in row):
                raise BackendError(f"{self.name}{path}: expected log-probabilities, found {row}")
            if max(row) <= _NEVER:
                raise BackendError(f"{self.name}{path}: the server gives none of the verdicts a probability")
        return reply


class _CompletionsSession(Session):
    """A session of which the server keeps the prefixes: only the verdict of the last step is asked for."""

    prm: CompletionsPRM

    def score_last(
        self, solutions: Sequence[Solution], ready: Ready | None = None
    ) -> list[StepScore | InputError]:
        return self.prm.score_last(solutions)


def _keys(encoded: Encoded, reads: Sequence[int]) -> Iterator[bytes]:
    """A digest of the tokens up to each position."""
    digest, at = hashlib.blake2b(digest_size=16), 0
    for read in reads:
        digest.update(encoded.ids[at : read + 1].tobytes())
        at = read + 1
        yield digest.digest()
