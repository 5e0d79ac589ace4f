"""Errors that published PRM code has made, one test each, named after what goes wrong.

None of them crashes: each gives a plausible number. Those that cannot befall this code have no test here:

- models left on the CPU, passes that record gradients, one request retried on another host: how a script ran, not
  what it read; the engine's own tests hold device and cost;
- soft labels floored by int(), -100 cast to True, neutral labels taken for wrong ones, labels cut off by a maximal
  length: errors of training, tested with it;
- thresholds searched on the file that is evaluated: an error of evaluation;
- step_tag_id and returned_token_ids sent to a server that drops the language-model head: our client sends token ids
  to PRM heads only, see test_pooling.py;
- a failure of a generative PRM that scores 0.27, and literal backslash-n in its prompt: see test_generative.py.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict, replace

import pytest
import torch
from safetensors.torch import load_file, save_file

import test_families as truth
from checkpoints import FAMILY_EXAMPLES, load_family
from stepmark import aggregate, load_prm
from stepmark.errors import CheckpointError, InputError, MarkerInTextError, TooLongError
from stepmark.models.checkpoint import Tensors
from stepmark.models.encoding import Encoder
from stepmark.models.families import FAMILIES
from stepmark.models.heads import build_head
from stepmark.models.prm import Grade, grade
from stepmark.models.spec import PieceLayout
from stepmark.records import Refusal, Solution

ASK = "A box holds 12 pens. How many are in 3 boxes?"


def load(built, **settings):
    reference = str(built.reference.folder) if built.reference else None
    return load_prm(str(built.folder), dtype="float32", device="cpu", reference=reference, **settings)


def read_text(prm, problem, steps) -> str:
    """What the network is given, control tokens and all."""
    ids = prm.encoder.encode(Solution.of(problem, tuple(steps))).ids
    return prm.encoder.tokenizer.decode(ids, clean_up_tokenization_spaces=False)


def copy_with(folder, built, change):
    target = shutil.copytree(built.folder, folder / "changed")
    file = target / "model.safetensors"
    tensors = load_file(file)
    change(tensors)
    save_file(tensors, file, {"format": "pt"})
    return target


# ---- the prompt ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["qwen-prm", "actprm"])
def test_boxed_with_a_backspace(zoo, name):
    """ "\\b" in a string that is not raw is U+0008; a tokenizer takes it without a word."""
    text = read_text(load(zoo[name]), ASK, ["36"])
    assert "\x08" not in text
    assert r"within \boxed{}." in text
    assert text.count("\\") == 1


def test_no_family_has_a_control_character_in_its_format():
    for spec in FAMILIES.values():
        assert not [c for c in repr(spec.layout).encode().decode("unicode_escape") if c < " " and c != "\n"]


def test_im_start_without_its_pipes(zoo):
    prm = load(zoo["qwen-prm"])
    encoded = prm.encoder.encode(Solution.of(ASK, ("36",)))
    start = prm.encoder.tokenizer.convert_tokens_to_ids("<|im_start|>")
    assert encoded.ids.tolist().count(start) == 3  # system, user, assistant
    assert "<im_start>" not in read_text(prm, ASK, ["36"])


def test_a_short_system_prompt_of_another_script(zoo):
    """A script of VersaPRM's authors asks Qwen's PRM with half of its system prompt."""
    text = read_text(load(zoo["qwen-prm"]), ASK, ["36"])
    system = text.split("<|im_start|>system\n")[1].split("<|im_end|>")[0]
    assert system == "Please reason step by step, and put your final answer within \\boxed{}."


def test_newlines_written_as_backslash_n(zoo):
    text = read_text(load(zoo["reasoneval"]), ASK, ["It is 36."])
    assert "\\n" not in text
    assert f"Question:\n{ASK}\nAnswer:\nLet's think step by step.\n" in text


def test_steps_of_an_implicit_prm_without_their_numbers(zoo):
    text = read_text(load(zoo["implicit"], family="implicit"), ASK, ["12 * 3", "is 36"])
    # And no blank line after the last one: the turn ends there.
    assert text.endswith("<|im_start|>assistant\nStep 1: 12 * 3\n\nStep 2: is 36<|im_end|>")


def test_a_chat_template_around_a_trl_prm(zoo):
    built = zoo["token-classification"]
    prm = load(built)
    ids = prm.encoder.encode(Solution.of(ASK, ("36",))).ids.tolist()
    assert not set(ids) & set(built.tokenizer.added_tokens_decoder)
    assert read_text(prm, ASK, ["36"]) == f"{ASK}36\n"


# ---- where it is read ----------------------------------------------------------------------------------------


def test_read_at_a_blank_line_instead_of_the_marker(zoo):
    prm = load(zoo["qwen-prm"])
    encoded = prm.encoder.encode(Solution.of(ASK, ("12\n\n* 3", "is\n\n36")))
    marker = prm.encoder.tokenizer.convert_tokens_to_ids("<extra_0>")
    assert [encoded.ids[r] for r in encoded.reads] == [marker, marker]


def test_joined_text_merges_the_separator_with_the_step(zoo):
    """TRL tokenises each step alone; its users tokenise the whole text, where ".\\n" may be one token."""
    built = zoo["token-classification"]
    whole = built.tokenizer.encode(f"{ASK}It is 36.\n", add_special_tokens=False)
    stop = built.tokenizer.encode(".", add_special_tokens=False)
    newline = built.tokenizer.encode("\n", add_special_tokens=False)
    ids = load(built).encoder.encode(Solution.of(ASK, ("It is 36.",))).ids.tolist()
    assert ids[-2:] == stop + newline
    assert whole[-2:] != stop + newline, "else the two readings would not differ here"


def test_separators_inside_the_texts_fire_too(zoo):
    """A separator searched for among the ids gives a score for each line of problem and step."""
    problem, steps = "How\nmany?\nIn all.", ["a\n\nb", "c\nd\n", "e"]
    for name in ("token-classification", "skywork"):
        prm = load(zoo[name])
        encoded = prm.encoder.encode(Solution.of(problem, tuple(steps)))
        newline = prm.encoder.tokenizer.encode("\n", add_special_tokens=False)[-1]
        assert encoded.ids.tolist().count(newline) > len(steps)
        assert len(prm.score(problem, steps=steps)) == len(steps)


def test_a_blank_line_ends_the_scores(zoo):
    """A copy of Skywork's loop stops at the first empty line and drops the rest of the solution."""
    prm = load(zoo["skywork"])
    scores = prm.score(ASK, steps=["first\n\nline", "second", "third"])
    assert all(score is not None for score in scores)
    # They differ: the later steps are read, each at its own place.
    assert len({round(score, 6) for score in scores}) == 3


