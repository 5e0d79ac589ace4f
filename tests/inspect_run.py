"""Runs in an environment with inspect_ai: evaluations with its mock model, and what is in their logs as JSON on standard output.

Arguments: a folder for the logs.
"""

from __future__ import annotations

import json
import subprocess
import sys

from inspect_ai import Task, eval
from inspect_ai.dataset import Sample
from inspect_ai.log import read_eval_log
from inspect_ai.model import (
    ChatMessageAssistant,
    ChatMessageTool,
    ChatMessageUser,
    ModelOutput,
    ModelUsage,
    get_model,
)
from inspect_ai.scorer import match
from inspect_ai.solver import solver, use_tools
from inspect_ai.tool import tool

from stepmark.integrations.inspect_ai import prm_best_of_n, prm_scorer, prm_watched

PRM = "integration_worlds:prm"
folder = sys.argv[1]


def mock(texts):
    """A model that says these, in turn, wherever they are asked."""
    outputs = [ModelOutput.from_content(model="mockllm", content=text) for text in texts]
    for output in outputs:
        output.usage = ModelUsage()  # left out, inspect would count with a tokenizer that it downloads
    return get_model("mockllm/model", custom_outputs=outputs, memoize=False)


def ran(task, model):
    [log] = eval(task, model=model, log_dir=folder, display="none", max_samples=1)
    assert log.status == "success", log.error
    return log


def told(log):
    return {
        "metrics": {
            one.name: {name: metric.value for name, metric in one.metrics.items()}
            for one in log.results.scores
        },
        "unscored": {one.name: one.unscored_samples for one in log.results.scores},
        "samples": [
            {
                "completion": sample.output.completion,
                "last": sample.messages[-1].text,
                "messages": len(sample.messages),
                "metadata": sample.metadata,
                "scores": {
                    name: {
                        "value": one.value if one.value == one.value else None,
                        "reason": one.reason,
                        "answer": one.answer,
                        "explanation": one.explanation,
                        "metadata": one.metadata,
                    }
                    for name, one in (sample.scores or {}).items()
                },
            }
            for sample in log.samples
        ],
    }


data = [
    Sample(input="2 + 3?", target="5", id="a"),
    Sample(input="4 + 4?", target="8", id="b"),
    Sample(input="1 + 1?", target="2", id="c"),
]
said = ["2 + 3 = 5\nThe answer is 5", "4 + 4 = 9\nThe answer is 9", "  "]
results = {}

plain = ran(
    Task(dataset=data, scorer=[prm_scorer(prm=PRM, split="line"), match(location="end")], name="plain"),
    mock(said),
)
results["plain"] = told(plain)

# A finished log is scored again by inspect's own command, which has the scorer from the entry point.
out = f"{folder}/again.eval"
words = [
    "score",
    plain.location,
    "--scorer",
    "stepmark/prm_scorer",
    "--action",
    "overwrite",
    "--output-file",
    out,
]
words += [f"-S{setting}" for setting in (f"prm={PRM}", "split=line", "aggregate=product")]
subprocess.run(
    [sys.executable, "-m", "inspect_ai", *words, "--display", "none"], check=True, stdout=sys.stderr
)
results["again"] = told(read_eval_log(out))

for choose in ("best", "majority"):
    log = ran(
        Task(
            dataset=data[:1],
            solver=prm_best_of_n(n=4, choose=choose, prm=PRM, split="line", verifier="number"),
            scorer=match(location="end"),
            name=f"best-of-n-{choose}",
        ),
        mock(
            [
                "2 + 3 = 6\nThe answer is 6",
                "2 + 3 = 5\nThe answer is 5",
                "",
                "2 + 3 = 6\nSo the answer is 6",
            ]
        ),
    )
    results[choose] = told(log)


@solver
def talk():
    """A conversation with a tool, written by hand."""

    async def solve(state, generate):
        state.messages = [
            ChatMessageUser(content="2 + 3, then 5 + 1?"),
            ChatMessageAssistant(
                content="2 + 3 = 5",
                tool_calls=[{"id": "1", "function": "add", "arguments": {"a": 5, "b": 1}}],
            ),
            ChatMessageTool(content="6", tool_call_id="1", function="add"),
            ChatMessageAssistant(content="So 5 + 1 = 7"),
        ]
        state.output = ModelOutput.from_content(model="mockllm", content="So 5 + 1 = 7")
        return state

    return solve


results["agent"] = told(
    ran(
        Task(dataset=data[:1], solver=talk(), scorer=prm_scorer(prm=PRM, split="agent"), name="agent"),
        mock([]),
    )
)


@tool
def add():
    async def execute(a: int, b: int):
        """Add two numbers.

        Args:
            a: one
            b: the other
        """
        return str(a + b)

    return execute


def calling(text, a, b):
    output = ModelOutput.for_tool_call("mockllm", "add", {"a": a, "b": b}, content=text)
    output.usage = ModelUsage()
    return output


def ending(text):
    output = ModelOutput.from_content(model="mockllm", content=text)
    output.usage = ModelUsage()
    return output


turns = {
    "watched": [calling("2 + 3 = 6", 2, 3), calling("2 + 3 = 5", 5, 1), ending("So 5 + 1 = 6")],
    "told": [calling("2 + 3 = 6", 2, 3), calling("2 + 3 = 5", 5, 1), ending("So 5 + 1 = 6")],
    "stopped": [calling("2 + 3 = 5", 5, 1), ending("5 + 1 = 7"), ending("5 + 1 = 8")],
}
for name, outputs in turns.items():
    model = get_model("mockllm/model", custom_outputs=outputs, memoize=False)
    watching = prm_watched(prm=PRM, threshold=0.5, retries=1, checks="all" if name == "told" else "auto")
    task = Task(
        dataset=data[:1], solver=[use_tools(add()), watching], scorer=match(location="end"), name=name
    )
    log = ran(task, model)
    results[name] = {
        **told(log)["samples"][0]["metadata"]["stepmark"],
        "roles": [message.role for message in log.samples[0].messages],
        "texts": [message.text for message in log.samples[0].messages],
    }
print(json.dumps(results))
