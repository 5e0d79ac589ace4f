"""What a score server answers, read strictly: a score too few or too many, a NaN or a wrong index is an error that says what came.

Keys that are not known here are passed over, so that an older client reads a newer server.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast, get_args

from stepmark.batching import Graded
from stepmark.errors import BackendError, InputError, MarkerInTextError, TooLongError
from stepmark.models.remote.exchange import Parsed
from stepmark.records import (
    ScoredSolution,
    ScoreKind,
    Solution,
    Step,
    StepScores,
    read_findings,
    step_number,
)


class SessionFullError(InputError):
    """A step that the session has no room for; nothing is wrong with the step. `Growing` makes room, and gives it to nobody."""


_BOUNDS: dict[str, tuple[float, float]] = {"probability": (0.0, 1.0), "margin": (-1.0, 1.0)}
_ERRORS: dict[str, type[InputError]] = {
    "too_long": TooLongError,
    "marker_in_text": MarkerInTextError,
    "session_full": SessionFullError,
}
_NUMBER = (int, float)
_NOTHING = type(None)


@dataclass(frozen=True, kw_only=True, slots=True)
class ServedModel:
    """A PRM that a server serves, as `/v1/models` tells it."""

    id: str
    """Its name in requests."""
    identity: str
    """Its name and, where the server can tell, a fingerprint of settings and weights."""
    version: str
    """Of stepmark, on the server."""
    score_kind: ScoreKind
    default_aggregate: str
    default_threshold: float | None
    default_checks: str
    """The exact checks that run beside it where a request does not say; "none" of a server that does not tell."""
    family: str | None
    """How its checkpoint is read; None for a PRM that is none."""
    max_tokens: int | None
    """What it reads at most of one solution; None: not known, or no end."""
    sessions: bool
    """Whether a step of a session is read once; else the whole prefix for each step."""
    pooling: bool
    """Whether `/pooling` is answered."""
    max_solutions: int
    """Solutions in one request."""
    max_steps: int
    """Steps in one solution."""
    max_body: int
    """Bytes in one request."""
    max_sessions: int
    """Sessions at once, over all clients."""
    session_nodes: int
    """Steps that a session holds at once."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Listing:
    """What a server serves."""

    prms: tuple[ServedModel, ...]
    others: tuple[str, ...]
    """Names of models that are no PRM of a stepmark server."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Ranked:
    """One of several candidates of a problem, in its place."""

    index: int
    """Which one it was, from 0."""
    scored: ScoredSolution | None
    """None for one that cannot be scored."""
    error: InputError | None = None
    """Why it cannot."""

    @property
    def score(self) -> float | None:
        """The aggregate of its step scores; None where there is none."""
        return None if self.scored is None else self.scored.score


@dataclass(frozen=True, kw_only=True, slots=True)
class Told:
    """A scored solution with what it cost."""

    scored: ScoredSolution
    tokens: int | None
    """That the PRM read; None when it does not tell."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Stepped:
    """A step of a session."""

    node: int
    """Its number there."""
    graded: Graded


def read_listing(data: Mapping[str, Any], url: str) -> Listing:
    """The answer of `/v1/models`."""
    prms, others = [], []
    for entry in _get(data, "data", list, url):
        if not isinstance(entry, dict):
            raise _odd(f"{url}: data", "objects", entry)
        name = _get(entry, "id", str, f"{url}: data")
        facts = entry.get("stepmark")
        if facts is None:
            others.append(name)
            continue
        place = f"{url}: the model {name!r}"
        if not isinstance(facts, dict):
            raise _odd(place, "an object under 'stepmark'", facts)
        # Missing where a limit is not told: then none is known here.
        limits = {
            key: facts[key] if _whole(facts.get(key), 1) else 2**31
            for key in ("max_solutions", "max_steps", "max_body", "max_sessions", "session_nodes")
        }
        prms.append(
            ServedModel(
                id=name,
                identity=_get(facts, "identity", str, place),
                version=_get(facts, "version", str, place),
                score_kind=_kind(facts, place),
                default_aggregate=_get(facts, "default_aggregate", str, place),
                default_threshold=_maybe(facts, "default_threshold", place),
                default_checks=_get(facts, "default_checks", str, place)
                if "default_checks" in facts
                else "none",
                family=facts.get("family") if isinstance(facts.get("family"), str) else None,
                max_tokens=facts.get("max_tokens") if _whole(facts.get("max_tokens"), 1) else None,
                sessions=_get(facts, "sessions", bool, place),
                pooling=_get(facts, "pooling", bool, place),
                **limits,
            )
        )
    return Listing(prms=tuple(prms), others=tuple(others))


