"""Where a solution becomes tokens and step ends, and a prompt tokens: the only place, for training, scoring and writing alike.

Positions are found by construction, never by searching the ids for a marker: the text is put together from pieces that know whose they are,
tokenised with character offsets, and a step is read at the token that holds the last character of its mark. So a marker id inside a problem
cannot be taken for a step end, a merged or vanished marker is an error, and there is one position a step or an exception.

Of prompts: the template is rendered with its generation prompt and a prefill is appended, so no end token comes between. A text and what follows it
are tokenised together, because "correct? " + "yes" is not the tokens of "correct? yes". New tokens are decoded after the tokens before them, because
many tokenizers drop the space in front of a lone first word.

"""

from __future__ import annotations

import json
import re
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, final

import numpy as np
import numpy.typing as npt

from stepmark.backends import Prompt
from stepmark.errors import CheckpointError, InputError, MarkerInTextError, TooLongError, UsageError
from stepmark.models.packed_tree import Ints, common_prefix
from stepmark.models.spec import (
    SPEC_FILE,
    ChatLayout,
    ConversationLayout,
    DialogueLayout,
    Layout,
    PieceLayout,
    Space,
    TextLayout,
)
from stepmark.records import MessageSpan, Solution, Step
from stepmark.words import amount

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True, kw_only=True, slots=True)
class Encoded:
    """A solution as tokens. Shapes: `ids` [tokens]; `reads` and `starts`, one entry a step."""

    ids: Ints
    """Token ids up to and including the last position read."""
    reads: tuple[int | None, ...]
    """Where each step is read: an index into `ids`; None for a step that was cut off."""
    answer: int
    """Index of the first token of the first step: where the solution's own text begins."""
    observed: tuple[tuple[int, int], ...] = ()
    """Spans of `ids`, [start, end), of what came back to an agent (`Step.observation`); a token belongs where it begins."""

    def own(self, ids: int | None = None) -> npt.NDArray[np.bool_]:
        """Which tokens from `answer` on, of the first so many `ids`, the solution's author wrote: [tokens]."""
        own = np.ones(len(self.ids) if ids is None else ids, dtype=bool)
        for start, end in self.observed:
            own[start:end] = False
        return own[self.answer :]

    @property
    def problem_tokens(self) -> int:
        """Tokens read before the first step."""
        return min(self.answer, len(self.ids))

    @property
    def solution_tokens(self) -> int:
        """Tokens read from the first step on."""
        return len(self.ids) - self.problem_tokens


