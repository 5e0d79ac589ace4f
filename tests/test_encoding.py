"""The encoder: one strictly rising read position a step, prefixes of ids, and no character lost."""

from __future__ import annotations

import itertools
import json
import string
import unicodedata
from functools import cache

import pytest
from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st

import checkpoints
from stepmark.errors import CheckpointError, InputError, MarkerInTextError, TooLongError
from stepmark.models.encoding import Encoder
from stepmark.models.families import FAMILIES
from stepmark.models.spec import ChatLayout, DialogueLayout, PieceLayout, TextLayout
from stepmark.records import Problem, Solution, Step


@cache
def tokenizer_of(name: str):
    return checkpoints.FAMILY_EXAMPLES[name].tokenizer()


def encoder_of(name: str, **settings) -> Encoder:
    spec = FAMILIES[name]
    settings.setdefault("max_tokens", None)
    return Encoder(tokenizer_of(name), spec.layout, outcome_only=spec.outcome_only, **settings)


# Letters, digits, marks of other scripts, emoji with modifiers, combining characters, every kind of white space.
ALPHABET = st.one_of(
    st.sampled_from(string.ascii_letters + string.digits + string.punctuation),
    st.sampled_from(" \n\n\n\t\r\x0b\x0c\x85\xa0\u2003\u2028\u3000"),
    st.sampled_from(
        "éßñкиже数学步骤العربية🙂👍🏽\u200d\u0301\u0300\u0315\u0338\u1100\u1161\ufb01\u212b\ue000\ue001"
    ),
    st.characters(exclude_categories=["Cs"]),
)
# Halves of markers and control tokens, and what layouts put around texts.
FRAGMENTS = st.sampled_from(
    [
        *[
            "<extra_0>",
            "<extra",
            "_0>",
            "<|im_end|>",
            "<|im_",
            "end|>",
            "</s>",
            "<s",
            "<|eot_",
            "id|>",
            "ки",
            "+",
            "-",
            "Step",
            "{problem}",
            "{step}",
            "{i}",
        ],
        *(" \n\n\n\n", "\n\n", "\n", ". ", "▁", "<0x0A>", "assistant\n", "x", "12", " 1:", "Step 2: "),
    ]
)
TEXT = st.one_of(
    st.text(ALPHABET, min_size=1, max_size=25), st.lists(FRAGMENTS, min_size=1, max_size=6).map("".join)
).filter(str.strip)
STEPS = st.lists(TEXT, min_size=1, max_size=5)


def try_encode(encoder: Encoder, problem: str, steps: list[str]):
    """Encoded, or None for a text that the layout rightly refuses: a mark or control token, a step too short."""
    try:
        return encoder.encode(Solution.of(problem, tuple(steps)))
    except MarkerInTextError:
        marks = [str(token) for token in encoder.tokenizer.added_tokens_decoder.values()]
        if not isinstance(encoder.layout, DialogueLayout) and encoder.layout.mark.strip():
            marks.append(encoder.layout.mark.strip())
        assert any(mark in text for text in as_kept(encoder, problem, steps) for mark in marks)
    except InputError as error:
        assert "too short" in error.message
        assert encoder.layout.read_back > 0
    return None


def decoded(encoder: Encoder, ids) -> str:
    """The text of some ids, with control tokens left in."""
    return encoder.tokenizer.decode(ids, clean_up_tokenization_spaces=False)


def as_kept(encoder: Encoder, problem: str, steps: list[str]) -> list[str]:
    """What layout and tokenizer keep of a problem and its steps: Qwen's composes characters, and sentencepiece takes ▁ for a space."""
    ends = {"keep": str, "strip": str.strip, "rstrip": str.rstrip}
    layout = encoder.layout
    texts = [ends[layout.problem_space](problem), *map(ends[layout.step_space], steps)]
    if isinstance(layout, DialogueLayout):  # the template of the dialogue strips each turn
        texts[0] = texts[0].lstrip()
    elif getattr(layout, "prefix", ""):
        for i, text in enumerate(texts[1:], 1):
            if text.lstrip().startswith(layout.prefix.replace("{i}", str(i)).strip()):
                texts[i] = text.lstrip()  # it brings its number, and begins with it
    for waste in layout.scrub if isinstance(layout, TextLayout) else ():
        texts = [text.replace(waste, "") for text in texts]
    if encoder.tokenizer.backend_tokenizer.normalizer is None:
        return texts
    if encoder.tokenizer.backend_tokenizer.pre_tokenizer is None:
        return [text.replace("▁", " ") for text in texts]
    return [unicodedata.normalize("NFC", text) for text in texts]


