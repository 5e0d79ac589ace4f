"""`/pooling` of the server against PRMs in this process, on tiny checkpoints in float32."""

from __future__ import annotations

import pytest
import torch

from serving_site import talk  # isort: skip  (it skips where fastapi is not installed)
from score_servers import OnPort
from stepmark import load_prm
from stepmark.models.pooling import PoolingPRM
from stepmark.records import Refusal, Solution
from stepmark.serving.settings import ServerSettings

torch.set_num_threads(1)

SOLUTION = Solution.of("Ann has 3 boxes of 12 pens. How many?", ["3 * 12 = 36 pens.", "The answer is 36."])


def load(zoo, name):
    return load_prm(str(zoo[name].folder), dtype="float32", device="cpu")


def close(found, expected):
    if isinstance(expected, list):
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            close(one, other)
    elif isinstance(expected, float):
        assert found == pytest.approx(expected, abs=1e-5)
    else:
        assert found == expected


def test_pooling_gives_the_heads_rows(zoo):
    built = zoo["qwen-prm"]
    model = load(zoo, "qwen-prm")
    ids = model.encoder.encode(SOLUTION).ids.tolist()
    expected = model.score(SOLUTION.problem.text, steps=SOLUTION.texts)

    async def conversation(client):
        name = (await client.get("/v1/models")).json()["data"][0]["id"]
        assert name == built.folder.name
        body = {"model": name, "input": [ids, ids], "task": "token_classify", "use_activation": False}
        answer = await client.post("/pooling", json=body)
        pooled = answer.json()
        assert [one["index"] for one in pooled["data"]] == [0, 1]
        assert pooled["usage"]["prompt_tokens"] == pooled["usage"]["total_tokens"] == 2 * len(ids)
        rows = torch.tensor(pooled["data"][0]["data"])
        close(torch.softmax(rows, -1)[:, 1].tolist(), expected)
        activated = await client.post("/pooling", json={"input": ids})
        close(torch.tensor(activated.json()["data"][0]["data"])[:, 1].tolist(), expected)
        for body, field in (
            ({"input": []}, "input"),
            ({"input": 3}, "input"),
            ({"input": None}, "input"),
            ({"input": {}}, "input"),
            ({"input": "a text"}, "input"),
            ({"input": [[]]}, "input.0"),
            ({"input": [ids, "text"]}, "input.1"),
            ({"input": [1, -1]}, "input.0.1"),
            ({"input": [1, True]}, "input.0.1"),
            ({"input": [1, 1.5]}, "input.0.1"),
            ({"input": [1, 2**40]}, "input.0.1"),
            ({"input": [[1], [10_000_000]]}, "input.1"),
        ):
            answer = await client.post("/pooling", json=body)
            assert answer.status_code == 400, (body, answer.text)
            assert answer.json()["error"]["field"] == field, answer.text
        long = await client.post("/pooling", json={"input": [[1] * 5000]})
        assert (long.status_code, long.json()["error"]["field"]) == (413, "input.0")
        refused = await client.post("/pooling", json={"input": [[1]] * 4})
        assert refused.status_code == 413

    talk(conversation, model, ServerSettings(max_solutions=3))


@pytest.mark.parametrize("name", ["qwen-prm", "token-classification"])
def test_a_prm_behind_vllms_pooling_is_served_by_ours_unchanged(zoo, name):
    solutions = [Solution.of("p " * (i + 1), ["a b c.", f"{i} + 1 = {i + 1}", "so it is"]) for i in range(5)]
    local = list(load(zoo, name).score_many(solutions))
    with OnPort(load(zoo, name)) as server:
        remote = load_prm(server.url, tokenizer=str(zoo[name].folder))
        assert isinstance(remote, PoolingPRM)
        with remote:
            found = list(remote.score_many(solutions))
    for one, other in zip(found, local, strict=True):
        assert not isinstance(one, Refusal)
        close(list(one.scores), list(other.scores))
