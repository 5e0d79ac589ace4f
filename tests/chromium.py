"""A page in headless Chromium, driven through the pipe of its DevTools protocol: keys and clicks as a person gives them."""

from __future__ import annotations

import json
import os
import select
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
_OPTIONS = (
    "--headless", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
)  # fmt: skip
# Chromium reads commands from descriptor 3 and writes to 4.
_LAUNCH = """
import fcntl, os, sys
ends = [fcntl.fcntl(int(end), fcntl.F_DUPFD, 100) for end in sys.argv[1:3]]
for end, place in zip(ends, (3, 4)):
    os.dup2(end, place)
os.execv(sys.argv[3], sys.argv[3:])
"""
_KEYS = {"Space": (" ", "Space"), "Enter": ("Enter", "Enter")}


def _as_root() -> list[str]:
    return ["--no-sandbox"] if os.geteuid() == 0 else []  # as root Chromium does not start with it


def dumped(file: Path, profile: Path) -> tuple[str, str]:
    """A page after Chromium ran its scripts, as HTML; and what Chromium wrote to its log."""
    if CHROMIUM is None:
        pytest.skip("needs Chromium: install the package `chromium`")
    options = ["--virtual-time-budget=5000", "--enable-logging=stderr", "--window-size=1200,1000"]
    done = subprocess.run(
        [
            CHROMIUM,
            *_OPTIONS,
            *_as_root(),
            *options,
            f"--user-data-dir={profile}",
            "--dump-dom",
            file.as_uri(),
        ],
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    return done.stdout, done.stderr


class Browser:
    """One page. Use it in a `with` statement."""

    def __init__(
        self, file: Path, profile: Path, *, size: tuple[int, int] = (1400, 1000), scripts: bool = True
    ) -> None:
        if CHROMIUM is None:
            pytest.skip("needs Chromium: install the package `chromium`")
        to_read, self._to = os.pipe()
        self._from, to_write = os.pipe()
        window = [f"--window-size={size[0]},{size[1]}", f"--user-data-dir={profile}"]
        self._process = subprocess.Popen(
            [
                sys.executable,
                "-c",
                _LAUNCH,
                str(to_read),
                str(to_write),
                CHROMIUM,
                *_OPTIONS,
                "--remote-debugging-pipe",
                *_as_root(),
                *window,
                "about:blank",
            ],
            pass_fds=(to_read, to_write),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_read)
        os.close(to_write)
        self._rest = b""
        self._next = 0
        self.log: list[str] = []
        """What the page and the browser complained of."""
        self._session: str | None = None
        self._heard: set[tuple[str, str]] = set()
        """What happened to which page that was loaded."""
        try:
            self._open(file, scripts=scripts)
        except BaseException:
            self._process.kill()
            self._process.wait()
            raise

    def _open(self, file: Path, *, scripts: bool) -> None:
        targets = self.call("Target.getTargets")["targetInfos"]
        page = next(one["targetId"] for one in targets if one["type"] == "page")
        self._session = self.call("Target.attachToTarget", targetId=page, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")
        if not scripts:
            self.call("Emulation.setScriptExecutionDisabled", value=True)
        self.call("Page.setLifecycleEventsEnabled", enabled=True)
        # Of this page, not of the empty one before it; and it may have been told of before the command was answered.
        loaded = (self.call("Page.navigate", url=file.as_uri())["loaderId"], "load")
        while loaded not in self._heard:
            self._read()

    def call(self, method: str, **parameters: Any) -> Any:
        """A command of the protocol and its result."""
        self._next += 1
        command = {"id": self._next, "method": method, "params": parameters}
        if self._session is not None:
            command["sessionId"] = self._session
        os.write(self._to, json.dumps(command).encode() + b"\0")
        while True:
            found = self._read()
            if found.get("id") == self._next:
                assert "error" not in found, found
                return found["result"]

    def js(self, code: str) -> Any:
        """The value of an expression in the page; a promise is waited for."""
        found = self.call("Runtime.evaluate", expression=code, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def go(self, hash: str) -> None:
        """To another place of the page, until the page has heard of it."""
        self.js(
            f"new Promise((done) => {{ if (location.hash === {hash!r}) return done();"
            f"addEventListener('hashchange', () => done(), {{ once: true }}); location.hash = {hash!r} }})"
        )

    def until(self, code: str) -> None:
        """Wait until an expression in the page is true."""
        end = time.monotonic() + 60
        while not self.js(f"Boolean({code})"):
            assert time.monotonic() < end, code
            time.sleep(0.02)

    def press(self, *keys: str) -> None:
        """Keys by their names ("ArrowLeft", "Space"), each pressed and released."""
        for key in keys:
            name, code = _KEYS.get(key, (key, key))
            for kind in ("keyDown", "keyUp"):
                text = {"text": {"Enter": "\r"}.get(key, name)} if kind == "keyDown" and key in _KEYS else {}
                self.call("Input.dispatchKeyEvent", type=kind, key=name, code=code, **text)

    def type(self, text: str) -> None:
        """Text into the focused field."""
        self.call("Input.insertText", text=text)

    def click(self, what: str) -> None:
        """The middle of the first element of a CSS selector."""
        x, y = self.js(
            f"(() => {{ const one = document.querySelector({what!r}); one.scrollIntoView({{ block: 'center', inline: 'center' }});"
            "const box = one.getBoundingClientRect(); return [box.x + box.width / 2, box.y + box.height / 2] })()"
        )
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def __enter__(self) -> Browser:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._session = None
            os.write(self._to, b'{"id":0,"method":"Browser.close"}\0')
            self._process.wait(30)
        except (OSError, subprocess.TimeoutExpired):
            self._process.kill()
            self._process.wait()
        os.close(self._to)
        os.close(self._from)

    def _read(self, seconds: float = 60) -> dict[str, Any]:
        end = time.monotonic() + seconds
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._from], [], [], max(0.0, end - time.monotonic()))
            assert ready, "Chromium does not answer"
            more = os.read(self._from, 1 << 20)
            assert more, "Chromium ended"
            self._rest += more
        line, _, self._rest = self._rest.partition(b"\0")
        found: dict[str, Any] = json.loads(line)
        if found.get("method") == "Page.lifecycleEvent":
            self._heard.add((found["params"]["loaderId"], found["params"]["name"]))
        if found.get("method") in ("Log.entryAdded", "Runtime.exceptionThrown", "Runtime.consoleAPICalled"):
            self.log.append(json.dumps(found["params"]))
        return found
