"""Searches whose policy, PRM or problem is bad: each has a clear outcome. And PRMs as searches ask them, with and without a session."""

from __future__ import annotations

import math
import threading
import time
from dataclasses import replace

import pytest
import torch

from search_worlds import PROBLEM, World, full_tree
from stepmark import load_prm
from stepmark.backends import (
    BatchPolicy,
    BatchScorer,
    CachedPolicy,
    CachedPRM,
    Completion,
    Completions,
    ScoreRequest,
    StepScore,
    all_of,
    many,
    run_tasks,
)
from stepmark.backends.replies import MemoryReplies
from stepmark.errors import BackendError, InputError, TooLongError, UsageError
from stepmark.models.prm import PRM, Ledger
from stepmark.models.scripted import ScriptedPolicy, ScriptedPRM
from stepmark.models.session import CachedSession
from stepmark.problems.arithmetic import arithmetic_problems
from stepmark.problems.arithmetic_world import ArithmeticPolicy
from stepmark.records import Problem, Refusal, Solution, StepScores
from stepmark.searches.base import Budget, Grading, Steps
from stepmark.searches.beam import BeamSearch, DiverseTrees
from stepmark.searches.mcts import MCTS
from stepmark.searches.rebase import Rebase
from stepmark.searches.run import Models, models_of
from stepmark.searches.run import run as search_run
from stepmark.searches.sampled import BestOfN, Greedy, Majority
from stepmark.verifiers.base import load_verifier

torch.set_num_threads(1)

TREES = [BeamSearch(width=2, expand=2, merge_equal=True), DiverseTrees(subtrees=2, expand=2), Rebase(width=4), MCTS(simulations=6, expand=2)]  # fmt: skip
ALL = [BestOfN(n=3), Greedy(), Majority(n=3), *TREES]


class BadPRM(PRM):
    """Gives what `give` makes of the solution: a list of scores, or an exception."""

    score_kind, default_aggregate, default_threshold = "probability", "min", 0.5

    def __init__(self, give, name="bad"):
        self.give, self.name, self.ledger, self.asked = give, name, Ledger(), []
        self.identity = name

    def score(self, problem, steps):
        raise NotImplementedError

    def score_many(self, solutions, *, keep_going=False):
        for solution in solutions:
            self.asked.append(solution.texts)
            given = self.give(solution.texts)
            if given is None:
                return
            if isinstance(given, InputError):
                yield Refusal(solution=solution, error=given)
                continue
            yield StepScores(
                scores=tuple(given), kind="probability", problem_tokens=3, solution_tokens=len(given)
            )


def find(policy, prm, search, *, problem=PROBLEM, store=None):
    [found] = searched([problem], search, models_of(policy, prm), store=store)
    return found


def searched(problems, search, models, **more):
    return list(search_run(problems, search, models, load_verifier("number"), **more))


def steps_policy(write, name="policy"):
    return ScriptedPolicy(write, name=name)


GOOD = ScriptedPRM(lambda problem, steps: 0.5)


@pytest.mark.parametrize("search", [BestOfN(n=3), TREES[0]], ids=lambda s: s.name)
@pytest.mark.parametrize(
    ("give", "message"),
    [
        (lambda steps: [math.nan] * len(steps), "nan"),
        (lambda steps: [math.inf] * len(steps), "inf"),
        (lambda steps: [0.5] * (len(steps) - 1), "scores for"),
        (lambda steps: [0.5] * (len(steps) + 1), "scores for"),
        (lambda steps: [1.5] * len(steps), r"expected a number in \[0, 1\]"),
        (lambda steps: None, "no result"),
    ],
    ids=["nan", "inf", "few", "many", "out of range", "none"],
)
def test_a_prm_that_gives_what_is_no_score_ends_the_run(search, give, message):
    tree, _ = full_tree(2, 2)
    world = World(tree, lambda steps: 0.5)
    store = MemoryReplies()
    with pytest.raises(BackendError, match=message) as error:
        find(world.policy, BadPRM(give), search, store=store)
    assert "bad" in str(error.value) or "PRM" in str(error.value)
    recorded = [text for text in store._replies.values() if text.startswith('{"score"')]
    if message != r"expected a number in \[0, 1\]":
        assert not recorded  # nothing that is no score


