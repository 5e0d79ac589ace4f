"""Make the base of the arithmetic world: a small network that calculates rightly, for PRMs and outcome models of that world.

    python recipes/tiny_calculator.py train OUT [--set NAME=VALUE …]   make the weights in four phases; the same command resumes a killed run
    python recipes/tiny_calculator.py measure OUT                      what it knows of the tables, by sign
    python recipes/tiny_policy.py measure OUT                          the share of held-out problems that it solves

The tiny policy (`tiny_policy.py`) learnt misconceptions, so that there is something to find. A PRM made from it must unlearn them first. This
network goes on from the policy's weights and learns to write what is right: the tables of the world (every sum, difference, product and
quotient that its problems can hold) and solutions of problems in bare operations. A wrong number or sign in such a text is read and never
learnt; what follows it is right for what is stated. It sees no step label, no outcome and no solution of the policy.

Each batch is a function of the seed and its number alone, so a run resumes from its saved state at the batch where it was.
"""

# ruff: noqa: T201
from __future__ import annotations

import argparse
import json
import random
import shutil
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from tiny_policy_training import Text, language_loss, save_rounded

from stepmark.models.places import ARITHMETIC, find_checkpoint
from stepmark.problems.arithmetic import ArithmeticProblem, arithmetic_problems, calculate
from stepmark.sampling import Sampling

Fact = tuple[int, str, int]
_MOST = 999
"""No solution goes on with a larger number."""
_SIGNS = {"+": 0.35, "-": 0.35, "*": 0.15, "/": 0.15}
"""Shares of the facts in a batch of them: sums and differences are many, products and quotients few."""


@dataclass(frozen=True, kw_only=True)
class Calculator:
    """Settings of the base; written beside its weights."""

    steps: int = 1000
    """Batches."""
    tables: float = 0.35
    """Share of the batches that are tables; the others are solutions."""
    facts: int = 96
    """Facts in a batch of tables, eight in a text."""
    tokens: int = 1400
    """Tokens in a batch of solutions, padding included."""
    longest: int = 7
    """Most lines of a solution, the answer among them."""
    false_facts: float = 0.35
    """Share of the facts of a table with a false result."""
    wrong_lines: float = 0.25
    """Share of the calculations in solutions with a wrong result, number or sign."""
    wrong_answers: float = 0.07
    plain: float = 1.0
    """Share of the problems without a product that are taken."""
    products: bool = False
    """Problems with a product only, three of five of them with nothing else, and no tables. From the others alone the network does not learn where the
    first number of a product stands."""
    largest: int = 99
    learning_rate: float = 5e-4
    """Of the embedding and the norms (AdamW); after a linear warm-up, it falls linearly over the last `decay` of the steps."""
    matrix_rate: float = 0.004
    """Of the matrices (Muon, Jordan et al. 2024); at 0.01 the network forgets to copy numbers."""
    warmup: int = 50
    decay: float = 0.9
    seed: int = 31


PHASES = (
    Calculator(),
    Calculator(steps=1500, tables=0.15, plain=0.35, seed=32),
    Calculator(steps=500, products=True, tokens=500, wrong_lines=0.15, wrong_answers=0.0, matrix_rate=0.006, warmup=20, decay=0.5, seed=77),
    Calculator(steps=250, tables=0.4, plain=0.35, tokens=800, wrong_lines=0.15, wrong_answers=0.03, matrix_rate=0.002, warmup=20, decay=1.0, seed=34),
)  # fmt: skip
"""What the weights that ship were made by, one after the other: tables; solutions; where the numbers of a product stand; all again."""


def train_phases(out: Path, phases: Sequence[Calculator] = PHASES) -> None:
    """Train each phase on the weights of the one before, which are kept beside `out`."""
    start = ARITHMETIC
    for number, phase in enumerate(phases, 1):
        made = out if number == len(phases) else out.with_name(f"{out.name}.{number}")
        train(made, phase, start=start)
        start = str(made)


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


def result_of(a: int, sign: str, b: int) -> int | None:
    """The result of a calculation where it is whole."""
    result = calculate(a, sign, b)
    return result if isinstance(result, int) else None


