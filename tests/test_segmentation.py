"""Every way to cut a solution, on examples written and cut by hand."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepmark.data.steps.splitting import REASONING, WAYS, own_text, split
from stepmark.data.steps.thoughts import limit_cuts, texts_of
from stepmark.errors import InputError, UnknownNameError, UsageError
from stepmark.records import Step


def texts(text: str, how: str, **settings: str) -> list[str]:
    segmentation = split(text, how, **settings)
    assert segmentation.rejoin() == text
    assert segmentation.how == how
    for step in segmentation:
        assert step.start is not None
        assert text[step.start : step.start + len(step.text)] == step.text
        assert step.text.strip()
    return [step.text for step in segmentation]


# --- what a segmentation is -----------------------------------------------------------------------------------


def test_a_segmentation_is_a_sequence_of_steps_with_offsets_and_layout():
    segmentation = split("\n  a = 1  \n\n\tb = 2\r\n", "line")
    assert list(segmentation) == [
        Step(text="  a = 1  ", lead="\n", tail="\n\n", start=1),
        Step(text="\tb = 2", lead="", tail="\r\n", start=12),
    ]
    assert len(segmentation) == 2
    assert segmentation[-1].text == "\tb = 2"
    assert [step.text for step in segmentation[:1]] == ["  a = 1  "]
    assert segmentation.texts == ("  a = 1  ", "\tb = 2")
    assert segmentation.why == "asked for"
    assert Step(text="  a = 1  ", lead="\n", tail="\n\n", start=1) in segmentation


def test_blanks_belong_to_the_step_on_whose_line_they_stand_alone():
    """Skywork's card cuts at line breaks and keeps what lines begin and end with; between two steps of a line they are layout."""
    response = "We do:\n   - 3 eggs for breakfast. \n\n     \\[ 3 + 4 = 7 \\]\n"
    assert texts(response, "line") == [line for line in response.split("\n") if line]
    assert split(response, "line").rejoin() == response
    assert texts("a ки  b ки\n  c ки", "marker", marker="ки") == ["a", "b", "  c"]
    assert texts("  One. Two. \n  Three.", "sentence") == ["One.", "Two.", "Three."]


@pytest.mark.parametrize(
    ("written", "text"), [("\n\n  a\n b \r\n", "  a\n b "), (" \n\t", ""), ("", ""), ("a", "a")]
)
def test_the_own_text_of_a_step_as_it_was_written(written, text):
    assert own_text(written) == text


@pytest.mark.parametrize("blank", ["", " ", "\n\t\r\n", "\u2028 \u00a0"])
@pytest.mark.parametrize("how", [way for way in WAYS if way not in ("marker", "agent")])
def test_a_blank_text_is_refused(blank, how):
    with pytest.raises(InputError, match="blank") as caught:
        split(blank, how)
    assert caught.value.field == "solution"


def test_an_unknown_way_names_the_nearest():
    with pytest.raises(UnknownNameError, match=r"no way to split 'sentense'.*'sentence'"):
        split("a", "sentense")


@pytest.mark.parametrize(
    ("how", "settings", "message"),
    [
        ("marker", {}, "needs a marker"),
        ("marker", {"marker": ""}, "empty"),
        ("line", {"marker": "ки"}, "not by 'line'"),
        ("sentence", {"language": "python"}, "not by 'sentence'"),
        ("agent", {}, "read_messages"),
    ],
)
def test_settings_that_cannot_work_are_refused(how, settings, message):
    with pytest.raises(UsageError, match=message):
        split("a", how, **settings)


# --- whole, token, line, blank-line ---------------------------------------------------------------------------


def test_whole_keeps_layout_out_of_the_step():
    assert split(" a\n\nb \n", "whole").steps == (Step(text=" a\n\nb ", lead="", tail="\n", start=0),)


def test_token_is_a_word_and_a_formula_is_one_word():
    assert texts("So 2 +\t3 = 5.\n", "token") == ["So", "2", "+", "3", "=", "5."]
    assert texts("Then $x + y = 5$, so \\(z = 1\\).", "token") == [
        "Then",
        "$x + y = 5$,",
        "so",
        "\\(z = 1\\).",
    ]


