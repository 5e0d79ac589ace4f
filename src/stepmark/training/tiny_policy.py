"""The tiny policy of the arithmetic world, from a seed to a checkpoint: tokenizer, network, plain language modelling.

A Llama of about a million weights learns to write what a student with misconceptions writes
(`problems.arithmetic_student`), so it errs as the student does, systematically and at random, and errs by itself besides
where it has not learnt to calculate. The loss is on the solution alone; prompts come in the four shapes that sampling and
labelling use (chat or raw text, with or without the instruction).
"""

from __future__ import annotations

import json
import math
import random
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from stepmark.errors import UsageError
from stepmark.problems.arithmetic_student import student_solutions
from stepmark.solutions.sampling import Sampling

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<file_sep>")
"""Padding, the beginning and the end of a turn, and the marker of our own PRMs (`training.recipe.MARKER_SPEC`); the first
token ids, in this order."""
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
# A word, a digit or a sign takes the space before it along, so that there are few tokens; a line end stands alone, so that
# a solution cut after any step has the tokens that it had.
_PIECES = r" ?[A-Za-z]+| ?[0-9]|\n| ?[^\sA-Za-z0-9]|[^\S\n]+"
_SHAPES = ((True, True), (True, False), (False, True), (False, False))
_SHARES = (0.4, 0.2, 0.2, 0.2)


@dataclass(frozen=True, kw_only=True)
class TinyPolicy:
    """Settings of the tiny policy; written beside its weights."""

    width: int = 128
    """Of the hidden state."""
    layers: int = 4
    heads: int = 4
    inner: int = 384
    """Width inside the feed-forward blocks."""
    context: int = 1024
    """Most tokens that it reads."""
    solutions: int = 100_000
    """Solutions that it learns from, each seen once."""
    steps: tuple[int, int] = (3, 8)
    """Least and most steps of the true solutions, the answer line among them."""
    batch_tokens: int = 4096
    """Tokens a step, padding included."""
    learning_rate: float = 3e-3
    """Peak of a linear warm-up and a cosine decay to a fiftieth."""
    warmup: int = 100
    """Steps of the warm-up."""
    weight_decay: float = 0.05
    seed: int = 20
    """Of the weights, and of problems and solutions. Problems of other seeds are held out."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Text:
    """One training text."""

    ids: list[int]
    prompt: int
    """Tokens at its beginning that are read and not learnt."""


def world_tokenizer(texts: Sequence[str]) -> Any:
    """A byte-level BPE tokenizer whose pieces are words, single digits, signs and line ends; exact on any text.

    Args:
        texts: what the merges are learnt from.

    Returns:
        A `transformers.PreTrainedTokenizerFast` with ChatML's template and the tokens of `SPECIAL`.
    """
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_PIECES), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=4096,
        min_frequency=2,
        special_tokens=list(SPECIAL),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=SPECIAL[0],
        eos_token=SPECIAL[2],
        additional_special_tokens=[SPECIAL[1], SPECIAL[3]],
        chat_template=CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
    )


def world_texts(count: int, *, seed: int, steps: tuple[int, int]) -> Iterator[tuple[str, str]]:
    """Prompts and solutions to learn from, in the shapes in which `solutions.sampling` and `labels.labelling` ask."""
    instruction = Sampling().instruction
    for number, (problem, lines) in enumerate(student_solutions(count, seed=seed, steps=steps)):
        dice = random.Random(f"shape of the prompt/{seed}/{number}")
        [(chat, instructed)] = dice.choices(_SHAPES, _SHARES)
        asked = f"{problem.text}\n\n{instruction}" if instructed else problem.text
        prompt = f"<|im_start|>user\n{asked}<|im_end|>\n<|im_start|>assistant\n" if chat else f"{asked}\n\n"
        yield prompt, "\n".join(lines)


def encode(texts: Iterator[tuple[str, str]], tokenizer: Any) -> Iterator[Text]:
    """Token ids, the solution closed by the end of its turn."""
    while block := list(islice(texts, 1000)):
        prompts = tokenizer([prompt for prompt, _ in block])["input_ids"]
        solutions = tokenizer([solution for _, solution in block])["input_ids"]
        for prompt, solution in zip(prompts, solutions, strict=True):
            yield Text(ids=[*prompt, *solution, tokenizer.eos_token_id], prompt=len(prompt))


def batches(texts: Iterator[Text], *, tokens: int, dice: random.Random) -> Iterator[list[Text]]:
    """Batches of texts of like length, at most `tokens` with padding, in random order."""
    while pool := list(islice(texts, 4000)):
        pool.sort(key=lambda text: len(text.ids))
        found: list[list[Text]] = [[]]
        for text in pool:
            if found[-1] and len(text.ids) * (len(found[-1]) + 1) > tokens:
                found.append([])
            found[-1].append(text)
        dice.shuffle(found)
        yield from found


def solution_loss(model: Any, batch: Sequence[Text]) -> Tensor:
    """Mean cross-entropy of the solutions' tokens, in nats."""
    width = max(len(text.ids) for text in batch)
    ids = torch.tensor([text.ids + [0] * (width - len(text.ids)) for text in batch])
    # A token is predicted at the place before it. Padding stands at the end, where nothing that is learnt looks.
    reads = torch.zeros(len(batch), width, dtype=torch.bool)
    for row, text in enumerate(batch):
        reads[row, text.prompt - 1 : len(text.ids) - 1] = True
    hidden = model.model(input_ids=ids, use_cache=False).last_hidden_state[reads]
    return F.cross_entropy(model.lm_head(hidden).float(), ids.roll(-1, dims=1)[reads])


