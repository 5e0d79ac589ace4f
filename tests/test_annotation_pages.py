"""The annotator's page in headless Chromium: whole items by keyboard, hostile texts, thousands of steps, a phone."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page

from annotation_site import Site, chromium, item, person
from stepmark.annotation.items import Item, Suggestion, read_items
from stepmark.annotation.project import Help, Project
from stepmark.annotation.store import Store
from stepmark.records import Problem, Solution, Step

STEPS = (
    "Let $x$ be the number of apples, so $3x + 5 = 20$.",
    "Then $3x = 15$ and \\[x = \\frac{15}{3} = 5.\\]",
    "The sum of the first five squares is $1 + 4 + 9 + 16 + 25 = 54$.",
    "# Answer\n\n54",
)


def prm800k_row(folder: Path) -> Path:
    """A file of one row in the shape of PRM800K's second phase, not labelled yet."""
    row = {
        "labeler": "none",
        "timestamp": "2022-09-01T00:00:00",
        "generation": 1,
        "is_quality_control_question": False,
        "is_initial_screening_question": False,
        "question": {"problem": "If $3x+5=20$, what is $\\sum_{k=1}^{x} k^2$?", "ground_truth_answer": "55"},
        "label": {
            "steps": [
                {
                    "completions": [{"text": text, "rating": None, "flagged": None}],
                    "human_completion": None,
                    "chosen_completion": 0,
                }
                for text in STEPS
            ],
            "total_time": 0,
            "finish_reason": "solution",
        },
    }
    file = folder / "phase2.jsonl"
    file.write_text(json.dumps(row) + "\n")
    return file


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as one:
        yield one


def test_a_prm800k_item_by_keyboard_in_the_mode_first_error(browser: Browser, folder: Path) -> None:
    project = Project(items=(prm800k_row(folder),), error_types=("arithmetic", "logic"), show_answer=True)
    with Site(folder, project, read_items(project)) as site, person(browser, site) as ann:
        ann.enter("Ann")
        page = ann.page
        page.wait_for_selector(".step.here .katex")
        assert ann.states() == ["none"] * 4
        assert page.locator(".answer").inner_text().endswith("55")
        ann.keys("j", "j", "Enter")
        assert ann.states() == ["right", "right", "wrong", "unjudged"]
        ann.keys("t", "1", "k", "u", "m")
        page.keyboard.type("check x")
        ann.keys("Enter", "e")
        assert ann.states() == ["right"] * 4  # the last key was the wrong one …
        ann.saved()
        page.reload()
        page.wait_for_selector(".step.here")
        assert ann.states() == ["right"] * 4
        ann.keys("z")  # … and is taken back after the reload
        assert ann.states() == ["right", "right", "wrong", "unjudged"]
        assert page.locator("#step-2 .tools").inner_text().splitlines()[-1] == "arithmetic"
        assert page.locator("#step-1 .written").inner_text() == "check x"
        ann.keys("s")
        page.get_by_role("heading", name="All done").wait_for()

        (answer,) = site.answers().values()
        assert (answer.account, answer.marks.first_error, answer.marks.submitted) == ("Ann", 2, True)
        assert answer.marks.ratings == (1, 1, -1, None)
        assert answer.marks.notes == ((1, "check x"),)
        assert answer.marks.error_types == ((2, "arithmetic"),)
        assert answer.marks.unsure == {1}
        assert 0 < answer.seconds < 120


def test_a_prm800k_item_by_keyboard_in_the_mode_per_step(browser: Browser, folder: Path) -> None:
    project = Project(items=(prm800k_row(folder),), mode="per_step", allow_neutral=True)
    with Site(folder, project, read_items(project)) as site, person(browser, site) as ann:
        ann.enter("Ann")
        page = ann.page
        ann.keys("3", "n", "Home", "s")  # submitting too early is refused, and goes to the gap
        page.locator(".toast.bad").wait_for()
        assert ann.here() == 2
        ann.keys("1", "3")
        assert ann.states() == ["right", "neutral", "wrong", "right"]
        ann.saved()
        page.reload()
        page.wait_for_selector(".step.here")
        ann.keys("z", "z", "y")
        assert ann.states() == ["right", "neutral", "wrong", "none"]
        ann.keys("s")
        page.get_by_role("heading", name="All done").wait_for()
        # Once more from the list: submitted items change only when they are opened again.
        page.get_by_role("link", name="My solutions").first.click()
        page.locator("td a").click()
        page.wait_for_selector(".step.here")
        ann.keys("3")
        assert ann.states() == ["right", "neutral", "wrong", "none"]
        ann.keys("r", "Home", "c", "c", "s")
        page.get_by_role("heading", name="All done").wait_for()
        (answer,) = site.answers().values()
        assert answer.marks.ratings == (1, 1, -1, None)


