"""Steps found again among the policy's tokens, whatever its tokenizer."""

from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepmark.errors import InputError
from stepmark.records import Step
from stepmark.rl.spans import step_spans, token_offsets
from stepmark.solutions.segmentation import split

TEXT = "2 + 3 = 5\n5 * 4 = 20\n20"


def decoder(pieces: Sequence[bytes]):  # type: ignore[no-untyped-def]
    return lambda ids: b"".join(pieces[i] for i in ids).decode(errors="replace")


def test_two_tokenizers_find_the_same_steps() -> None:
    steps = split(TEXT, "line").steps
    letters = [c.encode() for c in TEXT]
    words = [b"2 +", b" 3 = 5", b"\n", b"5 * 4", b" = 20\n", b"20", b""]  # an end token without text
    for pieces, ends in ((letters, (8, 19, 22)), (words, (1, 4, 6))):
        offsets = token_offsets(range(len(pieces)), decoder(pieces))
        assert offsets[-1] == len(TEXT)
        found = step_spans(steps, offsets)
        assert found.ends == ends
        assert found.steps == ((0,), (1,), (2,))


def test_a_token_that_ends_two_steps_makes_one_of_them() -> None:
    pieces = [b"2 + 3 = ", b"5\n5 * 4 = 20", b"\n20"]
    # The first step ends in the second token, and so does the second step.
    found = step_spans(split(TEXT, "line").steps, token_offsets(range(3), decoder(pieces)))
    assert found.ends == (1, 2)
    assert found.steps == ((0, 1), (2,))


def test_a_character_of_several_tokens_ends_with_the_last_of_them() -> None:
    pieces = [b"a", *(bytes([b]) for b in "é".encode()), b"b"]
    assert token_offsets(range(4), decoder(pieces)) == [1, 1, 2, 3]


def test_a_text_that_really_holds_the_replacement_mark() -> None:
    pieces = ["a\ufffd".encode(), b"b"]
    assert token_offsets(range(2), decoder(pieces))[-1] == 3


def test_bytes_that_never_become_a_character_are_marks_in_the_text_and_in_its_last_step():
    pieces = [b"2\n", b"a", "é".encode()[:1], "é".encode()[:1]]
    text = b"".join(pieces).decode(errors="replace")
    assert text == "2\na\ufffd\ufffd"
    offsets = token_offsets(range(4), decoder(pieces))
    assert offsets == [2, 3, 3, 5]
    assert step_spans(split(text, "line").steps, offsets).ends == (0, 3)


@given(
    lines=st.lists(st.text("abc =é", min_size=1).filter(str.strip), min_size=1, max_size=5),
    cuts=st.lists(st.integers(0, 60)),
)
def test_each_steps_last_character_lies_in_its_last_token(lines: list[str], cuts: list[int]) -> None:
    text = "\n".join(lines)
    places = sorted({0, len(text), *(c for c in cuts if c < len(text))})
    pieces = [text[a:b].encode() for a, b in pairwise(places)]
    steps = split(text, "line").steps
    offsets = token_offsets(range(len(pieces)), decoder(pieces))
    found = step_spans(steps, offsets)
    assert [n for group in found.steps for n in group] == list(range(len(steps)))
    assert list(found.ends) == sorted(set(found.ends))
    assert found.ends[-1] == len(pieces) - 1
    for end, group in zip(found.ends[:-1], found.steps[:-1], strict=True):
        step = steps[group[-1]]
        assert step.start is not None
        last = step.start + len(step.text) - 1
        assert (offsets[end - 1] if end else 0) <= last < offsets[end]


def test_a_long_text_with_characters_of_several_tokens_is_read_once() -> None:
    text = "a ≤ b\n" * 300
    pieces = [bytes([b]) for b in text.encode()]
    asked = []

    def text_of(ids: Sequence[int]) -> str:
        asked.append(len(ids))
        return decoder(pieces)(ids)

    offsets = token_offsets(range(len(pieces)), text_of)
    place = [n for n, c in enumerate(text) for _ in c.encode()]
    # A character is there with its last token, and not before.
    assert all(
        offsets[n] == place[n] + (n + 1 == len(pieces) or place[n + 1] != place[n])
        for n in range(len(pieces))
    )
    assert sum(asked) < 4 * len(pieces)


def test_tokens_that_mean_another_text_among_others_are_read_from_the_beginning() -> None:
    # As tokenizers that drop the space before a lone word.
    def text_of(ids: Sequence[int]) -> str:
        return " ".join("word" for _ in ids)

    assert token_offsets(range(3), text_of) == [4, 9, 14]


def test_what_has_no_place_is_refused() -> None:
    with pytest.raises(InputError, match=r"step 1: .*without its place"):
        step_spans([Step(text="x")], [1])
    with pytest.raises(InputError, match=r"step 1: .*character 5, .* at 3"):
        step_spans([Step(text="hello", start=0)], [3])
    assert step_spans([], [1]).ends == ()
    assert step_spans([], []).ends == ()
