"""What travels between the score server and its clients: every request and every answer, field by field.

Requests are read strictly (`read_body`): a wrong type, a key that is not known and a number that is no number are refused, and the
error names one field. Answers are written by the routes as plain data; their models here say what is in them, for the OpenAPI document and
for whoever reads one.

The words are those of the rows of `stepmark grade` (`models.grading.to_row`): `scores`, `score`, `aggregate`, `first_error`, `threshold`,
`score_kind`, `findings`, `first_error_by`, `classes`, `class_names`, `critiques`, `steps`.
"""

from __future__ import annotations

from stepmark.serving.wire.answers import (
    ClosedAnswer,
    ErrorAnswer,
    ErrorBody,
    ModelEntry,
    ModelsAnswer,
    PoolingAnswer,
    PoolingRows,
    PoolingUsage,
    PRMFacts,
    RankAnswer,
    ReleaseAnswer,
    Result,
    ScoreAnswer,
    SessionAnswer,
    StatusAnswer,
    SteppedResult,
    StepsAnswer,
    Usage,
)
from stepmark.serving.wire.requests import (
    EXAMPLE,
    MOST_SECONDS,
    NOT_BLANK,
    CandidateFields,
    PoolingRequest,
    RankRequest,
    ReleaseRequest,
    ScoreRequest,
    SessionRequest,
    SolutionToScore,
    StepsRequest,
    StepToScore,
)

__all__ = [
    "EXAMPLE",
    "MOST_SECONDS",
    "NOT_BLANK",
    "CandidateFields",
    "ClosedAnswer",
    "ErrorAnswer",
    "ErrorBody",
    "ModelEntry",
    "ModelsAnswer",
    "PRMFacts",
    "PoolingAnswer",
    "PoolingRequest",
    "PoolingRows",
    "PoolingUsage",
    "RankAnswer",
    "RankRequest",
    "ReleaseAnswer",
    "ReleaseRequest",
    "Result",
    "ScoreAnswer",
    "ScoreRequest",
    "SessionAnswer",
    "SessionRequest",
    "SolutionToScore",
    "StatusAnswer",
    "StepToScore",
    "SteppedResult",
    "StepsAnswer",
    "StepsRequest",
    "Usage",
]
