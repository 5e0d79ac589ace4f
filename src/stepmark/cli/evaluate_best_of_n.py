"""`stepmark evaluate best-of-n`: candidates from a file, or sampled from a policy and verified first."""

from __future__ import annotations

import json
import sys
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from stepmark.cli.evaluating import (
    DEFAULTS,
    EvaluateOptions,
    check,
    check_same,
    finish,
    folder_of,
    limited,
    of_model,
    of_policy,
    provenance,
    sampled,
    scored,
    settings_of,
)
from stepmark.cli.progress import Progress
from stepmark.errors import InputError, UsageError
from stepmark.store import open_rows

if TYPE_CHECKING:
    from stepmark.problems.answers import Verifier
    from stepmark.solutions.sampling import Sampled


_TOGETHER = 16
"""Problems that are sampled at once."""


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True, slots=True)
class BestOfNOptions:
    """Where candidates come from."""

    data: Annotated[tuple[str, ...], Parameter(consume_multiple=True, negative="")] = ()
    """Files of candidates: {"id", "question", "gold", "candidates": [{"model", "text", "answer", "correct", "tokens"}]}. Without "correct", answers are compared with "gold"."""
    policy: str | None = None
    """Sample the candidates from this policy instead: a model's folder or hub name, or http://HOST/v1#MODEL."""
    problems: str | None = None
    """With --policy, the file of problems: a question and its reference answer a row (GSM8K's own rows too)."""
    n: int = 8
    """With --policy, candidates a problem; one greedy one is written beside them."""
    temperature: float = 0.8
    """With --policy, of the samples."""
    top_p: float = 1.0
    """With --policy, of the samples."""
    max_tokens: int = 1024
    """With --policy, the longest solution."""
    prompt: Literal["chat", "text"] = "chat"
    """With --policy, ask as the user's turn of a chat, or as plain text (base models)."""
    instruction: str | None = None
    """With --policy, what is said after the problem. Left out: to go step by step and to box the answer."""
    verifier: str = "math"
    """What compares answers, for the votes, for candidates without "correct" and for those of a policy: math, number, choice or text."""
    percent: Literal["distinct", "sign"] = "distinct"
    """Whether 10% is 1/10 only, or 10 too (GSM8K's references leave the sign out): distinct or sign."""
    sizes: Annotated[tuple[int, ...], Parameter(consume_multiple=True, negative="")] = ()
    """The N to report. Left out: 1, 2, 4, … and all."""
    orm: str | None = None
    """An outcome reward model: best of N by its one verdict stands beside the others."""
    split: str = "auto"
    """How texts are cut into steps: auto, line, blank-line, numbered, sentence, code, whole."""


def best_of_n_command(
    *, choices: BestOfNOptions = BestOfNOptions(), options: EvaluateOptions = DEFAULTS
) -> int:
    """Accuracy of the candidate that is chosen: greedy, by votes, by the PRM in every way, by an ORM, by an oracle.

    At N = 1, 2, 4, … every figure is the expectation over all subsets of N candidates, with intervals over problems, on an axis of the
    tokens that the policy wrote and the PRM read. The candidates are those of --data, or sampled with --policy from
    --problems, which resumes when it is stopped.

    Args:
        choices: where candidates come from.
        options: the flags.
    """
    from stepmark.evaluation.best_of_n import BestOfN
    from stepmark.evaluation.best_of_n_report import NAME, checked, evaluate
    from stepmark.evaluation.sources import files_of, read_candidates
    from stepmark.models.named import SHARED
    from stepmark.problems.answers import load_verifier
    from stepmark.solutions.segmentation import check_way

    check_way(choices.split)
    if bool(choices.data) == (choices.policy is not None):
        raise UsageError("expected --data FILES of candidates, or --policy with --problems; one of the two")
    beside = of_policy(choices.policy)
    of_prm = beside | (set() if choices.orm is None else of_model(choices.orm))
    check(options, also=of_prm)
    files = files_of(choices.data) if choices.data else (str(_sample(NAME, choices, options)),)
    every = read_candidates(files, how=choices.split)
    cases = limited(every, options.limit if choices.data else None)
    with load_verifier(choices.verifier, percent=choices.percent) as verifier:
        unchecked = sum(case.unchecked for case in cases)
        cases = checked(cases, verifier)
        if unchecked:
            print(
                f"{unchecked:,} candidates do not say whether they are right: compared with the reference ({choices.verifier})",
                file=sys.stderr,
            )
        sheet = scored(NAME, cases, files, options, also=of_prm, split=choices.split)
        outcomes = outcome_tokens = orm_identity = None
        if choices.orm is not None:
            # What says how the PRM is read is not said of the outcome model.
            orm = replace(
                options,
                prm=choices.orm,
                scores=None,
                family=None,
                reference=None,
                model=None,
                tokenizer=None,
                samples=None,
            )
            judged = scored(
                NAME, cases, files, orm, outcome=True, also=(*SHARED, "neutral"), split=choices.split
            )
            orm_identity = judged.identity
            outcomes = {row.case.id: s for row in judged.rows if (s := row.scores[-1]) is not None}
            outcome_tokens = {
                row.case.id: (row.steps.problem_tokens or 0) + row.steps.solution_tokens
                for row in judged.rows
                if row.steps is not None and row.steps.solution_tokens is not None
            }
        result = evaluate(
            sheet,
            choices=BestOfN(sizes=choices.sizes or None, seed=options.seed),
            verifier=verifier,
            outcomes=outcomes,
            outcome_tokens=outcome_tokens,
            settings=settings_of(options, sheet)
            | {
                key: value
                for key, value in {**asdict(choices), "orm_identity": orm_identity}.items()
                if value not in (None, ())
            },
            data=provenance(files),
            facts=sampled(len(cases), len(every)),
            resamples=options.resamples,
            seed=options.seed,
        )
    return finish(result, options)


