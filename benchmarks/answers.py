"""Reads the final answers of solutions that a model wrote, and compares them with the references.

    python -m benchmarks.answers [--quick] [--disputed FILE]

32 solutions each of 400 problems of GSM8K (the verifier `number`) and of MATH-500 (`math`), against math-verify alone (its default extraction, on the whole
text) and the flexible extraction of lm-evaluation-harness (the last number of the text, compared as text).

- coverage: the share of solutions with a verdict.
- precision: the share of right verdicts among those whose truth is known. Truth is what these three say where they agree, or the first
  two and the last box compared as text. The rest was read, and stands in `answers_judged.json` by problem and number of the solution: true, false, or null for a text that names no answer (a verdict on it is wrong).
- read: the share of solutions whose truth is known.

`--disputed` writes the solutions of unknown truth, one a line, with the end of their text.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.common import benchmark_parser, data_folder, finish, rows, seconds
from stepmark.verifiers.base import load_verifier

Verdict = bool | None
Key = tuple[str, int]

SETS = {"gsm8k": "number", "math500": "math"}
AIMS = {"gsm8k/coverage": 99.0, "gsm8k/precision": 99.8, "math500/coverage": 97.0, "math500/precision": 99.5}
LAST_NUMBER, BOX = "lm-eval/", "box"
_JUDGED = Path(__file__).with_name("answers_judged.json")
# The pattern of the filter "flexible-extract" of lm-evaluation-harness's task gsm8k, version 3.
_LAST_NUMBER = re.compile(r"(-?[$0-9.,]{2,})|(-?[0-9]+)")
_SIZES = re.compile(r"\\left|\\right|\\!|\s")
_LEFT_OUT = re.compile(r",|\$|\.$")


def last_number(text: str, gold: str) -> Verdict:
    """The verdict of lm-evaluation-harness's flexible extraction."""
    found = _LAST_NUMBER.findall(text)
    if not found:
        return None
    return _LEFT_OUT.sub("", (found[-1][0] or found[-1][1]).strip()) == _LEFT_OUT.sub("", gold.strip())


def last_box(text: str, gold: str) -> Verdict:
    """Whether the last box holds the reference, but for spaces and the size of brackets and fractions; for the truth alone."""
    start = text.rfind("\\boxed{")
    if start < 0:
        return None
    depth, place = 1, start + len("\\boxed{")
    while place < len(text) and depth:
        depth += {"{": 1, "}": -1}.get(text[place], 0)
        place += 1
    left, right = (
        _SIZES.sub("", each).replace("dfrac", "frac") for each in (text[start + 7 : place - 1], gold)
    )
    return None if depth else left == right


def math_verify(text: str, gold: str) -> Verdict:
    """The verdict of math-verify alone, on the whole text."""
    from math_verify import parse, verify

    reference, answer = parse(f"${gold}$"), parse(text)
    return bool(verify(reference, answer)) if reference and answer else None


def ours(name: str) -> tuple[Callable[[str, str], Verdict], Callable[[], None]]:
    """The verdict of the verifier of a name, and what closes it."""
    verifier = load_verifier(name)
    return lambda text, gold: verifier.verify(text, gold).correct, verifier.close


def verdicts(
    problems: Iterable[Mapping[str, Any]], judge: Callable[[str, str], Verdict]
) -> dict[Key, Verdict]:
    """What a judge says about every solution."""
    return {
        (row["id"], number): judge(candidate["text"], row["gold"])
        for row in problems
        for number, candidate in enumerate(row["candidates"])
    }


def truths(readings: Mapping[str, Mapping[Key, Verdict]], judged: Mapping[str, Any]) -> dict[Key, Verdict]:
    """The truth of each solution for which it is known: what was read, else what three extractors say."""
    known: dict[Key, Verdict] = {}
    for key in next(iter(readings.values())):
        said = {who: verdict[key] for who, verdict in readings.items() if verdict[key] is not None}
        three = [verdict for who, verdict in said.items() if who != BOX]
        others = [verdict for who, verdict in said.items() if who != LAST_NUMBER]
        if str(key[1]) in judged.get(key[0], {}):
            known[key] = judged[key[0]][str(key[1])]
        elif any(len(votes) == 3 and len(set(votes)) == 1 for votes in (three, others)):
            known[key] = three[0]
    return known


def figures_of(reading: Mapping[Key, Verdict], known: Mapping[Key, Verdict]) -> dict[str, float]:
    """Coverage and precision in percent."""
    given = [key for key, verdict in reading.items() if verdict is not None]
    checked = [key for key in given if key in known]
    return {
        "coverage": 100 * len(given) / len(reading),
        "precision": 100 * sum(reading[key] == known[key] for key in checked) / max(1, len(checked)),
    }


def main() -> None:
    """Run the benchmark."""
    parser = benchmark_parser(__doc__, "40 problems of each set")
    parser.add_argument("--disputed", type=Path, help="write the solutions of unknown truth to this file")
    arguments = parser.parse_args()
    folder = data_folder()
    if folder is None:
        parser.error("the development data is not there: name its folder in STEPMARK_DATA")
    logging.disable(logging.CRITICAL)
    judged = json.loads(_JUDGED.read_text("utf-8"))
    figures: dict[str, float] = {}
    disputed = []
    for name, verifier in SETS.items():
        problems = rows(folder / "strictprm" / f"{name}.dev.jsonl.gz")
        problems = problems[::10] if arguments.quick else problems
        read, close = ours(verifier)
        judges = {"": read, "math-verify/": math_verify, LAST_NUMBER: last_number}
        readings = {}
        for who, judge in judges.items():
            spent, readings[who] = seconds(partial(verdicts, problems, judge))
            figures[f"{name}/{who}solutions a second"] = len(readings[who]) / spent
        close()
        known = truths(readings | {BOX: verdicts(problems, last_box)}, judged[name])
        for who, reading in readings.items():
            figures |= {f"{name}/{who}{what}": value for what, value in figures_of(reading, known).items()}
        figures[f"{name}/read"] = 100 * len(known) / len(readings[""])
        for row in problems:
            for number, candidate in enumerate(row["candidates"]):
                key = (row["id"], number)
                if key not in known:
                    said = [reading[key] for reading in readings.values()]
                    disputed.append(
                        {
                            "id": row["id"],
                            "number": number,
                            "gold": row["gold"],
                            "said": said,
                            "end": candidate["text"].rstrip()[-300:],
                        }
                    )
    if arguments.disputed is not None:
        arguments.disputed.write_text("".join(json.dumps(row) + "\n" for row in disputed), "utf-8")
    finish("answers", figures, AIMS)


if __name__ == "__main__":
    main()
