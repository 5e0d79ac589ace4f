"""The benchmarks' own parts against other ways to count, and a whole run of each on something tiny."""

import gzip
import json
import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from stepmark import load_prm
from stepmark.evaluation.benchmarks.prmbench import PRMBench
from stepmark.models.backbone import load_tokenizer
from stepmark.training.net import Net, layout_for
from stepmark.training.objectives.steps import HardLabels
from stepmark.training.saving import write_trained
from stepmark.training.settings import Weights
from tiny_base import write_base

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # `benchmarks` is run from the root of the repository and is not installed

from benchmarks import common, default_prm, grade  # noqa: E402

torch.set_num_threads(1)


def last_line(text):
    return json.loads(text.strip().splitlines()[-1])


# --- parts ------------------------------------------------------------------------------------------------------------


@given(st.lists(st.lists(st.integers(0, 3), max_size=8), max_size=12))
def test_distinct_prefixes_are_a_set_of_tuples(sequences):
    assert grade.distinct_prefixes(sequences) == len(
        {tuple(s[:n]) for s in sequences for n in range(1, len(s) + 1)}
    )


def test_distinct_prefixes_by_hand():
    assert grade.distinct_prefixes([]) == 0
    assert grade.distinct_prefixes([[1, 2, 3], [1, 2, 4], [2, 2, 3], [1, 2]]) == 3 + 1 + 3


def test_generated_candidates_are_right_up_to_a_first_error_and_never_after():
    solutions = grade.generated_candidates(3, candidates=40)
    assert solutions == grade.generated_candidates(3, candidates=40)
    groups = defaultdict(list)
    for solution in solutions:
        groups[solution.problem.text].append(solution)
    assert [len(group) for group in groups.values()] == [40, 40, 40]
    for question, group in groups.items():
        values = [int(n) for n in re.findall(r"\d+", question)]
        wrong = 0
        for solution in group:
            total, erred = values[0], False
            *days, end = solution.texts
            assert len(days) == len(values) - 1
            for day, (value, step) in enumerate(zip(values[1:], days, strict=True), start=2):
                said = re.fullmatch(
                    r"After day (\d+) the shop has sold (\d+) \+ (\d+) = (\d+) apples\.", step
                )
                number, before, added, after = map(int, said.groups())
                assert (number, before, added) == (day, total, value)  # carried on from the step before
                true = before + added == after
                assert not (erred and true)
                erred, total = erred or not true, after
            assert end == f"So the shop sells {total} apples in all."
            assert (total == sum(values)) == (not erred)
            wrong += erred
        assert 0 < wrong < len(group)
        # They begin alike and part ways.
        assert len({s.texts[0] for s in group}) < len({s.texts for s in group})


def test_seconds_gives_the_result_and_a_time():
    took, result = common.seconds(lambda: sum(range(1000)))
    assert result == 499500
    assert 0 < took < 10


def test_the_data_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("STEPMARK_DATA", str(tmp_path))
    assert common.data_folder() == tmp_path
    monkeypatch.setenv("STEPMARK_DATA", str(tmp_path / "none"))
    assert common.data_folder() is None
    assert grade.real_candidates(3) is None


def test_the_last_line_is_json(capsys):
    common.finish("name", {"speed": 3.14159265, "difference": 0.0000212, "tokens": 1234567.0}, {"speed": 3.0})
    printed = capsys.readouterr().out
    line = last_line(printed)
    assert list(line) == ["benchmark", "figures", "aims", "machine"]
    assert line["benchmark"] == "name"
    assert line["figures"] == pytest.approx(
        {"speed": 3.14159265, "difference": 2.12e-5, "tokens": 1234567}, rel=1e-5
    )
    assert line["aims"] == {"speed": 3.0}
    assert line["machine"]["torch"] == torch.__version__
    assert line["machine"]["cores"] >= 1 and line["machine"]["threads"] == 1
    assert re.search(r"^speed +3\.142 +\(aim 3\)$", printed, re.MULTILINE)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_figure_is_a_number(value):
    with pytest.raises(ValueError, match="JSON"):
        common.finish("name", {"speed": value}, {})


# --- whole runs -------------------------------------------------------------------------------------------------------


def test_help_is_there():
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.grade", "--help"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "--quick" in done.stdout and "--dtype" in done.stdout


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """A base of two layers and an adapter with a head over it, both random: (base folder, PRM folder)."""
    base, out = tmp_path_factory.mktemp("base"), tmp_path_factory.mktemp("out")
    write_base(base, context=1024)
    spec = HardLabels().spec(layout_for(load_tokenizer(base)), str(base))
    weights = Weights(lora_rank=2, dtype="float32", device="cpu")
    net = Net(base, spec, weights, max_tokens=None, seed=0)
    net.set_head(HardLabels().head(net))
    with torch.no_grad():
        for parameter in net.named_parameters.values():
            parameter.copy_(0.1 * torch.randn(parameter.shape))
    write_trained(out / "prm", net, adapter=True, base_name=str(base), notes={})
    return base, out / "prm"


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")
def test_the_three_ways_of_grading_agree(tiny, monkeypatch, capsys):
    """The whole benchmark on a tiny PRM: its peers compute the same scores, so what it times is the same work."""
    base, folder = tiny
    monkeypatch.setenv("STEPMARK_DATA", str(folder / "none"))
    monkeypatch.setattr(grade, "find_checkpoint", lambda name: base)
    monkeypatch.setattr(grade, "default_folder", lambda: folder)
    monkeypatch.setattr(grade, "load_prm", lambda name, dtype: load_prm(str(folder), dtype=dtype))
    monkeypatch.setattr(grade, "matmul_peak", lambda dtype, device: 1e12)
    monkeypatch.setattr(sys, "argv", ["grade", "--quick", "--dtype", "float32", "--problems", "1"])
    grade.main()
    line = last_line(capsys.readouterr().out)
    figures = line["figures"]
    assert line["benchmark"] == "grade"
    assert line["aims"].keys() <= figures.keys()
    # Every distinct token once, but for the few of the format's own opening, which is at hand.
    assert 0.995 < figures["tokens_computed_over_distinct"] <= 1.0
    assert 0.995 < figures["tokens_computed_over_distinct_64_generated"] <= 1.0
    assert figures["padded_over_distinct_tokens"] > 2
    assert figures["largest_score_difference"] < 1e-5
    # The scores are not all alike, else agreement would mean little.
    prm = load_prm(str(folder), dtype="float32")
    scores = [s for result in prm.score_many(grade.generated_candidates(1, 8)) for s in result.scores]
    assert max(scores) - min(scores) > 0.05


