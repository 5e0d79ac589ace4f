"""A page of a file in headless Chromium, driven with keys and clicks as a person gives them."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
PATIENCE = 60_000  # milliseconds
_FLAGS = ("--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update")


def dumped(file: Path, profile: Path) -> tuple[str, str]:
    """A page after Chromium ran its scripts, as HTML; and what Chromium wrote to its log."""
    if CHROMIUM is None:
        pytest.skip("needs Chromium: install the package `chromium`")
    options = ["--headless", "--virtual-time-budget=5000", "--enable-logging=stderr"]
    options += ["--window-size=1200,1000", f"--user-data-dir={profile}", "--dump-dom", file.as_uri()]
    words = [CHROMIUM, *_FLAGS, *options]
    done = subprocess.run(words, capture_output=True, text=True, timeout=300, check=True)
    return done.stdout, done.stderr


class _Driver:
    """Playwright, started for the first browser and stopped after the last: a process has one at a time."""

    running: Any = None
    users = 0

    @classmethod
    def start(cls) -> Any:
        if cls.users == 0:
            sync_api = pytest.importorskip("playwright.sync_api", reason="needs playwright")
            cls.running = sync_api.sync_playwright().start()
        cls.users += 1
        return cls.running

    @classmethod
    def stop(cls) -> None:
        cls.users -= 1
        if cls.users == 0:
            cls.running.stop()


class Browser:
    """One page. Use it in a `with` statement."""

    def __init__(
        self, file: Path, profile: Path, *, size: tuple[int, int] = (1400, 1000), scripts: bool = True
    ) -> None:
        if CHROMIUM is None:
            pytest.skip("needs Chromium: install the package `chromium`")
        self._context = _Driver.start().chromium.launch_persistent_context(
            profile,
            executable_path=CHROMIUM,
            args=list(_FLAGS),
            viewport={"width": size[0], "height": size[1]},
            java_script_enabled=scripts,
        )
        self.page = self._context.new_page()
        self.log: list[str] = []
        """Errors and messages of the page."""
        self.page.on("console", lambda message: self.log.append(message.text))
        self.page.on("pageerror", lambda error: self.log.append(str(error)))
        self.page.goto(file.as_uri())

    def call(self, method: str, **parameters: Any) -> Any:
        """A command of the DevTools protocol and its result."""
        return self._context.new_cdp_session(self.page).send(method, parameters)

    def js(self, code: str) -> Any:
        """The value of an expression in the page; a promise is awaited."""
        return self.page.evaluate(code)

    def go(self, hash: str) -> None:
        """Set the page's fragment, and wait until the page has received the event."""
        self.js(
            f"new Promise((done) => {{ if (location.hash === {hash!r}) return done();"
            f"addEventListener('hashchange', () => done(), {{ once: true }}); location.hash = {hash!r} }})"
        )

    def until(self, code: str) -> None:
        """Wait until an expression in the page is true."""
        self.page.wait_for_function(f"() => Boolean({code})", timeout=PATIENCE)

    def press(self, *keys: str) -> None:
        """Press and release keys by their names ("ArrowLeft", "Space")."""
        for key in keys:
            self.page.keyboard.press(key)

    def type(self, text: str) -> None:
        """Insert text into the focused field."""
        self.page.keyboard.insert_text(text)

    def click(self, selector: str) -> None:
        """Click the middle of the first element of a CSS selector."""
        x, y = self.js(
            f"(() => {{ const one = document.querySelector({selector!r}); one.scrollIntoView({{ block: 'center', inline: 'center' }});"
            "const box = one.getBoundingClientRect(); return [box.x + box.width / 2, box.y + box.height / 2] })()"
        )
        self.page.mouse.click(x, y)

    def __enter__(self) -> Browser:
        return self

    def __exit__(self, *_: object) -> None:
        self._context.close()
        _Driver.stop()
