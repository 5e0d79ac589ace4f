"""Grading many candidates of many problems: ours, one at a time, and padded batches, on the same checkpoint.

`python -m benchmarks.grade [--quick] [--dtype float32|bfloat16] [--batch N]`

One at a time is the shape of the official scoring scripts: tokenise a solution, one forward, read the marks.
Padded batches are the plain improvement: batches in order of arrival, padded to the longest, with the
vocabulary logits that a language-model class returns. All three must give the same scores, and that is checked.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from benchmarks.common import NATIVE, benchmark_parser, data_folder, finish, matmul_peak, rows, seconds
from stepmark import Solution, load_prm, split
from stepmark.models.checkpoint import merge_adapter
from stepmark.models.local_prm import HeadPRM
from stepmark.models.places import BUILT_IN_BASE, default_folder, find_checkpoint
from stepmark.records import Problem, StepScores


def real_candidates(problems: int) -> list[Solution] | None:
    """All candidates of the first problems of the 16-model set, problem by problem; None when it is absent."""
    folder = data_folder()
    file = folder / "gsm8k" / "candidates_16_models.dev.jsonl.gz" if folder else None
    if file is None or not file.is_file():
        return None
    solutions = []
    for row in rows(file)[:problems]:
        for candidate in row["candidates"]:
            if candidate["text"].strip():
                cut = split(candidate["text"])
                solutions.append(
                    Solution(problem=Problem(text=row["question"]), steps=cut.steps, id=row["id"])
                )
    return solutions


def generated_candidates(
    problems: int, candidates: int = 64, days: tuple[int, int] = (5, 9)
) -> list[Solution]:
    """Sums of some numbers (`days`: at least, at most) with worked solutions whose candidates part ways at random steps."""
    rng = random.Random(0)
    solutions = []
    for p in range(problems):
        values = [rng.randint(2, 99) for _ in range(rng.randint(*days))]
        question = (
            f"A shop sells {', '.join(map(str, values))} apples on successive days. How many are sold in all?"
        )
        for _ in range(candidates):
            total, wrong, steps = values[0], False, []
            for day, value in enumerate(values[1:], start=2):
                wrong = wrong or rng.random() < 0.15
                new = total + value + (rng.randint(1, 9) if wrong else 0)
                steps.append(f"After day {day} the shop has sold {total} + {value} = {new} apples.")
                total = new
            steps.append(f"So the shop sells {total} apples in all.")
            solutions.append(Solution.of(question, steps, id=f"generated-{p}"))
    return solutions


class Plain:
    """The same weights in transformers' own class, with its own attention."""

    def __init__(self, prm: HeadPRM, dtype: torch.dtype) -> None:
        from transformers import AutoModelForCausalLM

        base = find_checkpoint(BUILT_IN_BASE)
        self.model: Any = AutoModelForCausalLM.from_pretrained(
            base, dtype=dtype, attn_implementation="sdpa"
        ).eval()
        merge_adapter(self.model.model, default_folder())
        self.prm, self.device = prm, prm.engine.device
        self.model.to(self.device)

    def _read(self, hidden: torch.Tensor, reads: Sequence[int | None]) -> list[float]:
        logits = self.prm.head(hidden[torch.tensor(reads)].float())[:, 0]
        readout = self.prm.spec.readout
        return torch.sigmoid(readout.scale * logits + readout.shift).tolist()

    def one_at_a_time(self, solutions: Sequence[Solution]) -> list[list[float]]:
        """Step scores, a forward a solution, keeping the cache that nobody reads: the scripts' default."""
        result = []
        with torch.inference_mode():
            for solution in solutions:
                encoded = self.prm.encoder.encode(solution)
                hidden = self.model.model(
                    input_ids=torch.from_numpy(encoded.ids)[None].to(self.device)
                ).last_hidden_state[0]
                result.append(self._read(hidden, encoded.reads))
        return result

    def padded(self, solutions: Sequence[Solution], batch: int) -> tuple[list[list[float]], int]:
        """Step scores, padded batches in order of arrival, and the tokens computed with padding."""
        result, computed = [], 0
        with torch.inference_mode():
            for start in range(0, len(solutions), batch):
                encoded = [self.prm.encoder.encode(s) for s in solutions[start : start + batch]]
                longest = max(len(e.ids) for e in encoded)
                ids = torch.full((len(encoded), longest), 2)
                mask = torch.zeros((len(encoded), longest), dtype=torch.long)
                for i, e in enumerate(encoded):
                    ids[i, : len(e.ids)] = torch.from_numpy(e.ids)
                    mask[i, : len(e.ids)] = 1
                out = self.model(
                    input_ids=ids.to(self.device),
                    attention_mask=mask.to(self.device),
                    use_cache=False,
                    output_hidden_states=True,
                )
                computed += ids.numel()
                result += [self._read(out.hidden_states[-1][i], e.reads) for i, e in enumerate(encoded)]
        return result, computed


