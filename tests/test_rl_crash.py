"""`stepmark rl` that dies at each of its writes in turn, with half of it done, and goes on: the files are those of a run that did not die."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("matplotlib")
from stepmark.cli import main  # noqa: E402
from stepmark.rl.actor import Actor  # noqa: E402
from tiny_language_model import tiny_model, tiny_tokenizer  # noqa: E402

pytestmark = pytest.mark.slow
torch.set_num_threads(1)


class Died(BaseException):
    """As a kill: nothing catches it."""


class Moments:
    """Counts the moments at which a run changes what is on the disk, and dies at one of them."""

    def __init__(self) -> None:
        self.seen, self.fatal = 0, 0

    def __call__(self, half: Callable[[], object] | None = None) -> None:
        self.seen += 1
        if self.seen == self.fatal:
            if half is not None:
                half()
            raise Died


class Torn:
    """A file that is appended to."""

    def __init__(self, file: Any, moments: Moments) -> None:
        self.file, self.moments = file, moments

    def __enter__(self) -> Torn:
        return self

    def __exit__(self, *_: object) -> None:
        self.file.close()

    def write(self, text: str) -> None:
        self.moments(lambda: self.file.write(text[: len(text) // 2]))
        self.file.write(text)


@pytest.fixture
def moments(monkeypatch):
    found = Moments()
    replace, rename, over, opened = Path.replace, Path.rename, os.replace, Path.open
    remove, save, keep, write = shutil.rmtree, torch.save, Actor.save, Actor.write

    def begun(folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.json").write_text("{")

    monkeypatch.setattr(Path, "replace", lambda old, new: (found(), replace(old, new))[1])
    monkeypatch.setattr(Path, "rename", lambda old, new: (found(), rename(old, new))[1])
    monkeypatch.setattr(os, "replace", lambda *old, **new: (found(), over(*old, **new))[1])
    monkeypatch.setattr(
        shutil,
        "rmtree",
        lambda what, *more, **how: (found() if Path(what).exists() else None, remove(what, *more, **how))[1],
    )
    monkeypatch.setattr(
        torch, "save", lambda what, to: (found(lambda: Path(to).write_bytes(b"half")), save(what, to))[1]
    )
    monkeypatch.setattr(
        Actor, "save", lambda actor, folder: (found(lambda: begun(folder)), keep(actor, folder))[1]
    )
    monkeypatch.setattr(Actor, "write", lambda actor, asked: (found(), write(actor, asked))[1])
    monkeypatch.setattr(
        Path,
        "open",
        lambda file, mode="r", *more, **how: (
            Torn(opened(file, mode, *more, **how), found) if mode == "a" else opened(file, mode, *more, **how)
        ),
    )
    monkeypatch.setattr("stepmark.rl.report.rl_html", lambda *_arguments, **_more: iter(("",)))
    return found


@pytest.mark.parametrize("rank", [None, 2])
def test_wherever_it_dies_it_goes_on_to_the_same_files(tmp_path, moments, rank) -> None:
    words = tiny_tokenizer()
    tiny_model(words).save_pretrained(tmp_path / "policy")
    words.save_pretrained(tmp_path / "policy")
    problems = tmp_path / "problems.jsonl"
    problems.write_text("".join(json.dumps({"problem": text, "answer": "e"}) + "\n" for text in "abcdef"))

    how = [
        "--credit=process",
        "--prm=rl_models:wordy",
        "--updates=3",
        "--problems=2",
        "--group=3",
        "--max-tokens=6",
        "--prompt=text",
        "--instruction=",
        "--learning-rate=1e-2",
        "--warmup=0",
        "--evaluate-every=1",
        "--save-every=2",
        "--probes=0",
        "--held-out=3",
        "--verifier=text",
    ] + ([] if rank is None else [f"--rank={rank}"])

    def run(out: Path) -> int:
        return main(["rl", str(problems), f"--policy={tmp_path / 'policy'}", f"--out={out}", *how])

    def files(out: Path) -> dict[str, bytes]:
        # The card's title is the folder's name.
        return {
            str(one.relative_to(out)): one.read_bytes().replace(out.name.encode(), b"NAME")
            if one.suffix == ".md"
            else one.read_bytes()
            for one in out.rglob("*")
            if one.is_file()
        }

    assert run(tmp_path / "unbroken") == 0
    wanted, count = files(tmp_path / "unbroken"), moments.seen
    assert count > 20
    for fatal in range(1, count + 1):
        out = tmp_path / f"broken-{fatal}"
        moments.seen, moments.fatal = 0, fatal
        with pytest.raises(Died):
            run(out)
        moments.fatal = 0
        assert run(out) == 0, fatal
        found = files(out)
        assert found.keys() == wanted.keys(), fatal
        assert [name for name in wanted if found[name] != wanted[name]] == [], fatal
        shutil.rmtree(out)
