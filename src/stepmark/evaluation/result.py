"""What an evaluation finds: figures with intervals, the items they rest on, and what the report shows.

The JSON file holds everything a later comparison needs: the items recompute every figure, so two results on the same data are
compared by a paired bootstrap without grading again.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from stepmark.errors import InputError
from stepmark.metrics.intervals import Interval, Statistic, bootstrap
from stepmark.show.evaluation import EvaluationView, Section, Tile, evaluation_html
from stepmark.show.tables import Table, interval_text, markdown
from stepmark.store import atomic_write, check_readable

Item = dict[str, Any]
"""One unit of an evaluation as JSON: at least `id` and `problem`, and what its figures are made of."""

FORMAT = 1
"""Of the JSON file."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Figure:
    """One number of an evaluation, with how sure it is and what it rests on."""

    name: str
    """GROUP/WHAT, such as "gsm8k/f1"."""
    value: float | None
    """None where it is not defined."""
    low: float | None
    """Lower end of the bootstrap interval over problems."""
    high: float | None
    level: float
    """Confidence level of the interval."""
    policy: str
    """The threshold, and how it was chosen; "" for figures without one."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Result:
    """A finished evaluation."""

    evaluation: str
    """Its name on the command line."""
    title: str
    prm: str
    facts: tuple[str, ...]
    """Sentences that a reader needs to take the numbers rightly: what was left out, truncated, sampled."""
    figures: tuple[Figure, ...]
    tiles: tuple[Tile, ...]
    sections: tuple[Section, ...]
    items: tuple[Item, ...]
    settings: Mapping[str, Any]
    data: Sequence[Mapping[str, Any]]
    """Name, size and hash of each file."""

    def figure(self, name: str) -> Figure:
        """The figure of that name.

        Raises:
            InputError: there is none.
        """
        found = next((figure for figure in self.figures if figure.name == name), None)
        if found is None:
            raise InputError(f"there is no figure {name!r}; known: {', '.join(f.name for f in self.figures)}")
        return found

    @property
    def tables(self) -> tuple[Table, ...]:
        """Every table of the report, in order."""
        return tuple(item for section in self.sections for item in section.items if isinstance(item, Table))


def measured(
    items: Sequence[Item],
    statistic: Statistic,
    *,
    policies: Mapping[str, str] | None = None,
    resamples: int = 1000,
    seed: int = 0,
) -> tuple[Figure, ...]:
    """All figures of a statistic with bootstrap intervals over problems.

    Args:
        items: in the order that the statistic knows.
        statistic: figures of weightings of the items.
        policies: group (the part of a figure's name before its last slash) to threshold policy.
        resamples: of the bootstrap.
        seed: of the bootstrap.
    """
    found = bootstrap(statistic, [item["problem"] for item in items], resamples=resamples, seed=seed)
    policies = policies or {}
    return tuple(
        Figure(
            name=name,
            value=interval.value,
            low=interval.low,
            high=interval.high,
            level=interval.level,
            policy=policies.get(name.rpartition("/")[0], policies.get("", "")),
        )
        for name, interval in found.items()
    )


def shown(figure: Figure | Interval | None, *, scale: float = 100, digits: int = 1) -> str:
    """A figure with its interval as the tables write it, in percent unless told otherwise."""
    return (
        "–"
        if figure is None
        else interval_text(figure.value, figure.low, figure.high, scale=scale, digits=digits)
    )


def write_html(result: Result, path: str | Path) -> None:
    """Write the report: one HTML file that needs no network; there complete or not at all."""
    with atomic_write(path) as file:
        file.writelines(html(result))


def html(result: Result) -> Iterator[str]:
    """The report page in chunks."""
    data = {f"data: {one['name']}": f"{one['bytes']:,} bytes, sha256 {one['sha256']}" for one in result.data}
    settings = {key: str(value) for key, value in result.settings.items() if value is not None}
    return evaluation_html(
        EvaluationView(
            title=result.title,
            facts=result.facts,
            tiles=result.tiles,
            sections=result.sections,
            settings={**settings, **data, "stepmark": version("stepmark")},
        )
    )


def write_json(result: Result, path: str | Path) -> None:
    """Write everything as JSON; there complete or not at all."""
    body = {
        "format": FORMAT,
        "stepmark": version("stepmark"),
        "evaluation": result.evaluation,
        "title": result.title,
        "prm": result.prm,
        "facts": list(result.facts),
        "settings": dict(result.settings),
        "data": [dict(one) for one in result.data],
        "figures": [asdict(figure) for figure in result.figures],
        "tables": [asdict(table) for table in result.tables],
    }
    with atomic_write(path) as file:
        head = json.dumps(body, ensure_ascii=False, allow_nan=False, indent=1)
        file.write(head.removesuffix("\n}") + ',\n "items": [')
        # An item a line: indented, thousands of them would be several times as long.
        for number, item in enumerate(result.items):
            line = json.dumps(item, ensure_ascii=False, allow_nan=False)
            file.write(("," if number else "") + "\n" + line)
        file.write("\n]\n}\n")


def write_markdown(result: Result, path: str | Path) -> None:
    """Write facts and tables as Markdown; there complete or not at all."""
    with atomic_write(path) as file:
        file.write(as_markdown(result))


def as_markdown(result: Result) -> str:
    """Facts and tables as Markdown."""
    parts = [f"# {result.title}", *result.facts, *(markdown(table).rstrip() for table in result.tables)]
    return "\n\n".join(parts) + "\n"


def read_result(path: str | Path) -> dict[str, Any]:
    """A result's JSON file.

    Raises:
        InputError: it is none, or of another format.
    """
    if Path(path, "result.json").is_file():
        raise InputError(
            f"expected a file, found a folder: name {Path(path, 'result.json')}", where=str(path)
        )
    check_readable(path)
    try:
        body = json.loads(Path(path).read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise InputError(
            f"expected the result of stepmark evaluate as JSON: {error}", where=str(path)
        ) from None
    keys = ("format", "evaluation", "prm", "figures", "items", "data", "settings")
    if not isinstance(body, dict) or any(key not in body for key in keys):
        raise InputError("expected a result.json of stepmark evaluate, found something else", where=str(path))
    if body["format"] != FORMAT:
        raise InputError(
            f"expected format {FORMAT}, found {body['format']!r}", where=str(path), field="format"
        )
    items = body["items"]
    if not isinstance(items, list) or not all(
        isinstance(item, dict) and "id" in item and "problem" in item for item in items
    ):
        raise InputError(
            "expected a list of objects with an id and a problem", where=str(path), field="items"
        )
    return body
