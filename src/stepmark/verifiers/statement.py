r"""The value that a solution's concluding statement states, where no mark says which it is.

The concluding statement is the last sentence of the text, or the last displayed formula with the sentence that announces it. It must be finished (a text
that was cut off concludes nothing) and state one value: the bold part first, then what stands behind "is", "costs", "=", else its only quantity. Where a
sentence holds several quantities, the one that the last equation before it computed is meant. Everything else is None: which one is meant would be a guess.

    >>> text = "They sell 9 eggs at 2 dollars each: 9 * 2 = 18. So Janet makes $18 on day 3."
    >>> start, end = concluding_value(text)
    >>> text[start:end]
    '$18'
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction

from stepmark.verifiers.quantities import LONGEST, NUMBER, number_words, read_quantity
from stepmark.verifiers.units import unit_of

Span = tuple[int, int]

_DISPLAYS = (("\\[", "\\]"), ("$$", "$$"))
_ENVIRONMENT = re.compile(r"\\end\{((?:align|equation|gather)(?:ed)?\*?)\}[\s.,;]*\Z")
_COURTESY = re.compile(
    r"(?:(?:I hope|Hope|Let me know|Feel free|Please|Is there anything|If you (?:have|need|want|would)|Happy to|Thanks?\b|Do you|Would you)\b[^\n]*"
    r"|This (?:is (?:the|our) (?:final )?(?:answer|solution|result)|completes the (?:solution|proof))[.!]?"
    r"|(?:The answer is|This is) correct[.!]?|[-_*=]{3,}|[\u220e\u25a0\u25a1\u2705\U0001f389\U0001f60a\U0001f642]+|\\?\(?\\(?:blacksquare|square)\\?\)?|<\|[^|\n]*\|>(?:user|assistant)?)\s*\Z"
)
_FINISHED = re.compile(r"[.!?\u3002\uff01\u0964][\"'\u201d)*_`]*\Z|\*\*\Z|\\\)\Z|\\\]\Z|\$\Z|`\Z")
_SPLIT = re.compile(
    r"(?<![ap]\.m\.)(?<!\b[A-Z]\.)(?<!\bMr\.)(?<!\bMs\.)(?<!\bDr\.)(?<!\bSt\.)(?<!\bNo\.)(?<!\bvs\.)(?<!\bMrs\.)(?<!\be\.g\.)(?<!\bi\.e\.)(?<!\bapprox\.)"
    r"(?<=[.!?])(?:[\"\u201d*)$]|\\[\])]){0,4}\s+(?=[\"\u201c(*\\$A-Z\u00c0-\u042f\d])|(?<=[\u3002\uff01\uff1f])\s*"
)
_LEAD = re.compile(r"[ \t]*(?:>[ \t]*)*(?:#{1,6}[ \t]+|[-*+\u2022][ \t]+|\d{1,2}[.)][ \t]+)?")
_CONCLUDES = re.compile(
    r"\b(?:so|therefore|thus|hence|consequently|accordingly|finally|in (?:conclusion|total|summary|all)|(?:al)?together|as a result|this means|we conclude|"
    r"it follows|conclusion|final|answer|result|in other words|overall|solution)\b|\u2234|\u56e0\u6b64|\u6240\u4ee5|\u6545|\u7b54",
    re.I,
)
_ANNOUNCED = re.compile(
    r"(?:\b(?:is|are|was|were|be|equals?|by|as|becomes|gives|to|of|have|get|find|obtain)|=)[ \t]*:?\s*\Z|:\s*\Z",
    re.I,
)
_WANDERS = re.compile(
    r"\?[\"*)]*\Z|\A\W*(?:(?:but|no|so|hmm+|oh|ok(?:ay)?|next|now|first|second|then|wait|let|suppose|assume|assuming|if|to (?:find|get|calculate|determine|compute|check|verify))\b[, ]*)*"
    r"(?:wait|hmm+|let|suppose|assume|assuming|next|first|to (?:find|get|calculate|determine|compute|check|verify|see))\b"
    r"|\b(?:however|perhaps|maybe|might|contradict\w*|impossible|incorrect(?:ly)?|(?:an|made|the) (?:mistake|error)\b(?! in| of)|recheck|re-?evaluate|reconsider|"
    r"we (?:can |will |now |must |should |also |still |then |first )*(?:need to|have to|want to|must|should|add|subtract|multiply|divide|calculate|compute|find(?! that)|"
    r"substitute|use|solve|know|start|set|check|determine|write|express|consider|try|look|sum|apply|simplify|square|factor|expand|rewrite)|"
    r"there (?:is|are) no|no (?:solution|answer|such)|neither|nor|step \d+|case \d+|not (?:an? )?(?:integer|possible|valid|consistent|correct))\b",
    re.I,
)
_DENIAL = re.compile(r"\b(?:not(?! only)|never|no longer)\b|n['\u2019]t\b|\\neq?(?![a-z])", re.I)
_RESULT = re.compile(
    r"\b(?:total|maximum|minimum|final|average|probability|number of|amount|largest|smallest|greatest|least|remain\w*|left)\b",
    re.I,
)
_COPULA = re.compile(
    r"(?<![\w-])(?:is|are|was|were|equals?|becomes?|be|being|remains?|costs?|totals?|totals to|comes? to|amounts? to|simplif(?:y|ies) to|"
    r"ist|sind|betr\u00e4gt|kostet|lautet|est|sont|vaut|co\u00fbte|es|son|fue|cuesta|vale|\u00e8|sono|costa|\u00e9|s\u00e3o|\u0440\u0430\u0432\u043d[\u0430\u043e\u044b]?|jest|wynosi)(?![\w'\u2019-])"
    r"|=|:(?=\s)|\u662f|\u4e3a|\u7b49\u4e8e|\u2014(?=\s)",
    re.I,
)
_RELATIVE = re.compile(r"\b(?:that|which|who)\s+\Z", re.I)
_FILLER = re.compile(
    r"[\s:*]*(?:(?:equal|exactly|approximately|about|roughly|around|only|just|simply|indeed|now|therefore|thus|then|a total of|an? (?:average|sum|profit|loss|amount) of|to|"
    r"given by|\\approx|approx\.|also|still|thereby|in total|the|at least|at most|insgesamt|etwa|genau|de|environ)\b[\s:*]*)*",
    re.I,
)
_BECAUSE = re.compile(
    r",?\s(?:because|since|given that|which (?:is|are|means|makes|equals|gives)|where|so that|as (?:calculated|shown|computed|we|it|the|there|they|he|she|each)|assuming|when|if|rounded|compared (?:to|with)|rather than|instead of|out of|weil|da|parce que|puisque|porque)\b",
    re.I,
)
_CONDITION = re.compile(
    r"(?:(?:so|therefore|thus|hence|then),?\s[^,]{0,60}?,?\s?)?\bif\b[^,]{3,200},\s(?:then\s)?", re.I
)
_AFTER_CLAUSE = re.compile(
    r"[^,]{1,80},\s(?:is|are|was|were|equals?|has|have|will|would|can|must|should|costs?|takes?|needs?|there|he|she|they|it|we|you|the)\b",
    re.I,
)
_BOLD = re.compile(r"\*\*(?=\S)(.+?)(?<=\S)\*\*|__(?=\S)(.+?)(?<=\S)__")
_INLINE = re.compile(
    r"\\\((.+?)\\\)|\\\[(.+?)\\\]|\$\$(.+?)\$\$|(?<!\\)\$\s(?=\S)([^$\n]+?)\s\$|(?<!\\)\$([^$\n]*\\[A-Za-z][^$\n]*)\$(?!\d)|(?<!\\)\$(?=\S)((?:[^$\n\\]|\\.)+?)(?<=\S)\$(?!\d)|`([^`\n]+)`"
)
_PROSE = re.compile(r"(?<![A-Za-z\\])[A-Za-z]{3,}(?![A-Za-z])")
_ENVIRONMENTS = re.compile(r"\\begin\{(\w+\*?)\}.*?\\end\{\1\}", re.S)
_PARENTHESES = re.compile(r"\s\([^()\\]*\)")
_PLAIN_NUMBER = re.compile(
    rf"(?<![\w^_{{}}\\.,:/-])(?P<money>[-\u2212]?(?:US)?\\?[$\u20ac\u00a3\u00a5\u20b9]\s?)?(?P<n>[-\u2212]?\d{{1,2}}(?::\d\d)?\s?[ap](?:\.m\.|m\b)|\d+(?::\d+)+|[-\u2212]?{NUMBER}"
    r"(?:\s?/\s?\d+|\s\d+/\d+)?)(?P<ordinal>(?:st|nd|rd|th)\b)?(?P<sign>\s?(?:\\?%|\u20ac|\u00a3|\u00a5|\u5143|\u5186|\uc6d0))?(?![\w^_\\]|[.,]\d|-[A-Za-z]|:\d)"
    r"|(?<![\w^_{}\\.,:/-])(?P<cjk>\d+(?:[.,]\d+)*)(?=[\u3040-\u9fff\uac00-\ud7af])"
)
_SCALE = re.compile(
    r"\s(?:hundred|thousand|million|billion|trillion|dozens?|percent|per cent|percentage points|degrees)\b",
    re.I,
)
_UNIT = re.compile(r"\s([A-Za-z]+(?:\^\{?[23]\}?|[\u00b2\u00b3])?)(?![\w])(?:\s([A-Za-z]+)(?!\w))?")
_JOINED = re.compile(r",?(?:\s(?:and|und|et|y))?\s\Z", re.I)
_EXPRESSION = re.compile(
    r"(?<![\w\\])[-+(]*(?:\d+(?:\.\d+)?)?[A-Za-z]?(?:\^\{?\d+\}?)?[)]*(?:\s?[-+*/^]\s?[(]*(?:\d+(?:\.\d+)?)?[A-Za-z]?(?:\^\{?\d+\}?)?[)]*)+(?!\w)|(?<![\w\\])\d+[A-Za-z](?:\^\{?\d+\}?)?(?!\w)"
)
_SEPARATOR = re.compile(r"\s*(?:,?\s*(?:and|or|und|et|y|\u548c|\u6216)\s|,|\u3001|;)\s*", re.I)
_NO_NAME = re.compile(
    r"(?:the|a|an|in|on|at|as|to|for|by|of|not|no|that|this|these|those|what|how|when|where|because|since|it|we|he|she|they|now|also|correct|incorrect|wrong|right|complete|valid|"
    r"invalid|verified|satisfied|possible|impossible|needed|required|true that|equal|given|found|same|left|shown|less|more|greater|smaller|about|consistent|enough|unknown|"
    r"indeed|called|defined|unique|already|simplified|solved|proved|proven|done|sufficient|all|both|any|some|each|only|too|very|still|going|able|likely)\b",
    re.I,
)
_NAME = re.compile(r"[^\W\d_][^\W\d_'\u2019.-]*(?:\s[^\W\d_][^\W\d_'\u2019.-]*){0,3}")


@dataclass(frozen=True, slots=True)
class StatedAnswer:
    """A part of a sentence that may be its value."""

    start: int
    end: int
    text: str
    quantity: bool
    """Whether it holds a number, and is not only a symbol or a word."""


def concluding_value(text: str) -> Span | None:
    """Where the value of the concluding statement stands, or None where there is no such statement or no single value."""
    end = len(text.rstrip())
    tail = max(0, end - 4 * LONGEST)
    for _ in range(4):
        courtesy = _last_sentence(text, tail, end)
        if courtesy is None or _COURTESY.match(text[courtesy[0] : courtesy[1]]) is None:
            break
        end = tail + len(text[tail : courtesy[0]].rstrip())
    if end <= tail or _cut_off(text, tail, end):
        return None
    return _displayed(text, tail, end) if _ends_displayed(text, tail, end) else _stated(text, tail, end)


_BEGINS = re.compile(r"\\begin\{(\w+\*?)\}")


def _cut_off(text: str, tail: int, end: int) -> bool:
    """Whether a displayed formula is open at the end, or a list's next number stands alone."""
    if text.rfind("\\[", tail, end) > text.rfind("\\]", tail, end) or text.count("$$", tail, end) % 2:
        return True
    begun = list(_BEGINS.finditer(text, tail, end))
    if begun and text.find(f"\\end{{{begun[-1][1]}}}", begun[-1].end(), end) < 0:
        return True
    return re.fullmatch(r"\s*\d{1,2}[.)]", text[text.rfind("\n", tail, end) + 1 : end]) is not None


