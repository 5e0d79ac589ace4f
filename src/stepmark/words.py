"""Texts and numbers of others, made fit to be seen: nothing hidden, nothing sent to the terminal."""

from __future__ import annotations

import re
from collections.abc import Sequence

from stepmark.errors import InputError

ABSENT = "–"
"""What stands where there is no number."""

# Control characters (a terminal obeys them), line separators, the bidirectional overrides, embeddings and
# isolates (they reorder what surrounds them), and lone surrogates (they cannot be encoded). Left alone: newline,
# tab, and the joiners and direction marks that Persian, Hindi and emoji need.
_UNSEEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ufeff\ud800-\udfff]")


# Joiners act on letters of these scripts and on emoji, variation selectors on these characters.
_SHAPED = "\u0600-\u1fff\u2190-\u2bff\ua000-\uabff\ufb50-\ufdff\ufe70-\ufefc\U0001f000-\U0001faff"
_VARIED = f"#*0-9©®\u203c-\u3299\u3400-\u9fff{_SHAPED}\U00020000-\U0003ffff"
INVISIBLE = re.compile(
    "[\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180e\u200b\u200e\u200f\u2060-\u2065\u206a-\u206f\u3164\uffa0\ufff9-\ufffb"
    "\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
    f"|(?<![{_SHAPED}\ufe0f])[\u200c\u200d]|[\u200c\u200d](?![{_SHAPED}\ufe0f])|(?<![{_VARIED}])[\ufe00-\ufe0f]"
)
"""Characters that take no room and that `visible` leaves alone: direction marks, zero-width spaces, tags; joiners and variation selectors
where there is no script or emoji for them to act on."""


def amount(count: int | None, noun: str, many: str | None = None) -> str:
    """A number (None: not known) and what it counts: "1 step", "2,000 steps"; `many` where the plural is not `noun` and an s."""
    known = "an unknown number of" if count is None else f"{count:,}"
    return f"{known} {noun if count == 1 else many or noun + 's'}"


def indices(count: int) -> str:
    """The indices of so many things, from 0, in words: "0", or "0 to 4"."""
    return "0" if count == 1 else f"0 to {count - 1}"


def code_point(character: str) -> str:
    """The name of a character by its number: "U+200E"."""
    return f"U+{ord(character):04X}"


def visible(text: str) -> str:
    r"""The text with every control character written out: ESC becomes the four characters ``\x1b``.

    Newlines and tabs stay, and a carriage return before a newline is dropped.
    """
    return _UNSEEN.sub(_escaped, text.replace("\r\n", "\n"))


def one_line(text: str) -> str:
    """The same for a place that holds one line: a title, a name. White space runs become one space."""
    return spelled(" ".join(text.split()))


def spelled(text: str) -> str:
    """`visible`, with `INVISIBLE` characters written out too: for places without markup, such as titles and labels."""
    return INVISIBLE.sub(_escaped, visible(text))


def shortened(text: str, most: int = 100) -> str:
    """The text on one line of at most so many characters; "…" ends one that was longer."""
    line = one_line(text)
    return line if len(line) <= most else line[: most - 1] + "…"


def number(value: float) -> str:
    """A score for people: three decimals, or three significant digits where decimals would hide it.

    >>> number(0.4567), number(0.00001234), number(-12345.6)
    ('0.457', '1.23e-05', '-1.23e+04')
    """
    if value == 0 or 0.0005 <= abs(value) < 1000:
        return f"{value:.3f}"
    return f"{value:.3g}"


def _escaped(match: re.Match[str]) -> str:
    code = ord(match.group())
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def first_error_words(first_error: int | None) -> str:
    """What the first error is, in words: steps are counted from 1 for people.

    Args:
        first_error: 0-based index, -1 for none, None when it is not known.
    """
    if first_error is None:
        return "first error: not known"
    return "no error" if first_error < 0 else f"first error: step {first_error + 1}"


def check_solution(steps: Sequence[str], scores: Sequence[float | None], first_error: int | None) -> None:
    """Refuse what would be drawn wrong.

    Raises:
        InputError: not one score (or None) a step, or a first error that is no step.
    """
    if len(scores) != len(steps):
        raise InputError(
            f"expected one score a step, {len(steps)} in all, found {len(scores)}", field="scores"
        )
    if first_error is not None and not -1 <= first_error < len(steps):
        raise InputError(
            f"expected -1 (none), or a step's index, {indices(len(steps))}; found {first_error}",
            field="first_error",
        )
