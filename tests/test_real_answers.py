r"""Answers as people and models really write them: each row is one example of a kind that public reports or 32,000 real solutions broke."""

from __future__ import annotations

import pytest

from stepmark.verifiers.base import load_verifier
from stepmark.verifiers.finder import find_answer

THINK = [
    ("<think>", "</think>"), ("<THINK>", "</THINK>"), ("<thinking>", "</thinking>"), ("[THINK]", "[/THINK]"), ("", "</think>"),
    ("<|channel|>analysis<|message|>", "<|end|><|start|>assistant<|channel|>final<|message|>"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("So, the total number of bolts of fiber needed for the robe is **3**.", "**3**"),
        ("Therefore, Janet makes $18 every day from selling the remaining duck eggs at the farmers' market.", "$18"),
        ("So, it takes a total of 3 bolts of fiber to make the robe.", "3"),
        (r"Therefore, Josh made a profit of \$70,000.", r"\$70,000"),
        (r"Therefore, the power of 4 that is equal to 8 is \(\frac{3}{2}\).", r"\frac{3}{2}"),
        ("So, combining these results, the simplified expression is:\n\n\\[ 2k + 2 \\]", "2k + 2"),
        (r"So, the solution to the equation is \(x = 6\).", "x = 6"),
        ("Therefore, the student with the greatest average speed is Evelyn.", "Evelyn"),
        ("Thus, the answer is that the 5 people brought in **14 old records**.", "14"),
        # The same kinds in other words.
        ("The bus costs 2 dollars.\n\nIn total, the 3 friends pay **6 dollars** for the bus.", "6 dollars"),
        ("12 / 4 = 3.\n\nThus, each of the 4 girls gets 3 apples.", "3"),
        ("5 * 9 = 45.\n\nSo in 5 days the baker uses 45 kg of flour.", "45 kg"),
        ("Hence the probability is 3/8, since 3 of 8 cases fit.", "3/8"),
        ("Therefore, if a ticket costs $25, then 9 people would buy one.", "9"),
        ("So the discount was 12.5%.", "12.5%"),
        ("Therefore, the train arrives at 2:30 pm.", "2:30 pm"),
        ("So the company earned 3.2 million dollars.", "3.2 million dollars"),
        ("There are five apples in the bag and she eats two of them.\n\nSo three apples are left.", "three"),
        (r"Therefore, the vector is $\begin{pmatrix} 2 \\ 3 \end{pmatrix}$.", r"\begin{pmatrix} 2 \\ 3 \end{pmatrix}"),
        (r"Thus, the solutions are \(x = 2\) and \(x = -3\).", r"x = 2\) and \(x = -3"),
        ("Therefore, the sum is:\n$$\n\\frac{7}{2} \\approx 3.5\n$$", r"\frac{7}{2}"),
        ("So she has 12 pens.\n\nI hope this helps!", "12"),
        ("Thus, x = 4 or x = -2.", "x = 4 or x = -2"),
        ("So the ratio is 3:5.", "3:5"),
        ("So they finish at 5 p.m.", "5 p.m."),
        ("60 / 12 = 5.\n\nSo Shannon makes 5 dozens of cookies for 30 days.", "5 dozens"),
        ("So Tom is 5 feet 3 inches tall.", "5 feet 3 inches"),
        ("Also bleiben 3,5 Liter übrig.", "3,5 Liter"),
        ("The sum is as follows.\n\nThus the answer is: **(B)**", "(B)"),
        ("So, the number of girls who are not in the club is 40.", "40"),
        ("因此，小明还剩 12 个苹果。", "12"),
    ],
)  # fmt: skip
def test_a_concluding_statement_states_its_value(text, answer):
    found = find_answer(text)
    assert found is not None
    assert found.text.strip("*") == answer.strip("*")
    assert text[found.start : found.start + len(found.text)] == found.text


@pytest.mark.parametrize(
    "text",
    [
        "We square it.\n\n67^3 = 67 \\times 67 \\",
        "So the sum of the two values is:\n\\[\n72 + 40 = 112.",
        "Then we try \\(x = -4\\):\n\\[\n\\frac{(-4+1)(-4-3)}{5(-4+2)(-4",
        "12 / 4 = 3.\n\nSo each of them gets 1",
        "The first case gives 3.\n\n6.",
        "Wait, that gives 5 and not 6.",
        "So the shop does not sell 18 lamps.",
        "Next, we subtract 5 from 12.",
        "So they have either 5 or 6 cats.",
        "So 7 boys and 5 girls play.",
        "However, 8 is no prime.",
        "Is it 12?",
        "He was glad.",
        "Thus,",
    ],
)
def test_no_conclusion_no_answer(text):
    assert find_answer(text) is None