def test_a_late_prm_costs_time_and_a_lost_one_nothing_that_was_recorded():
    """A PRM that never answers is a timeout of its transport, a BackendError; the same run then goes on where it was."""
    tree, _ = full_tree(3, 3)
    undisturbed = World(tree, lambda steps: 1 / (1 + len("".join(steps)))).find(BeamSearch(width=2, expand=2))
    world = World(tree, lambda steps: 1 / (1 + len("".join(steps))))
    store, calls = MemoryReplies(), []
    whole = world.prm.open_session()

    def late(requests, ready):
        calls.append(len(requests))
        if len(calls) == 2:
            raise BackendError("no usable answer in 7 attempts; the last: ReadTimeout")
        return whole.score(requests, ready)

    models = Models(policy=world.policy, prm=BatchScorer("late", late))
    with pytest.raises(BackendError, match="ReadTimeout"):
        searched([PROBLEM], BeamSearch(width=2, expand=2), models, store=store)
    before = len(world.requests)
    [found] = searched([PROBLEM], BeamSearch(width=2, expand=2), models, store=store)
    assert found == undisturbed
    assert len(world.requests) == found.cost.samples > before
    assert world.prm.ledger.solutions == found.cost.scores


@pytest.mark.parametrize("search", [BestOfN(n=3), *TREES], ids=lambda s: s.name)
def test_a_step_that_the_prm_cannot_read_is_given_up_alone(search):
    tree, _ = full_tree(2, 2)
    world = World(tree, lambda steps: 0.9)
    refuse = TooLongError("5000 tokens, more than the 4096 that the model reads")
    prm = BadPRM(lambda steps: refuse if "step 0 a" in steps else [0.5] * len(steps))
    found = find(world.policy, prm, search)
    assert found.solution.steps[0] == "step 0 b"
    given_up = [
        node for node in found.trace.nodes if node.step == "step 0 a" and "says the same" not in node.why
    ]
    assert given_up
    assert all(
        (node.state, node.score) == ("pruned", None)
        and (
            "the PRM cannot read it: 5000 tokens" in node.why
            or "early rejection" in node.why
            or "step before" in node.why
        )
        for node in given_up
    )


def test_a_prm_that_can_read_nothing_leaves_a_dead_end():
    world = World(full_tree(2, 2)[0], lambda steps: 0.9)
    for search in [BestOfN(n=3), *TREES]:
        found = find(world.policy, BadPRM(lambda steps: InputError("a marker inside")), search)
        assert (found.chosen, found.stopped) == (None, "dead end")
        assert "a marker inside" in found.note


@pytest.mark.parametrize("search", ALL, ids=lambda s: s.name)
@pytest.mark.parametrize("text", ["", " \n  ", "\n"])
@pytest.mark.parametrize("finish", ["end", "stop", "end or stop"])
def test_a_policy_that_writes_nothing(search, text, finish):
    policy = steps_policy(lambda request, number: Completion(text=text, finish=finish, tokens=1))
    found = find(policy, GOOD, search)
    assert (found.chosen, found.candidates, found.stopped) == (None, (), "dead end")
    assert "nothing was written" in found.note or "says the same" in found.note
    assert found.cost.decoded == len(found.trace.nodes)


@pytest.mark.parametrize("search", TREES, ids=lambda s: s.name)
def test_a_policy_that_repeats_itself(search):
    policy = steps_policy(lambda request, number: Completion(text="we go on", finish="stop", tokens=4))
    found = find(policy, GOOD, search)
    assert found.stopped == "dead end"
    assert {node.why for node in found.trace.nodes} & {"repeats the step before it"}
    assert len(found.trace.nodes) <= 4 + 4


@pytest.mark.parametrize("search", TREES, ids=lambda s: s.name)
def test_a_policy_that_never_ends_its_steps(search):
    policy = steps_policy(
        lambda request, number: Completion(text=f"and {number}", finish="length", tokens=request.max_tokens)
    )
    found = find(policy, GOOD, replace(search, how=Steps(max_tokens=5)))
    assert found.stopped == "dead end"
    assert found.note.endswith("not at its end after 5 tokens")


@pytest.mark.parametrize("search", [BestOfN(n=3), Greedy(), Majority(n=3)], ids=lambda s: s.name)
def test_a_policy_that_never_ends_a_solution(search):
    policy = steps_policy(lambda request, number: Completion(text="and\n" * 9, finish="length", tokens=9))
    found = find(policy, GOOD, replace(search, how=Steps(max_solution_tokens=9)))
    assert (found.chosen, found.stopped) == (None, "dead end")
    assert found.note.endswith("not at its end after 9 tokens")


