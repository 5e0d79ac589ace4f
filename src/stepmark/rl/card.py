"""The model card of a trained policy: a pure function from a record to the Markdown of its README.md. Only what is in the record is said."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from stepmark.metrics.intervals import Interval
from stepmark.rl.report import alarm_words
from stepmark.rl.watched import Watched

CARD_FILE = "README.md"
_HUB_NAME = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*")


@dataclass(frozen=True, kw_only=True)
class PolicyCard:
    """What the card says."""

    title: str
    base: str
    """The policy before training."""
    credit: str
    """The method's name."""
    rows: Sequence[Watched]
    """The evaluations, the one of this checkpoint the last."""
    training: str
    """The data, in words: "400 problems of train.jsonl"."""
    held_out: str
    settings: Mapping[str, object] = field(default_factory=dict)
    seed: int = 0
    made_with: Mapping[str, str] = field(default_factory=dict)
    """Versions."""


def policy_card(record: PolicyCard) -> str:
    """The card's Markdown, front matter first."""
    last = record.rows[-1]
    front = ["---", "library_name: transformers", "pipeline_tag: text-generation"]
    if _HUB_NAME.fullmatch(record.base):
        front += [f"base_model: {json.dumps(record.base)}", "base_model_relation: finetune"]
    front += ["tags:", *(f"- {tag}" for tag in ("stepmark", "reinforcement-learning", "reasoning")), "---"]
    parts = [
        "\n".join(front),
        f"# {record.title}",
        f"A policy: `{record.base}` after {last.update:,} updates ({last.rollouts:,} solutions) of training with the credit method `{record.credit}`, by "
        "[stepmark](https://pypi.org/project/stepmark/). transformers loads it as `AutoModelForCausalLM`.",
        "## Measured",
        f"On {record.held_out}, one solution each at the temperature of training.",
        _table(record.rows),
        f"{alarm_words(record.rows)} In brackets: 95 % intervals over problems. The best of several evaluations looks better than it is: measure what you keep "
        "on problems that chose nothing.",
        "## Data",
        f"Trained on {record.training}.",
        "## Settings",
        "\n".join(
            [
                "| setting | value |",
                "| --- | --- |",
                *(f"| `{name}` | {_cell(str(value))} |" for name, value in record.settings.items()),
            ]
        ),
        f"Seed: {record.seed}."
        + (
            " Made with " + ", ".join(f"{name} {version}" for name, version in record.made_with.items()) + "."
            if record.made_with
            else ""
        ),
        "## Licence",
        "Not stated here: it depends on the licences of the starting policy and of the data. Whoever publishes this checkpoint has to look at both.",
    ]
    return "\n\n".join(parts) + "\n"


def _table(rows: Sequence[Watched]) -> str:
    first, last = rows[0], rows[-1]
    shown = (
        [("before training", first), ("this checkpoint", last)]
        if last.update != first.update
        else [("this checkpoint", last)]
    )
    lines = [
        f"| figure | {' | '.join(name for name, _ in shown)} |",
        "| --- |" + " --- |" * len(shown),
    ]
    for what, values in (
        ("accuracy", [row.accuracy for _, row in shown]),
        ("PRM return, mean step score", [row.step_return for _, row in shown]),
        ("PRM return, a solution", [row.solution_return for _, row in shown]),
        ("accuracy that the PRM's scores promise", [row.promised for _, row in shown]),
        ("AUC of the weakest step against the outcome", [row.auc for _, row in shown]),
        ("Brier score of the same", [row.brier for _, row in shown]),
        ("expected calibration error of the same", [row.ece for _, row in shown]),
        ("good steps and a wrong answer", [_slipped(row) for _, row in shown]),
        ("steps a solution", [row.steps for _, row in shown]),
        ("tokens a solution", [row.tokens for _, row in shown]),
        ("KL from the start, nats a token", [row.divergence for _, row in shown]),
    ):
        if any(value is not None and value.value is not None for value in values):
            lines.append(f"| {what} | {' | '.join(map(_figure, values))} |")
    return "\n".join(lines)


def _slipped(row: Watched) -> Interval | None:
    return None if row.quadrants is None else row.quadrants.share(row.quadrants.slipped)


def _figure(one: Interval | None) -> str:
    if one is None or one.value is None:
        return "not known"
    if one.low is None or one.high is None:
        return f"{one.value:.4g}"
    return f"{one.value:.4g} [{one.low:.4g}, {one.high:.4g}]"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
