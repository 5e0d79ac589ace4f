"""Generative PRMs: prompts as their authors wrote them, verdicts read by hand, and no invented number."""

from __future__ import annotations

import hashlib
import math

import pytest

from stepmark.backends import ChoiceLogprobs, Completions, Message
from stepmark.backends.replies import ReplyFile
from stepmark.errors import BackendError, InputError
from stepmark.models.critics import RPRM, GenPRM, ThinkPRM, probability_of_first, step_verdicts
from stepmark.models.generative import generative_prm
from stepmark.models.scripted import ScriptedPolicy
from stepmark.records import Refusal, Solution

PROBLEM = "Tom has 2 bags of 3 apples and eats one. How many are left?"
STEPS = ["2 * 3 = 6 apples.", "6 - 1 = 4 apples.", "The answer is 4."]


class Recorder:
    """A scripted policy that keeps what it answered."""

    def __init__(self, write, choose=None, name="scripted"):
        self.writes, self.chooses = [], []

        def keep_write(request, number):
            text = write(request, number)
            self.writes.append((request, number))
            return text

        def keep_choose(request):
            logprobs = choose(request)
            self.chooses.append(request)
            return logprobs

        self.policy = ScriptedPolicy(keep_write, keep_choose, name=name)


def odds(share):
    """Log-probabilities that stand in this proportion, and do not add up to one."""
    return [math.log(share) - 1.5, math.log(1 - share) - 1.5]


def test_probability_of_two_log_probabilities():
    assert probability_of_first([math.log(0.3), math.log(0.1)]) == pytest.approx(0.75)
    assert probability_of_first([-2.0, -2.0]) == 0.5
    assert probability_of_first([0.0, -2000.0]) == 1.0
    assert probability_of_first([-2000.0, 0.0]) == 0.0
    assert probability_of_first([-math.inf, -1.0]) == 0.0
    assert probability_of_first([-40.0, 0.0]) == pytest.approx(math.exp(-40), rel=1e-12)
    assert probability_of_first([-math.inf, -math.inf]) is None
    assert probability_of_first([math.nan, -1.0]) is None


# ThinkPRM

THINK_STEP_2 = """You are given a math problem and a proposed step-by-step solution:

[Math Problem]

Tom has 2 bags of 3 apples and eats one. How many are left?

[Solution]

2 * 3 = 6 apples.
6 - 1 = 4 apples.

Review and critique each step in the proposed solution to determine whether each step is correct. If the solution is \
incomplete, only verify the provided steps."""


def test_thinkprm_critiques_each_prefix_and_reads_the_chance_of_yes():
    chances = {1: [0.9, 0.8], 2: [0.3, 0.1], 3: [0.2, 0.05]}

    def lines(request):
        return request.prompt[0].content.split("[Solution]\n\n")[1].split("\n\n")[0].count("\n") + 1

    def choose(request):
        return odds(chances[lines(request)][int(" second" in request.prefill)])

    seen = Recorder(lambda request, number: f" Step 1: fine,{[' first', ' second'][number]} look", choose)
    prm = generative_prm("thinkprm", seen.policy, samples=2)
    [scored] = prm.score_many([Solution.of(PROBLEM, STEPS)])

    assert scored.scores == pytest.approx([0.85, 0.2, 0.125])
    assert scored.kind == "probability"
    assert [request for request, _ in seen.writes[2:4]] == [
        Completions(
            prompt=(Message(role="user", content=THINK_STEP_2),),
            prefill="\nLet's verify step by step:",
            n=2,
            temperature=0.7,
            max_tokens=8172,
            stop=("Is the solution correct?", "</think>"),
            first=0,
        )
    ] * 2
    assert seen.chooses[2] == ChoiceLogprobs(
        prompt=(Message(role="user", content=THINK_STEP_2),),
        prefill="\nLet's verify step by step: Step 1: fine, first look\nIs the solution correct?",
        options=(" yes", " no"),
    )
    assert scored.critiques[1][1].endswith("fine, second look\nIs the solution correct? no")
    assert scored.critiques[0][0].endswith("fine, first look\nIs the solution correct? yes")
    assert (prm.default_aggregate, prm.default_threshold, prm.score_kind) == ("last", 0.5, "probability")
    assert prm.without_verdict == 0