@pytest.mark.parametrize("search", TREES, ids=lambda s: s.name)
def test_a_policy_that_never_ends_the_solution(search):
    def write(request, number):
        steps = request.prefill.count("\n")
        if not request.stop:
            return Completion(text="on and on", finish="length", tokens=request.max_tokens)
        return Completion(text=f"step {steps} way {number}", finish="stop", tokens=5)

    found = find(steps_policy(write), GOOD, replace(search, how=Steps(max_steps=3)))
    assert found.stopped == "dead end"
    assert found.solution is not None
    assert not found.solution.finished
    if search.name != "mcts":  # six simulations do not come to the end of all ways
        assert found.note.endswith("not finished after 3 steps")
    assert max(len(node.step) for node in found.trace.nodes) < 30


@pytest.mark.parametrize("search", ALL, ids=lambda s: s.name)
def test_a_problem_that_the_policy_cannot_read_is_left_out_alone(search):
    tree, _ = full_tree(2, 2)
    world = World(tree, lambda steps: 0.9)

    def write(request, number):
        if "unreadable" in str(request.prompt):
            raise TooLongError("too long for the policy")
        return world._write(request, number)

    models = models_of(steps_policy(write), world.prm)
    problems = [PROBLEM, Problem(text="unreadable", id="bad"), replace(PROBLEM, id="again")]
    first, second, third = searched(problems, search, models, store=MemoryReplies())
    assert isinstance(second, Refusal)
    assert str(second.error) == "bad: too long for the policy"
    assert first.solution.steps == third.solution.steps
    assert first.trace == third.trace


@pytest.mark.parametrize("search", TREES, ids=lambda s: s.name)
def test_a_prefix_that_is_too_long_for_the_policy_is_given_up_alone(search):
    tree, _ = full_tree(3, 2)
    world = World(tree, lambda steps: 0.6 if steps[0].endswith("a") else 0.5)

    def write(request, number):
        if request.prefill.startswith("step 0 a"):
            raise TooLongError("too long for the policy")
        return world._write(request, number)

    found = find(steps_policy(write), world.prm, search)
    assert found.solution.steps[0] == "step 0 b"
    assert any("the policy cannot go on from here: too long" in node.why for node in found.trace.nodes)


def test_a_server_that_does_not_say_how_a_text_ended():
    """With an answer it was the end; without one the next request tells: nothing comes any more."""

    def write(request, number):
        if not request.prefill:
            text = "first this" if number % 2 else "at once: the answer is 7"
        else:
            text = "then that" if request.prefill == "first this\n" else ""
        return Completion(text=text, finish="end or stop", tokens=3)

    found = find(steps_policy(write), ScriptedPRM(lambda problem, steps: 0.5), BeamSearch(width=2, expand=2))
    assert {candidate.steps for candidate in found.candidates} == {
        ("at once: the answer is 7",),
        ("first this", "then that"),
    }
    ends = [node for node in found.trace.nodes if node.step == ""]
    assert {node.state for node in ends if node.parent is not None and not node.why} <= {"finished", "chosen"}
    assert all(node.prm_tokens == 0 for node in ends)


def test_no_reference_answer_where_the_verifier_is_asked():
    world = World(full_tree(2, 2)[0], lambda steps: 0.9)
    for answer in (None, "  "):
        found = find(
            world.policy,
            GOOD,
            MCTS(rollouts=1, verify=True),
            problem=Problem(text="What?", id="x", answer=answer),
        )
        assert isinstance(found, Refusal)
        assert "it has none" in str(found.error)
        assert found.error.where == "x"
    assert world.requests == []


@pytest.mark.parametrize("which", ["policy", "prm"])
def test_a_budget_needs_models_that_count(which):
    policy = steps_policy(
        lambda request, number: Completion(text="so 7", finish="end", tokens=None if which == "policy" else 3)
    )
    prm = BadPRM(lambda steps: [0.5] * len(steps))
    prm.score_many = lambda solutions, keep_going=False: (
        StepScores(scores=(0.5,) * len(s.steps), kind="probability") for s in solutions
    )
    with pytest.raises(UsageError, match="does not say how many tokens"):
        find(policy, prm, BestOfN(n=2, budget=Budget(tokens=1000)))
    found = find(policy, prm, BestOfN(n=2))
    assert found.cost.tokens is None
    assert found.solution.answer is None or found.solution.finished


