"""PRMs of real size: memory and time to load, tokens a second, share of the matrix peak, and padded batches beside them.

`python -m benchmarks.size [--shape small|1.5b|7b] [--quantize int8|int4] [--candidates 1 16 64] [--days 9] [--device auto] [--folder FOLDER] [--quick]`

The checkpoint has the shape of Qwen2.5-Math-PRM (a two-layer head on Qwen2) and random weights, stored in bfloat16, in shards (they compute in float32 where the machine has no bfloat16): speed and memory
depend on the shape alone. Its tokenizer is that of the default PRM's base with the family's mark. Both sides grade the same solutions with
the same weights in one process, turn about (with `--quantize` both sides are quantized); peak memory is read before the peer's first turn, with what Python and torch take. The peer is transformers' own attention over batches padded to the longest.
"""

from __future__ import annotations

import json
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file

from benchmarks.common import NATIVE, benchmark_parser, finish, matmul_peak, seconds, settle
from benchmarks.grade import distinct_prefixes, generated_candidates
from stepmark import Solution, load_prm
from stepmark.models import attention
from stepmark.models.heads import step_scores
from stepmark.models.local_prm import HeadPRM
from stepmark.models.memory import memory_of
from stepmark.models.places import base_folder
from stepmark.records import StepScores

MARK = "<extra_0>"


@dataclass(frozen=True, kw_only=True)
class Shape:
    """Sizes of a Qwen2 backbone."""

    hidden: int
    layers: int
    heads: int
    groups: int
    inner: int
    vocabulary: int

    @property
    def layer_weights(self) -> int:
        """Weights that a token is multiplied with: those of all layers, without the embedding."""
        key = self.hidden * self.groups // self.heads
        return self.layers * self.hidden * (2 * self.hidden + 2 * key + 3 * self.inner)


SHAPES = {
    "small": Shape(hidden=256, layers=4, heads=4, groups=2, inner=704, vocabulary=50_000),
    "1.5b": Shape(hidden=1536, layers=28, heads=12, groups=2, inner=8960, vocabulary=151_936),
    "7b": Shape(hidden=3584, layers=28, heads=28, groups=4, inner=18_944, vocabulary=152_064),
}


def tensors(shape: Shape) -> Iterator[dict[str, tuple[int, ...]]]:
    """The shapes of the checkpoint's tensors, a shard at a time."""
    key = shape.hidden * shape.groups // shape.heads
    yield {"model.embed_tokens.weight": (shape.vocabulary, shape.hidden)}
    part: dict[str, tuple[int, ...]] = {}
    for layer in range(shape.layers):
        stem = f"model.layers.{layer}."
        for name, rows in (("q", shape.hidden), ("k", key), ("v", key)):
            part[f"{stem}self_attn.{name}_proj.weight"] = (rows, shape.hidden)
            part[f"{stem}self_attn.{name}_proj.bias"] = (rows,)
        part[f"{stem}self_attn.o_proj.weight"] = (shape.hidden, shape.hidden)
        for name in ("gate", "up"):
            part[f"{stem}mlp.{name}_proj.weight"] = (shape.inner, shape.hidden)
        part[f"{stem}mlp.down_proj.weight"] = (shape.hidden, shape.inner)
        for name in ("input", "post_attention"):
            part[f"{stem}{name}_layernorm.weight"] = (shape.hidden,)
        if layer % 7 == 6:
            yield part
            part = {}
    yield part | {
        "model.norm.weight": (shape.hidden,),
        "score.0.weight": (shape.hidden, shape.hidden),
        "score.0.bias": (shape.hidden,),
        "score.2.weight": (2, shape.hidden),
        "score.2.bias": (2,),
    }


def write_checkpoint(shape: Shape, folder: Path) -> None:
    """Write config, tokenizer and random weights, shard by shard."""
    folder.mkdir(parents=True)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    generator = torch.Generator(device).manual_seed(0)
    parts = list(tensors(shape))
    place: dict[str, str] = {}
    for number, part in enumerate(parts, start=1):
        file = f"model-{number:05d}-of-{len(parts):05d}.safetensors"
        weights = {}
        for name, size in part.items():
            if name.endswith("norm.weight"):
                values = torch.ones(size, dtype=torch.bfloat16)
            else:
                values = torch.empty(size, dtype=torch.bfloat16, device=device)
                values.normal_(0, 0.02 if len(size) > 1 else 0.1, generator=generator)
            weights[name] = values.cpu()
        save_file(weights, folder / file, {"format": "pt"})
        place |= dict.fromkeys(part, file)
    total = sum((folder / file).stat().st_size for file in set(place.values()))
    index = {"metadata": {"total_size": total}, "weight_map": place}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")
    config = {
        "architectures": ["Qwen2ForProcessRewardModel"],
        "model_type": "qwen2",
        "vocab_size": shape.vocabulary,
        "hidden_size": shape.hidden,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.groups,
        "intermediate_size": shape.inner,
        "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10_000.0,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
    }
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    base = base_folder()
    shutil.copy(base / "chat_template.jinja", folder)
    settings = json.loads((base / "tokenizer_config.json").read_text(encoding="utf-8"))
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
    from tokenizers import AddedToken, Tokenizer

    tokenizer = Tokenizer.from_file(str(base / "tokenizer.json"))
    tokenizer.add_special_tokens([AddedToken(MARK, special=True, normalized=False)])
    tokenizer.save(str(folder / "tokenizer.json"))


