"""Sessions by name: nodes, repeats, limits, expiry, and that everything kept is given back once."""

from __future__ import annotations

import asyncio
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serving_backends import Ruled
from stepmark.errors import BackendError, InputError
from stepmark.models.remote.wire import SessionFullError
from stepmark.records import Problem
from stepmark.serving.batcher import Batcher
from stepmark.serving.sessions import Sessions, UnknownSessionError
from test_serving_batcher import run

PROBLEM = Problem(text="p")


def served(scene, *, limit=3, nodes=5, memory=1 << 30):
    """Run a scene with a backend and its sessions; afterwards nothing may be kept."""

    async def play():
        backend = Ruled()
        batcher = Batcher(backend, token_budget=100, queue_tokens=1000)
        await batcher.start()
        sessions = Sessions(batcher, limit=limit, nodes=nodes, memory=memory)
        await scene(backend, sessions)
        sessions.end_all()
        assert (len(sessions), sessions.nodes, sessions.size) == (0, 0, 0)
        await batcher.stop(grace=5)
        assert backend.kept == 0

    run(play())


def test_steps_go_on_from_nodes():
    async def scene(backend, sessions):
        opened = sessions.open(PROBLEM)
        assert len(opened) >= 32
        first, other = await sessions.extend(opened, [(None, "abc"), (None, "de")])
        assert (first.graded.score, first.graded.tokens, other.graded.score) == (3.0, 3, 2.0)
        (longer,) = await sessions.extend(opened, [(other.node, "fghi")])
        assert longer.graded.score == 4.0
        assert len({first.node, other.node, longer.node}) == 3
        asked = []
        backend._result = lambda ask, result=backend._result: asked.append(ask) or result(ask)
        await sessions.extend(opened, [(longer.node, "j")])
        assert (asked[0].problem, asked[0].solution.texts) == (PROBLEM, ("de", "fghi", "j"))
        assert asked[0].place.text == "fghi"  # what was kept of the node is what it goes on from
        assert sessions.nodes == 4

    served(scene)


def test_wrong_nodes_full_sessions_and_bad_steps_are_errors_of_that_step():
    async def scene(backend, sessions):
        name = sessions.open(PROBLEM)
        found = await sessions.extend(
            name, [(None, "a"), (7, "b"), (None, "?"), (None, "c"), (None, "d"), (None, "e")]
        )
        assert [isinstance(one, InputError) for one in found] == [False, True, True, False, False, True]
        assert "steps[1].after" in str(found[1])
        assert [isinstance(one, SessionFullError) for one in found] == [False] * 5 + [True]
        assert "holds 4 steps at most (`session_nodes`)" in str(
            found[5]
        )  # "?" had a place until it turned out that it cannot be read
        (last,) = await sessions.extend(name, [(found[0].node, "f")])
        assert last.graded.score == 1.0
        (full,) = await sessions.extend(name, [(None, "g")])
        assert isinstance(full, SessionFullError)
        assert await sessions.release(name, [found[0].node, 99]) == 1
        (gone,) = await sessions.extend(name, [(found[0].node, "h")])
        assert "was released" in str(gone)
        (after,) = await sessions.extend(name, [(last.node, "i")])  # what went on from it stays
        assert after.graded.score == 1.0
        with pytest.raises(InputError, match="problem is empty"):
            sessions.open(Problem(text=" "))

    served(scene, nodes=4)


async def filled(sessions, count, length=500):
    """Sessions of one step each, opened after each other; of 100,000 bytes, six have not enough room."""
    names = []
    for _ in range(count):
        names.append(sessions.open(PROBLEM))
        (node,) = await sessions.extend(names[-1], [(None, "a" * length)])
        assert node.graded.score == length
    return names


