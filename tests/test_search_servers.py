"""Searches whose policy or PRM is behind a server that is dead, dies, hangs, or is late."""

from __future__ import annotations

import json
import re
import socket
import threading
import time
from dataclasses import replace

import pytest

from search_worlds import PROBLEM, World, full_tree
from stepmark.backends import BatchScorer
from stepmark.backends.replies import MemoryReplies
from stepmark.errors import BackendError
from stepmark.models import prm as prms
from stepmark.models.http import Patience
from stepmark.models.policies.openai import OpenAIPolicy
from stepmark.searches.base import Steps
from stepmark.searches.beam import BeamSearch
from stepmark.searches.mcts import MCTS
from stepmark.searches.run import Models, models_of, run
from stepmark.searches.sampled import BestOfN
from stepmark.verifiers.base import load_verifier
from test_policy_server import Fake
from test_pooling import as_vllm, client
from token_servers import TokenServer

SEARCHES = [
    replace(search, how=Steps(prompt="text"))
    for search in (BestOfN(n=3), BeamSearch(width=2, expand=2), MCTS(simulations=4, expand=2))
]
HASTE = Patience(retries=1, first_wait=0.001, max_wait=0.01, timeout=60)  # a busy machine is no dead server
TREE, _ = full_tree(3, 2)


def written(body):
    """What a server writes: choice i is option i at every step."""
    prefill = body["prompt"].partition("\\boxed{}.\n\n")[2]
    choices = []
    for number in range(body["n"]):
        steps = tuple(line for line in prefill.split("\n") if line)
        text, reason = "", "stop"
        while steps in TREE:
            options = TREE[steps]
            step = options[number % len(options)]
            text += step + ("\n" if (*steps, step) in TREE else "")
            steps = (*steps, step)
            if "stop" in body:
                break
        stopped = "stop" in body and text.endswith("\n")
        choices.append(
            {
                "index": number,
                "text": text.removesuffix("\n") if stopped else text,
                "finish_reason": reason,
                "stop_reason": "\n" if stopped else None,
                "logprobs": {"token_logprobs": [-1.0] * (len(text.split()) + 1)},
            }
        )
    prompt = len(body["prompt"].split())
    usage = {
        "prompt_tokens": prompt,
        "completion_tokens": 1,
        "prompt_tokens_details": {"cached_tokens": prompt // 2},
    }
    return {"choices": choices, "usage": usage}


def policy_at(url, patience=HASTE):
    return OpenAIPolicy(url, "m", patience=patience, logprobs=True)


def searched(search, policy, prm, store=None):
    """What is found, by a PRM or by what scores the steps."""
    models = Models(policy=policy, prm=prm) if isinstance(prm, BatchScorer) else models_of(policy, prm)
    [found] = run([PROBLEM], search, models, load_verifier("number"), store=store)
    return found


def truth():
    return World(TREE, lambda steps: 1 / (1 + len("".join(steps)) % 5)).prm


@pytest.mark.parametrize("search", SEARCHES, ids=lambda s: s.name)
def test_a_server_is_searched_with_and_dies_and_nothing_is_lost(search):
    with Fake(lambda path, body: written(body)) as whole, policy_at(whole.url) as policy:
        undisturbed = searched(search, policy, truth())
    assert undisturbed.solution.finished
    cost = undisturbed.cost
    assert cost.prompt >= cost.new > 0
    assert (cost.cached > 0) == (cost.writes > 1)
    assert cost.told_cached > 0
    store, seen = MemoryReplies(), []

    def dies(path, body):
        seen.append(body)
        if len(seen) > len(whole.bodies) // 2:
            raise ConnectionAbortedError
        return written(body)

    with Fake(dies) as fake, policy_at(fake.url) as policy, pytest.raises(BackendError, match="2 attempts"):
        searched(search, policy, truth(), store)
    answered = len(whole.bodies) // 2
    with Fake(lambda path, body: written(body)) as again, policy_at(again.url) as policy:
        found = searched(search, policy, truth(), store)
    assert found == undisturbed
    assert len(again.bodies) == len(whole.bodies) - answered  # what was answered is not asked again


@pytest.mark.parametrize("search", SEARCHES, ids=lambda s: s.name)
def test_a_dead_server_and_one_that_hangs_end_the_run_with_an_error(search):
    store = MemoryReplies()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound and not listening
        with (
            policy_at(f"http://127.0.0.1:{taken.getsockname()[1]}/v1") as policy,
            pytest.raises(BackendError, match=r"nothing answers there \(ConnectError"),
        ):
            searched(search, policy, truth(), store)

    given_up = threading.Event()

    def hangs(path, body):
        given_up.wait(30)
        raise ConnectionAbortedError

    with Fake(hangs) as fake, policy_at(fake.url, replace(HASTE, timeout=0.3)) as policy:
        with pytest.raises(BackendError, match="Timeout"):
            searched(search, policy, truth(), store)
        given_up.set()
    assert len(store) == 0


def test_a_prm_behind_a_server_that_is_late_dies_or_is_dead(zoo):
    built = zoo["qwen-prm"]
    search = replace(SEARCHES[1], width=1)
    give = as_vllm(built, every_token=False)
    world = World(TREE, lambda steps: 0.5)

    def late(body):
        time.sleep(0.05)
        return give(body)

    found = []
    for pooling in (give, late):
        with TokenServer("/pooling", pooling) as server, client(server, built) as prm:
            found.append(searched(search, world.policy, prm))
            assert "a server keeps no state" in prms.why_whole_prefixes(prm)
    assert found[0] == found[1]  # late costs time

    store, seen = MemoryReplies(), []

    def dies(body):
        seen.append(body)
        return give(body) if len(seen) == 1 else (500, json.dumps({"error": "gone"}).encode())

    with (
        TokenServer("/pooling", dies) as server,
        client(server, built) as prm,
        pytest.raises(BackendError, match=re.escape("/pooling")),
    ):
        searched(search, world.policy, _named(prm), store)
    assert sum(text.startswith('{"score"') for text in store._replies.values()) > 0
    with TokenServer("/pooling", give) as server, client(server, built) as prm:
        again = searched(search, world.policy, _named(prm), store)
    assert again == found[0]


def _named(prm):
    """Under one name, though the servers of a test have other ports."""
    session = prm.open_session()
    return BatchScorer("the PRM", session.score, session.release)