def test_suggestions_are_shown_after_a_first_pass_and_accepted(browser: Browser, folder: Path) -> None:
    said = tuple(Suggestion(judge="a-prm", rating=r, score=s) for r, s in ((1, 0.9), (1, 0.8), (-1, 0.1)))
    items = [item("one", "Yes.", "And yes.", "So no.", suggestions=said)]
    project = Project(mode="per_step", help=Help(show="after"))
    with Site(folder, project, items) as site, person(browser, site) as ann:
        ann.enter("Ann")
        page = ann.page
        ann.keys("3", "1", "1", "s")
        page.locator(".suggestion").nth(2).wait_for()
        ann.keys("r")
        page.locator(".suggestion button:enabled").wait_for()  # on one step they differ
        ann.keys("a", "a")
        ann.saved()
        assert page.locator(".suggestion button").count() == 0
        ann.keys("s")
        page.get_by_role("heading", name="All done").wait_for()
        (answer,) = site.answers().values()
        assert answer.marks.ratings == (1, 1, -1)
        assert answer.first_pass is not None


def test_an_agents_trace(browser: Browser, folder: Path) -> None:
    """Who spoke, the thought, the calls; what tools answered is folded, a user's turn is not; one key marks the decisive error."""
    steps = (
        Step(
            text='Hm.\nI look.\nbash({"cmd": "ls"})',
            observation="\n\nTool (bash):\n" + "a\n" * 41 + "\n\nUser:\na notice",
            speaker="Coder",
        ),
        Step(text="Done.", speaker="Critic"),
    )
    solution = Solution(problem=Problem(text="The test fails. Why?"), steps=steps)
    one = Item(id="t", solution=solution, thoughts=("Hm.", ""))
    with Site(folder, Project(), [one]) as site, person(browser, site) as ann:
        ann.enter("Ann")
        page = ann.page
        first = page.locator("#step-0")
        assert page.locator(".speaker").all_inner_texts() == ["Coder", "Critic"]
        assert first.locator(".thought").inner_text().split() == ["thought", "Hm."]
        assert first.locator(".call").inner_text().split() == ["calls", "bash", "{", '"cmd":', '"ls"', "}"]
        assert first.locator(".part.turn").inner_text().split() == ["User", "a", "notice"]
        assert first.locator(".output .unfold").inner_text() == "Unfold (41 lines)"
        ann.keys("f")
        assert first.locator(".output .unfold").inner_text() == "Fold"
        ann.keys("j", "x")
        assert ann.states() == ["right", "wrong"]
        assert page.locator("#step-1 .mark").inner_text().split() == ["✗", "Decisive", "error"]


HOSTILE = (
    '<script>document.title="owned"</script><img src=x onerror="alert(1)">',
    '<a href="javascript:alert(2)">click</a> <iframe src="https://example.org/"></iframe>',
    r"$\href{javascript:alert(3)}{x}$ and $\includegraphics{https://example.org/x.png}$ $\htmlClass{a}{b}$",
    "```html\n</code></pre><script>alert(4)</script>\n```",
    r"$\def\a{\a\a}\a$ and $\gdef\x{\x}$ \[\rule{9999em}{9999em}\]",
    "hidden \u202etxt.exe and \x1b[31m and 1\u200b2 $x\u200e$ `y\u200f`\n```python\nz = 'a\u2060'\n```",
)