def test_line_cuts_at_every_kind_of_line_end():
    assert texts("a\nb\r\nc\rd\u2028e\u2029f\x85g\n\n\nh", "line") == list("abcdefgh")


def test_line_keeps_a_display_formula_together():
    text = "Now.\n\\[\nx = 1 +\n2\n\\]\nSo.\n$$\ny\n\n= 2\n$$\nThen.\n\\begin{align}\na &= b \\\\[2pt]\n\\begin{x}\nc\n\\end{x}\n\\end{align}\nDone"
    assert texts(text, "line") == [
        "Now.",
        "\\[\nx = 1 +\n2\n\\]",
        "So.",
        "$$\ny\n\n= 2\n$$",
        "Then.",
        "\\begin{align}\na &= b \\\\[2pt]\n\\begin{x}\nc\n\\end{x}\n\\end{align}",
        "Done",
    ]


@pytest.mark.parametrize("how", ["line", "blank-line", "sentence"])
@pytest.mark.parametrize("gap", ["\n\n", "\n\n\n"])
@pytest.mark.parametrize(
    ("pieces", "expected"),
    [
        # What introduces a formula keeps it, whatever the formula is written in.
        (
            ["Doubling gives:", "\\[ 2x = 6 \\]", "So x is 3."],
            ["Doubling gives: \\[ 2x = 6 \\]", "So x is 3."],
        ),
        (["Therefore,", "$$x = 3$$"], ["Therefore, $$x = 3$$"]),
        (
            ["Then the area is", "\\begin{align*}a\\end{align*}"],
            ["Then the area is \\begin{align*}a\\end{align*}"],
        ),
        (["**Multiply by 2**", "\\[ 2x = 6 \\]"], ["**Multiply by 2** \\[ 2x = 6 \\]"]),
        # What goes on after it is the same sentence, unless the formula ends it.
        (
            ["We use", "\\[ A = ab \\]", "where $a$ is a side."],
            ["We use \\[ A = ab \\] where $a$ is a side."],
        ),
        (["We use", "\\[ A = ab. \\]", "where is b?"], ["We use \\[ A = ab. \\]", "where is b?"]),
        # A sentence that is over, a line without words, an environment of text: as before.
        (["This is known.", "\\[ x = 3 \\]", "So be it."], ["This is known.", "\\[ x = 3 \\]", "So be it."]),
        (["---", "\\[ x = 3 \\]"], ["---", "\\[ x = 3 \\]"]),
        (
            ["Cases:", "\\begin{itemize}\\item a\\end{itemize}"],
            ["Cases:", "\\begin{itemize}\\item a\\end{itemize}"],
        ),
        # Each formula of a derivation is a step; one that goes on with the formula before is not.
        (["Solve:", "\\[ 2x = 6 \\]", "\\[ x = 3 \\]"], ["Solve: \\[ 2x = 6 \\]", "\\[ x = 3 \\]"]),
        (["Solve:", "\\[ x, \\]", "\\[ y \\]"], ["Solve: \\[ x, \\] \\[ y \\]"]),
        (["Solve:", "\\[ x \\]", "\\[ = y \\]"], ["Solve: \\[ x \\] \\[ = y \\]"]),
    ],
)
def test_a_formula_stays_with_its_sentence(pieces, expected, gap, how):
    text = gap.join(pieces)
    assert [step.replace(gap, " ") for step in texts(text, how)] == expected
    assert split(text, how).rejoin() == text


def test_paragraphs_are_counted_with_their_formulas():
    assert split("We have\n\n\\[ x = 3 \\]\n\nSo x is 3.").why == "it has 2 paragraphs"
    alone = split("This is one. The other gives\n\n\\[ x = 3 \\]")
    assert (alone.how, alone.texts[1]) == ("sentence", "The other gives\n\n\\[ x = 3 \\]")


