"""The figures of the policy training benchmark on histories made by hand, and a whole run of it on something tiny."""

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # `benchmarks` is run from the root of the repository and is not installed

from benchmarks import rl, rl_figures  # noqa: E402
from benchmarks.rl_figures import Point, mean_curve, ratio, rollouts_to  # noqa: E402

torch.set_num_threads(1)


def run(*accuracies, each=100, **last):
    """Evaluations every `each` rollouts; `last`: fields of the last one."""
    made = [Point(update=n, rollouts=n * each, accuracy=a) for n, a in enumerate(accuracies)]
    return [*made[:-1], replace(made[-1], **last)]


SLOW = run(0.2, 0.2, 0.2, 0.5, 0.5, 0.5)
FAST = run(0.2, 0.5, 0.8, 0.8, 0.8, 0.8)
NEVER = run(0.2, 0.2, 0.2, 0.3, 0.3, 0.3)


# --- curves and ratios ------------------------------------------------------------------------------------------------


def test_a_curve_is_the_mean_over_runs_that_never_falls():
    assert [y for _, y in mean_curve([SLOW])] == pytest.approx([0.2, 0.2, 0.2, 0.5, 0.5, 0.5])
    both = mean_curve([SLOW, FAST])
    assert [x for x, _ in both] == [0, 100, 200, 300, 400, 500]
    assert [y for _, y in both] == pytest.approx([0.2, 0.35, 0.5, 0.65, 0.65, 0.65])
    # What it gains and loses again is pooled: (0.6 + 0.4 + 0.5) / 3; only what stays is its own.
    assert [y for _, y in mean_curve([run(0.2, 0.6, 0.4, 0.5, 0.7)])] == pytest.approx(
        [0.2, 0.5, 0.5, 0.5, 0.7]
    )
    assert rl_figures.rising([0.5, 0.4, 0.3, 0.1]) == pytest.approx([0.325] * 4)
    assert rl_figures.rising([]) == []
    with pytest.raises(ValueError, match="the same evaluations"):
        mean_curve([SLOW, run(0.1, 0.2)])


def test_rollouts_to_an_accuracy_are_on_a_line_between_evaluations():
    curve = [(0.0, 0.2), (100.0, 0.4), (200.0, 0.3), (300.0, 0.7)]
    assert rollouts_to(curve, 0.3) == pytest.approx(50)
    assert rollouts_to(curve, 0.5) == pytest.approx(250)
    assert rollouts_to(curve, 0.2) == 0
    assert rollouts_to([(0.0, 0.1), (100.0, 0.3 - 1e-16)], 0.3) == pytest.approx(100)
    assert rollouts_to(curve, 0.71) is None


def test_the_ratio_by_hand():
    # SLOW ends at 0.5, first at 300 rollouts; FAST has it at 100.
    assert ratio([FAST], [SLOW]) == pytest.approx(100 / 300)
    assert ratio([SLOW], [SLOW]) == pytest.approx(1)
    assert ratio([NEVER], [SLOW]) is None
    # One that got there at 300 and then stood still is compared with 300, not with the length of its run.
    still = run(*[0.2] * 3, *[0.5] * 9)
    assert ratio([run(*[0.2] * 3, *[0.5] * 9)], [still]) == pytest.approx(1)
    assert ratio([FAST + run(*[0.8] * 12)[6:]], [still]) == pytest.approx(100 / 300)
    # Half of SLOW's gain is 0.35: at 250 rollouts, and at 50.
    assert ratio([FAST], [SLOW], share=0.5) == pytest.approx(50 / 250)
    assert ratio([NEVER], [SLOW], share=0.3) == pytest.approx((200 + 100 * 0.9) / (200 + 100 * 0.3))
    # An outcome run that learnt nothing has nothing that could be reached sooner.
    assert ratio([FAST], [run(*[0.2] * 6)]) is None


def test_the_benchmarks_figures(capsys):
    hacked = run(0.6, 0.1, step_return=0.9, alarmed=5)
    runs = {
        rl.OUTCOME: {0: SLOW, 1: SLOW},
        "min-form": {0: FAST},
        "ppo": {0: NEVER, 1: NEVER},
        rl.HACKED: {0: hacked, 1: run(0.6, 0.5)},
    }
    found = rl.figures_of(runs)
    assert found["rollouts_ratio_to_outcome"] == pytest.approx(1 / 3)
    assert found["rollouts_ratio_to_most_of_its_gain"] == pytest.approx(90 / 290)
    assert found["outcome_final_accuracy"] == pytest.approx(0.5)
    assert found["hacked_runs_alarmed"] == 0.5
    assert found["hacked_accuracy_change"] == pytest.approx(-0.3)
    assert "rollouts_ratio_to_outcome: 0.33, of min-form" in capsys.readouterr().out
    none = rl.figures_of({rl.OUTCOME: {0: SLOW}, "ppo": {0: NEVER}})
    assert "rollouts_ratio_to_outcome" not in none
    assert "none: no process-reward method reached" in capsys.readouterr().out


# --- tables -----------------------------------------------------------------------------------------------------------


# --- the parts that run -----------------------------------------------------------------------------------------------


def test_the_exact_prm_knows_what_is_due_and_what_cannot_be_read():
    problem = "Start with 10. In the first step add 5. In the second step multiply by 2. What is the result?"
    wrong, faithful = "Result after the first step: 10 + 5 = 16", "Result after the second step: 16 * 2 = 32"
    true_of_no_use = "Result after the second step: 16 + 2 = 18"
    prm = rl.exact_prm()
    first = rl.first_error_prm()
    assert first.score(problem, steps=[wrong, faithful]) == [0.05, 0.05]
    assert first.score(problem, steps=["Result after the first step: 10 + 5 = 15", wrong, faithful]) == [
        0.95,
        0.05,
        0.05,
    ]
    assert first.score("What is love?", steps=[faithful]) == [0.05]
    assert prm.score(problem, steps=[wrong, faithful]) == [0.05, 0.95]
    assert prm.score(problem, steps=[wrong, true_of_no_use]) == [0.05, 0.05]
    assert prm.score(problem, steps=[wrong, "so", faithful]) == [0.05, 0.05, 0.05]


def test_a_finished_run_is_kept_and_not_run_again(tmp_path, capsys, monkeypatch):
    settings = replace(
        rl.quick().settings, updates=2, problems=2, group=2, max_tokens=24, evaluate_every=1, save_every=1
    )
    small = rl.World(prm="exact", training=12, held_out=4, settings=settings)
    monkeypatch.setattr(rl, "quick", lambda: small)
    words = ["--quick", "--only", rl.OUTCOME, rl.HACKED, "--out", str(tmp_path)]
    assert rl.main(words) == 0
    said = capsys.readouterr().out
    folder = rl.place(tmp_path, small, rl.HACKED, 0)
    result = json.loads((folder / "result.json").read_text())
    assert [point["rollouts"] for point in result["points"]] == [0, 4, 8]
    assert result["points"][-1]["step_return"] is not None
    assert result["processor_seconds"] > 0
    assert not (folder / "state.pt").exists()
    line = json.loads(said.splitlines()[-1])
    assert line["benchmark"] == "rl"
    assert "hacked_runs_alarmed" in line["figures"]

    def never(*_):
        raise AssertionError("it was finished")

    monkeypatch.setattr(rl, "train", never)
    assert rl.main(words) == 0
    assert rl.main([*words, "--report"]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["figures"] == line["figures"]
    with pytest.raises(SystemExit, match="is of other settings"):
        rl.main([*words, "--learning-rate", "1e-3"])
