"""What a session is asked, and how what its tree holds becomes scores: of one more step, of a whole solution, of bare tokens.

All three are texts with positions that are read, so they share one hold of the tree (`prefixes.PrefixCache.hold`) and with it one
packed forward pass.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from stepmark.errors import CheckpointError
from stepmark.models.encoding import Encoded
from stepmark.models.heads import step_scores
from stepmark.models.local import HeadPRM, ImplicitPRM
from stepmark.models.prefixes import NONE, Known, PrefixCache
from stepmark.models.tree import Ints
from stepmark.records import Solution, StepScores

_ROWS = 4096
"""Hidden states that a head reads at a time."""
_STEP = 96
"""Bytes of a step's record."""
_WORDS = 256
"""Distributions over a vocabulary that are made at a time."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Place:
    """A prefix in a session: a problem and the steps so far."""

    solution: Solution
    """Its steps; none at a problem's root."""
    ids: Ints
    """Its tokens, up to the last that was read."""
    slots: Ints
    """Where they lie; valid only where `births` still says so."""
    births: Ints
    """When each slot was filled; a slot that was given back and filled again has another."""

    @property
    def size(self) -> int:
        """Bytes, about, that it takes beside the texts of its steps, which it shares."""
        arrays = self.ids.nbytes + self.slots.nbytes + self.births.nbytes
        return arrays + _STEP * len(self.solution.steps)


@dataclass(frozen=True, kw_only=True, eq=False)
class NextStep:
    """Asks for the score of a prefix's last step; answered by `Extended`, whose place is held until it is dropped."""

    place: Place
    """Its solution with the step; tokens and slots of what was read of it before, if anything was."""
    encoded: Encoded
    """That solution."""


@dataclass(frozen=True, kw_only=True, eq=False)
class WholeSolution:
    """Asks for the scores of all steps; answered by `StepScores`. Nothing is held for the asker."""

    encoded: Encoded


@dataclass(frozen=True, kw_only=True, eq=False)
class TokenRows:
    """Asks for what the head says of some tokens of a text; answered by logits [positions, classes]. Nothing is held for the asker."""

    ids: Ints
    """Token ids; at least one."""
    positions: Ints
    """Which tokens, ascending."""


Asked = NextStep | WholeSolution | TokenRows


