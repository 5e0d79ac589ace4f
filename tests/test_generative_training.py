"""Generative PRMs in training: what is learned is what grading asks for, and a planted rule is learned end to end."""

from __future__ import annotations

import json
import random

import pytest
import torch
from transformers import LlamaForCausalLM

from stepmark import load_prm
from stepmark.data.formats.rows import Counts, LabelledRow, ReaderSettings
from stepmark.data.labelled import read_labelled
from stepmark.errors import IdleSettingWarning, InputError
from stepmark.models.critics import RPRM, GenPRM, Part, ThinkPRM
from stepmark.models.encoding import PromptEncoder
from stepmark.models.generative import GenerativePRM, generative_prm
from stepmark.models.scripted import ScriptedPolicy
from stepmark.records import Judgement, LabelledSolution, Solution
from stepmark.training.examples import Dropped, Example, examples
from stepmark.training.net import Net
from stepmark.training.objectives.generative import Generative
from stepmark.training.recipe import Recipe, run_recipe
from stepmark.training.settings import Training
from tiny_base import example, tokenizer, weights_of, write_base
from tiny_language_model import tiny_model, tiny_tokenizer

torch.set_num_threads(1)

PROBLEM, STEPS = "What is 2 * 3 + 1?", ("2 * 3 = 6", "6 + 1 = 8")
THINK = {
    0: "\nLet's verify step by step: Step 1: it is \\boxed{correct}\nIs the solution correct?",
    1: "\n\nStep 1: it is \\boxed{correct} Step 2: no, \\boxed{incorrect}\n</think>\nIs the solution correct? No",
}
GEN = {
    0: "<analyze>\nLet's analyze the Paragraph 1 step by step: it is 6.\n</analyze>\n<verify>\n```python\n1\n```\n"
    "</verify>\n<output>\n**Judgement**: $\\boxed{Yes}$\n</output>\n",
    1: "6 + 1 is 7.\n</analyze>\n<output>\n**Judgement**: $\\boxed{No}$\n</output>",
}
R = {
    0: "It is 6. Verification: Is the step correct (Yes/No)? Yes",
    1: "It is 7. Verification: Is the step correct (Yes/No)? No, it is not.",
}


def with_critiques(critiques, values=(1.0, 0.0), where="f:1", steps=STEPS, problem=PROBLEM):
    made = example(problem, list(steps), list(values), where=where)
    return Example(
        solution=made.solution, targets=made.targets, where=where, critiques=tuple(map(tuple, critiques))
    )


def lessons(objective, *rows):
    dropped = Dropped()
    return [lesson for row in rows for lesson in objective.lessons(row, dropped)], dropped


# What is learned, by hand


def test_thinkprm_learns_to_end_its_critique_and_then_to_decide():
    found, dropped = lessons(Generative(), with_critiques([[THINK[0]], [THINK[1]]]))
    assert [(lesson.verdict, lesson.step_verdicts) for lesson in found] == [
        (True, (True,)),
        (False, (True, False)),
    ]
    prefill = "\nLet's verify step by step:"
    assert found[0].parts == (
        Part(prefill=prefill, text=" Step 1: it is \\boxed{correct}", ends=True),
        Part(
            prefill=f"{prefill} Step 1: it is \\boxed{{correct}}\nIs the solution correct?",
            text=" yes",
            chosen=True,
        ),
    )
    body = "\n\nStep 1: it is \\boxed{correct} Step 2: no, \\boxed{incorrect}"
    assert found[1].parts == (
        Part(prefill=prefill, text=body, ends=True),
        Part(prefill=f"{prefill}{body}\nIs the solution correct?", text=" no", chosen=True),
    )
    assert dropped.counts == {}


def test_genprm_learns_the_analysis_its_end_and_the_judgement():
    found, _ = lessons(Generative(critic=GenPRM()), with_critiques([[GEN[0]], [GEN[1]]]))
    first, second = (f"<analyze>\nLet's analyze the Paragraph {n} step by step: " for n in (1, 2))
    output = "</analyze>\n<output>\n**Judgement**: $\\boxed{"
    assert found[0].parts == (
        Part(prefill=first, text="it is 6.\n</analyze>\n"),
        Part(prefill=f"{first}it is 6.\n{output}", text="Yes", chosen=True),
    )
    assert found[1].parts == (
        Part(prefill=second, text="6 + 1 is 7.\n</analyze>\n"),
        Part(prefill=f"{second}6 + 1 is 7.\n{output}", text="No", chosen=True),
    )
    assert [message.role for message in found[1].prompt] == ["system", "user", "assistant", "user"]
    # The code that was not run at grading is no part of the history either.
    assert found[1].prompt[2].content == f"{first}it is 6.\n{output}Yes}}$\n</output>\n"