def test_skywork_read_at_another_marker_or_as_differences(zoo):
    """PRMBench reads it at "ки" and judges the change from the step before."""
    built = zoo["skywork"]
    steps = ["12 * 3 = 36", "so 36", "no, 37"]
    assert "ки" not in read_text(load(built), ASK, steps)
    family = next(f for f in truth.FORWARD if f.name == "skywork")
    expected = truth.forward_truth(family, built, [(ASK, steps)])[0]
    assert load(built).score(ASK, steps=steps) == pytest.approx(expected, abs=1e-5)


def test_question_and_first_step_in_two_user_turns(zoo):
    text = read_text(load(zoo["rlhflow"], family="rlhflow"), ASK, ["12 * 3 = 36.", "It is 36."])
    user = "<|start_header_id|>user<|end_header_id|>\n\n"
    assert text.count(user) == 2  # as many as steps
    assert text.split(user)[1].startswith(f"{ASK} 12 * 3 = 36.<|eot_id|><|start_header_id|>assistant")


def test_one_forward_pass_a_step_for_a_dialogue(zoo):
    prm = load(zoo["rlhflow"], family="rlhflow")
    solution = Solution.of(ASK, ("12 * 3 = 36.", "It is 36.", "Done.", "Yes."))
    tokens = len(prm.encoder.encode(solution).ids)
    assert len(prm.score(ASK, steps=solution.texts)) == 4
    assert prm.ledger.tokens_computed == prm.ledger.tokens_in == tokens


# ---- one score a step ----------------------------------------------------------------------------------------


def test_a_probability_of_exactly_zero_vanishes(zoo, tmp_path):
    """`sample[sample != 0].view(-1, 2)`, from the model card, drops a probability that underflows to 0."""
    built = zoo["qwen-prm"]
    plain = load(built).score(truth.PENS, steps=truth.CANDIDATES[1])
    middle = sorted(plain)[1]
    shift = torch.logit(torch.tensor(middle)).item()

    def sharpen(tensors):
        # The logits far apart, and about the middle score: every other step lands at exactly 0 or 1.
        weight, bias = tensors["score.2.weight"], tensors["score.2.bias"]
        bias[1] -= shift
        weight.mul_(1e6)
        bias.mul_(1e6)

    target = copy_with(tmp_path, built, sharpen)
    scores = load_prm(str(target), dtype="float32", device="cpu").score(truth.PENS, steps=truth.CANDIDATES[1])
    assert len(scores) == 3
    for before, after in zip(plain, scores, strict=True):
        if before != middle:
            assert after == float(before > middle)
    assert 0.0 in scores
    assert aggregate(scores, "product") == 0.0