@pytest.mark.parametrize(("opening", "closing"), THINK)
def test_a_thought_is_no_answer(opening, closing):
    with load_verifier("number") as verifier:
        for thought, reply, gold, outcome in (
            (r"Maybe \boxed{5}. No, wait: 7.", "The answer is 7.", "7", "match"),
            (r"Perhaps \boxed{4}? No, 5.", "The answer is 5.", "4", "mismatch"),
            ("The answer is 4? I check: no.", "5", "4", "mismatch"),
            ("12 / 4 = 3. So each gets 3.", "So each of the 4 gets 5.\n", "3", "unparsed"),
        ):
            verdict = verifier.verify(f"{opening}{thought}{closing}\n{reply}", gold)
            assert verdict.outcome == outcome, (opening, reply, verdict)
        assert opening == "" or verifier.verify(f"{opening}The answer is 4.", "4").outcome == "unparsed"


@pytest.mark.parametrize(
    ("verifier", "text", "gold", "outcome"),
    [
        ("math", "The identity is \\boxed{a^2+b^2=c^2}, so c = 5.\n**Answer: 5**", "5", "match"),
        ("number", "The first part gives \\boxed{3}. Then we add 4. The final answer is 7.", "7", "match"),
        ("number", "The answer is 3. No: \\boxed{7}.", "7", "match"),
        ("number", r"\boxed{7}. The answer is therefore clear.", "7", "match"),
        ("math", r"\boxed{1}, \boxed{2}, \boxed{3}", "1, 2, 3", "match"),
        ("math", r"\(\boxed{1}\) and \(\boxed{-2}\).", "-2, 1", "match"),
        ("math", r"First \boxed{1}, then after the turn \boxed{2}", "2", "match"),
        ("number", "所以答案是 5。", "5", "match"),
        ("number", "因此，小明还剩 12 个苹果。", "12", "match"),
        ("number", "Ответ: 7", "7", "match"),
        ("number", "La réponse est 3,5.", "3.5", "match"),
        ("number", "La réponse est 3,5.", "35", "mismatch"),
        ("number", "Die Antwort ist 1.250,50 Euro.", "1250.5", "match"),
        ("number", "Die Antwort ist 1.250.", "1250", "match"),
        ("number", "La respuesta es 1.250.", "1250", "unparsed"),
        ("number", "The answer is 1,250.", "1250", "match"),
        ("number", "Ответ: 1.250", "1250", "unparsed"),
        ("number", "答えは5です。", "5", "match"),
        ("number", "정답은 5입니다.", "5", "match"),
        ("number", "La risposta è 12.", "12", "match"),
        ("number", "A resposta é 0,25.", "1/4", "match"),
        ("number", r"\boxed{x=3}", "3", "match"),
        ("number", "The answer is 2:30 pm", "2:30 pm", "match"),
        ("number", "The answer is 2:30 am", "2:30 pm", "mismatch"),
        ("number", "The answer is 14:30", "2:30 pm", "match"),
        ("choice", "Answer: B) 12", "B", "match"),
        ("number", "Answer: B) 12", "12", "match"),
        ("choice", "So the correct option is (C).", "C", "match"),
        ("choice", "Therefore, option B costs $12 and is the cheapest.", "B", "match"),
        ("text", "So the fastest runner is Evelyn.", "Evelyn", "match"),
        ("text", "So the fastest runner is Evelyn.", "Carla", "mismatch"),
        ("number", "84 / 12 = 7.\n\nSo Claire eats 7 dozen eggs.", "7", "match"),
    ],
)  # fmt: skip
def test_verdicts_on_real_forms(verifier, text, gold, outcome):
    if verifier == "math":
        pytest.importorskip("math_verify")
    with load_verifier(verifier) as checker:
        verdict = checker.verify(text, gold)
    assert verdict.outcome == outcome, verdict


