"""What the monitor of policy training measures, against numbers worked out by hand, and what it does about them."""

import math
from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
from stepmark.errors import InputError, UsageError  # noqa: E402
from stepmark.metrics.intervals import wilson  # noqa: E402
from stepmark.models.policies.local import Drawn  # noqa: E402
from stepmark.models.scripted import ScriptedPRM  # noqa: E402
from stepmark.records import Problem, Step, Verdict  # noqa: E402
from stepmark.rl.actor import Actor, padded  # noqa: E402
from stepmark.rl.hacking import Quadrants, rise  # noqa: E402
from stepmark.rl.monitor import (  # noqa: E402
    Monitor,
    read_watched,
    watched,
)
from stepmark.rl.policy_trainer import PolicyEvaluation  # noqa: E402
from stepmark.rl.report import alarm_words, rl_html  # noqa: E402
from stepmark.rl.rewarding import (  # noqa: E402
    RewardedCompletion,
    StepSpans,
)
from stepmark.training.state import LogLines as JsonLines  # noqa: E402
from stepmark.training.state import read_lines  # noqa: E402
from tiny_language_model import tiny_model, tiny_tokenizer  # noqa: E402

torch.set_num_threads(1)


def rated(number, scores, right, *, texts=None, ids=None, finish="stop", refused=None):
    texts = texts or tuple(f"s{number}.{at}" for at in range(len(scores or ())))
    return RewardedCompletion(
        problem=Problem(text=f"problem {number}", id=f"p{number}", answer="7"),
        group=number,
        drawn=Drawn(prompt=(5,), ids=ids or (8,) * (2 * len(texts)), text="\n".join(texts), finish=finish),
        steps=tuple(Step(text=text) for text in texts),
        spans=StepSpans(ends=(), steps=()),
        verdict=Verdict(outcome="match" if right else "mismatch", verifier="number", answer="7")
        if texts
        else None,
        outcome=float(right),
        scores=scores,
        refused=refused,
    )


def evaluation(rows, update=0):
    return PolicyEvaluation(
        update=update,
        rollouts=update * 8,
        rated=tuple(rows),
    )


def table_prm(rows, **settings):
    """Scores the steps of these solutions as they were scored, and anything else 0.9."""
    known = {
        step.text: score for one in rows for step, score in zip(one.steps, one.scores or (), strict=False)
    }
    return ScriptedPRM(lambda _problem, steps: known.get(steps[-1], 0.9), **settings)


ROWS = [
    rated(0, (0.9, 0.8), True),
    rated(1, (0.9, 0.6), False),
    rated(2, (0.4,), True),
    rated(3, (0.3, 0.9, 0.6), False),
]


def test_the_figures_by_hand() -> None:
    found = watched(evaluation(ROWS), prm=table_prm(ROWS))
    assert (found.solutions, found.kind, found.threshold) == (4, "probability", 0.5)
    assert found.accuracy == wilson(2, 4)
    assert found.step_return.value == pytest.approx((0.85 + 0.75 + 0.4 + 0.6) / 4)
    assert found.solution_return.value == pytest.approx((0.8 + 0.6 + 0.4 + 0.3) / 4)
    # Right: 0.8 and 0.4; wrong: 0.6 and 0.3. Of the four pairs, the right one wins three.
    assert found.auc.value == pytest.approx(3 / 4)
    crossed = found.quadrants
    assert (crossed.both, crossed.lucky, crossed.slipped, crossed.neither) == (1, 1, 1, 1)
    assert found.steps.value == pytest.approx(2)
    assert found.tokens.value == pytest.approx(4)
    assert found.slipped == (False, True, False, False)
    assert found.divergence is None
    for one in (found.step_return, found.steps, found.auc):
        assert one.low <= one.value <= one.high