def test_replies_of_older_stores_are_read_and_tell_no_prompts():
    class Older(MemoryReplies):
        def get(self, keys):
            text = '{"text": "so 7", "finish": "end", "tokens": 3, "logprob": null}'
            return dict.fromkeys(keys, text)

    policy = steps_policy(lambda request, number: pytest.fail("asked for what is recorded"))
    found = find(policy, None, Greedy(), store=Older())
    assert (found.cost.prompt, found.cost.new, found.cost.decoded) == (None, None, 3)


# -- What models are asked, and what is recorded ------------------------------------------------------------------


class Writes(BatchPolicy):
    """Writes what `write` makes of the requests."""

    name = identity = "w"
    tokens_written = 0

    def __init__(self, write):
        self._write = write

    def complete_many(self, requests, ready=None):
        return self._write(requests)


def test_scores_are_recorded_shared_and_checked():
    asked = []

    def score(requests, ready):
        asked.extend(request.steps for request in requests)
        return [StepScore(score=0.25, tokens=3, root=7, classes=(0.5, 0.25, 0.25)) for _ in requests]

    one, two = (ScoreRequest(problem="p", steps=steps) for steps in (("a",), ("a", "b")))

    async def method(prm):
        first = await prm.score_step(one)
        both = await all_of(map(prm.score_step, (one, two)))
        prm.release("p", [("a",)])
        return first, both, await prm.score_step(one)

    store = MemoryReplies()
    graded = StepScore(score=0.25, tokens=3, root=7, classes=(0.5, 0.25, 0.25))
    for _ in range(2):
        prm = CachedPRM(BatchScorer("prm", score), store)
        results = [result for _, result in run_tasks([prm, prm], method)]
        assert results == [(graded, [graded, graded], graded)] * 2
    assert asked == [("a",), ("a", "b")]
    with pytest.raises(UsageError, match="no step"):
        ScoreRequest(problem="p", steps=())


@pytest.mark.parametrize("reply", [0.5, None, (0.5,), StepScore(score=math.nan), StepScore(score=-math.inf)])
def test_what_is_no_score_is_refused_and_not_recorded(reply):
    store = MemoryReplies()
    prm = CachedPRM(BatchScorer("prm", lambda requests, ready: [reply]), store)
    with pytest.raises(BackendError, match="prm"):
        many([ScoreRequest(problem="p", steps=("a",))], prm.score_step)
    assert len(store) == 0


BOTH = [Completions(prompt="p"), ScoreRequest(problem="p", steps=("a",))]


def ask_both(policy, prm):
    """One request to each, by two tasks."""

    def ask(request):
        return policy.complete(request) if isinstance(request, Completions) else prm.score_step(request)

    return [reply for _, reply in run_tasks(BOTH, ask)]


def test_the_policy_writes_while_the_prm_scores():
    """Each waits for the other to have begun; one after the other would wait in vain."""
    writing, scoring = threading.Event(), threading.Event()

    def write(requests):
        writing.set()
        assert scoring.wait(60)
        return [[Completion(text="x", finish="end")] for _ in requests]

    def score(requests, ready):
        scoring.set()
        assert writing.wait(60)
        return [StepScore(score=0.5) for _ in requests]

    written, graded = ask_both(Writes(write), BatchScorer("s", score))
    assert written[0].text == "x"
    assert graded.score == 0.5


def test_what_the_prm_has_answered_is_recorded_though_the_policy_fails():
    """Also where it answers after the policy has failed."""
    failed = threading.Event()

    def write(requests):
        failed.set()
        raise BackendError("gone")

    def score(requests, ready):
        assert failed.wait(60)
        time.sleep(0.05)
        return [StepScore(score=0.5) for _ in requests]

    store = MemoryReplies()
    with pytest.raises(BackendError, match="gone"):
        ask_both(CachedPolicy(Writes(write), store), CachedPRM(BatchScorer("s", score), store))
    assert len(store) == 1


