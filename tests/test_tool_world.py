"""The world of tools: turns by hand, success against the arithmetic world, values against every path, tool output outside the loss."""

from __future__ import annotations

import random
import sys
from collections import Counter
from pathlib import Path

import pytest

from stepmark.errors import InputError, UsageError
from stepmark.problems.arithmetic_world import ArithmeticWorld

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # `benchmarks` is not installed

from benchmarks.tool_world import ACTIONS, PRMNoise, ToolProblem, ToolWorld

SHORT = (
    "A bakery has 50 loaves. On the first day it sells 12 loaves. On the second day it bakes 3 more loaves. "
    "How many loaves does the bakery have?"
)


def short(turns: int = 6) -> ToolProblem:
    """50 - 12 = 38, 38 + 3 = 41."""
    return ToolProblem(arithmetic=ArithmeticWorld.read(SHORT), turns=turns, id="Task 0")


def fumbling(view):
    """Mostly right; the rest depends on the view and differs between actions."""
    on_the_way = view.wording if view.held == "its number" else "look up"
    due = "answer" if view.wording == "end" else on_the_way
    weights = [
        1 + (len(view.held) + place) % 3 + 15 * (action == due) for place, action in enumerate(ACTIONS)
    ]
    return [weight / sum(weights) for weight in weights]


def test_an_episode_by_hand():
    problem = short()
    assert problem.problem.text.startswith(
        "Task 0. A bakery has ? loaves. On the first day it sells ? loaves."
    )
    texts = [
        'look_up("second day")',
        'look_up("first day")',
        'compute("Loaves after the first day", 50 - 12)',
        'compute("Loaves after the second day", 38 + ?)',
        'look_up("second day")',
        'compute("Loaves after the second day", 38 + 3)',
    ]
    episode = problem.replay([*texts, "answer(41)"])
    assert episode.success and episode.texts == (*texts, "answer(41)")
    assert [problem.observation(*turn) for turn in episode.turns] == [
        "3",
        "12",
        "Loaves after the first day: 50 - 12 = 38 loaves",
        "Error: look a number up first.",
        "3",
        "Loaves after the second day: 38 + 3 = 41 loaves",
        "Thank you.",
    ]
    right = [action == problem.due(state) for state, action in episode.turns]
    assert right == [False, True, True, False, True, True, True]
    assert not problem.replay([*texts[:3], "answer(38)"]).success  # too early
    with pytest.raises(InputError, match="expected one of"):
        problem.replay(["answer(41)"])
    with pytest.raises(UsageError, match="after the answer"):
        problem.act(episode.end, "answer")


def test_success_is_what_the_arithmetic_world_calls_right():
    outcomes = Counter()
    for number, problem in enumerate(ToolWorld(stages=(2, 4)).problems(60, seed=3)):
        for attempt in range(20):
            episode = problem.play(fumbling, random.Random(f"{number}/{attempt}"))
            lines = [
                problem.observation(state, action)
                for state, action in episode.turns
                if action in "+-*/" and state.number is not None
            ]
            if episode.end.answered:
                lines.append(f"The answer is {episode.texts[-1][len('answer(') : -1]}.")
            labels, _ = ArithmeticWorld.true_labels(problem.arithmetic, lines)
            assert episode.success == (episode.end.answered and all(labels))
            outcomes[episode.success] += 1
    assert min(outcomes.values()) > 100


def test_values_are_the_sum_over_every_path():
    problem = short(turns=6)

    def value(state, left):
        if state.answered:
            return float(state.right)
        chances = fumbling(problem.view(state))
        return (
            sum(
                chance * value(problem.act(state, action), left - 1)
                for chance, action in zip(chances, ACTIONS, strict=True)
            )
            if left
            else 0.0
        )

    values = problem.values(fumbling)
    assert [len(values), values[0].get(problem.start, 0.0)] == [7, 0.0]
    for left in range(1, 7):
        assert values[left].get(problem.start, 0.0) == pytest.approx(value(problem.start, left), abs=1e-12)
    episode = problem.replay(['look_up("first day")', 'compute("Loaves after the first day", 50 + 12)'])
    before, after = values[6][problem.start], value(episode.turns[1][0], 5)
    assert problem.advantages(episode, values) == pytest.approx([after - before, -after], abs=1e-12)