def distinct_prefixes(sequences: Sequence[Sequence[int]]) -> int:
    """Distinct non-empty prefixes, counted without any of our trees."""
    children: list[dict[int, int]] = [{}]
    for sequence in sequences:
        node = 0
        for token in sequence:
            if token not in children[node]:
                children[node][token] = len(children)
                children.append({})
            node = children[node][token]
    return len(children) - 1


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """What one set of solutions gave: best times, tokens, and how far the scores lie apart."""

    ours: float
    one: float
    padded: float
    computed: float
    distinct: int
    padded_tokens: int
    difference: float


def compare(
    name: str, solutions: Sequence[Solution], prm: HeadPRM, plain: Plain, batch: int, rounds: int
) -> Comparison:
    """Time the three ways, turn about, and keep the best of each."""
    sequences = [prm.encoder.encode(s).ids.tolist() for s in solutions]
    flat, distinct = sum(map(len, sequences)), distinct_prefixes(sequences)
    print(f"{name}: {len(solutions)} solutions, {flat} tokens, {distinct} distinct")

    def ours() -> list[list[float]]:
        results = prm.score_many(solutions)
        return [[s for s in r.scores if s is not None] for r in results if isinstance(r, StepScores)]

    computed = 0.0
    times: dict[str, list[float]] = {"ours": [], "one": [], "padded": []}
    for _ in range(rounds):
        # The engine keeps the opening of what it graded last: no round may begin with the problem of the one before.
        list(prm.score_many([Solution.of("Another problem.", ["A step."])]))
        before = prm.ledger.tokens_computed
        took, scores = seconds(ours)
        computed += (prm.ledger.tokens_computed - before) / rounds
        times["ours"].append(took)
        took, single = seconds(lambda: plain.one_at_a_time(solutions))
        times["one"].append(took)
        took, (batched, padded_tokens) = seconds(lambda: plain.padded(solutions, batch))
        times["padded"].append(took)
    best = {key: min(values) for key, values in times.items()}
    for key, tokens in (("ours", computed), ("one", flat), ("padded", padded_tokens)):
        print(
            f"  {key:8} {best[key]:8.2f} s  {tokens:8.0f} tokens computed  {len(solutions) / best[key]:7.1f} solutions/s"
        )
    return Comparison(
        **best,
        computed=computed,
        distinct=distinct,
        padded_tokens=padded_tokens,
        difference=max(
            abs(a - b)
            for other in (single, batched)
            for x, y in zip(scores, other, strict=True)
            for a, b in zip(x, y, strict=True)
        ),
    )


def main() -> None:
    parser = benchmark_parser(__doc__)
    parser.add_argument("--dtype", default=NATIVE, choices=["float32", "bfloat16"])
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--problems", type=int)
    arguments = parser.parse_args()
    count = arguments.problems or (6 if arguments.quick else 24)
    rounds = 2 if arguments.quick else 3
    generated = generated_candidates(max(1, count // 8))
    real = real_candidates(count)
    dtype = getattr(torch, arguments.dtype)
    prm = load_prm("default", dtype=arguments.dtype)
    assert isinstance(prm, HeadPRM)
    plain = Plain(prm, dtype)
    warm = generated[:16]  # kernels are chosen and memory is taken before anything is timed
    list(prm.score_many(warm)), plain.one_at_a_time(warm[:2]), plain.padded(warm, arguments.batch)
    sixty_four = compare("64 generated candidates a problem", generated, prm, plain, arguments.batch, rounds)
    main_set = (
        sixty_four
        if real is None
        else compare("16 real candidates a problem", real, prm, plain, arguments.batch, rounds)
    )
    apart = max(main_set.difference, sixty_four.difference)
    if apart > (1e-4 if dtype == torch.float32 else 0.1):  # bfloat16 rounds otherwise in every batch shape
        raise SystemExit(f"the three ways disagree by {apart:.4g}: they do not score the same thing")
    layers = sum(p.numel() for n, p in plain.model.model.named_parameters() if "embed_tokens" not in n)
    figures = {
        "speedup_over_one_at_a_time": main_set.one / main_set.ours,
        "speedup_over_padded_batch": main_set.padded / main_set.ours,
        "tokens_computed_over_distinct": main_set.computed / main_set.distinct,
        "share_of_matmul_peak": 2
        * layers
        * main_set.computed
        / main_set.ours
        / matmul_peak(dtype, prm.engine.device),
        "padded_over_distinct_tokens": main_set.padded_tokens / main_set.distinct,
        "largest_score_difference": apart,
        "speedup_over_one_at_a_time_64_generated": sixty_four.one / sixty_four.ours,
        "speedup_over_padded_batch_64_generated": sixty_four.padded / sixty_four.ours,
        "tokens_computed_over_distinct_64_generated": sixty_four.computed / sixty_four.distinct,
    }
    finish(
        "grade",
        figures,
        {
            "speedup_over_one_at_a_time": 3.0,
            "speedup_over_padded_batch": 3.0,
            "tokens_computed_over_distinct": 1.0,
        },
    )


if __name__ == "__main__":
    main()
