"""Steps found again among the policy's tokens, whatever its tokenizer."""

import json
import random
from collections.abc import Sequence
from functools import partial

import pytest

tokenizers = pytest.importorskip("tokenizers")
pytest.importorskip("transformers")
from transformers import PreTrainedTokenizerFast  # noqa: E402

from stepmark.data.steps.splitting import split  # noqa: E402
from stepmark.errors import InputError  # noqa: E402
from stepmark.models.encoding import PromptEncoder  # noqa: E402
from stepmark.models.policies.local import Drawn  # noqa: E402
from stepmark.models.scripted import ScriptedPRM  # noqa: E402
from stepmark.records import Problem, Step  # noqa: E402
from stepmark.rl.rewarding import RewardedCompletion, StepSpans, scored, step_spans, token_offsets  # noqa: E402

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


def test_bytes_that_never_become_a_character_are_marks_in_the_text_and_in_its_last_step():
    pieces = [b"2\n", b"a", "é".encode()[:1], "é".encode()[:1]]
    text = b"".join(pieces).decode(errors="replace")
    assert text == "2\na\ufffd\ufffd"
    offsets = token_offsets(range(4), decoder(pieces))
    assert offsets == [2, 3, 3, 5]
    assert step_spans(split(text, "line").steps, offsets).ends == (0, 3)


BEGIN, END, UNKNOWN = "<s>", "</s>", "<unk>"
SAID = [
    "1\n2\n1\n2\n2\n1\n1\n",
    "2 + 3 = 5\nx ≤ 20\n\nso it is 数学\n",
    "let us see:\n2 + 3 = 5\n\n🎉 no\n",
    "é\nx ≤ 7, and so\n",
] * 20
PIECES = [
    "1",
    "2",
    "1\n2\n",
    "2 + 3 = 5",
    "\n",
    "\n\n",
    " ",
    "é",
    "数学",
    "🎉",
    "x ≤ 20",
    "so",
    "  ",
    "\t",
    "\r\n",
    "e\u0301",
    "ﬁ",
]


def byte_level(*, across_lines: bool):  # type: ignore[no-untyped-def]
    """As Qwen2's and GPT-2's; `across_lines` merges what stands on both sides of a line's end."""
    made = tokenizers.Tokenizer(tokenizers.models.BPE())
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(
        add_prefix_space=False, use_regex=not across_lines
    )
    made.decoder = tokenizers.decoders.ByteLevel()
    made.train_from_iterator(
        SAID,
        tokenizers.trainers.BpeTrainer(
            vocab_size=380,
            special_tokens=[BEGIN, END, "<tool>"],
            initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        ),
    )
    return made


def byte_fallback():  # type: ignore[no-untyped-def]
    """As Llama 2's: a mark for spaces, and a character that it lacks is its bytes."""
    learnt = tokenizers.Tokenizer(tokenizers.models.BPE())
    learnt.train_from_iterator(
        ["2▁+▁3▁=▁5,▁so▁it▁is▁x▁let▁us▁see▁no▁and"] * 20,
        tokenizers.trainers.BpeTrainer(
            vocab_size=60, special_tokens=[UNKNOWN, BEGIN, END], show_progress=False
        ),
    )
    model = json.loads(learnt.to_str())["model"]
    words = model["vocab"]
    words |= {f"<0x{byte:02X}>": len(words) + byte for byte in range(256)}
    merges = [tuple(pair) for pair in model["merges"]]
    made = tokenizers.Tokenizer(
        tokenizers.models.BPE(vocab=words, merges=merges, unk_token=UNKNOWN, byte_fallback=True)
    )
    made.normalizer = tokenizers.normalizers.Sequence(
        [tokenizers.normalizers.Prepend("▁"), tokenizers.normalizers.Replace(" ", "▁")]
    )
    made.decoder = tokenizers.decoders.Sequence(
        [
            tokenizers.decoders.Replace("▁", " "),
            tokenizers.decoders.ByteFallback(),
            tokenizers.decoders.Fuse(),
            tokenizers.decoders.Strip(" ", 1, 0),
        ]
    )
    return made


