"""What labelling and grading cost beside the models: files, the reply store, verdicts, tokens, asking.

`python -m benchmarks.scale [--quick] [--base FOLDER] [--folder FOLDER]`. `docs/scale.md` names some of these rates. All run in one process
with one thread, on texts of the arithmetic world (no data needed), and take the best of three rounds: on a machine that others use, a rate is
a lower bound. A durable write waits for the disk, so `--folder` should lie on the one that will be used.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Callable
from contextlib import closing
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.common import benchmark_parser, finish, seconds
from stepmark.backends import CachedPolicy, Completion, Completions, run_tasks
from stepmark.backends.replies import MemoryReplies, ReplyFile
from stepmark.data.solutions import read_solutions
from stepmark.models.prm import grade, to_row
from stepmark.models.scripted import ScriptedPolicy, ScriptedPRM
from stepmark.problems.arithmetic_world import wrong_solutions
from stepmark.records import GradedSolution, Solution, Verdict
from stepmark.store import atomic_rows
from stepmark.verifiers.base import Verifier, load_verifier

ROUNDS = 3


def best(run_once: Callable[[], Any], count: int) -> float:
    """Things a second, in the best of some rounds."""
    return count / min(seconds(run_once)[0] for _ in range(ROUNDS))


def texts(count: int) -> list[Solution]:
    """Solutions of the arithmetic world, from a few hundred distinct ones."""
    some = [case.solution for case in wrong_solutions(min(count, 200), seed=1)]
    return [some[number % len(some)] for number in range(count)]


def files(solutions: list[Solution], folder: Path) -> dict[str, float]:
    """Rows a second and bytes a row: solutions written and read strictly, graded rows made and written."""
    path, out = folder / "solutions.jsonl", folder / "graded.jsonl"

    def row(solution: Solution) -> dict[str, Any]:
        about = solution.problem
        return {"problem": about.text, "steps": list(solution.texts), "answer": about.answer}

    def write() -> None:
        with atomic_rows(path) as line:
            for solution in solutions:
                line(row(solution))

    def read() -> None:
        assert sum(1 for _ in read_solutions(path)) == len(solutions)

    def write_graded() -> None:
        prm = ScriptedPRM(lambda problem, steps: 0.5)
        with atomic_rows(out) as line:
            for scored in grade(solutions, prm):
                assert isinstance(scored, GradedSolution)
                line(to_row(scored, row(scored.solution)))

    count = len(solutions)
    found = {
        "rows_written_a_second": best(write, count),
        "rows_read_a_second": best(read, count),
        "rows_graded_by_a_table_a_second": best(write_graded, count),
    }
    return {
        **found,
        "bytes_a_solution": path.stat().st_size / count,
        "bytes_a_graded_solution": out.stat().st_size / count,
    }


def replies(count: int, folder: Path) -> dict[str, float]:
    """Replies a second: recorded one by one and 64 at a time, each durable on return, and looked up."""
    body = json.dumps(asdict(Completion(text="12 + 30 = 42\n" * 20, finish="end", tokens=160)))
    keys = [hashlib.sha256(str(number).encode()).hexdigest() + "/0" for number in range(count)]
    path = folder / "replies.sqlite"

    def put(size: int) -> None:
        path.unlink(missing_ok=True)
        with closing(ReplyFile(path)) as store:
            for start in range(0, count, size):
                store.put(dict.fromkeys(keys[start : start + size], body))

    singly = min(count, 200)
    with closing(ReplyFile(folder / "singly.sqlite")) as store:
        alone = seconds(lambda: [store.put({key: body}) for key in keys[:singly]])[0]
    together = best(lambda: put(64), count)
    with closing(ReplyFile(path)) as store:
        looked_up = best(
            lambda: [store.get(keys[start : start + 64]) for start in range(0, count, 64)], count
        )
    return {
        "replies_recorded_singly_a_second": singly / alone,
        "replies_recorded_by_64_a_second": together,
        "replies_looked_up_a_second": looked_up,
        "bytes_a_reply_beside_its_text": path.stat().st_size / count - 13 * 20,
    }


def _verify(verifier: Verifier, pairs: list[tuple[str, str]]) -> list[Verdict]:
    return [verifier.verify(*pair) for pair in pairs]


def verdicts(solutions: list[Solution]) -> dict[str, float]:
    """Verdicts a second of one process: on whole numbers, and on answers in LaTeX that only computer algebra can compare."""
    plain = [("\n".join(one.texts), str(one.problem.answer)) for one in solutions]
    latex = [
        (
            rf"So it is \boxed{{\frac{{{n}}}{{{n + 3}}}\sqrt{{{n + 1}}}}}",
            rf"\frac{{{2 * n}\sqrt{{{n + 1}}}}}{{{2 * n + 6}}}",
        )
        for n in range(2, 102)
    ]
    found = {}
    for what, name, pairs in (("number", "number", plain), ("math", "math", plain), ("latex", "math", latex)):
        with load_verifier(name) as verifier:
            right = [
                verdict.correct for verdict in _verify(verifier, pairs[:20])
            ]  # and its worker has started
            assert what != "latex" or all(right)
            found[f"verdicts_{what}_a_second"] = best(partial(_verify, verifier, pairs), len(pairs))
    return found


def asking(count: int) -> dict[str, float]:
    """Requests a second through `backends.run_tasks`, a task each, written by a policy that says one thing, and recorded."""

    def asked() -> None:
        policy = ScriptedPolicy(lambda request, number: "42", name="by hand")
        cached = CachedPolicy(policy, MemoryReplies())
        requests = (Completions(prompt=f"problem {number}") for number in range(count))
        assert sum(len(written) for _, written in run_tasks(requests, cached.complete)) == count

    return {"requests_asked_a_second": best(asked, count)}


def tokens(solutions: list[Solution], base: str) -> dict[str, float]:
    """Tokens a second of one thread, encoded as the PRM reads them."""
    from stepmark.models.backbone import load_tokenizer
    from stepmark.models.encoding import Encoder
    from stepmark.models.places import find_checkpoint
    from stepmark.training.net import layout_for

    tokenizer = load_tokenizer(find_checkpoint(base))
    encoder = Encoder(
        tokenizer, layout_for(tokenizer, mark=None, layout="auto", marked=True), max_tokens=None
    )
    size = sum(len(encoder.encode(one).ids) for one in solutions)
    return {"tokens_encoded_a_second": best(lambda: [encoder.encode(one) for one in solutions], size)}


def main() -> None:
    parser = benchmark_parser(__doc__)
    parser.add_argument("--rows", type=int)
    parser.add_argument("--base", default="stepmark:smollm2-135m-instruct")
    parser.add_argument(
        "--folder", type=Path, help="on the disk that is measured; else the system's temporary one"
    )
    arguments = parser.parse_args()
    count = arguments.rows or (2_000 if arguments.quick else 20_000)
    solutions = texts(count)
    with tempfile.TemporaryDirectory(dir=arguments.folder) as name:
        folder = Path(name)
        figures = {
            **files(solutions, folder),
            **replies(count, folder),
            **verdicts(solutions[: min(count, 400)]),
            **asking(count),
            **tokens(solutions[: min(count, 2_000)], arguments.base),
        }
    finish("scale", figures, {})


if __name__ == "__main__":
    main()
