"""The result of an evaluation: figures with intervals, the items they rest on, and what the report shows.

The JSON file holds everything a later comparison needs: the items recompute every figure, so two results on the same data are
compared by a paired bootstrap without grading again.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepmark.data.reading import check_readable
from stepmark.errors import InputError, UsageError
from stepmark.report.evaluation import Report, evaluation_html
from stepmark.report.html import template
from stepmark.report.tables import ABSENT, Table, interval_text, markdown, printed, table_html, terminal
from stepmark.store import atomic_write
from stepmark.version import __version__
from stepmark.words import amount

if TYPE_CHECKING:  # NumPy, which no help needs
    from stepmark.metrics.intervals import Interval, Statistic

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


@dataclass(frozen=True, kw_only=True, repr=False)
class EvaluationResult(Report):
    """A finished evaluation: printed, it is a table; in a notebook too."""

    evaluation: str
    """The evaluation's name."""
    prm: str
    """The PRM's name; "" where none was asked."""
    figures: Mapping[str, Figure]
    """By name: GROUP/WHAT, such as "gsm8k/f1"."""
    items: tuple[Item, ...] = ()
    """What the figures rest on: one an item, plain JSON."""
    data: Sequence[Mapping[str, Any]] = ()
    """Name, size and hash of each input."""
    statistic: Callable[[Sequence[Item]], Statistic] | None = None
    """Makes the figures of the items; `compare` needs it."""

    @property
    def tables(self) -> tuple[Table, ...]:
        """Every table of the report, in order."""
        return tuple(item for section in self.sections for item in section.items if isinstance(item, Table))

    @property
    def sentences(self) -> tuple[str, ...]:
        """The verdict and the facts."""
        return (*filter(None, [self.verdict]), *self.facts)

    def table(self) -> str:
        """The main tables as text, with the title and what a reader needs to know."""
        return printed(self)

    def save(self, folder: str | Path) -> Path:
        """Write result.json, result.md and report.html (which needs no network), each whole or not at all.

        Raises:
            UsageError: it cannot be made or written to.
        """
        folder = made_folder(folder)
        write_json(self, folder / "result.json")
        for name, text in (("result.md", [as_markdown(self)]), ("report.html", html(self))):
            with atomic_write(folder / name) as file:
                file.writelines(text)
        return folder

    def __rich__(self) -> Any:
        from rich.console import Group
        from rich.text import Text

        parts: list[Any] = [Text(self.title, style="bold"), *map(Text, self.sentences)]
        for table in self._main_tables:
            parts += [Text(), terminal(table)]
        return Group(*parts)

    def __str__(self) -> str:
        return self.table()

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return template("macros").notebook(self.title, self.sentences, map(table_html, self._main_tables))

    @property
    def _main_tables(self) -> list[Table]:
        """Those of the first section."""
        return [item for section in self.sections[:1] for item in section.items if isinstance(item, Table)]


def made_folder(folder: str | Path) -> Path:
    """A folder for results, made if need be.

    Raises:
        UsageError: it is a file, or cannot be made.
    """
    folder = Path(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"`out` {folder}: {error.strerror or error}; expected a folder") from error
    return folder


def measured(
    items: Sequence[Item],
    statistic: Statistic,
    *,
    policies: Mapping[str, str] | None = None,
    resamples: int = 1000,
    seed: int = 0,
) -> dict[str, Figure]:
    """All figures of a statistic by name, with bootstrap intervals over problems."""
    from stepmark.metrics.intervals import bootstrap

    result = bootstrap(statistic, [item["problem"] for item in items], resamples=resamples, seed=seed)
    policies = policies or {}
    return {
        name: Figure(
            name=name,
            value=interval.value,
            low=interval.low,
            high=interval.high,
            level=interval.level,
            policy=policies.get(name.rpartition("/")[0], policies.get("", "")),
        )
        for name, interval in result.items()
    }


def shown(figure: Figure | Interval | None, *, scale: float = 100, digits: int = 1) -> str:
    """A figure with its interval as the tables write it, in percent unless told otherwise."""
    if figure is None:
        return ABSENT
    return interval_text(figure.value, figure.low, figure.high, scale=scale, digits=digits)


def html(result: EvaluationResult) -> Iterator[str]:
    """The report page in chunks: one HTML file that needs no network."""
    data = {f"data: {datum['name']}": f"{_size(datum)}, sha256 {datum['sha256']}" for datum in result.data}
    return evaluation_html(replace(result, settings={**result.settings, **data, "stepmark": __version__}))


def _size(datum: Mapping[str, Any]) -> str:
    return f"{datum['bytes']:,} bytes" if "bytes" in datum else amount(datum["rows"], "row")


def write_json(result: EvaluationResult, path: str | Path) -> None:
    """Write everything as JSON; there complete or not at all."""
    body = {
        "format": FORMAT,
        "stepmark": __version__,
        "evaluation": result.evaluation,
        "title": result.title,
        "prm": result.prm,
        "verdict": result.verdict,
        "facts": list(result.facts),
        "settings": dict(result.settings),
        "data": [dict(datum) for datum in result.data],
        "figures": [asdict(figure) for figure in result.figures.values()],
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


def as_markdown(result: EvaluationResult) -> str:
    """Facts and tables as Markdown."""
    parts = [f"# {result.title}", *result.sentences, *(markdown(table).rstrip() for table in result.tables)]
    return "\n\n".join(parts) + "\n"


def read_result(path: str | Path) -> dict[str, Any]:
    """A result's JSON file, by its name or that of its folder.

    Raises:
        InputError: it is none, or of another format.
    """
    if Path(path).is_dir():
        path = Path(path, "result.json")
    check_readable(path)
    try:
        body = json.loads(Path(path).read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise InputError(
            f"expected the result of stepmark evaluate as JSON: {error}", where=str(path)
        ) from None
    keys = {"format", "evaluation", "prm", "figures", "items", "data", "settings"}
    if not isinstance(body, dict) or not keys <= body.keys() or body["format"] != FORMAT:
        raise InputError(
            f"expected a result.json of stepmark evaluate, format {FORMAT}, found something else",
            where=str(path),
        )
    items = body["items"]
    if not isinstance(items, list) or not all(
        isinstance(item, dict) and {"id", "problem"} <= item.keys() for item in items
    ):
        raise InputError(
            "expected a list of objects with an id and a problem", where=str(path), field="items"
        )
    return body
