"""A served annotation project in this process, which can be stopped and started again, and people at its pages in headless Chromium."""

from __future__ import annotations

import contextlib
import json
import shutil
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="needs fastapi: pip install stepmark[annotate]")
pytest.importorskip("playwright", reason="needs playwright, which drives Chromium: pip install playwright")
import uvicorn
from playwright.sync_api import Browser, BrowserContext, Page, sync_playwright

from ports import lasting_port
from stepmark.annotation.app import build_app
from stepmark.annotation.items import Item
from stepmark.annotation.marks import AnnotatorMarks
from stepmark.annotation.project import Project
from stepmark.annotation.store import Store, changes
from stepmark.records import Problem, Solution, Step

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
PATIENCE = 90_000  # milliseconds that a page may take on a busy machine


def item(
    id: str, *steps: str, problem: str = "What is $1+1$?", answer: str | None = None, **more: Any
) -> Item:
    """An item of plain steps."""
    texts = tuple(Step(text=text) for text in steps)
    return Item(id=id, solution=Solution(problem=Problem(text=problem, answer=answer), steps=texts), **more)


class Site:
    """A project with its server. Use it in a `with` statement; `stop` and `start` in between are a server that goes away."""

    def __init__(self, folder: Path, project: Project, items: Sequence[Item]) -> None:
        self.project = project
        self.file = folder / "annotations.sqlite"
        self.port = lasting_port()
        self.url = f"http://127.0.0.1:{self.port}"
        with Store(str(self.file)) as store:
            store.prepare(project, items, self.url)

    def start(self) -> None:
        self._store = Store(str(self.file))
        app = build_app(self._store, self.project)
        config = uvicorn.Config(
            app, host="127.0.0.1", port=self.port, log_level="error", ws="none", timeout_graceful_shutdown=1
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run)
        self._thread.start()
        while not self._server.started:
            assert self._thread.is_alive(), "the server did not start"
            time.sleep(0.02)

    def stop(self) -> None:
        self._server.should_exit = True
        self._thread.join()
        self._store.close()

    def __enter__(self) -> Site:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._thread.is_alive():
            self.stop()

    def link(self, name: str) -> str:
        with Store(str(self.file)) as store:
            return store.link_of(store.person(name))

    def answers(self) -> dict[tuple[str, str], AnnotatorMarks]:
        with Store(str(self.file)) as store:
            return {(one.item, one.account): one for one in store.answers(self.project)}

    def log(self, item: str) -> list[dict[str, Any]]:
        """The changes of an item as they are on disk, oldest first."""
        with Store(str(self.file)) as store, store.reading() as connection:
            rows = connection.execute(
                changes.select().where(changes.c.item == item).order_by(changes.c.version)
            )
            return [{"id": row.id, **json.loads(row.data)} for row in rows]


class Person:
    """Somebody at a page of their own browser. `trouble` collects what must not be: errors, dialogs, requests to elsewhere."""

    def __init__(self, site: Site, context: BrowserContext) -> None:
        self.site, self.context = site, context
        self.trouble: list[str] = []
        self.page = self.open_tab()

    def open_tab(self) -> Page:
        page = self.context.new_page()
        page.set_default_timeout(PATIENCE)
        page.on("pageerror", lambda error: self.trouble.append(f"error: {error}"))
        page.on("dialog", lambda dialog: (self.trouble.append(f"dialog: {dialog.message}"), dialog.dismiss()))
        page.on("request", lambda request: self._asked(request.url))
        page.on("console", lambda said: self._said(said.text))
        return page

    def _asked(self, url: str) -> None:
        if not url.startswith((self.site.url + "/", "data:", "blob:")):
            self.trouble.append(f"request: {url}")

    def _said(self, text: str) -> None:
        if "Content Security Policy" in text:
            self.trouble.append(text)

    def enter(self, name: str) -> None:
        """Open somebody's link."""
        self.page.goto(self.site.link(name))
        self.page.wait_for_selector(".step.here, .page, .nothing h1")

    def keys(self, *keys: str) -> None:
        for key in keys:
            self.page.keyboard.press(key)

    def at(self, item: str) -> None:
        """Wait until an item is open."""
        self.page.wait_for_url(f"**/#/item/{item}")
        self.page.wait_for_selector(".step.here")

    def saved(self) -> None:
        self.page.locator(".saved.good").wait_for()

    def states(self) -> list[str]:
        """What each step shows, once the server has answered."""
        self.saved()
        return self.page.evaluate("[...document.querySelectorAll('.step')].map((one) => one.dataset.state)")

    def here(self) -> int:
        return int(self.page.locator(".step.here").get_attribute("data-step") or -1)


@contextlib.contextmanager
def chromium() -> Iterator[Browser]:
    if CHROMIUM is None:
        pytest.skip("needs Chromium: install the package `chromium`")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        try:
            yield browser
        finally:
            browser.close()


@contextlib.contextmanager
def person(browser: Browser, site: Site, **settings: Any) -> Iterator[Person]:
    """Somebody; at the end there must have been no trouble."""
    context = browser.new_context(**settings)
    try:
        one = Person(site, context)
        yield one
        assert one.trouble == [], one.trouble
    finally:
        context.close()