class Encoder:
    """Turns solutions into tokens for one tokenizer and one layout.

    Args:
        tokenizer: a transformers tokenizer with character offsets (a fast one).
        layout: the PRM's layout.
        max_tokens: what the model reads at most.
        truncate: cut a solution that is too long and mark the steps past the cut as unread (None) instead of
            raising.
        outcome_only: read only the last step.

    Raises:
        CheckpointError: the tokenizer cannot serve this layout.
    """

    def __init__(
        self,
        tokenizer: Any,
        layout: Layout,
        *,
        max_tokens: int | None,
        truncate: bool = False,
        outcome_only: bool = False,
    ) -> None:
        if not tokenizer.is_fast:
            raise CheckpointError(
                "the tokenizer gives no character offsets; stepmark needs a tokenizer.json (a fast tokenizer)"
            )
        self.tokenizer = tokenizer
        self.layout = layout
        self.max_tokens = max_tokens
        self.truncate = truncate
        self.outcome_only = outcome_only
        self._special = frozenset(tokenizer.all_special_ids) | {
            token for token, added in tokenizer.added_tokens_decoder.items() if added.special
        }

    def check(self) -> None:
        """Find out before the first solution that the tokenizer cannot serve this layout.

        Raises:
            CheckpointError: a chat template that cannot be used; a visible mark that is not one token and not declared as a text: it would be cut into
                pieces and the last of them read, a plausible number; a text as mark whose end the tokenizer merges with what follows.
        """
        _ = self._frames
        layout = self.layout
        mark = visible_mark(layout)
        if isinstance(layout, DialogueLayout) or not mark:
            return
        ids = self.tokenizer(mark, add_special_tokens=False)["input_ids"]
        if not layout.mark_is_text and (len(ids) != 1 or ids[0] == self.tokenizer.unk_token_id):
            raise CheckpointError(
                f"this PRM is read at {mark!r}, which is not one token here but {self.tokenizer.convert_ids_to_tokens(ids)}; "
                "use the tokenizer that was published with the PRM, name the right `family`, or, for a text that is meant to be "
                f'read at its last token, write "mark_is_text": true into the layout in {SPEC_FILE}'
            )
        if layout.mark_is_text:
            try:
                self._encode(Solution.of("a", ("b", "c")), ["b", "c"])
            except TooLongError:
                pass
            except InputError as error:
                raise CheckpointError(
                    f"the mark {layout.mark!r} has no last token of its own in this tokenizer ({error.message}); put the white space "
                    "after it into the mark itself"
                ) from error

    @cached_property
    def _frames(self) -> Frames | None:
        """The template's own text around its contents; None for layouts without a template."""
        layout = self.layout
        if not isinstance(layout, ChatLayout | DialogueLayout):
            return None
        if not self.tokenizer.chat_template:
            raise CheckpointError(
                "this PRM is read through a chat template and its tokenizer has none; fetch the checkpoint's "
                "chat_template.jinja (or its tokenizer_config.json), or name another `family`"
            )
        turns = 1 if isinstance(layout, ChatLayout) else 2
        try:
            text, frames = self._rendered(layout.system, turns, "")
            _, wider = self._rendered(layout.system, turns, " ")
        except Exception as error:  # a template is a program: it raises what it likes
            raise CheckpointError(
                f"the chat template, through which this PRM is read, fails ({type(error).__name__}: {error}); fetch "
                "the checkpoint's tokenizer again, or name another `family`"
            ) from error
        if len(frames) != 2 * turns + 1 or (layout.system or "").strip() not in text:
            raise CheckpointError(
                "the chat template does not show the system message and every turn once; this PRM cannot be read"
            )
        if turns == 2 and frames[1] != frames[3]:
            raise CheckpointError("the chat template frames later verdicts otherwise than the first")
        return Frames(tuple(frames), (wider[0] == frames[0], wider[-1] == frames[-1]))

    def _rendered(self, system: str | None, turns: int, space: str) -> tuple[str, list[str]]:
        """A conversation of stand-ins with some space around each, and what the template puts around them."""
        # Private-use characters stand for the contents: no template touches them, and texts keep theirs.
        slots = [f"{space}\ue000{i}\ue001{space}" for i in range(2 * turns)]
        messages = [{"role": "system", "content": system}] if system is not None else []
        messages += [
            {"role": "assistant" if i % 2 else "user", "content": slot} for i, slot in enumerate(slots)
        ]
        text = self.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=False)
        return text, re.split("\ue000\\d+\ue001", text)

    @cached_property
    def _drops_a_space(self) -> bool:
        """Whether a text that begins with a space has the ids of the text without it.

        So do Llama's and Mistral's tokenizers in transformers 5, which put a space before a text only where there is none; those of
        transformers 4, with which their PRMs were trained, put one before every text.
        """
        with_space, without = (self.tokenizer(t, add_special_tokens=False)["input_ids"] for t in (" a", "a"))
        return bool(with_space == without)

    def encode(self, solution: Solution) -> Encoded:
        """Tokens and step ends of a solution.

        Raises:
            InputError: an empty problem or step, or a mark that does not stand as its own token.
            MarkerInTextError: the PRM's mark or a control token inside the problem or a step.
            TooLongError: more tokens than `max_tokens`, unless `truncate`.
        """
        return self._encode(solution, self._texts(solution))

    def _texts(self, solution: Solution) -> list[str]:
        where = _name(solution)
        _refuse_halves(solution, where)
        if not solution.problem.text.strip():
            raise InputError("the problem is empty", where=where, field="problem")
        if not solution.steps:
            raise InputError("there are no steps to grade", where=where, field="steps")
        texts = []
        before = ""
        for i, step in enumerate(solution.steps):
            if not step.text.strip():
                raise InputError(
                    f"step {i + 1} of {len(solution.steps)} is empty; leave it out or join it to its neighbour",
                    where=where,
                    field=f"steps[{i}]",
                )
            text = spaced(step.text, self.layout.step_space)
            texts.append(f"{before}\n\n{text.lstrip()}" if before else text)
            before = step.observation.strip()
        return texts

    def _encode(self, solution: Solution, texts: list[str]) -> Encoded:
        where = _name(solution)
        problem = spaced(solution.problem.text, self.layout.problem_space)
        self._refuse_marks(problem, texts, where)
        units = (
            [_conversation(self.layout, solution)]
            if isinstance(self.layout, ConversationLayout)
            else units_of(
                self.layout,
                problem,
                texts,
                frames=self._frames,
                bos=(self.tokenizer.bos_token or "") if isinstance(self.layout, PieceLayout) else "",
            )
        )
        ids: list[int] = []
        reads: list[int | None] = [None] * len(texts)
        answer: int | None = None
        observed: list[tuple[int, int]] = []
        seen = ["", *(step.observation.strip() for step in solution.steps)]
        if (
            isinstance(self.layout, PieceLayout)
            and self.layout.bos
            and self.tokenizer.bos_token_id is not None
        ):
            ids.append(self.tokenizer.bos_token_id)
        for unit in units:
            unit_ids, unit_reads, first, spans = self._tokenise(unit, where, seen)
            observed += [(len(ids) + start, len(ids) + end) for start, end in spans]
            if answer is None and first is not None:
                answer = len(ids) + first
            for step, position in unit_reads.items():
                reads[step] = len(ids) + position
            ids.extend(unit_ids)
        if self.outcome_only:
            reads[:-1] = [None] * (len(reads) - 1)
        missing = [
            i + 1 for i, r in enumerate(reads) if r is None and not (self.outcome_only and i < len(reads) - 1)
        ]
        if missing or answer is None:
            raise InputError(f"steps {missing} left no token to read", where=where, field="steps")
        return replace(self._limit(ids, reads, answer, where), observed=tuple(observed))

    def _limit(self, ids: list[int], reads: list[int | None], answer: int, where: str | None) -> Encoded:
        last = max(r for r in reads if r is not None)
        limit = self.max_tokens
        if limit is not None and last >= limit:
            fits = sum(1 for r in reads if r is not None and r < limit)
            if not self.truncate:
                raise TooLongError(
                    f"{amount(last + 1, 'token')}, and this model reads {limit} ({fits} of {amount(len(reads), 'step')} fit); shorten the "
                    "solution, cut it into several, or use `truncate` to leave the later steps without a score",
                    where=where,
                    field="steps",
                )
            reads = [r if r is not None and r < limit else None for r in reads]
            readable = [r for r in reads if r is not None]
            # Nothing fits: one token still has to stand for the row; no score is read from it.
            last = max(readable) if readable else 0
        return Encoded(ids=np.asarray(ids[: last + 1], dtype=np.int64), reads=tuple(reads), answer=answer)

    def _refuse_marks(self, problem: str, texts: list[str], where: str | None) -> None:
        if not (mark := visible_mark(self.layout)):
            return
        for text, field in [(problem, "problem"), *((t, f"steps[{i}]") for i, t in enumerate(texts))]:
            if mark in text:
                raise MarkerInTextError(
                    f"the text holds {mark!r}, with which this PRM marks the end of a step; remove or reword it",
                    where=where,
                    field=field,
                )

    def _tokenise(
        self, unit: list[Piece], where: str | None, seen: Sequence[str]
    ) -> tuple[list[int], dict[int, int], int | None, list[tuple[int, int]]]:
        """Ids of a unit; for each step read in it, the position; the first token of a step in it; where `seen`, what a step's text
        begins with, stands.
        """
        layout = self.layout
        special = isinstance(layout, TextLayout) and layout.special_tokens
        text = "".join(p.text for p in unit)
        widened = self._drops_a_space and text.startswith((" ", "▁"))
        out = self.tokenizer(
            " " + text if widened else text, add_special_tokens=special, return_offsets_mapping=True
        )
        ids: list[int] = out["input_ids"]
        spans: list[tuple[int, int]] = out["offset_mapping"]
        if widened:  # the first token, of the space that was added, stands for the first character
            spans = [
                (start, end) if end == 0 else (max(start - 1, 0), max(end - 1, 1)) for start, end in spans
            ]
        # Tokens that a tokenizer adds itself have the empty span (0, 0). Leading ones (BOS) stay; a trailing
        # one (EOS) would stand after every read and break the order that the search below needs.
        while spans and spans[-1] == (0, 0):
            ids, spans = ids[:-1], spans[:-1]
        starts = [start for start, _ in spans]
        ends = [end for _, end in spans]
        reads: dict[int, int] = {}
        first: int | None = None
        observed: list[tuple[int, int]] = []
        at = 0
        for piece in unit:
            end = at + len(piece.text)
            if piece.owner >= 0 and first is None:
                first = bisect_left(ends, at + 1)
            if piece.owner != FRAME and piece.text:
                low, high = bisect_left(ends, at + 1), bisect_left(starts, end)
                self._refuse_special(ids[low:high], spans[low:high], piece, at, where)
                if piece.observed:
                    observed.append((low, high))
                if (
                    not piece.observed
                    and piece.owner >= 0
                    and (before := seen[piece.owner])
                    and before in piece.text
                ):
                    begin = at + piece.text.index(before)
                    stop = begin + len(before) + len("\n\n")
                    observed.append((bisect_left(starts, begin), bisect_left(starts, stop)))
            if piece.read is not None:
                # The last token that begins before the piece ends: of the several tokens of one
                # multi-byte character, the last.
                position = bisect_left(starts, end) - 1
                if position < 0 or ends[position] != end:
                    raise InputError(
                        f"after step {piece.read + 1} the tokenizer merges the step's mark with what follows, so "
                        "there is no token to read; remove unusual white space at the start of the next step",
                        where=where,
                        field=f"steps[{piece.read}]",
                    )
                reads[piece.read] = position - self._back(piece, position, starts, at, where)
            at = end
        return ids, reads, first, observed

    def _back(self, piece: Piece, position: int, starts: list[int], at: int, where: str | None) -> int:
        back = self.layout.read_back if isinstance(self.layout, PieceLayout) else 0
        if back and position - back < bisect_left(starts, at):
            assert piece.read is not None
            raise InputError(
                f"step {piece.read + 1} is too short: this PRM reads its token number {back + 1} from the end",
                where=where,
                field=f"steps[{piece.read}]",
            )
        return back

    def _refuse_special(
        self, ids: list[int], spans: list[tuple[int, int]], piece: Piece, at: int, where: str | None
    ) -> None:
        for token, (start, end) in zip(ids, spans, strict=True):
            if token in self._special and start >= at and end > start:
                control = self.tokenizer.convert_ids_to_tokens(token)
                raise MarkerInTextError(
                    f"the text holds {control!r}, a control token of this model; remove or reword it",
                    where=where,
                    field="problem" if piece.owner == PROBLEM else f"steps[{piece.owner}]",
                )