def packed(file, rows):
    file.parent.mkdir(parents=True, exist_ok=True)
    with gzip.open(file, "wt", encoding="utf-8") as lines:
        lines.writelines(json.dumps(row) + "\n" for row in rows)


def default_prm_data(folder):
    """Every file that the benchmark reads, tiny, with known truth for a PRM that knows sums."""
    true, false = "1 + 1 = 2", "1 + 1 = 3"
    common = {"generator": "g", "final_answer_correct": True}
    gsm8k = [
        {"id": f"gsm8k-{at}", "problem": f"p{at}", "steps": steps, "label": label, **common}
        for at, (steps, label) in enumerate(
            [
                ([true, false, true], 1),  # found
                ([false, false], 1),  # found too early
                ([true], -1),  # none, and none found
                ([true, false], -1),  # none, and one found
                ([true, true], -1),
                ([true], -1),
            ]
        )
    ]
    math = [{**row, "id": row["id"].replace("gsm8k", "math")} for row in (gsm8k[0], gsm8k[2])]
    packed(folder / "processbench" / "gsm8k.dev.jsonl.gz", gsm8k)
    packed(folder / "processbench" / "math.dev.jsonl.gz", math)
    bench = [
        {
            "idx": f"p{at}",
            "classification": kind,
            "modified_question": "q",
            "modified_process": [f"1. {true}", f"2. {true if kind == 'multi_solutions' else false}"],
            "error_steps": [] if kind == "multi_solutions" else [2],
        }
        for at, kind in enumerate(name for inside in PRMBench.categories.values() for name in inside)
    ]
    packed(folder / "prmbench" / "prmbench.dev.jsonl.gz", bench)
    candidates = [
        {
            "id": f"c{at}",
            "question": f"q{at}",
            "gold": "2",
            "candidates": [
                {"model": "a", "text": f"{true}\n\n{true}", "answer": "2", "correct": True},
                {"model": "b", "text": f"{true}\n\n{false}", "answer": "3", "correct": False},
            ],
        }
        for at in range(4)
    ]
    packed(folder / "gsm8k" / "candidates_16_models.dev.jsonl.gz", candidates)


def test_the_default_prms_figures_by_hand(monkeypatch, capsys, tmp_path):
    default_prm_data(tmp_path / "data")
    monkeypatch.setenv("STEPMARK_DATA", str(tmp_path / "data"))
    page = tmp_path / "page.md"
    monkeypatch.setattr(default_prm, "PAGE", page)
    words = ["default_prm", "--prm", "scripted_prms:sums_and_words", "--out", str(tmp_path / "out"), "--docs"]
    monkeypatch.setattr(sys, "argv", words)
    default_prm.main()
    line = last_line(capsys.readouterr().out)
    assert line["benchmark"] == "default_prm"
    assert line["aims"] == {"processbench-checks/gsm8k/f1": 47.9, "processbench-checks/math/f1": 29.5}
    figures = line["figures"]
    assert figures["processbench/gsm8k/error"] == 50.0
    assert figures["processbench/gsm8k/correct"] == 75.0
    assert figures["processbench/gsm8k/f1"] == pytest.approx(60.0)
    assert figures["processbench-checks/math/f1"] == 100.0
    assert figures["processbench-oracle/gsm8k/f1"] == pytest.approx(60.0)
    assert figures["processbench/math/f1"] == 100.0
    assert figures["prmbench/overall/prmscore"] == 100.0
    text = page.read_text(encoding="utf-8")
    assert "$ stepmark evaluate prmbench --data prmbench/prmbench.dev.jsonl.gz" in text
    assert str(tmp_path) not in text  # no path of this machine in the documentation
    for run in default_prm.RUNS:
        assert (f"$ stepmark evaluate {run.evaluation} " in text) == bool(
            run.tables or run.evaluation == "processbench"
        )


def test_without_data_the_default_prm_is_skipped_by_name(monkeypatch, capsys, tmp_path):
    monkeypatch.setenv("STEPMARK_DATA", str(tmp_path / "none"))
    monkeypatch.setattr(sys, "argv", ["default_prm"])
    default_prm.main()
    assert capsys.readouterr().out.startswith("skipped: no development data; set STEPMARK_DATA")