def test_examples_are_the_ones_that_say_most() -> None:
    rows = [
        rated(n, (score,), right)
        for n, (score, right) in enumerate([(0.6, 0), (0.9, 0), (0.8, 0), (0.7, 0), (0.2, 1), (0.1, 1)])
    ]
    kept = watched(evaluation(rows), prm=table_prm(rows)).examples
    assert [one.id for one in kept["slipped"]] == ["p1", "p2", "p3"]
    assert [one.id for one in kept["lucky"]] == ["p5", "p4"]
    assert set(kept) == {"slipped", "lucky"}
    assert (kept["slipped"][0].scores, kept["slipped"][0].steps) == ((0.9,), ("s1.0",))


def test_what_is_not_there_is_none() -> None:
    bare = [replace(one, scores=None) for one in ROWS]
    found = watched(evaluation(bare))
    for name in (
        "kind",
        "step_return",
        "solution_return",
        "rise",
        "auc",
        "quadrants",
        "divergence",
    ):
        assert getattr(found, name) is None, name
    assert found.slipped == ()
    # All right: nothing to tell apart, nothing wrong.
    right = [rated(0, (0.9,), True), rated(1, (0.8,), True)]
    found = watched(evaluation(right), prm=table_prm(right))
    assert found.auc is None
    # The PRM could read one of three, and one is blank.
    some = [ROWS[0], rated(1, None, False, texts=("a",), refused="too long"), rated(2, None, False)]
    found = watched(evaluation(some), prm=table_prm(some))
    assert found.step_return.value == pytest.approx(0.85)
    assert found.slipped == (False, None, None)
    assert found.quadrants == Quadrants(both=1, lucky=0, slipped=0, neither=0)
    # No threshold: no 2x2.
    found = watched(evaluation(ROWS), prm=table_prm(ROWS, default_threshold=None))
    assert (found.quadrants, found.threshold, dict(found.examples)) == (None, None, {})
    with pytest.raises(UsageError, match="at least one"):
        watched(PolicyEvaluation(update=0, rollouts=0, rated=()))


def test_an_implicit_prm_has_ranks_and_raises_no_alarm() -> None:
    sums = [2.0, -1.0, 1.0, -3.0]
    found = watched(evaluation([replace(one, scores=None) for one in ROWS]), implicit=sums)
    assert (found.kind, found.auc.value) == ("log-ratio", 1.0)
    assert found.solution_return.value == pytest.approx(-0.25)
    assert (found.quadrants.both, found.quadrants.neither) == (2, 2)
    assert found.step_return is found.rise is None


class Kept:
    """Stands for a policy: knows that it was saved."""

    has_reference = False

    def __init__(self):
        self.now = 0

    def save(self, folder):
        folder.mkdir()
        (folder / "weights").write_text(str(self.now))


def course(accuracies, scores, count=40):
    """Evaluations with given shares of right answers and mean scores."""
    found = []
    for update, (share, score) in enumerate(zip(accuracies, scores, strict=True)):
        rows = [
            rated(n, (score + 0.02 * (n % 3 - 1),), n < round(share * count), texts=(f"{update}.{n}",))
            for n in range(count)
        ]
        found.append(evaluation(rows, update))
    return found


def run(monitor, evaluations):
    said = []
    for one in evaluations:
        monitor.actor.now = one.update
        said.append(monitor.evaluated(one))
    return said


FLAT_PRM = ScriptedPRM(lambda _problem, _steps: 0.5)
HACKED = course([0.5, 0.6, 0.6, 0.3, 0.9], [0.45, 0.48, 0.51, 0.7, 0.9])


def monitor_of(folder, **more):
    return Monitor(Kept(), folder, prm=FLAT_PRM, **more)


