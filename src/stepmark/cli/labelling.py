"""One run of `stepmark label`: its options, rows through a labeller to the output, resumed where it was."""

from __future__ import annotations

import json
import sys
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from cyclopts import Parameter

from stepmark.cli.answering import answering, check_ray
from stepmark.cli.grade import Flag
from stepmark.cli.paths import checked_input
from stepmark.cli.progress import Progress
from stepmark.errors import InputError, UsageError
from stepmark.store import (
    STDIO,
    atomic_write,
    check_writable,
    encode_row,
    fingerprint,
    is_stream,
    open_rows,
    read_rows,
)

if TYPE_CHECKING:
    from stepmark.batching import Answerer, ReplyStore
    from stepmark.labels.labelling import Labeller, Labelling, Rollouts
    from stepmark.records import Refusal, Solution
    from stepmark.solutions.formats import SolutionRow


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True, slots=True)
class LabelOptions:
    """What every method takes."""

    policy: str | None = None
    """The policy that continues prefixes: a model's folder or hub name, http://HOST/v1#MODEL, or "package.module:factory"."""
    out: str
    """Write the labelled solutions to this file (format stepmark-labels), packed if it ends in .gz."""
    verifier: str = "math"
    """What compares final answers: math, number, choice, text, or "package.module:Class"."""
    percent: Literal["distinct", "sign"] = "distinct"
    """Whether 10% is 1/10 only, or 10 too (GSM8K's references leave the sign out)."""
    budget: int | None = None
    """Stop when the labelled solutions have cost this many tokens of the policy; the rest are counted as not labelled."""
    temperature: float = 0.7
    """Of the rollouts."""
    top_p: float = 1.0
    """Of the rollouts."""
    max_tokens: int = 512
    """The longest rollout."""
    prompt: Literal["chat", "text"] = "chat"
    """Ask as the user's turn of a chat, or as plain text (base models)."""
    instruction: str | None = None
    """What is said after the problem. Left out: to go step by step and to box the answer."""
    seed: int = 0
    """Of the rollouts."""
    split: str = "auto"
    """How a text is cut into steps: auto, line, blank-line, numbered, sentence, marker, code, agent, whole."""
    in_flight: int = 64
    """Solutions that are worked on at once: more fill a server better and take more memory."""
    keep_going: Flag = False
    """Leave out rows that cannot be labelled, and list them at the end."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Precision of a local policy."""
    device: str = "auto"
    """Where a local policy runs: auto, cpu, cuda."""
    ray: str | None = None
    """Spread the work over a Ray cluster: auto (the one this machine is in), HOST:PORT, ray://HOST:PORT, or local."""
    ray_workers: int | None = None
    """Workers on the cluster, each with its own policy. Left out: as many as have room now, at most --in-flight."""
    ray_cpus: float = 1
    """Processors that each worker is given, and threads of a local policy."""
    ray_gpus: float = 0
    """GPUs that each worker is given; 0.5 puts two on one."""

    def rollouts(self) -> Rollouts:
        """How prefixes are continued."""
        from stepmark.labels.labelling import Rollouts

        how = Rollouts(
            temperature=self.temperature,
            top_p=self.top_p,
            max_tokens=self.max_tokens,
            seed=self.seed,
            prompt=self.prompt,
        )
        return how if self.instruction is None else replace(how, instruction=self.instruction)


_NO_LABELS = ("out", "budget", "in_flight", "keep_going", "ray", "ray_workers", "ray_cpus", "ray_gpus")
"""The options that do not decide what a label is; a run may be continued with others."""


@dataclass(kw_only=True, slots=True)
class _Tally:
    solutions: int = 0
    others: int = 0
    found: int = 0
    clean: int = 0
    abstained: int = 0
    unknown: int = 0
    rollouts: int = 0
    tokens: int | None = 0
    unparsed: int = 0

    def add(self, facts: dict[str, Any], others: int) -> None:
        """Count one labelled solution by the facts of its row."""
        self.solutions += 1
        self.others += others
        first = facts["first_error"]
        self.abstained += facts["abstained"]
        self.found += first is not None and first >= 0
        self.clean += first == -1
        self.unknown += first is None and not facts["abstained"]
        cost = facts["cost"]
        self.rollouts += cost["rollouts"]
        self.tokens = None if self.tokens is None or cost["tokens"] is None else self.tokens + cost["tokens"]
        self.unparsed += cost["unparsed"]


