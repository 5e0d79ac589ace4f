"""Two examples for the help of each command."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

_POLICY = "--policy http://host:8000/v1"

EXAMPLES = {
    "problems": (
        "stepmark problems arithmetic --count 100 --out problems.jsonl",
        "stepmark problems read gsm8k.parquet --out problems.jsonl",
    ),
    "problems arithmetic": (
        "stepmark problems arithmetic --count 100 --out problems.jsonl",
        "stepmark problems arithmetic --count 20 --steps 2 4 --seed 7 --out easy.jsonl",
    ),
    "problems read": (
        "stepmark problems read gsm8k.parquet --out problems.jsonl",
        "stepmark problems read math.csv --columns problem=q,answer=a --limit 50 --out few.jsonl",
    ),
    "sample": (
        f"stepmark sample problems.jsonl {_POLICY} --out samples.jsonl",
        "stepmark sample problems.jsonl --policy my-model --n 16 --verifier number --out samples.jsonl",
    ),
    "grade": (
        "stepmark grade solutions.jsonl",
        "stepmark grade solutions.jsonl --prm qwen-7b --out graded.jsonl --report report.html",
    ),
    "watch": (
        "stepmark watch ~/.claude/projects/my-project/session.jsonl --follow",
        "stepmark watch --hook --prm http://127.0.0.1:8000",
    ),
    "split": ("stepmark split solution.txt", "stepmark split solution.txt --split sentence --json"),
    "families": ("stepmark families", "stepmark families | grep qwen"),
    "evaluate": (
        "stepmark evaluate processbench --data hub --prm qwen-7b",
        "stepmark evaluate --method my_package:MyEvaluation --data rows.jsonl",
    ),
    "evaluate best-of-n": (
        "stepmark evaluate best-of-n --data samples.jsonl",
        "stepmark evaluate best-of-n --data samples.jsonl --prm my-prm --sizes 1 4 16",
    ),
    "evaluate search": (
        f"stepmark evaluate search --data problems.jsonl {_POLICY} --budgets 4000",
        "stepmark evaluate search --data problems.jsonl --policy my-model --budgets 2000 8000",
    ),
    "evaluate disagreement": (
        "stepmark evaluate disagreement --data labelled.jsonl",
        "stepmark evaluate disagreement --data labelled.jsonl --process scores --prm my-prm --threshold 0.3",
    ),
    "evaluate verifier": (
        "stepmark evaluate verifier --data pairs.jsonl",
        "stepmark evaluate verifier --data pairs.jsonl --verifier math number",
    ),
    "evaluate drift": (
        "stepmark evaluate drift --data early.jsonl late.jsonl",
        "stepmark evaluate drift --data early.jsonl late.jsonl --prm my-prm --out drift",
    ),
    "evaluate labels": (
        "stepmark evaluate labels people.jsonl judge.jsonl",
        "stepmark evaluate labels people.jsonl --judge http://localhost:8000/v1 --repeats 3",
    ),
    "evaluate compare": (
        "stepmark evaluate compare first/result.json second/result.json",
        "stepmark evaluate compare first/result.json second/result.json --figure gsm8k/f1",
    ),
    "search": (
        f"stepmark search beam problems.jsonl {_POLICY} --out found.jsonl",
        'stepmark search mcts --problem "What is 17 * 24?" --policy my-model',
    ),
    "label": (
        f"stepmark label bayes solutions.jsonl {_POLICY} --out labels.jsonl",
        "stepmark label --method my_package:MyLabeller solutions.jsonl --out labels.jsonl",
    ),
    "label judge": (
        f"stepmark label judge solutions.jsonl {_POLICY} --out labels.jsonl",
        "stepmark label judge solutions.jsonl --policy my-model --keep-going --out labels.jsonl",
    ),
    "label formulas": (
        "stepmark label formulas solutions.jsonl --out labels.jsonl",
        "stepmark label formulas solutions.jsonl --split line --keep-going --out labels.jsonl",
    ),
    "label exact": (
        "stepmark label exact solutions.jsonl --out labels.jsonl",
        "stepmark label exact --arithmetic 1000 --out labels.jsonl",
    ),
    "label consensus": (
        "stepmark label consensus judge.jsonl people.jsonl --out labels.jsonl",
        "stepmark label consensus judge.jsonl people.jsonl --rule majority --out labels.jsonl",
    ),
    "convert": (
        "stepmark convert prm800k.jsonl --to trl --out train.jsonl",
        "stepmark convert labels.jsonl --to processbench --out - | head",
    ),
    "annotate": (
        "stepmark annotate solutions.jsonl",
        "stepmark annotate project.yaml --port 8080 --overlap 2",
    ),
    "annotate link": (
        "stepmark annotate link project.yaml Ann",
        "stepmark annotate link project.yaml Ann --new",
    ),
    "annotate export": (
        "stepmark annotate export project.yaml --out labels.jsonl",
        "stepmark annotate export labels.db --view decided --out labels.jsonl",
    ),
    "serve": (
        "stepmark serve --prm qwen-7b --keys keys.txt",
        f"stepmark serve --prm default {_POLICY} --open",
    ),
    "train": (
        "stepmark train labels.jsonl --out my-prm",
        "stepmark train labels.jsonl --base Qwen/Qwen2.5-Math-7B --lora-rank 16 --out my-prm",
    ),
    "publish": ("stepmark publish my-prm me/my-prm --dry-run", "stepmark publish my-prm me/my-prm --private"),
    "rl": (
        "stepmark rl problems.jsonl --policy my-model --prm my-prm --out trained",
        "stepmark rl problems.jsonl --policy stepmark:arithmetic --updates 20 --out trained",
    ),
    "doctor": ("stepmark doctor", "stepmark doctor --json"),
}
"""By the words of the command."""


def examples(command: Sequence[str]) -> tuple[str, str]:
    """Two examples of a command; for a method without its own, two that fit all methods of `evaluate`, `search` or `label`."""
    words = " ".join(command)
    if words in EXAMPLES:
        return EXAMPLES[words]
    if command[0] == "evaluate":
        return (
            f"stepmark {words} --data data.jsonl",
            f"stepmark {words} --data data --prm my-prm --out result",
        )
    file, out = ("problems", "found") if command[0] == "search" else ("solutions", "labels")
    start = f"stepmark {words} {file}.jsonl"
    return (
        f"{start} {_POLICY} --out {out}.jsonl",
        f"{start} --policy my-model --verifier number --out {out}.jsonl",
    )


def shown(command: Sequence[str]) -> str:
    """The examples as lines of at most 78 characters, which a shell takes as they stand."""
    folded = [
        textwrap.wrap(example, 74, subsequent_indent="    ", break_long_words=False, break_on_hyphens=False)
        for example in examples(command)
    ]
    return "\n".join(["Examples:", *("  " + " \\\n  ".join(lines) for lines in folded)])