def test_hostile_texts_are_text(browser: Browser, folder: Path) -> None:
    bad = HOSTILE[0]
    said = tuple(Suggestion(judge=bad, rating=-1, reason=bad) for _ in HOSTILE)
    turns = tuple(
        Step(text=f"{bad}\n{t}\nf({{{bad}}})", observation=f"{bad}\n\nTool ({bad}):\n{bad}", speaker=bad)
        for t in HOSTILE
    )
    trace = Solution(problem=Problem(text=bad), steps=turns)
    items = [
        item("plain", *HOSTILE, problem=bad, answer=bad, suggestions=said),
        Item(id=bad, solution=trace, thoughts=(bad,) * len(turns)),
    ]
    project = Project(
        name=bad,
        description=bad,
        error_types=(bad,),
        show_answer=True,
        help=Help(show="before"),
    )
    with Site(folder, project, items) as site, person(browser, site) as ann:
        ann.enter("Ann")
        page = ann.page
        page.wait_for_selector(".step.here")
        assert bad in page.locator("#step-0 .txt").inner_text()
        assert "</code></pre><script>alert(4)</script>" in page.locator("#step-3 pre").inner_text()
        assert "\\u202etxt.exe and \\x1b[31m" in page.locator("#step-5 .txt").inner_text()
        boxes = page.locator("#step-5 .codepoint")
        assert boxes.all_inner_texts() == ["U+200B", "U+200E", "U+200F", "U+2060"]
        assert str(boxes.first.get_attribute("title")).startswith("U+200B")
        seen = boxes.first.bounding_box()
        assert seen is not None
        assert seen["width"] > 10
        ann.keys("x", "t", "1", "m")
        page.keyboard.type(bad)
        ann.keys("Enter", "Shift+M")
        page.keyboard.type(bad)
        ann.keys("Enter", "?", "Escape", "End")
        assert page.locator("#step-0 .written").inner_text() == bad
        ann.saved()
        page.wait_for_timeout(200)  # for what would load
        assert (
            page.evaluate("document.querySelectorAll('main script, main img, main iframe, main a').length")
            == 0
        )
        box = page.locator("#step-4").bounding_box()
        assert box is not None
        assert box["height"] < 1500
        ann.keys("s")
        page.wait_for_selector(".call")
        page.wait_for_timeout(200)
        assert page.title() != "owned"
        assert (
            page.evaluate("document.querySelectorAll('main script, main img, main iframe, main a').length")
            == 0
        )
        page.goto(f"{site.url}/#/mine")
        page.wait_for_selector("table")
        assert page.evaluate("document.querySelectorAll('main script, main img, main iframe').length") == 0


def test_five_thousand_steps_stay_usable(browser: Browser, folder: Path) -> None:
    steps = [
        f"Step {k}: since $a_{{{k}}} = {k}$, the sum is ${k * (k + 1) // 2}$. " * (1 + k % 4)
        for k in range(5000)
    ]
    with Site(folder, Project(mode="per_step"), [item("big", *steps)]) as site, person(browser, site) as ann:
        ann.enter("Ann")
        page = ann.page
        ticks = page.context.new_cdp_session(page)
        ticks.send("Performance.enable", {"timeDomain": "threadTicks"})

        def busy() -> float:
            """Processor seconds of the page's own thread so far: what a busy machine does not lengthen."""
            found = ticks.send("Performance.getMetrics")["metrics"]
            return next(one["value"] for one in found if one["name"] == "TaskDuration")

        page.wait_for_selector(".step.here .katex")
        # Few of the steps are drawn, or nothing would be quick.
        assert page.locator(".marks").count() < 300
        before = busy()
        for key in ("3", "1", "j", "k", "u", "z", "y", "j", "3", "3"):
            ann.keys(key)
        assert (busy() - before) / 10 < 0.3
        ann.keys("End")
        assert ann.here() == 4999
        ann.keys("3", "/")
        page.keyboard.type("2500")
        ann.keys("Enter")
        page.wait_for_selector("#step-2499.here .katex")
        box = page.locator("#step-2499").bounding_box()
        assert box is not None
        assert 0 < box["y"] < page.viewport_size["height"] - box["height"]
        ann.saved()
        (answer,) = site.answers().values()
        assert {k: r for k, r in enumerate(answer.marks.ratings) if r is not None} == {
            0: 1,
            1: -1,
            3: 1,
            4: 1,
            4999: 1,
        }