def run_labeller(
    file: str,
    labeller: Labeller,
    options: LabelOptions,
    *,
    needs_policy: bool = True,
    needs_verifier: bool = True,
) -> int:
    """Label a file: every reply is recorded before use, a killed run goes on, and the output is whole or absent.

    Args:
        file: solutions, as JSON lines.
        labeller: the method.
        options: the flags.
        needs_policy: False for a method that asks nothing of a policy; --policy may then be left out.
        needs_verifier: False for a method that asks for no verdict; what verifiers need is then not loaded.

    Raises:
        UsageError: options that cannot work, or a part left by another run.
        InputError: a row that cannot be labelled, unless the run keeps going.
        BackendError: the policy or the verifier failed; what was done is kept.
    """
    from stepmark.models.replies import ReplyFile
    from stepmark.records import Refusal
    from stepmark.solutions.formats import read_solutions

    _check(file, options)
    if needs_policy and options.policy is None:
        raise UsageError(
            "expected --policy: a model's folder or hub name, http://HOST/v1#MODEL, or package.module:factory"
        )
    rows = read_solutions(file, how=options.split, keep_going=options.keep_going)
    rows = chain([next(rows)], rows)
    known = fingerprint(file)
    assert known is not None
    work = Path(options.out + ".work")
    manifest = _manifest(file, labeller, options)
    tally, refused = _Tally(), list[str]()
    # One line an input row, which may be several labelled solutions: flattened at the end.
    with (
        closing(open_rows(work, manifest)) as out,
        closing(ReplyFile(Path(options.out + ".replies.sqlite"))) as store,
        answering(options, needs_policy=needs_policy, needs_verifier=needs_verifier) as asked,
    ):
        for earlier in out.earlier():
            _count(earlier, tally, refused)
        progress = Progress(known.lines, done=out.done, tokens=asked.tokens_written, verb="labelled")
        spent_out = _spent(tally, options)
        try:
            with progress:
                left_rows = islice(rows, out.done, None)
                for result, where in _labelled(left_rows, labeller, asked.answerers, store, options):
                    if spent_out:
                        break
                    if isinstance(result, Refusal):
                        if not options.keep_going:
                            raise result.error.at(where)
                        out.refuse(result.error.at(where))
                        refused.append(str(result.error))
                    else:
                        facts = _facts(result)
                        out.write({"rows": list(_rows(result, facts))})
                        tally.add(facts, len(result.others))
                    progress.advance()
                    spent_out = _spent(tally, options)
        except KeyboardInterrupt:
            raise KeyboardInterrupt(f"{out.written} solutions are kept; the same command continues") from None
        if tally.solutions == 0:
            raise InputError("nothing was labelled" + (": " + refused[0] if refused else ""), where=file)
        # Counted only where the budget ended the run: lines of the file are not rows, some may be blank.
        left = sum(1 for _ in read_rows(file, keep_going=True)) - out.written if spent_out else 0
        out.finish({"policy": options.policy if needs_policy else None})
    _flatten(work, options.out, manifest, tally, left)
    print(_said(tally, refused, left, options), file=sys.stderr)
    return 0


def _labelled(
    rows: Iterable[SolutionRow | Refusal],
    labeller: Labeller,
    answerers: Mapping[type, Answerer],
    store: ReplyStore,
    options: LabelOptions,
) -> Iterator[tuple[Labelling | Refusal, str]]:
    """Results in the order of the rows, each with its row's place."""
    from stepmark.labels.run import label
    from stepmark.records import Refusal

    waiting: deque[SolutionRow | Refusal] = deque()

    def solutions() -> Iterator[Solution]:
        for row in rows:
            waiting.append(row)
            if not isinstance(row, Refusal):
                yield row.solution

    for result in label(solutions(), labeller, answerers, store=store, in_flight=options.in_flight):
        while isinstance(row := waiting.popleft(), Refusal):
            yield row, row.error.where or ""
        yield result, row.where
    for rest in waiting:
        if isinstance(rest, Refusal):
            yield rest, rest.error.where or ""


def _rows(result: Labelling, facts: dict[str, Any]) -> Iterator[dict[str, Any]]:
    from stepmark.solutions.interchange.labels import to_row

    yield to_row(result.labelled, meta=facts)
    for other in result.others:
        yield to_row(other, meta={"method": result.method})