def peak(device: str, shape: Shape) -> float:
    """Floating-point operations a second of a bare product of the shape's own sizes."""
    rows = 8192 if device.startswith("cuda") else 1024
    return matmul_peak(getattr(torch, NATIVE), device, rows=rows, width=shape.hidden, inner=shape.inner)


def padded(prm: HeadPRM, solutions: Sequence[Solution], batch: int) -> tuple[list[float], int]:
    """Step scores by transformers' own attention over padded batches, in order of arrival; and the tokens computed."""
    backbone: Any = prm.engine.backbone
    device = prm.engine.device
    backbone.set_attn_implementation("sdpa")
    scores: list[float] = []
    computed = 0
    try:
        with torch.inference_mode():
            for start in range(0, len(solutions), batch):
                encoded = [prm.encoder.encode(solution) for solution in solutions[start : start + batch]]
                longest = max(len(text.ids) for text in encoded)
                ids = np.zeros((len(encoded), longest), dtype=np.int64)
                mask = np.zeros((len(encoded), longest), dtype=np.int64)
                for row, text in enumerate(encoded):
                    ids[row, : len(text.ids)] = text.ids
                    mask[row, : len(text.ids)] = 1
                hidden = backbone(
                    input_ids=torch.from_numpy(ids).to(device),
                    attention_mask=torch.from_numpy(mask).to(device),
                    use_cache=False,
                ).last_hidden_state
                computed += ids.size
                at = [
                    (row, read) for row, text in enumerate(encoded) for read in text.reads if read is not None
                ]
                rows, columns = (torch.tensor(values, device=device) for values in zip(*at, strict=True))
                logits = prm.head(hidden[rows, columns].float()).float().cpu()
                scores += step_scores(prm.spec.readout, logits, prm.neutral)[0]
    finally:
        backbone.set_attn_implementation(attention.NAME)
    return scores, computed


def resident(device: str) -> float:
    """The most bytes that this process had, so far, on a device. On Linux what is resident of mapped files counts in."""
    if device.startswith("cuda"):
        return torch.cuda.max_memory_allocated(device)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def ours(prm: HeadPRM, solutions: Sequence[Solution]) -> list[float]:
    """Step scores by the engine."""
    return [
        score
        for result in prm.score_many(solutions)
        if isinstance(result, StepScores)
        for score in result.scores
        if score is not None
    ]


def compare(
    prm: HeadPRM, shape: Shape, candidates: int, problems: int, batch: int, rounds: int, days: tuple[int, int]
) -> dict[str, float]:
    """Figures of grading `problems` problems with `candidates` solutions each, both ways."""
    solutions = generated_candidates(problems, candidates, days)
    sequences = [prm.encoder.encode(solution).ids.tolist() for solution in solutions]
    device = prm.engine.device
    # The engine keeps the opening of what it graded last: what is graded before each turn holds nothing of the problem.
    other = Solution.of("Another problem.", ["A step."])
    before_it = prm.encoder.encode(other).ids.tolist()
    distinct = distinct_prefixes([*sequences, before_it]) - len(before_it)
    best = {"ours": float("inf"), "padded": float("inf")}
    computed = peak_memory = 0.0
    padded_tokens = 0
    for _ in range(rounds):
        list(prm.score_many([other]))
        before = prm.ledger.tokens_computed
        took, scores = seconds(lambda: ours(prm, solutions))
        computed = prm.ledger.tokens_computed - before
        best["ours"] = min(best["ours"], took)
        peak_memory = peak_memory or resident(device)
        if batch:
            took, (others, padded_tokens) = seconds(lambda: padded(prm, solutions, batch))
            best["padded"] = min(best["padded"], took)
    share = 2 * shape.layer_weights * computed / best["ours"] / peak(device, shape)
    flat = sum(map(len, sequences))
    figures = {
        f"tokens_a_second_{candidates}": computed / best["ours"],
        f"share_of_matmul_peak_{candidates}": share,
        f"tokens_computed_over_distinct_{candidates}": computed / distinct,
        f"peak_memory_gb_{candidates}": peak_memory / 1e9,
    }
    print(
        f"{candidates:3} candidates: {len(solutions)} solutions, {flat} tokens, {distinct} distinct; ours {best['ours']:.2f} s "
        f"({computed / best['ours']:.0f} tokens/s), padded {best['padded']:.2f} s ({padded_tokens} tokens)",
        flush=True,
    )
    if batch:
        difference = max(abs(a - b) for a, b in zip(scores, others, strict=True))
        if difference > 0.1:
            raise SystemExit(
                f"the two ways differ by {difference:.3g} at {candidates} candidates: they do not score the same"
            )
        figures |= {
            f"speedup_over_padded_batch_{candidates}": best["padded"] / best["ours"],
            f"largest_score_difference_{candidates}": difference,
        }
    return figures