@pytest.mark.parametrize("name", FAMILIES)
@given(problem=TEXT, steps=STEPS)
@example(problem="p", steps=["a\n\n\n\nb", " c ", "\n\nd"])
@example(problem="1+1\n\n", steps=["x.\n", "\ty", "…", "12"])
@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_every_step_has_one_place_and_prefixes_stay_prefixes(name, problem, steps):
    encoder = encoder_of(name)
    whole = try_encode(encoder, problem, steps)
    assume(whole is not None)
    reads = [r for r in whole.reads if r is not None]
    assert len(whole.reads) == len(steps)
    assert len(reads) == (1 if encoder.outcome_only else len(steps))
    assert all(a < b for a, b in itertools.pairwise(reads))
    back = encoder.layout.read_back if isinstance(encoder.layout, PieceLayout) else 0
    assert len(whole.ids) == reads[-1] + 1
    assert 0 <= whole.answer <= reads[0] + back
    if not encoder.outcome_only:
        # Where the last step is read at the end of the turn, only the steps before it are the same in a longer solution.
        other = 1 if isinstance(encoder.layout, ChatLayout) and encoder.layout.ending == "turn" else 0
        for k in range(1 + other, len(steps)):
            part = encoder.encode(Solution.of(problem, tuple(steps[:k])))
            same = k - other
            assert part.reads[:same] == whole.reads[:same]
            n = part.reads[same - 1] + 1
            assert part.ids[:n].tolist() == whole.ids[:n].tolist()
            assert part.answer == whole.answer
    prefix = getattr(encoder.layout, "prefix", "").replace("{i}", "1")
    if back == 0:
        text, at = decoded(encoder, whole.ids), 0
        kept = as_kept(encoder, problem, steps)
        for piece in kept:
            assert piece in text[at:]
            at = text.index(piece, at) + len(piece)
        # The step's first token may begin with the template's line break, where the step begins with one too.
        answer = decoded(encoder, whole.ids[whole.answer :]).lstrip()
        assert answer.startswith((kept[1].lstrip(), prefix or "\0"))


MARKS = {
    name: spec.layout.mark for name, spec in FAMILIES.items() if not isinstance(spec.layout, DialogueLayout)
}


CHAT = (
    "<|im_start|>system\n{system}<|im_end|>\n<|im_start|>user\n{problem}<|im_end|>\n"
    "<|im_start|>assistant\n{answer}"
)


@pytest.mark.parametrize(
    ("name", "problem", "answer"),
    [
        ("qwen-prm", " How many?\n", "One. <extra_0>\nTwo.<extra_0>"),
        ("actprm", " How many?\n", "One.<extra_0>Two.<extra_0>"),
        ("implicit", " How many?\n", "Step 1: One. \n\nStep 2: \nTwo.<|im_end|>"),
    ],
)
def test_the_whole_text_of_a_chat(name, problem, answer):
    encoder = encoder_of(name)
    encoded = encoder.encode(Solution.of(" How many?\n", ("One. ", "\nTwo.")))
    system = FAMILIES[name].layout.system or "You are a tiny model."
    assert decoded(encoder, encoded.ids) == CHAT.format(system=system, problem=problem, answer=answer)
    assert decoded(encoder, encoded.ids[encoded.answer :]) == answer