def _last_sentence(text: str, tail: int, end: int) -> Span | None:
    line = text.rfind("\n", tail, end) + 1 or tail
    start = _LEAD.match(text, line, end).end()  # type: ignore[union-attr]  # it matches nothing too
    for cut in _SPLIT.finditer(text, start, end):
        if cut.end() < end and not _within_mathematics(text, start, cut.start()):
            start = cut.end()
    return (start, end) if start < end else None


def _within_mathematics(text: str, start: int, place: int) -> bool:
    before = text[start:place]
    return before.count("\\(") > before.count("\\)") or before.count("**") % 2 == 1


def _ends_displayed(text: str, tail: int, end: int) -> bool:
    body = text[tail:end].rstrip(" .,;")
    return (
        body.endswith("\\]")
        or (body.endswith("$$") and body.count("$$") % 2 == 0)
        or _ENVIRONMENT.search(body) is not None
    )


def _displayed(text: str, tail: int, end: int) -> Span | None:
    body = text[tail:end].rstrip(" .,;")
    environment = _ENVIRONMENT.search(body)
    if environment is not None:
        opening, closing = f"\\begin{{{environment[1]}}}", environment.group().strip()
    else:
        opening, closing = next(pair for pair in _DISPLAYS if body.endswith(pair[1]))
    start = body.rfind(opening, 0, len(body) - len(closing))
    if start < 0:
        return None
    before = text[tail : tail + start].rstrip()
    announcing = _last_sentence(text, tail, tail + len(before))
    if announcing is None:
        return None
    words = text[announcing[0] : announcing[1]]
    concludes = _CONCLUDES.search(words) is not None
    if not (_ANNOUNCED.search(words) or concludes) or _WANDERS.search(words):
        return None
    if (
        not concludes
        and re.search(r"\b(?:is|are|was|were|be|equals?)[ \t]*:?\s*\Z", words.rstrip("* "), re.I) is None
    ):
        return None
    inner = (tail + start + len(opening), tail + len(body) - len(closing))
    content = text[inner[0] : inner[1]]
    if "\\\\" in content and not re.search(r"\\begin\{[a-z]*(?:matrix|cases|array)", content):
        last = content.rstrip().removesuffix("\\\\").rfind("\\\\")
        inner = (inner[0] + last + 2, inner[1]) if last >= 0 else inner
    return _formula(text, *inner)


