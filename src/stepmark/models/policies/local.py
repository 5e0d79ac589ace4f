"""A policy that runs in this process: a transformers causal language model, on CPU or CUDA."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, final

import numpy as np

from stepmark.backends import (
    BatchPolicy,
    ChoiceLogprobs,
    Completion,
    Completions,
    Finish,
    Ready,
    cut_at_stop,
    sample_seed,
)
from stepmark.errors import CheckpointError, InputError, MissingExtraError, TooLongError, UsageError
from stepmark.models.encoding import PromptEncoder
from stepmark.models.identity import CheckpointFiles, named, tensors_fingerprint
from stepmark.models.packed_tree import Ints, pack, passes
from stepmark.models.prm import PromptTokens
from stepmark.words import amount

try:
    import torch
    from torch import Tensor

    from stepmark.models import attention
    from stepmark.models.backbone import compute_devices, load_tokenizer, saved_dtype
    from stepmark.models.engine import PrefixCache, hidden_states, token_budget
    from stepmark.models.files import present, read_object
    from stepmark.models.placement import load_placed
    from stepmark.models.places import adapter_base, built_in, find_checkpoint
    from stepmark.models.policies.cached_rows import CachedRows, PlannedRows, last_only
    from stepmark.models.quantized import elements, weights_of
except ModuleNotFoundError:
    raise MissingExtraError(
        "a local policy needs torch and transformers: pip install 'stepmark[local]'"
    ) from None

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from stepmark.models.lazy import Bits

_Sample = TypeVar("_Sample")
_DTYPES = ("auto", "float32", "bfloat16", "float16")
_ROOM = 256
"""Tokens that the cache has room for at first."""
_WORTH_DROPPING = 0.8
"""Finished rows are taken out of the batch, which copies the cache, when no larger share of it goes on."""


@dataclass(kw_only=True, slots=True, eq=False)
class SampleRow:
    """One sample being written."""

    index: int
    """Of its request."""
    number: int
    """Of the sample."""
    request: Completions
    prompt: list[int]
    limit: int
    """Tokens that may be written."""
    dice: torch.Generator
    new: list[int] = field(default_factory=list)
    logprob: float = 0.0
    text: str = ""
    finish: Finish | None = None
    stored: bool = False
    """Whether its keys and values are in the cache."""

    def written(self) -> Completion:
        """It, finished."""
        assert self.finish is not None
        return Completion(
            text=self.text,
            finish=self.finish,
            tokens=len(self.new),
            logprob=self.logprob,
            prompt_tokens=len(self.prompt),
        )

    def drawn(self) -> Drawn:
        """It, finished, with its tokens."""
        assert self.finish is not None
        return Drawn(prompt=tuple(self.prompt), ids=tuple(self.new), text=self.text, finish=self.finish)


@dataclass(frozen=True, kw_only=True, slots=True)
class Drawn:
    """A sample and the tokens that it was written in: encoding its text again may give others."""

    prompt: tuple[int, ...]
    """Tokens that it was written after."""
    ids: tuple[int, ...]
    """Its own, the end token among them where it ended by itself."""
    text: str
    finish: Finish


def load_language_model(
    path: str | Path, *, dtype: str = "auto", quantize: Bits | None = None, device: str = "auto"
) -> tuple[Any, Any]:
    """A causal language model on its device, and its tokenizer; no code from the checkpoint is run. Arguments as `LocalPolicy.load`.

    Raises:
        CheckpointError: nothing there that transformers can load as a causal language model, or a config that disagrees with the
            weights.
        UsageError: no such device or precision; quantized already.
    """
    from transformers import AutoModelForCausalLM

    devices = compute_devices(device)
    if dtype not in _DTYPES:
        raise UsageError(f"dtype should be one of {', '.join(_DTYPES)}, found {dtype!r}")
    folder = find_checkpoint(str(path))
    adapted = adapter_base(folder)
    base = folder if adapted is None else adapted[1]
    if present(base / "generation_config.json"):
        # It says where a text ends; transformers would pass over one that it cannot read.
        read_object(base / "generation_config.json")
    has_own = present(folder / "tokenizer.json") or present(folder / "tokenizer_config.json")
    tokenizer = load_tokenizer(folder if has_own else base)
    precision = saved_dtype(base) if dtype == "auto" else getattr(torch, dtype)
    model, others = load_placed(
        AutoModelForCausalLM, folder, base, dtype=precision, devices=devices, quantize=quantize
    )
    _put_output(model, others, folder)
    return model, tokenizer


def _put_output(model: Any, extra: Mapping[str, torch.Tensor], folder: Path) -> None:
    """Put the language-model head that came with an adapter in the place of the base's."""
    rows = extra.get("lm_head.weight")
    if rows is None:
        return
    weight = model.get_output_embeddings().weight
    if weight is model.get_input_embeddings().weight or weight.shape != rows.shape:
        raise CheckpointError(
            f"{folder}: the adapter holds a language-model head of the shape {tuple(rows.shape)}, which the base has no place of its "
            "own for; merge it with peft"
        )
    with torch.no_grad():
        weight.copy_(rows)


