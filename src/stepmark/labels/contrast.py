"""Right steps beside wrong ones, in the same dress: branches for training a grader densely.

For one worked problem `contrasts` gives a tree of prose steps (`prose`): the right solution, and at every step one or more wrong steps that
end there. Nothing after an error is judged. Kinds of errors:

==============  =======================================================================================================
`value`         a right calculation with a wrong result
`operand`       another number of the problem, of an earlier step, or of nowhere, calculated rightly
`operation`     a wrong sign, calculated rightly; where the step says in words what it does, the words say the wrong thing too
`omission`      one of three or more numbers is forgotten
`surplus`       a further number of the problem or of an earlier step is used
`skipped`       the result of the step before is not used, but a number that went into it, as if that step had not been
`misread`       the step restates the problem with another number, or with more for less, and goes on from there
`given`         the list of what is given holds such a misreading
`early stop`    the result of a step on the way is given as the answer
`overshoot`     the answer is calculated on with a further number
`question`      the problem is changed (one number), the step is not
==============  =======================================================================================================

A wrong step states another result than the right one, from the same starting point; whether that is *always* an error is argued, not proven,
for `misread` (a restated fact that the problem does not say).
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from stepmark.labels.carrying import numbers
from stepmark.labels.prose import (
    Calculation,
    Style,
    commuted,
    digits,
    draw_style,
    parse,
    sentences_of,
    write,
    write_final,
    write_intro,
)
from stepmark.labels.slips import NUMBER, another, number_of, plain, replace_number
from stepmark.labels.wrong_steps import carried, misread, overshoot, recomputed, wrong_twin
from stepmark.problems.gsm8k import Worked
from stepmark.records import Judgement, LabelledSolution, Problem, Solution, Step

_TRIES = 6


@dataclass(frozen=True, slots=True)
class _Step:
    """A line of the worked solution: with its one calculation, or only as text."""

    text: str
    made: Calculation | None


class _Tree:
    """The branches of one problem under way."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.rows: list[LabelledSolution] = []
        self.texts: set[tuple[str, ...]] = set()

    def add(self, before: Sequence[str], last: str, error: str | None) -> bool:
        """One branch; False if the same text was there already."""
        key = (*before, last)
        if key in self.texts:
            return False
        self.texts.add(key)
        judgement = Judgement(
            kind="correctness", judge="exact", rating=1 if error is None else -1, note=error
        )
        self.rows.append(
            LabelledSolution(
                solution=Solution(
                    problem=self.problem, steps=tuple(Step(text=t) for t in key), id=self.problem.id
                ),
                judgements=(*((),) * len(before), (judgement,)),
            )
        )
        return True


def contrasts(
    worked: Worked, rng: random.Random, *, wrong: float = 1.5, joined: float = 0.35, changed: float = 0.3
) -> Iterator[LabelledSolution]:
    """The branches of one worked problem.

    Args:
        worked: a problem with a solution whose calculations are marked.
        rng: chooses style and errors.
        wrong: wrong steps for each right one, on average.
        joined: probability that a step is joined with the one after it.
        changed: probability that a second tree follows, of the problem with one of its numbers changed.

    Yields:
        Solutions judged at their last step. Nothing if fewer than half of the lines hold one clear calculation, or the last one does not
        give the answer.
    """
    steps = [_Step(plain(line), parse(line)) for line in worked.lines]
    last = steps[-1].made
    clear = sum(step.made is not None for step in steps)
    if (
        last is None
        or clear < 0.6 * len(steps)
        or digits(last.result) != (worked.problem.answer or "").replace(",", "")
    ):
        return
    style = draw_style(rng)
    yield from _solution(worked.problem, steps, style, rng, wrong, joined)
    if rng.random() < changed:
        yield from _changed(worked.problem, steps, draw_style(rng), rng)