def outside(page: Page) -> list[str]:
    """Controls that do not stand wholly inside the window."""
    found: list[str] = page.evaluate(
        "[...document.querySelectorAll('button, input, select, a')].filter((one) => { const box = one.getBoundingClientRect();"
        " return box.width && !one.closest('.rail') && (box.left < 0 || box.right > innerWidth); }).map((one) => one.textContent)"
    )
    return found


def test_a_phone_by_touch(browser: Browser, folder: Path) -> None:
    wide = "an unbrokenwordthatisverylongindeed" * 6 + " $" + "+".join("abcdefghij" * 6) + "$"
    code = "```python\n" + "x = " + " + ".join(map(str, range(80))) + "\n```"
    project = Project(mode="per_step", allow_neutral=True, error_types=("slip",))
    phone: dict[str, Any] = {"viewport": {"width": 390, "height": 844}, "has_touch": True, "is_mobile": True}
    with Site(folder, project, [item("one", "Short.", wide, code, problem=wide)]) as site:
        with person(browser, site, **phone) as ann:
            ann.enter("Ann")
            page = ann.page
            page.wait_for_selector(".step.here")
            assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
            page.locator("#step-0 .mark.good").tap()
            page.locator("#step-1 .mark.bad").tap()
            page.locator("#step-1").get_by_role("button", name="Error type").tap()
            page.get_by_role("button", name="1 slip").tap()
            assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
            assert outside(page) == []
            small = page.evaluate(
                "[...document.querySelectorAll('.mark, .do button')].filter((one) => one.offsetHeight && one.offsetHeight < 30).length"
            )
            assert small == 0
            page.get_by_role("button", name="Submit").tap()
            page.get_by_role("heading", name="All done").wait_for()
        (answer,) = site.answers().values()
        assert answer.marks.ratings == (1, -1, None)
        assert answer.marks.error_types == ((1, "slip"),)


def test_a_screen_reader_hears_where_one_is(browser: Browser, folder: Path) -> None:
    with (
        Site(folder, Project(mode="per_step"), [item("one", "A.", "B.")]) as site,
        person(browser, site) as ann,
    ):
        ann.enter("Ann")
        page = ann.page
        assert (
            page.evaluate("document.activeElement.getAttribute('aria-label')")
            == "Step 1 of 2: not judged yet"
        )
        ann.keys("3")
        assert page.locator("[role=status]#said").inner_text() == "Step 1: Correct"
        assert (
            page.evaluate("document.activeElement.getAttribute('aria-label')")
            == "Step 2 of 2: not judged yet"
        )
        ann.saved()
        assert page.locator("#step-0 .mark.good").get_attribute("aria-pressed") == "true"
        # One step's buttons are in the order of the Tab key, not those of all.
        stops = page.evaluate(
            "[...document.querySelectorAll('.step button')].filter((one) => one.tabIndex === 0).length"
        )
        assert stops == page.locator("#step-1 button").count()
        unnamed = page.evaluate(
            "[...document.querySelectorAll('button, input, select, textarea, a')].filter((one) => !(one.textContent.trim() || one.ariaLabel || one.labels?.length)).length"
        )
        assert unnamed == 0
        # Single-letter keys can be turned off (WCAG 2.2, 2.1.4).
        ann.keys("?")
        page.get_by_label("Single-letter keys").select_option("off")
        ann.keys("Escape", "1")
        assert ann.states() == ["right", "none"]


def trace() -> Item:
    steps = (
        Step(text="I look.", observation="\n\nTool (bash):\na.py\n\nUser:\nHurry up.", speaker="Coder"),
        Step(text="Done."),
    )
    return Item(id="t", solution=Solution(problem=Problem(text="Why?"), steps=steps), thoughts=("Hm.", ""))