def read_scores(data: Mapping[str, Any], asked: Sequence[Solution], url: str) -> list[Told | InputError]:
    """The answer of `/v1/score`: one result a solution, in order.

    Args:
        data: the answer.
        asked: the solutions; without steps where the server was to cut the text.
        url: for errors.
    """
    entries = _entries(data, len(asked), url)
    for i, entry in enumerate(entries):
        if entry.get("index") != i or isinstance(entry.get("index"), bool):
            raise _odd(f"{url}: results[{i}]", f"the index {i}", entry.get("index"))
    return [_result(data, e, solution, url) for e, solution in zip(entries, asked, strict=True)]


def read_ranking(
    data: Mapping[str, Any], asked: Sequence[Solution], url: str
) -> list[tuple[int, Told | InputError]]:
    """The answer of `/v1/rank`: each candidate once, the best first."""
    entries = _entries(data, len(asked), url)
    order = [entry.get("index") for entry in entries]
    if any(not _whole(i, 0) for i in order) or sorted(cast(list[int], order)) != list(range(len(asked))):
        raise _odd(f"{url}: results", f"each index from 0 to {len(asked) - 1} once", order)
    found = []
    before = math.inf
    for i, entry in zip(cast(list[int], order), entries, strict=True):
        result = _result(data, entry, asked[i], url)
        score = result.scored.score if isinstance(result, Told) else None
        if score is not None and score > before:
            raise _odd(f"{url}: results", "the highest score first", [before, score])
        before = -math.inf if score is None else score
        found.append((i, result))
    return found


def read_opened(data: Mapping[str, Any], url: str) -> str:
    """The answer of `POST /v1/sessions`: the session's id."""
    return _get(data, "id", str, url)


def read_steps(data: Mapping[str, Any], count: int, kind: ScoreKind, url: str) -> list[Stepped | InputError]:
    """The answer of `/v1/sessions/ID/steps`: one result a step, in order."""
    results: list[Stepped | InputError] = []
    for i, entry in enumerate(_entries(data, count, url)):
        place = f"{url}: results[{i}]"
        if entry.get("error") is not None:
            results.append(read_error(entry["error"], place))
            continue
        node = entry.get("node")
        if not _whole(node, 0):
            raise _odd(place, "a node's number", node)
        score = _number(entry.get("score"), kind, f"{place}, score")
        classes = entry.get("classes")
        graded = Graded(
            score=score,
            tokens=_count(entry, "tokens", place),
            root=_count(entry, "root", place),
            classes=None if classes is None else _row(classes, None, f"{place}, classes"),
        )
        results.append(Stepped(node=cast(int, node), graded=graded))
    return results


def read_error(data: Any, place: str) -> InputError:
    """The error of a single solution or step; its field begins at the solution, as it would in this process."""
    if not isinstance(data, dict):
        raise _odd(place, "an object under 'error'", data)
    message = _get(data, "message", str, f"{place}, error")
    field, where = data.get("field"), data.get("where")
    return _ERRORS.get(str(data.get("type")), InputError)(
        message,
        where=where if isinstance(where, str) else None,
        field=own_field(field) if isinstance(field, str) else None,
    )


def own_field(field: str) -> str | None:
    """`steps[1]` for `solutions.3.steps.1`: from the solution on, and as errors in this process say it."""
    own = re.sub(r"^(solutions|candidates|steps)\.\d+(\.|$)(?=\D|$)", "", field)
    return re.sub(r"\.(\d+)(?=\.|$)", r"[\1]", own) or None


