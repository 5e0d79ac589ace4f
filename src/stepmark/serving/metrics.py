"""The server's metrics, in Prometheus's format by `prometheus_client`; the batcher's counts are plain numbers that are read on request."""

from __future__ import annotations

from collections.abc import Iterable
from typing import final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from stepmark.serving.batcher import BUCKETS, Batcher
from stepmark.serving.service import Service

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_COUNTERS = {
    "requests": ("requests_taken", "Requests that were accepted into the queue."),
    "answered": ("requests_answered", "Accepted requests that were answered."),
    "busy": ("requests_busy", "Requests refused because the queue was full (429)."),
    "late": ("requests_late", "Accepted requests whose deadline passed (504)."),
    "gone": ("requests_gone", "Accepted requests whose client disconnected."),
    "failed": ("requests_failed", "Accepted requests at which the model failed (500)."),
    "drained": ("requests_drained", "Accepted requests that a shutdown left undone (503)."),
    "items": ("items", "Solutions, steps and texts that were computed."),
    "refusals": ("refusals", "Solutions, steps and texts that the PRM could not read."),
    "batches": ("batches", "Batches computed; one that failed and was tried again counts each time."),
    "failed_batches": ("batches_failed", "Batches that failed."),
    "compute_seconds": ("compute_seconds", "Seconds in which something was computed."),
    "tokens_read": ("tokens_read", "Tokens of all items computed, each item by itself."),
}
_LEDGER = {
    "tokens_in": "Tokens that the model was given.",
    "tokens_computed": "Tokens that went through the network.",
    "tokens_distinct": "Distinct prefix tokens among them.",
    "tokens_again": "Tokens computed once more because they had been evicted.",
}


@final
class Metrics:
    """All metrics of a server.

    Args:
        service: whose they are.
    """

    def __init__(self, service: Service) -> None:
        self.service = service
        self._registry = CollectorRegistry()
        self._registry.register(self)
        self.open = Gauge(
            "stepmark_http_requests_open", "Requests that are being served.", registry=self._registry
        )
        self._answers = Counter(
            "stepmark_http_requests",
            "Answers by route, method and status (499: the client disconnected).",
            ("route", "method", "status"),
            registry=self._registry,
        )
        self._seconds = Histogram(
            "stepmark_http_request_seconds",
            "From a request's first byte to its answer's last.",
            ("route",),
            registry=self._registry,
            buckets=BUCKETS,
        )

    def add(self, route: str, method: str, status: int, seconds: float) -> None:
        """Count an answer.

        Args:
            route: the route's template, not the request's path: else clients could make labels.
            method: the request's.
            status: as sent; 499 where the client disconnected before.
            seconds: from the request's first byte to the answer's last.
        """
        self._answers.labels(route, method, str(status)).inc()
        self._seconds.labels(route).observe(seconds)

    def text(self) -> bytes:
        """All of them, as Prometheus reads them."""
        return generate_latest(self._registry)

    def describe(self) -> Iterable[Metric]:
        """Nothing: `prometheus_client` would else collect when it registers."""
        return ()

    def collect(self) -> Iterable[Metric]:
        """The server's state and its figures."""
        service = self.service
        yield _gauge(
            "ready", "1 while requests are taken; 0 while the server shuts down.", not service.draining
        )
        info = GaugeMetricFamily(
            "stepmark_info", "1; its labels say what is served.", labels=("model", "version", "score_kind")
        )
        info.add_metric((service.name, service.facts.version, service.facts.score_kind), 1)
        yield info
        yield from _of_batcher(service.batcher)
        sessions = service.sessions
        yield _gauge("sessions", "Open sessions.", len(sessions))
        yield _gauge("session_nodes", "Steps that they hold.", sessions.nodes)
        yield _gauge("session_bytes", "Bytes that they hold, about.", sessions.size)
        yield _gauge("session_capacity_bytes", "Bytes that they hold at most.", sessions.memory)
        yield _counter("sessions_evicted", "Sessions that were ended to make room.", sessions.evicted)


def _of_batcher(batcher: Batcher) -> Iterable[Metric]:
    figures = batcher.figures
    for attribute, (name, text) in _COUNTERS.items():
        yield _counter(name, text, getattr(figures, attribute))
    for name, text in _LEDGER.items():
        yield _counter(name, text, getattr(batcher.backend.prm.ledger, name))
    held, capacity, evicted = batcher.backend.memory
    rate = figures.tokens_per_second
    yield _counter("tokens_evicted", "Tokens evicted from memory.", evicted)
    yield _gauge("queue_requests", "Requests accepted and not answered.", figures.waiting_requests)
    yield _gauge("queue_tokens", "Tokens that wait.", figures.waiting_tokens)
    yield _gauge("computing_tokens", "Tokens of the running batch.", figures.computing_tokens)
    yield _gauge("memory_tokens", "Tokens whose keys and values are held.", held)
    yield _gauge("memory_capacity_tokens", "Tokens that are held at most.", capacity)
    yield _gauge(
        "tokens_per_second",
        "Tokens read a second of computing, smoothed; NaN before the first batch.",
        float("nan") if rate is None else rate,
    )
    yield from figures.queue_seconds.collect()
    yield from figures.batch_seconds.collect()


def _counter(name: str, text: str, value: float) -> Metric:
    return CounterMetricFamily(f"stepmark_{name}", text, value=value)


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(f"stepmark_{name}", text, value=value)