EQUAL = [
    (r"\begin{pmatrix} 2 \\ 3 \end{pmatrix}", r"\begin{pmatrix} 3 \\ 2 \end{pmatrix}", "mismatch"),
    (r"\begin{pmatrix} 1 & 2 \\ 3 & 4 \end{pmatrix}", r"\begin{pmatrix} 1 & 3 \\ 2 & 4 \end{pmatrix}", "mismatch"),
    (r"\begin{pmatrix} 1 & 2 \\ 3 & 4 \end{pmatrix}", r"\begin{bmatrix}1&2\\3&4\end{bmatrix}", "match"),
    (r"\begin{pmatrix} 2 \\ 3 \end{pmatrix}", r"\begin{pmatrix}2\\3\end{pmatrix}", "match"),
    (r"\begin{pmatrix} -\frac{1}{3} \\ \frac{2}{3} \end{pmatrix}", r"\begin{pmatrix} -1/3 \\ 2/3 \end{pmatrix}", "match"),
    (r"\begin{pmatrix} 2 & 3 \end{pmatrix}", r"\begin{pmatrix} 2 \\ 3 \end{pmatrix}", "mismatch"),
    (r"-\frac{1}{2} \begin{pmatrix} 2 \\ 4 \end{pmatrix}", r"\begin{pmatrix} -1 \\ -2 \end{pmatrix}", "match"),
    (r"\begin{pmatrix} 2^{-60} \\ 1 \end{pmatrix}", r"\begin{pmatrix} 2^{-61} \\ 1 \end{pmatrix}", "mismatch"),
    (r"\frac{1}{2^{98}}", r"\frac{1}{2^{99}}", "mismatch"),
    (r"\frac{1}{2^{98}}", "2^{-98}", "match"),
    (r"\frac{1}{2006!}", r"\frac{1}{2004!}", "mismatch"),
    ("2^{200}+1", "2^{200}", "mismatch"),
    (r"\frac{\pi}{10^{20}}", r"\frac{\pi}{10^{21}}", "mismatch"),
    ("(0,2^{-60})", "(0,2^{-61})", "mismatch"),
    (r"\{0,2^{-60}\}", r"\{0,2^{-61}\}", "mismatch"),
    (r"25\%", "25", "match"),
    (r"3\sqrt{2}\%", r"3\sqrt{2}", "match"),
    ("pi/2", r"\frac{\pi}{2}", "match"),
    ("2pi", r"2\pi", "match"),
    ("pi", "ip", "mismatch"),
    ("sqrt{17}", r"\sqrt{17}", "match"),
    ("2sqrt(3)", r"2\sqrt{3}", "match"),
    (r"\sqrt17", r"\sqrt{17}", "match"),
    (r"12^{\text{th}}", "12", "match"),
    (r"\cos 60^\circ", r"\frac12", "match"),
    (r"\sin 30^\circ", "0.5", "match"),
    (r"90^\circ", r"\frac{\pi}{2}", "match"),
    (r"e^{i\pi}", "-1", "match"),
    ("1 000", "1000", "match"),
    ("12 345 678", "12345678", "match"),
    (r"\varnothing", r"\emptyset", "match"),
    ("(-inf, 3)", r"(-\infty, 3)", "match"),
    (r"(3, \infty) \cup (-\infty, 3)", r"(-\infty, 3) \cup (3, \infty)", "match"),
    ("1", "2x + z = 1", "mismatch"),
    (r"\sqrt{2} or so, I think", r"\sqrt{2}", "unparsed"),
]  # fmt: skip


@pytest.mark.parametrize(("answer", "gold", "outcome"), EQUAL)
def test_equality(answer, gold, outcome):
    pytest.importorskip("math_verify")
    with load_verifier("math") as verifier:
        verdict = verifier.verify(answer, gold)
    assert verdict.outcome == outcome, verdict


def test_a_percent_sign_on_one_side_is_said():
    with load_verifier("number") as verifier:
        assert "percent sign" in (verifier.verify("25%", "25").note or "")
        assert "hundredth" in (verifier.verify("25%", "0.25").note or "")
        assert verifier.verify("0.25", "25").outcome == "mismatch"


def test_number_needs_no_math_verify(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "math_verify", None)
    with load_verifier("number") as verifier:
        assert verifier.verify("So they pay $18.", "18").outcome == "match"