_IMPLIES = re.compile(r"\\(?:implies|Rightarrow|Longrightarrow|therefore)(?![A-Za-z])")
_INEXACT = re.compile(r"\\approx(?![A-Za-z])|\u2248")


def _formula(text: str, start: int, end: int) -> Span | None:
    """The formula's last claim: behind the last arrow, exact where it is also rounded."""
    for arrow in _IMPLIES.finditer(text, start, end):
        start = arrow.end()
    for rounded in _INEXACT.finditer(text, start, end):
        exact = text[start : rounded.start()].rpartition("=")[2]
        if re.search(r"\\(?:[dt]?frac|sqrt|pi)|[/^]", exact):
            end = rounded.start()
            break
        start = rounded.end()
    body = text[start:end]
    stripped = body.strip(" \n\t.,;&").removesuffix("\\").rstrip()
    if not stripped or "\\text{not" in stripped or "\\neq" in stripped or "\\ne " in stripped:
        return None
    offset = start + body.index(stripped)
    return offset, offset + len(stripped)


def _stated(text: str, tail: int, end: int) -> Span | None:
    span = _last_sentence(text, tail, end)
    if span is None:
        return None
    start, end = span
    sentence = text[start:end]
    if sentence.count("**") == 2 and sentence.startswith("**") and sentence.endswith("**"):
        start, end = start + 2, end - 2  # a sentence that is bold as a whole
        sentence = text[start:end]
    finished = _FINISHED.search(text[start : span[1]]) is not None
    if _WANDERS.search(_INLINE.sub(" ", sentence)) or _open(sentence):
        return None
    computed = _computed(text, tail, start)
    condition = _CONDITION.match(_masked(sentence))
    if condition is not None:
        start += condition.end()
        sentence = text[start:end]
    because = _BECAUSE.search(_masked(sentence))
    if because is not None and _AFTER_CLAUSE.match(_masked(sentence), because.end()):
        because = None
    if because is not None and any(c.quantity for c in _candidates(sentence, 0, because.start())):
        end = start + because.start()
        sentence = text[start:end]
    chosen = _chosen(sentence, computed)
    if chosen is None or _denied(sentence[: chosen.start]):
        return None
    if _CONCLUDES.search(text, span[0], span[1]) is None and not (
        chosen.quantity and (computed is None or _agrees(chosen.text, computed) or _RESULT.search(sentence))
    ):
        return None  # the last sentence, but no conclusion
    if not finished and not (
        _value(chosen.text) is not None
        and (_agrees(chosen.text, computed) or re.match(r"\W*[\w ]{1,40}\**:", sentence))
    ):
        return None  # it may have been cut off within its last number
    return start + chosen.start, start + chosen.end