def checkpoint_identity(
    path: str | Path, *, dtype: str = "auto", quantize: Bits | None = None
) -> Callable[[], str] | None:
    """What gives the identity of the policy that `LocalPolicy.load` makes of a folder, without reading its weights into memory.

    Its files are noted at the call: weights that have changed by the time the identity is asked for are refused. None for a name on the hub, whose
    weights are hashed in memory.
    """
    folder = built_in(str(path)) or Path(path)
    if not folder.is_dir():
        return None
    files = CheckpointFiles(folder)
    more = () if quantize is None else (quantize,)
    return lambda: named(str(path), files.fingerprint(), dtype, *more)


@final
class LocalPolicy(BatchPolicy):
    """A causal language model and its tokenizer.

    Samples draw from generators of their own, seeded by the request and the sample's number
    (`backends.sample_seed`): what is written does not depend on what else is in the batch (up to rounding
    in low precision), and asking again gives the same. A prompt with n samples is read once.

    `choose` is exact: one forward pass, the options tokenised together with the text before them. Where
    that re-tokenises the end of the text, its re-tokenised part is counted in all options alike, which
    leaves their differences exact.

    Args:
        model: in evaluation mode; it stays where it is.
        tokenizer: the model's own.
        name: its name in outputs.
        identity: gives `Policy.identity`. None: the name and a digest of the weights as they are when it is first asked for.
        batch_size: samples written at once, and texts read at once; None for 16, and up to 256 for models below 25
            million weights, whose rounds cost more than their arithmetic.
        memory_tokens: tokens whose keys and values are kept at most, so that a prompt that goes on from what was read or written
            before costs its new tokens only; 0 keeps nothing. What is written stays the same, up to rounding. The weights must not
            change meanwhile. `keeps_nothing` says why, where nothing is kept.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        *,
        name: str,
        identity: Callable[[], str] | None = None,
        batch_size: int | None = None,
        memory_tokens: int = 0,
    ) -> None:
        if memory_tokens < 0:
            raise UsageError(f"memory_tokens must be at least 0, found {memory_tokens}")
        if batch_size is None:
            batch_size = max(16, min(256, 400_000_000 // max(1, elements(model))))
        if batch_size < 1:
            raise UsageError(f"batch_size must be at least 1, found {batch_size}")
        self._model: Any = model
        self._encoder = PromptEncoder(tokenizer, name)
        self._batch_size = batch_size
        self._context: int | None = model.config.get_text_config().to_dict().get("max_position_embeddings")
        ends = model.generation_config.eos_token_id if model.generation_config is not None else None
        ends = ends if isinstance(ends, list) else [ends]
        self._ends = {end for end in (*ends, tokenizer.eos_token_id) if end is not None}
        self.name = name
        self._identity = identity
        self.tokens_written = 0
        self.read = PromptTokens()
        self._no_plan = why_not(model)
        self.keeps_nothing = self._no_plan if memory_tokens else "it was given no memory"
        self._kept = None if self.keeps_nothing else PromptCache(model, memory_tokens)

    def __repr__(self) -> str:
        dtype = str(self._model.dtype).removeprefix("torch.")
        return (
            f"{type(self).__name__}(name={self.name!r}, device={str(self._model.device)!r}, dtype={dtype!r})"
        )

    @property
    def model(self) -> Any:
        """The model."""
        return self._model

    @property
    def identity(self) -> str:  # type: ignore[override]
        """See `Policy.identity`: of weights, tokenizer and precision."""
        if self._identity is None:
            weights = tensors_fingerprint(weights_of(self._model))
            identity = named(self.name, weights, self._encoder.fingerprint)
            self._identity = lambda: identity
        return self._identity()

    @classmethod
    def load(
        cls,
        path: str | Path,
        *,
        dtype: str = "auto",
        quantize: Bits | None = None,
        device: str = "auto",
        batch_size: int | None = None,
        memory_tokens: int = 0,
    ) -> LocalPolicy:
        """Load a folder, a hub name, or a model that ships with stepmark; no code from the checkpoint is run.

        Args:
            path: a folder in the Hugging Face layout, a hub name, or a name of `models.places.BUILT_IN`.
            dtype: "auto" (as saved), "float32", "bfloat16", "float16".
            quantize, device: as for `load_policy`.
            batch_size, memory_tokens: as for the class.

        Raises:
            CheckpointError: nothing there that transformers can load as a causal language model.
        """
        identity = checkpoint_identity(path, dtype=dtype, quantize=quantize)
        model, tokenizer = load_language_model(path, dtype=dtype, quantize=quantize, device=device)
        return cls(
            model.eval(),
            tokenizer,
            name=str(path),
            identity=identity,
            batch_size=batch_size,
            memory_tokens=memory_tokens,
        )

    def complete_many(
        self, requests: Sequence[Completions], ready: Ready | None = None
    ) -> list[list[Completion] | InputError]:
        """Write the samples of each request; see `Policy.write`."""
        return self._sampled(requests, SampleRow.written, ready)

    def draw(self, requests: Sequence[Completions]) -> list[list[Drawn] | InputError]:
        """The same samples with their tokens, for training the model on what it wrote."""
        return self._sampled(requests, SampleRow.drawn)

    def _sampled(
        self,
        requests: Sequence[Completions],
        close: Callable[[SampleRow], _Sample],
        ready: Callable[[int, list[_Sample]], None] | None = None,
    ) -> list[list[_Sample] | InputError]:
        replies: list[list[_Sample] | InputError | None] = [None] * len(requests)
        rows: list[SampleRow] = []
        for index, request in enumerate(requests):
            try:
                rows.extend(self._rows(index, request))
            except InputError as error:
                replies[index] = error
            else:
                self.read.given += len(rows[-1].prompt)
        samples: dict[int, list[SampleRow]] = {}
        for row in rows:
            samples.setdefault(row.index, []).append(row)
        # Prompts of like length together: little padding. Samples of one prompt stay together.
        rows.sort(key=lambda row: (len(row.prompt), row.index))
        for start in range(0, len(rows), self._batch_size):
            batch = rows[start : start + self._batch_size]
            self._write_batch(batch)
            for index in dict.fromkeys(row.index for row in batch):
                if all(row.finish is not None for row in samples[index]):
                    reply = [close(row) for row in samples[index]]
                    replies[index] = reply
                    if ready is not None:
                        ready(index, reply)
        return [reply for reply in replies if reply is not None]

    @torch.inference_mode()
    def choose_many(
        self, requests: Sequence[ChoiceLogprobs], ready: Ready | None = None
    ) -> list[list[float] | InputError]:
        """Exact log-probabilities of the options; see the class and `Policy.choose`."""
        replies: list[list[float] | InputError] = [[0.0] * len(request.options) for request in requests]
        # One row an option; where every option is one token, one row gives them all.
        texts: list[tuple[int, list[int], list[list[int]], list[int]]] = []
        for index, request in enumerate(requests):
            try:
                shared, rests = self._encoder.options(request.prompt, request.prefill, request.options)
                self._check_length(len(shared) + max(len(rest) for rest in rests))
            except InputError as error:
                replies[index] = error
                continue
            if all(len(rest) == 1 for rest in rests):
                texts.append((index, shared, rests, list(range(len(rests)))))
            else:
                texts.extend((index, shared, [rest], [place]) for place, rest in enumerate(rests))
        texts.sort(key=lambda text: len(text[1]) + len(text[2][0]))
        for start in range(0, len(texts), self._batch_size):
            batch = texts[start : start + self._batch_size]
            longest = max(len(rests[0]) for _, _, rests, _ in batch)
            # The last token is only predicted, never read.
            ids, mask = self._padded([shared + rests[0][:-1] for _, shared, rests, _ in batch])
            extra = {"logits_to_keep": longest} if last_only(self._model) else {}
            positions = (mask.cumsum(-1) - 1).clamp(min=0)
            logits = self._model(
                input_ids=ids, attention_mask=mask, position_ids=positions, use_cache=False, **extra
            ).logits[:, -longest:]
            table = logits.float().log_softmax(-1)
            for row, (index, _, rests, places) in enumerate(batch):
                reply = replies[index]
                if isinstance(reply, InputError):
                    continue
                for rest, place in zip(rests, places, strict=True):
                    steps = table[row, -len(rest) :]
                    chosen = torch.tensor(rest, device=table.device)
                    reply[place] = float(steps.gather(-1, chosen[:, None]).double().sum())
        if ready is not None:
            for index, reply in enumerate(replies):
                ready(index, reply)
        return replies

    def _rows(self, index: int, request: Completions) -> list[SampleRow]:
        prompt = self._encoder.ids(request.prompt, request.prefill)
        self._check_length(len(prompt) + 1)
        limit = request.max_tokens
        if self._context is not None:
            limit = min(limit, self._context - len(prompt))
        first = request.first
        return [
            SampleRow(
                index=index,
                number=number,
                request=request,
                prompt=prompt,
                limit=limit,
                dice=torch.Generator().manual_seed(sample_seed(request, number)),
            )
            for number in range(first, first + request.n)
        ]

    def _check_length(self, tokens: int) -> None:
        if self._context is not None and tokens > self._context:
            raise TooLongError(
                f"{self.name} reads at most {amount(self._context, 'token')}, the prompt and one more are {tokens}"
            )

    @torch.inference_mode()
    def _write_batch(self, rows: list[SampleRow]) -> None:
        prompts: dict[int, int] = {}
        for row in rows:
            prompts.setdefault(row.index, len(prompts))
        first = {row.index: row.prompt for row in rows}
        texts = [first[index] for index in prompts]
        cached = None if self._kept is None else self._kept.begin(texts, self.read)
        batch: CachedRows | PlannedRows
        if cached is not None:
            batch, texts = cached, [text[-1:] for text in texts]
        else:
            batch = CachedRows(self._model) if self._no_plan else PlannedRows(self._model)
            self.read.computed += sum(map(len, texts))
        with batch.active():
            logits = batch.read(*self._padded(texts))
            # On the CPU: layers may be on several devices, and such an index fits all.
            starts = torch.tensor([prompts[row.index] for row in rows])
            batch.select(starts, min(_ROOM, max(row.limit for row in rows)))
            logits = logits[starts]
            while True:
                self._draw(logits.float().log_softmax(-1), rows)
                if cached is not None:
                    assert self._kept is not None
                    for place, row in enumerate(rows):
                        if row.finish is not None and not row.stored:
                            row.stored = True
                            # The last token that was written has not been read.
                            self._kept.keep([*row.prompt, *row.new[:-1]], cached, place, len(row.prompt) - 1)
                going = [place for place, row in enumerate(rows) if row.finish is None]
                if not going:
                    return
                if len(going) <= _WORTH_DROPPING * len(rows):
                    batch.select(torch.tensor(going), 0)
                    rows = [rows[place] for place in going]
                ids = torch.tensor([[row.new[-1]] for row in rows], device=logits.device)
                logits = batch.read(ids, torch.ones_like(ids))

    def _draw(self, table: torch.Tensor, rows: Sequence[SampleRow]) -> None:
        """Give each row that is not finished its next token, from log-probabilities [rows, vocabulary]."""
        alike: dict[tuple[float, float, int | None], list[int]] = {}
        for place, row in enumerate(rows):
            if row.finish is None:
                how = row.request
                alike.setdefault((how.temperature, how.top_p, how.top_k), []).append(place)
        for places in alike.values():
            chosen = table if len(places) == len(rows) else table[places]
            tokens = draw(chosen, rows[places[0]].request, [rows[place].dice for place in places])
            logprobs = chosen.gather(-1, tokens[:, None]).squeeze(-1)
            for place, token, logprob in zip(places, tokens.tolist(), logprobs.tolist(), strict=True):
                rows[place].new.append(token)
                rows[place].logprob += logprob
                self._close(rows[place])
            self.tokens_written += len(places)

    def _close(self, row: SampleRow) -> None:
        """Set the row's text and finish if it is done."""
        stop = row.request.stop
        if row.new[-1] in self._ends:
            row.finish = "end"
            row.text = self._encoder.text(row.prompt, row.new[:-1])
            return
        if stop:
            # A stop string can only have appeared at the end. A token is a quarter of a character or more.
            window = 4 * max(len(string) for string in stop) + 4
            recent = self._encoder.text((row.prompt + row.new[:-window])[-window:], row.new[-window:])
            if any(string in recent for string in stop):
                text, stopped = cut_at_stop(self._encoder.text(row.prompt, row.new), stop)
                if stopped:
                    row.finish, row.text = "stop", text
                    return
        if len(row.new) >= row.limit:
            row.finish = "length"
            row.text = self._encoder.text(row.prompt, row.new)

    def _padded(self, texts: list[list[int]]) -> tuple[Tensor, Tensor]:
        """Token ids and mask, padded on the left."""
        width = max(len(text) for text in texts)
        ids = torch.tensor([[0] * (width - len(text)) + text for text in texts])
        mask = torch.tensor([[0] * (width - len(text)) + [1] * len(text) for text in texts])
        return ids.to(self._model.device), mask.to(self._model.device)


