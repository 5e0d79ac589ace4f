"""Small worlds for the tests of search: a policy that walks a known tree, and a PRM that knows every prefix's score."""

from __future__ import annotations

import re

from stepmark.backends import Completion, cut_at_stop
from stepmark.backends.replies import MemoryReplies
from stepmark.models.scripted import ScriptedPolicy, ScriptedPRM
from stepmark.records import Problem
from stepmark.searches.run import models_of, run
from stepmark.verifiers.base import load_verifier

PROBLEM = Problem(text="What is it?", id="p", answer="7")


class World:
    """A tree of steps with scores.

    `tree` maps a prefix (a tuple of steps) to the steps that may follow; a prefix that it does not have is an end. Sample n of a
    prefix is its n-th option, counted around; of whole solutions, the digits of n choose at each depth in turn. A step costs its
    words and one more token; a request is told its prompt in words.
    """

    def __init__(self, tree, scores, *, kind="probability", name="world"):
        self.tree, self.name = tree, name
        self.requests = []
        self.decoded = 0
        self.scored = []
        self.policy = ScriptedPolicy(self._write, name=name)

        def score(problem, steps):
            self.scored.append(steps)
            return scores(steps) if callable(scores) else scores[steps]

        self.prm = ScriptedPRM(score, score_kind=kind, name=name)

    def _write(self, request, number):
        self.requests.append((request, number))
        *whole, begun = request.prefill.split("\n")
        steps = tuple(step for step in whole if step)
        told = len(str(request.prompt).split()) + len(request.prefill.split())
        text, finish = "", "end"
        while steps in self.tree:
            options = self.tree[steps]
            options = [option for option in options if option.startswith(begun)]
            step = options[number % len(options)] if request.temperature else options[0]
            number //= len(options)
            steps = (*steps, step)
            text += step[len(begun) :] + ("\n" if steps in self.tree else "")
            begun = ""
            if request.stop and cut_at_stop(text, request.stop)[1]:
                text, finish = cut_at_stop(text, request.stop)[0], "stop"
                break
        tokens = len(text.split()) + 1
        if tokens > request.max_tokens:
            ends = [found.end() for found in re.finditer(r"\S+", text)]
            text, finish, tokens = text[: ends[request.max_tokens - 1]], "length", request.max_tokens
        self.decoded += tokens
        return Completion(text=text, finish=finish, tokens=tokens, prompt_tokens=told)

    def asked(self, *steps):
        """How many samples were asked for after these steps."""
        return sum(request.prefill == "".join(f"{step}\n" for step in steps) for request, _ in self.requests)

    @property
    def models(self):
        return models_of(self.policy, self.prm)

    def find(self, search, problem=PROBLEM, **more):
        [found] = run([problem], search, self.models, load_verifier("number"), store=MemoryReplies(), **more)
        return found


def full_tree(depth, options, *, answer=str):
    """Every step is its place among the options ("a", "b", …) with its depth; the last one names an answer."""
    tree, level = {}, [()]
    for at in range(depth):
        last = at == depth - 1
        below = []
        for prefix in level:
            names = [
                f"so the answer is {answer(place)}{len(prefix)}{place}"
                if last
                else f"step {at} {'abcdef'[place]}"
                for place in range(options)
            ]
            tree[prefix] = names
            below += [(*prefix, name) for name in names]
        level = below
    return tree, level


def state_of(found):
    """Step text to state, of the first node of a trace with that text."""
    states = {}
    for node in found.trace.nodes:
        states.setdefault(node.step, node.state)
    return states