def _denied(before: str) -> bool:
    """Whether what follows is denied: "does not sell 18 lamps", but not "those that are not sold are 18"."""
    denials = list(_DENIAL.finditer(before))
    return bool(denials) and _COPULA.search(before, denials[-1].end()) is None


def _open(sentence: str) -> bool:
    """Whether mathematics or bold text begins that does not end: the text was cut off."""
    return sentence.count("\\(") != sentence.count("\\)") or sentence.count("\\[") != sentence.count("\\]")


def _computed(text: str, tail: int, end: int) -> Fraction | None:
    """The number that the last equation before the sentence ends with."""
    sign = None
    for sign in _EQUALS.finditer(text, max(tail, end - LONGEST), end):  # noqa: B007 (the last one is wanted)
        pass
    if sign is None:
        return None
    chunk = text[sign.end() : end].lstrip(" \\($[*")
    return _value(_EQUATION_END.split(chunk, maxsplit=1)[0].strip(" *,."))


_EQUALS = re.compile(r"=|\\approx(?![a-z])|\\[lg]eq?(?![a-z])|[\u2248\u2264\u2265]")
_EQUATION_END = re.compile(r"\\\]|\\\)|\$\$|(?<=[^\s\\])\$|\n|\.\s|\.\Z|;|\s\(|\)(?=\s)|\u3002")