@pytest.mark.parametrize(
    ("critique", "steps", "verdicts"),
    [
        (r"Step 1: fine \boxed{correct} Step 2: no \boxed{incorrect}", 2, [True, False]),
        (r"Step 1: \boxed{\text{correct}}" + "\n" + r"Step 2: \boxed{ incorrect }", 2, [True, False]),
        # a second look at a step overrules the first; the step that it names counts, not the place
        (
            r"Step 1: \boxed{incorrect} Step 2: \boxed{correct} Step 1: but no, \boxed{correct}",
            2,
            [True, True],
        ),
        (r"Step 1: \boxed{incorrect}, wait. It is \boxed{correct}", 1, [True]),
        # a step that is not there; a step that was left out
        (r"Step 1: \boxed{correct} Step 3: \boxed{incorrect}", 2, [True, None]),
        (r"Step 2: \boxed{correct}", 2, [None, True]),
        # other boxes are no verdicts
        (r"Step 1: the sum is \boxed{5}, so \boxed{correct} since \boxed{5}", 1, [True]),
        (r"Step 1: \boxed{Correct} \boxed{not correct}", 1, [None]),
        # without headings: in order, if there is one for each step
        (r"\boxed{correct} then \boxed{incorrect}", 2, [True, False]),
        (r"\boxed{correct} then \boxed{incorrect}", 3, [None, None, None]),
        ("I cannot say.", 1, [None]),
        # "Step 10" is not "Step 1"
        (r"Step 10: \boxed{incorrect} Step 1: \boxed{correct}", 10, [True, *[None] * 8, False]),
    ],
)
def test_thinkprm_verdicts_are_read_as_a_person_reads_them(critique, steps, verdicts):
    assert step_verdicts(critique, steps) == verdicts


def test_thinkprm_by_verdicts_is_a_share_of_critiques_and_is_marked_as_not_causal():
    critiques = [
        r" Step 1: \boxed{correct} Step 2: \boxed{correct} Step 3: \boxed{correct}",
        r" Step 1: \boxed{correct} Step 2: \boxed{incorrect} Step 3: \boxed{incorrect}",
        r" Step 1: \boxed{correct} Step 2: \boxed{incorrect}",  # ended at the first wrong step, as it may
        r" Step 1: hm Step 2: \boxed{incorrect} Step 3: \boxed{correct}",
    ]
    seen = Recorder(lambda request, number: critiques[number], None)
    prm = generative_prm(ThinkPRM(per_step="verdicts", samples=4), seen.policy)
    [scored] = prm.score_many([Solution.of(PROBLEM, STEPS)])
    assert scored.scores == pytest.approx([3 / 3, 1 / 4, 2 / 3])
    assert prm.without_verdict == 1
    assert not prm.causal
    assert prm.name == "scripted (not causal)"
    assert len(seen.writes) == 4, "one critique serves all steps"
    assert "Step 3: The answer is 4." in seen.writes[0][0].prompt[0].content
    assert seen.writes[0][0].stop[-1] == "Step 4:"


def test_a_step_that_every_critique_stopped_before_has_no_score_and_an_unread_one_is_an_error():
    def prm(*critiques):
        policy = ScriptedPolicy(lambda request, number: critiques[number])
        return generative_prm(ThinkPRM(per_step="verdicts", samples=len(critiques)), policy)

    stopped = r" Step 1: \boxed{correct} Step 2: \boxed{incorrect}"
    assert prm(stopped, stopped).score(PROBLEM, steps=STEPS) == [1.0, 0.0, None]
    with pytest.raises(
        InputError, match=r"step 3 of 3: none of the 1 critique gave a verdict .*ends .*and then"
    ):
        prm(r" Step 1: \boxed{correct} Step 2: \boxed{correct} and then").score(PROBLEM, steps=STEPS)


# GenPRM

GEN_SYSTEM = (
    "You are a math teacher. Your task is to review and critique the paragraphs in solution step by step."
)


