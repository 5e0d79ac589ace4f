"""The pages with several people, tabs and a server that goes away: nothing lost, nothing doubled, disagreements decided."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser

from annotation_site import PATIENCE, Site, chromium, item, person
from stepmark.annotation.project import Project

STEPS = ("We add: $2 + 2 = 4$.", "We double: $8$.", "We halve: $3$.", "So the answer is $3$.")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as one:
        yield one


def test_two_annotators_disagree_and_an_adjudicator_decides(browser: Browser, tmp_path: Path) -> None:
    project = Project(overlap=2, error_types=("arithmetic", "logic"))
    items = [item("agreed", *STEPS), item("disputed", *STEPS)]
    with Site(tmp_path, project, items) as site:
        with person(browser, site) as ann, person(browser, site) as bob:
            ann.join("annotator", "Ann")
            bob.join("annotator", "Bob")
            for one, keys in ((ann, ("j", "j", "x", "t", "1")), (bob, ("e",))):
                one.at("agreed")
                one.keys("j", "j", "x", "s")
                one.at("disputed")
                one.keys(*keys)
                if one is ann:
                    one.keys("m")
                    one.page.keyboard.type("half of 8 is 4")
                    one.keys("Enter")
                one.keys("s")
                one.page.get_by_role("heading", name="All done").wait_for()
        with person(browser, site) as eve:
            eve.join("adjudicator", "Eve")
            page = eve.page
            page.get_by_role("heading", name="Disagreements").wait_for()
            assert page.locator("tbody tr").count() == 1
            page.get_by_role("link", name="Start with the worst").click()
            page.wait_for_selector(".step.here")
            assert eve.here() == 2  # where they differ first
            said = page.locator(".says").all_inner_texts()
            assert sorted(said[:2]) == ["A ✓", "B ✓"]
            assert sorted(text[2:] for text in said[4:6]) == ["✓", "✗ arithmetic"]
            assert "half of 8 is 4" in page.locator("#step-2 .noted").inner_text()
            # Blind: no name of an annotator is in the page.
            assert not re.search("Ann|Bob", page.locator("main").inner_text())
            right = next(text[0] for text in said[4:6] if "✗" in text)
            eve.keys(f"Shift+{right}")
            assert eve.states() == ["right", "right", "wrong", "unjudged"]
            page.get_by_label("Reason").fill("half of 8")
            page.locator("#step-0").click()
            eve.keys("s")
            page.get_by_role("heading", name="Disagreements").wait_for()
            assert page.locator("tbody .chip").inner_text() == "decided"
        _, _, (decision,) = site.everything()
        assert (decision.account, decision.chosen, decision.marks.first_error) == ("Eve", "Ann", 2)
        assert decision.marks.error_types == ((2, "arithmetic"),)
        assert (decision.reason, decision.over) == ("half of 8", ("Ann", "Bob"))


def test_a_server_that_goes_away_and_comes_back_loses_and_doubles_nothing(
    browser: Browser, tmp_path: Path
) -> None:
    project = Project(mode="per_step", allow_neutral=True)
    with (
        Site(tmp_path, project, [item("one", *STEPS), item("two", *STEPS)]) as site,
        person(browser, site) as ann,
    ):
        ann.join("annotator", "Ann")
        ann.at("one")
        page = ann.page
        ann.keys("3", "3")
        ann.saved()
        site.stop()
        ann.keys("1", "2", "z", "u", "m")
        page.keyboard.type("written while offline")
        ann.keys("Enter")
        page.locator(".saved", has_text="5 not sent: offline").wait_for()
        assert ann.states() == ["right", "right", "wrong", "none"]
        kept = page.evaluate(
            "Object.keys(localStorage).filter((key) => key.startsWith('stepmark:unsent:Ann:')).length"
        )
        assert kept == 5
        page.close()  # and the tab with it
        site.start()
        ann.page = page = ann.open_tab()
        page.goto(site.url)
        ann.at("one")
        ann.saved()
        assert ann.states() == ["right", "right", "wrong", "none"]
        log = site.log("one")
        assert [change["kind"] for change in log] == ["rate"] * 4 + ["undo", "unsure", "note"]
        assert len({change["id"] for change in log}) == 7
        ann.keys("s")
        ann.at("two")
        assert site.answers()["one", "Ann"].marks.notes == ((3, "written while offline"),)


def test_two_tabs_on_one_item(browser: Browser, tmp_path: Path) -> None:
    with Site(tmp_path, Project(), [item("one", *STEPS)]) as site, person(browser, site) as ann:
        ann.join("annotator", "Ann")
        ann.at("one")
        first, second = ann.page, ann.open_tab()
        second.goto(site.url)
        second.wait_for_selector(".step.here")
        ann.keys("j", "x")
        ann.saved()
        second.keyboard.press("e")
        second.get_by_text("was changed in another tab or browser").wait_for()
        ann.page = second
        # What is saved is shown; nothing is decided for the annotator.
        assert ann.states() == ["right", "wrong", "unjudged", "unjudged"]
        assert [change.get("step") for change in site.log("one")] == [1]
        second.get_by_role("button", name="Apply my changes to it").click()
        assert ann.states() == ["right"] * 4
        ann.saved()
        assert [change.get("step") for change in site.log("one")] == [1, -1]
        # The other way round: the first tab now keeps what is saved.
        first.keyboard.press("k")
        first.keyboard.press("x")
        first.get_by_role("button", name="Keep the saved version").click()
        ann.page = first
        assert ann.states() == ["right"] * 4
        ann.saved()
        assert len(site.log("one")) == 2


def test_an_admin_invites_uploads_and_exports(browser: Browser, tmp_path: Path) -> None:
    with (
        Site(tmp_path, Project(), [item("zero", *STEPS), item("one", *STEPS)]) as site,
        person(browser, site, accept_downloads=True) as boss,
    ):
        boss.join("admin", "Boss")
        page = boss.page
        boss.at("zero")  # alone, an admin labels
        page.get_by_role("link", name="Progress").click()
        page.get_by_role("heading", name="Progress").wait_for()
        page.get_by_role("link", name="Items and export").click()
        hostile = tmp_path / "<img src=x onerror=alert(1)>.jsonl"
        hostile.write_text(json.dumps({"problem": "p?", "steps": ["a", "b"]}) + "\n")
        page.get_by_label("File").set_input_files(hostile)
        page.get_by_role("button", name="Add").click()
        page.get_by_text("1 item in <img src=x onerror=alert(1)>.jsonl, 1 of them new or changed.").wait_for()
        page.get_by_role("link", name="People").click()
        page.get_by_role("button", name="Invite").click()
        link = page.get_by_label("Invitation link").input_value()
        with person(browser, site) as ann:
            ann.page.goto(link)
            ann.page.get_by_label("Your name").fill("Ann")
            ann.keys("Enter")
            ann.page.get_by_role("button", name="Start").click()
            ann.at("one")
            ann.keys("e", "s")
            ann.page.locator(".step").nth(1).wait_for()
            ann.page.wait_for_url(lambda url: not url.endswith("/one"))
        page.get_by_role("link", name="Progress").click()
        page.get_by_role("cell", name="Ann").wait_for()
        page.goto(site.url)
        page.get_by_role("heading", name="Progress").wait_for()  # with others, an admin sees how far they are
        for name, words in (("Agreement", "Krippendorff"), ("Audit log", "upload"), ("People", "Accounts")):
            page.get_by_role("link", name=name).first.click()
            page.locator("main").get_by_text(words).first.wait_for(timeout=PATIENCE)
        page.get_by_role("link", name="Items and export").click()
        with page.expect_download() as download:
            page.get_by_role("link", name="TRL").click()
        (row,) = map(json.loads, Path(download.value.path()).read_text().splitlines())
        assert row["labels"] == [True] * 4
        assert ann.site.answers()["one", "Ann"].marks.first_error == -1
