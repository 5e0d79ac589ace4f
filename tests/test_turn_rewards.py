"""`stepmark.rl.turn_rewards`: numbers worked out by hand, and tokens by a chat template or a mask."""

from __future__ import annotations

import math
import re
from typing import Any

import pytest

import stepmark
from stepmark.errors import InputError, TooLongError, UsageError
from stepmark.rl import turn_rewards

ASK = "Pens cost 4 each; I buy 3 and a 5 euro book."


def chat(*turns: str, ask: str = ASK) -> list[dict[str, Any]]:
    messages = [{"role": "user", "content": ask}]
    for turn in turns:
        messages += [{"role": "assistant", "content": turn}, {"role": "user", "content": "Go on."}]
    return messages[:-1]


def scores(table: dict[str, float]) -> stepmark.ScriptedPRM:
    return stepmark.ScriptedPRM(lambda problem, steps: table[steps[-1]], name="table")


PRM = scores({"a": 0.9, "b": 0.2, "c": 0.5})


def test_without_credit_a_turn_earns_its_score_and_the_last_the_outcome_too():
    one, other = turn_rewards([chat("a", "b"), chat("c")], prm=PRM, outcome=[1.0, 0.0])
    assert one.scores == (0.9, 0.2)
    assert one.turns == (0.9, 1.2)
    assert other.turns == (0.5,)
    assert one.mask is None


def test_an_outcome_alone_is_earned_at_the_end():
    (one,) = turn_rewards([chat("a", "b", "c")], outcome=[1.0])
    assert one.turns == (0.0, 0.0, 1.0)
    assert one.scores == (None, None, None)


def test_grpo_gives_every_turn_its_outcomes_advantage():
    # Outcomes 1, 0, 0: the mean is 1/3, the sample's variance (4/9 + 1/9 + 1/9) / 2 = 1/3.
    results = turn_rewards([chat("a", "b"), chat("a"), chat("c")], outcome=[1.0, 0.0, 0.0], credit="grpo")
    deviation = math.sqrt(1 / 3)
    assert results[0].turns == pytest.approx([2 / 3 / deviation] * 2)
    assert results[1].turns == pytest.approx([-1 / 3 / deviation])


def test_discounted_returns_are_compared_among_all_turns_of_the_group():
    # Rewards 0.9, 0.2 with the outcome 1: returns 0.9 + 0.5 * 1.2 = 1.5 and 1.2; 0.5 with the outcome 0: 0.5. Their mean is 3.2 / 3.
    credit = stepmark.rl.Discounted(gamma=0.5, scale=False)
    one, other = turn_rewards([chat("a", "b"), chat("c")], prm=PRM, outcome=[1.0, 0.0], credit=credit)
    mean = 3.2 / 3
    assert one.turns == pytest.approx([1.5 - mean, 1.2 - mean], abs=1e-6)
    assert other.turns == pytest.approx([0.5 - mean], abs=1e-6)


def test_mt_grpo_adds_a_turns_own_advantage_before_the_last():
    # Outcomes 1, 0: less the mean 0.5. First turns 0.9, 0.5: less their mean 0.7. The last turn has the outcome's alone.
    credit = stepmark.rl.MTGRPO(scale=False)
    one, other = turn_rewards([chat("a", "b"), chat("c", "b")], prm=PRM, outcome=[1.0, 0.0], credit=credit)
    assert one.turns == pytest.approx([0.5 + 0.2, 0.5])
    assert other.turns == pytest.approx([-0.5 - 0.2, -0.5])


def test_groups_are_problems_unless_they_are_given():
    conversations = [chat("a"), chat("b"), chat("a", ask="Another?"), chat("b", ask="Another?")]
    credit = stepmark.rl.GRPO(scale=False)
    by_problem = turn_rewards(conversations, outcome=[1.0, 0.0, 1.0, 1.0], credit=credit)
    assert [one.turns[0] for one in by_problem] == pytest.approx([0.5, -0.5, 0.0, 0.0])
    given = turn_rewards(conversations, outcome=[1.0, 0.0, 1.0, 1.0], credit=credit, groups=["x"] * 4)
    assert [one.turns[0] for one in given] == pytest.approx([0.25, -0.75, 0.25, 0.25])


def test_a_conversation_without_an_outcome_has_no_part_in_its_group():
    credit = stepmark.rl.GRPO(scale=False)
    results = turn_rewards([chat("a"), chat("b"), chat("c")], outcome=[1.0, None, 0.0], credit=credit)
    assert [one.turns[0] for one in results] == [0.5, None, -0.5]
    alone = turn_rewards([chat("a"), chat("b")], outcome=[1.0, None], credit=credit)
    assert [one.turns for one in alone] == [(None,), (None,)]


def test_a_conversation_that_the_prm_cannot_read_has_no_numbers_of_it():
    def script(problem: str, steps: tuple[str, ...]) -> float:
        if "long" in steps:
            raise TooLongError("too long")
        return 0.5

    prm = stepmark.ScriptedPRM(script)
    read, unread = turn_rewards(
        [chat("a", "b"), chat("long", "b")], prm=prm, outcome=[1.0, 0.0], credit="mt-grpo"
    )
    assert None not in read.turns
    assert (unread.turns, unread.scores, unread.refused) == ((None, None), (None, None), "too long")
    outcome_only = turn_rewards(
        [chat("a"), chat("long")], prm=prm, outcome=[1.0, 0.0], credit=stepmark.rl.GRPO(scale=False)
    )
    assert [one.turns for one in outcome_only] == [(0.5,), (-0.5,)]
    (plain,) = turn_rewards([chat("long", "b")], prm=prm, outcome=[1.0])
    assert plain.turns == (None, None)


