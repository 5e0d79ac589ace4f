"""Make the base of the arithmetic world: a small network that calculates rightly, for PRMs and outcome models of that world.

    python recipes/tiny_calculator.py train OUT [--set NAME=VALUE …]   make the weights; the same command resumes a killed run
    python recipes/tiny_calculator.py measure OUT                      the share of the tables that it knows, by sign
    python recipes/tiny_policy.py measure OUT                          the share of held-out problems that it solves

The tiny policy (`tiny_policy.py`) learnt misconceptions, so that there is something to find. A PRM made from it must unlearn them first. This
network has the same tokens and learns right calculations only, in two parts: the tables of the world (every sum, difference, product and quotient
that its problems can hold, each as often as the others of its sign), then solutions of problems in bare operations, between them the tables again.

Each batch is a function of the seed and its number alone, so a run resumes from its saved state at the batch where it was.
"""

# ruff: noqa: T201
from __future__ import annotations

import argparse
import json
import math
import random
import shutil
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from tiny_policy_training import (
    Text,
    TinyPolicy,
    _tokenizer_texts,
    encoded_texts,
    language_loss,
    new_model,
    save_rounded,
    world_tokenizer,
)

from stepmark.problems.arithmetic import ArithmeticProblem, arithmetic_problems, calculate

Fact = tuple[int, str, int]
_SIGNS = {"+": 0.4, "-": 0.4, "*": 0.1, "/": 0.1}
"""Shares of the facts in a batch of them: sums and differences are many, products and quotients few."""


@dataclass(frozen=True, kw_only=True)
class Calculator:
    """Settings of the base; written beside its weights."""

    width: int = 128
    layers: int = 4
    heads: int = 4
    inner: int = 384
    """Width inside the feed-forward blocks."""
    spread: float = 0.05
    """Standard deviation of the weights at the beginning."""
    digits: float = 4.0
    """How much larger than `spread` the part of a digit's embedding is that says which digit it is; 0 for none."""
    steps: int = 5000
    """Batches."""
    tables: int = 1200
    """The first steps, in which only tables are learnt."""
    repeated: float = 0.25
    """Share of the batches of tables after that."""
    facts: int = 96
    """Facts in a batch of tables, eight in a text."""
    tokens: int = 1400
    """Tokens in a batch of solutions, padding included."""
    longest: int = 7
    """Most lines of a solution, the answer among them."""
    growth: float = 0.5
    """Share of the steps after the tables over which the solutions grow, from two lines to `longest`: what stands where in a problem is found in short ones
    first."""
    largest: int = 99
    learning_rate: float = 2e-3
    """Of the embedding and the norms (AdamW); after a linear warm-up, it falls linearly over the last `decay` of the steps."""
    matrix_rate: float = 0.02
    """Of the matrices (Muon, Jordan et al. 2024)."""
    warmup: int = 100
    decay: float = 0.4
    seed: int = 30