def draw(logprobs: torch.Tensor, request: Completions, dice: Sequence[torch.Generator]) -> torch.Tensor:
    """One token a row [rows]: temperature, then top_k, then top_p, as vLLM and transformers do.

    Args:
        logprobs: natural logarithms of the tokens' probabilities, [rows, vocabulary].
        request: whose sampling settings they are; of all rows.
        dice: each row's own generator; one number is drawn from each, none at temperature 0.
    """
    if request.temperature == 0:
        return logprobs.argmax(-1)
    scores = logprobs.double() / request.temperature
    tokens = None
    if request.top_k is not None:
        scores, tokens = scores.topk(min(request.top_k, scores.shape[-1]))
    elif request.top_p < 1:
        scores, tokens = scores.sort(descending=True)
    shares = scores.softmax(-1)
    if request.top_p < 1:
        shares = torch.where(shares.cumsum(-1) - shares < request.top_p, shares, 0.0)
    heights = shares.cumsum(-1)
    numbers = [float(torch.rand((), generator=item, dtype=torch.float64)) for item in dice]
    points = torch.tensor(numbers, dtype=torch.float64, device=heights.device)[:, None] * heights[:, -1:]
    places = torch.searchsorted(heights, points, right=True)
    # Rounding can lead past the end: the last token that has a share at all.
    last = heights.shape[-1] - 1 - shares.ne(0).flip(-1).int().argmax(-1, keepdim=True)
    places = torch.minimum(places, last)
    return (places if tokens is None else tokens.gather(-1, places)).squeeze(-1)


