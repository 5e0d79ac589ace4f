"""Decimal commas and points, by the language of the sentence.

    >>> as_english("1.250,50 Euro", "Die Antwort ist 1.250,50 Euro."), as_english("3,500", "La réponse est 3,500.")
    ('1250.50 Euro', '3.500')

Where a separator may be either, the reading is open: None, and no verdict.

    >>> as_english("1.250", "La respuesta es 1.250.") is None
    True
"""

from __future__ import annotations

import re
from typing import Literal

Style = Literal["point", "comma", "comma and spaces", "either"]
"""What a language writes before decimals. "comma": a point stands between thousands; "comma and spaces": a space does, so that "1.250" is open; "either":
countries differ."""

_SCRIPTS: tuple[tuple[re.Pattern[str], Style], ...] = (
    (re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af\u0590-\u06ff\u0900-\u0e7f]"), "point"),
    (re.compile(r"[\u0400-\u04ff]"), "comma and spaces"),
    (re.compile(r"[\u0370-\u03ff]{3}"), "comma"),
)
_WORDS: tuple[tuple[Style, str], ...] = (
    ("point", "the is are so therefore thus hence answer of and to in a an costs has have total for that"),
    ("comma", "die der das ist sind und antwort beträgt kostet lautet insgesamt daher also ergebnis euro ein eine von für"),
    ("comma", "il lo è la risposta quindi sono costa totale dunque euro di del per che"),
    ("comma", "o a é resposta portanto são custa logo reais do da que um uma no"),
    ("comma", "het de antwoord dus een kost totaal van zijn bedraagt"),
    ("comma", "svaret är er og koster därför derfor och"),
    ("comma", "jawaban adalah jadi là đáp án vậy cevap"),
    ("comma and spaces", "la le les est sont réponse donc coûte total euros ainsi un une du des et pour résultat"),
    ("comma and spaces", "odpowiedź to jest więc wynosi odpověď je tedy vastaus on siis"),
    ("either", "la el los las es son respuesta por lo tanto cuesta entonces total un una del y"),
)  # fmt: skip
_VOCABULARY = tuple((style, frozenset(words.split())) for style, words in _WORDS)
_WORD = re.compile(r"[^\W\d_]+")
_NUMBER = re.compile(r"\d+(?:[.,]\d+)+")
_MATHEMATICS = re.compile(r"[()\[\]{}\\;|<>=]")
_GROUPS = re.compile(r"[1-9]\d{0,2}(?:[.,]\d{3})+")


def decimal_style(sentence: str) -> Style:
    """What the language of a sentence writes before decimals; a point where no language is seen."""
    for script, style in _SCRIPTS:
        if script.search(sentence):
            return style
    words = [word.lower() for word in _WORD.findall(sentence)]
    counts = [sum(word in vocabulary for word in words) for _, vocabulary in _VOCABULARY]
    return _VOCABULARY[counts.index(max(counts))][0] if counts[0] < max(counts) else "point"


def as_english(answer: str, sentence: str) -> str | None:
    """An answer that is one number, with a decimal point and no separators of thousands; any other as it is. None where a separator is open."""
    text = answer.replace("{,}", ",").replace("\\$", "$")
    if (
        _MATHEMATICS.search(text)
        or len(_NUMBER.findall(text)) != 1
        or len(re.findall(r"\d+(?:[.,]\d+)*", text)) != 1
    ):
        return answer
    style = decimal_style(sentence)
    if "{,}" in answer and style == "point" and not _GROUPS.search(text):
        style = "comma"  # LaTeX writes a decimal comma in braces
    number = _NUMBER.search(text)
    assert number is not None
    read = _read(number.group(), style)
    return (
        None
        if read is None
        else answer
        if read == number.group()
        else text[: number.start()] + read + text[number.end() :]
    )


def _read(number: str, style: Style) -> str | None:
    points, commas = number.count("."), number.count(",")
    if points and commas:
        decimal = max(".", ",", key=number.rfind)
        other = "," if decimal == "." else "."
        return number.replace(other, "").replace(decimal, ".") if number.count(decimal) == 1 else number
    if points + commas > 1:
        return number.replace(".", "").replace(",", "") if _GROUPS.fullmatch(number) else number
    grouped = _GROUPS.fullmatch(number) is not None
    if style == "point":
        return number
    if grouped and (style == "either" or (points and style == "comma and spaces")):
        return None
    if points:
        return number.replace(".", "") if grouped else number
    return number.replace(",", ".")