def _facts(result: Labelling) -> dict[str, Any]:
    return {
        "method": result.method,
        "first_error": result.first_error,
        "confidence": result.confidence,
        "abstained": result.abstained,
        "cost": asdict(result.cost),
    }


def _count(earlier: dict[str, Any] | InputError, tally: _Tally, refused: list[str]) -> None:
    if isinstance(earlier, InputError):
        refused.append(str(earlier))
    else:
        tally.add(earlier["rows"][0]["meta"], len(earlier["rows"]) - 1)


def _spent(tally: _Tally, options: LabelOptions) -> bool:
    # By what stands in the output, in its order: the same rows are written however often the run was killed.
    if options.budget is None:
        return False
    if tally.tokens is None:
        raise UsageError("--budget: this policy does not say how many tokens it writes; leave the budget out")
    return tally.tokens >= options.budget


def _check(file: str, options: LabelOptions) -> None:
    from stepmark.solutions.segmentation import check_way

    check_way(options.split)
    if file == STDIO:
        raise UsageError("stepmark label reads its file more than once; give it a name, not -")
    check_ray(options)
    checked_input(file)
    if is_stream(options.out):
        raise UsageError(f"--out {options.out}: expected a file's name")
    check_writable(options.out)
    if Path(options.out).resolve() == Path(file).resolve():
        raise UsageError(f"--out {options.out} is the input: it would be replaced; choose another")
    for name, least in (("in_flight", 1), ("budget", 1)):
        value = getattr(options, name)
        if value is not None and value < least:
            raise UsageError(f"--{name.replace('_', '-')} {value}: expected {least} or more")


def _manifest(file: str, labeller: Labeller, options: LabelOptions) -> dict[str, Any]:
    known = fingerprint(file)
    assert known is not None
    settings = {key: value for key, value in asdict(options).items() if key not in _NO_LABELS}
    method = {"name": labeller.name, **asdict(labeller)}  # type: ignore[call-overload]
    body = {
        "command": "label",
        "input": {"name": Path(file).name, "bytes": known.bytes, "sha256": known.sha256},
        "method": method,
        "settings": settings,
    }
    plain: dict[str, Any] = json.loads(json.dumps(body, default=str))
    return plain


def _flatten(work: Path, out: str, manifest: dict[str, Any], tally: _Tally, left: int) -> None:
    """Make the output of the work file, a line a labelled solution, then its manifest, then drop the work file."""
    import gzip

    beside = Path(out + ".manifest.json")
    beside.unlink(missing_ok=True)
    with work.open(encoding="utf-8") as lines, atomic_write(out) as handle:
        sink: Any = handle.buffer
        if out.endswith(".gz"):
            sink = gzip.GzipFile(filename="", mode="wb", fileobj=handle.buffer, mtime=0)
        for line in lines:
            for row in json.loads(line)["rows"]:
                sink.write(encode_row(row))
        if out.endswith(".gz"):
            sink.close()
    with atomic_write(beside) as handle:
        json.dump({**manifest, **asdict(tally), "not_labelled": left}, handle, ensure_ascii=False, indent=2)
        handle.write("\n")
    work.unlink()
    work.with_name(work.name + ".manifest.json").unlink(missing_ok=True)


def _said(tally: _Tally, refused: list[str], left: int, options: LabelOptions) -> str:
    lines = [
        f"{tally.solutions:,} solutions: {tally.found:,} with a first error, {tally.clean:,} without, "
        f"{tally.abstained:,} abstained, {tally.unknown:,} where the method says nothing"
    ]
    if tally.others:
        lines.append(f"{tally.others:,} more solutions were labelled on the way")
    tokens = "tokens not told" if tally.tokens is None else f"{tally.tokens:,} tokens"
    each = "" if not tally.tokens else f", {tally.tokens / tally.solutions:,.0f} tokens a solution"
    lines.append(
        f"{tally.rollouts:,} rollouts, {tokens}{each}; {tally.unparsed:,} rollouts without a verdict"
    )
    if left:
        lines.append(
            f"{left:,} solutions were not labelled: the budget of {options.budget:,} tokens was spent"
        )
    if refused:
        lines += [f"left out {len(refused):,} rows:", *(f"  {error}" for error in refused)]
    lines.append(f"wrote {options.out}; every reply is in {options.out}.replies.sqlite")
    return "\n".join(lines)