# What a policy keeps of the prompts that it was given and of what it has written, as a PRM's session does. A search asks it to go on from prefixes that it
# has read or written before: only what is new of a prompt is computed, for all prompts of a batch in one packed pass (`models.engine`), except for its
# last token, which every request needs again: its logits say what comes next.

_PROBE = ([1, 2, 3, 4, 5, 6], [1, 2, 3, 7, 8])
"""Two texts that part after three tokens, counted from the middle of the vocabulary: the first tokens are for control, and few models
have learnt what follows them."""


@final
class PromptCache:
    """Keys and values of prompts and of what was written after them.

    Args:
        model: a causal language model for which `why_not` says nothing. Its weights must stay as they are.
        memory_tokens: tokens kept at most.
    """

    def __init__(self, model: Any, memory_tokens: int) -> None:
        self._model = model
        self._cache = PrefixCache([_Decoder(model)], capacity=memory_tokens, states=False)

    def begin(self, prompts: Sequence[list[int]], read: PromptTokens) -> PlannedRows | None:
        """Read prompts up to their last tokens.

        Args:
            prompts: token ids, none empty.
            read: counts, the last tokens too.

        Returns:
            None where the prompts do not fit the memory, or none has two tokens.
        """
        known = [np.asarray(prompt[:-1], dtype=np.int64) for prompt in prompts]
        longer = [place for place, ids in enumerate(known) if len(ids)]
        room = self._cache.pool.capacity
        if not longer or (
            sum(len(ids) for ids in known) > room and len(pack([known[place] for place in longer])) > room
        ):
            return None
        held = self._cache.hold([known[place] for place in longer])
        read.computed += held.computed + len(prompts)
        read.again += held.again
        read.forgotten = self._cache.evicted
        width = max(len(ids) for ids in known)
        slots = np.zeros((len(prompts), width), dtype=np.int64)
        for place, mine in zip(longer, held.slots, strict=True):
            slots[place, width - len(mine) :] = mine
        mask = torch.tensor([[0] * (width - len(ids)) + [1] * len(ids) for ids in known])
        layers = {
            layer: (_by_row(key, slots), _by_row(value, slots))
            for layer, (key, value) in self._cache.read(slots.reshape(-1)).items()
        }
        return PlannedRows(self._model, layers, mask.to(self._model.device))

    def keep(self, ids: Sequence[int], rows: PlannedRows, row: int, first: int) -> None:
        """Keep what was written, where there is room.

        Args:
            ids: prompt and text, up to the last token that the model has read.
            rows: the batch after that.
            row: whose they are.
            first: the place in `ids` of the first token to be kept.
        """
        layers = rows.layers(row, rows.length - (len(ids) - first), rows.length)
        self._cache.add(np.asarray(ids, dtype=np.int64), layers, first)

    def __len__(self) -> int:
        """Tokens that are held."""
        return len(self._cache)