def test_rprm_learns_up_to_the_answer():
    found, _ = lessons(Generative(critic=RPRM()), with_critiques([[R[0]], [R[1]]]))
    assert [lesson.parts for lesson in found] == [
        (Part(prefill="", text=f"It is {n}. Verification: Is the step correct (Yes/No)? {said}", ends=True),)
        for n, said in ((6, "Yes"), (7, "No"))
    ]


# The same as grading


SETTINGS = [
    (ThinkPRM(), THINK),
    (GenPRM(), GEN),
    (GenPRM(mode="direct"), GEN),
    (RPRM(samples=1), R),
]


@pytest.mark.parametrize(("critic", "critiques"), SETTINGS, ids=lambda v: getattr(type(v), "__name__", ""))
@pytest.mark.parametrize("metaspace", [False, True], ids=["bytes", "metaspace"])
def test_what_is_learned_is_what_grading_asks(critic, critiques, metaspace):
    """A policy that writes the critiques word for word is asked for exactly the tokens that training shows."""
    objective = Generative(critic=critic)
    texts = {
        part.prefill: part.text
        for lesson in lessons(objective, with_critiques([[critiques[0]], [critiques[1]]]))[0]
        for part in lesson.parts
        if not part.chosen
    }
    by_prompt = {}
    taught, _ = lessons(objective, with_critiques([[critiques[0]], [critiques[1]]]))
    for lesson in taught:
        for part in lesson.parts:
            by_prompt[lesson.prompt, part.prefill, part.chosen] = part.text
    writes, chooses = [], []

    def write(request, number):
        writes.append(request)
        text = by_prompt[request.prompt, request.prefill, False]
        for stop in request.stop:
            text = text.partition(stop)[0]
        return text

    def choose(request):
        chooses.append(request)
        verdict = by_prompt.get((request.prompt, request.prefill, True))
        return [0.0 if option == verdict else -5.0 for option in request.options]

    prm = generative_prm(critic, ScriptedPolicy(write, choose))
    scored = prm.score(PROBLEM, steps=STEPS)
    tokens = PromptEncoder(tiny_tokenizer(metaspace=metaspace), "tiny")
    asked = {(r.prompt, r.prefill): tokens.ids(r.prompt, r.prefill) for r in writes}
    for lesson in taught:
        for part in lesson.parts:
            if part.chosen:
                (request,) = [r for r in chooses if (r.prompt, r.prefill) == (lesson.prompt, part.prefill)]
                shared, rests = tokens.options(request.prompt, request.prefill, request.options)
                before, after = tokens.options(lesson.prompt, part.prefill, [part.text])
                at = request.options.index(part.text)
                assert before + after[0] == shared + rests[at]
            else:
                before, after = tokens.continuation(lesson.prompt, part.prefill, part.text)
                assert before == asked[lesson.prompt, part.prefill]
                assert after
    assert bool(texts) == bool(writes)
    if not isinstance(critic, RPRM):
        assert scored == [pytest.approx(1 / (1 + 2.718281828**-5)), pytest.approx(1 / (1 + 2.718281828**5))]


# The loss


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    folder = tmp_path_factory.mktemp("base")
    words = tokenizer()
    tiny_model(words, context=1500).save_pretrained(folder)
    words.save_pretrained(folder)
    return folder


def net_of(base, objective, **weights):
    weights = {"rank": None} | weights
    net = Net(base, objective.spec(None, ""), weights_of(**weights), max_tokens=1500, seed=0)
    net.set_head(objective.head(net))
    return net


def items(objective, net, *rows, dropped=None):
    dropped = Dropped() if dropped is None else dropped
    return list(objective.items(rows, net, budget=4000, dropped=dropped, every_step=False))


