"""Scores as tracers and telemetry take them: graded traces become the bodies of their public APIs.

Each score lands on the turn that it is about: readers of traces keep the id of a turn's call (`Step.id`: an observation of Langfuse, a run of LangSmith, a span of
OpenTelemetry) and the trace's own (`Solution.id`). A turn without one, or without a score, has no body of its own. Ids of scores are digests of what they
are about, so that sending again replaces them where the API allows it.

| target | body | source |
| --- | --- | --- |
| `langfuse-scores` | `CreateScoreRequest` of `POST /api/public/scores` | langfuse/langfuse, fern/apis/server/definition/scores.yml |
| `langsmith-feedback` | `FeedbackCreate` of `POST /feedback` | langchain-ai/langsmith-sdk, python/langsmith/schemas.py |
| `phoenix-annotations` | `SpanAnnotationData`, `TraceAnnotationData` of `POST /v1/span_annotations` and `/v1/trace_annotations` | Arize-ai/phoenix, schemas/openapi.json |
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from stepmark.data.formats.rows import Format, LabelledRow, NotRepresentableError, Writing
from stepmark.data.json_rows import json_type
from stepmark.errors import UsageError

TURN, TRACE = "stepmark.turn", "stepmark.trace"
"""The names of a turn's score and of a trace's."""

_HEX = {16: re.compile(r"[0-9a-f]{16}"), 32: re.compile(r"[0-9a-f]{32}")}
_NAMESPACE = uuid.UUID("5f2c0b3e-6c1d-5d0e-9f5f-9a3a6d3a7f10")
"""Of our ids of scores; any fixed number would do."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TraceScore:
    """A score of a turn, or of the whole trace."""

    trace: str
    """The id of the trace."""
    call: str | None
    """The id of the turn's call; None for the score of the trace."""
    turn: int | None
    """The turn, counted from 1; None for the score of the trace."""
    score: float
    label: str | None
    """"pass" or "fail"; None where there is neither a threshold nor a finding."""
    comment: str | None
    """What is wrong, in words."""
    facts: Mapping[str, Any]
    """What made the score: `prm`, `score_kind`, `aggregate` or `threshold`."""

    @property
    def name(self) -> str:
        """`TURN` or `TRACE`."""
        return TRACE if self.turn is None else TURN

    @property
    def id(self) -> str:
        """A UUID, equal for equal traces, calls, turns and PRMs."""
        about = "\n".join(map(str, (self.trace, self.call, self.turn, self.facts.get("prm"))))
        return str(uuid.uuid5(_NAMESPACE, about))


def scores_of(row: LabelledRow) -> list[TraceScore]:
    """The scores of a graded trace: those of its turns, then its own.

    Raises:
        NotRepresentableError: the row is not graded, or no trace whose calls have ids.
    """
    graded = row.graded
    if graded is None:
        raise NotRepresentableError("expected scores: `stepmark grade` writes them; found a row without")
    trace, steps = graded.get("id"), row.solution.steps
    if not isinstance(trace, str) or not any(step.id for step in steps):
        raise NotRepresentableError(
            "expected a trace that was read from Langfuse, LangSmith or OpenTelemetry, with its id and the ids of its calls; found none"
        )
    scores = graded["scores"]
    if not isinstance(scores, list) or len(scores) != len(steps):
        raise NotRepresentableError(f"expected one score a turn ({len(steps)}), found {json_type(scores)}")
    threshold = graded.get("threshold")
    facts = {key: graded[key] for key in ("prm", "score_kind", "threshold") if graded.get(key) is not None}
    wrong: dict[int, list[str]] = {}
    for finding in graded.get("findings") or ():
        written = " ".join(str(finding["written"]).split())
        wrong.setdefault(finding["step"], []).append(f'"{written}" is wrong: {finding["right"]}.')
    results = []
    for at, (step, score) in enumerate(zip(steps, scores, strict=True)):
        if step.id is None or score is None:
            continue
        results.append(
            TraceScore(
                trace=trace,
                call=step.id,
                turn=at + 1,
                score=float(score),
                label=_label(score, threshold, wrong.get(at)),
                comment=" ".join(wrong.get(at, ())) or None,
                facts=facts,
            )
        )
    if (total := graded.get("score")) is not None:
        first = graded.get("first_error")
        results.append(
            TraceScore(
                trace=trace,
                call=None,
                turn=None,
                score=float(total),
                label=None if first is None else "pass" if first < 0 else "fail",
                comment=f"The first error is in turn {first + 1}."
                if isinstance(first, int) and first >= 0
                else None,
                facts={**facts, "aggregate": graded.get("aggregate")},
            )
        )
    return results