def _by_row(tensor: Tensor, slots: Ints) -> Tensor:
    """Keys or values [1, heads, slots, dim] as [rows, heads, tokens, dim]."""
    by_row = tensor[0].reshape(tensor.shape[1], *slots.shape, tensor.shape[3])
    return by_row.transpose(0, 1).contiguous()


def why_not(model: Any) -> str:
    """Why a model's attention takes no plan, so that its keys and values cannot be kept here; "" where it does.

    It is tried out: two texts that share their beginning, packed in one pass, must give the hidden states that the model itself gives.
    """
    config = model.config.get_text_config()
    kinds = getattr(config, "layer_types", None) or ["full_attention"]
    windows = (getattr(config, name, None) for name in ("sliding_window", "attention_chunk_size"))
    if set(kinds) != {"full_attention"} or (
        getattr(config, "layer_types", None) is None and any(size is not None for size in windows)
    ):
        return "its layers keep a window or a state, and not all keys and values"
    middle = int(model.get_input_embeddings().weight.shape[0]) // 2
    texts = [middle + np.asarray(ids, dtype=np.int64) for ids in _PROBE]
    tree = pack(texts)
    [part] = passes(tree, np.arange(len(tree)), len(tree))
    decoder, device = model.get_decoder(), str(model.device)
    apart: list[float] = []

    def states(ids: Ints, positions: Ints, **more: Any) -> Any:
        tokens, places = (attention.moved(array, device)[None] for array in (ids, positions))
        return decoder(
            input_ids=tokens, position_ids=places, use_cache=False, output_hidden_states=True, **more
        ).hidden_states

    try:
        with torch.inference_mode():
            plan = attention.Plan.of_pass(part, device)
            plan.keep = attention.moved(np.arange(len(tree)), device)
            with attention.planned(decoder):
                ours = states(tree.ids, tree.depths, **{attention.PLAN: plan})
            if not plan.kept:
                return "its attention does not take a plan"
            for ids, path in zip(texts, tree.paths, strict=True):
                own = states(ids, np.arange(len(ids)))
                gaps = [
                    float((mine[0, path] - other[0]).float().norm() / other[0].float().norm())
                    for mine, other in zip(ours, own, strict=True)
                ]
                apart = [max(pair) for pair in zip(apart or gaps, gaps, strict=True)]
    except Exception as error:  # whatever an architecture makes of arguments that it does not know
        return f"its attention does not take a plan ({type(error).__name__})"
    # Another mask gives other states from the first layer on; rounding gives almost the same, and adds up over the layers.
    first, most = (1e-3, 1e-3) if model.dtype == torch.float32 else (0.03, 0.3)
    if not (max(apart[:2]) < first and max(apart) < most):
        return "its hidden states depend on more than the plan says"
    return ""


class _Decoder:
    """A causal language model's decoder as a `PrefixCache` asks it."""

    def __init__(self, model: Any) -> None:
        self._decoder = model.get_decoder()
        self.device = str(model.device)
        self.token_budget = token_budget(model, self.device)

    def forward(self, ids: Ints, positions: Ints, plan: attention.Plan) -> Tensor:
        """See `models.engine.Backbone`."""
        with attention.planned(self._decoder):
            return hidden_states(self._decoder, ids, positions, plan, self.device)