def test_a_template_that_strips_contents_strips_what_is_kept():
    """As Llama 3's does: the text is the one that apply_chat_template writes."""
    tokenizer = checkpoints.headers_tokenizer()
    layout = ChatLayout(between="\n\n", closing=True, step_space="keep", problem_space="keep")
    problem, steps = "\n How many? ", (" One. ", " Two. \n")
    found = Encoder(tokenizer, layout, max_tokens=None, outcome_only=True).encode(Solution.of(problem, steps))
    messages = [{"role": "user", "content": problem}, {"role": "assistant", "content": "\n\n".join(steps)}]
    text = tokenizer.apply_chat_template(messages, tokenize=False)
    assert "One. \n\n Two.<|eot_id|>" in text
    assert found.ids.tolist() == tokenizer(text, add_special_tokens=False)["input_ids"]


@pytest.mark.parametrize("kind", ["LlamaTokenizer", "PreTrainedTokenizerFast"])
def test_a_space_at_the_start_is_read_as_the_authors_tokenizer_read_it(tmp_path, kind):
    """transformers 5's tokenizer of Llama and Mistral has the same ids with and without it; transformers 4's put ▁ before every text."""
    from transformers import AutoTokenizer

    checkpoints.save_tokenizer(tmp_path, checkpoints.sentencepiece_tokenizer(), kind)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    encoder = Encoder(tokenizer, FAMILIES["reasoneval-34b"].layout, max_tokens=None)
    encoded = encoder.encode(Solution.of("p", ("pens", " pens", "  pens")))
    pieces = tokenizer.convert_ids_to_tokens(encoded.ids[encoded.answer :].tolist())
    # A ▁ before each text, and one for each of its own spaces; by the trained merges, of two one stands alone.
    assert pieces == ["▁pens", "▁", "▁pens", "▁", "▁", "▁pens"]
    reads = [read - encoded.answer for read in encoded.reads]
    assert reads == [0, 2, 5]
    problem = Encoder(tokenizer, FAMILIES["math-shepherd"].layout, max_tokens=None)
    ids = problem.encode(Solution.of(" pens", ("a",))).ids.tolist()
    assert tokenizer.convert_ids_to_tokens(ids)[:3] == ["<s>", "▁", "▁pens"]


def test_the_whole_text_of_a_dialogue():
    encoder = encoder_of("rlhflow")
    encoded = encoder.encode(Solution.of("How many?", ("One.", "Two.")))
    header = "<|start_header_id|>{}<|end_header_id|>\n\n"
    assert decoded(encoder, encoded.ids) == (
        "<|begin_of_text|>" + header.format("system") + "Today is a day.<|eot_id|>"
        + header.format("user") + "How many? One.<|eot_id|>" + header.format("assistant") + "+<|eot_id|>"
        + header.format("user") + "Two.<|eot_id|>" + header.format("assistant")
    )  # fmt: skip
    # What comes after the last read, the verdict itself, is not computed.
    assert encoded.reads[1] == len(encoded.ids) - 1


def test_the_whole_text_of_math_shepherd():
    encoder = encoder_of("math-shepherd")
    encoded = encoder.encode(Solution.of("How many?", ("One.", "Step 2: Two.", "Step 2: Three.")))
    # A step that brings its number keeps it; one that brings another number is numbered all the same.
    assert decoded(encoder, encoded.ids) == (
        "<s> How many? Step 1: One. ки\nStep 2: Two. ки\nStep 3: Step 2: Three. ки"
    )


def test_an_implicit_prm_reads_the_number_that_a_step_brings_once():
    encoder = encoder_of("implicit")
    plain, numbered = (
        encoder.encode(Solution.of("How many?", steps))
        for steps in (("One.", "Two."), ("Step 1: One.", "Step 2: Two."))
    )
    assert plain.ids.tolist() == numbered.ids.tolist() and plain.reads == numbered.reads