def _refuse_halves(solution: Solution, where: str | None) -> None:
    steps = {f"steps[{i}]": step.text + step.observation for i, step in enumerate(solution.steps)}
    for field, text in {"problem": solution.problem.text, **steps}.items():
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            half = f"half of a surrogate pair ({text[error.start]!a}) in the text: that is no character"
            raise InputError(half, where=where, field=field) from error


def _name(solution: Solution) -> str | None:
    return f"solution {solution.id!r}" if solution.id is not None else None


FRAME, PROBLEM = -1, -2
"""Owners of a piece that are no step: the template's own text, and the problem."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A run of text of one owner."""

    text: str
    owner: int = FRAME
    """Step index, `PROBLEM`, or `FRAME` for the template's own text."""
    read: int | None = None
    """The step that is read at this piece's last token."""
    observed: bool = False
    """Whether the whole of it is what came back to an agent."""


@dataclass(frozen=True, slots=True)
class Frames:
    """What a chat template puts around the contents of its turns."""

    texts: tuple[str, ...]
    """Before the first content, between contents, after the last: 3 for `ChatLayout`, 5 for `DialogueLayout` (two turns)."""
    trims: tuple[bool, bool]
    """Whether it takes white space from the ends of a user's content, and of an assistant's."""


def spaced(text: str, space: Space) -> str:
    """A text with the white space around it that a layout wants."""
    return {"keep": text, "strip": text.strip(), "rstrip": text.rstrip()}[space]


