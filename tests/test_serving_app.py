"""What the score server answers: scores, orders, what it says of itself, and every error of its table."""

from __future__ import annotations

import asyncio
from itertools import pairwise

import pytest
from prometheus_client.parser import text_string_to_metric_families

from serving_site import PROBLEM, prm, sums, talk
from stepmark import Solution, load_prm
from stepmark.errors import BackendError, MarkerInTextError, TooLongError
from stepmark.models.remote import wire
from stepmark.rl import turn_rewards
from stepmark.serving.errors import TYPES
from stepmark.serving.settings import ServerSettings

RIGHT = ["12 * 8 = 96 rolls are baked.", "96 - 70 = 26 rolls are left."]
WRONG = ["12 * 8 = 96 rolls are baked.", "96 - 70 = 36 rolls are left."]
JSON = {"content-type": "application/json"}


def error(answer, status, kind, field=None):
    assert answer.status_code == status, answer.text
    body = wire.ErrorResponse.model_validate(answer.json()).error
    assert (body.type, body.field) == (kind, field), body
    assert TYPES[kind] == status
    return body.message


# ---- scores ----


def test_scores_of_several_solutions():
    async def conversation(client):
        body = {
            "solutions": [
                {"problem": PROBLEM, "steps": WRONG, "id": "w"},
                {"problem": PROBLEM, "solution": "\n".join(RIGHT)},
                {"problem": "What is 2 + 2?", "steps": ["2 + 2 = 5", "5 - 1 = 4"]},
            ]
        }
        answer = await client.post("/v1/score", json=body)
        assert answer.status_code == 200
        wire.ScoreResponse.model_validate(answer.json())
        assert answer.json() == {
            "object": "scores",
            "model": "sums",
            "score_kind": "probability",
            "aggregate": "min",
            "threshold": 0.5,
            "usage": {"solutions": 3, "steps": 6, "tokens": None},
            "results": [
                {
                    "index": 0,
                    "id": "w",
                    "scores": [0.9, 0.2],
                    "score": 0.2,
                    "first_error": 1,
                    "first_error_step": 2,
                    "tokens": None,
                },
                {
                    "index": 1,
                    "scores": [0.9, 0.9],
                    "score": 0.9,
                    "first_error": -1,
                    "first_error_step": None,
                    "steps": RIGHT,
                    "tokens": None,
                },
                {
                    "index": 2,
                    "scores": [0.2, 0.9],
                    "score": 0.2,
                    "first_error": 0,
                    "first_error_step": 1,
                    "tokens": None,
                },
            ],
        }

    talk(conversation)


def test_texts_are_cut_as_asked():
    async def conversation(client):
        text = "@".join(RIGHT)
        body = {"problem": PROBLEM, "solution": text, "split": "marker", "marker": "@"}
        answer = await client.post("/v1/score", json=body)
        assert answer.json()["results"][0]["steps"] == RIGHT
        answer = await client.post(
            "/v1/score", json={"solutions": [{"problem": PROBLEM, "solution": "1 + 1 = 2", "split": "whole"}]}
        )
        assert answer.json()["results"][0]["steps"] == ["1 + 1 = 2"]

    talk(conversation)


def refusing(problem, steps):
    if "marker" in steps[-1]:
        raise MarkerInTextError("the marker stands in the text", field="steps")
    if "long" in steps[-1]:
        raise TooLongError("5000 tokens, more than 4096")
    return 0.75


def test_what_the_prm_cannot_read_has_an_error_in_its_place():
    async def conversation(client):
        body = {
            "solutions": [
                {"problem": "p", "steps": ["fine"]},
                {"problem": "p", "steps": ["marker"], "id": "mine"},
                {"problem": "p", "steps": ["long"]},
                {"problem": " ", "steps": ["a"]},
                {"problem": "p", "steps": []},
                {"problem": "p", "steps": ["a", "\n"]},
                {"problem": "p", "solution": " "},
                {"problem": "p", "solution": "all good"},
            ]
        }
        answer = (await client.post("/v1/score", json=body)).json()
        wire.ScoreResponse.model_validate(answer)
        results = answer["results"]
        assert [one["index"] for one in results] == list(range(8))
        assert [one.get("score") for one in results] == [0.75, *[None] * 6, 0.75]
        assert [(one["error"]["type"], one["error"].get("field")) for one in results[1:7]] == [
            ("marker_in_text", "solutions.1.steps"),
            ("too_long", "solutions.2"),
            ("invalid_request", "solutions.3.problem"),
            ("invalid_request", "solutions.4.steps"),
            ("invalid_request", "solutions.5.steps"),
            ("invalid_request", "solutions.6.solution"),
        ]
        assert results[1]["id"] == "mine"
        assert answer["usage"] == {"solutions": 2, "steps": 2, "tokens": None}
        # Of a single one the answer is the error.
        message = error(
            await client.post("/v1/score", json={"problem": "p", "steps": ["marker"]}),
            400,
            "marker_in_text",
            "steps",
        )
        assert message == "the marker stands in the text"
        error(await client.post("/v1/score", json={"problem": "p", "steps": ["long"]}), 413, "too_long")
        error(
            await client.post("/v1/score", json={"problem": "", "steps": ["a"]}),
            400,
            "invalid_request",
            "problem",
        )
        error(
            await client.post("/v1/score", json={"problem": "p", "steps": []}),
            400,
            "invalid_request",
            "steps",
        )

    talk(conversation, prm(script=refusing))


