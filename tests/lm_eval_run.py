"""Runs in an environment with lm_eval: a task of a folder, with a model that says what it is told; the results as JSON on standard output.

Arguments: the folder with the task's YAML and data.
"""

from __future__ import annotations

import json
import sys
from collections import Counter

from lm_eval import simple_evaluate
from lm_eval.api.model import LM
from lm_eval.tasks import TaskManager


class Told(LM):
    """Answers a document's repeats with its texts, in turn."""

    def __init__(self, texts):
        super().__init__()
        self._texts, self._asked = texts, Counter()

    def generate_until(self, requests, disable_tqdm=False):
        said = []
        for request in requests:
            question = request.arguments[0].strip()
            said.append(self._texts[question][self._asked[question]])
            self._asked[question] += 1
        return said

    def loglikelihood(self, requests, disable_tqdm=False):
        raise NotImplementedError

    def loglikelihood_rolling(self, requests, disable_tqdm=False):
        raise NotImplementedError


texts = {
    "2 + 3?": ["2 + 3 = 6\nThe answer is 6", "2 + 3 = 5\nThe answer is 5", "2 + 3 = 6\nThe answer is 6"],
    "4 + 4?": ["4 + 4 = 8\nThe answer is 8", "", "4 + 4 = 9\nThe answer is 9"],
    "1 + 1?": ["", "", ""],
}
results = simple_evaluate(
    model=Told(texts),
    tasks=["sums"],
    task_manager=TaskManager(include_path=sys.argv[1], include_defaults=False),
    log_samples=True,
    bootstrap_iters=0,
)
print(
    json.dumps(
        {
            "metrics": results["results"]["sums"],
            "kept": {
                name: [
                    one["filtered_resps"][0] for one in results["samples"]["sums"] if one["filter"] == name
                ]
                for name in ("first", "best", "majority", "vote", "number")
            },
        },
        default=str,
    )
)