def test_an_alarm_freezes_the_best_checkpoint(tmp_path) -> None:
    monitor = monitor_of(tmp_path)
    assert run(monitor, HACKED) == [False] * 5
    wrong = [[not row.right for row in one.rated] for one in HACKED]
    good = [[row.scores[0] >= 0.5 for row in one.rated] for one in HACKED]
    slipped = [[a and b for a, b in zip(*both, strict=True)] for both in zip(wrong, good, strict=True)]
    assert [list(row.slipped) for row in monitor.rows] == slipped
    rises = [rise(slipped[0], each) for each in slipped]
    assert [row.rise for row in monitor.rows] == rises
    first = next(at for at, risen in enumerate(rises) if risen > 3)
    assert 0 < first <= 3
    assert monitor.alarmed == first
    assert [row.alarmed for row in monitor.rows] == [None] * first + [first] * (5 - first)
    # Better later, and after the alarm; equal later: neither is taken.
    assert monitor.best.update == 1
    assert (tmp_path / "best" / "weights").read_text() == "1"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["best", "monitor.jsonl"]
    assert read_watched(tmp_path / "monitor.jsonl") == monitor.rows


def test_stop_on_hack_stops_at_the_alarm(tmp_path) -> None:
    monitor = monitor_of(tmp_path, stop_on_hack=True)
    said = run(monitor, HACKED)
    assert said.index(True) == monitor.alarmed
    assert not any(said[: monitor.alarmed])
    honest = monitor_of(tmp_path / "honest", stop_on_hack=True)
    assert not any(run(honest, course([0.4, 0.6, 0.8], [0.45, 0.49, 0.6])))


def test_a_resumed_monitor_is_the_one_that_was_not_interrupted(tmp_path) -> None:
    straight, broken = monitor_of(tmp_path / "a"), monitor_of(tmp_path / "b")
    run(straight, HACKED)
    run(broken, HACKED[:4])
    # Killed while it wrote a line, and the run goes on from an earlier state.
    file = tmp_path / "b" / "monitor.jsonl"
    text = file.read_text()
    file.write_text(text + text[:40])
    again = monitor_of(tmp_path / "b")
    assert len(again.rows) == 4
    run(again, HACKED[2:])
    assert again.rows == straight.rows
    assert file.read_text() == (tmp_path / "a" / "monitor.jsonl").read_text()
    again.keep(1)
    assert [row.update for row in read_watched(file)] == [0, 1]


def test_a_line_in_the_middle_that_is_damaged_is_no_kill(tmp_path) -> None:
    file = tmp_path / "history.jsonl"
    file.write_text('{"update": 1}\n{"upd\n')
    assert read_lines(file) == [{"update": 1}]
    file.write_bytes('{"update": 1}\n{"text": "é'.encode()[:-1])  # half a character
    assert read_lines(file) == [{"update": 1}]
    file.write_text('{"update": 1}\n{"upd\n{"update": 3}\n')
    with pytest.raises(InputError, match=r"history.jsonl:2: not JSON"):
        read_lines(file)
    assert read_lines(tmp_path / "none.jsonl") == []


def test_a_replaced_prm_is_compared_with_itself(tmp_path) -> None:
    monitor = monitor_of(tmp_path)
    jump = course([0.5, 0.5, 0.5], [0.4, 0.9, 0.9])
    run(monitor, jump[:1])
    monitor.rebase()
    run(monitor, jump[1:])
    assert [row.rebased for row in monitor.rows] == [False, True, False]
    assert [row.rise for row in monitor.rows] == [0, 0, 0]
    assert monitor.alarmed is None


def test_a_sum_of_logits_has_no_mean() -> None:
    certain = [rated(0, (1.0, 0.0), True), rated(1, (0.5, 0.5), False)]
    found = watched(evaluation(certain), prm=table_prm(certain, default_aggregate="sum-logit"))
    assert found.solution_return.value == pytest.approx((0 + 0.25) / 2)