def main() -> None:
    parser = benchmark_parser(__doc__, "the small shape")
    parser.add_argument("--shape", choices=tuple(SHAPES), default="1.5b")
    parser.add_argument("--quantize", choices=("int8", "int4"))
    parser.add_argument(
        "--days", type=int, nargs=2, default=[5, 9], help="numbers of a problem, at least and at most"
    )
    parser.add_argument("--candidates", type=int, nargs="+", default=[1, 16, 64])
    parser.add_argument("--solutions", type=int, default=64, help="of each turn, over all problems")
    parser.add_argument("--batch", type=int, default=16, help="rows of a padded batch; 0: none is measured")
    parser.add_argument(
        "--padded-most", type=int, default=sys.maxsize, help="with more candidates, no batch is measured"
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--token-budget", type=int, help="tokens of a forward pass")
    parser.add_argument("--device", default="auto")
    parser.add_argument(
        "--folder", type=Path, help="where checkpoints are kept; a temporary folder otherwise"
    )
    parser.add_argument("--write", action="store_true", help="write the checkpoint and stop")
    arguments = parser.parse_args()
    name = "small" if arguments.quick else arguments.shape
    shape = SHAPES[name]
    with tempfile.TemporaryDirectory(prefix="stepmark-size-") as temporary:
        folder = (arguments.folder or Path(temporary)) / f"qwen-prm-{name}"
        if not (folder / "tokenizer.json").is_file():
            if arguments.write:
                write_checkpoint(shape, folder)
            else:  # in a process of its own: its memory is not the PRM's
                words = ["--write", "--shape", name, "--folder", str(folder.parent)]
                subprocess.run([sys.executable, "-m", "benchmarks.size", *words], check=True)
        if arguments.write:
            return
        weights = sum(file.stat().st_size for file in folder.glob("*.safetensors"))  # in bfloat16
        weights = weights if NATIVE == "bfloat16" else 2 * weights
        before = resident("cpu")
        more = {} if arguments.token_budget is None else {"token_budget": arguments.token_budget}
        estimated = memory_of(
            str(folder), dtype=NATIVE, quantize=arguments.quantize, device=arguments.device, **more
        ).total
        start = time.perf_counter()
        prm = load_prm(
            str(folder), dtype=NATIVE, quantize=arguments.quantize, device=arguments.device, **more
        )
        assert isinstance(prm, HeadPRM)
        # Kernels are chosen and weights paged in before anything is timed.
        ours(prm, generated_candidates(1, 1))
        settle()
        figures = {
            "load_and_first_score_s": time.perf_counter() - start,
            "weights_gb": weights / 1e9,
            "peak_memory_over_weights": (resident("cpu") - before) / weights,
            "memory_before_gb": before / 1e9,
            "estimated_gb": estimated / 1e9,
        }
        for candidates in arguments.candidates:
            problems = max(1, arguments.solutions // candidates)
            batch = arguments.batch if candidates <= arguments.padded_most else 0
            figures |= compare(
                prm, shape, candidates, problems, batch, arguments.rounds, tuple(arguments.days)
            )
        if prm.engine.device.startswith("cuda"):
            figures["peak_device_memory_over_weights"] = torch.cuda.max_memory_allocated() / weights
    last = max(arguments.candidates)
    aims = {f"tokens_computed_over_distinct_{last}": 1.0, f"speedup_over_padded_batch_{last}": 3.0}
    aims |= {"peak_memory_over_weights": 1.1, "share_of_matmul_peak_1": 0.5}
    finish(f"size-{name}", figures, {key: aim for key, aim in aims.items() if key in figures})


if __name__ == "__main__":
    main()