def new_model(tokenizer: Any, settings: TinyPolicy) -> Any:
    """A Llama with the seed's random weights, in float32."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(settings.seed)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(tokenizer),
            hidden_size=settings.width,
            intermediate_size=settings.inner,
            num_hidden_layers=settings.layers,
            num_attention_heads=settings.heads,
            num_key_value_heads=settings.heads,
            max_position_embeddings=settings.context,
            tie_word_embeddings=True,
            bos_token_id=None,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        )
    )


def train_tiny_policy(out: Path, settings: TinyPolicy, *, report: Callable[[dict[str, float]], None]) -> None:
    """Make tokenizer and weights (bfloat16 safetensors) in a new folder, which is whole or absent.

    Equal settings give equal weights on one kind of processor with one version of torch and one thread.

    Args:
        out: the checkpoint's folder.
        settings: see `TinyPolicy`.
        report: receives step, share of the data seen, loss (mean of the last steps, nats a token) and tokens a second, now and then.

    Raises:
        UsageError: `out` exists.
    """
    if out.exists():
        raise UsageError(f"{out} exists; delete it or choose another folder")
    tokenizer = world_tokenizer(list(_tokenizer_texts(settings)))
    model = new_model(tokenizer, settings).train()
    learn(model, tokenizer, settings, report=report)
    out.parent.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix=f".{out.name}-", dir=out.parent))
    try:
        model.to(torch.bfloat16).save_pretrained(work)
        tokenizer.save_pretrained(work)
        (work / "train.json").write_text(json.dumps(asdict(settings), indent=2) + "\n", encoding="utf-8")
        work.rename(out)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def learn(
    model: Any, tokenizer: Any, settings: TinyPolicy, *, report: Callable[[dict[str, float]], None]
) -> None:
    """Train a model in place, one pass over fresh solutions."""
    texts = world_texts(settings.solutions, seed=settings.seed, steps=settings.steps)
    dice = random.Random(f"order of the batches/{settings.seed}")
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=settings.learning_rate, betas=(0.9, 0.98), weight_decay=settings.weight_decay
    )
    seen = tokens = 0
    losses: list[float] = []
    began = time.monotonic()
    for step, batch in enumerate(
        batches(encode(texts, tokenizer), tokens=settings.batch_tokens, dice=dice), 1
    ):
        rate = settings.learning_rate * _schedule(step, seen / settings.solutions, settings.warmup)
        for group in optimizer.param_groups:
            group["lr"] = rate
        loss = solution_loss(model, batch)
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        seen += len(batch)
        tokens += sum(len(text.ids) for text in batch)
        losses.append(loss.item())
        if step % 50 == 0 or seen == settings.solutions:
            report(
                {
                    "step": step,
                    "seen": seen / settings.solutions,
                    "loss": math.fsum(losses) / len(losses),
                    "tokens_per_second": tokens / (time.monotonic() - began),
                }
            )
            losses.clear()


def _schedule(step: int, seen: float, warmup: int) -> float:
    decay = 0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * seen))
    return min(1.0, step / max(1, warmup)) * decay


def _tokenizer_texts(settings: TinyPolicy) -> Iterator[str]:
    """What the merges are learnt from: the same whatever is trained on, so that the vocabulary stays."""
    control = re.compile("|".join(map(re.escape, SPECIAL)))
    for prompt, solution in world_texts(2000, seed=settings.seed, steps=(3, 8)):
        yield control.sub(" ", prompt) + solution