THOUGHT = "<think>\nI add.\n\nWait, 1 + 1 = 2.\n</think>\n\nIt is 2.\nDone."
HARMONY = (
    "<|channel|>analysis<|message|>I add.\n\nWait, 1 + 1 = 2.<|end|>"
    "<|start|>assistant<|channel|>final<|message|>It is 2.\nDone.<|return|>"
)


@pytest.mark.parametrize("text", [THOUGHT, THOUGHT.removeprefix("<think>"), HARMONY])
def test_a_thought_is_cut_apart_from_the_answer(text):
    thought, answer = ["I add.", "Wait, 1 + 1 = 2."], ["It is 2.", "Done."]
    for reasoning, expected in (("keep", thought + answer), ("only", thought), ("drop", answer)):
        cut = split(text, reasoning=reasoning)
        assert list(cut.texts) == expected
        assert cut.rejoin() == text
        assert cut.why.endswith(f"; {REASONING[reasoning]}")
        assert all(text[step.start :].startswith(step.text) for step in cut)
    assert split(text, "whole").texts == (text.strip("\n"),)
    assert "think" not in split("I think\nso").why


def test_a_text_without_what_is_asked_for_is_refused():
    with pytest.raises(InputError, match=r"a thought .*`reasoning` only"):
        split("2 + 2 = 4", reasoning="only")
    with pytest.raises(InputError, match=r"an answer .*found only a thought"):
        split("<think>Hm. And the reply ends", reasoning="drop")


def test_a_thought_is_cut_where_it_turns():
    text = "We add 2. Then 3. Wait, no. That is 5.\nAlternatively, count. I wait here.\n\nLet me check: $2. Wait$ is 5."
    assert texts(text, "thought") == [
        "We add 2. Then 3.",
        "Wait, no. That is 5.",
        "Alternatively, count. I wait here.",
        "Let me check: $2. Wait$ is 5.",
    ]


@pytest.mark.parametrize(
    "text",
    [
        "The tag `<think>` opens it, `</think>` ends it.",
        "Write:\n\n```xml\n<think>\nx\n</think>\n```\n\nDone.",
        "Write:\r\n~~~~\r\n```\r\n</think><think>\r\n~~~~\r\n",
    ],
)
def test_marks_in_code_of_an_answer_are_text(text):
    assert split(f"<think>Hm.</think>{text}", reasoning="only").texts == ("Hm.",)


def test_the_first_end_mark_ends_a_thought_also_after_an_open_fence():
    text = "<think>x\n```python\n1\n</think>\n\nSo:\n```python\n2\n```\n"
    assert split(text, "whole", reasoning="drop").texts == ("So:\n```python\n2\n```",)
    fence = "```python\n<think>a</think>b"  # nothing closes it
    assert split(fence, "whole", reasoning="only").texts == ("a",)


def test_an_empty_thought_is_layout():
    assert split("<think>\n\n</think>\n\nIt is 4.").texts == ("It is 4.",)
    with pytest.raises(InputError):
        split("<think></think>")


@given(st.text("ab \n", min_size=1, max_size=25), st.sets(st.integers(1, 25)), st.integers(1, 5))
def test_a_limit_by_counting_the_words_of_every_share(text, places, words):
    allowed = sorted(place for place in places if place <= len(text))
    expected, last, previous = [], 0, 0
    for cut in [*allowed, len(text)]:
        if previous > last and len(text[last:cut].split()) > words:
            expected.append(previous)
            last = previous
        previous = cut
    assert limit_cuts(text, words, allowed) == expected


def test_a_limit_of_words_gathers_sentences():
    text = "One two three. Four five. Six.\n\nSeven eight nine ten eleven twelve. End."
    assert texts(text, "limit:5") == [
        "One two three. Four five.",
        "Six.",
        "Seven eight nine ten eleven twelve.",
        "End.",
    ]
    assert split(text, "limit:5").rejoin() == text
    assert len(split(text, "limit:100")) == 1


def test_blank_line_cuts_at_blank_lines_only():
    text = "one\ntwo\n\nthree\n \t\n\n  four\r\n\r\nfive"
    assert texts(text, "blank-line") == ["one\ntwo", "three", "  four", "five"]