def _label(score: float, threshold: float | None, wrong: Sequence[str] | None) -> str | None:
    if wrong:
        return "fail"
    return None if threshold is None else "fail" if score < threshold else "pass"


def langfuse(score: TraceScore, _row: LabelledRow) -> dict[str, Any]:
    """A `CreateScoreRequest`; with the id of an earlier score it replaces that."""
    return _without_none(
        {
            "id": score.id,
            "traceId": score.trace,
            "observationId": score.call,
            "name": score.name,
            "value": score.score,
            "dataType": "NUMERIC",
            "comment": score.comment,
            "metadata": _facts(score),
        }
    )


def langsmith(score: TraceScore, row: LabelledRow) -> dict[str, Any]:
    """A `FeedbackCreate`: of the turn's run, or of the root run, whose id is the trace's. `session_id` is the project, where the runs name it."""
    session = row.meta.get("session_id")
    return _without_none(
        {
            "id": score.id,
            "run_id": score.call or score.trace,
            "trace_id": score.trace,
            "session_id": session if isinstance(session, str) else None,
            "key": score.name,
            "score": score.score,
            "comment": score.comment,
            "feedback_source": {"type": "model", "metadata": _facts(score)},
        }
    )


def phoenix(score: TraceScore, _row: LabelledRow) -> dict[str, Any]:
    """A `SpanAnnotationData`, or a `TraceAnnotationData`; with the `identifier` of an earlier annotation it replaces that."""
    trace, span = _otel_ids(score)
    return {
        **({"trace_id": trace} if span is None else {"span_id": span}),
        "name": score.name,
        "annotator_kind": "LLM",
        "result": _without_none({"score": score.score, "label": score.label, "explanation": score.comment}),
        "metadata": _facts(score),
        "identifier": score.id,
    }


def _otel_ids(score: TraceScore) -> tuple[str, str | None]:
    """The ids of the trace and of the span.

    Raises:
        NotRepresentableError: they are none of OpenTelemetry.
    """
    for value, length in ((score.trace, 32), (score.call, 16)):
        if value is not None and not _HEX[length].fullmatch(value):
            raise NotRepresentableError(
                f"expected ids of OpenTelemetry ({length} hexadecimal digits), found {value!r:.60}"
            )
    return score.trace, score.call


def _facts(score: TraceScore) -> dict[str, Any]:
    return _without_none({**score.facts, "turn": score.turn})


def _without_none(body: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in body.items() if value is not None}


Body = Callable[[TraceScore, LabelledRow], dict[str, Any]]


def _format(name: str, about: str, body: Body) -> Format:
    def write(row: LabelledRow, _settings: Writing) -> Iterator[dict[str, Any]]:
        yield from [body(score, row) for score in scores_of(row)]

    def read(*_: Any) -> Iterator[LabelledRow]:
        raise UsageError(f"{name} is written and not read")

    return Format(name=name, about=about, sniff=lambda _: False, read=read, write=write)


SCORES: Mapping[str, Format] = {
    format.name: format
    for format in (
        _format("langfuse-scores", "scores of Langfuse, of graded traces", langfuse),
        _format("langsmith-feedback", "feedback of LangSmith, of graded traces", langsmith),
        _format(
            "phoenix-annotations", "annotations of spans and traces of Phoenix, of graded traces", phoenix
        ),
    )
}
"""The formats of scores by name; they are written and not read."""