def _sample(name: str, choices: BestOfNOptions, options: EvaluateOptions) -> Path:
    """Sample and verify candidates into OUT/candidates.jsonl, or take those of an earlier run with the same settings."""
    from stepmark.models.policies import load_policy, policy_identity
    from stepmark.models.replies import ReplyFile
    from stepmark.problems.answers import load_verifier
    from stepmark.problems.sources import read_problems
    from stepmark.solutions.sampling import Sampling, sample

    if choices.problems is None or choices.policy is None:
        raise UsageError("--policy needs --problems: a file with a question and its reference answer a row")
    settings = Sampling(
        n=choices.n,
        temperature=choices.temperature,
        top_p=choices.top_p,
        max_tokens=choices.max_tokens,
        seed=options.seed,
        prompt=choices.prompt,
    )
    if choices.instruction is not None:
        settings = replace(settings, instruction=choices.instruction)
    folder = folder_of(name, options)
    path = folder / "candidates.jsonl"
    manifest = json.loads(
        json.dumps(
            {
                "command": "evaluate best-of-n, sampling",
                "policy": choices.policy,
                "verifier": choices.verifier,
                "percent": choices.percent,
                "limit": options.limit,
                "data": provenance([choices.problems]),
                "sampling": asdict(settings),
            }
        )
    )
    if path.exists():
        check_same(path, manifest)
        identity = policy_identity(choices.policy, dtype=options.dtype, device=options.device)
        check_same(path, manifest | {"models": {"policy": identity}})
        print(f"{path} has the candidates of an earlier run with these settings", file=sys.stderr)
        return path
    problems = list(read_problems(choices.problems))
    if options.limit is not None:
        problems = [
            problems[at * len(problems) // options.limit] for at in range(min(options.limit, len(problems)))
        ]
    with (
        closing(open_rows(path, manifest)) as out,
        closing(ReplyFile(folder / "replies.sqlite")) as store,
        load_verifier(choices.verifier, percent=choices.percent) as verifier,
    ):
        policy = load_policy(choices.policy, dtype=options.dtype, device=options.device)
        out.identify({"policy": policy.identity})
        left = problems[out.done :]
        progress = Progress(
            len(problems),
            done=out.done,
            tokens=lambda: policy.tokens_written,
            verb="sampled",
            noun="problem",
            together=_TOGETHER,
        )
        try:
            with progress:
                for found in sample(left, policy, settings, store=store, in_flight=_TOGETHER):
                    if found.refused is not None:
                        out.refuse(InputError(found.refused, where=found.problem.id))
                    else:
                        out.write(_row(found, policy.name, verifier))
                    progress.advance()
        except KeyboardInterrupt:
            raise KeyboardInterrupt(
                f"what was sampled is kept in {folder}; the same command continues"
            ) from None
        out.finish({"policy": policy.name})
    return path


def _row(found: Sampled, policy: str, verifier: Verifier) -> dict[str, Any]:
    """One row of a candidates file. A text without a verdict has `correct` null, and never counts as wrong silently."""
    texts = [(written, False) for written in found.samples]
    texts += [(found.greedy, True)] if found.greedy is not None else []
    candidates = []
    for written, greedy in texts:
        verdict = verifier.verify(written.text, found.problem.answer or "")
        candidates.append(
            {
                "model": policy,
                "text": written.text,
                "answer": verdict.answer,
                "correct": verdict.correct,
                "tokens": written.tokens,
                "finish": written.finish,
                **({"greedy": True} if greedy else {}),
            }
        )
    return {
        "id": found.problem.id,
        "question": found.problem.text,
        "gold": found.problem.answer,
        "candidates": candidates,
    }