def _value(text: str) -> Fraction | None:
    quantity = read_quantity(text)
    return None if quantity is None else quantity.value


def _agrees(text: str, computed: Fraction | None) -> bool:
    """Whether a quantity is the number that was computed, or that number rounded, in percent or in dozens."""
    quantity = read_quantity(text)
    if quantity is None or computed is None:
        return False
    decimals = re.search(r"\.(\d+)", text)
    half = Fraction(1, 2 * 10 ** len(decimals[1])) if decimals else Fraction(0)
    values = (quantity.value, quantity.value / 100 if quantity.percent else quantity.value)
    return any(
        abs(value - computed) <= half
        for value in (*values, quantity.value / 12 if "dozen" in quantity.forms else values[0])
    )


def _masked(sentence: str) -> str:
    """The sentence with its formulas, and words in parentheses, as blanks."""
    for pattern in (_INLINE, _ENVIRONMENTS, _PARENTHESES):
        sentence = pattern.sub(
            lambda part: part.group() if _currency(part) else " " * len(part.group()), sentence
        )
    return sentence


def _currency(part: re.Match[str]) -> bool:
    """Whether two dollar signs are prices and no formula: "$5 for each and $6"."""
    return (
        part.group().startswith("$")
        and not part.group().startswith("$$")
        and _PROSE.search(
            re.sub(r"\\(?:text|mathrm|textbf|begin|end|operatorname)\{[^{}]*\}", "", part.group())
        )
        is not None
    )


