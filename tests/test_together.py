"""Several methods as one: what is asked in a round, who hears what, and what happens when one fails."""

from __future__ import annotations

import pytest

from stepmark.backends import Answerer, Completion, Completions, Method, VerdictRequest, run, together
from stepmark.errors import InputError
from stepmark.records import Verdict


def asking(rounds: int) -> Method[list[object]]:
    """Asks one question a round, then two at once; gives all replies."""
    heard = []
    for number in range(rounds):
        heard.append((yield VerdictRequest(answer=str(number), gold="0")))
    pair = yield (VerdictRequest(answer="a", gold="1"), VerdictRequest(answer="b", gold="1"))
    return [*heard, pair]


def test_a_round_is_one_tuple_in_the_order_of_the_methods_and_each_hears_its_own():
    method = together([asking(0), asking(2), asking(1)])
    asked = next(method)
    rounds = []
    while True:
        assert isinstance(asked, tuple)
        rounds.append([request.answer for request in asked])
        try:
            asked = method.send(tuple(request.answer for request in asked))
        except StopIteration as stop:
            assert stop.value == ([("a", "b")], ["0", "1", ("a", "b")], ["0", ("a", "b")])
            break
    assert rounds == [["a", "b", "0", "0"], ["1", "a", "b"], ["a", "b"]]


def done(value: int) -> Method[int]:
    """Asks nothing."""
    yield from ()
    return value


def test_nothing_to_ask_is_no_round():
    for methods, result in (([], ()), ([done(3), done(4)], (3, 4))):
        with pytest.raises(StopIteration) as stop:
            next(together(methods))
        assert stop.value.value == result


def test_the_driver_answers_a_round_in_one_call():
    calls = []

    def write(requests, ready):
        calls.append([request.prompt for request in requests])
        return [[Completion(text=request.prompt.upper(), finish="end")] for request in requests]

    def one(*prompts: str) -> Method[str]:
        text = ""
        for prompt in prompts:
            (written,) = yield Completions(prompt=prompt, first=0)
            text += written.text
        return text

    ((_, found),) = run(
        [together([one("a", "b"), one("c")])], {Completions: Answerer(identity="w", answer=write)}
    )
    assert found == ("AB", "C")
    assert calls == [["a", "c"], ["b"]]


def test_one_that_cannot_be_answered_ends_them_all_and_lets_them_clean_up():
    ended = []

    def one(name: str) -> Method[None]:
        try:
            yield VerdictRequest(answer=name, gold="1")
        except InputError:
            ended.append(f"{name} caught")
        finally:
            ended.append(name)

    def verify(requests, ready):
        return [
            InputError("unreadable") if request.answer == "b" else Verdict(outcome="match", verifier="v")
            for request in requests
        ]

    methods = together([one("a"), one("b"), one("c")])
    with pytest.raises(InputError, match="unreadable"):
        list(run([methods], {VerdictRequest: Answerer(identity="v", answer=verify)}))
    assert ended == ["a", "b", "c"]