def test_what_sessions_hold_is_bounded_and_the_longest_idle_one_makes_room():
    async def scene(backend, sessions):
        names = await filled(sessions, 5)
        # At least the text and 24 bytes a token, which here are its characters; and not several times as much.
        assert 5 * 25 * 500 < sessions.size < min(2 * 5 * 25 * 500, 100_000)
        held = sessions.size
        await sessions.release(names[0], [])  # is a sign of life
        sixth = sessions.open(PROBLEM)
        assert len(sessions) == 6
        await sessions.extend(sixth, [(None, "b" * 500)])
        assert (len(sessions), sessions.evicted, sessions.size) == (5, 1, held)
        with pytest.raises(UnknownSessionError):
            await sessions.extend(names[1], [(None, "a")])
        # Its client opens another and asks once more; now it is the third that goes.
        again = sessions.open(PROBLEM)
        (node,) = await sessions.extend(again, [(None, "a" * 500)])
        assert node.graded.score == 500.0
        assert (len(sessions), sessions.evicted) == (5, 2)
        with pytest.raises(UnknownSessionError):
            await sessions.release(names[2], [])
        assert await sessions.release(names[0], [0]) == 1
        assert sessions.size < held - 25 * 500
        await sessions.close(names[0])
        assert sessions.evicted == 2

    served(scene, limit=10, memory=100_000)


def test_the_longest_idle_session_ends_where_there_are_more_than_there_may_be():
    async def scene(backend, sessions):
        names = await filled(sessions, 4, length=5)
        assert (len(sessions), sessions.evicted) == (3, 1)
        with pytest.raises(UnknownSessionError):
            await sessions.close(names[0])
        assert await sessions.release(names[1], [0]) == 1

    served(scene)


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 100_000))
def test_whatever_happens_all_is_given_back_once(seed):
    async def scene(backend, sessions):
        rng = random.Random(seed)

        async def client():
            name = None
            known = []
            for _ in range(8):
                try:
                    if name is None:
                        name, known = sessions.open(PROBLEM), []
                    act = rng.random()
                    if act < 0.6:
                        steps = [(rng.choice([None, *known]), rng.choice("abc?!")) for _ in range(3)]
                        found = await sessions.extend(name, steps)
                        known += [one.node for one in found if not isinstance(one, InputError)]
                    elif act < 0.8 and known:
                        await sessions.release(name, [known.pop(rng.randrange(len(known)))])
                    elif act < 0.9:
                        await sessions.close(name)
                        name = None
                except UnknownSessionError:
                    name = None
                except BackendError:
                    pass
                await asyncio.sleep(0)

        clients = [asyncio.create_task(client()) for _ in range(4)]
        for _ in range(rng.randrange(40)):
            await asyncio.sleep(0)
        clients[0].cancel()
        await asyncio.gather(*clients, return_exceptions=True)
        assert sessions.nodes <= 4 * 5  # a session of each client, at most
        assert not any(isinstance(c.exception(), Exception) for c in clients[1:])

    served(scene, memory=random.Random(seed).choice([1 << 30, 50_000, 25_000]))


def test_what_came_back_belongs_to_the_step_that_follows():
    async def scene(backend, sessions):
        opened = sessions.open(PROBLEM)
        (first,) = await sessions.extend(opened, [(None, "ab")])
        asked = []
        backend._result = lambda ask, result=backend._result: asked.append(ask) or result(ask)
        steps = [(first.node, "cd"), (first.node, "cd"), (first.node, "cd"), (None, "x")]
        plain, seen, again, bad = await sessions.extend(opened, steps, observed=["", "41", "41", "42"])
        assert (seen.node, again.node) == (seen.node, seen.node) != (plain.node, plain.node)
        assert [[step.observation for step in ask.steps] for ask in asked] == [[""], ["41"]]
        assert isinstance(bad, InputError) and bad.field == "steps[3].observed"
        (longer,) = await sessions.extend(opened, [(seen.node, "e")], observed=["43"])
        assert [step.observation for step in asked[-1].steps] == ["41", "43"]
        assert await sessions.release(opened, [longer.node, seen.node]) == 2

    served(scene)
