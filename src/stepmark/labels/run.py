"""`stepmark.label`: solutions in; labels of their steps out, with their evidence, written as they come and resumed where the run stopped."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from stepmark.backends import run_tasks
from stepmark.backends.cluster import Cluster
from stepmark.backends.replies import open_replies
from stepmark.data.formats.own import from_row, to_row
from stepmark.data.formats.rows import outcome_of
from stepmark.data.reading import Source, read_rows
from stepmark.data.solutions import SolutionRow, read_solutions
from stepmark.data.steps.splitting import check_way
from stepmark.errors import InputError, UsageError
from stepmark.labels.labellers import label_group, load_labeller, named_after, needs_of
from stepmark.labels.labelling import Cost, Critiques, Labeller, Labelling, token_sum
from stepmark.labels.report import write_labels_page
from stepmark.models.lazy import note_idle
from stepmark.models.policies import PolicyLike
from stepmark.progress import Progress
from stepmark.records import LabelledSolution, Refusal, read_record
from stepmark.sampling.run import Answering
from stepmark.settings import checked
from stepmark.store import PartFile, Results, resumed, row_key, run_input
from stepmark.store.runs import check_files, explained, nothing_done, working
from stepmark.verifiers.base import VerifierLike
from stepmark.verifiers.code_sandbox import Isolation
from stepmark.words import amount


@checked
def label(
    solutions: Source,
    policy: PolicyLike | None = None,
    *,
    method: str | Labeller = "bayes",
    settings: Sequence[str] = (),
    verifier: VerifierLike = "math",
    answers: Literal["stated", "marked"] = "stated",
    isolation: Isolation | None = None,
    budget: Annotated[int, Field(ge=1)] | None = None,
    split: str = "auto",
    out: str | Path | None = None,
    report: str | Path | None = None,
    columns: Mapping[str, str] | None = None,
    keep_going: bool = False,
    in_flight: Annotated[int, Field(ge=1)] = 64,
    cluster: Cluster | None = None,
    progress: bool = True,
) -> Results[Labelling]:
    """Label the steps of solutions by a method: rollouts, a search for the first error, a judge, exact arithmetic.

    A row is a problem, its steps and its reference answer, {"problem": "…", "steps": ["…"], "answer": "…"}; a text under "solution" is split
    into steps. A run with `out` that is interrupted continues when the same call is made again, and asks for no reply twice.

    Args:
        solutions: a file or a folder of them (JSON lines, CSV, TSV, Parquet, a JSON list), dicts, records, a data set or a data frame.
        policy: the policy that writes rollouts, or the judge: a model's folder or hub name, http://HOST/v1#MODEL, or
            "package.module:factory". Not needed for formulas.
        method: the method: rollout, binary, bayes, tree, judge, formulas, or "package.module:Class".
        settings: a field of the method, as name=value; repeat for several. Nested: how.temperature=0.5.
        verifier: what compares final answers: math, number, choice, text, code (runs unit tests), or "package.module:Class".
        answers: which answers of a solution count: stated, also its concluding statement; marked, only a box, ####, "the answer is".
        isolation: with the verifier code, what keeps programs apart: bubblewrap, a sandbox; or unsafe, which is none: they can use the
            network and your files. Default: bubblewrap.
        budget: stop when the labelled solutions have cost this many tokens of the policy; the others are counted as not labelled.
        split: how a text is split into steps: auto, line, blank-line, numbered, sentence, marker, code, agent, whole.
        out: write the labelled solutions to this file (format stepmark-labels), gzipped if its name ends in .gz.
        report: write the labelled solutions as one HTML page to this file.
        columns: names of columns, where they differ: problem=question,solution=response.
        keep_going: leave out rows that cannot be labelled, and list them at the end.
        in_flight: solutions that are labelled at once: more fill a server better and take more memory.
        cluster: spread the work over a Ray cluster.
        progress: show how far the run is, on standard error.

    Returns:
        What was found of each solution, in their order; of a tree, the solutions of one problem together, where the first of them stood. With
        `out` it is read from that file when it is asked for.

    Raises:
        InputError: a row that cannot be labelled (unless `keep_going`), or no rows.
        UsageError: a setting that cannot work, an output that is an input, or a part of a run with other settings or another model.
        BackendError: the policy or the verifier failed; what was done is kept beside `out`.
    """
    check_way(split)
    labeller, source = load_labeller(method, settings)
    check_files({"out": out, "report": report}, solutions)
    # Where a budget ends the run, the rows that are left are counted by another reading.
    given = run_input(solutions, again=budget is not None, hashed=out is not None)
    _check_asked(labeller, policy, verifier)
    asked = Answering(
        policy,
        verifier if needs_of(labeller).verifier else None,
        answers=answers,
        isolation=isolation,
        cluster=cluster,
    )
    labeller = named_after(labeller, asked.policy_name)
    read = read_solutions(given.source, columns=columns, how=split, keep_going=keep_going)
    with explained(given, keep_going=keep_going):
        rows = chain(
            [next(read)], read
        )  # before the model is loaded: a file of something else is refused at once
    method_facts = {"name": labeller.name, **asdict(labeller)}  # type: ignore[call-overload]
    facts = {
        "command": "label",
        "method": method_facts,
        **({} if source is None else {"source": dict(source)}),
        "policy": asked.policy_name,
        "settings": {**asked.verifier_facts, "split": split, "columns": columns},
    }
    records: list[Labelling] = []
    tally = LabelTally(None if asked.policy_name is None else needs_of(labeller).texts)
    with ExitStack() as stack:
        asked.open(stack, shown=progress)
        part = stack.enter_context(PartFile(out, facts))
        part.identify(asked.load(stack, most=in_flight))
        store = stack.enter_context(open_replies(out if asked.asks_models else None))
        shown = Progress(
            given.rows,
            tokens=asked.tokens_written,
            verb="labelled",
            shown=progress,
            together=in_flight,
        )
        models = asked.cached(store, observe=lambda _: shown.tick())
        spent = False

        def labelled(units: Iterator[_Unit]) -> Iterator[Sequence[Labelling | Refusal]]:
            for _, results in run_tasks(
                units,
                lambda unit: label_group(tuple(row.solution for row in unit), labeller, *models),
                in_flight=in_flight,
            ):
                yield results

        def kept(unit: _Unit, results: Sequence[Labelling | Refusal]) -> dict[str, Any]:
            return _line(unit, results, keep_going=keep_going)

        with working(part, shown, given, keep_going=keep_going):
            for unit, line, results in resumed(
                part, _units(rows, labeller), _key, labelled, kept, keep_going=keep_going
            ):
                tally.add(line)
                shown.advance(1 if unit is None else len(unit), fresh=results is not None)
                if out is None:
                    records += (result for result in results or () if isinstance(result, Labelling))
                spent = tally.spent(budget)
                if spent:
                    break
        if tally.counts["solutions"] == 0:
            raise nothing_done(part, "nothing was labelled", tally.refused, given)
        unlabelled = 0
        if spent:  # only then: lines of the file are not rows, some may be blank
            every = read_solutions(given.source, columns=columns, how=split, keep_going=True)
            unlabelled = sum(1 for _ in every) - tally.counts["solutions"] - len(tally.refused)
        part.finish(
            {"input": given.manifest, **tally.manifest(), "not_labelled": unlabelled},
            {} if out is None else {out: lambda line: line["rows"]},
        )
    written = None if out is None else Path(out)
    if report is not None:
        shown_settings = {name: str(value) for name, value in method_facts.items() if name != "criteria"}
        write_labels_page(
            report,
            records if written is None else read_labellings(written),
            title=given.name,
            criteria=getattr(labeller, "criteria", ()),
            settings=shown_settings,
        )
    return Results(
        (lambda: iter(records)) if written is None else lambda: read_labellings(written),
        tally.counts["solutions"],
        out=written,
        refused=tally.refused,
        manifest={**part.manifest, "input": given.manifest},
        summary=tally.summary(unlabelled, budget, out, report),
    )


def _check_asked(labeller: Labeller, policy: PolicyLike | None, verifier: VerifierLike) -> None:
    """Refuse a missing policy; warn of a policy or a verifier that the method does not ask.

    Raises:
        UsageError: it says which.
    """
    if policy is None and needs_of(labeller).policy == "required":
        raise UsageError(
            "expected `policy`: a model's folder or hub name, http://HOST/v1#MODEL, or package.module:factory"
        )
    if policy is not None and needs_of(labeller).policy == "none":
        note_idle({"policy": policy}, {"policy": f"{labeller.name} asks nothing of a policy"})
    if verifier != "math" and not needs_of(labeller).verifier:
        note_idle({"verifier": verifier}, {"verifier": f"{labeller.name} compares no final answers"})


_Unit = Sequence[SolutionRow]
"""Rows that are one piece of work: one row; or, for a tree, all that grow it."""


def _units(rows: Iterable[SolutionRow | Refusal], labeller: Labeller) -> Iterator[_Unit | Refusal]:
    """Rows in their order, a piece each; for a tree those of one problem together, where the first of them stood."""
    groups: dict[object, list[SolutionRow]] = {}
    for row in rows:
        if isinstance(row, Refusal):
            yield row
        elif not needs_of(labeller).whole_problems:
            yield [row]
        else:
            problem, cut = row.solution.problem, row.solution.split
            # Rollouts are cut as the solutions were, so that a tree cannot hold solutions that were cut in several ways.
            groups.setdefault((problem.text, problem.answer, cut or "line"), []).append(row)
    yield from groups.values()


def _key(unit: _Unit) -> str:
    # With their places where there are several: one may be named by its place.
    places = [Path(row.where).name for row in unit if len(unit) > 1]
    return row_key({"rows": [[row.row, asdict(row.solution)] for row in unit], "places": places})


def _line(unit: _Unit, results: Sequence[Labelling | Refusal], *, keep_going: bool) -> dict[str, Any]:
    """The result of a piece of work: rows of the given solutions, then those of others; and why rows are left out.

    Raises:
        InputError: a row that cannot be labelled, unless the run keeps going and labels others of the piece.
    """
    given, others, refused = [], [], []
    payer: str | None = None
    for row, result in zip(unit, results, strict=True):
        if isinstance(result, Refusal):
            error = result.error.in_row(row.where)
            if not keep_going or len(unit) == 1:
                raise error
            refused.append(str(error))
            continue
        shared = {} if payer is None else {"cost_at": payer}
        rest = {key: value for key, value in row.meta.items() if key != "outcome"}
        meta = {**rest, **_facts(result), **shared}
        given.append(to_row(result.labelled, outcome=outcome_of(row.meta), meta=meta))
        payer = payer or result.labelled.solution.id or Path(row.where).name
        others += [to_row(other, meta={"method": result.method}) for other in result.others]
    return {"rows": [*given, *others], "given": len(given), "refused": refused}


def _facts(result: Labelling) -> dict[str, Any]:
    critiques = result.critiques
    # The names that `stepmark train --objective generative` reads.
    written = (
        {} if critiques is None else {"asked": critiques.asked, "critiques": list(map(list, critiques.texts))}
    )
    return {
        "method": result.method,
        "first_error": result.first_error,
        "confidence": result.confidence,
        "abstained": result.abstained,
        "cost": asdict(result.cost),
        **written,
    }


def read_labellings(path: str | Path) -> Iterator[Labelling]:
    """What was found of each given solution, from a file that `stepmark.label` wrote.

    Raises:
        InputError: a row that is none.
    """
    # Given solutions of one tree, of which the first has its cost and its others, which come last.
    waiting: list[dict[str, Any]] = []
    others: list[LabelledSolution] = []

    def whole() -> Iterator[Labelling]:
        for number, facts in enumerate(waiting):
            yield Labelling(**facts, others=() if number else tuple(others))
        waiting.clear()
        others.clear()

    for row in read_rows(path):
        labelled = from_row(row)
        meta = labelled.meta
        if "first_error" not in meta:
            others.append(labelled.labelled)
            continue
        if "cost_at" not in meta:
            yield from whole()
        try:
            facts = {name: meta[name] for name in ("method", "first_error", "confidence", "abstained")}
            facts |= {"labelled": labelled.labelled, "cost": Cost(**meta["cost"])}
        except (KeyError, TypeError) as error:
            raise InputError(f"expected a row of stepmark label: {error!r}", where=row.where) from None
        if meta.get("critiques") is not None:
            written = {"asked": meta.get("asked"), "texts": meta["critiques"]}
            facts["critiques"] = read_record(Critiques, written, where=row.where)
        waiting.append(facts)
    yield from whole()


_COUNTS = ("solutions", "others", "found", "clean", "abstained", "wrong_later", "unknown", "rollouts", "tokens", "unparsed")  # fmt: skip
"""Of a run, in its manifest. `wrong_later`: a wrong step, where an earlier one that was not judged may be wrong too."""


class LabelTally:
    """What has been labelled, and at what cost.

    Args:
        texts: what the policy's texts are called; None for a run without a policy.
    """

    def __init__(self, texts: tuple[str, str] | None) -> None:
        self.texts = texts
        self.counts: Counter[str] = Counter()
        self.failed: dict[str, Counter[str]] = {}
        """By criterion the solutions that fail it, the steps, and the solutions where it is open: no step fails it, and some have no verdict."""
        self.tokens: int | None = 0
        self.refused: list[str] = []

    @property
    def labelled(self) -> int:
        """Solutions, those that were labelled on the way among them."""
        return self.counts["solutions"] + self.counts["others"]

    def add(self, line: Mapping[str, Any] | InputError) -> None:
        """Count what `_line` made, or a row that cannot be labelled."""
        if isinstance(line, InputError):
            self.refused.append(str(line))
            return
        self.refused += line["refused"]
        given = line["rows"][: line["given"]]
        self.counts.update(solutions=len(given), others=len(line["rows"]) - len(given))
        for row in given:
            facts = row["meta"]
            first, cost = facts["first_error"], facts["cost"]
            silent = first is None and not facts["abstained"]
            wrong = any(judgement.get("rating") == -1 for step in row["judgements"] for judgement in step)
            for axis in dict.fromkeys(j["axis"] for step in row["judgements"] for j in step if "axis" in j):
                ratings = [
                    [j.get("rating") for j in step if j.get("axis") == axis] for step in row["judgements"]
                ]
                steps = sum(-1 in step for step in ratings)
                unsure = not steps and any(None in step for step in ratings)
                self.failed.setdefault(axis, Counter()).update(solutions=steps > 0, steps=steps, open=unsure)
            self.counts.update(
                found=first is not None and first >= 0,
                clean=first == -1,
                abstained=facts["abstained"],
                wrong_later=silent and wrong,
                unknown=silent and not wrong,
                rollouts=cost["rollouts"],
                unparsed=cost["unparsed"],
            )
            self.tokens = token_sum((self.tokens, cost["tokens"]))

    def spent(self, budget: int | None) -> bool:
        """Whether the rows so far have cost the budget: by what stands in the output, in its order, however often the run was killed.

        Raises:
            UsageError: the policy does not report its tokens.
        """
        if budget is None:
            return False
        if self.tokens is None:
            raise UsageError(
                "`budget`: this policy does not report how many tokens it writes; leave the budget out"
            )
        return self.tokens >= budget

    def manifest(self) -> dict[str, Any]:
        """The counts, as the manifest has them."""
        counts = {name: self.counts[name] for name in _COUNTS}
        failed = {"failed": {axis: dict(count) for axis, count in self.failed.items()}} if self.failed else {}
        return {**counts, **failed, "tokens": self.tokens, "refused": len(self.refused)}

    def summary(
        self, unlabelled: int, budget: int | None, out: str | Path | None, report: str | Path | None = None
    ) -> str:
        """What the run came to, for people; `unlabelled` rows were not reached by the budget."""
        n = {name: f"{count:,}" for name, count in self.manifest().items() if isinstance(count, int)}
        wrong_later = f"{n['wrong_later']} with a wrong step that may not be the first, "
        later = wrong_later if self.counts["wrong_later"] else ""
        lines = [
            f"{amount(self.counts['solutions'], 'solution')}: {n['found']} with a first error, {later}{n['clean']} without, "
            f"{n['abstained']} abstained, {n['unknown']} where the method says nothing"
        ]
        for axis, count in self.failed.items():
            fails = f"fails in {amount(count['solutions'], 'solution')}, at {amount(count['steps'], 'step')}"
            unsure = f"open in {amount(count['open'], 'solution')}"
            if count["open"] and count["open"] == self.counts["solutions"]:
                lines.append(f"{axis}: {unsure}, all of them")
            else:
                lines.append(f"{axis}: {fails}{f', {unsure}' if count['open'] else ''}")
        if self.counts["others"]:
            lines.append(
                f"{amount(self.counts['others'], 'more solution was', 'more solutions were')} labelled on the way"
            )
        if self.texts is not None:
            tokens = amount(self.tokens, "token")
            if self.tokens:
                tokens += f", {self.tokens / self.labelled:,.0f} tokens a solution"
            lines.append(
                f"{amount(self.counts['rollouts'], *self.texts)}, {tokens}; {n['unparsed']} without a verdict"
            )
        if unlabelled:
            lines.append(
                f"{amount(unlabelled, 'solution was', 'solutions were')} not labelled: the budget of {amount(budget, 'token')} was spent"
            )
        if self.refused:
            lines += [
                f"left out {amount(len(self.refused), 'row')}:",
                *(f"  {error}" for error in self.refused),
            ]
        if out is not None:
            replies = f"; every reply is in {out}.replies.sqlite" if self.texts is not None else ""
            lines.append(f"wrote {out}{replies}")
        if report is not None:
            lines.append(f"wrote {report}")
        return "\n".join(lines)