@pytest.mark.parametrize("in_flight", [1, 2, 5])
def test_no_model_is_asked_twice_at_once_or_for_the_same(in_flight):
    """Whatever is searched together: one batch of a model after the other, each request in one of them, the same result."""
    tree, _ = full_tree(3, 2)
    problems = [replace(PROBLEM, text=f"{n % 3}?", id=str(n)) for n in range(5)]  # two of them twice
    search = BeamSearch(width=2, expand=2)

    def alone(world, problem):
        return searched([problem], search, world.models)[0]

    undisturbed = [alone(World(tree, lambda steps: 0.5), problem) for problem in problems]
    world = World(tree, lambda steps: 0.5)
    whole, busy = world.prm.open_session(), {"w": threading.Lock(), "s": threading.Lock()}
    asked = []

    def one_batch(name, requests, answer):
        assert busy[name].acquire(blocking=False)
        time.sleep(0.002)
        for request in requests:
            for number in range(getattr(request, "n", 1)):
                asked.append(replace(request, n=1, first=request.first + number) if name == "w" else request)
        replies = answer()
        busy[name].release()
        return replies

    policy = Writes(lambda requests: one_batch("w", requests, lambda: world.policy.complete_many(requests)))
    prm = BatchScorer(
        "s", lambda requests, ready: one_batch("s", requests, lambda: whole.score(requests, ready))
    )
    models = Models(policy=policy, prm=prm)
    assert searched(problems, search, models, store=MemoryReplies(), in_flight=in_flight) == undisturbed
    assert len(asked) == len(set(asked))
    assert sum(isinstance(one, Completions) for one in asked) == sum(
        one.cost.samples for one in undisturbed[:3]
    )
    assert sum(isinstance(one, ScoreRequest) for one in asked) == sum(
        one.cost.scores for one in undisturbed[:3]
    )


# -- A PRM with a session --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tiny(zoo):
    return str(zoo["qwen-prm"].folder)


def arithmetic(count):
    return [
        Problem(text=p.text, id=p.id, answer=str(p.answer))
        for p in arithmetic_problems(count, seed=3, steps=(3, 5))
    ]


def tokens(prm, problem, steps):
    encoded = prm.encoder.encode(Solution.of(problem, steps))
    return encoded.ids[: encoded.reads[-1] + 1].tolist()


def shared(one, other):
    return next(
        (n for n, pair in enumerate(zip(one, other, strict=False)) if pair[0] != pair[1]),
        min(len(one), len(other)),
    )


SESSION = [
    BestOfN(n=3),
    BeamSearch(width=2, expand=2),
    DiverseTrees(subtrees=2, expand=2),
    MCTS(simulations=5, expand=2),
]


@pytest.mark.parametrize("search", SESSION, ids=lambda s: s.name)
def test_a_session_scores_as_whole_prefixes_do_and_computes_what_the_search_is_charged(tiny, search):
    prm = load_prm(tiny, dtype="float32", device="cpu")
    keeper = prm.open_session()
    assert isinstance(keeper, CachedSession)
    policy = ArithmeticPolicy()
    models = Models(policy=policy, prm=BatchScorer("tiny", keeper.score, keeper.release))
    search = replace(search, grading=Grading(aggregate="min", kind=prm.score_kind))
    store = MemoryReplies()
    results = searched(arithmetic(2), search, models, store=store)
    assert not keeper.prefixes
    assert keeper.pool.held == 0
    fresh = load_prm(tiny, dtype="float32", device="cpu")
    for found in results:
        for candidate in found.candidates:
            whole = fresh.score(found.problem.text, steps=list(candidate.steps))
            assert list(candidate.scores) == pytest.approx(whole, abs=1e-4)
    # What a search is charged is a property of the texts: what a prefix has that its parent has not, and the problem once.
    for found in results:
        steps = {node.number: node for node in found.trace.nodes}
        prefixes = {()}
        for node in found.trace.nodes:
            if node.score is not None:
                way, at = [], node
                while at is not None:
                    way.append(at.step)
                    at = None if at.parent is None else steps[at.parent]
                prefixes.add(tuple(way[::-1]))
        ids = {p: tokens(fresh, found.problem.text, p) for p in prefixes if p}
        root = fresh.encoder.encode(Solution.of(found.problem.text, next(iter(ids)))).problem_tokens
        beyond = [len(ids[p]) - (shared(ids[p[:-1]], ids[p]) if len(p) > 1 else root) for p in ids]
        assert found.cost.prm == root + sum(beyond)
    # Siblings that begin alike share that too, so less is computed; what is, once.
    assert prm.ledger.tokens_again == 0
    assert (
        prm.ledger.tokens_computed == prm.ledger.tokens_distinct <= sum(found.cost.prm for found in results)
    )

    # A replay asks nothing, and costs the same.
    before = prm.ledger.tokens_computed
    assert searched(arithmetic(2), search, models, store=store) == results
    assert prm.ledger.tokens_computed == before


