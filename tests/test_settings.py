"""Settings are declared once: constraints in annotations are checked for classes and functions, with errors in plain words."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Annotated, Any, Literal

import pytest
from pydantic import Field

from stepmark.errors import SettingError, UsageError
from stepmark.settings import checked, expected, settings


@settings
class How:
    temperature: Annotated[float, Field(ge=0)] = 0.7
    prompt: Literal["chat", "text"] = "chat"


@settings
class Beam:
    width: Annotated[int, Field(ge=1)] = 4
    share: Annotated[float, Field(gt=0, le=1)] = 1.0
    name: str | None = None
    how: How = How()


@checked
def grade(
    rows: Any,
    prm: object = None,
    *,
    threshold: float | None = None,
    show: Annotated[int, Field(ge=0)] = 5,
    out: Any = None,
):
    return (rows, prm, threshold, show, out)


def test_good_values_make_a_frozen_dataclass():
    beam = Beam(width=8, share=1)
    assert asdict(beam) == {
        "width": 8,
        "share": 1,
        "name": None,
        "how": {"temperature": 0.7, "prompt": "chat"},
    }
    assert replace(beam, width=2).width == 2
    with pytest.raises(AttributeError):
        beam.width = 3


@pytest.mark.parametrize(
    "values", [{"width": 0}, {"width": 2.5}, {"width": "3"}, {"width": True}, {"share": 0}, {"name": 3}]
)
def test_a_bad_value_is_named(values):
    with pytest.raises(SettingError) as caught:
        Beam(**values)
    assert isinstance(caught.value, ValueError)
    assert {caught.value.setting: caught.value.value} == values


def test_replace_checks_too():
    with pytest.raises(SettingError, match="width=-1"):
        replace(Beam(), width=-1)


def test_a_choice_lists_its_values():
    with pytest.raises(SettingError, match="prompt='html'"):
        How(prompt="html")


def test_an_unknown_setting_names_the_known_ones():
    with pytest.raises(UsageError, match="width, share, name, how"):
        Beam(beams=3)


def test_a_function_checks_its_keyword_settings_and_leaves_inputs_alone():
    assert grade("x.jsonl", threshold=1, show=0, out=3) == ("x.jsonl", None, 1, 0, 3)
    with pytest.raises(SettingError, match="show=-1"):
        grade("x.jsonl", show=-1)
    with pytest.raises(SettingError, match="threshold='high'"):
        grade("x.jsonl", threshold="high")


def test_expected_in_words():
    assert expected(Annotated[float, Field(gt=0, lt=1)]) == "a number in (0, 1)"
    assert expected(Annotated[int, Field(le=8)] | None) == "a whole number, at most 8"
    assert expected(tuple[str, ...]) == "a list, each a text"
    assert expected(Literal["a", "b", "c"]) == "a, b or c"