def test_blank_line_keeps_fences_and_formulas_whole():
    text = "See:\n\n```python\na = 1\n\nb = 2\n```\n\nThen\n\\[\n\nx\n\n\\]\n\nend"
    assert texts(text, "blank-line") == [
        "See:",
        "```python\na = 1\n\nb = 2\n```",
        "Then\n\\[\n\nx\n\n\\]\n\nend",
    ]


# --- what is opened and never closed --------------------------------------------------------------------------


@pytest.mark.parametrize("opener", ["\\[", "$$", "\\begin{align}", "```python"])
def test_an_unclosed_display_protects_its_paragraph_and_no_more(opener):
    text = f"a\n{opener}\nx = 1\ny = 2\n\nb\nc"
    assert texts(text, "line") == ["a", f"{opener}\nx = 1\ny = 2", "b", "c"]


@pytest.mark.parametrize("opener", ["\\(", "$", "`", "\\]", "\\)", "\\end{align}", "```"])
def test_unclosed_inline_formulas_and_stray_closers_protect_nothing(opener):
    assert texts(f"a {opener}x\nb\nc", "line") == [f"a {opener}x", "b", "c"]


def test_an_unclosed_display_does_not_borrow_the_closer_of_the_next():
    text = "\\[ x\n\na\nb\n\\[ y\nz \\]\nc"
    assert texts(text, "line") == ["\\[ x", "a", "b", "\\[ y\nz \\]", "c"]
    text = "$$ x\n\na\nb\n$$ y\nz $$\nc"
    assert texts(text, "line") == ["$$ x", "a", "b", "$$ y\nz $$", "c"]


def test_an_unclosed_environment_does_not_take_the_end_of_another():
    text = "\\begin{a}\nx\n\n\\begin{b}\ny\n\\end{b}\nc\nd"
    assert texts(text, "line") == ["\\begin{a}\nx", "\\begin{b}\ny\n\\end{b}", "c", "d"]


def test_an_environment_closes_over_one_that_is_left_open_inside_it():
    text = "\\begin{a}\n\nm\n\\begin{x}\n\np\n\\end{a}\nq"
    assert texts(text, "line") == ["\\begin{a}\n\nm\n\\begin{x}\n\np\n\\end{a}", "q"]


def test_fences_close_only_with_their_own_kind_and_length():
    text = "````md\n```\na\n```\n~~~\n````\nb\n~~~\nc\n```\n~~~\nd"
    assert texts(text, "line") == ["````md\n```\na\n```\n~~~\n````", "b", "~~~\nc\n```\n~~~", "d"]


def test_marks_of_mathematics_inside_a_fence_mean_nothing_outside():
    text = "```sh\necho $$ \\[ \\begin{a}\n```\na\nb $$ c\nd $$"
    assert texts(text, "line") == ["```sh\necho $$ \\[ \\begin{a}\n```", "a", "b $$ c\nd $$"]


# --- dollars --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "It costs $5\nand then $6\nin all",
        "It costs 5$.\nThen 6$\nin all",
        "Pay \\$5\nor \\$6\nin all",
        "He has $5, she\nhas $7.50; it\nis (16-7)*$2",
        "a `$x` b\nc `y$` d\ne",
    ],
)
def test_sums_of_money_are_no_formulas(text):
    assert texts(text, "line") == text.split("\n")


def test_inline_formulas_may_break_over_a_line_but_not_over_a_blank_one():
    assert texts("Let $x =\n1$ be\nso", "line") == ["Let $x =\n1$ be", "so"]
    assert texts("Let $x =\n\n1$ be", "line") == ["Let $x =", "1$ be"]
    assert texts("a $x$$y\n+ z$ b\nc", "line") == ["a $x$$y\n+ z$ b", "c"]