@pytest.mark.parametrize("width", [1300, 390])
def test_inline_with_trace_the_rating_stands_beside_each_turn_of_the_agent(
    browser: Browser, folder: Path, width: int
) -> None:
    project = Project(mode="per_step", inline_with_trace=True)
    with (
        Site(folder, project, [trace()]) as site,
        person(browser, site, viewport={"width": width, "height": 900}) as ann,
    ):
        ann.enter("Ann")
        page = ann.page
        turns = page.locator(".inline .part > .label").all_inner_texts()
        assert turns == ["thought", "Coder", "bash answers", "User", "agent"]
        boxes = [one.bounding_box() for one in page.locator("#step-0 .turn-itself, #step-0 .after").all()]
        marks = page.locator("#step-0 .marks").bounding_box()
        own, after = boxes
        assert own and after and marks
        assert own["y"] <= marks["y"]
        assert marks["y"] + marks["height"] <= after["y"] + 1, (
            "beside the turn, and not beside what came back"
        )
        if width > 640:
            assert marks["x"] >= own["x"] + own["width"]
            assert marks["y"] < own["y"] + own["height"]
        assert page.locator(".after button").count() == 0
        ann.keys("3", "1")
        assert ann.states() == ["right", "wrong"]


SUMS = ("We add: $2 + 2 = 4$.", "We double: $8$.", "We halve: $3$.", "So the answer is $3$.")


def test_two_annotators_disagree_and_the_admin_decides(browser: Browser, folder: Path) -> None:
    project = Project(overlap=2, error_types=("arithmetic", "logic"))
    with Site(folder, project, [item("agreed", *SUMS), item("disputed", *SUMS)]) as site:
        with person(browser, site) as ann, person(browser, site) as bob:
            ann.enter("Ann")
            bob.enter("Bob")
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
        with person(browser, site, accept_downloads=True) as admin:
            admin.enter("admin")
            page = admin.page
            page.get_by_role("link", name="Disagreements").click()
            page.locator("tbody tr").wait_for()
            assert page.locator("tbody tr").count() == 1
            page.get_by_role("link", name="Start with the worst").click()
            page.wait_for_selector("#step-2.here")  # where they differ first
            said = page.locator(".beside .chip").all_inner_texts()
            assert said[:2] == ["A ✓", "B ✓"]
            assert said[4:6] == ["A ✗ arithmetic", "B ✓"]
            assert "half of 8 is 4" in page.locator("#step-2 .noted").inner_text()
            admin.keys("Shift+A")
            page.locator("#step-2[data-state=wrong]").wait_for()
            page.get_by_label("Reason").fill("half of 8")
            page.locator("#step-0").click()
            admin.keys("s")
            page.get_by_role("heading", name="Disagreements").wait_for()
            assert page.locator("tbody .chip").inner_text() == "decided"
            page.get_by_role("link", name="Project").click()
            page.get_by_label("Name of an annotator").fill("Cid")
            admin.keys("Enter")
            cid = page.get_by_role("button", name="Copy the link of Cid")
            assert cid.get_attribute("data-link") == site.link("cid")
            page.get_by_text("Krippendorff").first.wait_for()
            with page.expect_download() as download:
                page.get_by_role("button", name="trl").click()
            rows = [json.loads(line) for line in Path(download.value.path()).read_text().splitlines()]
            assert [row["labels"] for row in rows] == [[True, True, False]] * 2
        with Store(str(site.file)) as store:
            (decision,) = store.decisions()
        assert (decision.marks.first_error, decision.reason) == (2, "half of 8")
        assert decision.marks.error_types == ((2, "arithmetic"),)


def test_every_page_fits_a_phone(browser: Browser, folder: Path) -> None:
    project = Project(name="A project with a rather long name", overlap=3, error_types=("slip",))
    phone: dict[str, Any] = {"viewport": {"width": 390, "height": 844}, "has_touch": True, "is_mobile": True}
    with Site(folder, project, [item("one", *SUMS), item("two", *SUMS)]) as site:
        for name, key in (("Ann with a long name", "x"), ("Bob with a longer name", "e")):
            with person(browser, site) as one:
                one.enter(name)
                one.keys(key, "s")
                one.at("two")
        with person(browser, site, **phone) as admin:
            admin.enter("admin")
            for page in ("label", "mine", "disputes", "dispute/one", "project"):
                admin.page.goto(f"{site.url}/#/{page}")
                admin.page.wait_for_selector(".page, .step.here")
                admin.page.wait_for_timeout(100)
                assert admin.page.evaluate("document.documentElement.scrollWidth <= innerWidth"), page
                assert outside(admin.page) == [], page