def test_bos_stands_once_where_tokenizer_or_template_adds_it():
    for name in ("math-shepherd", "versaprm", "rlhflow", "reasoneval", "skywork", "token-classification"):
        encoder = encoder_of(name)
        ids = encoder.encode(Solution.of("How many?", ("One two.", "Two three."))).ids.tolist()
        assert ids[0] == encoder.tokenizer.bos_token_id
        assert ids.count(ids[0]) == 1
    for name in ("pure", "three-class"):
        encoder = encoder_of(name)
        ids = encoder.encode(Solution.of("How many?", ("One.",))).ids.tolist()
        bos = encoder.tokenizer.bos_token_id
        # PURE's has none to add; the three-class text lets the tokenizer add what it adds.
        assert (bos is None) if name == "pure" else ids[0] == bos


def test_versaprm_deletes_its_mark_from_texts():
    """As its authors do; what is left is read without a trace of it."""
    encoder = encoder_of("versaprm")
    dirty = encoder.encode(Solution.of("How \n\n\n\nmany?", ("One \n\n\n\ntwo.", "Three.")))
    clean = encoder.encode(Solution.of("Howmany?", ("Onetwo.", "Three.")))
    assert dirty.ids.tolist() == clean.ids.tolist()
    assert dirty.reads == clean.reads
    tag = encoder.tokenizer.encode(" \n\n\n\n", add_special_tokens=False)
    assert dirty.ids.tolist().count(tag[0]) == 2


def test_an_observation_is_context_of_the_next_step_only():
    encoder = encoder_of("qwen-prm")
    steps = (Step(text="call the tool", observation=" 42 \n"), Step(text="so it is 42"))
    seen = encoder.encode(Solution(problem=Problem(text="p"), steps=steps))
    assert decoded(encoder, seen.ids[seen.answer :]) == "call the tool<extra_0>42\n\nso it is 42<extra_0>"
    other = (Step(text="call the tool", observation="43"), Step(text="so it is 42"))
    unlike = encoder.encode(Solution(problem=Problem(text="p"), steps=other))
    n = seen.reads[0] + 1
    assert unlike.reads[0] == seen.reads[0]
    assert unlike.ids[:n].tolist() == seen.ids[:n].tolist()
    assert unlike.ids.tolist() != seen.ids.tolist()


@pytest.mark.parametrize(
    ("problem", "steps", "field", "message"),
    [
        (" \n", ("a",), "problem", "the problem is empty"),
        ("p", (), "steps", "no steps"),
        ("p", ("a", " \n\t", "b"), "steps[1]", "step 2 of 3 is empty"),
        ("p \ud83d", ("a",), "problem", "surrogate"),
        ("p", ("a", "b \udc00"), "steps[1]", "surrogate"),
    ],
)
@pytest.mark.parametrize("name", ["qwen-prm", "skywork", "math-shepherd", "rlhflow", "reasoneval"])
def test_what_cannot_be_graded_is_named(name, problem, steps, field, message):
    with pytest.raises(InputError, match=message) as caught:
        encoder_of(name).encode(Solution.of(problem, steps, id="s7"))
    assert caught.value.where == "solution 's7'"
    assert caught.value.field == field


LONG = Solution.of("How many?", ("One.", "Two and three.", "Four."), id="s1")


@pytest.mark.parametrize("name", [n for n in FAMILIES if n not in ("orm", "reasoneval")])
def test_a_limit_cuts_between_steps_and_leaves_the_rest_as_it_was(name):
    whole = encoder_of(name).encode(LONG)
    for fits, limit in [(3, len(whole.ids)), *((k, whole.reads[k]) for k in range(3))]:
        if fits == 3:
            # A limit that is just enough is no limit.
            assert encoder_of(name, max_tokens=limit).encode(LONG).reads == whole.reads
            continue
        with pytest.raises(TooLongError) as caught:
            encoder_of(name, max_tokens=limit).encode(LONG)
        assert caught.value.where == "solution 's1'"
        for part in (f"{len(whole.ids)} tokens", f"reads {limit} ", f"({fits} of 3 steps fit)", "`truncate`"):
            assert part in str(caught.value)
        cut = encoder_of(name, max_tokens=limit, truncate=True).encode(LONG)
        assert cut.reads == (*whole.reads[:fits], *(None,) * (3 - fits))
        assert len(cut.ids) <= limit
        assert cut.ids.tolist() == whole.ids[: len(cut.ids)].tolist()