# --- numbered -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "pattern",
    [
        "Step {}: go",
        "step {}. go",
        "### Step {}",
        "## Step {} go on",
        "**Step {}**",
        "**Step {}:** go",
        "- Step {}: go",
        "Step {}",
        "STEP {} - go",
        "{}. go",
        "{}) go",
        "({}) go",
        "**{}.** go",
        "**{}. Go**",
        "### {}. Go",
        "  {}. go",
        "{}. **Go**",
        "{}.\ngo",
        "{}.Go",
    ],
)
@pytest.mark.parametrize("first", [0, 1, 9])
def test_numbered_forms(pattern, first):
    items = [pattern.format(first + i) for i in range(3)]
    assert texts("\n".join(items), "numbered") == items


@pytest.mark.parametrize(
    "text",
    [
        "12 - 5 = 7\n13 - 5 = 8",
        "1. e4 is a good move\nand it is played often",
        "It was in\n2024. was a good year\n2025. was better",
        "There are\n3.5 apples and\n4.5 pears",
        "1. a\n3. b\n5. c",
        "1.5 and\n2.5",
        "Step 1 follows from\nStep 2 says so too",
        "1.1. a\n1.2. b",
        "Step 1.1: a\nStep 2.1: b",
        "1. a\n2) b",
        "a 1. b\nc 2. d",
        "```\n1. a\n2. b\n```",
        "$$\n1. a\n2. b\n$$",
    ],
)
def test_what_is_no_numbered_list(text):
    segmentation = split(text, "numbered")
    assert segmentation.texts == (text,)
    assert segmentation.why == "asked for; the text has no numbered list, so it is one step"
    assert split(text).how != "numbered"


def test_a_nested_list_stays_in_its_item():
    text = "1. a\n   1. x\n   2. y\n2. b\n\n   more of b\n\n   1. z\n3. c"
    assert texts(text, "numbered") == ["1. a\n   1. x\n   2. y", "2. b\n\n   more of b\n\n   1. z", "3. c"]


def test_step_headings_go_before_plain_numbers():
    text = "**Step 1**\n1. x\n2. y\n3. z\n**Step 2**\n1. u\n2. v"
    assert texts(text, "numbered") == ["**Step 1**\n1. x\n2. y\n3. z", "**Step 2**\n1. u\n2. v"]

    text = "### 1. A\nStep 1: x\nStep 2: y\n### 2. B\nStep 3: z"
    assert texts(text, "numbered") == ["### 1. A", "Step 1: x", "Step 2: y\n### 2. B", "Step 3: z"]
    text = "### 1. A\n1. x\n2. y\n### 2. B\n1. z\n2. w"
    assert texts(text, "numbered") == ["### 1. A\n1. x\n2. y", "### 2. B\n1. z\n2. w"]


def test_a_number_of_its_own_before_a_list_is_no_item():
    assert texts("5. a\nb\n8. c\n9. d", "numbered") == ["5. a\nb", "8. c", "9. d"]


def test_two_lists_one_after_the_other():
    text = "Given:\n1. a\n2. b\n\nThen:\n1. c\n2. d\n3. e\n\nDone."
    assert texts(text, "numbered") == ["Given:", "1. a", "2. b", "Then:", "1. c", "2. d", "3. e", "Done."]


def test_the_last_item_ends_as_the_items_before_it_show():
    # Items that hold loose paragraphs: the last one may too.
    loose = "1. **A**\n\nText of a.\n\n2. **B**\n\nText of b.\n\nMore of b."
    assert texts(loose, "numbered") == ["1. **A**\n\nText of a.", "2. **B**\n\nText of b.\n\nMore of b."]
    # Items that hold none: the first loose paragraph is no item's.
    tight = "1. **A**\n   - text\n\n2. **B**\n   - text\n\n\\[ x \\]\n\nSo it is x."
    assert texts(tight, "numbered") == [
        "1. **A**\n   - text",
        "2. **B**\n   - text\n\n\\[ x \\]",
        "So it is x.",
    ]
    # A heading as high as the items' own ends the list even so.
    headed = "### Step 1\n\nText.\n\n#### Part\n\nText.\n\n### Step 2\n\nText.\n\n#### Part\n\nText.\n\n### Conclusion\n\nText."
    assert texts(headed, "numbered") == [
        "### Step 1\n\nText.\n\n#### Part\n\nText.",
        "### Step 2\n\nText.\n\n#### Part\n\nText.",
        "### Conclusion",
        "Text.",
    ]