# ---- order ----


def test_candidates_come_best_first_and_equal_ones_by_index():
    async def conversation(client):
        body = {
            "problem": PROBLEM,
            "solutions": [
                {"steps": WRONG},
                "marker\n1 + 1 = 2\nno sum",
                {"steps": RIGHT, "id": "b"},
                {"steps": ["1 + 1 = 2", " "]},
                {"solution": "\n".join(RIGHT)},
                WRONG,
            ],
        }
        answer = (await client.post("/v1/rank", json=body)).json()
        wire.RankResponse.model_validate(answer)
        assert answer["object"] == "ranking"
        assert [one["index"] for one in answer["results"]] == [2, 4, 0, 5, 1, 3]
        assert [one.get("score") for one in answer["results"]] == [0.9, 0.9, 0.2, 0.2, None, None]
        assert answer["results"][0]["id"] == "b"
        assert answer["results"][1]["steps"] == RIGHT
        assert answer["results"][5]["error"]["field"] == "solutions.3.steps"
        assert answer["usage"]["solutions"] == 4

    def script(problem, steps):
        if "marker" in steps[-1] or "no sum" in steps[-1]:
            raise MarkerInTextError("the marker stands in the text", field="steps")
        return sums(problem, steps)

    talk(conversation, prm(script=script))


# ---- prefixes that grow ----


def test_prefixes_sent_whole_by_several_clients_are_computed_once(zoo):
    """Branches of two searches, one step longer each time, as a search sends them: what is distinct is computed, nothing twice."""
    model = load_prm(str(zoo["qwen-prm"].folder), dtype="float32", device="cpu")
    here = load_prm(str(zoo["qwen-prm"].folder), dtype="float32", device="cpu")
    branches = [[f"{a} + {b} = {a + b}" for b in range(4)] for a in (1, 1, 2, 3)]
    sent = []

    async def search(client, problem):
        for depth in range(1, 5):
            solutions = [{"problem": problem, "steps": branch[:depth]} for branch in branches]
            answer = await client.post("/v1/score", json={"solutions": solutions})
            for solution, result in zip(solutions, answer.json()["results"], strict=True):
                sent.append((solution, result))

    async def conversation(client):
        await asyncio.gather(
            search(client, "What is it?"), search(client, "And that?"), search(client, "What is it?")
        )

    talk(conversation, model)
    prefixes = set()
    for solution, result in sent:
        solo = Solution.of(solution["problem"], solution["steps"])
        encoded = here.encoder.encode(solo)
        ids = encoded.ids[: encoded.reads[-1] + 1].tolist()
        prefixes |= {tuple(ids[: end + 1]) for end in range(len(ids))}
        # What the tokens of each step are, in the text alone.
        ends = [encoded.problem_tokens, *(read + 1 for read in encoded.reads)]
        assert result["problem_tokens"] == encoded.problem_tokens
        assert result["step_tokens"] == [end - start for start, end in pairwise(ends)]
        assert result["scores"] == pytest.approx(here.score(None, solo), abs=1e-6)
    assert model.ledger.tokens_computed == model.ledger.tokens_distinct == len(prefixes)
    assert model.ledger.tokens_again == 0


# ---- what the server says of itself ----


def test_models_health_and_readiness():
    async def conversation(client):
        assert (await client.get("/health")).json() == {"status": "ok"}
        listed = (await client.get("/v1/models")).json()
        [entry] = wire.ModelsResponse.model_validate(listed).data
        assert (entry.id, entry.owned_by, entry.max_model_len) == ("mine", "stepmark", None)
        facts = entry.stepmark
        assert facts is not None
        assert (facts.score_kind, facts.default_aggregate, facts.default_threshold) == (
            "probability",
            "min",
            0.5,
        )
        assert (facts.prefix_cache, facts.pooling, facts.identity) == (False, False, "mine")

    talk(conversation, settings=ServerSettings(name="mine"))


