"""Best-of-N candidates by the policy that wrote them: whether a PRM judges one model as well as another.

A PRM that ranks the models but not the solutions of one model gains nothing when all candidates come from one
policy; so AUC is taken within each policy, over its candidates for all problems.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from stepmark.metrics.binary import weighted_auc
from stepmark.metrics.intervals import Floats, shares


def policy_statistic(rows: Sequence[Mapping[str, Any]]) -> Callable[[Floats], dict[str, Floats]]:
    """Figures of each policy as a function of weights (B, n) over the n problems: for a bootstrap over problems.

    - `POLICY/candidates`: how many, weighted;
    - `POLICY/accuracy`: share of right ones among those whose correctness is known;
    - `POLICY/score/HOW`: mean score; left out where a score is infinite (sums of logits of certain steps);
    - `POLICY/auc/HOW`: the probability that a right candidate of this policy scores above a wrong one of the same
      policy, of any problem, ties half; NaN where a weighting has no right or no wrong one.

    Candidates without a policy are left out; those without a score, of that aggregate's figures alone.

    Args:
        rows: what `stepmark.evaluation.best_of_n.items` made; problems that are not counted there are counted here.
    """
    problem: dict[str, list[int]] = {}
    correct: dict[str, list[float]] = {}
    scores: dict[str, dict[str, list[float]]] = {}
    for at, row in enumerate(rows):
        pool = row["pool"]
        for i, policy in enumerate(pool["policy"]):
            if policy is None:
                continue
            problem.setdefault(policy, []).append(at)
            truth = pool["correct"][i]
            correct.setdefault(policy, []).append(math.nan if truth is None else float(truth))
            for how, values in pool["scores"].items():
                score = math.nan if values[i] is None else float(values[i])
                scores.setdefault(policy, {}).setdefault(how, []).append(score)
    columns = {
        policy: (
            np.array(problem[policy], dtype=np.intp),
            np.array(correct[policy]),
            {how: np.array(values) for how, values in scores.get(policy, {}).items()},
        )
        for policy in sorted(problem)
    }

    def compute(weights: Floats) -> dict[str, Floats]:
        out: dict[str, Floats] = {}
        for policy, (at, right, by_score) in columns.items():
            w = weights[:, at]
            known = ~np.isnan(right)
            out[f"{policy}/candidates"] = w.sum(axis=1)
            out[f"{policy}/accuracy"] = shares(w[:, known] @ right[known], w[:, known].sum(axis=1))
            for how, score in by_score.items():
                scored = ~np.isnan(score)
                if np.isfinite(score[scored]).all():
                    out[f"{policy}/score/{how}"] = shares(
                        w[:, scored] @ score[scored], w[:, scored].sum(axis=1)
                    )
                both = scored & known
                if both.any():
                    out[f"{policy}/auc/{how}"] = weighted_auc(score[both], right[both], w[:, both])
        return out

    return compute