def units_of(
    layout: Layout, problem: str, texts: Sequence[str], *, frames: Frames | None = None, bos: str = ""
) -> list[list[Piece]]:
    """The pieces of a solution, its texts spaced, in units; each unit is tokenised by itself. `frames` are of chats and dialogues, `bos` of `PieceLayout`."""
    if isinstance(layout, TextLayout):
        for waste in layout.scrub:
            problem, texts = problem.replace(waste, ""), [t.replace(waste, "") for t in texts]
        return [[*_fill(layout.opening, problem), *_marked(layout, texts)]]
    if isinstance(layout, ChatLayout):
        assert frames is not None
        return [_chat(layout, problem, texts, frames)]
    if isinstance(layout, DialogueLayout):
        assert frames is not None
        return [_dialogue(layout, problem, texts, frames)]
    assert isinstance(layout, PieceLayout)
    return _pieces(layout, problem, texts, bos)


def _chat(layout: ChatLayout, problem: str, texts: Sequence[str], frames: Frames) -> list[Piece]:
    head, middle, tail = frames.texts
    trims_user, trims_assistant = frames.trims
    user = _fill(layout.user, problem)
    # To the template a mark at the end is text too, but no white space: what ends a turn may be.
    answer = _marked(layout, texts, ending=layout.ending)
    if trims_user:
        user = _trimmed(user)
    if trims_assistant:
        answer = _trimmed(answer)
    unit = [Piece(head), *user, Piece(middle), *answer]
    last = len(texts) - 1
    if layout.closing:
        unit.append(Piece(tail, read=last))
    elif layout.ending == "turn":
        if end := tail.rstrip():
            unit.append(Piece(end, read=last))
        else:
            unit[-1] = replace(unit[-1], read=last)
    return unit