@pytest.mark.parametrize(
    ("path", "request_model", "answer_model"),
    [
        ("/v1/score", wire.ScoreSolutionsRequest, wire.ScoreResponse),
        ("/v1/rank", wire.RankRequest, wire.RankResponse),
        ("/v1/rewards", wire.RewardsRequest, wire.RewardsResponse),
    ],
)
def test_every_example_is_answered_as_declared(path, request_model, answer_model):
    async def conversation(client):
        for example in request_model.model_json_schema()["examples"]:
            answer = await client.post(path, json={**example, "model": "sums"})
            assert answer.status_code == 200, answer.text
            read = answer_model.model_validate_json(answer.content)
            assert read.model_dump(mode="json", exclude_unset=True) == answer.json()

    talk(conversation, prm(script=lambda problem, steps: 0.5))


def test_rewards_are_those_of_the_library():
    def script(problem, steps):
        return 0.2 if "18" in steps[-1] else 0.9

    asked = {"role": "user", "content": "3 pens at 4 and a book at 5?"}
    conversations = [
        [asked, {"role": "assistant", "content": "4 * 3 = 12"}, {"role": "user", "content": "Go on."}, {"role": "assistant", "content": end}]
        for end in ("12 + 5 = 18", "12 + 5 = 17")
    ]  # fmt: skip
    masks = [[0, 1, 0, 1, 1], [0, 1, 1, 0, 1]]
    settings = {"outcome": [0.0, 1.0], "credit": "discounted", "masks": masks}
    expected = turn_rewards(conversations, prm=prm(script=script), **settings)

    async def conversation(client):
        answer = (await client.post("/v1/rewards", json={"messages": conversations, **settings})).json()
        wire.RewardsResponse.model_validate(answer)
        for one, known in zip(answer["results"], expected, strict=True):
            assert (one["turns"], one["scores"]) == (list(known.turns), list(known.scores))
            assert one["tokens"] == list(known.tokens)
        plain = (
            await client.post("/v1/rewards", json={"messages": conversations, "outcome": [None, 1.0]})
        ).json()
        assert [one["turns"] for one in plain["results"]] == [[None, None], [0.9, 1.9]]
        for body in (
            {"messages": [conversations[0][:1]]},
            {"messages": conversations, "outcome": [1.0]},
            {"messages": conversations, "credit": "ppo"},
            {"messages": conversations, "credit": "nothing"},
            {"messages": conversations, "masks": [[1]] * 2},
            {"messages": conversations, "turns": 3},
        ):
            reply = await client.post("/v1/rewards", json=body)
            assert reply.status_code == 400, (body, reply.text)

    talk(conversation, prm(script=script))


# ---- metrics ----


def parsed(text):
    """Prometheus's text format: {family: kind}, {sample: {labels: value}}."""
    families = list(text_string_to_metric_families(text))
    samples = {}
    for family in families:
        for sample in family.samples:
            samples.setdefault(sample.name, {})[tuple(sorted(sample.labels.items()))] = sample.value
    return {family.name: family.type for family in families}, samples


def test_a_server_without_a_policy_says_what_answers_conversations():
    async def conversation(client):
        body = {"messages": [{"role": "user", "content": "Half of 26?"}]}
        answer = await client.post("/v1/chat/completions", json=body)
        error(answer, 404, "not_found")
        assert "--policy" in answer.json()["error"]["message"]
        assert "--policy" not in (await client.get("/nowhere")).json()["error"]["message"]

    talk(conversation)


def test_metrics_are_prometheus_and_say_what_happened():
    name = 'a "name"\\with\nall of it'

    async def conversation(client):
        for _ in range(3):
            await client.post("/v1/score", json={"problem": "p", "steps": ["1 + 1 = 2", "1 + 1 = 3"]})
        await client.post("/v1/score", json={})
        await client.get("/nowhere")
        await client.get("/nowhere/else")
        answer = await client.get("/metrics")
        assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
        kinds, found = parsed(answer.text)
        assert set(kinds.values()) == {"counter", "gauge", "histogram"}
        requests = found["stepmark_http_requests_total"]

        def count(route, method, status):
            return requests.get((("method", method), ("route", route), ("status", status)))

        assert count("/v1/score", "POST", "200") == 3
        assert count("/v1/score", "POST", "400") == 1
        assert count("other", "GET", "404") == 2
        assert not any("nowhere" in str(key) for key in requests)
        assert found["stepmark_items_total"][()] == 3
        assert found["stepmark_tokens_in_total"][()] == 3 * (
            1 + 10
        )  # words: the problem's one and two steps of five
        assert found["stepmark_queue_tokens"][()] == 0
        [info] = found["stepmark_info"]
        assert dict(info)["model"] == name
        # A histogram's buckets grow, and the last has all.
        buckets = {
            dict(key)["le"]: value
            for key, value in found["stepmark_http_request_seconds_bucket"].items()
            if dict(key)["route"] == "/v1/score"
        }
        values = list(buckets.values())
        assert values == sorted(values)
        assert buckets["+Inf"] == 4
        assert found["stepmark_http_request_seconds_count"][("route", "/v1/score"),] == 4

    talk(conversation, prm(name=name))