@dataclass(frozen=True, kw_only=True)
class Extended:
    """A prefix that is one step longer, and what the PRM says of that step."""

    place: Place
    score: float
    """In the range of the PRM's `score_kind`."""
    classes: tuple[float, ...] | None = None
    """Class probabilities, for PRMs of three classes."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Text:
    """What is to be read for one that asks."""

    index: int
    """Whose it is."""
    asked: Asked
    ids: Ints
    """Up to the last token that is read."""
    reads: Ints
    """The positions that are read, ascending."""


def text_of(index: int, asked: Asked) -> Text:
    """What is to be read; no tokens where nothing is (a solution of which no step fits)."""
    if isinstance(asked, TokenRows):
        ids, reads = asked.ids, asked.positions
    else:
        of = asked.encoded.reads[-1:] if isinstance(asked, NextStep) else asked.encoded.reads
        ids, reads = asked.encoded.ids, np.asarray([r for r in of if r is not None], dtype=np.int64)
    return Text(index=index, asked=asked, ids=ids[: int(reads[-1]) + 1] if len(reads) else NONE, reads=reads)


def known_of(text: Text) -> Known:
    """The text as the tree is asked for it, with where its beginning was."""
    if not isinstance(text.asked, NextStep):
        return Known(ids=text.ids)
    place = text.asked.place
    return Known(ids=text.ids, before=place.ids, slots=place.slots, births=place.births)


@dataclass(frozen=True, kw_only=True, eq=False)
class Read:
    """What was read of one text, in the order of its `reads`."""

    scores: list[float]
    """Of a text that is tokens, of no use."""
    classes: list[tuple[float, ...]] | None = None
    logits: Tensor | None = None
    """[reads, classes]; None for an implicit PRM."""


def read_texts(
    prm: HeadPRM | ImplicitPRM, cache: PrefixCache, texts: Sequence[Text], paths: Sequence[Ints]
) -> list[Read]:
    """What the PRM says of texts whose tokens the tree holds in `paths`.

    Raises:
        CheckpointError: the model gave NaN or an infinity.
    """
    if isinstance(prm, HeadPRM):
        return by_head(prm, cache, texts, paths)
    return by_log_ratio(prm, cache, texts, paths)


def by_head(prm: HeadPRM, cache: PrefixCache, texts: Sequence[Text], paths: Sequence[Ints]) -> list[Read]:
    """What the head says where texts are read; of a token that several share, once.

    Raises:
        CheckpointError: the model gave NaN or an infinity.
    """
    slots = [path[text.reads] for text, path in zip(texts, paths, strict=True)]
    ends, which = np.unique(np.concatenate(slots), return_inverse=True)
    logits = torch.cat(
        [
            prm.head(cache.states(ends[start : start + _ROWS]).float()).float().cpu()
            for start in range(0, len(ends), _ROWS)
        ]
    )
    scores, classes = step_scores(prm.spec.readout, logits, prm.neutral)
    found = []
    at = 0
    for text in texts:
        mine = which[at : at + len(text.reads)]
        at += len(text.reads)
        found.append(
            Read(
                scores=[scores[row] for row in mine],
                classes=None if classes is None else [classes[row] for row in mine],
                logits=logits[torch.from_numpy(mine)],
            )
        )
    return found


def by_log_ratio(
    prm: ImplicitPRM, cache: PrefixCache, texts: Sequence[Text], paths: Sequence[Ints]
) -> list[Read]:
    """Log-ratios of the answer's tokens, up to each step's end or of each step; as `ImplicitPRM` scores.

    A token's log-ratio is kept in the cache beside it (`PrefixCache.value`).

    Raises:
        CheckpointError: the model gave NaN or an infinity, or the template gives no token before the answer.
    """
    answers = [_answer(text) for text in texts]
    tokens = np.concatenate([path[a:] for a, path in zip(answers, paths, strict=True)])
    above = np.concatenate([path[a - 1 : -1] for a, path in zip(answers, paths, strict=True)])
    ids = np.concatenate([text.ids[a:] for a, text in zip(answers, texts, strict=True)])
    _, first = np.unique(tokens, return_index=True)
    fresh = first[np.isnan(cache.value[tokens[first]])]
    # By what they follow, so that alternatives share its logits.
    fresh = fresh[np.argsort(above[fresh], kind="stable")]
    for start in range(0, len(fresh), _WORDS):
        some = fresh[start : start + _WORDS]
        parents, which = np.unique(above[some], return_inverse=True)
        ratio = np.zeros(len(some))
        for number, (sign, (_, output)) in enumerate(((1.0, prm.policy), (-1.0, prm.reference))):
            logits = cache.states(parents, number).to(output.dtype) @ output.T
            table = torch.log_softmax(logits.float(), -1)
            picked = table[
                torch.from_numpy(which).to(table.device), torch.from_numpy(ids[some]).to(table.device)
            ]
            ratio += sign * picked.double().cpu().numpy()
        cache.value[tokens[some]] = ratio
    found = []
    for text, answer, path in zip(texts, answers, paths, strict=True):
        total = prm.rule.beta * np.cumsum(cache.value[path[answer:]])
        # The end of the step before the first that is read is where that one begins.
        before = _before(text)
        at = [float(total[read - answer]) for read in text.reads]
        if prm.rule.per_step:
            starts = [0.0 if before is None else float(total[before - answer]), *at[:-1]]
            at = [end - start for end, start in zip(at, starts, strict=True)]
        if not all(map(math.isfinite, at)):
            raise CheckpointError(
                f"{prm.name} gave NaN or an infinity as a log-ratio: its weights are damaged, or too large for {prm.policy[1].dtype}"
            )
        found.append(Read(scores=at))
    return found


def whole_scores(prm: HeadPRM | ImplicitPRM, asked: WholeSolution, read: Read | None) -> StepScores:
    """One entry a step: None where nothing was read."""
    encoded, readout = asked.encoded, prm.spec.readout
    three = read is not None and read.classes is not None
    scores: list[float | None] = []
    classes: list[tuple[float, ...] | None] = []
    rank = 0
    for position in encoded.reads:
        if position is None or read is None:
            scores.append(None)
            classes.append(None)
            continue
        scores.append(read.scores[rank])
        classes.append(None if read.classes is None else read.classes[rank])
        rank += 1
    return StepScores(
        scores=tuple(scores),
        kind=prm.score_kind,
        classes=tuple(classes) if three else None,
        class_names=readout.class_names if read is not None else None,
        problem_tokens=encoded.problem_tokens,
        solution_tokens=encoded.solution_tokens,
    )


def _answer(text: Text) -> int:
    assert not isinstance(text.asked, TokenRows)
    answer = text.asked.encoded.answer
    if answer < 1:
        raise CheckpointError("an implicit PRM needs a token before the answer, and the template gives none")
    return answer


def _before(text: Text) -> int | None:
    """Where the step before the first that is read ends; None where that one is the solution's first."""
    assert not isinstance(text.asked, TokenRows)
    reads = text.asked.encoded.reads
    if isinstance(text.asked, WholeSolution) or len(reads) < 2:
        return None
    assert reads[-2] is not None  # a step that is read has all before it read
    return reads[-2]
