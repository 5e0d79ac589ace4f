"""The server's metrics, in Prometheus's format by `prometheus_client`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from stepmark.models.prm import Ledger

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
"""Upper bounds of histograms, in seconds."""
_LEDGER = {
    "tokens_in": "Tokens that the model was given.",
    "tokens_computed": "Tokens that went through the network.",
    "tokens_distinct": "Distinct prefix tokens among them.",
    "tokens_again": "Tokens computed once more because they had been evicted.",
}


@final
class Metrics:
    """All metrics of a server."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()

        def made(kind: Any, name: str, text: str, *labels: str, **more: Any) -> Any:
            return kind(f"stepmark_{name}", text, labels, registry=self._registry, **more)

        self.open: Gauge = made(Gauge, "http_requests_open", "Requests that are being served.")
        self.answers: Counter = made(
            Counter,
            "http_requests",
            "Answers by route, method and status (499: the client disconnected).",
            *("route", "method", "status"),
        )
        self.seconds: Histogram = made(
            Histogram,
            "http_request_seconds",
            "From a request's first byte to its answer's last.",
            "route",
            buckets=BUCKETS,
        )
        self.items: Counter = made(Counter, "items", "Solutions and texts that were computed.")
        self.tokens_read: Counter = made(
            Counter, "tokens_read", "Tokens of all items computed, each item by itself."
        )
        self.batches: Counter = made(Counter, "batches", "Batches computed.")
        self.batches_failed: Counter = made(Counter, "batches_failed", "Batches that failed.")
        self.compute_seconds: Counter = made(
            Counter, "compute_seconds", "Seconds in which something was computed."
        )
        self.queue_seconds: Histogram = made(
            Histogram, "queue_seconds", "From tokenizing to a request's first batch.", buckets=BUCKETS
        )
        self.batch_seconds: Histogram = made(
            Histogram, "batch_seconds", "Duration of a batch.", buckets=BUCKETS
        )
        self.queue_requests: Gauge = made(Gauge, "queue_requests", "Requests accepted and not answered.")
        self.queue_tokens: Gauge = made(Gauge, "queue_tokens", "Tokens that wait.")
        self.computing_tokens: Gauge = made(Gauge, "computing_tokens", "Tokens of the running batch.")

    def add_prm(self, name: str, version: str, kind: str, ledger: Ledger, memory: Any) -> None:
        """Report what is served.

        Args:
            name: the PRM's name for clients.
            version: of stepmark.
            kind: of its scores.
            ledger: what it has computed.
            memory: a call that gives the tokens held, held at most, and evicted so far.
        """

        class Served:
            def collect(self) -> Iterable[Metric]:
                info = GaugeMetricFamily(
                    "stepmark_info",
                    "1; its labels say what is served.",
                    labels=("model", "version", "score_kind"),
                )
                info.add_metric((name, version, kind), 1)
                yield info
                for field, text in _LEDGER.items():
                    yield CounterMetricFamily(f"stepmark_{field}", text, value=getattr(ledger, field))
                held, capacity, evicted = memory()
                yield CounterMetricFamily(
                    "stepmark_tokens_evicted", "Tokens evicted from memory.", value=evicted
                )
                yield GaugeMetricFamily("stepmark_memory_tokens", "Tokens in the prefix cache.", value=held)
                yield GaugeMetricFamily(
                    "stepmark_memory_capacity_tokens", "Tokens that it holds at most.", value=capacity
                )

        self._registry.register(Served())

    def text(self) -> bytes:
        """All of them, as Prometheus reads them."""
        return generate_latest(self._registry)
