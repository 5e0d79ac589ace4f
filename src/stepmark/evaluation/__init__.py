"""Evaluations of PRMs, and what one of your own is made of; `stepmark.evaluate` runs them. Step benchmarks are here by the names of their classes."""

from typing import Any

from stepmark.lazy_names import lazy_names


def _benchmark(name: str) -> Any:
    from stepmark.evaluation.base import EVALUATIONS
    from stepmark.evaluation.benchmarks import declared

    for place in declared().values():
        if place.partition(":")[2] == name:
            return EVALUATIONS.load(place)
    raise AttributeError(f"module 'stepmark.evaluation' has no attribute {name!r}")


def _benchmarks() -> list[str]:
    from stepmark.evaluation.benchmarks import declared

    return [place.partition(":")[2] for place in declared().values()]


__getattr__, __dir__, __all__ = lazy_names(__name__, _benchmark, _benchmarks)