def _candidates(sentence: str, start: int, end: int) -> list[StatedAnswer]:
    answers: list[StatedAnswer] = []
    for part in _INLINE.finditer(sentence, start, end):
        if _currency(part):
            continue
        inner = part.lastindex or 0
        content = part.group(inner).strip()
        left = part.start(inner) + part.group(inner).index(content) if content else part.start(inner)
        answers.append(
            StatedAnswer(
                left,
                left + len(content),
                content,
                quantity=re.search(r"\d|\\pi|\\infty", content) is not None,
            )
        )
    masked = _masked(sentence)
    spans: list[Span] = []
    for expression in _EXPRESSION.finditer(masked, start, end):
        body = expression.group()
        if body.endswith(("*", "/", "+", "-", "^")):
            continue
        if (
            re.search(r"\d|\b[A-Za-z]\b", body)
            and re.search(r"[A-Za-z].*[-+*/^]|[-+*/^].*[A-Za-z]|\d[A-Za-z]", body)
            and not re.search(r"[A-Za-z]{2}|\d-[A-Za-z]|\b[A-Za-z]-\d", body)
        ):
            spans.append(expression.span())
            answers.append(StatedAnswer(*expression.span(), body, quantity=True))
    for number in _PLAIN_NUMBER.finditer(masked, start, end):
        if any(left <= number.start() < right for left, right in spans):
            continue
        left, right = number.start(), _with_unit(masked, number.end(), end)
        if (
            answers
            and answers[-1].end <= left
            and _JOINED.fullmatch(sentence, answers[-1].end, left)
            and _compound(answers[-1].text, sentence[left:right])
        ):
            left = answers.pop().start  # "2 hours and 30 minutes"
        answers.append(StatedAnswer(left, right, sentence[left:right], quantity=True))
    if not any(candidate.quantity for candidate in answers):
        for word in number_words(masked, start, end):
            right = _with_unit(masked, word[1], end)
            answers.append(StatedAnswer(word[0], right, sentence[word[0] : right], quantity=True))
    return sorted(answers, key=lambda candidate: candidate.start)


def _with_unit(sentence: str, place: int, end: int) -> int:
    scale = _SCALE.match(sentence, place, end)
    if scale is not None:
        place = scale.end()
    unit = _UNIT.match(sentence, place, end)
    if unit is None:
        return place
    if unit[2] is not None and unit_of(f"{unit[1]} {unit[2]}") is not None:
        return unit.end()
    single = unit[1] in {"m", "g", "L", "l", "s", "h"} if len(unit[1]) == 1 else unit[1] != "in"
    return unit.end(1) if single and unit_of(unit[1]) is not None else place


def _compound(left: str, right: str) -> bool:
    """Whether two quantities side by side are one: hours and minutes, feet and inches."""
    first, second = read_quantity(left), read_quantity(right)
    return (
        first is not None
        and second is not None
        and first.unit is not None
        and second.unit is not None
        and first.unit.kind == second.unit.kind
        and first.unit.factor > second.unit.factor
    )


def _distinct(candidates: list[StatedAnswer]) -> list[StatedAnswer]:
    """The candidates without those that repeat another's value; the last of each stays."""
    last = {_value(c.text.rpartition("=")[2]) or c.text: c for c in candidates}
    return list(last.values())


def _chosen(sentence: str, computed: Fraction | None) -> StatedAnswer | None:
    assigned = _ASSIGNED.search(sentence.rstrip(" .!"))
    if assigned is not None:
        return StatedAnswer(*assigned.span(), assigned.group(), quantity=True)
    exact = _PRECISELY.search(sentence)
    if exact is not None:
        precise = [c for c in _candidates(sentence, exact.end(), len(sentence)) if c.quantity]
        if len(_distinct(precise)) == 1:
            return precise[-1]
    bold = [
        c
        for part in _BOLD.finditer(sentence)
        for c in _distinct([c for c in _candidates(sentence, *part.span(1 if part[1] else 2)) if c.quantity])
    ]
    if bold:
        return _distinct(bold)[0] if len(_distinct(bold)) == 1 else None
    name = _BOLD_NAME.search(sentence)
    if name is not None and _NO_NAME.match(name[1]) is None:
        return StatedAnswer(*name.span(1), name[1], quantity=False)
    candidates = _candidates(sentence, 0, len(sentence))
    quantities = _distinct([c for c in candidates if c.quantity])
    behind = _behind(sentence, candidates)
    if isinstance(behind, StatedAnswer) and behind.quantity:
        others = [c for c in quantities if _agrees(c.text, computed)]
        if _value(behind.text) is None or _agrees(behind.text, computed) or not others:
            return behind
        return None  # what was computed last is another number of this sentence
    if len(quantities) > 1:
        quantities = [c for c in quantities if not _ORDINAL.search(c.text)] or quantities
    if len(quantities) == 1:
        return quantities[0]
    meant = [c for c in quantities if _agrees(c.text, computed)]
    if len(meant) == 1:
        return meant[0]
    return behind if not quantities else None


