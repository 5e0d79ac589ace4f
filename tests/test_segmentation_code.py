"""Cutting code: Python by its syntax tree, other languages by layout, Markdown with fences."""

import ast
import textwrap

import pytest

from stepmark.data.steps.splitting import split

PROGRAM = '''\
"""Count words."""

import re
import sys

from collections import Counter
LIMIT = 10
SEPARATOR = """
# not a comment
"""


# How to read a line.
@staticmethod
def words(line,
          lower=True):
    """The words of a line.

    In order.
    """
    # A word has letters only.
    found = re.findall("[a-z]+", line)
    kept = []

    for word in found:
        if lower:
            word = word.lower()
        kept.append(word)
    # Nothing is left out.
    return kept


def tiny(x):
    return x


class Table(dict):
    """A table."""

    size = 3

    def fill(self, path):
        try:
            text = open(path).read()
            lines = text.splitlines()
            counts = Counter(lines)
            self.update(counts)
        except OSError as error:  # no such file
            print(error)
        # nothing went wrong
        else:
            print("read")
        finally:
            print("done")
        return self


if len(sys.argv) > 1:
    if sys.argv[1] == "a":
        print(1)
    elif sys.argv[1] == "b":
        print(2); print(3)
    elif sys.argv[1] == "c":
        for i in range(3):
            while i:
                print(i)
                i -= 1
                if i == 2:
                    print("two")
                    continue
                print("not")
            print("end")
    else:
        print(4)
'''

PIECES = [
    '"""Count words."""',
    "import re\nimport sys\n\nfrom collections import Counter",
    'LIMIT = 10\nSEPARATOR = """\n# not a comment\n"""',
    '# How to read a line.\n@staticmethod\ndef words(line,\n          lower=True):\n    """The words of a line.\n\n    In order.\n    """',
    '    # A word has letters only.\n    found = re.findall("[a-z]+", line)\n    kept = []',
    "    for word in found:\n        if lower:\n            word = word.lower()\n        kept.append(word)",
    "    # Nothing is left out.\n    return kept",
    "def tiny(x):\n    return x",
    'class Table(dict):\n    """A table."""',
    "    size = 3",
    "    def fill(self, path):",
    "        try:\n            text = open(path).read()\n            lines = text.splitlines()\n            counts = Counter(lines)\n            self.update(counts)",
    "        except OSError as error:  # no such file\n            print(error)",
    '        # nothing went wrong\n        else:\n            print("read")',
    '        finally:\n            print("done")',
    "        return self",
    'if len(sys.argv) > 1:\n    if sys.argv[1] == "a":\n        print(1)',
    '    elif sys.argv[1] == "b":\n        print(2); print(3)',
    '    elif sys.argv[1] == "c":\n        for i in range(3):\n            while i:\n                print(i)\n                i -= 1\n                if i == 2:\n                    print("two")\n                    continue\n                print("not")',
    '            print("end")',
    "    else:\n        print(4)",
]


def test_python_is_cut_by_its_syntax_tree():
    segmentation = split(PROGRAM, "code")
    assert list(segmentation.texts) == PIECES
    assert segmentation.why == "asked for"
    assert segmentation.rejoin() == PROGRAM
    # The texts alone, each on its own lines, are still the same program.
    assert ast.dump(ast.parse("\n".join(segmentation.texts))) == ast.dump(ast.parse(PROGRAM))


@pytest.mark.parametrize("end", ["\r\n", "\r"])
def test_line_ends_do_not_move_the_cuts(end):
    text = PROGRAM.replace("\n", end)
    assert list(split(text, "code").texts) == [piece.replace("\n", end) for piece in PIECES]


def test_characters_that_only_some_take_for_line_ends_do_not_move_the_cuts():
    text = 'a = "\u2028\x0b\x85"\n\nb = "é€😀"; c = 1\n\nd = 2\n'
    assert split(text, "code").texts == ('a = "\u2028\x0b\x85"', 'b = "é€😀"; c = 1', "d = 2")


def test_a_comment_stays_in_the_block_that_it_is_indented_with():
    text = "for a in b:\n    c = a\n    # end of the loop\n# after it\nd = 1\n"
    assert split(text, "code").texts == ("for a in b:\n    c = a\n    # end of the loop", "# after it\nd = 1")


def test_a_short_branch_stays_whole():
    text = "a = 1\nif a:\n    b = 1\nelif c:\n    b = 2\nelse:\n    b = 3\nd = 1\n"
    assert split(text, "code").texts == ("a = 1", text[6:-7], "d = 1")


def test_a_match_is_cut_into_its_cases():
    body = "\n".join(f"        x{i} = {i}" for i in range(4))
    text = f"match a:\n    case 1:\n{body}\n    case [b, *_] if b:\n{body}\n    case _:\n        y = 1\n"
    assert split(text, "code").texts == (
        f"match a:\n    case 1:\n{body}",
        f"    case [b, *_] if b:\n{body}",
        "    case _:\n        y = 1",
    )


def test_plain_statements_come_in_groups_of_at_most_eight_lines():
    text = "".join(f"x{i} = {i}\n" for i in range(20))
    assert [len(step.text.splitlines()) for step in split(text, "code")] == [8, 8, 4]


def test_a_class_without_methods_stays_whole():
    text = "class A:\n    x: int\n    y: int = 0\n\n    z: int = 1\n"
    assert len(split(text, "code")) == 1