# --- sentences ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "parts",
    [
        ["She has 3.14 kg, i.e. little.", "Then she eats, e.g. Apples."],
        ["Dr. Smith and Mrs. Jones paid $5.00.", "They left."],
        ["J. R. Smith won.", "He was glad!", "Was he?", "Yes."],
        ["It was written by A. Turing in the U.S. Army days.", "So it is old."],
        ["The answer is B.", "We choose it."],
        ["He sold 20 goats from Farm Y.", "There are 5 left."],
        ["It rests at A.", "$x$ does not."],
        ["Wait... Then go on… Now stop.", "Good."],
        ["So (is it?) Not at all.", "(See above.) Now go."],
        ['He said "stop."', "Then he left."],
        ["It is **5.**", "Next."],
        ["It gives 12.", "He then adds 3.", "5 is left."],
        ["See Fig. 3 and Eq. (2) and No. 7.", "No.", "That is all."],
        ["It starts at 5 a.m. on Monday.", "It ends at 6 p.m.", "Then we sleep."],
        ["We do: 1. Add 2 and 3.", "2. Multiply by 2.", "3. Stop."],
        ["Let x = A.", "Let y = B.", "Done."],
        ["The ratio is 3/4. = 0.75 that is.", "Ok."],
        ["First he waits approx. 5 min.", "Then he goes."],
        ["See x et al. Then it holds.", "Yes."],
    ],
)
def test_sentences(parts):
    text = " ".join(parts)
    assert texts(text, "sentence") == parts


def test_sentences_keep_formulas_and_inline_code_whole():
    text = "We have $x. Y = 1$ here. Then \\(a. B\\) holds. Run `print. Me. Now` once. And \\[ C. D \\] too."
    assert texts(text, "sentence") == [
        "We have $x. Y = 1$ here.",
        "Then \\(a. B\\) holds.",
        "Run `print. Me. Now` once.",
        "And \\[ C. D \\] too.",
    ]


def test_sentences_of_other_scripts():
    assert texts("我们有5个。然后吃了2个！剩下几个？三个", "sentence") == [
        "我们有5个。",
        "然后吃了2个！",
        "剩下几个？",
        "三个",
    ]
    assert texts("Это А. Б. не так. Это так.", "sentence") == ["Это А. Б. не так.", "Это так."]


def test_line_breaks_in_sentences():
    text = "We get\n\\[ x = 1 \\]\nwhich is small\nThen it grows\n- to two\n- to three\n\nand so on,\nBob says\n2 + 3 = 5"
    assert texts(text, "sentence") == [
        "We get\n\\[ x = 1 \\]\nwhich is small",
        "Then it grows",
        "- to two",
        "- to three",
        "and so on,\nBob says",
        "2 + 3 = 5",
    ]


# --- marker ---------------------------------------------------------------------------------------------------


def test_the_marker_goes_into_the_tail():
    segmentation = split("Step 1: a ки\nStep 2: b ки", "marker", marker="ки")
    assert segmentation.steps == (
        Step(text="Step 1: a", tail=" ки", start=0),
        Step(text="Step 2: b", lead="\n", tail=" ки", start=13),
    )


def test_markers_without_a_step_between_them_are_layout():
    segmentation = split("<s> <s>a<s><s>\n<s>b", "marker", marker="<s>")
    assert segmentation.steps == (
        Step(text="a", lead="<s> <s>", tail="<s><s>\n<s>", start=7),
        Step(text="b", start=18),
    )


def test_a_marker_of_whitespace():
    assert texts("a\nb\n\nc\n\n\nd", "marker", marker="\n\n") == ["a\nb", "c", "d"]


