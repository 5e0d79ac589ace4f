"""The page's own copies of rules that Python holds: the log's fold, the cutting of texts, the palette. Both sides play the same inputs."""

from __future__ import annotations

import json
import random
import re
import shutil
import subprocess
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from stepmark.annotation.marks import Folding, marks_data, read_change
from stepmark.errors import InputError
from stepmark.show.html import pieces
from stepmark.show.text import visible

WEB = Path(str(files("stepmark.annotation") / "web"))
NODE = shutil.which("node")


def node(tmp_path: Path, modules: list[str], code: str, given: Any) -> Any:
    """The value that a script makes of JSON, with modules of the page imported."""
    if NODE is None:
        pytest.skip("needs node: install the package `nodejs`")
    (tmp_path / "package.json").write_text('{"type": "module"}')
    for name in modules:
        shutil.copy(WEB / name, tmp_path / name)
    script = tmp_path / "main.js"
    script.write_text(
        'import { readFileSync } from "node:fs";\nconst given = JSON.parse(readFileSync(0, "utf8"));\n'
        f"{code}\nprocess.stdout.write(JSON.stringify(made));\n"
    )
    done = subprocess.run(
        [NODE, str(script)], input=json.dumps(given), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def a_log(rng: random.Random) -> dict[str, Any]:
    """A log of changes, many of which cannot be: kinds of the other mode, steps out of range, fields of other kinds."""
    steps = rng.randint(1, 5)
    mode = rng.choice(["first_error", "per_step"])
    changes: list[dict[str, Any]] = []
    for _ in range(rng.randint(1, 40)):
        kind = rng.choice(
            ["first_error", "rate", "rate", "unsure", "note", "error_type", "verify", "undo", "undo", "redo"]
            + (["reset", "submit", "reopen", "reopen"] if rng.random() < 0.4 else [])
        )
        if kind in ("first_error", "rate") and rng.random() < 0.9:
            kind = "first_error" if mode == "first_error" else "rate"
        change: dict[str, Any] = {"kind": kind}
        step = rng.choice([None, *range(-1, steps), *range(steps), steps])
        if kind in ("first_error", "rate", "unsure", "note", "error_type", "verify"):
            change["step"] = step
        if kind == "rate":
            change["rating"] = rng.choice([-1, 0, 1, 1, None])
        if kind in ("unsure", "verify"):
            change["on"] = rng.choice([True, True, False, None])
        if kind in ("first_error", "rate") and rng.random() < 0.3:
            change["on"] = rng.choice([True, False])
        if kind in ("note", "error_type"):
            change["text"] = rng.choice(["", None, "slip", "gap"])
        if rng.random() < 0.04:
            change[rng.choice(["step", "rating", "text", "on"])] = rng.choice([None, 0])
        if change.get("on") == 0 and change["on"] is not False:
            change["on"] = False
        if change.get("text") == 0:
            change["text"] = "0"
        changes.append(change)
    return {"mode": mode, "steps": steps, "allow_neutral": rng.random() < 0.5, "changes": changes}


def folded(log: dict[str, Any]) -> list[Any]:
    """For each change: the marks after it and what can be taken back, or None where it is refused."""
    folding = Folding(log["mode"], log["steps"], allow_neutral=log["allow_neutral"])
    made: list[Any] = []
    for data in log["changes"]:
        try:
            folding.take(read_change(data))
        except InputError:
            made.append(None)
        else:
            marks = folding.marks()
            state = {"undo": folding.can_undo, "redo": folding.can_redo, "complete": marks.complete}
            made.append({**marks_data(marks), **state, "version": folding.version})
    return made


def test_the_page_folds_random_logs_as_python_does(tmp_path: Path) -> None:
    rng = random.Random(7)
    logs = [a_log(rng) for _ in range(500)]
    code = """
import { Folding, Refused } from "./fold.js";
const made = given.map(({ mode, steps, allow_neutral, changes }) => {
  const folding = new Folding(mode, steps, { allowNeutral: allow_neutral });
  return changes.map((change) => {
    try { folding.take(change); } catch (error) { if (error instanceof Refused) return null; throw error; }
    const { canUndo: undo, canRedo: redo, version } = folding;
    return { ...folding.data(), undo, redo, complete: folding.missing === null, version };
  });
});"""
    page = node(tmp_path, ["fold.js"], code, logs)
    taken = refused = 0
    for log, theirs in zip(logs, page, strict=True):
        ours = folded(log)
        assert theirs == ours, log
        taken += sum(one is not None for one in ours)
        refused += sum(one is None for one in ours)
    # Both kinds must have been played in numbers, or the comparison says nothing.
    assert taken > 2000
    assert refused > 600


TEXTS = [
    "It costs $5 and $6.",
    "So $x = 5$, and $$y = 2$$ or \\[z\\] or \\(w\\).",
    "an unclosed $x and \\(y and ```",
    "\\begin{align*} a &= b \\\\ c &= d \\end{align*} done",
    "```python\nprint('$1$')\n```\nthen `a $b$` and ``c`d``",
    "~~~\nno end",
    "[asy] draw((0,0)); [/asy] and \\$5, \\\\ and \\`",
    "it costs 5$. Then 6$",
    "the $ sign of two words here $ is prose",
    "$\\text{two words}$ is mathematics",
    "$a\n\nb$ is not",
    "  ```js\n  let a = 1;\n  ```  \n",
    "$$$$ and $$ $$",
    "é$x$ ñ5$.$",
    "",
]


def test_the_page_cuts_texts_as_python_does(tmp_path: Path) -> None:
    rng = random.Random(3)
    bits = [
        "$",
        "$$",
        "\\(",
        "\\)",
        "\\[",
        "\\]",
        "`",
        "```",
        "\n",
        "\n\n",
        " ",
        "x",
        "5",
        "and so on",
        "\\$",
        "\\\\",
        ".",
    ]
    bits += ["\\begin{cases}", "\\end{cases}", "[asy]", "[/asy]", "~~~", "py", "é"]
    texts = TEXTS + ["".join(rng.choices(bits, k=rng.randint(1, 14))) for _ in range(2000)]
    code = """
import { pieces } from "./pieces.js";
const made = given.map((text) => pieces(text).map(({ kind, text, source, language }) => [kind, text, source, language ?? ""]));"""
    page = node(tmp_path, ["pieces.js"], code, texts)
    for text, theirs in zip(texts, page, strict=True):
        assert theirs == [[p.kind, p.text, p.source, p.language] for p in pieces(text)], text
        assert "".join(piece[2] for piece in theirs) == text


def test_the_page_shows_hidden_characters_as_python_does(tmp_path: Path) -> None:
    texts = [
        "a\x1b[31mb",
        "x\u202ey",
        "a\r\nb\rc",
        "tab\tend",
        "\u2066i\u2069",
        "\ufeffx",
        "\x00",
        "emoji 🙂 ok",
        "\x85",
    ]
    code = 'import { visible } from "./dom.js";\nconst made = given.map(visible);'
    assert node(tmp_path, ["dom.js"], code, texts) == [visible(text) for text in texts]


def test_no_page_file_puts_text_in_as_html_or_names_another_place() -> None:
    for file in [*WEB.glob("*.js"), *WEB.glob("*.html"), *WEB.glob("*.css")]:
        text = file.read_text()
        assert not re.search(
            r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|DOMParser", text
        ), file
        addresses = set(re.findall(r"(?:https?:)?//[\w.-]+\.\w+", text))
        assert addresses <= {"//www.w3.org"} | ({"http://www.w3.org"} if file.suffix == ".svg" else set()), (
            file
        )
        assert len(text.splitlines()) < 400, file
        assert " style=" not in text, file


OUTBOX = """
import { AsyncLocalStorage } from "node:async_hooks";
import { Outbox } from "./outbox.js";
const inTab = new AsyncLocalStorage(); // which tab a request comes from
// A browser and a server of few lines; time passes at once.
globalThis.addEventListener = () => {};
globalThis.document = { addEventListener() {}, hidden: false };
globalThis.setTimeout = (run) => setImmediate(run);
globalThis.clearTimeout = (timer) => clearImmediate(timer);
function run({ seed, items, tabs }) {
  let state = seed;
  const random = () => (state = (state * 48271) % 2147483647) / 2147483647;
  const kept = new Map();
  const storage = {
    get length() { return kept.size; },
    key: (at) => [...kept.keys()][at],
    getItem: (key) => kept.get(key) ?? null,
    setItem: (key, value) => kept.set(key, value),
    removeItem: (key) => kept.delete(key),
  };
  const logs = Object.fromEntries(items.map((item) => [item, []]));
  let asked = 0;
  let open = -1; // the tab that is not closed
  const take = ({ item, id, version, change }) => {
    const at = logs[item].findIndex((one) => one.id === id);
    if (at >= 0) return [200, { version: at + 1 }];
    if (version !== logs[item].length) return [409, { error: "version" }];
    logs[item].push({ id, change });
    return [200, { version: logs[item].length }];
  };
  const answer = (status, data, headers = {}) => ({
    ok: status < 300, status, headers: new Headers({ "Content-Type": "application/json", ...headers }), json: async () => data });
  const never = new Promise(() => {});
  globalThis.fetch = async (path, { body }) => {
    const made = await served(body).catch((error) => ({ error }));
    if (inTab.getStore() !== open) return never;
    if (made.error) throw made.error;
    return made;
  };
  async function served(body) {
    await new Promise((done) => setImmediate(done));
    const fate = asked++ < 400 ? random() : 1;
    if (fate < 0.15) throw new TypeError("network");
    if (fate < 0.22) return answer(429, { error: "too often" }, { "Retry-After": "1" });
    if (fate < 0.27) return answer(503, { error: "not stored" });
    if (fate < 0.32) return answer(401, { error: "no session" });
    const data = JSON.parse(body);
    // Several: some may be stored and the rest refused at random, as by a server that dies half-way.
    const made = data.changes ? data.changes.map((one) => { const [status, said] = take(one); return status < 300 ? said : { ...said, status }; }) : take(data);
    if (fate < 0.5) throw new TypeError("the answer is lost");
    return data.changes ? answer(200, { results: made }) : answer(...made);
  }
  const clashes = [];
  const on = { state() {}, acknowledged() {}, clash: (item) => clashes.push(item), refused: (entry, failure) => { throw failure; }, login: async () => {} };
  return (async () => {
    const wanted = Object.fromEntries(items.map((item) => [item, []]));
    for (let tab = 0; tab < tabs; tab++) {
      open = tab;
      // A tab that was closed has left what it could not send, or does not know to be stored.
      await inTab.run(tab, async () => {
        const box = new Outbox("ann", on, storage);
        const changes = 3 + Math.floor(random() * 150);
        for (let at = 0; at < changes; at++) {
          const item = items[Math.floor(random() * items.length)];
          wanted[item].push(at + 1000 * tab);
          box.add(item, wanted[item].length - 1, { kind: "note", step: null, text: String(at + 1000 * tab) }, 0);
          if (random() < 0.3) await new Promise((done) => setImmediate(done));
        }
        if (tab < tabs - 1) return;
        while (box.size) await new Promise((done) => setImmediate(done));
      });
    }
    const found = Object.fromEntries(items.map((item) => [item, logs[item].map(({ change }) => Number(change.text))]));
    return { wanted, found, left: kept.size, clashes: clashes.length };
  })();
}
const made = [];
for (const one of given) made.push(await run(one));"""


def test_whatever_fails_on_the_way_every_change_is_stored_once_and_in_order(tmp_path: Path) -> None:
    plays = [{"seed": 17 + k, "items": ["a", "b", "c"][: 1 + k % 3], "tabs": 1 + k % 3} for k in range(40)]
    for one in node(tmp_path, ["outbox.js", "api.js"], OUTBOX, plays):
        assert one["found"] == one["wanted"]
        assert (one["left"], one["clashes"]) == (0, 0)