def test_the_loss_is_on_written_tokens_alone(base):
    objective = Generative(critic=GenPRM())
    net = net_of(base, objective)
    row = with_critiques([[GEN[0], GEN[0].replace("it is 6", "yes")], [GEN[1]]])
    batch = items(objective, net, row)
    words = net.tokenizer
    learned = sorted(words.decode(item.tree.ids[r.path[r.answer :]]) for item in batch for r in item.rows)
    assert learned == sorted(
        ["it is 6.\n</analyze>\n", "yes.\n</analyze>\n", "6 + 1 is 7.\n</analyze>\n", "Yes", "Yes", "No"]
    )
    fitted = objective.fit(net, batch)
    fitted.loss.backward()

    model = LlamaForCausalLM.from_pretrained(base, attn_implementation="eager")
    encoder, total, labels = PromptEncoder(words, "tiny"), torch.zeros(()), 0.0
    for lesson in lessons(objective, row)[0]:
        losses = []
        for part in lesson.parts:
            if part.chosen:
                before, (after,) = encoder.options(lesson.prompt, part.prefill, [part.text])
            else:
                before, after = encoder.continuation(lesson.prompt, part.prefill, part.text)
            logits = model(torch.tensor([before + after])).logits[0, len(before) - 1 : -1]
            losses.append(torch.nn.functional.cross_entropy(logits, torch.tensor(after), reduction="none"))
        every = torch.cat(losses)
        total = total + every.sum()
        labels += len(every)
    total.backward()
    assert fitted.labels == pytest.approx(labels)
    assert fitted.loss.item() == pytest.approx(total.item(), rel=1e-5)
    plain = dict(model.named_parameters())
    for name, parameter in net.named_parameters.items():
        expected = plain["lm_head.weight" if name == "output" else f"model.{name}"].grad
        atol = 1e-4 * float(expected.abs().max())
        torch.testing.assert_close(parameter.grad, expected, rtol=1e-4, atol=atol)


# What is kept


def kept(objective, critiques, values=(1.0, 0.0)):
    found, dropped = lessons(objective, with_critiques(critiques, values))
    return [lesson.verdict for lesson in found], dropped.counts


def test_critiques_that_contradict_the_labels_are_counted_and_left_out():
    think = Generative()
    contradicts = {"critiques that contradict the labels": 1}
    assert kept(think, [[THINK[0]], [THINK[1]]]) == ([True, False], {})
    assert kept(think, [[THINK[0]], []], (0.0, None)) == ([], contradicts)
    # The right decision for a wrong reason.
    wrong_step = THINK[1].replace("it is \\boxed{correct}", "it is \\boxed{incorrect}")
    assert kept(think, [[], [wrong_step]]) == ([], contradicts)
    assert kept(think, [[], ["I wonder"]]) == ([], {"critiques without a verdict": 1})
    assert kept(think, [[THINK[0]], []], (None, None)) == ([], {"critiques of steps without a label": 1})
    assert kept(think, [[THINK[0] + "<|im_end|>"], []]) == ([], {"critiques with a control token": 1})
    assert kept(think, []) == ([], {"rows without critiques": 1})
    # After a known error no prefix is right.
    assert kept(think, [[], [THINK[1].replace("it is \\boxed{correct}", "hm.")]], (0.0, None)) == (
        [False],
        {},
    )
    # A share of rollouts is right where any succeeded, unless told otherwise.
    assert kept(think, [[THINK[0]], []], (0.25, None)) == ([True], {})
    assert kept(Generative(above=0.5), [[THINK[0]], []], (0.25, None)) == ([], contradicts)


def test_a_conversation_goes_on_only_after_what_is_kept():
    gen = Generative(critic=GenPRM())
    no = GEN[0].replace("Yes", "No")
    assert kept(gen, [[no, GEN[0]], [GEN[1]]]) == (
        [True, False],
        {"critiques that contradict the labels": 1},
    )
    found, _ = lessons(gen, with_critiques([[no, GEN[0]], [GEN[1]]]))
    assert "Yes" in found[1].prompt[2].content
    assert kept(gen, [[no], [GEN[1], GEN[1]]]) == (
        [],
        {"critiques that contradict the labels": 1, "critiques after a step that has none to be kept": 2},
    )


def test_critiques_of_the_whole_solution(base):
    """ThinkPRM that grades by verdicts writes one text of all steps, and has it at each of them."""
    verdicts = Generative(critic=ThinkPRM(per_step="verdicts"))
    whole = THINK[1].partition("\n</think>")[0]
    found, dropped = lessons(verdicts, with_critiques([[whole], [whole]]))
    assert [(lesson.step_verdicts, len(lesson.parts)) for lesson in found] == [((True, False), 1)]
    assert "Step 2: 6 + 1 = 8" in found[0].prompt[0].content
    assert dropped.counts == {}
    # The same critiques in two rows are one.
    dropped = Dropped()
    row = with_critiques([[THINK[0]], []])
    (item,) = items(Generative(), net_of(base, Generative()), row, row, dropped=dropped)
    assert (len(item.rows), dropped.counts) == (2, {"critiques that another row has too": 1})


# Rows


def judged(rating):
    return (Judgement(kind="correctness", judge="human", rating=rating),)


