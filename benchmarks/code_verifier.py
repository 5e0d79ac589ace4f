"""The code verifier against what was published of 16,400 completions of HumanEval.

    python -m benchmarks.code_verifier [--limit N] [--workers N] [--out FILE]

Every completion is run in the sandbox; equal completions of a problem are run once. Verdicts are kept in FILE as they come, and a run
that was broken off goes on there. Printed: a table of recorded outcome against verdict, and every contradiction with what was recorded
and what our note says.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.common import data_folder, finish, rows
from stepmark.verifiers.code import CodeTests, CodeVerifier, read_code_tests
from stepmark.verifiers.code_sandbox import CodeLimits


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One published completion."""

    task: str
    text: str
    passed: bool
    recorded: str
    tests: CodeTests


def samples(folder: Path) -> list[Sample]:
    """All of them, in the order of the file."""
    tests = {row["task_id"]: read_code_tests(row) for row in rows(folder / "code" / "humaneval.jsonl.gz")}
    return [
        Sample(task=row["task_id"], text=text, passed=passed, recorded=recorded, tests=tests[row["task_id"]])
        for row in rows(folder / "code" / "humaneval_samples_100.jsonl.gz")
        for text, passed, recorded in zip(row["samples"], row["passed"], row["result"], strict=True)
    ]


def verdicts(
    wanted: list[Sample], file: Path | None, workers: int
) -> Iterator[tuple[tuple[str, str], tuple[str, str]]]:
    """(problem, completion) and (outcome, note), each once; those that the file has are taken from it."""
    known: dict[tuple[str, str], tuple[str, str]] = {}
    if file is not None and file.is_file():
        for line in file.read_text(encoding="utf-8").splitlines():
            kept = json.loads(line)
            known[kept["task"], kept["text"]] = (kept["outcome"], kept["note"])
    yield from known.items()
    left = list({(s.task, s.text): s for s in wanted if (s.task, s.text) not in known}.values())
    out = file.open("a", encoding="utf-8") if file is not None else None
    started, told = time.monotonic(), time.monotonic()
    with CodeVerifier(workers=workers, limits=CodeLimits(seconds=5)) as verifier:
        print(f"isolation: {verifier.isolation}", file=sys.stderr)
        for at in range(0, len(left), 8 * workers):
            part = left[at : at + 8 * workers]
            for s, verdict in zip(part, verifier.verify_many([(s.text, s.tests) for s in part]), strict=True):
                found = (verdict.outcome, verdict.note or "")
                if out is not None:
                    kept = {"task": s.task, "text": s.text, "outcome": found[0], "note": found[1]}
                    out.write(json.dumps(kept) + "\n")
                yield (s.task, s.text), found
            if out is not None:
                out.flush()
            if time.monotonic() - told > 20:
                told = time.monotonic()
                done = at + len(part)
                rest = (len(left) - done) * (told - started) / done
                print(
                    f"{done:,} of {len(left):,} programs, {rest / 60:.0f} min left",
                    file=sys.stderr,
                    flush=True,
                )
    if out is not None:
        out.close()


def main() -> int:
    """Run it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--limit", type=int, help="so many completions, evenly spaced")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--out", type=Path, help="keep verdicts here, and go on there")
    options = parser.parse_args()
    folder = data_folder()
    if folder is None:
        print("no data: set STEPMARK_DATA to the folder of development data", file=sys.stderr)
        return 2
    wanted = samples(folder)
    if options.limit:
        wanted = [wanted[i * len(wanted) // options.limit] for i in range(options.limit)]
    found = dict(verdicts(wanted, options.out, options.workers))
    table = Counter((s.passed, found[s.task, s.text][0]) for s in wanted)
    print(f"{len(wanted):,} completions, {len({(s.task, s.text) for s in wanted}):,} different programs")
    print(f"{'recorded':12}{'match':>10}{'mismatch':>10}{'unparsed':>10}")
    for passed in (True, False):
        counts = [table[passed, outcome] for outcome in ("match", "mismatch", "unparsed")]
        print(f"{'passed' if passed else 'failed':12}" + "".join(f"{count:>10,}" for count in counts))
    against = [s for s in wanted if found[s.task, s.text][0] != ("match" if s.passed else "mismatch")]
    reasons = Counter(
        (s.recorded, found[s.task, s.text][0], found[s.task, s.text][1][:80], s.task) for s in against
    )
    for (recorded, outcome, note, task), count in reasons.most_common():
        print(f"  {count:>5} x {task}: recorded {recorded!r}, ours {outcome} ({note})")
    judged = sum(count for (_, outcome), count in table.items() if outcome != "unparsed")
    agree = table[True, "match"] + table[False, "mismatch"]
    finish(
        "code_verifier",
        {
            "completions": float(len(wanted)),
            "agreement_where_a_verdict": agree / judged,
            "unparsed_share": 1 - judged / len(wanted),
        },
        {"agreement_where_a_verdict": 1.0},
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
