r"""Exact checks of a solution: a check proves that a step is wrong, or is silent.

`check` reads the steps of a solution and computes what can be computed: in exact fractions and polynomials, with parsers of its own. No text is
executed, nothing is asked of a model, equal texts give equal findings, and the time is bounded for any text. A statement that the same step or
thought takes back ("2 * 80 = 170. Wait, that's wrong.") or corrects ("2 * 80 = 160.") is no finding.

| check | what it finds |
| --- | --- |
| `equation` | a false calculation: "12 * 8 = 98", "12 times 8 is 98", "√18 = 3 √3", "5!/3! = 60", "20% of 50 = 12", chains, LaTeX, money |
| `unit` | a false conversion of a unit: "3 hours = 200 minutes" |
| `algebra` | two forms of an expression that are not equal; an equation with no solution in common with the one that it is made from |
| `answer` | a final answer that is not the last result: "the total is 42. The answer is 24." |

Precision and recall of each check are measured by `benchmarks/checks.py`.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from itertools import accumulate, takewhile
from typing import get_args

from stepmark.data.steps.thoughts import sections
from stepmark.errors import SettingError
from stepmark.records import CheckName, Finding, Solution
from stepmark.verifiers.checks.algebra import false_identities, lost_solutions
from stepmark.verifiers.checks.answer import final_answer
from stepmark.verifiers.checks.claims import Claim, unit_claims, word_claims
from stepmark.verifiers.checks.equations import Equation, calculations, equations

__all__ = ["CHECKS", "CheckName", "Finding", "check", "check_names", "check_solution"]

CHECKS: tuple[CheckName, ...] = get_args(CheckName)
"""The names of all checks."""
_LONGEST = 10_000
"""Characters of a step or a question that are read; the rest is not."""
_MOST_CHARACTERS = 5_000_000
"""Of all steps together; later steps are not read. A long thought has thousands of short ones."""
_MOST_FINDINGS = 200
_IN_THOUGHTS = "thoughts"
"""In a setting, beside names of checks: the checks read thoughts too."""
_WITHDRAWN = re.compile(
    r"\b(?:wait|hold on|hang on|oops|scratch that|strike that|correction|sorry|no,|i meant?\b|my mistake|i made (?:a|an)"
    r"|let me (?:redo|recalculate|recompute|recheck|re-?check|correct|fix|try)|(?:that|this|it)(?:'s|\u2019s| is| was| can't be| cannot be| isn't)"
    r" (?:wrong|incorrect|not right|not correct|false|right\?|a mistake|an error)|actually,? (?:it|that|this|no|the)|instead of)"
    r"|不对|等等|错了|\bнет,|\bневерно|\bnein,|\bfalsch|\bnon,|\battend(?:s|ez)\b|~~",
    re.I,
)
_AFTERWARDS = 240
"""Characters after a statement within which it may be taken back."""


def check_names(checks: str) -> tuple[CheckName, ...]:
    """The checks that a setting names: "all", "none", or names with commas between them; `SettingError` for a name that is no check."""
    if checks in ("all", "none"):
        return CHECKS if checks == "all" else ()
    names = {name.strip() for name in checks.split(",")} - {_IN_THOUGHTS}
    if names - {*CHECKS, "all"}:
        raise SettingError(
            "checks",
            checks,
            f"auto, all, none, or names of checks: {', '.join(CHECKS)}; and thoughts, to read those too",
        )
    return CHECKS if "all" in names or not names else tuple(name for name in CHECKS if name in names)


def check_solution(solution: Solution, checks: str) -> tuple[Finding, ...] | None:
    """The findings of a solution by a setting (`check_names`), None where it names no check; thoughts are read only if the setting says so.

    A thought tries things out and takes them back: "all,thoughts" checks it all the same.
    """
    names = check_names(checks)
    if not names:
        return None
    findings = check(solution.problem.text, solution.texts, names=names)
    if findings and _IN_THOUGHTS not in checks.split(","):
        thought = _thought_steps(solution)
        findings = [finding for finding in findings if finding.step not in thought]
    return tuple(findings)


def _thought_steps(solution: Solution) -> set[int]:
    """The steps that begin within a thought, by the marks in the solution's whole text."""
    places: list[int] = []
    at = 0
    for step in solution.steps:
        places.append(at + len(step.lead))
        at += len(step.raw)
    parts = [part for part in sections("".join(step.raw for step in solution.steps)) if part.thought]
    return {i for i, place in enumerate(places) if any(part.start <= place < part.end for part in parts)}