def _trimmed(pieces: list[Piece]) -> list[Piece]:
    """A content without the white space at its ends, where that is the problem's or a step's."""
    first, last = pieces[0], pieces[-1]
    if first.owner != FRAME:
        pieces = [replace(first, text=first.text.lstrip()), *pieces[1:]]
    if last.owner != FRAME:
        pieces = [*pieces[:-1], replace(pieces[-1], text=pieces[-1].text.rstrip())]
    return pieces


def _dialogue(layout: DialogueLayout, problem: str, texts: Sequence[str], frames: Frames) -> list[Piece]:
    head, ask, between = frames.texts[:3]
    unit = [Piece(head)]
    for i, text in enumerate(texts):
        content = _fill(layout.first, problem, text) if i == 0 else [Piece(text, owner=i)]
        if i > 0:
            unit += [Piece(layout.verdict), Piece(between)]
        unit += _trimmed(content) if frames.trims[0] else content
        # The frame up to the verdict ends where the next token would be the verdict.
        unit.append(Piece(ask, read=i))
    # The verdict after the last read is not needed by a causal model, but it must stand there while the
    # text is tokenised, so that the token before it is cut as in training.
    unit.append(Piece(layout.verdict))
    return unit


def _conversation(layout: ConversationLayout, solution: Solution) -> list[Piece]:
    asked = solution.problem
    spans = asked.messages or (MessageSpan(role="user", start=0, end=len(asked.text)),)
    turns = [_turn(span.role, asked.text[span.start : span.end]) for span in spans]
    if asked.tools is not None:
        listed = "".join(f"\n{json.dumps(tool, ensure_ascii=False)}" for tool in json.loads(asked.tools))
        before, after = layout.tools.split("{tools}")
        tools = [Piece(before), Piece(listed, owner=PROBLEM), Piece(after)]
        if turns[0][0] == "system":
            turns[0][1].extend([Piece("\n\n"), *tools])
        else:
            turns.insert(0, ("system", tools))
    reads = {}
    for number, step in enumerate(solution.steps):
        own = next((at for at, span in enumerate(step.messages) if _is_own(span, step)), None)
        if own is None:
            reads[len(turns)] = number
            turns.append(("assistant", [Piece(spaced(step.text, layout.step_space), owner=number)]))
            if back := step.observation.strip():
                turns.append(_turn("tool", back, number))
            continue
        for at, span in enumerate(step.messages):
            words = step.raw[span.start : span.end]
            if at == own:
                reads[len(turns)] = number
                turns.append((span.role, [Piece(words, owner=number)]))
            else:
                turns.append(_turn(span.role, words, None if at < own else number))
    unit: list[Piece] = []
    for at, (role, pieces) in enumerate(turns):
        again, goes_on = (
            0 <= near < len(turns) and role == turns[near][0] == "tool" for near in (at - 1, at + 1)
        )
        before, after = layout.answer.split("{content}") if role == "tool" else ("", "")
        if not again:
            unit.append(Piece(layout.opening.replace("{role}", "user" if role == "tool" else role)))
        unit += [Piece("\n" * again + before), *pieces, Piece(after)]
        if not goes_on:
            unit.append(Piece(layout.mark, read=reads.get(at)))
    return unit