def test_genprm_converses_step_by_step():
    shares = {
        "<analyze>\nLet's analyze the Paragraph 1": 0.9,
        "<analyze>\nLet's analyze the Paragraph 2": 0.2,
    }

    def choose(request):
        share = next(share for begin, share in shares.items() if request.prefill.startswith(begin))
        return odds(share + (0.06 if "sample 1" in request.prefill else 0))

    seen = Recorder(lambda request, number: f"sample {number} of it\n</analyze>\nmore", choose)
    prm = generative_prm("genprm", seen.policy, samples=2)
    [scored] = prm.score_many([Solution.of(PROBLEM, STEPS[:2])])

    assert scored.scores == pytest.approx([0.93, 0.23])
    first_turn = Message(role="user", content=f"{PROBLEM}\n2 * 3 = 6 apples.")
    assert seen.writes[0][0] == Completions(
        prompt=(Message(role="system", content=GEN_SYSTEM), first_turn),
        prefill="<analyze>\nLet's analyze the Paragraph 1 step by step: ",
        n=2,
        temperature=0.6,
        top_p=0.95,
        top_k=20,
        max_tokens=2048,
        stop=("</analyze>\n",),
        first=0,
    )
    answer = (
        "<analyze>\nLet's analyze the Paragraph 1 step by step: sample 0 of it\n</analyze>\n"
        "<output>\n**Judgement**: $\\boxed{Yes}$\n</output>\n"
    )
    second = seen.writes[2][0]
    assert second.prompt == (
        Message(role="system", content=GEN_SYSTEM),
        first_turn,
        Message(role="assistant", content=answer),
        Message(role="user", content="6 - 1 = 4 apples."),
    )
    assert second.prefill == "<analyze>\nLet's analyze the Paragraph 2 step by step: "
    assert seen.chooses[3] == ChoiceLogprobs(
        prompt=second.prompt,
        prefill="<analyze>\nLet's analyze the Paragraph 2 step by step: sample 1 of it\n</analyze>\n"
        "<output>\n**Judgement**: $\\boxed{",
        options=("Yes", "No"),
    )
    assert scored.critiques[0][0] == answer
    assert scored.critiques[1][1].endswith("$\\boxed{No}$\n</output>\n")
    assert prm.default_aggregate == "min"


# R-PRM

R_BEGIN = r"""<|im_start|>system
You are a helpful assistant.<|im_end|>
<|im_start|>user
You are an excellent math teacher. Please verify the correctness of the Now Step.

You first need to analyze the Now Step and the Previous Steps and then summarize based on your analysis.
Analysis:
You need to analyze the following aspects.
**Previous Steps Analysis**: You need to analyze the Previous Steps step by step. For each step, you need to first explain what the current step is doing, then you try to find any error in the current step.
**Now Step Analysis**: You first need to explain what the Now Step is doing, and then point out which part of the Question it is trying to solve or which part of the information it states.
**Data Source Analysis**: First you need to find out what data are used in the Now Step, and then you need to determine whether the source of the data is reasonable and correct. When you judge whether the source of a data is reasonable and correct, you need to specify the specific source of this data: such as which part of the question, or which content of the previous step; and then determine the source and current use is consistent, the Now Step is used correctly.
**Consistency Analysis**: You need to check that the Now Step is consistent with the contents of the Previous Steps, and then you need to check that all the information inside the Now Step is consistent.
**Calculation Analysis**: If the Now Step involves any calculations, such as addition, subtraction, multiplication, division, equations, modulo operations, etc., you will first need to perform a check on the calculation, such as a reverse operation, to see if the calculation was done correctly, and then analyze the results of your check to see if there was an error in the calculation.
Conclusion:@
Please verify the correctness of the Now Step based on your analysis, if there is any error in the Now Step then the Now Step is wrong and vice versa the Now Step is correct. At the end of the Conclusion, when you give your final answer, write it in the form "Verification: Is the step correct (Yes/No)? X", where X is either Yes or No.

"""
R_END = r"""
Please carefully analyze the correctness of the Now Step.
Reply:@<|im_end|>\n<|im_start|>assistant\n"""
R_FIRST = r"""Question: Tom has 2 bags of 3 apples and eats one. How many are left?
Previous Steps: Since the Now Step is the first step, there are no Previous Steps.
Now Step: 2 * 3 = 6 apples."""
R_THIRD = r"""Question: Tom has 2 bags of 3 apples and eats one. How many are left?
Previous Steps: 2 * 3 = 6 apples.
6 - 1 = 4 apples.
Now Step: The answer is 4."""


def r_prompt(middle):
    # "@" stands for the space at a line's end; the line breaks around the last header are literally \n.
    return (R_BEGIN + middle + R_END).replace(":@", ": ")