def _solution(
    problem: Problem, steps: Sequence[_Step], style: Style, rng: random.Random, wrong: float, joined: float
) -> Iterator[LabelledSolution]:
    tree = _Tree(problem)
    before: list[str] = []
    facts = [s.rstrip(".") for s in sentences_of(problem.text) if s.endswith(".") and len(s) < 160]
    last = steps[-1].made
    assert last is not None
    if style.intro != "none":
        given = [f for f in facts if NUMBER.search(f)][:4]
        state = rng.getstate()
        text = write_intro(problem.text, given, style, rng)
        tree.add(before, text, None)
        misreadings = [misread(f, numbers(problem.text), rng) for f in given]
        places = [i for i, m in enumerate(misreadings) if m is not None]
        if style.intro == "given" and places and rng.random() < 0.8:
            at = rng.choice(places)
            false = misreadings[at]
            assert false is not None
            after = rng.getstate()
            rng.setstate(state)
            tree.add(
                before,
                write_intro(problem.text, [*given[:at], false[0], *given[at + 1 :]], style, rng),
                "given",
            )
            rng.setstate(after)
        before.append(text)
    known: list[Fraction] = []
    earlier: list[Calculation] = []
    asked = sorted(numbers(problem.text))
    prefix = ""
    waiting: list[tuple[str, Calculation, str]] = []  # errors in the first half of a joined step
    for k, step in enumerate(steps):
        number = len(before) + 1 if style.intro == "none" else len(before)
        ends = k == len(steps) - 1
        seed = rng.random()
        if step.made is None:
            text = prefix + step.text
            waiting = []
        else:
            made = step.made
            if rng.random() < 0.3:
                made = commuted(made) or made
            fact = _fact(made, facts, rng) if rng.random() < style.facts else None
            dress = _Dress(style, number, seed, goes_on=prefix != "")
            text = prefix + dress.write(made, fact)
        join = not ends and rng.random() < (joined if style.verbal else joined / 4) and len(text) < 300
        boxed = style.final == "boxed" and ends and rng.random() < 0.4
        if not join:
            tree.add(before, text + (_box(step.made) if boxed and step.made else ""), None)
        if step.made is not None:
            for kind, first, start in waiting:
                second = carried(made, steps[k - 1].made, first)
                if second is not None:
                    tree.add(
                        before,
                        start + dress.write(second, fact) + (_box(second) if boxed and not join else ""),
                        kind,
                    )
            waiting = []
            count = int(wrong) + (rng.random() < wrong % 1)
            for _ in range(_TRIES * count):
                if count == 0:
                    break
                error = wrong_twin(made, earlier, asked, known, fact, rng)
                if error is None:
                    continue
                kind, false_made, false_fact = error
                false_text = prefix + dress.write(false_made, false_fact)
                if join:
                    waiting.append((kind, false_made, false_text + " "))
                    count -= 1
                    continue
                count -= tree.add(before, false_text + (_box(false_made) if boxed else ""), kind)
            if (
                not ends
                and not join
                and style.final == "boxed"
                and rng.random() < 0.25
                and made.result != last.result
            ):
                tree.add(before, text + _box(made), "early stop")
            known.append(step.made.result)
            earlier.append(step.made)
        if boxed:
            text += _box(step.made) if step.made else ""
        if join:
            prefix = text.rstrip() + " "
        else:
            prefix = ""
            before.append(text)
            if not ends and step.made is not None and step.made.result != last.result and rng.random() < 0.3:
                tree.add(
                    before,
                    write_final(step.made.result, step.made, problem.text, style, random.Random(seed)),
                    "early stop",
                )
        if ends and not boxed:
            final = random.Random(rng.random()).getstate()
            own = random.Random()
            own.setstate(final)
            tree.add(before, write_final(last.result, last, problem.text, style, own), None)
            others = [v for v in known if v != last.result]
            value = rng.choice(others) if others and rng.random() < 0.6 else another(last.result, rng)
            if digits(value) is not None and rng.random() < 0.7:
                own.setstate(final)
                tree.add(
                    before,
                    write_final(value, last, problem.text, style, own),
                    "early stop" if value in others else "value",
                )
        if ends and rng.random() < 0.12:
            extra = overshoot(last, asked, rng)
            if extra is not None:
                tree.add(before, write(extra, style, number + 1, random.Random(seed)), "overshoot")
    yield from tree.rows


@dataclass(frozen=True, slots=True)
class _Dress:
    """Everything about a step's looks."""

    style: Style
    number: int
    seed: float
    goes_on: bool

    def write(self, made: Calculation, fact: str | None) -> str:
        return write(made, self.style, self.number, random.Random(self.seed), fact=fact, goes_on=self.goes_on)


def _box(made: Calculation) -> str:
    return f" \\boxed{{{digits(made.result, paid=made.paid)}}}"


def _fact(made: Calculation, facts: Sequence[str], rng: random.Random) -> str | None:
    """A sentence of the problem that holds a number which the calculation uses."""
    fit = [f for f in facts if numbers(f) & set(made.numbers)]
    return rng.choice(fit) if fit else None


def _changed(
    problem: Problem, steps: Sequence[_Step], style: Style, rng: random.Random
) -> Iterator[LabelledSolution]:
    """The problem with one number changed: steps before its first use, the right step for the new number, and the old step, now wrong."""
    mentions = list(NUMBER.finditer(problem.text))
    once = [m for m in mentions if sum(number_of(o[0]) == number_of(m[0]) for o in mentions) == 1]
    rng.shuffle(once)
    for mention in once:
        old = number_of(mention[0])
        uses = [k for k, s in enumerate(steps) if s.made is not None and old in s.made.numbers]
        if (
            old < 2
            or not uses
            or re.match(r"[A-Za-z/]|[.,:][0-9]", problem.text[mention.end() : mention.end() + 2])
        ):
            continue
        k = uses[0]
        made = steps[k].made
        assert made is not None
        if old in {s.made.result for s in steps[:k] if s.made is not None} or any(
            old in numbers(s.text) for s in steps[:k]
        ):
            continue
        if sum(t == old for t in made.terms) != 1 or old in numbers(re.sub(NUMBER, "", problem.text)):
            continue
        new = another(old, rng)
        if new in numbers(problem.text) or digits(new) is None:
            continue
        error = recomputed(
            "question", made, [new if t == old else t for t in made.terms], list(made.money), None
        )
        if error is None:
            continue
        text = (
            problem.text[: mention.start()]
            + replace_number(problem.text[: mention.start()], mention[0], old, new, problem.text)
            + problem.text[mention.end() :]
        )
        tree = _Tree(replace(problem, text=text, answer=None))
        before: list[str] = []
        style = replace(style, facts=0.0)
        for i, step in enumerate(steps[:k]):
            before.append(step.text if step.made is None else write(step.made, style, i + 1, rng))
            tree.add(before[:-1], before[-1], None)
        seed = rng.random()
        tree.add(before, write(error[1], style, k + 1, random.Random(seed)), None)
        tree.add(before, write(made, style, k + 1, random.Random(seed)), "question")
        yield from tree.rows
        return