def _turn(role: str, words: str, step: int | None = None) -> tuple[str, list[Piece]]:
    """A message that is not graded; `step` is the one that it answers."""
    owner = PROBLEM if step is None else step
    return "system" if role == "developer" else role, [Piece(words, owner=owner, observed=step is not None)]


def _is_own(span: MessageSpan, step: Step) -> bool:
    """Whether a message of a step is its own turn: those before it end in the lead."""
    return span.role == "assistant" and span.end >= len(step.lead)


def _pieces(layout: PieceLayout, problem: str, texts: Sequence[str], bos: str) -> list[list[Piece]]:
    units = [_fill(layout.opening.replace("{bos}", bos), problem)]
    for i, text in enumerate(_numbered(layout.prefix, texts)):
        if layout.by_line:
            *before, last = text.split("\n")
            for line in before:
                units += [[Piece(line, owner=i)]] if line else []
                units.append([Piece(layout.mark, owner=i)])
            units += [[Piece(last, owner=i)]] if last else []
            units.append([Piece(layout.mark, read=i)])
        elif layout.mark:
            units += [[Piece(text, owner=i)], [Piece(layout.mark, read=i)]]
        else:
            units.append([Piece(text, owner=i, read=i)])
    return units


def _fill(template: str, problem: str, first_step: str | None = None) -> list[Piece]:
    pieces = []
    for part in re.split(r"(\{problem\}|\{step\})", template):
        if part == "{problem}":
            pieces.append(Piece(problem, owner=PROBLEM))
        elif part == "{step}":
            assert first_step is not None
            pieces.append(Piece(first_step, owner=0))
        elif part:
            pieces.append(Piece(part))
    return pieces


def _marked(
    layout: TextLayout | ChatLayout, texts: Sequence[str], *, ending: Literal["mark", "turn"] = "mark"
) -> list[Piece]:
    pieces = []
    for i, text in enumerate(_numbered(layout.prefix, texts)):
        if i and layout.between:
            pieces.append(Piece(layout.between))
        pieces.append(Piece(text, owner=i))
        if layout.mark and (ending == "mark" or i < len(texts) - 1):
            pieces.append(Piece(layout.mark, read=i))
    return pieces


def _numbered(prefix: str, texts: Sequence[str]) -> list[str]:
    """Steps with what stands before each; one that brings it keeps it.

    The prefix belongs to the step's own text: an implicit PRM sums over it too.
    """
    if not prefix:
        return list(texts)
    numbered = []
    for number, text in enumerate(texts, start=1):
        begin = prefix.replace("{i}", str(number))
        brings = text.lstrip().startswith(begin.strip())
        numbered.append(text.lstrip() if brings else begin + text)
    return numbered


def visible_mark(layout: Layout) -> str:
    """The mark without the white space around it; empty where there is none."""
    return "" if isinstance(layout, DialogueLayout) else layout.mark.strip()


def mark_token(encoder: Encoder) -> int | None:
    """The token that ends a step and nothing else, for layouts that have one.

    None where steps end in a token that other text has too (a line break, a word, the step's own last one), or where another token than the mark's is
    read: then only the writer of the tokens knows where steps end.
    """
    layout = encoder.layout
    if not isinstance(layout, TextLayout | ChatLayout | PieceLayout) or not layout.mark.strip():
        return None
    if layout.mark_is_text:
        return None
    if isinstance(layout, ChatLayout) and (layout.closing or layout.ending == "turn"):
        return None
    if isinstance(layout, PieceLayout) and layout.read_back:
        return None
    if layout.mark != layout.mark.rstrip():
        return None  # what is read is the white space after it
    ids: list[int] = encoder.tokenizer(layout.mark.strip(), add_special_tokens=False)["input_ids"]
    return ids[0] if len(ids) == 1 else None


def marked(ids: Ints, mark: int | None) -> Ints:
    """Positions of a mark in token ids, ascending; every position where there is no mark."""
    return np.arange(len(ids), dtype=np.int64) if mark is None else np.flatnonzero(ids == mark)


# Prompts.

# Enough context to the left for any tokenizer to decode the first new token as it stands in the text.
_TAIL = 8


