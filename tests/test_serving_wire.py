"""No request makes the server fail: random JSON, random changes of good requests, random bytes, random texts."""

from __future__ import annotations

import asyncio
import copy
import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from serving_site import prm, site
from stepmark.models.remote import wire
from stepmark.serving.errors import TYPES
from stepmark.serving.settings import ServerSettings
from stepmark.solutions.segmentation import WAYS

EXAMPLES = [
    (path, example)
    for path, model in (
        ("/v1/score", wire.ScoreRequest),
        ("/v1/rank", wire.RankRequest),
        ("/pooling", wire.PoolingRequest),
        ("/v1/sessions", wire.SessionRequest),
        ("/v1/sessions/SESSION/steps", wire.StepsRequest),
        ("/v1/sessions/SESSION/release", wire.ReleaseRequest),
        ("/v1/sessions/none/steps", wire.StepsRequest),
    )
    for example in model.model_json_schema()["examples"]
]
PATHS = list(dict.fromkeys(path for path, _ in EXAMPLES))

texts = st.text(max_size=40) | st.sampled_from(
    ["", " ", "\n", "\x00", "\ud800", "\u2028", "<|im_end|>", "a" * 3000]
)
leaves = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.sampled_from([2**63, -(2**63), 10**400, 0, -1])
    | st.floats()
    | texts
    | st.sampled_from([[], {}, [[]], [None], "auto", "min", "sums"])
)
values = st.recursive(
    leaves,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=12,
)
fields = st.sampled_from(
    sorted({name for model in vars(wire).values() if isinstance(model, type) and hasattr(model, "model_fields") for name in model.model_fields})
)  # fmt: skip
profile = settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))


class Place:
    """A server that stays for the module."""

    def __init__(self):
        self.runner = asyncio.Runner()
        self._site = site(
            prm(script=lambda problem, steps: 0.5),
            ServerSettings(max_solutions=16, max_steps=16, sessions=10**6),
        )
        self.client, _ = self.runner.run(self._site.__aenter__())
        self.session = self.runner.run(self.client.post("/v1/sessions", json={"problem": "p"})).json()["id"]

    def post(self, path, body):
        """Every answer is 200, or an error of 4xx that says what is wrong."""
        answer = self.runner.run(
            self.client.post(
                path.replace("SESSION", self.session),
                content=body,
                headers={"content-type": "application/json"},
            )
        )
        assert answer.status_code < 500, (body, answer.text)
        if answer.status_code != 200:
            error = wire.ErrorAnswer.model_validate(answer.json()).error
            assert TYPES[error.type][0] == answer.status_code
            assert error.message
        return answer

    def close(self):
        self.runner.run(self._site.__aexit__(None, None, None))
        self.runner.close()


@pytest.fixture(scope="module")
def place():
    made = Place()
    yield made
    made.close()


@profile
@given(path=st.sampled_from(PATHS), body=values)
def test_random_json(place, path, body):
    place.post(path, json.dumps(body))


@profile
@given(data=st.data(), example=st.sampled_from(EXAMPLES))
def test_changes_of_good_requests(place, data, example):
    path, body = example[0], copy.deepcopy(example[1])
    for _ in range(data.draw(st.integers(1, 3))):
        at = body
        while True:
            keys = list(at) if isinstance(at, dict) else list(range(len(at)))
            if not keys:
                break
            key = data.draw(st.sampled_from(keys))
            if isinstance(at[key], dict | list) and data.draw(st.booleans()):
                at = at[key]
                continue
            how = data.draw(st.sampled_from(["change", "drop", "add"]))
            if how == "change" or isinstance(at, list):
                # A copy: a later change may go into it, and `sampled_from` hands the same list out again.
                at[key] = copy.deepcopy(data.draw(values))
            elif how == "drop":
                del at[key]
            else:
                at[data.draw(fields)] = copy.deepcopy(data.draw(values))
            break
    place.post(path, json.dumps(body))


@profile
@given(path=st.sampled_from(PATHS), body=st.binary(max_size=60))
def test_random_bytes(place, path, body):
    assert place.post(path, body).status_code in (400, 404)


@profile
@given(
    text=st.text(max_size=200) | st.text(alphabet="a1.\n $`\\()*#-", max_size=200),
    how=st.sampled_from(WAYS),
    marker=st.none() | st.text(max_size=3),
)
def test_random_texts_are_cut_or_refused(place, text, how, marker):
    body = {"problem": "p", "solution": text, "split": how, "marker": marker}
    answer = place.post("/v1/score", json.dumps(body))
    if answer.status_code == 200:
        [result] = answer.json()["results"]
        assert len(result["scores"]) == len(result["steps"]) > 0
        assert all(step.strip() for step in result["steps"])


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("x" * 41, "a string"),
        ("xxx", "'xxx'"),
        ([1] * 50, "a list"),
        ({}, "an object"),
        (True, "true"),
        (1.5, "1.5"),
    ],
)
def test_an_error_shows_what_was_found_only_where_it_is_short(place, value, shown):
    answer = place.post("/v1/sessions/SESSION/steps", json.dumps({"steps": [{"text": "a", "after": value}]}))
    assert answer.json()["error"] == {
        "type": "invalid_request",
        "message": f"expected a whole number, found {shown}",
        "field": "steps.0.after",
    }