def test_a_completion_that_begins_inside_a_function():
    body = "for x in xs:\n    if x:\n        total += x\n\nreturn total\n"
    indented = textwrap.indent(body, "    ")
    expected = ("    for x in xs:\n        if x:\n            total += x", "    return total")
    assert split(indented, "code").texts == expected
    assert split("\n\n" + indented, "code").texts == expected
    # The indentation of its first line was stripped.
    stripped = indented.lstrip()
    assert split(stripped, "code").texts == (expected[0].lstrip(), expected[1])
    assert split("\n\n" + stripped, "code").texts == (expected[0].lstrip(), expected[1])
    # And the program may go on outside of the function.
    assert split(indented + "\nassert f([1]) == 1\n", "code").texts == (*expected, "assert f([1]) == 1")


def test_python_that_does_not_parse_falls_back_and_says_so():
    text = "def f(x):\n    y = x +\n    return y\n\ndef g(x):\n    return x"
    segmentation = split(text, "code", language="python")
    assert segmentation.texts == ("def f(x):\n    y = x +\n    return y", "def g(x):\n    return x")
    assert segmentation.why == (
        "asked for; it does not parse as Python (line 2: invalid syntax), so blank lines and indentation decide"
    )
    assert split(text).how == "code"
    assert split(text).why.startswith("most of its lines look like code; it does not parse as Python (line 2")


@pytest.mark.parametrize("text", ["x = '\0'", "x = '\ud800'", "(" * 5000 + ")" * 5000, "-" * 100_000 + "1"])
def test_what_the_parser_chokes_on_is_text_like_any_other(text):
    segmentation = split(text, "code")
    assert segmentation.rejoin() == text
    assert "does not parse as Python" in segmentation.why


def test_code_is_never_run(tmp_path):
    target = tmp_path / "made"
    split(f"open({str(target)!r}, 'w').close()\nimport nothing_like_this\n", "code")
    assert not target.exists()


def test_an_invalid_escape_in_the_code_is_no_warning_of_ours():
    assert split('import re\nx = re.compile("\\d")\n', "code").why == "asked for"


def test_other_languages_by_blank_lines():
    text = "#include <stdio.h>\n\nint f(int n) {\n    return n;\n\n}\n\nint main() {\n    f(1);\n    return 0;\n}\n"
    segmentation = split(text, "code", language="c")
    assert segmentation.texts == (
        "#include <stdio.h>",
        "int f(int n) {\n    return n;\n\n}",
        "int main() {\n    f(1);\n    return 0;\n}",
    )
    assert segmentation.why == "asked for"


def test_other_languages_by_indentation_when_long():
    inner = "    if (a) {\n        b();\n        c();\n    } else {\n        d();\n    }\n"
    text = f"function f() {{\n{inner}{inner}}}\nfunction g() {{\n    return 1;\n}}\n"
    segmentation = split(text, "code", language="javascript")
    assert segmentation.texts == (
        "function f() {\n" + inner.rstrip(),
        inner.rstrip() + "\n}",
        "function g() {\n    return 1;\n}",
    )
    assert split(text).how == "code"
    assert split(text).why.startswith("most of its lines look like code")


def test_markdown_prose_by_paragraph_and_a_short_fence_whole():
    text = "First:\n\n```python\nx = 1\n\ny = 2\n```\nThat is\nall.\n\nThen $a\n= b$."
    assert split(text, "code").texts == (
        "First:",
        "```python\nx = 1\n\ny = 2\n```",
        "That is\nall.",
        "Then $a\n= b$.",
    )


def test_a_long_fence_is_cut_by_the_rules_of_its_language():
    body = "import re\n\n\ndef f(x):\n    y = x\n    z = y\n\n    return z\n\n\nprint(f(1))\n"
    text = f"Code:\n```python\n{body}```  \nDone."
    assert split(text, "code").texts == (
        "Code:",
        "```python\nimport re",
        "def f(x):",
        "    y = x\n    z = y",
        "    return z",
        "print(f(1))\n```  ",
        "Done.",
    )
    broken = text.replace("y = x", "y = = x")
    segmentation = split(broken, "code")
    assert segmentation.texts[1:3] == ("```python\nimport re", "def f(x):\n    y = = x\n    z = y")
    assert segmentation.why == (
        "asked for; fence 1 does not parse as Python (line 5: invalid syntax), so blank lines and indentation decide there"
    )
    shell = text.replace("```python", "```sh")
    assert split(shell, "code").why == "asked for"


def test_a_fence_that_nothing_closes_runs_to_the_end():
    body = "def f(x):\n    y = x\n\n    for i in y:\n        x += i\n        y -= i\n        z = x\n\n    return z\n"
    text = f"Code:\n\n```python\n{body}"
    assert split(text, "code").texts == (
        "Code:",
        "```python\ndef f(x):",
        "    y = x",
        "    for i in y:\n        x += i\n        y -= i\n        z = x",
        "    return z",
    )

    text = "```python\nimport re\n\nimport ast\n\nx = 1"
    assert split(text, "code").texts == (text,)


def test_python_whose_docstring_holds_a_fence_is_python():
    text = 'def f():\n    """Like\n\n    ```\n    f()\n    ```\n    """\n    x = 1\n    return x\n'
    assert split(text, "code").texts == (text[: text.index("    x")].rstrip(), "    x = 1\n    return x")


@pytest.mark.parametrize(
    "text",
    [
        "Let x = 5; then y = 6.\nSo it is 11.",
        "\\begin{align}\nx &= \\frac{1}{2}\\\\\n&= \\sqrt{3}\n\\end{align}",
        "He returns 5 books.\nReturn to the start: if so, it is 5.\nWhile he reads, she waits.",
        "x = 1\ny = x + 2\nz = x * y",
        "for each of 5 days he eats 3, so 15.",
    ],
)
def test_auto_does_not_take_mathematics_for_code(text):
    assert split(text).how != "code"
