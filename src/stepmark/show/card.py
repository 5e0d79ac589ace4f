"""Problems and cards of the report page: one solution a card, its steps tinted by their scores."""

from __future__ import annotations

from stepmark.show import colour
from stepmark.show.html import esc, text_html
from stepmark.show.text import check_solution, first_error_words, number, one_line
from stepmark.show.views import CardView, ProblemView, StepView


def problem_html(problem: ProblemView) -> str:
    """A problem and its solutions, side by side where the window is wide enough.

    Raises:
        InputError: a card without one score a step, or with a score out of the range of its kind.
        ScoreKindError: no such kind.
    """
    note = f'<span class="note">{esc(problem.note)}</span>' if problem.note else ""
    found = {sort for card in problem.cards for sort in sorts(card).split()}
    few = " few" if len(problem.cards) == 1 else ""
    return (
        f'<section class="problem{"".join(" " + sort for sort in sorted(found))}{few}" id="p{problem.number}">'
        f'<div class="ask"><h2>Problem {problem.number}{note}</h2><div class="txt" dir="auto">{text_html(problem.text)}</div>'
        f'</div>\n<div class="cards">\n{"".join(map(_card, problem.cards))}</div></section>\n'
    )


def sorts(card: CardView) -> str:
    """The classes that the filters look for, each after a space."""
    error = " err" if card.first_error is not None and card.first_error >= 0 else ""
    return error + (" dis" if card.disagreement else "")


def _card(card: CardView) -> str:
    check_solution([step.text for step in card.steps], [step.score for step in card.steps], card.first_error)
    places = [colour.position(step.score, card.kind, card.threshold) for step in card.steps]
    widths = [colour.extent(step.score, card.kind, card.threshold) for step in card.steps]
    at_threshold = None
    if card.threshold is not None:
        at_threshold = colour.extent(card.threshold, card.kind, card.threshold)
    tick = "" if at_threshold is None else f' style="--at:{at_threshold * 100:.4g}%"'
    best = '<span class="pill best">★ best by score</span>' if card.best else ""
    note = f'<span class="note">{esc(card.note)}</span>' if card.note else ""
    verdict = first_error_words(card.first_error)
    sort = "" if card.first_error is None else (" bad" if card.first_error >= 0 else " good")
    odd = f'<p class="odd">{esc(card.disagreement)}</p>' if card.disagreement else ""
    strip = "".join(
        f'<i class="{level_class(place)}{" first" if at == card.first_error else ""}"></i>'
        for at, place in enumerate(places)
    )
    rows = "".join(
        _step(at, step, place, width, is_error=at == card.first_error)
        for at, (step, place, width) in enumerate(zip(card.steps, places, widths, strict=True))
    )
    return (
        f'<article class="card{sorts(card)}{" winner" if card.best else ""}" id="s{card.number}"{tick}>'
        f'<h3><span class="name">{esc(card.title)}</span>{note}<span class="pills">{best}<span class="pill{sort}">'
        f"{verdict[0].upper() + verdict[1:]}</span></span></h3>"
        f'<div class="verdicts">{_verdict(card.score, card.place, card.aggregate)}{_outcome(card)}</div>'
        f'<div class="strip" aria-hidden="true">{strip}</div>{odd}{_aggregates(card)}<ol class="steps">{rows}</ol></article>\n'
    )


def _verdict(score: float | None, place: float | None, name: str) -> str:
    shown, exact = (
        ("–", "") if score is None else (number(score), f' data-score="{score!r}" title="{score!r}"')
    )
    return f'<div class="verdict {level_class(place)}"{exact}><b>{shown}</b><span>{esc(one_line(name))}</span></div>'


def _outcome(card: CardView) -> str:
    if card.outcome is None:
        return ""
    model = f"outcome · {card.outcome_model}" if card.outcome_model else "outcome"
    return _verdict(card.outcome, card.outcome_place, model)


def _aggregates(card: CardView) -> str:
    if not card.aggregates:
        return ""
    cells = []
    for name, value in card.aggregates:
        used = ' class="used"' if name == card.aggregate else ""
        shown = "–" if value is None else f'<span title="{value!r}">{number(value)}</span>'
        cells.append(f"<div{used}><dt>{esc(one_line(name))}</dt><dd>{shown}</dd></div>")
    return f'<dl class="aggregates">{"".join(cells)}</dl>'


def _step(at: int, step: StepView, place: float | None, width: float | None, *, is_error: bool) -> str:
    if step.score is None or width is None:
        value = '<span class="val unread">not read</span>'
    else:
        value = (
            f'<span class="val" data-score="{step.score!r}" title="{step.score!r}"><b>{number(step.score)}</b>'
            f'<i class="meter"><i style="width:{width * 100:.4g}%"></i></i></span>'
        )
    flag = '<span class="flag">✗ First error</span>' if is_error else ""
    proofs = "".join(f'<p class="proof">✗ {esc(one_line(finding))}</p>' for finding in step.findings)
    return (
        f'<li class="step {level_class(place)}{" first" if is_error else ""}"><span class="n">{at + 1}</span>'
        f'<div class="said">{flag}<div class="txt" dir="auto">{text_html(step.text, language=step.language)}</div>{proofs}'
        f"{_classes(step.classes)}{_critiques(step.critiques)}</div>{value}{_observation(step.observation)}</li>"
    )


def _classes(classes: tuple[tuple[str, float], ...]) -> str:
    if not classes:
        return ""
    known = {"negative": "l0", "neutral": "l-", "positive": f"l{colour.LEVELS}"}
    bars = "".join(
        f'<i class="{known.get(name, "l-")}" style="flex-grow:{max(share, 0):.4f}"></i>'
        for name, share in classes
    )
    words = " · ".join(
        f'{esc(one_line(name))} <b title="{share!r}">{number(share)}</b>' for name, share in classes
    )
    return f'<div class="classes"><span class="stack">{bars}</span><span>{words}</span></div>'


def _critiques(critiques: tuple[str, ...]) -> str:
    if not critiques:
        return ""
    texts = "".join(f'<div class="txt" dir="auto">{text_html(critique)}</div>' for critique in critiques)
    name = "Critique" if len(critiques) == 1 else f"{len(critiques)} critiques"
    return f'<details class="critiques"><summary>{name}</summary>{texts}</details>'


def _observation(observation: str) -> str:
    if not observation.strip():
        return ""
    shown = f'<div class="txt" dir="auto">{text_html(observation.strip())}</div>'
    if len(observation) <= 400:
        return f'<div class="seen"><span class="label">Observation, not rated</span>{shown}</div>'
    return f'<details class="seen"><summary class="label">Observation, not rated</summary>{shown}</details>'


def level_class(place: float | None) -> str:
    """The class that holds the colours of a position on the scale."""
    return "l-" if place is None else f"l{colour.level(place)}"
