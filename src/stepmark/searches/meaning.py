r"""When two steps say the same: layout, markup and the order of sums and products are left out.

    >>> meaning("So $3 \\times 1{,}000 = 3000$.") == meaning("So 1000 * 3 = 3000")
    True

Only what is cheap and sure: no computer algebra, no paraphrase. Steps of one meaning are worth one place in a beam.
"""

from __future__ import annotations

import re
import unicodedata

_SIGNS = {
    "\\times": "*",
    "\\cdot": "*",
    "\\div": "/",
    "\\left": "",
    "\\right": "",
    "\\dfrac": "\\frac",
    "\\tfrac": "\\frac",
    "\\,": "",
    "\\;": "",
    "\\!": "",
    "\\(": "",
    "\\)": "",
    "\\[": "",
    "\\]": "",
    "{,}": ",",
    "$": "",
    "**": "",
    "×": "*",
    "·": "*",
    "÷": "/",
    "−": "-",
    "–": "-",
}
_SIGN = re.compile(
    "|".join(re.escape(sign) + ("(?![A-Za-z])" if sign[-1].isalpha() else "") for sign in _SIGNS)
)
_WORD = re.compile(r"[^\W\d_]{2,}")
_THOUSANDS = re.compile(r"(?<![\d.,])\d{1,3}(?:,\d{3})+(?![\d,])")
_AROUND = re.compile(r"\s*([+*/=<>^-])\s*")
_PAIR = re.compile(r"(?<![\w.+*/^=()-])(\d+(?:\.\d+)?)([+*])(\d+(?:\.\d+)?)(?=\s*(?:=|$))")


def meaning(step: str) -> str:
    """One text for all steps that say the same; see the module. Case counts in formulas (x, X) and not in words."""
    text = _SIGN.sub(lambda match: _SIGNS[match[0]], unicodedata.normalize("NFC", step))
    text = _WORD.sub(lambda match: match[0].casefold(), " ".join(text.split()))
    text = _THOUSANDS.sub(lambda match: match[0].replace(",", ""), text)
    text = _AROUND.sub(r"\1", text).strip().rstrip(".,;: ")
    return _PAIR.sub(_sorted, text)


def _sorted(match: re.Match[str]) -> str:
    left, right = sorted((match[1], match[3]))
    return f"{left}{match[2]}{right}"
