"""Answers of the server against `stepmark grade` and against PRMs in this process, on tiny checkpoints in float32."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from contextlib import contextmanager

import pytest
import torch

from serving_site import talk  # isort: skip  (it skips where fastapi is not installed)
import uvicorn

from stepmark import load_prm
from stepmark.cli import main
from stepmark.models.pooling import PoolingPRM
from stepmark.models.remote import wire
from stepmark.records import Refusal, Solution
from stepmark.serving.app import guarded
from stepmark.serving.service import Service
from stepmark.serving.settings import ServerSettings

torch.set_num_threads(1)

ROWS = [
    {"problem": "Ann has 3 boxes of 12 pens. How many?", "steps": ["3 * 12 = 36 pens.", "The answer is 36."]},
    {"problem": "Ann has 3 boxes of 12 pens. How many?", "steps": ["3 * 12 = 36 pens.", "She has 6."]},
    {"problem": "2x + 5 = 17", "solution": "First 2x = 12.\n\nThen x = 6.\n\nSo x = 6."},
    {"problem": "How far in 4 hours?", "solution": "240 / 60 = 4, so it is 240. That is far."},
    {"problem": "2x + 5 = 17", "steps": ["2x = 12."]},
]
FAMILIES = {"qwen-prm": None, "token-classification": None, "three-class": "three-class", "math-shepherd": "math-shepherd"}  # fmt: skip


def load(zoo, name, **more):
    family = FAMILIES.get(name)
    return load_prm(str(zoo[name].folder), family=family, dtype="float32", device="cpu", **more)


def close(found, expected):
    if isinstance(expected, list):
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            close(one, other)
    elif isinstance(expected, float):
        assert found == pytest.approx(expected, abs=1e-5)
    else:
        assert found == expected


@pytest.mark.parametrize("name", [*FAMILIES, "implicit", "orm"])
def test_answers_equal_those_of_stepmark_grade(zoo, tmp_path, name):
    file, graded = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in ROWS), encoding="utf-8")
    words = ["grade", str(file), "--prm", str(zoo[name].folder), "--dtype", "float32", "--device", "cpu"]
    more = {}
    if name == "implicit":
        more = {"reference": str(zoo[name].reference.folder), "family": "implicit"}
        words += ["--reference", more["reference"], "--family", "implicit"]
    elif FAMILIES.get(name):
        words += ["--family", FAMILIES[name]]
        more = {"family": FAMILIES[name]}
    if name == "orm":  # which grade reads as an outcome model only beside a PRM
        more = {"outcome": True}
        rows = None
    else:
        assert main([*words, "--out", str(graded)]) == 0
        rows = [json.loads(line) for line in graded.read_text(encoding="utf-8").splitlines()]
    model = load_prm(str(zoo[name].folder), dtype="float32", device="cpu", **more)
    if rows is None:
        from stepmark.models.prm import grade, to_row
        from stepmark.solutions.formats import read_solution

        solutions = [read_solution(row).solution for row in ROWS]
        rows = [to_row(one, row) for one, row in zip(grade(solutions, model), ROWS, strict=True)]

    async def conversation(client):
        body = {"solutions": ROWS}
        for _ in range(2):  # the second time out of what is kept
            answer = (await client.post("/v1/score", json=body)).json()
            wire.ScoreAnswer.model_validate(answer)
            for result, row in zip(answer["results"], rows, strict=True):
                for key in ("scores", "score", "first_error"):
                    close(result[key], row[key])
                if "classes" in row:
                    close(result["classes"], row["classes"])
                if "solution" in row:
                    assert result["steps"] == row["steps"]
                assert result["tokens"] > 0
            for key in ("score_kind", "aggregate", "threshold"):
                assert answer[key] == rows[0][key]
        # One by one, and all at the same time.
        singles = await asyncio.gather(*(client.post("/v1/score", json=row) for row in ROWS))
        for single, row in zip(singles, rows, strict=True):
            close(single.json()["results"][0]["scores"], row["scores"])

    talk(conversation, model)


def test_pooling_gives_the_heads_rows(zoo):
    built = zoo["qwen-prm"]
    model = load(zoo, "qwen-prm")
    solution = Solution.of(ROWS[0]["problem"], ROWS[0]["steps"])
    ids = model.encoder.encode(solution).ids.tolist()
    expected = model.score(solution.problem.text, solution.texts)

    async def conversation(client):
        name = (await client.get("/v1/models")).json()["data"][0]["id"]
        assert name == built.folder.name
        body = {"model": name, "input": [ids, ids], "task": "token_classify", "use_activation": False}
        answer = await client.post("/pooling", json=body)
        pooled = wire.PoolingAnswer.model_validate(answer.json())
        assert [one.index for one in pooled.data] == [0, 1]
        assert pooled.usage.prompt_tokens == pooled.usage.total_tokens == 2 * len(ids)
        rows = torch.tensor(pooled.data[0].data)
        close(torch.softmax(rows, -1)[:, 1].tolist(), expected)
        activated = await client.post("/pooling", json={"input": ids})
        close(torch.tensor(activated.json()["data"][0]["data"])[:, 1].tolist(), expected)
        for body, field in (
            ({"input": []}, "input"),
            ({"input": 3}, "input"),
            ({"input": None}, "input"),
            ({"input": {}}, "input"),
            ({"input": [[]]}, "input.0"),
            ({"input": [ids, "text"]}, "input.1"),
            ({"input": ["text", ids]}, "input.1"),
            ({"input": [""]}, "input.0"),
            ({"input": [1, -1]}, "input"),
            ({"input": [1, True]}, "input"),
            ({"input": [1, 1.5]}, "input"),
            ({"input": [1, 2**40]}, "input"),
            ({"input": [[1], [10_000_000]]}, "input.1"),
            ({"input": [[1] * 5000]}, "input.0"),
        ):
            answer = await client.post("/pooling", json=body)
            assert answer.status_code == 400, (body, answer.text)
            assert answer.json()["error"]["field"] == field, answer.text
        assert (await client.post("/pooling", json={"input": "a text"})).status_code == 200
        refused = await client.post("/pooling", json={"input": [[1]] * 4})
        assert refused.status_code == 413

    talk(conversation, model, ServerSettings(max_solutions=3))


@contextmanager
def listening(model, settings=None):
    """The server on a port of this machine; its address."""
    service = Service(lambda: model, settings or ServerSettings())
    config = uvicorn.Config(guarded(service), host="127.0.0.1", port=0, log_level="error", ws="none")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        while not server.started or service.state == "loading":
            assert thread.is_alive(), "the server did not start"
            time.sleep(0.01)
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()


@pytest.mark.parametrize("name", ["qwen-prm", "token-classification"])
def test_a_prm_behind_vllms_pooling_is_served_by_ours_unchanged(zoo, monkeypatch, name):
    for variable in ("STEPMARK_API_KEY", "http_proxy", "all_proxy", "HTTP_PROXY", "ALL_PROXY"):
        monkeypatch.delenv(variable, raising=False)
    solutions = [Solution.of("p " * (i + 1), ["a b c.", f"{i} + 1 = {i + 1}", "so it is"]) for i in range(5)]
    local = list(load(zoo, name).score_many(solutions))
    with listening(load(zoo, name)) as address:
        remote = load_prm(address, tokenizer=str(zoo[name].folder))
        assert isinstance(remote, PoolingPRM)
        with remote:
            found = list(remote.score_many(solutions))
    for one, other in zip(found, local, strict=True):
        assert not isinstance(one, Refusal)
        close(list(one.scores), list(other.scores))
