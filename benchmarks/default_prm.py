"""What the shipped PRM is worth: first-error figures on the ProcessBench development halves.

`python -m benchmarks.default_prm [--quick] [--prm NAME]` needs the development data and says so when it is absent.
The threshold is the checkpoint's own, chosen on held-out training problems; `f1_oracle` is the best over
thresholds on the measured file itself and says only what calibration could still gain.
"""

from __future__ import annotations

import argparse

from benchmarks.common import data_folder, finish, rows
from stepmark import Solution, load_prm
from stepmark.records import StepScores
from stepmark.metrics.first_error import best_threshold, first_errors


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--prm", default="default")
    parser.add_argument("--dtype", default="auto")
    arguments = parser.parse_args()
    folder = data_folder()
    if folder is None:
        print("skipped: no development data; set STEPMARK_DATA to a folder with processbench/*.dev.jsonl.gz")
        return
    prm = load_prm(arguments.prm, dtype=arguments.dtype)
    threshold = prm.default_threshold
    assert threshold is not None
    figures: dict[str, float] = {}
    for subset in ("gsm8k", "math"):
        data = rows(folder / "processbench" / f"{subset}.dev.jsonl.gz")
        if arguments.quick:
            data = data[:: 4 if subset == "gsm8k" else 10]  # the files list wrong solutions first
        solutions = [Solution.of(r["problem"], r["steps"], id=r["id"]) for r in data]
        scores = []
        for result in prm.score_many(solutions):
            assert isinstance(result, StepScores)
            scores.append([s for s in result.scores if s is not None])
        truth = [int(r["label"]) for r in data]
        own, oracle = first_errors(scores, truth, threshold), best_threshold(scores, truth)
        print(
            f"{subset}: {len(data)} solutions, threshold {threshold:g}: F1 {100 * own.f1:.1f} (wrong {100 * own.error_accuracy:.1f}, "
            f"right {100 * own.correct_accuracy:.1f}); oracle threshold {oracle.threshold:g}: F1 {100 * oracle.f1:.1f}"
        )
        figures[f"f1_{subset}"] = 100 * own.f1
        figures[f"error_accuracy_{subset}"] = 100 * own.error_accuracy
        figures[f"correct_accuracy_{subset}"] = 100 * own.correct_accuracy
        figures[f"f1_oracle_{subset}"] = 100 * oracle.f1
    finish("default_prm", figures, {"f1_gsm8k": 47.9})


if __name__ == "__main__":
    main()