def check(problem: str, steps: Sequence[str], *, names: Collection[CheckName] = CHECKS) -> list[Finding]:
    """Find the steps of a solution that are provably wrong.

    Args:
        problem: the question; "" where it is not known.
        steps: the steps, in order.
        names: the checks to run.

    Returns:
        The findings in the order of the text. A step without a finding is not thereby right.

    Raises:
        SettingError: a name in `names` is no check.
    """
    unknown = sorted(set(names) - set(CHECKS))
    if unknown:
        raise SettingError("names", unknown[0], f"checks: {', '.join(CHECKS)}")
    problem = problem[:_LONGEST]
    texts = [step[:_LONGEST] for step in steps]
    room = takewhile(lambda read: read <= _MOST_CHARACTERS, accumulate(map(len, texts)))
    texts = texts[: sum(1 for _ in room)]
    findings: list[Finding] = []
    before, last = "", None
    for i, text in enumerate(texts):
        stated = equations(text) if {"equation", "algebra"} & set(names) else []
        readable = [e for e in stated if not e.edge and not e.has("percent") and e.sides]
        claims: list[tuple[CheckName, Claim]] = []
        if "equation" in names:
            claims += [("equation", claim) for claim in _false_equations(text, stated)]
        if "unit" in names:
            claims += [("unit", claim) for claim in unit_claims(text, problem)]
        if "algebra" in names:
            claims += [("algebra", claim) for claim in false_identities(text, problem, readable)]
            claims += [("algebra", claim) for claim in lost_solutions(text, readable, before, last)]
        if "answer" in names and i == len(steps) - 1:
            claims += [("answer", claim) for claim in final_answer(texts, problem)]
        stand = [(name, claim) for name, claim in claims[:_MOST_FINDINGS] if not _withdrawn(text, claim)]
        findings += _findings(i, text, stand)
        before, last = text, readable[-1] if readable else None
    return findings


def _false_equations(text: str, stated: Sequence[Equation]) -> list[Claim]:
    wrong = [Claim(f.start, f.end, f.why) for f in calculations(text, stated) if f.truth == "wrong"]
    return [*wrong, *word_claims(text)]


def _withdrawn(text: str, claim: Claim) -> bool:
    """Whether the step takes a statement back, or states the same left side again with a true result."""
    rest = text[claim.end : claim.end + _AFTERWARDS]
    if _WITHDRAWN.search(rest):
        return True
    left = _squeezed(text[claim.start : claim.end].partition("=")[0])
    return bool(left) and any(
        formula.truth == "right" and _squeezed(formula.text.partition("=")[0]) == left
        for formula in (calculations(rest) if left in _squeezed(rest) else ())
    )


def _squeezed(text: str) -> str:
    return re.sub(r"[\s$\\(){}]", "", text)


def _findings(step: int, text: str, claims: Sequence[tuple[CheckName, Claim]]) -> list[Finding]:
    """The claims of a step in the order of the text; of two that overlap, the first check's."""
    out: list[Finding] = []
    for name, claim in claims:
        if any(f.start < claim.end and claim.start < f.end for f in out):
            continue
        out.append(
            Finding(
                step=step,
                check=name,
                written=text[claim.start : claim.end],
                right=claim.right,
                start=claim.start,
                end=claim.end,
            )
        )
    return sorted(out, key=lambda finding: (finding.start, finding.end))
