"""lm-evaluation-harness: a filter that keeps, of the repeats of each document, the one that a PRM prefers.

In a task's YAML, with `repeats` above 1 and a temperature above 0:

.. code-block:: yaml

    filter_list:
      - name: prm-best
        filter:
          - function: !function stepmark.integrations.lm_eval.StepmarkFilter
            prm: default
            problem: question
            choose: best
          - function: take_first

`!function` imports this module, which registers the filter; in Python, after `import stepmark.integrations.lm_eval`, its name `stepmark` does
as well. The harness makes a filter anew for each use; the PRM is loaded once a process.

This module imports lm_eval; nothing else of stepmark does.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any, final

from lm_eval.api.filter import Filter
from lm_eval.api.registry import register_filter

from stepmark.errors import InputError, UsageError
from stepmark.integrations.candidates import CandidateGrader, grade_texts, loaded, problem_of, tell
from stepmark.models.prm import Grade
from stepmark.searches.choosing import check_pick, pick
from stepmark.verifiers.base import load_verifier


@final
@register_filter("stepmark")
class StepmarkFilter(Filter):  # type: ignore[misc]
    """Keeps one response of each document: the result is a list of one, as that of the harness's own `majority_vote`.

    Args:
        prm: "default", a checkpoint's folder or hub name, a server's address, or "package.module:factory".
        problem: the document's field with the problem's text, or a template with fields in double braces: "{{question}}".
        choose: `best` (highest aggregate of the step scores), `majority` (commonest answer) or `vote` (answer with the highest sum of
            aggregates). Where no response names an answer, the best is kept.
        aggregate: how step scores make one number; None for the PRM's own.
        split: how a response is cut into steps (`stepmark split`).
        marker: the separator, for split "marker" and "auto".
        verifier: what says which answers are equal, for `majority` and `vote`: math, number, choice, text, or "package.module:Class".
        family: how the PRM is read; None tells it from the checkpoint.
        tokenizer: for a PRM behind a vLLM server, its tokenizer.
    """

    def __init__(
        self,
        prm: str = "default",
        problem: str = "question",
        choose: str = "best",
        aggregate: str | None = None,
        split: str = "auto",
        marker: str | None = None,
        verifier: str = "math",
        family: str | None = None,
        tokenizer: str | None = None,
    ) -> None:
        super().__init__()
        self._choice = check_pick(choose)
        self._problem, self._verifier = problem, verifier
        self._split, self._marker = split, marker
        self._prm = (prm, family, tokenizer)
        self._settings = Grade(aggregate=aggregate)

    def apply(self, resps: Iterable[Sequence[str]], docs: Sequence[Mapping[str, Any]]) -> Iterable[list[str]]:
        """The kept response of each document, as a list of one.

        Of a document none of whose responses can be graded (all blank, or too long for the PRM), the first is kept, and a warning
        says how many there were.

        Raises:
            InputError: a document without the problem's field.
            UsageError: settings that do not fit the PRM, or responses that are no texts.
        """
        every = [list(texts) for texts in resps]
        if any(not isinstance(text, str) for texts in every for text in texts):
            raise UsageError(
                "the filter 'stepmark' reads texts: put it first in the pipeline, of a generate_until task"
            )
        problems = [problem_of(doc, self._problem, number) for number, doc in enumerate(docs)]
        grader = CandidateGrader(loaded(*self._prm), self._settings)
        asked = [(problem, text) for problem, texts in zip(problems, every, strict=True) for text in texts]
        graded = grade_texts(asked, grader, split=self._split, marker=self._marker)
        chosen: list[list[str]] = []
        unread: list[str] = []
        start = 0
        vote_verifier = None if self._choice == "best" else load_verifier(self._verifier)
        with nullcontext() if vote_verifier is None else vote_verifier as verifier:
            for number, texts in enumerate(every):
                mine = graded[start : start + len(texts)]
                start += len(texts)
                try:
                    picked = pick(
                        [item.score for item in mine],
                        [item.answer for item in mine],
                        self._choice,
                        verifier=verifier,
                        refuted=[item.scored is not None and item.scored.refuted for item in mine],
                    ).index
                except InputError:
                    unread.append(f"document {number}: {mine[0].error}" if mine else f"document {number}")
                    picked = 0
                chosen.append(texts[picked : picked + 1])
        tell(unread, len(every))
        return chosen