def false_result(a: int, sign: str, b: int, dice: random.Random) -> int:
    """A wrong result as people write them: near the right one, a carry or a borrow forgotten, digits exchanged, another sign's, or any."""
    right, other = result_of(a, sign, b), result_of(a, dice.choice("+-*"), b)
    assert right is not None
    assert other is not None
    wrong = [right + off for off in (1, -1, 2, -2, 10, -10)]
    wrong += [int(str(right)[::-1]), dice.randint(2, 99), other]
    if sign == "+" and a % 10 + b % 10 >= 10:
        wrong += [right - 10] * 2
    if sign == "-" and a % 10 < b % 10:
        wrong += [10 * (a // 10 - b // 10) + b % 10 - a % 10] * 3
    return dice.choice([result for result in wrong if result != right and result >= 0])


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a text that ends where a token does."""

    due: str
    stated: str
    learnt: bool = True
    """False: it cannot be known here, and is only read."""


def encoded(parts: Sequence[Part], tokenizer: Any) -> Text:
    """Token ids; of a part what stands before the first token that is not due is learnt."""
    ids: list[int] = []
    learnt: list[bool] = []
    for part in parts:
        due, stated = tokenizer.encode(part.due), tokenizer.encode(part.stated)
        same = next((at for at, (a, b) in enumerate(zip(due, stated, strict=False)) if a != b), len(stated))
        ids += stated
        learnt += [part.learnt and at < same for at in range(len(stated))]
    learnt[0] = False
    return Text(ids=ids, learnt=learnt)


def line(name: str, due: Fact, stated: Fact, result: int, *, drawn: bool = False) -> list[Part]:
    """A calculation; where its numbers are `drawn` at random only its result can be known."""
    (a, sign, b), (x, by, y) = due, stated
    return [
        Part(name, name, not drawn),
        Part(f": {a}", f": {x}", not drawn),
        Part(f" {sign}", f" {by}", not drawn),
        Part(f" {b} =", f" {y} =", not drawn),
        Part(f" {result_of(*stated)}\n", f" {result}\n"),
    ]


def table_text(table: dict[str, list[Fact]], settings: Calculator, dice: random.Random) -> list[Part]:
    """Eight facts, some with a false result."""
    parts: list[Part] = []
    for sign in dice.choices(list(_SIGNS), list(_SIGNS.values()), k=8):
        fact = dice.choice(table[sign])
        is_false = dice.random() < settings.false_facts
        result = false_result(*fact, dice) if is_false else result_of(*fact)
        assert result is not None
        parts += line("Result", fact, fact, result, drawn=True)
    return parts


def exchanged_line(due: Fact, numbers: Sequence[int], dice: random.Random) -> tuple[Fact, int] | None:
    """A calculation with one thing wrong, its result, a number or its sign, and what it states; None where no other number fits."""
    a, sign, b = due
    kind = dice.choice(("result", "result", "sign", "left", "right"))
    if kind == "result":
        return due, false_result(*due, dice)
    for _ in range(5):
        near = dice.choice((a, b)) + dice.choice((1, -1, 10, -10, 2))
        number = dice.choice(numbers) if dice.random() < 0.6 else near
        stated = {"sign": (a, dice.choice("+-*"), b), "left": (number, sign, b), "right": (a, sign, number)}[
            kind
        ]
        result = result_of(*stated)
        if result is not None and stated != due and number >= 0 and 0 <= result <= _MOST:
            return stated, result
    return None


def solution_text(problem: ArithmeticProblem, settings: Calculator, dice: random.Random) -> list[Part]:
    """A problem, which is only read, and a solution that goes on from what it states, up to where that cannot be done in whole numbers."""
    prompt = _prompt(problem, dice)
    parts = [Part(prompt, prompt, learnt=False)]
    running, product = problem.start, 0
    given = [n for one in problem.operations for n in (one.left, one.right) if n is not None]
    for operation in problem.operations:
        left = running if operation.left is None else operation.left
        due = (left, operation.sign, product if operation.right is None else operation.right)
        result = result_of(*due)
        if result is None or not 0 <= result <= _MOST:
            return parts
        wrong = None
        if dice.random() < settings.wrong_lines:
            wrong = exchanged_line(due, [problem.start, *problem.distractors, *given], dice)
        stated, result = wrong or (due, result)
        parts += line(operation.name, due, stated, result)
        if operation.is_product:
            product = result
        else:
            running = result
    answer = running + (dice.choice((1, 2, 10)) if dice.random() < settings.wrong_answers else 0)
    return [
        *parts,
        Part(f"The answer is {running}.", f"The answer is {answer}."),
        Part("<|im_end|>", "<|im_end|>"),
    ]


def _prompt(problem: ArithmeticProblem, dice: random.Random) -> str:
    """As a PRM reads the problem, in ChatML, and now and then as policies are asked."""
    asked = f"{problem.text}\n\n{Sampling().instruction}" if dice.random() < 0.3 else problem.text
    if dice.random() < 0.25:
        return f"{asked}\n\n"
    return f"<|im_start|>user\n{asked}<|im_end|>\n<|im_start|>assistant\n"


def batch_of(
    step: int, settings: Calculator, tokenizer: Any, table: dict[str, list[Fact]]
) -> tuple[str, list[Text]]:
    """What the batch of a step, counted from 0, teaches, and its texts."""
    dice = random.Random(f"g/{step}" if settings.products else f"tiny calculator/{settings.seed}/{step}")
    if not settings.products and dice.random() < settings.tables:
        texts = [encoded(table_text(table, settings, dice), tokenizer) for _ in range(settings.facts // 8)]
        return "tables", texts
    kept, texts = 0.0 if settings.products else settings.plain, []
    for problem in _problems(step, settings, dice):
        if kept < 1 and not any(one.is_product for one in problem.operations) and dice.random() >= kept:
            continue
        made = encoded(solution_text(problem, settings, dice), tokenizer)
        widest = max(len(one.ids) for one in [*texts, made])
        if texts and widest * (len(texts) + 1) > settings.tokens:
            break
        texts.append(made)
    return "solutions", texts


def _problems(step: int, settings: Calculator, dice: random.Random) -> Iterator[ArithmeticProblem]:
    # Far from the seeds that people take: what they sample and measure on is not learnt here.
    seed = 1_000_000_000 * settings.seed + step
    count, steps, distractors = settings.tokens // 20, (2, settings.longest), 2
    if settings.products:
        among = dice.random()
        count, steps = 400, (3, 3) if among < 0.6 else (3, 4) if among < 0.8 else (3, 7)
        distractors = 0 if among < 0.7 else 2
    return arithmetic_problems(
        count, seed=seed, steps=steps, surface="formula", distractors=distractors, largest=settings.largest
    )


def weights_of(name: str) -> tuple[Any, Any]:
    """A network in float32, and its tokenizer."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = find_checkpoint(name)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    return model, AutoTokenizer.from_pretrained(folder)


def rate(step: int, settings: Calculator) -> float:
    """Share of the peak learning rate."""
    left = (settings.steps - step) / (settings.decay * settings.steps)
    return min(1.0, (step + 1) / settings.warmup, left)


def optimizers_of(model: Any, settings: Calculator) -> list[torch.optim.Optimizer]:
    """Muon for the matrices of the layers, AdamW for the rest."""
    named = list(model.named_parameters())
    matrices = [weight for name, weight in named if weight.ndim == 2 and ".layers." in name]
    others = [weight for name, weight in named if weight.ndim != 2 or ".layers." not in name]
    return [
        torch.optim.Muon(matrices, lr=settings.matrix_rate, weight_decay=0.01),
        torch.optim.AdamW(others, lr=settings.learning_rate, betas=(0.9, 0.98), weight_decay=0.0),
    ]


def train(out: Path, settings: Calculator, *, start: str = ARITHMETIC, save_every: float = 60.0) -> None:
    """Train `start` further, from the state in `<out>.run` where there is one; `out` is whole or absent."""
    if out.exists():
        print(f"{out} is there already")
        return
    torch.set_num_threads(1)
    model, tokenizer = weights_of(start)
    model.train()
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
    table, shares = facts(largest), {}
    for sign, known in table.items():
        right = 0
        # Greedy writing gives the result exactly where each of its tokens is the likeliest after those before it.
        groups: defaultdict[tuple[int, int], list[tuple[list[int], list[int]]]] = defaultdict(list)
        for a, _, b in known:
            asked = tokenizer.encode(f"Result: {a} {sign} {b} =")
            result = [*tokenizer.encode(f" {result_of(a, sign, b)}"), *line_end]
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
    trained.add_argument("--start", default=ARITHMETIC, help="the weights to begin with")
    trained.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a field of Calculator, for one phase; without any, all phases are trained",
    )
    commands.add_parser("measure").add_argument("out", type=Path)
    asked = parser.parse_args()
    if asked.command == "train":
        changed = {name: json.loads(value) for name, _, value in (one.partition("=") for one in asked.set)}
        if changed:
            train(asked.out, Calculator(**changed), start=asked.start)
        else:
            train_phases(asked.out)
    else:
        print(json.dumps(measure(asked.out)))


if __name__ == "__main__":
    main()