@pytest.mark.parametrize("steps", [["12 * 3", "is 36", ""], ["12 * 3", "\n", "is 36"], ["", "is 36"]])
@pytest.mark.parametrize("name", ["qwen-prm", "skywork", "token-classification", "orm"])
def test_empty_steps_from_trailing_separators(zoo, name, steps):
    """`answer.replace("\\n\\n", marker) + marker` makes an empty step of each superfluous blank line."""
    with pytest.raises(InputError, match=f"step {1 + [s.strip() for s in steps].index('')} of "):
        load(zoo[name]).score(ASK, steps=steps)


@pytest.fixture
def short(zoo, tmp_path):
    """A PRM that reads 90 tokens."""
    target = shutil.copytree(zoo["qwen-prm"].folder, tmp_path / "short")
    file = target / "config.json"
    config = json.loads(file.read_text(encoding="utf-8"))
    file.write_text(json.dumps({**config, "max_position_embeddings": 90}), encoding="utf-8")

    def load_short(**settings):
        return load_prm(str(target), dtype="float32", device="cpu", **settings)

    return load_short


STEPS = ["12", "* 3", "is 36"]
LONG = Solution.of("p", (*STEPS, "and again " * 20, "36"), id="row 7")


def test_truncation_that_drops_markers(short):
    """`truncation=True` leaves fewer markers than steps, and the caller zips the two together."""
    with pytest.raises(TooLongError) as caught:
        list(short().score_many([LONG]))
    for part in ("'row 7'", "tokens, and this model reads 90", "3 of 5 steps fit", "`truncate`"):
        assert part in str(caught.value)


def test_truncation_on_request_leaves_the_other_steps_as_they_were(short, zoo):
    others = [Solution.of("p", ("one", "two")), Solution.of("q " * 200, ("none fits",))]
    first, second, third = short(truncate=True).score_many([LONG, *others])
    whole = load(zoo["qwen-prm"]).score("p", steps=STEPS)
    assert first.scores[3:] == (None, None)
    assert first.scores[:3] == pytest.approx(whole, abs=1e-6)
    assert second.scores == pytest.approx(load(zoo["qwen-prm"]).score("p", steps=["one", "two"]), abs=1e-6)
    assert third.scores == (None,)


def test_an_attention_window_that_is_not_kept(zoo, tmp_path):
    """The engine attends to everything; past the window of a Mistral it would read otherwise than in training."""
    built = zoo["math-shepherd"]
    target = shutil.copytree(built.folder, tmp_path / "windowed")
    file = target / "config.json"
    config = json.loads(file.read_text(encoding="utf-8"))
    file.write_text(json.dumps({**config, "sliding_window": 40}), encoding="utf-8")
    prm = load_prm(str(target), family="math-shepherd", dtype="float32", device="cpu")
    assert prm.score("p", steps=["a"]) == load(built, family="math-shepherd").score("p", steps=["a"])
    with pytest.raises(TooLongError, match="this model reads 40"):
        prm.score(ASK, steps=["12 * 3 = 36, because each of the 3 boxes holds 12 pens"])


@pytest.mark.parametrize("shorter", ["policy", "reference"])
def test_an_implicit_prm_reads_what_both_its_models_read(zoo, tmp_path, shorter):
    built = zoo["implicit"]
    folders = {"policy": built.folder, "reference": built.reference.folder}
    folders[shorter] = shutil.copytree(folders[shorter], tmp_path / "short")
    file = folders[shorter] / "config.json"
    config = json.loads(file.read_text(encoding="utf-8"))
    file.write_text(json.dumps({**config, "max_position_embeddings": 90}), encoding="utf-8")

    def load_short(**settings):
        return load_prm(
            str(folders["policy"]),
            family="implicit",
            reference=str(folders["reference"]),
            dtype="float32",
            device="cpu",
            **settings,
        )

    with pytest.raises(TooLongError, match="this model reads 90"):
        list(load_short().score_many([LONG]))
    first, second = load_short(truncate=True).score_many([LONG, Solution.of("q " * 200, ("none fits",))])
    whole = load(built, family="implicit").score("p", steps=LONG.texts)
    assert first.scores[:3] == pytest.approx(whole[:3], abs=1e-7)
    assert first.scores[3:] == (None, None)
    assert second.scores == (None,)