def test_it_is_the_same_for_a_seed_and_states_recur():
    world = ToolWorld()
    problems = world.problems(30, seed=1)
    assert problems == world.problems(30, seed=1) != world.problems(30, seed=2)
    assert len({one.problem.text for one in problems}) == 30
    assert max(Counter(one.arithmetic.domain for one in problems).values()) <= 6
    states = [
        {state for state, _ in problems[0].play(fumbling, random.Random(seed)).turns} for seed in range(8)
    ]
    counts = Counter(state for each in states for state in each)
    assert counts[problems[0].start] == 8
    assert sum(count > 1 for count in counts.values()) >= 6
    with pytest.raises(UsageError, match="`stages`"):
        ToolWorld(stages=(1, 3))


def test_a_prm_errs_as_often_as_it_says():
    problems = ToolWorld().problems(40, seed=4)
    noise = PRMNoise(deviation=0.4)
    wrong = total = 0
    exact, noisy = ToolWorld().prm(problems), ToolWorld().prm(problems, noise)
    for problem in problems:
        for seed in range(10):
            episode = problem.play(fumbling, random.Random(seed))
            truth = [0.9 if action == problem.due(state) else 0.1 for state, action in episode.turns]
            assert exact.score(problem.problem, steps=list(episode.texts)) == truth
            found = noisy.score(problem.problem, steps=list(episode.texts))
            wrong += sum((a >= 0.5) != (b >= 0.5) for a, b in zip(found, truth, strict=True))
            total += len(truth)
    assert wrong / total == pytest.approx(0.1587, abs=0.02)  # beyond one deviation on one side
    likes = PRMNoise(likes="look up")
    twice = problems[0].replay([f'look_up("{problems[0].arithmetic.operations[0].stage}")'] * 2)
    assert (likes.score(twice), PRMNoise().score(twice)) == (0.9, 0.1)
    with pytest.raises(InputError, match="of this world"):
        exact.score("2 + 3?", steps=["5"])


def test_tool_output_is_outside_the_loss_by_hand():
    """Two attempts at one problem, a token a character. Only what the agent wrote moves the loss, each turn by its own advantage."""
    torch = pytest.importorskip("torch")
    from stepmark.rl.credit.turns import Turns, discounted, over_tokens, turn_of_tokens

    problem = short()
    episodes = [
        problem.replay(['look_up("first day")', 'compute("Loaves after the first day", 50 - 12)']),
        problem.replay(["answer(50)"]),
    ]
    written, spans = [], []
    for episode in episodes:
        text, places = "", []
        for turn, words in zip(episode.turns, episode.texts, strict=True):
            places.append((len(text), len(text) + len(words)))
            text += words + problem.observation(*turn)
        written.append(text)
        spans.append(places)
    # 20 characters, "12", 46 characters, 47 of the tool; 10 characters, "Thank you.".
    assert spans == [[(0, 20), (22, 68)], [(0, 10)]]
    given = Turns(
        rewards=torch.tensor([[0.0, 0.5], [0.0, 0.0]]),
        present=torch.tensor([[True, True], [True, False]]),
        outcome=torch.tensor([0.0, -0.25]),
        groups=torch.zeros(2, dtype=torch.int64),
    )
    # Returns 0.5 and 0.5 of the first, -0.25 of the second; their mean is 0.25.
    advantages = discounted(given, gamma=1.0, scale=False)
    assert advantages.tolist() == [[0.25, 0.25], [-0.5, 0.0]]
    tokens = max(map(len, written))
    logprobs = torch.zeros(2, tokens, requires_grad=True)
    turn_of = turn_of_tokens(spans, tokens)
    (over_tokens(advantages, turn_of) * logprobs).sum().backward()
    expected = [
        [0.25] * 20 + [0.0] * 2 + [0.25] * 46 + [0.0] * (tokens - 68),
        [-0.5] * 10 + [0.0] * (tokens - 10),
    ]
    assert logprobs.grad.tolist() == expected
