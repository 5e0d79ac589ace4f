"""Scoring during a step-level search: a session against whole-prefix rescoring, on the same PRM in the same process.

`python -m benchmarks.search [--quick] [--dtype float32|bfloat16] [--beams N]`

A beam search whose candidates are given (no policy runs): each round every beam is one step longer, a quarter of them is kept, and each
of these goes on in four ways. Three ways to score a round:

- whole prefixes: every beam's whole text, in padded batches through transformers' own class; what search libraries do;
- whole prefixes by our engine, which shares what the texts of one round have in common (at the first depth only);
- a session, which keeps keys and values from round to round.

All three must give the same scores, and that is checked. Peak memory is the process's resident memory above what it was before, sampled
while a way runs for the first time at that depth.

The same texts are then given to a policy in this process (the PRM's base model), which writes one token after each: once reading whole prompts, once
with what it keeps of them. Both must find the same likelihoods. That is done at the first depth only, with half of the beams.

`--quick` takes a quarter of the beams, at the first depth only.
"""

from __future__ import annotations

import ctypes
import gc
import random
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

import torch

from benchmarks.common import NATIVE, benchmark_parser, finish, seconds
from benchmarks.grade import Plain, distinct_prefixes
from stepmark import Solution, load_prm
from stepmark.backends import Completions, Release
from stepmark.errors import InputError
from stepmark.models.local_prm import HeadPRM
from stepmark.models.places import BUILT_IN_BASE, find_checkpoint
from stepmark.models.policies.local import LocalPolicy
from stepmark.models.session import CachedSession
from stepmark.records import Problem, Step, StepScores

Result = TypeVar("Result")

_PROBLEM = " ".join(
    f"On day {day} the shop sells {7 * day % 90 + 3} apples and buys {day * 13 % 50 + 1} pears for {day} coins."
    for day in range(1, 7)
)


@dataclass(frozen=True, kw_only=True)
class Round:
    """Candidates of one round: the kept beam that each continues, and its new step."""

    parents: tuple[int, ...]
    """Index of the candidate of the round before; -1 at the first."""
    steps: tuple[Step, ...]


