"""Watching an agent: the rule by hand, and the session against grading the whole conversation."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations

import pytest
import torch

from checkpoints import STEPWISE, load_family
from stepmark.data.conversations import read_messages
from stepmark.errors import InputError, UsageError
from stepmark.models.scripted import ScriptedPRM
from stepmark.models.watch import Feedback, Seen

torch.set_num_threads(1)


def prm() -> ScriptedPRM:
    """The number at the end of a turn is its score."""
    return ScriptedPRM(lambda problem, steps: float(steps[-1].split()[-1]), name="told")


def advice(scores, **settings):
    watch = prm().watch("Book it.", **settings)
    found = []
    for score in scores:
        seen = watch.add(f"turn {score}")
        found.append((seen.advice, seen.to))
        if seen.to is not None:
            watch.back(seen.to)
    return found


GO = ("go on", None)


@pytest.mark.parametrize(
    ("scores", "settings", "expected"),
    [
        ([0.9, 0.2, 0.8], {}, [GO, ("go back", 1), GO]),
        ([0.9, 0.2, 0.21, 0.22], {"retries": 2}, [GO, ("go back", 1), ("go back", 1), ("stop", None)]),
        # The agent insists: the same turn again is taken.
        ([0.9, 0.2, 0.2, 0.2], {}, [GO, ("go back", 1), GO, ("go back", 2)]),
        ([0.2], {"retries": 0}, [("stop", None)]),
        ([0.9, 0.2, 0.6, 0.2, 0.1], {"patience": 2}, [GO, GO, GO, GO, ("go back", 3)]),
        ([0.9, 0.7], {"threshold": 0.8}, [GO, ("go back", 1)]),
        ([0.9, 0.6, 0.6], {"aggregate": "product", "floor": 0.4}, [GO, GO, ("stop", None)]),
    ],
)
def test_the_rule(scores, settings, expected):
    assert advice(scores, **settings) == expected


def test_messages_as_they_come():
    watch = prm().watch("Book it.", aggregate="min")
    turn = {"role": "assistant", "name": "P", "content": "Look. 0.9", "reasoning_content": "Hm."}
    first = watch.add(turn)
    assert first == Seen(turn=0, score=0.9, running=0.9, advice="go on")
    assert watch.add({"role": "tool", "name": "search", "content": "140"}) is None
    assert watch.add({"role": "user", "content": "Yes."}) is None
    assert watch.add("It is 0.4").running == 0.4
    assert watch.solution.steps[0].observation == "\n\nTool (search):\n140\n\nUser:\nYes."
    assert (watch.solution.steps[0].speaker, watch.solution.texts[0]) == ("P", "Hm.\nLook. 0.9")
    assert watch.scores == (0.9, 0.4)


def test_a_proof_sends_back_a_turn_that_scores_high_and_says_what_is_right():
    watch = prm().watch("Book it.", checks="all", retries=1)
    assert watch.add("Two rooms: 2 * 70 = 140, so 0.9").feedback == ()
    seen = watch.add("Three nights: 140 * 3 = 430, so 0.9")
    assert (seen.advice, seen.to, seen.score) == ("go back", 1, 0.9)
    (wrong,) = seen.feedback
    assert (wrong.criterion, wrong.source) == ("equation", "check")
    assert "140 * 3 = 430" in wrong.sentence and "420" in wrong.sentence
    assert seen.message == wrong.sentence
    watch.back(1)
    assert watch.add("Three nights: 140 * 3 = 420, so 0.9").advice == "go on"
    assert prm().watch("Book it.").add("1 + 1 = 3, so 0.9").advice == "go on"  # this PRM has no checks


def test_a_judge_sends_back_with_the_reasons_of_all_turns_to_do_again():
    def judge(solution):
        last = solution.steps[-1].text
        return [Feedback(criterion=word, sentence=f"{word}!", source="judge") for word in last.split()[:-1]]

    watch = prm().watch("Book it.", judge=judge, patience=2)
    assert watch.add("0.9").advice == "go on"
    assert watch.add("polite 0.9").advice == "go on"
    seen = watch.add("polite safe 0.9")
    assert (seen.advice, seen.to, seen.message) == ("go back", 1, "polite! safe!")
    assert [item.criterion for item in seen.feedback] == ["polite", "safe"]


def test_a_turn_whose_judge_fails_is_not_taken():
    def judge(solution):
        if len(solution.steps) == 2 and solution.texts[-1].startswith("bad"):
            raise InputError("no")
        return ()

    watch = prm().watch("Book it.", judge=judge)
    watch.add("turn 0.9")
    with pytest.raises(InputError):
        watch.add("bad 0.9")
    assert watch.add("turn 0.8").turn == 1
    assert watch.scores == (0.9, 0.8)


SPOKEN = {"role": "assistant", "content": "Done. 0.8"}
THOUGHT = {"role": "assistant", "content": "<think>Hm. 0.7</think>", "name": "P"}
BOTH = {"role": "assistant", "content": "Look. 0.5", "reasoning_content": "First. 0.6"}


@pytest.mark.parametrize("reasoning", ["keep", "only", "drop"])
@pytest.mark.parametrize("turns", [*permutations([SPOKEN, THOUGHT, BOTH])])
def test_a_watched_conversation_is_the_one_that_is_graded(reasoning, turns):
    """Turns of which `reasoning` leaves nothing to grade are context, there as here."""
    messages = [m for turn in turns for m in (turn, {"role": "tool", "name": "f", "content": "ok"})]
    watch = prm().watch("Book it.", reasoning=reasoning)
    seen = [watch.add(message) for message in messages]
    _, whole = read_messages(
        [{"role": "user", "content": "Book it."}, *messages], how="agent", reasoning=reasoning
    )
    assert [(s.text, s.observation, s.speaker, s.lead) for s in watch.solution.steps] == [
        (s.text, s.observation, s.speaker, s.lead) for s in whole.steps
    ]
    assert watch.scores == tuple(one.score for one in seen if one is not None)


def test_what_cannot_be_watched():
    with pytest.raises(InputError, match="belongs to the problem"):
        prm().watch("Book it.").add({"role": "tool", "content": "x"})
    with pytest.raises(InputError, match="found none"):
        prm().watch("Book it.").add({"role": "assistant", "content": " "})
    with pytest.raises(UsageError, match="no probability"):
        prm().watch("Book it.", threshold=3)
    with pytest.raises(UsageError, match="`patience`"):
        prm().watch("Book it.", patience=0)
    with pytest.raises(UsageError, match="from 0 to 0"):
        watch = prm().watch("Book it.")
        watch.add("turn 0.9")
        watch.back(1)


@pytest.mark.parametrize("family", STEPWISE)
def test_a_session_reads_each_token_once_and_scores_as_grading_does(family, zoo):
    loaded = load_family(zoo, family)
    threshold = None if loaded.default_threshold is not None else 0.5
    watch = loaded.watch("How many pens are left?", threshold=threshold, retries=9)
    for turn in ("12 * 3 = 36 pens", "so x = 6", "36 - 6 = 30"):
        watch.add(turn)
        watch.add({"role": "tool", "name": "sum", "content": "36"})
    watch.back(2)
    watch.add("36 - 5 = 31")
    whole = load_family(zoo, family)
    steps = watch.solution.steps
    prefixes = [replace(watch.solution, steps=steps[: end + 1]) for end in range(len(steps))]
    expected = [whole.score(None, prefix)[-1] for prefix in prefixes]
    assert list(watch.scores) == pytest.approx(expected, abs=1e-5)
    assert loaded.ledger.tokens_again == 0
    assert loaded.ledger.tokens_computed == loaded.ledger.tokens_distinct
    # A long conversation takes no more memory than its last prefix.
    encoded = loaded.encoder.encode(prefixes[-1])
    assert watch._session.pool.held == encoded.reads[-1] + 1
    assert list(watch._session.prefixes) == [(watch.solution.problem.text, watch.solution.texts)]