def test_numbers_stand_one_to_one_with_assistant_messages():
    greeting = [{"role": "assistant", "content": "Hello!"}, *chat("a", "b")]
    thought = [
        *chat("a"),
        {"role": "user", "content": "Go on."},
        {"role": "assistant", "content": "<think>hm</think>"},
    ]
    one, other = turn_rewards([greeting, thought], prm=PRM, reasoning="drop")
    assert one.turns == (None, 0.9, 0.2)
    assert other.turns == (0.9, None)


# --- tokens -------------------------------------------------------------------------------------------------------


class WordTokenizer:
    """A tokenizer of words with a ChatML-like template; with `forgets`, of every turn but the last its thought is left out."""

    def __init__(self, *, forgets: bool = False) -> None:
        self.forgets = forgets

    def apply_chat_template(
        self, messages: list[dict[str, Any]], *, tokenize: bool, add_generation_prompt: bool
    ) -> str:
        assert not tokenize
        text = ""
        for at, message in enumerate(messages):
            content = message["content"]
            if self.forgets and at < len(messages) - 1:
                content = re.sub("<think>.*</think>", "", content)
            text += f"<{message['role']}> {content} <end>\n"
        return text + "<assistant> " * add_generation_prompt

    def __call__(
        self, text: str, *, add_special_tokens: bool, return_offsets_mapping: bool
    ) -> dict[str, Any]:
        assert not add_special_tokens and return_offsets_mapping
        return {"offset_mapping": [match.span() for match in re.finditer(r"\S+", text)]}


CONVERSATION = chat("a", "b")
#          <user> ask... <end>           <assistant> a <end>  <user> Go on. <end>  <assistant> b <end>
BEFORE = 2 + len(ASK.split())
MASK = [0] * BEFORE + [0, 1, 1] + [0] * 4 + [0, 1, 1]


def test_a_chat_template_tells_which_tokens_a_policy_writes():
    (one,) = turn_rewards([CONVERSATION], prm=PRM, tokenizer=WordTokenizer())
    assert one.mask == tuple(MASK)
    assert one.tokens == tuple([0.0] * BEFORE + [0, 0, 0.9] + [0.0] * 4 + [0, 0, 0.2])


def test_an_advantage_stands_at_all_tokens_of_its_turn():
    credit = stepmark.rl.GRPO(scale=False)
    one, other = turn_rewards(
        [CONVERSATION, chat("c")], outcome=[1.0, 0.0], credit=credit, masks=[MASK, [0, 1, 1, 0]]
    )
    assert one.tokens == tuple(0.5 * here for here in MASK)
    assert other.tokens == (0.0, -0.5, -0.5, 0.0)


def test_a_template_that_leaves_earlier_thoughts_out_is_refused():
    messages = chat("<think>hm</think> a", "b")
    prm = stepmark.ScriptedPRM(lambda problem, steps: 0.5)
    with pytest.raises(UsageError, match="masks"):
        turn_rewards([messages], prm=prm, tokenizer=WordTokenizer(forgets=True))
    assert turn_rewards([messages], prm=prm, tokenizer=WordTokenizer())[0].mask


def test_a_mask_with_another_number_of_turns_is_refused():
    with pytest.raises(InputError, match="masks"):
        turn_rewards([CONVERSATION], prm=PRM, masks=[[1, 1, 1]])


def test_a_real_tokenizer_agrees_with_its_own_mask(zoo):
    """A template with generation marks says itself which tokens an assistant writes."""
    transformers = pytest.importorskip("transformers")
    tokenizers = pytest.importorskip("tokenizers")
    words = sorted({*"abc", *ASK, *" <>|userasitn.Gowmkd\n"})
    model = tokenizers.Tokenizer(tokenizers.models.WordLevel({word: n for n, word in enumerate(words)}))
    model.pre_tokenizer = tokenizers.pre_tokenizers.Split("", "isolated")
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=model)
    tokenizer.chat_template = (
        "{% for m in messages %}<|{{ m['role'] }}|>{% if m['role'] == 'assistant' %}{% generation %}{{ m['content'] }}<|>{% endgeneration %}"
        "{% else %}{{ m['content'] }}<|>{% endif %}{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
    )
    given = tokenizer.apply_chat_template(CONVERSATION, return_dict=True, return_assistant_tokens_mask=True)
    (one,) = turn_rewards([CONVERSATION], prm=PRM, tokenizer=tokenizer)
    assert list(one.mask or ()) == list(given["assistant_masks"])


# --- mistakes -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "error"),
    [
        ({}, UsageError),
        ({"outcome": [1.0, 0.0]}, UsageError),
        ({"prm": PRM, "groups": []}, UsageError),
        ({"prm": PRM, "tokenizer": WordTokenizer(), "masks": [MASK]}, UsageError),
        ({"outcome": [1.0], "credit": "mt-grpo"}, UsageError),
        ({"prm": PRM, "credit": "ppo"}, UsageError),
        ({"prm": PRM, "credit": "nothing"}, UsageError),
        ({"outcome": [math.nan], "credit": "grpo", "groups": ["x"]}, InputError),
    ],
)
def test_what_cannot_work_is_refused(settings: dict[str, Any], error: type[Exception]):
    with pytest.raises(error):
        turn_rewards([CONVERSATION], **settings)


def test_a_conversation_without_a_turn_is_refused_with_its_place():
    with pytest.raises(InputError, match="conversation 1"):
        turn_rewards([CONVERSATION, CONVERSATION[:1]], prm=PRM)