def row(critiques, ratings=(1, -1), problem=PROBLEM, steps=STEPS, where="f:1"):
    return LabelledRow(
        labelled=LabelledSolution(
            solution=Solution.of(problem, steps), judgements=tuple(judged(r) if r else () for r in ratings)
        ),
        where=where,
        meta={} if critiques is None else {"critiques": critiques},
    )


def test_critiques_come_with_rows(tmp_path):
    a, b = row([["x"], ["y", "z"]]), row(["all of it"])
    found = examples([a, b, row(None, where="f:3")])
    assert [e.critiques for e in found] == [(("x",), ("y", "z")), ((), ("all of it",)), ()]
    (unlabelled,) = examples([row(["all"], ratings=(None, None))])
    assert unlabelled.critiques[-1] == ("all",)
    for wrong in ("text", [["x"]], [["x"], [1]], {}):
        with pytest.raises(InputError, match="f:1, field 'critiques'"):
            examples([row(wrong)])
    # What `stepmark grade` writes beside a row, under `meta`.
    data = {"id": "1", "generator": "g", "problem": "p", "steps": ["a", "b"], "final_answer_correct": False}
    file = tmp_path / "graded.jsonl"
    file.write_text(json.dumps({**data, "label": 1, "meta": {"critiques": [["x"], ["y"]]}}) + "\n")
    (read,) = examples(read_labelled(str(file), settings=ReaderSettings(), counts=Counts()))
    assert read.critiques == (("x",), ("y",))
    assert [t.value for t in read.targets] == [1.0, 0.0]


# What is written


# A planted rule: a step with z is wrong, and the critic has to say so before it judges.


def planted(seed, problems, rows):
    dice = random.Random(seed)
    for p in range(problems):
        for _ in range(rows):
            wrong = dice.random() < 0.5
            yield f"p{p}", f"{'z' if wrong else dice.choice('abc')} = {dice.randint(10, 99)}", wrong


def critique_of(wrong):
    return (
        f"{'wrong' if wrong else 'correct'}.\n</analyze>\n<output>\n**Judgement**: "
        f"$\\boxed{{{'No' if wrong else 'Yes'}}}$\n</output>\n"
    )


def critic_base(folder, critic):
    """Its words are those of the critic's prompts, so that these are short."""
    taught = critic.lesson("p0", ("a = 12",), ("a = 12",), 0, critique_of(False), ())
    texts = [*(message.content for message in taught.prompt), taught.reply, critique_of(True)]
    words = tokenizer().train_new_from_iterator(texts * 20, 400, show_progress=False)
    return write_base(folder, words=words)


def test_a_rule_is_learned_end_to_end(tmp_path):
    critic = GenPRM(temperature=0, max_tokens=20)
    rows = [
        row([[critique_of(wrong)]], (-1 if wrong else 1,), problem, [step], where=f"planted:{i}")
        for i, (problem, step, wrong) in enumerate(planted(1, 6, 14))
    ]
    done = run_recipe(
        rows,
        tmp_path / "critic",
        Recipe(
            base=str(critic_base(tmp_path / "base", critic)),
            objective=Generative(critic=critic),
            training=Training(
                full=True,
                dtype="float32",
                device="cpu",
                learning_rate=1e-2,
                epochs=7,
                token_budget=400,
                held_out=0.2,
                evaluations=1,
            ),
        ),
        report=lambda progress: None,
    )
    assert done.held_out is not None
    assert done.held_out.auc is None and done.comparison is None, "nothing is graded in training"
    assert done.held_out.loss < 0.05
    assert (done.folder / "config.json").is_file()
    prm = load_prm(str(done.folder))
    assert isinstance(prm, GenerativePRM)
    assert prm.critic == critic
    new = list(planted(2, 6, 2))
    assert {wrong for _, _, wrong in new} == {True, False}
    for problem, step, wrong in new:
        (scored,) = prm.score_many([Solution.of(problem, [step])])
        assert (scored.scores[0] < 0.5) == wrong
        ((critique,),) = scored.critiques
        assert critique == "<analyze>\nLet's analyze the Paragraph 1 step by step: " + critique_of(wrong)
    assert load_prm(str(done.folder), family="thinkprm").critic == ThinkPRM()
    with pytest.warns(IdleSettingWarning, match="adapter"):
        whole = run_recipe(
            rows[:4],
            tmp_path / "adapter",
            Recipe(
                base=str(tmp_path / "base"),
                objective=Generative(critic=critic),
                training=Training(
                    lora_rank=2, dtype="float32", device="cpu", epochs=1, held_out=0.0, adapter=True
                ),
            ),
            report=lambda progress: None,
        )
    assert (whole.folder / "config.json").is_file()