def test_rprm_prompts_are_the_published_ones():
    seen = Recorder(
        lambda request, number: "So: Verification: Is the step correct (Yes/No)? No",
        lambda request: odds(0.25),
    )
    prm = generative_prm("r-prm", seen.policy)
    assert prm.score(PROBLEM, steps=STEPS) == pytest.approx([0.25] * 3)
    asked = [request for request, number in seen.writes if number == 0]
    assert asked[0] == Completions(
        prompt=r_prompt(R_FIRST), n=10, temperature=0.95, top_p=0.95, max_tokens=4096, first=0
    )
    assert asked[2].prompt == r_prompt(R_THIRD)
    assert seen.chooses[0] == ChoiceLogprobs(
        prompt=r_prompt(R_FIRST),
        prefill="So: Verification: Is the step correct (Yes/No)?",
        options=(" Yes", " No"),
    )
    assert len(seen.writes) == 30


def test_rprm_reads_at_the_first_question_and_leaves_out_analyses_without_one():
    texts = [
        "A. Is the step correct (Yes/No)? No, but: Is the step correct (Yes/No)? Yes",
        "B, and I ran out of",
        "C. Verification: Is the step correct (Yes/No)? Yes",
        "D. Is the answer correct?",
    ]
    shares = {"A. Is the step correct (Yes/No)?": 0.1, "C. Verification: Is the step correct (Yes/No)?": 0.8}
    policy = ScriptedPolicy(
        lambda request, number: texts[number], lambda request: odds(shares[request.prefill])
    )
    prm = generative_prm("r-prm", policy, samples=4)
    [scored] = prm.score_many([Solution.of(PROBLEM, STEPS[:1])])
    assert scored.scores == pytest.approx([0.45])
    assert scored.critiques == (tuple(texts),)
    assert prm.without_verdict == 2


def silent_on(step):
    """R-PRM analyses that lack the question on one step."""
    return ScriptedPolicy(
        lambda request, number: (
            "I wonder" if f"Now Step: {step}" in request.prompt else "Is the step correct (Yes/No)? Yes"
        ),
        lambda request: odds(0.6),
    )


def test_keep_going_costs_one_solution_and_names_it():
    prm = generative_prm("r-prm", silent_on("bad step"), samples=2)
    solutions = [
        Solution.of(PROBLEM, STEPS, id="a"),
        Solution.of(PROBLEM, ["bad step"], id="b"),
        Solution.of("  ", STEPS, id="c"),
        Solution.of(PROBLEM, STEPS[:1], id="d"),
    ]
    first, second, third, fourth = prm.score_many(solutions, keep_going=True)
    assert first.scores == pytest.approx([0.6] * 3)
    assert fourth.scores == pytest.approx([0.6])
    assert isinstance(second, Refusal)
    assert second.solution is solutions[1]
    assert second.error.where == "b"
    assert second.error.field == "steps[0]"
    assert third.error.field == "problem"
    assert (prm.ledger.solutions, prm.ledger.steps) == (2, 4)
    strict = prm.score_many(solutions)
    assert next(strict).scores == pytest.approx([0.6] * 3)
    with pytest.raises(InputError, match=r"^b, field"):
        next(strict)


# What every family must do


def by_content(request):
    """A probability that depends on all of the text that was read."""
    text = f"{request.prompt}{request.prefill}"
    return odds(0.05 + 0.9 * int(hashlib.sha256(text.encode()).hexdigest()[:6], 16) / 16**6)


def critique(request, number):
    return f" look {number} at it. Is the step correct (Yes/No)? Yes"


CAUSAL = [
    ThinkPRM(samples=2),
    GenPRM(samples=2),
    GenPRM(mode="direct"),
    RPRM(samples=2),
]
families = pytest.mark.parametrize("settings", CAUSAL, ids=lambda s: f"{type(s).__name__}-{s.samples}")


@families
def test_later_steps_never_move_the_score_of_an_earlier_one(settings):
    def scores(steps):
        return generative_prm(settings, ScriptedPolicy(critique, by_content)).score(PROBLEM, steps=steps)

    base = scores(STEPS)
    assert len(set(base)) == 3
    for changed in range(1, 3):
        steps = [*STEPS[:changed], "Something else altogether.", *STEPS[changed + 1 :]]
        other = scores(steps)
        assert other[:changed] == base[:changed]
        assert all(a != b for a, b in zip(other[changed:], base[changed:], strict=True))
    assert scores(STEPS[:2]) == base[:2]


