"""What the page's own files must not hold, and the rule that they share with Python."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from importlib.resources import files
from pathlib import Path

import pytest

from stepmark.words import visible

WEB = Path(str(files("stepmark.annotation") / "web"))
NODE = shutil.which("node")


def test_only_what_the_server_escaped_goes_in_as_html() -> None:
    for file in [*WEB.glob("*.js"), *WEB.glob("*.html"), *WEB.glob("*.css")]:
        text = file.read_text()
        found = re.findall(
            r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|DOMParser", text
        )
        assert found == (["innerHTML"] if file.name == "dom.js" else []), file
        addresses = set(re.findall(r"(?:https?:)?//[\w.-]+\.\w+", text))
        assert addresses <= ({"http://www.w3.org"} if file.suffix == ".svg" else set()), file
        assert " style=" not in text, file


def test_the_page_shows_hidden_characters_as_escapes(tmp_path: Path) -> None:
    if NODE is None:
        pytest.skip("needs node: install the package `nodejs`")
    texts = [
        "a\x1b[31mb",
        "x\u202ey",
        "a\r\nb\rc",
        "tab\tend",
        "\u2066i\u2069",
        "\ufeffx",
        "\x00",
        "🙂 ok",
        "\x85",
    ]
    (tmp_path / "package.json").write_text('{"type": "module"}')
    shutil.copy(WEB / "dom.js", tmp_path / "dom.js")
    (tmp_path / "main.js").write_text(
        "globalThis.IntersectionObserver = class {};\n"
        'const { visible } = await import("./dom.js");\n'
        f"process.stdout.write(JSON.stringify({json.dumps(texts)}.map(visible)));\n"
    )
    done = subprocess.run([NODE, tmp_path / "main.js"], capture_output=True, text=True, check=True)
    assert [text.replace("\\u00", "\\x") for text in json.loads(done.stdout)] == [visible(t) for t in texts]