def test_a_server_that_goes_away_and_comes_back_loses_and_doubles_nothing(
    browser: Browser, folder: Path
) -> None:
    project = Project(mode="per_step", allow_neutral=True)
    with (
        Site(folder, project, [item("one", *SUMS), item("two", *SUMS)]) as site,
        person(browser, site) as ann,
    ):
        ann.enter("Ann")
        ann.at("one")
        page = ann.page
        ann.keys("3", "3")
        ann.saved()
        site.stop()
        ann.keys("1", "2", "z", "u", "m")
        page.keyboard.type("written while offline")
        ann.keys("Enter")
        page.locator(".saved", has_text="5 not sent").wait_for()
        # What was clicked has an outline; what is shown as marked is what the server has.
        assert page.locator("#step-2 .mark.bad").get_attribute("class") == "mark bad sent"
        assert page.locator("#step-2").get_attribute("data-state") == "none"
        kept = page.evaluate(
            "Object.keys(localStorage).filter((key) => key.startsWith('stepmark:unsent:Ann:')).length"
        )
        assert kept == 5
        page.close()  # and the tab with it
        site.start()
        ann.page = page = ann.open_tab()
        page.goto(site.url)
        ann.at("one")
        assert ann.states() == ["right", "right", "wrong", "none"]
        log = site.log("one")
        assert [change["kind"] for change in log] == ["rate"] * 4 + ["undo", "unsure", "note"]
        assert len({change["id"] for change in log}) == 7
        ann.keys("s")
        ann.at("two")
        assert site.answers()["one", "Ann"].marks.notes == ((3, "written while offline"),)


def test_a_refused_click_is_named_and_the_others_go_on(browser: Browser, folder: Path) -> None:
    with Site(folder, Project(mode="per_step"), [item("one", *SUMS)]) as site, person(browser, site) as ann:
        ann.enter("Ann")
        page = ann.page
        first, second = page, ann.open_tab()
        second.goto(site.url)
        second.wait_for_selector(".step.here")
        ann.keys("1", "s")
        page.get_by_role("heading", name="All done").wait_for()
        # The other tab does not know that the item is submitted. It says so, and shows what the server has after its next answer.
        second.keyboard.press("3")
        second.locator(".toast.bad").wait_for()
        second.keyboard.press("r")
        second.keyboard.press("3")
        ann.page = second
        assert ann.states() == ["wrong", "right", "none", "none"]
        assert [change["kind"] for change in site.log("one")] == ["rate", "submit", "reopen", "rate"]
        first.close()


def test_a_link_that_is_not_valid_any_more(browser: Browser, folder: Path) -> None:
    with Site(folder, Project(mode="per_step"), [item("one", *SUMS)]) as site, person(browser, site) as ann:
        ann.enter("Ann")
        with Store(str(site.file)) as store:
            store.person("Ann", new=True)
        ann.keys("3")
        ann.page.locator(".saved", has_text="1 not sent").wait_for()
        ann.enter("Ann")  # with the new link: what was kept is sent
        assert ann.states() == ["right", "none", "none", "none"]
        ann.page.goto(f"{site.url}/#{'x' * 32}")
        ann.page.get_by_role("heading", name="not valid").wait_for()


def test_while_the_database_is_away_the_page_tries_again(browser: Browser, folder: Path) -> None:
    with Site(folder, Project(mode="per_step"), [item("one", *SUMS)]) as site, person(browser, site) as ann:
        page, answers = ann.page, []

        def away(route: Any) -> None:
            answers.append(route.request.method)
            if len(answers) % 3:
                route.fulfill(status=503, json={"error": "the database does not answer; try again"})
            else:
                route.continue_()

        page.route("**/api/*", away)
        ann.enter("Ann")
        ann.keys("3", "1")
        assert ann.states() == ["right", "wrong", "none", "none"]
        assert len(site.log("one")) == 2
        assert answers.count("POST") > 2