def plan(beams: int, rounds: int, seed: int) -> list[Round]:
    """A search's candidates, drawn beforehand: each round keeps a quarter of the beams, which go on in four ways."""
    rng = random.Random(seed)
    result = []
    for number in range(rounds):
        kept = [-1] if number == 0 else rng.sample(range(beams), max(1, beams // 4))
        result.append(
            Round(
                parents=tuple(kept[i * len(kept) // beams] for i in range(beams)),
                steps=tuple(_step(rng, number) for _ in range(beams)),
            )
        )
    return result


def _step(rng: random.Random, number: int) -> Step:
    a, b, c = (rng.randint(11, 999) for _ in range(3))
    return Step(
        text=f"Step {number + 1}: the shop has {a} apples and {b} pears, so together that makes {a} + {b} = {a + b} pieces of fruit; "
        f"{c} of them are sold on the next day."
    )


def solutions(rounds: Sequence[Round]) -> list[list[Solution]]:
    """Every candidate of every round as a whole text."""
    problem = Problem(text=_PROBLEM)
    result: list[list[Solution]] = []
    for one in rounds:
        above = [() if p < 0 else result[-1][p].steps for p in one.parents]
        result.append(
            [
                Solution(problem=problem, steps=(*before, step))
                for before, step in zip(above, one.steps, strict=True)
            ]
        )
    return result


def by_session(prm: HeadPRM, texts: Sequence[Sequence[Solution]]) -> tuple[list[list[float]], CachedSession]:
    """Scores of each round's candidates, releasing those of the round before."""
    session = CachedSession(prm, memory_tokens=32_768)
    scores = []
    before: Sequence[Solution] = ()
    for one in texts:
        row = []
        for reply in session.score_last(one):
            if isinstance(reply, InputError):
                raise reply
            row.append(reply.score)
        session.release([Release(problem=_PROBLEM, prefixes=tuple(s.texts for s in before))], lambda *_: None)
        scores.append(row)
        before = one
    return scores, session


def by_engine(prm: HeadPRM, texts: Sequence[Sequence[Solution]]) -> list[list[float]]:
    """Whole prefixes by our engine."""
    result = []
    for one in texts:
        row = []
        for scored in prm.score_many(one):
            if not isinstance(scored, StepScores):
                raise scored.error
            last = scored.scores[-1]
            assert last is not None
            row.append(last)
        result.append(row)
    return result


def by_batches(plain: Plain, texts: Sequence[Sequence[Solution]]) -> tuple[list[list[float]], int]:
    """Whole prefixes in padded batches of four, and the tokens computed."""
    result, computed = [], 0
    for one in texts:
        rows, tokens = plain.padded(one, 4)
        result.append([row[-1] for row in rows])
        computed += tokens
    return result, computed


def measured(run: Callable[[], Result]) -> tuple[float, float, Result]:
    """Wall time, peak resident memory above what it was before in MiB (0 where the system does not tell), and the result."""
    gc.collect()
    if sys.platform == "linux":
        ctypes.CDLL(None).malloc_trim(
            0
        )  # so that what an earlier run gave back does not hide what this one takes
    before = peak = _resident()
    over = threading.Event()

    def watch() -> None:
        nonlocal peak
        while not over.wait(0.02):
            peak = max(peak, _resident())

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        start = time.perf_counter()
        result = run()
        took = time.perf_counter() - start
    finally:
        over.set()
        watcher.join()
    return took, (max(peak, _resident()) - before) / 2**20, result


def _resident() -> int:
    table = Path("/proc/self/statm")
    if not table.is_file():
        return 0
    return int(table.read_text(encoding="ascii").split()[1]) * 4096


def compare(
    beams: int, depth: int, prm: HeadPRM, plain: Plain, dtype: torch.dtype, *, engine: bool
) -> dict[str, float]:
    """Two or three ways on one search."""
    rounds = plan(beams, depth, seed=depth)
    texts = solutions(rounds)
    sequences = [prm.encoder.encode(s).ids.tolist() for one in texts for s in one]
    flat, distinct = sum(map(len, sequences)), distinct_prefixes(sequences)
    before = prm.ledger.tokens_computed
    ours, our_peak, (scores, session) = measured(lambda: by_session(prm, texts))
    computed = prm.ledger.tokens_computed - before
    theirs, their_peak, (whole, padded) = measured(lambda: by_batches(plain, texts))
    shared, again = seconds(lambda: by_engine(prm, texts)) if engine else (None, None)
    worst = max(
        abs(a - b)
        for others in (whole, again)
        if others is not None
        for mine, other in zip(scores, others, strict=True)
        for a, b in zip(mine, other, strict=True)
    )
    allowed = 1e-4 if dtype == torch.float32 else 0.1
    if worst > allowed:
        raise SystemExit(f"the three ways differ by {worst:.4f}, more than {allowed:g}")
    print(
        f"{beams} beams, {depth} steps: {flat:,} tokens as whole prefixes ({padded:,} with padding), {distinct:,} distinct, {computed:,} computed; "
        f"session {ours:.2f} s, whole prefixes {theirs:.2f} s{'' if shared is None else f', by our engine {shared:.2f} s'}; scores differ by {worst:.1e} at most; "
        f"the session held {session.pool.peak:,} tokens, {session.pool.bytes / 2**20:.1f} MiB; "
        f"peak memory: session {our_peak:.0f} MiB, whole prefixes {their_peak:.0f} MiB",
        flush=True,
    )
    beside = {} if shared is None else {f"speedup_over_our_engine_at_{depth}_steps": shared / ours}
    return {
        f"fewer_tokens_at_{depth}_steps": flat / computed,
        f"speedup_at_{depth}_steps": theirs / ours,
        **beside,
        f"tokens_computed_over_distinct_at_{depth}_steps": computed / distinct,
        f"session_mebibytes_at_{depth}_steps": session.pool.bytes / 2**20,
        f"session_peak_mebibytes_at_{depth}_steps": our_peak,
        f"whole_prefixes_peak_mebibytes_at_{depth}_steps": their_peak,
    }


def _write_all(policy: LocalPolicy, requests: Sequence[Sequence[Completions]]) -> list[list[float]]:
    """The log-probability of the token that is written after each prompt, round by round."""
    told = []
    for some in requests:
        row = []
        for reply in policy.complete_many(some):
            if not isinstance(reply, list) or reply[0].logprob is None:
                raise SystemExit(f"the policy gave {reply}")
            row.append(reply[0].logprob)
        told.append(row)
    return told


def compare_policies(beams: int, depth: int, dtype: str) -> dict[str, float]:
    """A policy that reads whole prompts against one that keeps them."""
    requests = [
        [
            Completions(
                prompt=f"{_PROBLEM}\n\n",
                prefill="".join(f"{step.text}\n" for step in one.steps),
                max_tokens=1,
            )
            for one in some
        ]
        for some in solutions(plan(beams, depth, seed=depth))
    ]
    base = find_checkpoint(BUILT_IN_BASE)
    took, read, told = [], [], []
    for memory in (0, 32_768):
        policy = LocalPolicy.load(base, dtype=dtype, device="auto", memory_tokens=memory)
        if memory and policy.keeps_nothing:
            raise SystemExit(f"the policy keeps nothing: {policy.keeps_nothing}")
        time_, replies = seconds(partial(_write_all, policy, requests))
        took.append(time_)
        read.append(policy.read)
        told.append([logprob for row in replies for logprob in row])
    worst = max(abs(a - b) for a, b in zip(*told, strict=True))
    allowed = 1e-3 if dtype == "float32" else 0.2
    if worst > allowed:
        raise SystemExit(f"the two policies differ by {worst:.4f}, more than {allowed:g}")
    whole, kept = read
    print(
        f"a policy, {beams} beams, {depth} steps: {whole.computed:,} tokens of prompts computed as whole prefixes, {kept.computed:,} where they are kept; "
        f"{took[0]:.2f} s and {took[1]:.2f} s; log-probabilities differ by {worst:.1e} at most"
    )
    return {
        f"policy_fewer_tokens_at_{depth}_steps": whole.computed / kept.computed,
        f"policy_speedup_at_{depth}_steps": took[0] / took[1],
    }


def main(argv: Sequence[str] | None = None) -> int:
    """Run it."""
    parser = benchmark_parser(__doc__, "a quarter of the beams, at the first depth only")
    parser.add_argument("--beams", type=int, default=16)
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default=NATIVE)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--depths", type=int, nargs="+", default=[10, 20])
    options = parser.parse_args(argv)
    if options.beams < 2 or min(options.depths) < 1:
        parser.error("expected --beams of 2 or more and --depths of 1 or more")
    torch.set_num_threads(options.threads)
    dtype = getattr(torch, options.dtype)
    prm = load_prm(dtype=options.dtype)
    assert isinstance(prm, HeadPRM)
    plain = Plain(prm, dtype)
    beams = max(2, options.beams // 4) if options.quick else options.beams
    depths = options.depths[:1] if options.quick else options.depths
    compare(
        4, 2, prm, plain, dtype, engine=True
    )  # so that nothing is done for the first time where it is timed
    figures: dict[str, float] = {}
    for depth in depths:
        figures |= compare(beams, depth, prm, plain, dtype, engine=depth == depths[0])
    del prm, plain
    figures |= compare_policies(max(2, beams // 2), depths[0], options.dtype)
    figures["tokens_computed_over_distinct"] = max(
        v for k, v in figures.items() if k.startswith("tokens_computed_over")
    )
    aims = {
        "tokens_computed_over_distinct": 1.0,
        "fewer_tokens_at_10_steps": 7.8,
        "fewer_tokens_at_20_steps": 12.5,
        "speedup_at_10_steps": 5.0,
        "speedup_at_20_steps": 8.0,
    }
    finish("search", figures, {name: aim for name, aim in aims.items() if name in figures})
    return 0


if __name__ == "__main__":
    sys.exit(main())
