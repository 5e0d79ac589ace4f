"""The recipes for other engines: what they say of themselves, and, slow, runs of them on something tiny.

`STEPMARK_TRL_PYTHON`, `STEPMARK_VERL_PYTHON` and `STEPMARK_VLLM_PYTHON` name the Pythons of environments with those (`benchmarks/peers/`,
`tests/test_publish_vllm.py`); what is not there is skipped.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest

from stepmark import load_prm
from stepmark.cli import main

ROOT = Path(__file__).resolve().parents[1]
RECIPES = ROOT / "recipes"
TRL, VERL, VLLM = (os.environ.get(f"STEPMARK_{name}_PYTHON") for name in ("TRL", "VERL", "VLLM"))
ENVIRONMENT = {
    **os.environ,
    "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT / "tests")]),
    "OMP_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
}

pytestmark = pytest.mark.skipif(not RECIPES.is_dir(), reason="recipes are not here (an installed package)")


def test_every_recipe_is_on_its_page_and_says_what_it_needs():
    page = (ROOT / "docs" / "recipes.md").read_text(encoding="utf-8")
    for file in sorted(RECIPES.iterdir()):
        if file.suffix in (".sh", ".py", ".yaml"):
            assert f"`{file.name}`" in page, f"docs/recipes.md leaves out {file.name}"
    named = set(re.findall(r"`([\w-]+\.(?:sh|py|yaml))`", page))
    assert named <= {file.name for file in RECIPES.iterdir()}
    for name in ("vllm_behind_stepmark.sh", "rl_trl.py", "rl_verl.sh"):
        head = (RECIPES / name).read_text(encoding="utf-8")[:2500]
        assert "Needs:" in head, f"{name} does not say what it needs"


@pytest.mark.parametrize("file", sorted(RECIPES.glob("*.sh")), ids=lambda file: file.name)
def test_shell_recipes_are_shell(file):
    done = subprocess.run(["bash", "-n", str(file)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def problems(folder):
    words = [
        "problems",
        "arithmetic",
        "--count",
        "12",
        "--steps",
        "2",
        "3",
        "--surface",
        "formula",
        "--seed",
        "1",
    ]
    assert main([*words, "--out", str(folder / "problems.jsonl")]) == 0
    return folder / "problems.jsonl"


@pytest.mark.slow
@pytest.mark.skipif(
    TRL is None, reason="STEPMARK_TRL_PYTHON does not name the Python of an environment with TRL"
)
def test_two_steps_of_rl_in_trl(tmp_path):
    file = problems(tmp_path)
    (tmp_path / "recipe_truth.py").write_text(
        "from stepmark.models.scripted import ScriptedPRM\n"
        "from stepmark.problems.arithmetic import read_arithmetic\n"
        "from stepmark.problems.arithmetic_world import true_value\n\n"
        "def prm():\n"
        "    return ScriptedPRM(lambda problem, steps: true_value(read_arithmetic(problem), steps), name='truth')\n"
    )
    words = shlex.split(
        "--policy stepmark:arithmetic --prm recipe_truth:prm --verifier number --prompt text --instruction '' --group 4 "
        "--batch 8 --accumulate 1 --max-tokens 64 --steps 2 --learning-rate 1e-4 --cpu"
    )
    environment = {**ENVIRONMENT, "TRL_EXPERIMENTAL_SILENCE": "1"}
    environment["PYTHONPATH"] += os.pathsep + str(tmp_path)
    done = subprocess.run(
        [str(TRL), str(RECIPES / "rl_trl.py"), str(file), *words, "--out", str(tmp_path / "run")],
        env=environment,
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    log = [json.loads(line) for line in (tmp_path / "run" / "log.jsonl").read_text().splitlines()]
    steps = [line for line in log if "prm/score" in line]
    assert len(steps) == 2
    said = [(line["prm/refused"], line["prm/score"], line["rewards/right/mean"]) for line in steps]
    # The tiny policy solves most of these, and the truth reads every one.
    assert all(refused == 0 and 0 < score < 1 for refused, score, _ in said), said
    assert sum(right for _, _, right in said) > 0.8, said
    before = load_weights(find("stepmark:arithmetic"))
    after = load_weights(tmp_path / "run")
    assert set(after) <= set(before) | {"lm_head.weight"}
    moved = max(
        float((after[name].float() - before[name].float()).abs().max()) for name in after if name in before
    )
    assert 0 < moved < 1e-2


def find(name):
    from stepmark.models.places import find_checkpoint

    return find_checkpoint(name)


def load_weights(folder):
    from safetensors.torch import load_file

    return load_file(Path(folder) / "model.safetensors")


@pytest.mark.slow
@pytest.mark.skipif(
    VERL is None, reason="STEPMARK_VERL_PYTHON does not name the Python of an environment with verl"
)
def test_verl_takes_the_configuration_and_the_rows(tmp_path):
    file = problems(tmp_path)
    environment = {
        **ENVIRONMENT,
        "PYTHON": str(VERL),
        "POLICY": str(tmp_path),
        "CREDIT": "min-form",
        "GROUP": "6",
    }
    done = subprocess.run(
        ["bash", str(RECIPES / "rl_verl.sh"), str(file), str(file), str(tmp_path / "run"), "--cfg", "job"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    for line in (
        "adv_estimator: stepmark-min-form",
        "default_agent_loop: stepmark_single_turn",
        "prm: stepmark_rewards:prm",
        f"path: {tmp_path / 'run' / 'stepmark_rewards.py'}",
        "VERL_USE_EXTERNAL_MODULES: stepmark.rl.adapters.verl",
        "use_kl_loss: true",
    ):
        assert line in done.stdout, f"verl's configuration has no {line!r}"
    read = (
        "import json, pandas, stepmark_rewards as own\n"
        "row = pandas.read_parquet('train.parquet').iloc[0].to_dict()\n"
        "gold = row['reward_model']['ground_truth']\n"
        "said = [own.verdict('', f'So it is \\\\boxed{{{text}}}.', gold, {}) for text in (gold, gold + '1')]\n"
        "print(json.dumps([row['prompt'][0]['content'], row['extra_info']['question'], said]))\n"
    )
    (tmp_path / "run" / "stepmark_rewards.py").write_text(
        (tmp_path / "run" / "stepmark_rewards.py").read_text().replace('"math"', '"number"')
    )
    done = subprocess.run(
        [str(VERL), "-c", read],
        cwd=tmp_path / "run",
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    prompt, question, said = json.loads(done.stdout.strip().splitlines()[-1])
    first = json.loads(file.read_text().splitlines()[0])
    assert question == first["problem"] and prompt.startswith(question) and len(prompt) > len(question)
    assert said == [1.0, 0.0]


def free_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["stand-in", "vllm"])
def test_stepmark_stands_before_vllm(tmp_path, monkeypatch, engine):
    if engine == "vllm" and VLLM is None:
        pytest.skip("STEPMARK_VLLM_PYTHON does not name the Python of an environment with vLLM")
    from test_publish_vllm import SPEC, written

    folder = written(tmp_path, "llama", SPEC.readout, tied=True).folder
    problem, steps = "A box holds 12 pens. How many in 3 boxes?", ["12 * 3 = 36.", "The answer is 36."]
    here = load_prm(str(folder), dtype="float32", device="cpu").score(problem, steps=steps)

    behind, front = free_port(), free_port()
    stand_in = f"{shlex.quote(sys.executable)} {shlex.quote(str(ROOT / 'tests' / 'stand_in_vllm.py'))}"
    environment = {
        **ENVIRONMENT,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "VLLM": stand_in if engine == "stand-in" else f"{VLLM} -m vllm.entrypoints.cli.main",
        "VLLM_PORT": str(behind),
        "WAIT": "300",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_NO_USAGE_STATS": "1",
    }
    if engine == "vllm":
        environment["VLLM_FLAGS"] = "--dtype float32 --enforce-eager"
    for name in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
        environment.pop(name, None)
        environment.pop(name.upper(), None)
    log = (tmp_path / "log").open("wb")
    recipe = subprocess.Popen(
        ["bash", str(RECIPES / "vllm_behind_stepmark.sh"), str(folder), "--port", str(front)],
        env=environment,
        stdout=log,
        stderr=subprocess.STDOUT,
    )
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{front}", timeout=30, trust_env=False) as client:
            for _ in range(400):
                assert recipe.poll() is None, (tmp_path / "log").read_text()[-3000:]
                try:
                    if client.get("/health").status_code == 200:
                        break
                except httpx.HTTPError:
                    pass
                time.sleep(1)
            answer = client.post("/v1/score", json={"problem": problem, "steps": steps}).json()
        [result] = answer["results"]
        assert result["scores"] == pytest.approx(here, abs=1e-5)
        assert result["score"] == pytest.approx(min(here), abs=1e-5)
    finally:
        recipe.send_signal(signal.SIGTERM)
        recipe.wait(60)
        log.close()
    # Both are gone with it.
    for port in (behind, front):
        with socket.socket() as probe:
            assert probe.connect_ex(("127.0.0.1", port)) != 0