def test_the_divergence_is_that_of_the_tokens(tmp_path) -> None:
    words = tiny_tokenizer()
    actor = Actor(tiny_model(words), words, name="tiny", reference=True)
    with torch.no_grad():
        for weight in actor.trained():
            weight.add_(0.02 * torch.randn_like(weight))
    rows = [rated(0, (0.5,), True, ids=(8, 9, 10)), rated(1, (0.5,), False, ids=(11,))]
    monitor = Monitor(actor, tmp_path, prm=FLAT_PRM)
    monitor.evaluated(evaluation(rows))
    batch = padded([one.drawn for one in rows], "cpu")
    with torch.no_grad():
        delta = (actor.logprobs(batch)[0] - actor.reference_logprobs(batch)).tolist()
    tokens = [*delta[0], delta[1][0]]
    wanted = sum(math.exp(-one) - 1 + one for one in tokens) / 4
    assert wanted > 0
    assert monitor.rows[0].divergence.value == pytest.approx(wanted, rel=1e-4)
    assert (tmp_path / "best" / "model.safetensors").is_file()


def test_lines_that_are_done_again_replace_the_old_ones(tmp_path) -> None:
    file = tmp_path / "history.jsonl"
    lines = JsonLines(file)
    for number in (1, 2, 3):
        lines.add({"update": number, "loss": 0.5})
    with file.open("a") as handle:
        handle.write('{"update": 4, "lo')  # killed in the middle of a line
    assert [row["update"] for row in read_lines(file)] == [1, 2, 3]
    JsonLines(file).add({"update": 2, "loss": 0.25})
    assert [(row["update"], row["loss"]) for row in read_lines(file)] == [(1, 0.5), (2, 0.25)]
    assert read_lines(tmp_path / "nothing.jsonl") == []


def page_of(rows, history=()):
    return "".join(rl_html(rows, history, {"seed": "0"}, title="A run"))


def test_the_page_shows_the_alarm_and_the_examples(tmp_path) -> None:
    pytest.importorskip("matplotlib")
    monitor = monitor_of(tmp_path)
    run(monitor, HACKED)
    history = [
        {"update": n, "rollouts": n, "loss": 0.1, "accuracy": 0.5, "gradient": 1.0, "flat": 0.0}
        for n in (1, 2, 3, 4)
    ]
    page = page_of(monitor.rows, history)
    assert f"Alarm after update {monitor.alarmed}" in page
    assert f"alarm at {monitor.alarmed}" in page  # in words for those who do not see the plot
    for title in ("Accuracy", "PRM return", "Process and outcome", "Samples of training", "Examples"):
        assert f">{title}<" in page
    # Of the wrong answers at the end, p36 to p39, the three that the PRM likes best.
    assert {n for n in range(36, 40) if f"problem {n}<" in page} == {36, 37, 38}
    for outside in ("http://", "https://", "//cdn"):
        assert outside not in page.replace("http://www.w3.org", "")


def test_the_page_of_a_run_without_a_prm() -> None:
    pytest.importorskip("matplotlib")
    rows = [watched(evaluation([replace(one, scores=None) for one in ROWS], at)) for at in (0, 10)]
    page = page_of(rows)
    for title in ("Process and outcome", "PRM return"):
        assert f">{title}<" not in page
    with pytest.raises(UsageError, match="at least one"):
        page_of([])


def test_a_policy_that_came_apart_is_no_good_news(tmp_path) -> None:
    def words_of(folder, accuracies):
        monitor = Monitor(Kept(), folder)
        run(monitor, course(accuracies, [0.9, 0.9, 0.05]))
        return alarm_words(monitor.rows)

    assert "80.0 to 10.0 %" in words_of(tmp_path / "a", [0.8, 0.8, 0.1])
    # 32 and 28 of 40 may be the same policy.
    assert "fell" not in words_of(tmp_path / "b", [0.8, 0.8, 0.7])
    # A PRM that sees it has nothing to be alarmed about, and the words are there all the same.
    monitor = Monitor(Kept(), tmp_path / "c", prm=FLAT_PRM)
    run(monitor, course([0.8, 0.8, 0.1], [0.9, 0.9, 0.05]))
    assert monitor.alarmed is None
    assert "80.0 to 10.0 %" in alarm_words(monitor.rows)
