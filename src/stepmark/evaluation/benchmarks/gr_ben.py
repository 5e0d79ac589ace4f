"""GR-Ben: the first wrong step in science and logic; ProcessBench's fields, but labels count from 1."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from stepmark.evaluation.first_errors import FirstErrors
from stepmark.settings import settings


@settings
class GRBen(FirstErrors):
    """First-error accuracy and F1 on GR-Ben, per domain and on average, with intervals.

    The data are its JSON lines (GR-BEN.jsonl).
    """

    name: ClassVar[str] = "gr-ben"
    title: ClassVar[str] = "GR-Ben"
    question: ClassVar[str] = "which step of an argument in science or logic is the first wrong one?"
    paper: ClassVar[str] = "arXiv 2605.01203"
    home: ClassVar[str] = "github.com/spirit-moon-fly/GR-Ben"
    licence: ClassVar[str] = "CC-BY-4.0"
    files: ClassVar[tuple[str, ...]] = ("GR-BEN.jsonl",)
    counts_from: ClassVar[int] = 1
    columns_of: ClassVar[Mapping[str, str]] = {**FirstErrors.columns_of, "group": "domain"}