# ---- errors ----


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        ("/v1/score", {}, "solutions"),
        ("/v1/score", {"solutions": []}, "solutions"),
        ("/v1/score", {"solutions": [None]}, "solutions.0"),
        ("/v1/score", {"solutions": [{"problem": "p", "steps": ["a"]}, {"steps": ["a"]}]}, "solutions.1.problem"),
        ("/v1/score", {"solutions": [{"problem": "p"}]}, "solutions.0.steps"),
        ("/v1/score", {"problem": "p", "steps": ["a"], "solution": "a"}, "steps"),
        ("/v1/score", {"problem": "p", "steps": ["a", 1]}, "steps.1"),
        ("/v1/score", {"problem": "p", "steps": ["a"], "solutions": [{"problem": "p", "steps": ["a"]}]}, "problem"),
        ("/v1/score", {"problem": "p", "step": ["a"]}, "step"),
        ("/v1/score", {"problem": "p", "steps": ["a"], "aggregate": "prod"}, "aggregate"),
        ("/v1/score", {"problem": "p", "steps": ["a"], "threshold": 2}, "threshold"),
        ("/v1/score", {"problem": "p", "steps": ["a"], "timeout": 1e9}, "timeout"),
        ("/v1/score", {"problem": "p", "solution": "a", "split": "lines"}, "split"),
        ("/v1/score", {"problem": "p", "solution": "a", "split": "line", "marker": "@"}, "marker"),
        ("/v1/score", {"solutions": [{"problem": "p", "solution": "a", "split": "lines"}]}, "solutions.0.split"),
        ("/v1/rank", {"problem": " ", "solutions": ["a"]}, "problem"),
        ("/v1/rank", {"problem": "p", "solutions": [3]}, "solutions.0"),
        ("/pooling", {"input": [[1]]}, None),
        ("/pooling", {"input": [[1]], "task": "embed"}, "task"),
    ],
)  # fmt: skip
def test_a_bad_field_gives_one_clear_error(path, body, field):
    async def conversation(client):
        error(await client.post(path, json=body), 400, "invalid_request", field)

    talk(conversation)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"\xff\xfe",
        b'{"problem": "\xff", "steps": ["a"]}',
        b'{"problem": "\\ud800", "steps": ["a"]}',
        b'{"problem": "p", "steps": ["a"], "threshold": NaN}',
        b'{"problem": "p", "steps": ["a"], "timeout": 1e999}',
        b'{"problem": "p", "steps": ["a"], "timeout": ' + b"9" * 10_000 + b"}",
        b"[" * 100_000,
        b'{"problem": "p", "steps": ' + b"[" * 1000 + b"]" * 1000 + b"}",
        b'{"problem": "p"} {"problem": "p"}',
    ],
    ids=lambda body: repr(body[:24]),
)
def test_bodies_that_are_no_request_are_refused_with_400(body):
    async def conversation(client):
        answer = await client.post("/v1/score", content=body, headers=JSON)
        assert answer.status_code == 400, answer.text
        assert answer.json()["error"]["type"] == "invalid_request"
        assert len(answer.content) < 1000

    talk(conversation)


def test_more_than_one_request_may_have_is_too_large():
    async def conversation(client):
        one = {"problem": "p", "steps": ["1 + 1 = 2"]}
        error(await client.post("/v1/score", json={"solutions": [one] * 4}), 413, "too_long", "solutions")
        body = {"problem": "p", "solutions": ["1 + 1 = 2"] * 4}
        error(await client.post("/v1/rank", json=body), 413, "too_long", "solutions")

    talk(conversation, settings=ServerSettings(max_solutions=3))


@pytest.mark.parametrize("kind", [BackendError, RuntimeError])
def test_a_model_that_fails_is_500_and_the_server_lives_on(kind):
    def script(problem, steps):
        if problem == "bad":
            raise kind("the model fell over")
        return 0.5

    async def conversation(client):
        bad = await client.post("/v1/score", json={"problem": "bad", "steps": ["a"]})
        assert "the model fell over" in error(bad, 500, "failed")
        assert (await client.post("/v1/score", json={"problem": "p", "steps": ["a"]})).status_code == 200

    talk(conversation, prm(script=script))
