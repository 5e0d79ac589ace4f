"""`stepmark evaluate verifier`: is the answer checker itself right."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from stepmark.cli.answering import checked_isolation
from stepmark.cli.evaluating import Data, provenance, write_result
from stepmark.cli.flags import ColumnsFlag, columns_of
from stepmark.errors import UsageError
from stepmark.problems.code_sandbox import Isolation


def verifier_command(
    *,
    data: Data,
    verifier: Annotated[tuple[str, ...], Parameter(consume_multiple=True, negative="")] = (
        "math",
        "number",
        "text",
    ),
    part: Literal["answer", "text"] = "answer",
    percent: Literal["distinct", "sign"] = "distinct",
    isolation: Isolation | None = None,
    out: Path | None = None,
    limit: int | None = None,
    columns: ColumnsFlag = None,
    resamples: int = 1000,
    seed: int = 0,
) -> int:
    """False positives and negatives of answer verifiers on labelled pairs, and the rows where they differ or err.

    Args:
        data: JSON lines of labelled pairs ({"gold", "answer" or "text", "equal", optional "id", "why"}), or of candidates with
            `gold` and `correct`.
        verifier: which to test: math, number, choice, text, code, or "package.module:Class".
        part: of candidates, check their `answer` or their whole `text` (finding the answer is then tested too).
        percent: of math and number: "distinct", 10% is 1/10 and not 10; "sign", it is 10 too, as GSM8K's references have it.
        isolation: of code, what keeps programs apart: bubblewrap, a sandbox; or process, which is none: your files are open to
            them. Left out: bubblewrap.
        out: folder for the result and the report. Left out: evaluation/verifier.
        limit: only the first so many pairs.
        columns: which column of the data is what, where the names differ: gold=reference,answer=response (docs: files).
        resamples: bootstrap resamples of the intervals.
        seed: of the resamples.
    """
    from stepmark.evaluation.sources import files_of
    from stepmark.evaluation.verifier import check_pairs, evaluate, read_pairs
    from stepmark.problems.answers import load_verifier

    files = files_of(data)
    pairs = list(read_pairs(files, part=part, columns=columns_of(columns)))
    whole = len(pairs)
    if limit is not None:
        if limit < 1:
            raise UsageError(f"--limit {limit}: expected 1 or more")
        pairs = pairs[:limit]
    isolation = checked_isolation("code" if "code" in verifier else None, isolation)
    checked = []
    with ExitStack() as stack:
        verifiers = [
            stack.enter_context(
                load_verifier(
                    name,
                    percent=percent if name in ("math", "number") else "distinct",
                    isolation=isolation if name == "code" else None,
                )
            )
            for name in verifier
        ]
        for number, one in enumerate(check_pairs(pairs, verifiers), start=1):
            checked.append(one)
            if number % 1000 == 0:
                print(f"checked {number:,} of {len(pairs):,} pairs", file=sys.stderr, flush=True)
    settings: dict[str, Any] = {
        "verifier": ", ".join(verifier),
        "part": part,
        "percent": percent,
        "limit": limit,
    }
    if isolation is not None:
        settings["isolation"] = isolation
    facts = (
        ()
        if len(pairs) == whole
        else (f"Only the first {len(pairs):,} of {whole:,} pairs were checked (--limit).",)
    )
    result = evaluate(
        checked, settings=settings, data=provenance(files), facts=facts, resamples=resamples, seed=seed
    )
    return write_result(result, out or Path("evaluation") / result.evaluation)
