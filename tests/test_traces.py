"""Chat messages as a problem and steps."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepmark.data.conversations import read_messages
from stepmark.data.solutions import read_solutions
from stepmark.errors import InputError, UnknownNameError, UsageError
from stepmark.records import Step


def call(name: str, arguments: str, id: str | None = None) -> dict:
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


TRACE = [
    {"role": "system", "content": "You book flights."},
    {"role": "user", "content": "To Oslo, please."},
    {
        "role": "assistant",
        "content": "I look first.",
        "tool_calls": [call("search", '{"to": "OSL"}'), call("now", "", "c2")],
    },
    {"role": "tool", "tool_call_id": "c1", "name": "search", "content": '[{"price": 140}]'},
    {"role": "tool", "tool_call_id": "c2", "content": "noon"},
    {"role": "assistant", "content": "140 euros. Shall I?"},
    {"role": "tool", "tool_call_id": "c9", "content": ""},
    {"role": "user", "content": [{"type": "text", "text": "Yes."}, {"type": "text", "text": "Now."}]},
    {"role": "assistant", "content": None, "tool_calls": [call("book", "{}")]},
    {"role": "assistant", "content": "Done.\n"},
]

RENDERING = """\
Assistant:
I look first.
search({"to": "OSL"})
now()

Tool (search):
[{"price": 140}]

Tool (now):
noon

Assistant:
140 euros. Shall I?

Tool:


User:
Yes.
Now.

Assistant:
book({})

