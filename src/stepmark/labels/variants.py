"""Wrong variants of right solutions, as many as are wanted, each with its true label (`labels.exact` makes the errors).

A right solution is GSM8K's worked one, whose calculations are marked `<<48/2=24>>`; or any solution whose steps write their
calculations out ("48 / 2 = 24 clips"): `worked_of` marks them, where `formulas.check` reads them and finds them right. Nothing is executed.

Equal solutions, settings and seeds give equal variants, wherever in a file they stand.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from stepmark.data.columns import content_of
from stepmark.data.formats.own import to_row
from stepmark.data.formats.rows import LabelledRow
from stepmark.data.labelled import read_labelled
from stepmark.data.reading import Row, Source, read_rows
from stepmark.data.solutions import SolutionRow, read_solutions
from stepmark.errors import InputError, SettingError, UsageError
from stepmark.labels.exact import FORMULA, KINDS, NUMBER, Kind, as_written, compute, with_errors
from stepmark.problems.arithmetic import arithmetic_problems
from stepmark.problems.sources import Worked, worked_row
from stepmark.records import LabelledSolution, Refusal, Solution
from stepmark.settings import checked, settings
from stepmark.show.text import amount
from stepmark.store import Results, RunInput, check_outputs, is_stream, open_rows, run_input, write_beside
from stepmark.verifiers.checks.equations import calculations
from stepmark.verifiers.finder import find_answer

_REPEATS = 3
"""Errors of a kind that are there already, after which no more of it are sought."""


@checked
def exact(
    solutions: Source | None = None,
    *,
    out: str | Path | None = None,
    arithmetic: Annotated[int, Field(ge=1)] | None = None,
    wrong: int = 4,
    kinds: Sequence[Kind] = KINDS,
    seed: int = 0,
    split: str = "auto",
    columns: Mapping[str, str] | None = None,
    keep_going: bool = False,
) -> Results[LabelledRow]:
    """Put errors into right solutions and carry them through the later steps: true labels, without any model.

    Right solutions are GSM8K's rows, {"question": "…", "answer": "… <<48/2=24>>24 … #### 24"}, or {"problem": "…", "steps": […],
    "answer": "…"} (or a text under "solution") whose steps write their calculations out (48 / 2 = 24). Solutions that are not right, or have
    no place for an error, are left out and counted.

    Args:
        solutions: a file, dicts, records, a data set or a data frame. None with `arithmetic`.
        out: write the labelled solutions to this file (format stepmark-labels), gzipped if its name ends in .gz; "-" for standard output.
            What is left out is listed in OUT.refused.jsonl.
        arithmetic: in the place of solutions: right solutions of this many problems of the arithmetic world, made from `seed`.
        wrong: wrong variants of each solution, at most: of every kind in turn, as far as there are places for them.
        kinds: kinds of errors to put in: value, operand, operation, unit, dropped, repeated, jump, "early stop".
        seed: seed of the places and the errors.
        split: how a text is split into steps: auto, line, blank-line, numbered, sentence, marker, code, agent, whole.
        columns: names of columns, where they differ: problem=question,solution=response.
        keep_going: leave out rows that are no solutions too.

    Returns:
        For each solution: the right one, its wrong variants, and a right twin of each jump, as `LabelledRow`s: `labelled` holds the
        judgements, `outcome` whether the final answer is right, `meta` the `kind` of error and `first_error` (0-based, -1 for none).

    Raises:
        InputError: a row that is no solution (unless `keep_going`), or no error could be put into any.
        UsageError: a setting that cannot work, or an output that is an input.
    """
    if (solutions is None) == (arithmetic is None):
        raise UsageError(
            "expected either right solutions or `arithmetic`, a number of problems, and not both"
        )
    check_outputs({"out": out}, solutions)
    labeller = ExactErrors(wrong=wrong, kinds=tuple(kinds), seed=seed)
    given = None if solutions is None else run_input(solutions, again=True)
    manifest = {
        "command": "label exact",
        "input": {"arithmetic": arithmetic} if given is None else given.manifest,
        "method": {"name": "exact", **asdict(labeller)},
        "settings": {"split": split, "columns": columns, "keep_going": keep_going},
    }
    made: Counter[str] = Counter()
    refused: list[dict[str, Any]] = []
    records: list[LabelledRow] = []
    worked = (
        _of_the_world(arithmetic or 0, seed) if given is None else _worked(given, columns, split, keep_going)
    )
    with closing(open_rows(os.devnull if out is None else out, manifest, resumable=False)) as writer:
        for where, source in worked:
            try:
                if isinstance(source, InputError):
                    raise source
                variants = labeller.make(source)
            except InputError as error:
                refused.append({"where": where, "why": error.message})
                continue
            made.update(right=1, twin=len(variants.twins))
            made.update(variants.kinds)
            for row in _rows(variants, where):
                writer.write(to_row(row.labelled, outcome=row.outcome, meta=row.meta))
                if out is None:
                    records.append(row)
        if not made:
            why = f": {refused[0]['where']}: {refused[0]['why']}" if refused else ""
            name = None if given is None else given.name
            raise InputError(f"no error could be put into any solution{why}", where=name)
        counts = {"made": made, "refused": Counter(entry["why"] for entry in refused)}
        facts = {name: dict(numbers.most_common()) for name, numbers in counts.items()}
        writer.finish(facts)
    written = Path(out) if out is not None and not is_stream(out) else None
    beside = None if written is None else write_beside(written, "refused", refused)
    wrote = [] if written is None else [f"wrote {out}"]
    return Results(
        (lambda: iter(records)) if written is None else lambda: read_labelled(written),
        sum(made.values()),
        out=written,
        refused=[f"{entry['where']}: {entry['why']}" for entry in refused],
        manifest={**manifest, **facts},
        summary="\n".join([*_summary(made, refused, beside), *wrote]),
    )


def _of_the_world(count: int, seed: int) -> Iterator[tuple[str, Worked]]:
    for number, problem in enumerate(arithmetic_problems(count, seed=seed)):
        yield problem.id or f"arithmetic:{number}", problem.worked


def _worked(
    given: RunInput, columns: Mapping[str, str] | None, split: str, keep_going: bool
) -> Iterator[tuple[str, Worked | InputError]]:
    """Right solutions, each with its name, NAME:LINE; an error in the place of one that cannot be used.

    Raises:
        InputError: a row that is no solution, unless `keep_going`.
    """
    first = next(read_rows(given.source, columns=columns, keep_going=True))
    is_gsm8k = (
        isinstance(first, Row) and {"question", "answer"} <= set(first.data) and not content_of(first.data)
    )
    rows: Iterable[Row | SolutionRow | Refusal] = (
        read_rows(given.source, columns=columns, keep_going=True)
        if is_gsm8k
        else read_solutions(given.source, columns=columns, how=split, keep_going=True)
    )
    for row in rows:
        where = (row.error.where or given.name) if isinstance(row, Refusal) else row.where
        name = Path(where).name  # without the folder: equal inputs give equal files wherever they lie
        try:
            if isinstance(row, Refusal):
                raise row.error
            worked = worked_row(row) if isinstance(row, Row) else worked_of(row.solution)
        except InputError as error:
            # A solution that is not right is no broken row: it is left out and counted.
            if not keep_going and not isinstance(row, SolutionRow):
                error.add_note("with `keep_going`, rows that are no solutions are left out and listed")
                raise
            yield name, error
        else:
            own = worked.problem.id not in (None, where)
            yield name, worked if own else replace(worked, problem=replace(worked.problem, id=name))


def _rows(variants: Variants, where: str) -> Iterator[LabelledRow]:
    """The right solution, the wrong ones, each twin; their ids name what was made of what."""
    base = variants.right.solution.problem.id or where

    def row(labelled: LabelledSolution, name: str, outcome: bool, **facts: Any) -> LabelledRow:
        named = replace(labelled, solution=replace(labelled.solution, id=f"{base}/{name}"))
        meta = {"method": "exact", "from": where, **facts}
        return LabelledRow(labelled=named, where=where, outcome=outcome, meta=meta)

    yield row(variants.right, "right", True, first_error=-1)
    for number, (wrong, kind) in enumerate(zip(variants.wrong, variants.kinds, strict=True), start=1):
        place = next(i for i, step in enumerate(wrong.judgements) if any(j.rating == -1 for j in step))
        # A wrong unit leaves the answer's number as it is.
        yield row(wrong, f"wrong-{number}", kind == "unit", first_error=place, kind=kind)
    for number, twin in enumerate(variants.twins, start=1):
        yield row(twin, f"twin-{number}", True, first_error=-1, kind="jump")


def _summary(made: Counter[str], refused: Sequence[Mapping[str, Any]], beside: str | None) -> list[str]:
    kinds = {kind: count for kind, count in made.most_common() if kind not in ("right", "twin")}
    lines = [
        f"{amount(made['right'], 'right solution')}, {amount(made['twin'], 'right twin')} of jumps, {amount(sum(kinds.values()), 'wrong one')}: "
        + ", ".join(f"{count:,} {kind}" for kind, count in kinds.items())
    ]
    if refused:
        lines.append(
            f"left out {amount(len(refused), 'solution')}{f', listed in {beside}' if beside else ''}:"
        )
        reasons: dict[str, list[str]] = {}
        for entry in refused:
            # "step 3 is not right: …" is of one row; the count is of the kind of reason.
            reasons.setdefault(entry["why"].partition(":")[0], []).append(entry["where"])
        for why, places in sorted(reasons.items(), key=lambda item: -len(item[1])):
            lines.append(f"  {len(places):,} x {why} (first: {places[0]})")
    return lines


@dataclass(frozen=True, kw_only=True, slots=True)
class Variants:
    """A right solution and wrong ones made of it; every step up to the error is judged by "exact"."""

    right: LabelledSolution
    """Every step right."""
    wrong: tuple[LabelledSolution, ...]
    """Each with one error; no two read the same."""
    kinds: tuple[Kind, ...]
    """The kind of error of each of these."""
    twins: tuple[LabelledSolution, ...]
    """Right solutions that look like the wrong ones of the kind `jump`: without them, whatever asserts a result without its
    calculation would be wrong."""


@settings
class ExactErrors:
    """How many errors are put in, and which; see `exact`."""

    wrong: Annotated[int, Field(ge=1)] = 4
    kinds: tuple[Kind, ...] = KINDS
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.kinds or len(set(self.kinds)) < len(self.kinds):
            raise SettingError("kinds", list(self.kinds), "one or more different kinds")

    def make(self, worked: Worked) -> Variants:
        """The right solution and its wrong variants.

        Raises:
            InputError: a marked or written calculation is false, there is none that is read, the answer is no number, or no error
                of these kinds has a place.
        """
        _check_right(worked)
        rng = random.Random("\n".join((str(self.seed), worked.problem.text, *worked.lines)))
        (right, *_) = with_errors(worked, rng, kinds=())
        wrong: dict[tuple[str, ...], tuple[LabelledSolution, Kind]] = {}
        twins: dict[tuple[str, ...], LabelledSolution] = {}
        open_kinds = list(self.kinds)
        repeats: Counter[Kind] = Counter()
        while open_kinds and len(wrong) < self.wrong:
            for kind in rng.sample(open_kinds, len(open_kinds)):
                if len(wrong) == self.wrong:
                    break
                (_, *twins_and_wrong) = with_errors(worked, rng, kinds=(kind,))
                if not twins_and_wrong:
                    open_kinds.remove(kind)
                    continue
                (*before, made) = twins_and_wrong
                if made.solution.texts in wrong:
                    repeats[kind] += 1
                    if repeats[kind] == _REPEATS:
                        open_kinds.remove(kind)
                else:
                    wrong[made.solution.texts] = made, kind
                    twins |= {
                        twin.solution.texts: twin
                        for twin in before
                        if twin.solution.texts != right.solution.texts
                    }
        if not wrong:
            raise InputError("no place for any of these kinds of errors")
        return Variants(
            right=right,
            wrong=tuple(made for made, _ in wrong.values()),
            kinds=tuple(kind for _, kind in wrong.values()),
            twins=tuple(twins.values()),
        )


def _check_right(worked: Worked) -> None:
    answer = worked.problem.answer or ""
    if compute(answer) is None or not NUMBER.fullmatch(answer.removeprefix("-")):
        raise InputError(f"the answer is no number: {answer}" if answer else "there is no reference answer")
    _check_calculations(worked.lines)
    if not any(FORMULA.search(line) for line in worked.lines):
        raise InputError("no step writes down a calculation that is read (48 / 2 = 24)")


def _check_calculations(lines: Sequence[str]) -> None:
    for number, line in enumerate(lines, start=1):
        false = next((formula for formula in calculations(line) if formula.truth == "wrong"), None)
        if false is not None:
            raise InputError(f"a calculation is false: step {number}: {false.text}: {false.why}")


def worked_of(solution: Solution) -> Worked:
    """A right solution with its calculations marked, as `with_errors` reads it; a last step that only says the answer is left out.

    A solution with a calculation that cannot be marked is refused, for what depends on an error could not all be computed again.

    Raises:
        InputError: it names another answer than the reference, or none and there is no reference; a calculation that is false or
            cannot be marked.
    """
    texts = list(solution.texts)
    stated = find_answer("\n".join(texts), "marked")
    own = None if stated is None else compute(_bare(stated.text))
    answer = solution.problem.answer
    if answer is None:
        if stated is None:
            raise InputError("there is no reference answer, and the solution names none")
        answer = _bare(stated.text)
    elif own is not None and own != compute(_bare(answer)):
        raise InputError(
            f"it is no right solution: its answer is {stated.text if stated else None}, the reference {answer}"
        )
    if len(texts) > 1 and find_answer(texts[-1], "marked") is not None and not any(calculations(texts[-1])):
        texts.pop()
    _check_calculations(texts)
    return Worked(
        problem=replace(solution.problem, answer=_bare(answer)), lines=tuple(marked(text) for text in texts)
    )


def _bare(answer: str) -> str:
    return answer.strip().strip("$").rstrip(".").strip()


def marked(text: str) -> str:
    """A step with its calculations marked; marks that it has stay.

    >>> marked("So she sold 48 / 2 = 24 clips.")
    'So she sold 48 / 2 = <<48/2=24>>24 clips.'

    Raises:
        InputError: a calculation is not plain enough to be computed again, or not surely read: an error before it could not be
            carried through it.
    """
    if FORMULA.search(text):
        return text
    pieces, at = [], 0
    for formula in calculations(text):
        expression, _, result = formula.text.rpartition("=")
        number = NUMBER.search(result)
        calculation = as_written(expression)
        if (
            formula.truth != "right"
            or formula.start < at
            or number is None
            or result.strip(" $") != number[0]
            or compute(calculation) is None
            or compute(calculation) != compute(number[0])
        ):
            raise InputError(f"a calculation cannot be marked: {formula.text}: {formula.why}")
        start = formula.start + len(expression) + 1 + number.start()
        pieces += [text[at:start], f"<<{calculation}={number[0].replace(',', '')}>>"]
        at = start
    return "".join(pieces) + text[at:]
