"""What a server counts, as Prometheus reads it: the text format, version 0.0.4.

Source: Prometheus, "Exposition formats", text-based format.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, final

from stepmark.serving.tallies import BUCKETS, Figures, Histogram

if TYPE_CHECKING:
    from stepmark.serving.service import Service

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_STATES = ("loading", "ready", "draining", "failed")

_COUNTERS: tuple[tuple[str, str, str], ...] = (
    # name (stepmark_…_total), attribute of Figures, help
    ("requests_taken", "requests", "Requests that were taken into the queue."),
    ("requests_answered", "answered", "Of those taken in, answered."),
    ("requests_busy", "busy", "Requests refused for want of room in the queue (429)."),
    ("requests_late", "late", "Of those taken in, whose deadline passed (504)."),
    ("requests_gone", "gone", "Of those taken in, whose client went away."),
    ("requests_failed", "failed", "Of those taken in, at which the model failed (500)."),
    ("requests_drained", "drained", "Of those taken in, which a shutdown left undone (503)."),
    ("items", "items", "Solutions, steps and texts that were computed."),
    ("refusals", "refusals", "Of all that was asked, what the PRM could not read."),
    ("batches", "batches", "Batches computed."),
    ("batches_failed", "failed_batches", "Of those, the ones that failed."),
    ("compute_seconds", "compute_seconds", "Seconds in which something was computed."),
    ("tokens_read", "tokens_read", "Tokens of all that was computed, each item by itself."),
    ("tokens_in", "tokens_in", "Tokens that the model was given."),
    ("tokens_computed", "tokens_computed", "Tokens that went through the network."),
    ("tokens_distinct", "tokens_distinct", "Distinct prefix tokens among them."),
    ("tokens_again", "tokens_again", "Tokens computed once more because they had been forgotten."),
    ("tokens_evicted", "evicted", "Tokens forgotten for want of memory."),
)
_GAUGES: tuple[tuple[str, str, str], ...] = (
    ("queue_requests", "waiting_requests", "Requests taken in and not answered."),
    ("queue_tokens", "waiting_tokens", "Tokens that wait."),
    ("computing_tokens", "computing_tokens", "Tokens of the batch in work."),
    ("memory_tokens", "memory_tokens", "Tokens whose keys and values are kept."),
    ("memory_capacity_tokens", "memory_capacity", "Tokens that are kept at most."),
)


@final
class Traffic:
    """Requests by route, method and status; how long they took; how many are open."""

    def __init__(self) -> None:
        self.open = 0
        """Requests that are being served now."""
        self._answers: dict[tuple[str, str, int], int] = defaultdict(int)
        self._seconds: dict[str, Histogram] = defaultdict(Histogram)

    def add(self, route: str, method: str, status: int, seconds: float) -> None:
        """Count an answer.

        Args:
            route: the route's own path, not the request's: else anybody could make labels.
            status: as sent; 499 where the client went away before.
        """
        self._answers[route, method, status] += 1
        self._seconds[route].add(seconds)

    def lines(self) -> Iterator[str]:
        """As Prometheus reads them."""
        yield from _head(
            "http_requests_total",
            "counter",
            "Answers by route, method and status (499: the client went away).",
        )
        for (route, method, status), count in sorted(self._answers.items()):
            yield _line(
                "http_requests_total", count, {"route": route, "method": method, "status": str(status)}
            )
        yield from _head(
            "http_request_seconds", "histogram", "From a request's first byte to its answer's last."
        )
        for route, histogram in sorted(self._seconds.items()):
            yield from _histogram("http_request_seconds", histogram, {"route": route})
        yield from _gauge("http_requests_open", "Requests that are being served.", self.open)


def metrics(service: Service) -> str:
    """All figures of a server; those of the model from when it is loaded."""
    lines: list[str] = []
    lines += _head("state", "gauge", "1 for the state that the server is in.")
    lines += [_line("state", int(service.state == state), {"state": state}) for state in _STATES]
    live = service.live
    if live is not None:
        info = {"model": live.name, "version": live.facts.version, "score_kind": live.facts.score_kind}
        lines += _head("info", "gauge", "1; its labels say what is served.")
        lines.append(_line("info", 1, info))
        lines += _model_lines(live.batcher.figures)
        lines += _gauge("sessions", "Sessions that are open.", len(live.sessions))
        lines += _gauge("session_nodes", "Steps that they hold.", live.sessions.nodes)
        lines += _gauge("session_bytes", "Bytes, about, that they hold.", live.sessions.size)
        lines += _gauge("session_capacity_bytes", "Bytes that they hold at most.", live.sessions.memory)
        lines += _head(
            "sessions_evicted_total", "counter", "Sessions that were ended to make room for others."
        )
        lines.append(_line("sessions_evicted_total", live.sessions.evicted))
    lines += service.traffic.lines()
    return "\n".join(lines) + "\n"


def _model_lines(figures: Figures) -> Iterator[str]:
    for name, attribute, help_ in _COUNTERS:
        yield from _head(f"{name}_total", "counter", help_)
        yield _line(f"{name}_total", getattr(figures, attribute))
    for name, attribute, help_ in _GAUGES:
        yield from _gauge(name, help_, getattr(figures, attribute))
    rate = figures.tokens_per_second
    yield from _gauge(
        "tokens_per_second",
        "Tokens read a second of computing, of late; NaN before the first batch.",
        math.nan if rate is None else rate,
    )
    for name, help_, histogram in (
        ("queue_seconds", "From a request's arrival until it was begun.", figures.queue_seconds),
        ("batch_seconds", "That a batch took.", figures.batch_seconds),
    ):
        yield from _head(name, "histogram", help_)
        yield from _histogram(name, histogram, {})


def _head(name: str, kind: str, help_: str) -> tuple[str, str]:
    escaped = help_.replace("\\", r"\\").replace("\n", r"\n")
    return f"# HELP stepmark_{name} {escaped}", f"# TYPE stepmark_{name} {kind}"


def _gauge(name: str, help_: str, value: float) -> Iterator[str]:
    yield from _head(name, "gauge", help_)
    yield _line(name, value)


def _histogram(name: str, histogram: Histogram, labels: Mapping[str, str]) -> Iterator[str]:
    bounds = [*map(_number, BUCKETS), "+Inf"]
    for bound, count in zip(bounds, histogram.cumulative, strict=True):
        yield _line(f"{name}_bucket", count, {**labels, "le": bound})
    yield _line(f"{name}_sum", histogram.seconds, labels)
    yield _line(f"{name}_count", histogram.count, labels)


def _line(name: str, value: float, labels: Mapping[str, str] | None = None) -> str:
    inside = ",".join(f'{key}="{_escaped(text)}"' for key, text in (labels or {}).items())
    return f"stepmark_{name}{f'{{{inside}}}' if inside else ''} {_number(value)}"


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def _number(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return str(value) if isinstance(value, int) else repr(float(value))