def test_a_failure_that_becomes_zeros(zoo):
    """A client fills a failed request with 0.0, a list of the wrong length at that."""
    prm = load(zoo["qwen-prm"])
    good = Solution.of(ASK, ("12 * 3", "is 36"))
    bad = Solution.of(ASK, ("12 * 3", " "), id="bad")
    first, second, third = prm.score_many([good, bad, good], keep_going=True)
    assert isinstance(second, Refusal)
    assert second.solution is bad
    assert first.scores == third.scores
    assert 0.0 not in first.scores
    with pytest.raises(InputError, match="'bad'"):
        list(prm.score_many([good, bad]))


# ---- text is data --------------------------------------------------------------------------------------------

CONTROL = [(family, token) for family, example in FAMILY_EXAMPLES.items() for token in example.control]


@pytest.mark.parametrize(("family", "token"), CONTROL)
def test_a_marker_or_control_token_inside_a_text(zoo, family, token):
    """It would be a step that is not there, or end the turn: a solution could write its own scores."""
    prm = load_family(zoo, family)
    texts = {"problem": (f"How {token}many?", ["a", "b"]), "steps[1]": (ASK, ["first", f"b {token} c"])}
    texts["steps[0]"] = (ASK, [f"{token}a", "b"])
    for field, (problem, steps) in texts.items():
        with pytest.raises(MarkerInTextError) as caught:
            list(prm.score_many([Solution.of(problem, tuple(steps), id="sly")]))
        assert token in str(caught.value)
        assert caught.value.field == field
        assert caught.value.where == "solution 'sly'"


def test_every_family_has_an_example():
    assert set(FAMILY_EXAMPLES) == set(FAMILIES)


def test_a_verdict_inside_a_text_is_no_verdict(zoo):
    """RLHFlow's and VersaPRM's verdicts are plain signs; they are read by place, not by search."""
    for family in ("rlhflow", "versaprm", "math-shepherd"):
        scores = load_family(zoo, family).score("+ - + ?", steps=["+", "-", "1 + 2 - 3 = 0"])
        assert len(scores) == 3


def test_deleting_the_mark_from_a_text_makes_no_control_token(zoo):
    """VersaPRM's authors delete its mark from texts; what is left may be what the mark kept apart."""
    with pytest.raises(MarkerInTextError, match="eot_id"):
        load(zoo["versaprm"], family="versaprm").score(ASK, steps=["a <|eot_ \n\n\n\nid|> b"])


# ---- what the numbers mean -----------------------------------------------------------------------------------

AGGREGATES = {name: example.aggregate for name, example in FAMILY_EXAMPLES.items()}


def test_an_aggregate_that_is_hard_coded(zoo):
    """A search script aggregates by "last" whatever it was told; here each family's own is used, and a flag wins."""
    assert {name: spec.aggregate for name, spec in FAMILIES.items()} == AGGREGATES
    solution = Solution.of(ASK, ("12 * 3 = 36", "so 37", "no, 36"))
    for family in truth.FAMILIES_HERE:
        prm = truth.load(family, zoo[family.checkpoint])
        assert prm.default_aggregate == AGGREGATES[family.name]
        graded = next(grade([solution], prm))
        assert graded.aggregate == AGGREGATES[family.name]
        assert graded.score == aggregate(graded.scores, AGGREGATES[family.name], kind=prm.score_kind)
        if family.name != "orm":
            last = next(grade([solution], prm, Grade(aggregate="last")))
            assert (last.aggregate, last.score) == ("last", last.scores[-1])


def test_sums_taken_for_shares(zoo):
    """An implicit PRM's card speaks of each step's share and computes the running sum; both are here, by name."""
    steps = ["12 * 3 = 36", "so 37", "no, 36", "36"]
    sums = load(zoo["implicit"], family="implicit").score(ASK, steps=steps)
    shares = load(zoo["implicit"], family="implicit-per-step").score(ASK, steps=steps)
    assert shares[0] == pytest.approx(sums[0], abs=1e-12)
    for t in range(1, 4):
        assert shares[t] == pytest.approx(sums[t] - sums[t - 1], abs=1e-9)
    assert load(zoo["implicit"], family="implicit").score_kind == "log-ratio"