def _result(
    data: Mapping[str, Any], entry: Mapping[str, Any], solution: Solution, url: str
) -> Told | InputError:
    place = f"{url}: results[{entry['index']}]"
    if entry.get("error") is not None:
        return read_error(entry["error"], place)
    kind = _kind(data, url)
    if not solution.steps:
        texts = _get(entry, "steps", list, place)
        if not texts or not all(isinstance(text, str) for text in texts):
            raise _odd(place, "the texts of the steps under 'steps'", texts)
        solution = Solution(
            problem=solution.problem, steps=tuple(Step(text=text) for text in texts), id=solution.id
        )
    count = len(solution.steps)
    given = _sized(entry, "scores", count, place)
    scores = tuple(
        None if score is None else _number(score, kind, f"{place}, scores[{i}]")
        for i, score in enumerate(given)
    )
    names = data.get("class_names")
    if names is not None and not (isinstance(names, list) and all(isinstance(name, str) for name in names)):
        raise _odd(url, "a list of names under 'class_names'", names)
    classes = critiques = None
    if entry.get("classes") is not None:
        size = None if names is None else len(names)
        classes = tuple(
            None if row is None else _row(row, size, f"{place}, classes[{i}]")
            for i, row in enumerate(_sized(entry, "classes", count, place))
        )
    if entry.get("critiques") is not None:
        critiques = tuple(
            _texts(written, f"{place}, critiques[{i}]")
            for i, written in enumerate(_sized(entry, "critiques", count, place))
        )
    first = entry.get("first_error")
    if first is not None and not (_whole(first, -1) and first < count):
        raise _odd(place, f"a step from 0 to {count - 1}, -1 or null under 'first_error'", first)
    number = entry.get("first_error_step")  # which servers of before do not say
    if "first_error_step" in entry and number != step_number(first):
        raise _odd(
            place, f"{step_number(first)}, one more than 'first_error', under 'first_error_step'", number
        )
    findings = None
    if entry.get("findings") is not None:
        try:
            findings = read_findings(entry["findings"], count)
        except InputError as error:
            raise _odd(place, "findings of exact checks", str(error)) from None
    return Told(
        scored=ScoredSolution(
            solution=solution,
            steps=StepScores(
                scores=scores,
                kind=kind,
                classes=classes,
                class_names=None if names is None or classes is None else tuple(names),
                critiques=critiques,
            ),
            score=_maybe(entry, "score", place),
            aggregate=_get(data, "aggregate", str, url),
            first_error=first,
            threshold=_maybe(data, "threshold", url),
            prm=_get(data, "model", str, url),
            findings=findings,
        ),
        tokens=_count(entry, "tokens", place),
    )


def _entries(data: Mapping[str, Any], count: int, url: str) -> list[Mapping[str, Any]]:
    results = data.get("results")
    if not isinstance(results, list) or len(results) != count:
        found = len(results) if isinstance(results, list) else f"{results!r:.80}"
        raise BackendError(f"{url}: {count} asked for, {found} answered; no score was made from it")
    for i, entry in enumerate(results):
        if not isinstance(entry, dict):
            raise _odd(f"{url}: results[{i}]", "an object", entry)
    return results


def _sized(entry: Mapping[str, Any], key: str, count: int, place: str) -> list[Any]:
    found = entry.get(key)
    if not isinstance(found, list) or len(found) != count:
        what = f"{len(found)}: {found!r:.80}" if isinstance(found, list) else f"{found!r:.80}"
        raise BackendError(
            f"{place}: expected {count} {key}, one a step, found {what}; no score was made from it"
        )
    return found


def _row(value: Any, size: int | None, place: str) -> tuple[float, ...]:
    if not isinstance(value, list) or not value or (size is not None and len(value) != size):
        raise _odd(place, f"{size or 'some'} numbers", value)
    return tuple(_number(one, None, place) for one in value)


def _texts(value: Any, place: str) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
        raise _odd(place, "a list of texts", value)
    return tuple(value)


def _number(value: Any, kind: ScoreKind | None, place: str) -> float:
    low, high = _BOUNDS.get(kind or "", (-math.inf, math.inf))
    if isinstance(value, bool) or not isinstance(value, _NUMBER) or not math.isfinite(value):
        raise _odd(place, "a finite number", value)
    if not low <= value <= high:
        raise _odd(place, f"a {kind} in [{low:g}, {high:g}]", value)
    return float(value)


def _maybe(data: Mapping[str, Any], key: str, place: str) -> float | None:
    if key not in data:
        raise _odd(place, f"a number or null under {key!r}", "nothing")
    return None if data[key] is None else _number(data[key], None, f"{place}, {key}")


def _count(data: Mapping[str, Any], key: str, place: str) -> int | None:
    value = data.get(key)
    if value is not None and not _whole(value, 0):
        raise _odd(place, f"a number of tokens or null under {key!r}", value)
    return cast("int | None", value)


def _kind(data: Mapping[str, Any], place: str) -> ScoreKind:
    kind = data.get("score_kind")
    if kind not in get_args(ScoreKind):
        raise _odd(place, f"one of {', '.join(get_args(ScoreKind))} under 'score_kind'", kind)
    return cast(ScoreKind, kind)


def _get(data: Mapping[str, Any], key: str, type_: type[Parsed], place: str) -> Parsed:
    value = data.get(key)
    if not isinstance(value, type_):
        raise _odd(place, f"a {type_.__name__} under {key!r}", value)
    return value


def _whole(value: Any, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def _odd(place: str, expected: str, found: object) -> BackendError:
    return BackendError(f"{place}: expected {expected}, found {found!r:.80}; no score was made from it")
