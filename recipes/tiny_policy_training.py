"""The tiny policy of the arithmetic world, from a seed to a checkpoint: tokenizer, network, plain language modelling.

A Llama of about a million weights learns to write what a student with misconceptions writes
(`tiny_policy_student`), so it errs as the student does, systematically and at random, and errs by itself besides
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
from tiny_policy_student import StudentSettings, student_solutions
from torch import Tensor

from stepmark.errors import UsageError
from stepmark.models.backbone import quiet_loading
from stepmark.problems.arithmetic import ArithmeticProblem, arithmetic_problems
from stepmark.problems.arithmetic_world import SolverSettings
from stepmark.sampling import Sampling

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<file_sep>")
"""Padding, the beginning and the end of a turn, and the marker that a PRM made from it has (`training.layouts`); the first
token ids, in this order."""
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
# A word, a digit or a sign takes the space before it along, so that there are few tokens; a line end stands alone, so that
# a solution cut after any step has the tokens that it had.
_PIECES = r" ?[A-Za-z]+| ?[0-9]|\n| ?[^\sA-Za-z0-9]|[^\S\n]+"
_REPORT_EVERY = 50
_RATES = {"drills": 1.0, "student": 1.0, "formulas": 2 / 3}
# Whose texts the vocabulary is learnt from. Any student would do; its rates stand here so that another one to learn from
# does not change the tokens.
_TALKER = StudentSettings(
    divide_as_subtract=0.6,
    smaller_from_larger=0.5,
    forgotten_carry=0.3,
    solver=SolverSettings(error_rate=0.02, noise=0.0, verbosity=0.0, repair_rate=0.15),
)
_SHAPES = ((True, True), (True, False), (False, True), (False, False))
_SHARES = (0.25, 0.3, 0.15, 0.3)


@dataclass(frozen=True, kw_only=True)
class TinyPolicy:
    """Settings of the tiny policy; written beside its weights."""

    width: int = 128
    """Of the hidden state."""
    layers: int = 3
    heads: int = 4
    inner: int = 384
    """Width inside the feed-forward blocks."""
    context: int = 1024
    """Most tokens that it reads."""
    spread: float = 0.08
    """Standard deviation of the weights at the beginning; a narrow network with the usual 0.02 stands still for long."""
    drills: int = 20_000
    """Texts of `drill_lines` calculations, rightly done, that it learns from first."""
    drill_lines: int = 8
    student: int = 28_000
    """Solutions of the student that it learns from next, stories and formulas, while the learning rate falls."""
    formulas: int = 34_000
    """Solutions of the student to problems in bare operations of `formula_steps` steps, which it learns from last, at two thirds of the
    learning rate, while that falls again: what it is asked to do well."""
    formula_steps: tuple[int, int] = (3, 6)
    steps: tuple[int, int] = (3, 8)
    """Least and most steps of the true solutions, the answer line among them."""
    largest: int = 99
    """No quantity of its problems is larger."""
    batch_tokens: int = 1024
    """Tokens a step, padding included."""
    learning_rate: float = 3e-3
    """After a linear warm-up; it falls, linearly, over the student's solutions."""
    warmup: int = 50
    """Steps of the warm-up."""
    weight_decay: float = 0.05
    seed: int = 20
    """Of the weights, and of problems and solutions. Problems of other seeds are held out."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Progress:
    """How far a run has come."""

    phase: str
    """"drills", "student" or "formulas"."""
    seen: float
    """Share of the phase's texts, in [0, 1]."""
    loss: float
    """Mean cross-entropy of the learnt tokens of the last steps, in nats."""
    seconds: float
    """Since the beginning."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Text:
    """One training text."""

    ids: list[int]
    learnt: list[bool]
    """For each token whether it is learnt, and not only read. The first one is not: nothing stands before it."""


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


def prompts_and_solutions(
    rows: Iterator[tuple[ArithmeticProblem, Sequence[str]]], *, seed: int
) -> Iterator[tuple[str, str]]:
    """Texts to learn from: prompts in the shapes in which `sampling` and `labels.labelling` ask, and what follows."""
    instruction = Sampling().instruction
    for number, (problem, lines) in enumerate(rows):
        dice = random.Random(f"shape of the prompt/{seed}/{number}")
        [(chat, instructed)] = dice.choices(_SHAPES, _SHARES)
        asked = f"{problem.text}\n\n{instruction}" if instructed else problem.text
        prompt = f"<|im_start|>user\n{asked}<|im_end|>\n<|im_start|>assistant\n" if chat else f"{asked}\n\n"
        yield prompt, "\n".join(lines)


def encoded_texts(texts: Iterator[tuple[str, str]], tokenizer: Any) -> Iterator[Text]:
    """Token ids, the solution closed by the end of its turn; only the solution is learnt."""
    while block := list(islice(texts, 1000)):
        prompts = tokenizer([prompt for prompt, _ in block])["input_ids"]
        solutions = tokenizer([solution for _, solution in block])["input_ids"]
        for prompt, solution in zip(prompts, solutions, strict=True):
            ids = [*prompt, *solution, tokenizer.eos_token_id]
            yield Text(ids=ids, learnt=[place >= len(prompt) for place in range(len(ids))])


def encoded_drills(
    count: int, tokenizer: Any, *, seed: int, steps: tuple[int, int], largest: int, lines: int
) -> Iterator[Text]:
    """Calculations of the world, rightly done, many in a text; only their results are learnt."""
    calculations = (
        (*problem.calculation(place), problem.values[place])
        for problem in arithmetic_problems(count * lines, seed=seed, steps=steps, largest=largest)
        for place in range(len(problem.operations))
    )
    equals = tokenizer.encode(" =")[-1]
    line_end = tokenizer.encode("\n")[-1]
    for _ in range(count):
        text = "".join(f"Result: {a} {sign} {b} = {c}\n" for a, sign, b, c in islice(calculations, lines))
        ids, learnt, result = tokenizer(text)["input_ids"], [], False
        for token in ids:
            learnt.append(result)
            result = token == equals or (result and token != line_end)
        yield Text(ids=ids, learnt=learnt)


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


def language_loss(model: Any, batch: Sequence[Text]) -> Tensor:
    """Mean cross-entropy of the learnt tokens, in nats."""
    width = max(len(text.ids) for text in batch)
    ids = torch.tensor([text.ids + [0] * (width - len(text.ids)) for text in batch])
    learnt = torch.tensor([text.learnt + [False] * (width - len(text.ids)) for text in batch])
    # A token is predicted at the place before it. Padding stands at the end, where nothing that is learnt looks.
    hidden = model.model(input_ids=ids, use_cache=False).last_hidden_state[:, :-1][learnt[:, 1:]]
    return F.cross_entropy(model.lm_head(hidden).float(), ids[learnt])


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
            initializer_range=settings.spread,
            tie_word_embeddings=True,
            bos_token_id=None,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        )
    )


def train_tiny_policy(out: Path, settings: TinyPolicy, *, report: Callable[[Progress], None]) -> None:
    """Make tokenizer and weights (bfloat16 safetensors) in a new folder, which is whole or absent.

    Equal settings give equal weights on one kind of processor with one version of torch and one thread.

    Args:
        out: the checkpoint's folder.
        settings: see `TinyPolicy`.
        report: called now and then.

    Raises:
        UsageError: `out` exists.
    """
    if out.exists():
        raise UsageError(f"{out} exists; delete it or choose another folder")
    tokenizer = world_tokenizer(list(_tokenizer_texts(settings)))
    model = new_model(tokenizer, settings).train()
    learn(model, optimizer_of(model, settings), tokenizer, settings, report=report)
    out.parent.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix=f".{out.name}-", dir=out.parent))
    try:
        save_rounded(model, work)
        tokenizer.save_pretrained(work)
        (work / "train.json").write_text(json.dumps(asdict(settings), indent=2) + "\n", encoding="utf-8")
        work.rename(out)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def save_rounded(model: Any, folder: Path) -> None:
    """Write weights in bfloat16, which halves the file, and a config that has them computed with in float32.

    In bfloat16 what is written would depend on the processor and on what else is in the batch.
    """
    with quiet_loading():
        model.to(torch.bfloat16).save_pretrained(folder)
    file = folder / "config.json"
    config = json.loads(file.read_text(encoding="utf-8"))
    config["dtype"] = "float32"
    file.write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def optimizer_of(model: Any, settings: TinyPolicy) -> torch.optim.Optimizer:
    """AdamW over all weights."""
    return torch.optim.AdamW(
        model.parameters(), lr=settings.learning_rate, betas=(0.9, 0.98), weight_decay=settings.weight_decay
    )


def phases(tokenizer: Any, settings: TinyPolicy) -> Iterator[tuple[str, int, Iterator[list[Text]]]]:
    """What is learnt, one thing after the other: its name, how many texts, their batches. Their seeds are one apart."""
    seed, steps, largest = settings.seed, settings.steps, settings.largest
    sources = (
        (
            "drills",
            settings.drills,
            encoded_drills(
                settings.drills,
                tokenizer,
                seed=seed,
                steps=steps,
                largest=largest,
                lines=settings.drill_lines,
            ),
        ),
        (
            "student",
            settings.student,
            encoded_texts(
                prompts_and_solutions(
                    student_solutions(settings.student, seed=seed + 1, steps=steps, largest=largest),
                    seed=seed,
                ),
                tokenizer,
            ),
        ),
        (
            "formulas",
            settings.formulas,
            encoded_texts(
                prompts_and_solutions(
                    student_solutions(
                        settings.formulas,
                        seed=seed + 2,
                        steps=settings.formula_steps,
                        largest=largest,
                        surface="formula",
                    ),
                    seed=seed + 2,
                ),
                tokenizer,
            ),
        ),
    )
    for name, count, texts in sources:
        dice = random.Random(f"order of the batches/{seed}/{name}")
        yield name, count, batches(texts, tokens=settings.batch_tokens, dice=dice)


def learn(
    model: Any,
    optimizer: torch.optim.Optimizer,
    tokenizer: Any,
    settings: TinyPolicy,
    *,
    report: Callable[[Progress], None],
) -> None:
    """Train a model in place, one pass over fresh texts."""
    step, began = 0, time.monotonic()
    for name, count, stream in phases(tokenizer, settings):
        seen = tokens = 0
        losses: list[float] = []
        for batch in stream:
            step += 1
            falling = _RATES[name] * (1.0 if name == "drills" else 1 - 0.98 * seen / count)
            for group in optimizer.param_groups:
                group["lr"] = settings.learning_rate * min(1.0, step / max(1, settings.warmup)) * falling
            loss = language_loss(model, batch)
            loss.backward()  # type: ignore[no-untyped-call]
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            seen += len(batch)
            tokens += sum(len(text.ids) for text in batch)
            losses.append(loss.item())
            if len(losses) == _REPORT_EVERY or seen == count:
                report(
                    Progress(
                        phase=name,
                        seen=seen / count,
                        loss=math.fsum(losses) / len(losses),
                        seconds=time.monotonic() - began,
                    )
                )
                losses.clear()


def _tokenizer_texts(settings: TinyPolicy) -> Iterator[str]:
    """What the merges are learnt from: the same whatever is trained on, so that the vocabulary stays."""
    control = re.compile("|".join(map(re.escape, SPECIAL)))
    rows = student_solutions(2000, seed=settings.seed, settings=_TALKER)
    for prompt, solution in prompts_and_solutions(rows, seed=settings.seed):
        yield control.sub(" ", prompt) + solution