def test_the_mean_of_sigmoids_taken_for_the_sigmoid_of_a_mean(zoo):
    built = zoo["actprm"]
    family = next(f for f in truth.FORWARD if f.name == "actprm")
    solution = (truth.PENS, truth.CANDIDATES[0])
    right = truth.forward_truth(family, built, [solution])[0]
    logits = []

    def of_mean(built, hidden):
        w = {name.removeprefix("score.model."): tensor for name, tensor in built.head.items()}
        state = torch.einsum("lh,ehm->elm", hidden, w["nn1.weight"]) + w["nn1.bias"][:, None]
        state = torch.einsum("elm,emn->eln", state.clamp(min=0), w["nn2.weight"]) + w["nn2.bias"][:, None]
        logit = (
            torch.einsum("elm,emn->eln", state.clamp(min=0), w["nn_out.weight"]) + w["nn_out.bias"][:, None]
        )
        logits.append(logit)
        return logit.mean(0)[:, 0].sigmoid().tolist()

    rows, reads = family.row(built.tokenizer, *solution)
    wrong = of_mean(built, truth.outputs(built, [rows])[0, reads])
    assert max(abs(a - b) for a, b in zip(right, wrong, strict=True)) > 1e-3, (
        "else the two would not differ here"
    )
    assert logits[0].shape[0] > 1
    assert load(built).score(solution[0], steps=solution[1]) == pytest.approx(right, abs=1e-5)


def test_the_twin_of_an_ensemble_is_read(zoo, tmp_path):
    def spoil(tensors):
        twins = [name for name in tensors if name.startswith("score.reg_model.")]
        assert len(twins) == 6
        for name in twins:
            tensors[name].fill_(7.0)

    target = copy_with(tmp_path, zoo["actprm"], spoil)
    changed = load_prm(str(target), dtype="float32", device="cpu").score(ASK, steps=["12 * 3", "is 36"])
    assert changed == load(zoo["actprm"]).score(ASK, steps=["12 * 3", "is 36"])


def test_a_margin_taken_for_a_probability(zoo):
    pure = load(zoo["token-classification"], family="pure")
    plain = load(zoo["token-classification"], family="token-classification")
    steps = ["12 * 3 = 36", "so 37"]
    assert pure.score_kind == "margin"
    assert pure.default_threshold == 0.0
    assert pure.score(ASK, steps=steps) == pytest.approx(
        [2 * p - 1 for p in plain.score(ASK, steps=steps)], abs=1e-6
    )


def test_the_separator_of_a_trained_prm_is_forgotten(zoo, tmp_path):
    """TRL does not store it; a stepmark.json beside the weights does, and is obeyed."""
    spec = replace(FAMILIES["token-classification"], layout=PieceLayout(mark="\n\n", bos=True))
    target = shutil.copytree(zoo["token-classification"].folder, tmp_path / "own")
    (target / "stepmark.json").write_text(json.dumps(asdict(spec)), encoding="utf-8")
    prm = load_prm(str(target), dtype="float32", device="cpu")
    assert read_text(prm, ASK, ["a", "b"]) == f"{ASK}a\n\nb\n\n"


def test_two_tokens_that_end_alike(zoo):
    """A tokenizer that cuts both verdicts to the same last token would score every step 0.5."""
    built = zoo["three-class"]
    prm = load(built, family="three-class")
    head = replace(FAMILIES["three-class"].readout.head, candidates=("a +", "b +", "c +"))
    with pytest.raises(CheckpointError, match="end in the same token"):
        build_head(head, Tensors(built.folder), prm.engine.backbone, built.tokenizer, "cpu")


def test_bfloat16_stays_near(zoo):
    """The backbone in bfloat16, the head in float32: every family runs so, and no score moves far."""
    solution = (truth.PENS, truth.CANDIDATES[0])
    for family in truth.FAMILIES_HERE:
        settings = {} if family.told else {"family": family.name}
        built = zoo[family.checkpoint]
        reference = str(built.reference.folder) if built.reference else None
        prm = load_prm(str(built.folder), dtype="bfloat16", device="cpu", reference=reference, **settings)
        expected = truth.truth_of(family, built, [solution])[0]
        found = [score for score in prm.score(solution[0], steps=solution[1]) if score is not None]
        assert found == pytest.approx(expected, abs=0.1 if family not in truth.IMPLICIT else 0.003)


def test_special_tokens_of_a_tokenizer_are_the_checkpoints_own(zoo):
    """Marker ids are looked up, never written down: ActPRM's <extra_0> is another id than Qwen's."""
    built = zoo["actprm"]
    encoder = Encoder(built.tokenizer, FAMILIES["actprm"].layout, max_tokens=None)
    encoded = encoder.encode(Solution.of(ASK, ("36",)))
    assert encoded.ids[-1] == built.tokenizer.convert_tokens_to_ids("<extra_0>") not in (151651, 151665)