def facts(largest: int) -> dict[str, list[Fact]]:
    """Every calculation with a whole result that a problem of the world can ask for, by its sign."""
    numbers = range(2, largest + 1)
    table: dict[str, list[Fact]] = {
        "+": [(a, "+", b) for a in numbers for b in numbers if a + b <= largest],
        "-": [(a, "-", b) for a in numbers for b in numbers if a - b >= 2],
        "*": [(a, "*", b) for a in numbers for b in range(2, 13) if a * b <= largest],
        "/": [(a, "/", b) for a in numbers for b in (2, 4, 5, 10) if a % b == 0 and a // b >= 2],
    }
    return table


def table_batch(
    table: dict[str, list[Fact]], count: int, tokenizer: Any, dice: random.Random
) -> Iterator[Text]:
    """Texts of eight facts each; only the results are learnt."""
    equals, line_end = tokenizer.encode(" =")[-1], tokenizer.encode("\n")[-1]
    for _ in range(count // 8):
        signs = dice.choices(list(_SIGNS), list(_SIGNS.values()), k=8)
        chosen = [dice.choice(table[sign]) for sign in signs]
        text = "".join(f"Result: {a} {sign} {b} = {calculate(a, sign, b)}\n" for a, sign, b in chosen)
        ids, learnt, result = tokenizer(text)["input_ids"], [], False
        for token in ids:
            learnt.append(result)
            result = token == equals or (result and token != line_end)
        yield Text(ids=ids, learnt=learnt)


def batch_of(
    step: int, settings: Calculator, tokenizer: Any, table: dict[str, list[Fact]]
) -> tuple[str, list[Text]]:
    """What the batch of a step, counted from 0, teaches, and its texts."""
    dice = random.Random(f"tiny calculator/{settings.seed}/{step}")
    if step < settings.tables or dice.random() < settings.repeated:
        return "tables", list(table_batch(table, settings.facts, tokenizer, dice))
    grown = (step - settings.tables) / (settings.growth * (settings.steps - settings.tables))
    most = min(settings.longest, 2 + int(grown * (settings.longest - 1)))
    # Far from the seeds that people take: what they sample and measure on is not learnt here.
    seed = 1_000_000_000 * settings.seed + step
    problems = arithmetic_problems(
        settings.tokens // 20, seed=seed, steps=(2, most), surface="formula", largest=settings.largest
    )
    texts: list[Text] = []
    for text in encoded_texts(((_prompt(p, dice), "\n".join(p.steps)) for p in problems), tokenizer):
        if texts and max(len(one.ids) for one in [*texts, text]) * (len(texts) + 1) > settings.tokens:
            break
        texts.append(text)
    return "solutions", texts


def _prompt(problem: ArithmeticProblem, dice: random.Random) -> str:
    """As a PRM reads the problem, in ChatML, and now and then as plain text."""
    if dice.random() < 0.3:
        return f"{problem.text}\n\n"
    return f"<|im_start|>user\n{problem.text}<|im_end|>\n<|im_start|>assistant\n"


def write_digits(model: Any, tokenizer: Any, size: float) -> None:
    """Give the tokens of the digits, with a space before and without, the same coordinates: the waves of a circle of ten, and its size.

    Sums of digits are sums of angles there (Nanda et al. 2023), so a network need not find this representation first.
    """
    weight = model.get_input_embeddings().weight
    with torch.no_grad():
        for digit in range(10):
            waves = [
                wave(2 * math.pi * turns * digit / 10)
                for turns in range(1, 6)
                for wave in (math.cos, math.sin)
            ]
            row = torch.tensor([*waves, digit / 4.5 - 1.0])
            for text in (str(digit), f" {digit}"):
                (token,) = tokenizer.encode(text)
                weight[token, : len(row)] = size * row


def rate(step: int, settings: Calculator) -> float:
    """Share of the peak learning rate."""
    left = (settings.steps - step) / (settings.decay * settings.steps)
    return min(1.0, (step + 1) / settings.warmup, left)


def optimizers_of(model: Any, settings: Calculator) -> list[torch.optim.Optimizer]:
    """Muon for the matrices of the blocks, AdamW for the rest."""
    named = list(model.named_parameters())
    matrices = [p for name, p in named if p.ndim == 2 and "embed" not in name and "lm_head" not in name]
    others = [p for name, p in named if p.ndim != 2 or "embed" in name or "lm_head" in name]
    return [
        torch.optim.Muon(matrices, lr=settings.matrix_rate, weight_decay=0.01),
        torch.optim.AdamW(others, lr=settings.learning_rate, betas=(0.9, 0.98), weight_decay=0.0),
    ]


def train(out: Path, settings: Calculator, *, save_every: float = 60.0) -> None:
    """Train, from the state in `<out>.run` where there is one; `out` is whole or absent."""
    if out.exists():
        print(f"{out} is there already")
        return
    torch.set_num_threads(1)
    shape = TinyPolicy(
        width=settings.width,
        layers=settings.layers,
        heads=settings.heads,
        inner=settings.inner,
        spread=settings.spread,
        seed=settings.seed,
    )
    tokenizer = world_tokenizer(list(_tokenizer_texts(TinyPolicy())))
    model = new_model(tokenizer, shape).train()
    write_digits(model, tokenizer, settings.digits * settings.spread)
    table = facts(settings.largest)
    optimizers = optimizers_of(model, settings)
    peaks = [optimizer.param_groups[0]["lr"] for optimizer in optimizers]
    work = out.with_name(f"{out.name}.run")
    work.mkdir(parents=True, exist_ok=True)
    file = work / "state.pt"
    done, seconds = 0, 0.0
    if file.is_file():
        state = torch.load(file, weights_only=True)
        if state["settings"] != json.dumps(asdict(settings)):
            raise SystemExit(f"{work} is of a run with other settings; delete it or choose another folder")
        model.load_state_dict(state["model"])
        for optimizer, saved in zip(optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)
        done, seconds = state["done"], state["seconds"]
    began = time.monotonic() - seconds
    saved_at = time.monotonic()
    losses: defaultdict[str, list[float]] = defaultdict(list)
    for step in range(done, settings.steps):
        kind, batch = batch_of(step, settings, tokenizer, table)
        for optimizer, peak in zip(optimizers, peaks, strict=True):
            for group in optimizer.param_groups:
                group["lr"] = peak * rate(step, settings)
        loss = language_loss(model, batch)
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        losses[kind].append(loss.item())
        if (step + 1) % 100 == 0:
            means = {name: round(sum(found) / len(found), 4) for name, found in losses.items()}
            print(
                json.dumps({"step": step + 1, **means, "seconds": round(time.monotonic() - began, 1)}),
                flush=True,
            )
            losses.clear()
        if time.monotonic() - saved_at > save_every:
            temporary = file.with_suffix(".part")
            torch.save(
                {
                    "settings": json.dumps(asdict(settings)),
                    "model": model.state_dict(),
                    "optimizers": [optimizer.state_dict() for optimizer in optimizers],
                    "done": step + 1,
                    "seconds": time.monotonic() - began,
                },
                temporary,
            )
            temporary.replace(file)
            saved_at = time.monotonic()
    made = work / "checkpoint"
    shutil.rmtree(made, ignore_errors=True)
    save_rounded(model, made)
    tokenizer.save_pretrained(made)
    (made / "train.json").write_text(json.dumps(asdict(settings), indent=2) + "\n", encoding="utf-8")
    made.rename(out)
    shutil.rmtree(work)


def measure(folder: Path, *, largest: int = 99) -> dict[str, float]:
    """The share of the facts of each sign whose result the network writes, greedily, behind nothing else."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    torch.set_num_threads(1)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    line_end = tokenizer.encode("\n")
    shares = {}
    for sign, known in facts(largest).items():
        right = 0
        # Greedy writing gives the result exactly where each of its tokens is the likeliest after those before it.
        groups: defaultdict[tuple[int, int], list[tuple[list[int], list[int]]]] = defaultdict(list)
        for a, _, b in known:
            asked = tokenizer.encode(f"Result: {a} {sign} {b} =")
            result = [*tokenizer.encode(f" {calculate(a, sign, b)}"), *line_end]
            groups[len(asked), len(result)].append((asked, result))
        for (start, length), members in groups.items():
            for at in range(0, len(members), 256):
                block = members[at : at + 256]
                ids = torch.tensor([asked + result for asked, result in block])
                with torch.inference_mode():
                    likeliest = model(ids).logits[:, start - 1 : start + length - 1].argmax(-1)
                right += int((likeliest == ids[:, start:]).all(1).sum())
        shares[sign] = round(right / len(known), 4)
    return shares


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    trained = commands.add_parser("train")
    trained.add_argument("out", type=Path)
    trained.add_argument(
        "--set", action="append", default=[], metavar="NAME=VALUE", help="a field of Calculator"
    )
    commands.add_parser("measure").add_argument("out", type=Path)
    asked = parser.parse_args()
    if asked.command == "train":
        changed = {name: json.loads(value) for name, _, value in (one.partition("=") for one in asked.set)}
        train(asked.out, Calculator(**changed))
    else:
        print(json.dumps(measure(asked.out)))


if __name__ == "__main__":
    main()