@families
def test_an_interrupted_run_goes_on_where_it_stopped(settings, tmp_path):
    solutions = [Solution.of(f"{PROBLEM} ({i})", STEPS) for i in range(3)]
    expected_run = Recorder(critique, by_content)
    expected = list(generative_prm(settings, expected_run.policy).score_many(solutions))

    def dying(request):
        if len(first.chooses) == 4:
            raise BackendError("the server died")
        return by_content(request)

    first = Recorder(critique, dying)
    second = Recorder(critique, by_content)
    with ReplyFile(tmp_path / "replies.sqlite") as store:
        with pytest.raises(BackendError, match="the server died"):
            list(generative_prm(settings, first.policy, store=store).score_many(solutions))
        resumed = generative_prm(settings, second.policy, store=store)
        assert list(resumed.score_many(solutions)) == expected
        # What was answered before the failure is not asked again, and nothing else is left out.
        assert len(first.chooses) == 4
        assert sorted(first.chooses + second.chooses, key=repr) == sorted(expected_run.chooses, key=repr)
        assert sorted(first.writes + second.writes, key=repr) == sorted(expected_run.writes, key=repr)
        third = Recorder(None, None)
        assert list(generative_prm(settings, third.policy, store=store).score_many(solutions)) == expected


# With a language model


@pytest.mark.parametrize(
    "settings",
    [ThinkPRM(samples=2, max_tokens=12), GenPRM(samples=2, max_tokens=12), GenPRM(mode="direct")],
    ids=["thinkprm", "genprm", "genprm-direct"],
)
def test_scores_of_a_real_model_equal_plain_passes_over_its_critiques(settings):
    torch = pytest.importorskip("torch")
    pytest.importorskip("transformers")
    from stepmark.models.policies.local import LocalPolicy
    from tiny_language_model import tiny_model, tiny_tokenizer

    torch.set_num_threads(1)
    tokenizer = tiny_tokenizer()
    model = tiny_model(tokenizer, context=2048)
    [scored] = generative_prm(settings, LocalPolicy(model, tokenizer, name="tiny")).score_many(
        [Solution.of(PROBLEM, STEPS[:2])]
    )

    def rendered(*turns):
        text = "<|bos|>" + "".join(f"<|im_start|>{role}\n{content}<|im_end|>\n" for role, content in turns)
        return text + "<|im_start|>assistant\n"

    def chance(text, yes, no):
        def logprob(option):
            before = tokenizer(text, add_special_tokens=False)["input_ids"]
            ids = tokenizer(text + option, add_special_tokens=False)["input_ids"]
            start = next(
                (i for i, (a, b) in enumerate(zip(before, ids, strict=False)) if a != b), len(before)
            )
            starts.add(len(before) - start)
            with torch.no_grad():
                table = model(torch.tensor([ids])).logits[0].double().log_softmax(-1)
            return sum(float(table[i - 1, ids[i]]) for i in range(start, len(ids)))

        starts = set()
        one, other = logprob(yes), logprob(no)
        assert len(starts) == 1, "both options leave the same of the text before them"
        return math.exp(one) / (math.exp(one) + math.exp(other))

    system = (
        GEN_SYSTEM
        if settings != GenPRM(mode="direct")
        else "You are a math teacher. Your task is to review and critique the paragraphs in solution directly. Output "
        "your judgement in the format of `\\boxed{Yes}` if the paragraph is correct, or `\\boxed{No}` if the paragraph "
        "is incorrect."
    )
    for t in range(2):
        critiques = scored.critiques[t]
        assert len(critiques) == settings.samples
        if isinstance(settings, ThinkPRM):
            assert len(set(critiques)) == 2
            content = THINK_STEP_2.replace("\n6 - 1 = 4 apples.", "" if t == 0 else "\n6 - 1 = 4 apples.")
            expected = [
                chance(rendered(("user", content)) + text[: text.rindex("?") + 1], " yes", " no")
                for text in critiques
            ]
        else:
            turns = [("system", system), ("user", f"{PROBLEM}\n{STEPS[0]}")]
            if t == 1:
                turns += [("assistant", scored.critiques[0][0]), ("user", STEPS[1])]
            expected = [
                chance(rendered(*turns) + text[: text.rindex("\\boxed{") + 7], "Yes", "No")
                for text in critiques
            ]
        assert scored.scores[t] == pytest.approx(sum(expected) / len(expected), abs=1e-5)