def test_a_marker_inside_a_closed_formula_or_fence_is_no_border():
    assert texts("a $x#y$ b#c", "marker", marker="#") == ["a $x#y$ b", "c"]
    assert texts("```sh\n# a\n```\nb#c", "marker", marker="#") == ["```sh\n# a\n```\nb", "c"]
    # What nothing closes does not swallow the markers of the rest.
    assert texts("\\[ a # b # c", "marker", marker="#") == ["\\[ a", "b", "c"]


def test_a_text_of_markers_alone_is_refused():
    with pytest.raises(InputError, match="only the marker"):
        split(" ки ки\n", "marker", marker="ки")


def test_a_marker_that_does_not_occur_is_said():
    segmentation = split("a\nb", "marker", marker="ки")
    assert segmentation.texts == ("a\nb",)
    assert segmentation.why == "asked for; the marker 'ки' does not occur in it, so it is one step"


# --- auto -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "how", "why", "count"),
    [
        ("Step 1: a\nStep 2: b", "numbered", 'it has a numbered list, "Step 1" to "Step 2"', 2),
        ("Now:\n\n1) a\n2) b", "numbered", 'it has a numbered list, "1)" to "2)"', 3),
        ("a b\n\nc d\n\ne f", "blank-line", "it has 3 paragraphs", 3),
        ("2 + 3 = 5\n5 * 2 = 10\n#### 10", "line", "it has 3 lines", 3),
        ("He has 2 apples.\nHe has 3 pears.\nHe has 5.\n\n#### 5", "line", "it has 4 lines", 4),
        ("It is:\n- a\n- b\n- c\n\nDone.", "blank-line", "it has 2 paragraphs", 2),
        ("He has 5. He eats 2. So 3.", "sentence", "it is one line of 3 sentences", 3),
        ("12 - 5 = 7", "whole", "it is a single sentence", 1),
        ("x = 5", "whole", "it is a single sentence", 1),
        ("x = 5\ny = 6", "line", "it has 2 lines", 2),
        ("f(2)", "whole", "it is a single sentence", 1),
        (
            "We get\n\\[ x \\]\nwhich is it.\nSo it is.",
            "sentence",
            "it has formulas on lines of their own within its 2 sentences",
            2,
        ),
        ("def f(x):\n    y = x\n    z = y\n    return z\n", "code", "it parses as Python", 2),
        ("print(3)", "code", "it parses as Python", 1),
        ("See:\n```python\nx = 1\n```", "code", "at least half of it is fenced code", 2),
    ],
)
def test_auto_picks_and_says_what(text, how, why, count):
    segmentation = split(text)
    assert (segmentation.how, segmentation.why, len(segmentation)) == (how, why, count)
    assert segmentation.rejoin() == text
    # What it picked is what it says.
    assert split(text, segmentation.how).steps == segmentation.steps


def test_auto_takes_a_marker_that_occurs_and_a_language_that_is_given():
    assert split("1. a ки\n2. b ки", marker="ки").how == "marker"
    assert split("1. a ки\n2. b ки", marker="ки").why == "the marker 'ки' occurs in it"
    assert split("1. a\n2. b", marker="ки").how == "numbered"
    assert split("x = 1", language="python").how == "code"


def test_auto_keeps_a_little_code_in_a_solution_as_it_is():
    text = "Step 1: We write a loop that adds all of the numbers.\n```python\nx += 1\n```\nStep 2: It gives 10, as we wanted it to."
    assert split(text).how == "numbered"
    assert len(split(text)) == 2


@pytest.mark.parametrize(
    ("text", "thought", "answer"),
    [
        ("<thinking>4?</thinking>5", "4?", "5"),
        ("<THINK>4?</think>5", "4?", "5"),
        ("[THINK]4?[/THINK]5", "4?", "5"),
        ("4?[/THINK]5", "4?", "5"),
        ("4?</thinking>5", "4?", "5"),
        ("◁think▷4?◁/think▷5", "4?", "5"),
        ("<seed:think>4?</seed:think>5", "4?", "5"),
    ],
)
def test_every_models_marks_of_a_thought_are_read(text, thought, answer):
    assert list(texts_of(text)) == [(thought, True), (answer, False)]