@final
class PromptEncoder:
    """Encodes prompts for one tokenizer.

    Args:
        tokenizer: of the model.
        name: the model's name, for messages.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, name: str) -> None:
        self._tokenizer = tokenizer
        self._name = name
        added = [str(token) for token in tokenizer.added_tokens_decoder.values() if token.special]
        self._control = sorted({*tokenizer.all_special_tokens, *added}, key=len, reverse=True)

    @property
    def fingerprint(self) -> str:
        """What decides how a prompt becomes tokens: the chat template and the vocabulary."""
        return f"{self._tokenizer.chat_template!r} {sorted(self._tokenizer.get_vocab().items())!r}"

    def ids(self, prompt: Prompt, prefill: str = "") -> list[int]:
        """The tokens of prompt and prefill; what the model writes comes next.

        Raises:
            MarkerInTextError: a control token of this model in a message, where it would be read as structure. (In raw text it is meant.)
            UsageError: messages, and the model has no chat template or its template refuses them.
        """
        return self._encode(self._rendered(prompt) + prefill, raw=isinstance(prompt, str))

    def options(
        self, prompt: Prompt, prefill: str, options: Sequence[str]
    ) -> tuple[list[int], list[list[int]]]:
        """The tokens that all options share, and the rest of each.

        Each option is tokenised together with the text before it. Where that changes the last tokens of the text, they move into every rest.

        Raises:
            InputError: nothing is shared: the text before the options is too short.
        """
        text, raw = self._rendered(prompt) + prefill, isinstance(prompt, str)
        before = self._encode(text, raw=raw)
        whole = [self._encode(text + option, raw=raw) for option in options]
        shared = min(common_prefix(np.asarray(before), np.asarray(ids)) for ids in whole)
        if shared == 0 or any(len(ids) <= shared for ids in whole):
            raise InputError(
                f"{self._name}: the tokens of {options!r} cannot be told from those of the text before them, "
                f"which ends {text[-20:]!r}"
            )
        return before[:shared], [ids[shared:] for ids in whole]

    def continuation(self, prompt: Prompt, prefill: str, text: str) -> tuple[list[int], list[int]]:
        """The tokens of prompt and prefill as `ids` gives them, and those of a text written after them.

        Where tokenising all of it together would change the tokens of the prompt (a prefill that ends in a space), the text is tokenised alone.
        """
        before = self.ids(prompt, prefill)
        raw = isinstance(prompt, str)
        whole = self._encode(self._rendered(prompt) + prefill + text, raw=raw)
        if whole[: len(before)] == before:
            return before, whole[len(before) :]
        # Behind a line break, because many tokenizers put a space before a lone first word.
        line = list(self._tokenizer("\n", add_special_tokens=False)["input_ids"])
        behind = list(self._tokenizer("\n" + text, add_special_tokens=False)["input_ids"])
        if behind[: len(line)] == line:
            return before, behind[len(line) :]
        return before, list(self._tokenizer(text, add_special_tokens=False)["input_ids"])

    def text(self, before: Sequence[int], new: Sequence[int]) -> str:
        """The text of new tokens that follow others; control tokens give no text."""
        tail = list(before[-_TAIL:])
        return self._decode(tail + list(new))[len(self._decode(tail)) :]

    def _rendered(self, prompt: Prompt) -> str:
        if isinstance(prompt, str):
            return prompt
        for message in prompt:
            for token in self._control:
                if token in message.content:
                    raise MarkerInTextError(
                        f"the {message.role} message holds {token!r}, a control token of {self._name}; "
                        f"remove or rewrite it"
                    )
        if not self._tokenizer.chat_template:
            raise UsageError(f"{self._name} has no chat template: give the prompt as raw text")
        import jinja2

        turns = [{"role": message.role, "content": message.content} for message in prompt]
        try:
            return str(self._tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True))
        except jinja2.TemplateError as error:
            raise UsageError(
                f"the chat template of {self._name} refuses this conversation: {error}"
            ) from None

    def _encode(self, text: str, *, raw: bool) -> list[int]:
        # A rendered template already holds the beginning-of-text token.
        ids = list(self._tokenizer(text, add_special_tokens=raw)["input_ids"])
        end = self._tokenizer.eos_token_id
        if raw and ids and ids[-1] == end and not text.endswith(str(self._tokenizer.eos_token)):
            ids.pop()  # some tokenizers close every text; ours goes on
        return ids

    def _decode(self, ids: list[int]) -> str:
        return str(self._tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False))