# ---- tokenizers and templates that cannot serve --------------------------------------------------------------


def check(layout, tokenizer):
    Encoder(tokenizer, layout, max_tokens=None).check()


@pytest.mark.parametrize("name", ["qwen-prm", "actprm", "math-shepherd"])
def test_a_marker_that_the_tokenizer_lacks_is_refused(name):
    """Cut into pieces it would be read at the last of them: a plausible number."""
    with pytest.raises(CheckpointError, match="not one token") as caught:
        check(FAMILIES[name].layout, checkpoints.chatml_tokenizer(marker="<other>"))
    assert repr(FAMILIES[name].layout.mark.strip()) in str(caught.value)


@pytest.mark.parametrize("kind", [TextLayout, PieceLayout])
def test_a_prefix_stands_before_each_step(kind):
    encoder = Encoder(checkpoints.headers_tokenizer(), kind(prefix="Step {i}: ", mark="\n"), max_tokens=None)
    encoded = encoder.encode(Solution.of("p", ("One.", "Step 2: Two.")))
    assert decoded(encoder, encoded.ids[encoded.answer :]) == "Step 1: One.\nStep 2: Two.\n"


def dropping(turn: str) -> str:
    return checkpoints.CHATML.replace(
        "{{ m.content }}", "{% if m.role != '" + turn + "' %}{{ m.content }}{% endif %}"
    )


@pytest.mark.parametrize(
    ("layout", "template", "message"),
    [
        (ChatLayout(mark="<extra_0>"), None, "its tokenizer has none; fetch"),
        (ChatLayout(mark="<extra_0>"), "{% for %}", "fails .TemplateSyntaxError"),
        (ChatLayout(mark="<extra_0>"), "{{ raise_exception('no system here') }}", "no system here"),
        (ChatLayout(mark="<extra_0>"), dropping("assistant"), "every turn once"),
        (ChatLayout(mark="<extra_0>"), checkpoints.CHATML * 2, "every turn once"),
        (
            ChatLayout(mark="<extra_0>", system="Judge."),
            checkpoints.CHATML.replace("{{ messages[0].content }}", ""),
            "system message",
        ),
        (DialogueLayout(), dropping("user"), "every turn once"),
        (
            DialogueLayout(),
            checkpoints.CHATML.replace("{{ m.role }}", "{{ m.role }}{{ loop.index }}"),
            "frames later verdicts otherwise",
        ),
    ],
)
def test_a_template_that_cannot_serve_is_refused(layout, template, message):
    with pytest.raises(CheckpointError, match=message):
        check(layout, checkpoints.chatml_tokenizer(template=template))


def test_settings_in_a_tokenizer_file_neither_cut_nor_pad(tmp_path):
    """A tokenizer.json can carry the truncation and padding of the run that saved it."""
    from transformers import AutoTokenizer

    checkpoints.save_tokenizer(tmp_path, checkpoints.chatml_tokenizer(), "PreTrainedTokenizerFast")
    file = tmp_path / "tokenizer.json"
    settings = json.loads(file.read_text(encoding="utf-8"))
    settings["truncation"] = {"direction": "Right", "max_length": 9, "strategy": "LongestFirst", "stride": 0}
    settings["padding"] = {
        "strategy": {"Fixed": 300},
        "direction": "Left",
        "pad_to_multiple_of": None,
        "pad_id": 0,
        "pad_type_id": 0,
        "pad_token": "<|endoftext|>",
    }
    file.write_text(json.dumps(settings), encoding="utf-8")
    encoder = Encoder(AutoTokenizer.from_pretrained(tmp_path), FAMILIES["qwen-prm"].layout, max_tokens=None)
    expected = encoder_of("qwen-prm").encode(LONG)
    found = encoder.encode(LONG)
    assert found.ids.tolist() == expected.ids.tolist()
    assert found.reads == expected.reads