_ASSIGNED = re.compile(
    r"(?<![\w\\(])[A-Za-z]\s?=\s?[^=,]{1,40}?(?:(?:,?\s(?:and|or)\s|,\s)[A-Za-z]\s?=\s?[^=,]{1,40}?)+\Z"
)
"""Several solutions in plain text: "x = 4 or x = -2"."""
_BOLD_NAME = re.compile(rf"\b(?:is|are|was|were|be)\s(?:[a-z]+ing\s)?\*\*({_NAME.pattern})\*\*[.!]?\Z")
_PRECISELY = re.compile(r"\bor(?: more)? (?:precisely|exactly),?\s|\bmore (?:precisely|exactly),?\s", re.I)
_ORDINAL = re.compile(r"\d(?:st|nd|rd|th)\b")


def _behind(sentence: str, candidates: list[StatedAnswer]) -> StatedAnswer | None:
    """What stands behind the last copula that has a value behind it."""
    masked = _masked(sentence)
    for copula in reversed(list(_COPULA.finditer(masked))):
        if _RELATIVE.search(masked, 0, copula.start()):
            continue
        place = _FILLER.match(sentence, copula.end()).end()  # type: ignore[union-attr]  # it matches nothing too
        for number, candidate in enumerate(candidates):
            opening = sentence[place : candidate.start].strip(" \\($`*")
            if candidate.start >= place and not opening and candidate.start - place <= 4:
                return _listed(sentence, candidates, number)
        if any(c.quantity and c.start > copula.end() for c in candidates):
            return None
        name = _named(sentence, copula.end())
        if name is not None and not any(c.quantity for c in candidates):
            return name
    return None


def _listed(sentence: str, candidates: list[StatedAnswer], number: int) -> StatedAnswer | None:
    """A candidate with what follows it in a list: "2 and 3"; one alone is itself."""
    first = last = candidates[number]
    for following in candidates[number + 1 :]:
        between = sentence[last.end : following.start]
        for sign in ("\\(", "\\)", "$"):
            between = between.replace(sign, "")
        if _SEPARATOR.fullmatch(between) is None:
            break
        last = following
    if last is first:
        return first
    rest = sentence[last.end :].strip(" .\\)$!*")
    if rest:
        return None
    return StatedAnswer(first.start, last.end, sentence[first.start : last.end], quantity=first.quantity)


def _named(sentence: str, place: int) -> StatedAnswer | None:
    """A name or a short word behind a copula, up to the end of the sentence."""
    rest = sentence[place:]
    body = re.sub(r"^[a-z]+ing\s", "", rest.strip(" .!*\u3002\"'\u201c\u201d"))
    if not body or _NO_NAME.match(body) or _NAME.fullmatch(body) is None:
        return None
    start = place + rest.index(body)
    return StatedAnswer(start, start + len(body), body, quantity=False)


_SENTENCE = re.compile(
    r"(?:that|which|because|as|since|when|for)\b|(?:[^\n]*?(?<![\w\\])[^\W\d_]{2,}\b){5}|[^\n]*(?:\*\*|\b(?:is|are|was|were)\b)|[^\n]*[\u3040-\u9fff\uac00-\ud7af]",
    re.I,
)


def value_within(text: str, start: int, end: int) -> Span | None:
    """The value within what follows "the answer is", where that is a clause and not a value: "that they brought **14 records**"."""
    clause = text[start:end]
    if _SENTENCE.match(clause) is None:
        return None
    chosen = _chosen(clause, None)
    return None if chosen is None or not chosen.quantity else (start + chosen.start, start + chosen.end)