def test_a_search_goes_on_after_a_replay_with_prefixes_that_have_no_place(tiny):
    prm = load_prm(tiny, dtype="float32", device="cpu")
    search = BeamSearch(width=2, expand=2, grading=Grading(aggregate="min", kind=prm.score_kind))
    policy = ArithmeticPolicy()
    undisturbed = searched(arithmetic(1), search, models_of(policy, prm))
    store = MemoryReplies()
    calls = []

    def stops(requests, ready):
        calls.append(1)
        if len(calls) == 3:
            raise BackendError("stopped")
        return keeper.score(requests, ready)

    keeper = prm.open_session()
    models = Models(policy=policy, prm=BatchScorer(prm.identity, stops))
    with pytest.raises(BackendError, match="stopped"):
        searched(arithmetic(1), search, models, store=store)
    again = searched(arithmetic(1), search, models_of(policy, prm), store=store)
    assert [found.cost for found in again] == [found.cost for found in undisturbed]
    for one, other in zip(again, undisturbed, strict=True):
        assert one.solution.steps == other.solution.steps
        assert one.solution.scores == pytest.approx(other.solution.scores, abs=1e-4)


def test_a_session_of_the_callers_own(tiny):
    prm = load_prm(tiny, dtype="float32", device="cpu")
    session = prm.open_session(memory_tokens=2000)
    search = BestOfN(n=2, grading=Grading(aggregate="min", kind=prm.score_kind))
    [found] = searched(arithmetic(1), search, models_of(ArithmeticPolicy(), prm, session=session))
    assert found.cost.prm > 0
    assert session.pool.peak > 0
    assert session.pool.held == 0


def test_a_tight_memory_costs_time_and_nothing_else(tiny):
    """What a session had to forget is computed again; the scores and the cost of the search stay."""
    results, memory = [], 65_536
    for _ in range(2):
        prm = load_prm(tiny, dtype="float32", device="cpu")
        # Of equal steps the second is free only while the first is kept.
        search = BeamSearch(
            width=3, expand=2, merge_equal=True, grading=Grading(aggregate="min", kind=prm.score_kind)
        )
        found = searched(arithmetic(2), search, models_of(ArithmeticPolicy(), prm, memory_tokens=memory))
        results.append((found, prm.ledger.tokens_again))
        longest = max(len(tokens(prm, one.problem.text, c.steps)) for one in found for c in one.candidates)
        memory = longest + 30  # room for one prefix, not for a beam
    (roomy, none), (tight, again) = results
    assert none == 0
    assert again > 0
    for one, other in zip(roomy, tight, strict=True):
        assert one.cost == other.cost
        assert [node.step for node in one.trace.nodes] == [node.step for node in other.trace.nodes]
        assert [node.score for node in one.trace.nodes if node.score is not None] == pytest.approx(
            [node.score for node in other.trace.nodes if node.score is not None], abs=1e-4
        )


def test_prms_that_keep_nothing_are_charged_for_whole_prefixes():
    prm = BadPRM(lambda steps: [0.5] * len(steps))
    [reply] = prm.open_session().score(
        [ScoreRequest(problem="p", steps=("a", "b"))], lambda index, reply: None
    )
    assert reply == StepScore(score=0.5, tokens=3 + 2, root=0)
    prm = BadPRM(lambda steps: [0.5] * len(steps))
    world = World(full_tree(2, 2)[0], lambda steps: 0.5)
    found = find(world.policy, prm, BeamSearch(width=2, expand=2))
    # Each prefix of one step is 3 + 1 tokens, each of two 3 + 2.
    assert found.cost.prm == sum(3 + len(steps) for steps in set(prm.asked))


def test_unread_steps_are_refused():
    prm = BadPRM(lambda steps: [*[0.5] * (len(steps) - 1), None])
    [reply] = prm.open_session().score([ScoreRequest(problem="p", steps=("a",))], lambda index, reply: None)
    assert isinstance(reply, TooLongError)
