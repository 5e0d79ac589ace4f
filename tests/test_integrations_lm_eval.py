"""The filter for lm-evaluation-harness, run by the harness in an environment of its own, on a task of three documents.

Slow, and outside the default run: `STEPMARK_LM_EVAL_PYTHON=…/bin/python pytest -m slow tests/test_integrations_lm_eval.py`, the Python of an
environment made from `benchmarks/peers/lm-eval.txt`.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

PYTHON = os.environ.get("STEPMARK_LM_EVAL_PYTHON")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        PYTHON is None,
        reason="STEPMARK_LM_EVAL_PYTHON does not name the Python of an environment with lm_eval",
    ),
]
HERE = Path(__file__).resolve().parent

TASK = """\
task: sums
dataset_path: json
dataset_kwargs:
  data_files:
    test: {folder}/sums.jsonl
test_split: test
output_type: generate_until
doc_to_text: "{{{{question}}}}"
doc_to_target: "{{{{answer}}}}"
repeats: 3
generation_kwargs:
  do_sample: true
  temperature: 0.7
  until: []
metric_list:
  - metric: exact_match
filter_list:
  - name: first
    filter:
      - function: take_first
  - name: best
    filter:
      - function: !function stepmark.integrations.lm_eval.StepmarkFilter
        prm: integration_worlds:prm
        split: line
      - function: take_first
  - name: majority
    filter:
      - function: stepmark
        prm: integration_worlds:prm
        problem: "{{{{question}}}}"
        choose: majority
        verifier: number
      - function: take_first
  - name: vote
    filter:
      - function: stepmark
        prm: integration_worlds:prm
        choose: vote
        aggregate: product
        verifier: number
      - function: take_first
  - name: number
    filter:
      - function: stepmark
        prm: integration_worlds:prm
      - function: regex
        regex_pattern: "answer is ([0-9]+)"
      - function: take_first
"""

FIVE, SIX, EIGHT = "2 + 3 = 5\nThe answer is 5", "2 + 3 = 6\nThe answer is 6", "4 + 4 = 8\nThe answer is 8"


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    folder = tmp_path_factory.mktemp("harness")
    rows = [("2 + 3?", "5"), ("4 + 4?", "8"), ("1 + 1?", "2")]
    (folder / "sums.jsonl").write_text(
        "".join(json.dumps({"question": question, "answer": answer}) + "\n" for question, answer in rows)
    )
    (folder / "sums.yaml").write_text(TASK.format(folder=folder))
    path = os.pathsep.join(map(str, (HERE.parent / "src", HERE)))
    done = subprocess.run(
        [str(PYTHON), str(HERE / "lm_eval_run.py"), str(folder)],
        check=False,
        capture_output=True,
        text=True,
        timeout=600,
        cwd=folder,
        env={
            **os.environ,
            "PYTHONPATH": path,
            "HF_HOME": str(folder / "cache"),
            "HF_DATASETS_OFFLINE": "1",
            "HF_HUB_OFFLINE": "1",
        },
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout.splitlines()[-1]), done.stderr


def test_one_response_of_each_document_is_kept(results):
    kept = results[0]["kept"]
    assert kept["first"] == [SIX, EIGHT, ""]
    assert kept["best"] == [FIVE, EIGHT, ""]
    assert kept["majority"] == [SIX, EIGHT, ""]
    # The product: 0.9 * 0.7 for five, twice 0.2 * 0.7 for six.
    assert kept["vote"] == [FIVE, EIGHT, ""]


def test_other_filters_go_on_with_it(results):
    assert results[0]["kept"]["number"] == ["5", "8", "[invalid]"]
    metrics = results[0]["metrics"]
    assert metrics["exact_match,number"] == pytest.approx(2 / 3)
    assert metrics["exact_match,best"] == 0


def test_it_says_of_how_many_documents_nothing_could_be_graded(results):
    assert "1 of 3 documents" in results[1]