@pytest.mark.parametrize("kind", ["byte level", "across lines", "byte fallback"])
def test_steps_are_found_among_the_tokens_of_real_tokenizers(kind: str) -> None:
    """A step ends with the first token after which all of it has been written, whatever comes behind."""
    made = byte_fallback() if kind == "byte fallback" else byte_level(across_lines=kind == "across lines")
    encoder = PromptEncoder(
        PreTrainedTokenizerFast(tokenizer_object=made, bos_token=BEGIN, eos_token=END), kind
    )
    prompt = made.encode("let us see:\n", add_special_tokens=False).ids
    text_of = partial(encoder.text, prompt)
    dice, shared, marks, whole = random.Random(7), 0, 0, 0
    for turn in range(300):
        text = "".join(dice.choice(PIECES) for _ in range(dice.randint(4, 16)))
        ids = made.encode(text, add_special_tokens=False).ids
        if turn % 3 == 0:  # a policy writes any tokens: control tokens, bytes that never become a character
            ids.insert(dice.randint(0, len(ids)), dice.randrange(made.get_vocab_size()))
        if turn % 2:
            ids.append(made.token_to_id(END))
        text, offsets = text_of(ids), token_offsets(ids, text_of)
        assert len(offsets) == len(ids)
        assert offsets == sorted(offsets)
        assert offsets[-1] == len(text)
        steps = split(text, "line").steps if text.strip() else ()
        # Independently: from the beginning for each token, without the marks of unfinished characters.
        written = [text_of(ids[: n + 1]).rstrip("\ufffd") for n in range(len(ids) - 1)] + [text]
        ends: list[int] = []
        for step in steps:
            assert step.start is not None
            reach = step.start + len(step.text)
            ends.append(next(n for n, so_far in enumerate(written) if len(so_far) >= reach))
        distinct = sorted(set(ends))
        found = step_spans(steps, offsets)
        assert found.ends == (*distinct[:-1], len(ids) - 1) if ends else not found.ends
        assert [n for group in found.steps for n in group] == list(range(len(steps)))
        shared += len(distinct) < len(ends)
        marks += "\ufffd" in text
        whole += len(steps) > 2
    assert whole > 50
    assert marks > 3
    assert (shared > 0) == (kind == "across lines")


def test_what_has_no_place_is_refused() -> None:
    with pytest.raises(InputError, match=r"step 1: .*without its place"):
        step_spans([Step(text="x")], [1])
    with pytest.raises(InputError, match=r"step 1: .*character 5, .* at 3"):
        step_spans([Step(text="hello", start=0)], [3])
    assert step_spans([], [1]).ends == ()
    assert step_spans([], []).ends == ()


# --- what an exact check proves wrong ---------------------------------------------------------------------------------


class Checked(ScriptedPRM):
    """A PRM with exact checks beside it."""

    default_checks = "all"


@pytest.mark.parametrize(
    ("refuted", "outcome", "scores"),
    [("wrong", 0.0, (0.9, 0.0)), ("step", 1.0, (0.9, 0.0)), ("ignore", 1.0, (0.9, 0.8))],
)
def test_a_refuted_step_in_the_reward_is_a_setting(refuted, outcome, scores) -> None:
    texts = {"2 + 2 = 4": 0.9, "4 * 3 = 13": 0.8, "4 * 3 = 12": 0.8}
    rated = []
    for second in ("4 * 3 = 13", "4 * 3 = 12"):
        text = f"2 + 2 = 4\n{second}"
        rated.append(
            RewardedCompletion(
                problem=Problem(text="What is (2 + 2) * 3?"),
                group=0,
                drawn=Drawn(prompt=(), ids=(0, 1), text=text, finish="stop"),
                steps=tuple(split(text, "line").steps),
                spans=StepSpans(ends=(0, 1), steps=((0,), (1,))),
                verdict=None,
                outcome=1.0,
            )
        )
    false, true = scored(rated, Checked(texts), refuted=refuted)
    assert (false.outcome, false.scores) == (outcome, scores)
    assert (true.outcome, true.scores, true.refuted) == (1.0, (0.9, 0.8), ())
    # A PRM without checks changes nothing.
    plain, _ = scored(rated, ScriptedPRM(texts), refuted=refuted)
    assert (plain.outcome, plain.scores) == (1.0, (0.9, 0.8))