Assistant:
Done.
"""


def test_a_trace_becomes_a_problem_and_one_step_a_turn():
    problem, segmentation = read_messages(TRACE)
    assert problem.text == "System:\nYou book flights.\n\nUser:\nTo Oslo, please."
    assert segmentation.text == RENDERING
    assert segmentation.rejoin() == RENDERING
    assert segmentation.how == "agent"
    assert segmentation.why == "the conversation has 4 assistant turns"
    words = [[(m.role, step.raw[m.start : m.end]) for m in step.messages] for step in segmentation.steps]
    assert words == [
        [("assistant", "I look first."), ("tool", '[{"price": 140}]'), ("tool", "noon")],
        [("assistant", "140 euros. Shall I?"), ("tool", ""), ("user", "Yes.\nNow.")],
        [("assistant", "")],
        [("assistant", "Done.\n")],
    ]
    assert tuple(replace(step, messages=()) for step in segmentation.steps) == (
        Step(
            lead="Assistant:\n",
            text='I look first.\nsearch({"to": "OSL"})\nnow()',
            observation='\n\nTool (search):\n[{"price": 140}]\n\nTool (now):\nnoon',
            tail="\n\n",
            start=11,
        ),
        Step(
            lead="Assistant:\n",
            text="140 euros. Shall I?",
            observation="\n\nTool:\n\n\nUser:\nYes.\nNow.",
            tail="\n\n",
            start=RENDERING.index("140 euros"),
        ),
        Step(lead="Assistant:\n", text="book({})", tail="\n\n", start=RENDERING.index("book")),
        Step(lead="Assistant:\n", text="Done.", tail="\n", start=RENDERING.index("Done")),
    )


def test_a_single_user_message_is_the_problem_word_for_word():
    problem, _ = read_messages(
        [{"role": "user", "content": " What?\n"}, {"role": "assistant", "content": "5"}]
    )
    assert problem.text == " What?\n"


@pytest.mark.parametrize(
    ("before", "expected"),
    [
        ([{"role": "system", "content": "S"}], "System:\nS"),
        (
            [{"role": "developer", "content": "D"}, {"role": "user", "content": "U"}],
            "Developer:\nD\n\nUser:\nU",
        ),
        ([{"role": "user", "content": "A"}, {"role": "user", "content": "B"}], "User:\nA\n\nUser:\nB"),
    ],
)
def test_other_problems_are_rendered_under_headings(before, expected):
    problem, _ = read_messages([*before, {"role": "assistant", "content": "5"}])
    assert problem.text == expected


# --- plain solutions ------------------------------------------------------------------------------------------

PLAIN = [{"role": "user", "content": "2 + 3?"}, {"role": "assistant", "content": "2 + 3\n= 5. Yes."}]


def test_one_assistant_turn_without_tools_is_a_plain_solution():
    problem, segmentation = read_messages(PLAIN)
    assert problem.text == "2 + 3?"
    assert (segmentation.how, segmentation.texts) == ("line", ("2 + 3", "= 5. Yes."))
    assert segmentation.text == "2 + 3\n= 5. Yes."
    _, segmentation = read_messages(PLAIN, how="whole")
    assert (segmentation.how, segmentation.why, len(segmentation)) == ("whole", "asked for", 1)
    _, segmentation = read_messages(PLAIN, how="marker", marker="+")
    assert segmentation.texts == ("2", "3\n= 5. Yes.")


def test_a_plain_solution_may_be_asked_for_as_a_turn():
    _, segmentation = read_messages(PLAIN, how="agent")
    (step,) = segmentation.steps
    assert replace(step, messages=()) == Step(lead="Assistant:\n", text="2 + 3\n= 5. Yes.", start=11)
    assert (segmentation.how, segmentation.why) == ("agent", "asked for")


@pytest.mark.parametrize(
    "messages",
    [
        [*PLAIN, {"role": "user", "content": "Thanks"}],
        [PLAIN[0], {"role": "assistant", "content": "a", "tool_calls": [call("f", "{}")]}],
        [PLAIN[0], {"role": "tool", "content": "x"}, PLAIN[1]],
    ],
)
def test_what_follows_or_calls_makes_one_turn_a_trace(messages):
    _, segmentation = read_messages(messages)
    assert segmentation.how == "agent"
    assert len(segmentation) == 1
    assert segmentation.why == "the conversation has 1 assistant turn"


THINKING = [
    {"role": "user", "content": "To Oslo."},
    {"role": "assistant", "content": "Hello.", "name": "Planner"},
    {"role": "assistant", "reasoning_content": "Look first.", "tool_calls": [call("search", "{}")]},
    {"role": "tool", "content": "140"},
    {"role": "assistant", "content": "<think>\nCheap.\n</think>\n\n140 euros."},
    {"role": "assistant", "reasoning": "Nothing more.", "content": ""},
]


@pytest.mark.parametrize(
    ("reasoning", "expected"),
    [
        ("keep", ["Hello.", "Look first.\nsearch({})", "Cheap.\n140 euros.", "Nothing more."]),
        ("only", ["Look first.", "Cheap.", "Nothing more."]),
        ("drop", ["Hello.", "search({})", "140 euros."]),
    ],
)
def test_a_turn_has_a_thought_and_a_speaker(reasoning, expected):
    _, cut = read_messages(THINKING, reasoning=reasoning)
    assert list(cut.texts) == expected
    assert cut.rejoin() == cut.text
    assert all(cut.text[step.start :].startswith(step.text) for step in cut)
    for said in ("Assistant (Planner):\nHello.", "Look first.\nsearch({})\n\nTool:\n140", "Nothing more."):
        assert said in cut.text
    assert [step.speaker for step in cut][:2] == (["Planner", None] if reasoning != "only" else [None, None])


def test_an_action_after_the_only_graded_thought_is_observed():
    _, cut = read_messages(THINKING, reasoning="only")
    assert cut[0].lead == "Assistant (Planner):\nHello.\n\nAssistant:\n"
    assert cut[0].observation == "\nsearch({})\n\nTool:\n140"
    with pytest.raises(InputError, match="a turn with a thought"):
        read_messages(TRACE, reasoning="only")


def test_a_plain_solution_with_its_thought_beside_it():
    messages = [PLAIN[0], {"role": "assistant", "content": "It is 5.", "reasoning_content": "2 + 3\n\nYes."}]
    assert read_messages(messages)[1].texts == ("2 + 3", "Yes.", "It is 5.")
    assert read_messages(messages, reasoning="drop")[1].texts == ("It is 5.",)


def test_a_thought_beside_is_one_whatever_marks_are_in_it():
    """Servers that leave marks in `reasoning_content`, and a thought that speaks of them."""
    message = {
        "role": "assistant",
        "content": "It is 4.",
        "reasoning_content": "<think>\nSo </think> ends it.\n</think>",
    }
    plain = [{"role": "user", "content": "2 + 2?"}, message]
    for trace in (plain, [*plain, {"role": "user", "content": "Thanks."}]):
        assert read_messages(trace, reasoning="drop")[1].texts == ("It is 4.",)
        only = read_messages(trace, reasoning="only")[1]
        assert " ".join(only.texts).split() == ["So", "ends", "it."]


def test_an_empty_thought_is_layout():
    """As Qwen3 writes with thinking switched off."""
    content = "<think>\n\n</think>\n\nIt is 4."
    plain = [{"role": "user", "content": "2 + 2?"}, {"role": "assistant", "content": content}]
    for trace in (plain, [*plain, {"role": "user", "content": "Thanks."}]):
        for reasoning in ("keep", "drop"):
            assert read_messages(trace, reasoning=reasoning)[1].texts == ("It is 4.",)


def test_a_refusal_is_words():
    trace = [{"role": "user", "content": "q"}, {"role": "assistant", "content": None, "refusal": "I refuse."}]
    assert read_messages(trace, how="agent")[1].texts == ("I refuse.",)


def test_bad_ways():
    with pytest.raises(UnknownNameError, match="way to split"):
        read_messages(TRACE, how="turn")
    with pytest.raises(UsageError, match="needs a marker"):
        read_messages(PLAIN, how="marker")
    with pytest.raises(InputError, match="only the marker") as caught:
        read_messages(
            [PLAIN[0], {"role": "assistant", "content": "ки"}], how="marker", marker="ки", where="f:3"
        )
    assert caught.value.where == "f:3"


# --- bad messages ---------------------------------------------------------------------------------------------

USER = {"role": "user", "content": "q"}


@pytest.mark.parametrize(
    ("messages", "field"),
    [
        ("hello", "messages"),
        ({"role": "user"}, "messages"),
        (None, "messages"),
        ([], "messages"),
        ([USER], "messages"),
        ([USER, "hi"], "messages[1]"),
        ([USER, {"content": "x"}], "messages[1].role"),
        ([USER, {"role": "robot", "content": "x"}], "messages[1].role"),
        ([USER, {"role": 3, "content": "x"}], "messages[1].role"),
        ([{"role": "user", "content": 5}], "messages[0].content"),
        (
            [{"role": "user", "content": [{"type": "text", "text": "x"}, {"type": "hologram"}]}],
            "messages[0].content[1].type",
        ),
        ([USER, {"role": "assistant", "content": None}], "messages[1]"),
        ([USER, {"role": "assistant"}], "messages[1]"),
        ([USER, {"role": "assistant", "content": " \n", "tool_calls": []}], "messages[1]"),
        ([{"role": "assistant", "content": "x"}], "messages"),
        ([{"role": "user", "content": " "}, {"role": "assistant", "content": "x"}], "messages"),
        ([USER, {"role": "assistant", "tool_calls": "f()"}], "messages[1].tool_calls[0]"),
        ([USER, {"role": "assistant", "tool_calls": ["f"]}], "messages[1].tool_calls[0]"),
        ([USER, {"role": "assistant", "tool_calls": [{}]}], "messages[1].tool_calls[0].name"),
        ([USER, {"role": "assistant", "tool_calls": [call("", "{}")]}], "messages[1].tool_calls[0].name"),
        ([{**USER, "tool_calls": [call("f", "{}")]}], "messages[0].tool_calls[0]"),
        ([USER, {"role": "assistant", "content": "x", "audio": {"id": "a"}}], "messages[1].audio"),
    ],
)
def test_bad_messages_are_named(messages, field):
    with pytest.raises(InputError) as caught:
        read_messages(messages, where="rows.jsonl:7")
    assert (caught.value.field, caught.value.where) == (field, "rows.jsonl:7")


def test_fields_that_hold_something_else_are_passed_over():
    messages = [
        {"role": "system", "content": []},
        {**USER, "name": 3},
        {"role": "assistant", "content": "x", "reasoning_content": {"a": 1}, "name": ["n"]},
        {"role": "tool", "content": "7", "name": 3},
    ]
    problem, cut = read_messages(messages)
    assert problem.text == "System:\n\n\nUser:\nq"
    assert [(step.text, step.speaker, step.observation) for step in cut] == [("x", None, "\n\nTool:\n7")]


def test_thoughts_in_two_fields_are_one_where_they_say_the_same():
    turn = {"role": "assistant", "content": "x", "reasoning_content": "a"}
    for other, text in (("a\n", "a\nx"), ("b", "a\nb\nx")):
        assert read_messages([USER, {**turn, "reasoning": other}], how="agent")[1].texts == (text,)


def test_fields_that_the_chat_api_does_not_have_stay_in_a_row_of_messages():
    turn = {"role": "assistant", "content": "5", "weight": 1}
    (row,) = read_solutions([{"messages": [USER, turn]}])
    assert row.messages == [USER, turn]


def test_empty_fields_of_servers_are_no_error():
    messages = [
        USER,
        {"role": "assistant", "content": "x", "refusal": None, "function_call": None, "audio": None},
    ]
    assert read_messages(messages)[1].texts == ("x",)


# --- whatever the conversation --------------------------------------------------------------------------------

WORDS = st.text(alphabet="ab \n\t:.$`é", max_size=12)
SPOKEN = WORDS.filter(str.strip)
TURNS = st.one_of(
    SPOKEN.map(lambda s: {"role": "assistant", "content": s}),
    st.tuples(st.one_of(st.none(), WORDS), SPOKEN, WORDS).map(
        lambda t: {"role": "assistant", "content": t[0], "tool_calls": [call(t[1], t[2])]}
    ),
)
ANSWERS = st.one_of(
    WORDS.map(lambda s: {"role": "user", "content": s}),
    st.tuples(WORDS, st.one_of(st.none(), SPOKEN)).map(
        lambda t: {"role": "tool", "content": t[0], "name": t[1]}
    ),
)


@settings(max_examples=150, deadline=None)
@given(
    problem=SPOKEN, turns=st.lists(st.tuples(TURNS, st.lists(ANSWERS, max_size=3)), min_size=1, max_size=4)
)
def test_every_trace_rejoins_and_nothing_is_lost(problem, turns):
    messages = [{"role": "user", "content": problem}]
    for turn, answers in turns:
        messages += [turn, *answers]
    read, segmentation = read_messages(messages, how="agent")
    assert read.text == problem
    assert len(segmentation) == len(turns)
    assert segmentation.rejoin() == segmentation.text
    for step, (turn, answers) in zip(segmentation, turns, strict=True):
        assert step.text == step.text.strip() != ""
        assert step.start is not None
        assert segmentation.text[step.start : step.start + len(step.text)] == step.text
        whole = step.lead + step.text + step.observation + step.tail
        assert (turn["content"] or "") in whole
        for spoken in turn.get("tool_calls", []):
            written = f"{spoken['function']['name']}({spoken['function']['arguments']})"
            assert written.strip() in step.text
        # An observation if and only if something answered, holding each answer in order.
        assert bool(step.observation) == bool(answers)
        at = 0
        for answer in answers:
            at = step.observation.index(answer["content"], at)
            assert answer["role"].capitalize() in step.observation


def test_a_logged_call_of_the_chat_api_is_a_trace():
    asked = [
        {"role": "user", "content": "2 * 3?"},
        {"role": "assistant", "content": "2 * 3 = 7"},
        {"role": "user", "content": "Sure?"},
    ]
    choice = {"index": 0, "message": {"role": "assistant", "content": "2 * 3 = 6"}, "finish_reason": "stop"}
    call = {"request": {"model": "m", "messages": asked}, "response": {"choices": [choice]}, "latency": 3}
    (row,) = read_solutions([call])
    assert (row.solution.problem.text, row.solution.texts) == ("2 * 3?", ("2 * 3 = 7", "2 * 3 = 6"))
    assert (row.solution.source, row.meta) == ("m", {"latency": 3})
    two = {**call, "response": {"choices": [choice, choice]}}
    with pytest.raises(InputError, match=r"row 1, field 'response.choices': expected one choice, found 2"):
        list(read_solutions([two]))


def test_legacy_calls_and_arguments_as_objects_are_tool_calls():
    function = {"name": "search", "arguments": {"to": "OSL"}}
    asked, reply = {"role": "user", "content": "To Oslo."}, {"role": "assistant", "content": "140 euros."}
    result = {"role": "tool", "name": "search", "content": "140"}
    modern = [asked, {"role": "assistant", "tool_calls": [call("search", '{"to": "OSL"}')]}, result, reply]
    legacy = [asked, {"role": "assistant", "function_call": function}, {**result, "role": "function"}, reply]
    objects = [asked, {"role": "assistant", "tool_calls": [{"function": function}]}, result, reply]
    first, *others = (
        one.solution for one in read_solutions([{"messages": m} for m in (modern, legacy, objects)])
    )
    assert first.texts == ('search({"to": "OSL"})', "140 euros.")
    assert others == [first, first]


def test_sharegpt_is_a_conversation():
    turns = [("human", "2 * 3?"), ("gpt", "2 * 3 = 7"), ("human", "Sure?"), ("gpt", "2 * 3 = 6")]
    conversation = [{"from": speaker, "value": text} for speaker, text in turns]
    (row,) = read_solutions([{"id": 7, "conversations": conversation, "level": 1}])
    assert (row.solution.problem.text, row.solution.texts) == ("2 * 3?", ("2 * 3 = 7", "2 * 3 = 6"))
    assert (row.solution.id, row.meta) == ("7", {"level": 1})
    roles = [{"role": speaker, "content": text} for speaker, text in turns]
    (same,) = read_solutions([{"conversations": roles}])
    assert same.solution.texts == row.solution.texts
    conversation.insert(1, {"from": "function_call", "value": "search()"})
    with pytest.raises(
        InputError, match=r"field 'conversations\[1\].value': expected a call as JSON, found a string"
    ):
        list(read_solutions([{"conversations": conversation}]))
