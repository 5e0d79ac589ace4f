"""The documentation of a server as one page of our own: made from its OpenAPI document, light and dark, and without a network."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from html import escape
from typing import Any

Data = Mapping[str, Any]

_STYLE = """
:root { color-scheme: light dark; --back: #fff; --text: #1b1f24; --soft: #57606a; --line: #d8dee4; --code: #f6f8fa; --link: #0a5cad; }
@media (prefers-color-scheme: dark) {
  :root { --back: #14171a; --text: #dfe3e8; --soft: #9aa4ae; --line: #30363d; --code: #1d2126; --link: #6cb2f5; }
}
body { margin: 0 auto; max-width: 58rem; padding: 1.5rem; background: var(--back); color: var(--text); font: 16px/1.5 system-ui, sans-serif; }
h1 { margin: 0 0 .3rem; } h2 { margin: 2.5rem 0 .3rem; padding-top: 1rem; border-top: 1px solid var(--line); } h3 { margin: 1.2rem 0 .3rem; font-size: 1rem; }
code, pre { font: 14px/1.45 ui-monospace, monospace; }
pre { position: relative; margin: .3rem 0; padding: .7rem; overflow: auto; background: var(--code); border: 1px solid var(--line); border-radius: 6px; }
p, dd { overflow-wrap: anywhere; } a { color: var(--link); } nav { columns: 2; } nav a { display: block; }
table { border-collapse: collapse; width: 100%; } td, th { padding: .3rem .6rem .3rem 0; border-bottom: 1px solid var(--line); text-align: left; vertical-align: top; }
.soft { color: var(--soft); } .method { display: inline-block; min-width: 5rem; font-weight: 600; } h2 .method { min-width: 0; margin-right: .6rem; } h2 code { font-size: inherit; }
caption { padding: .8rem 0 .2rem; text-align: left; }
.copy { position: relative; } button { position: absolute; top: .4rem; right: .4rem; z-index: 1; font: 13px system-ui, sans-serif; color: var(--text); background: var(--back); border: 1px solid var(--line); border-radius: 4px; cursor: pointer; }
button:focus-visible, a:focus-visible { outline: 2px solid var(--link); outline-offset: 2px; }
"""
_SCRIPT = """
for (const pre of document.querySelectorAll(".copy pre")) {
  if (!navigator.clipboard) continue;
  const button = document.createElement("button");
  button.textContent = "Copy";
  button.addEventListener("click", async () => {
    await navigator.clipboard.writeText(pre.textContent);
    button.textContent = "Copied";
    setTimeout(() => { button.textContent = "Copy"; }, 1500);
  });
  pre.before(button);
}
"""


def _hash(text: str) -> str:
    return "'sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() + "'"


CSP = (
    f"default-src 'none'; style-src {_hash(_STYLE)}; script-src {_hash(_SCRIPT)}; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'"
)
"""What the page may load: nothing but its own two blocks."""


def page(document: Data, address: str) -> str:
    """The page.

    Args:
        document: the OpenAPI document; its examples become lines to copy.
        address: where the server was reached, for those lines.
    """
    return "".join(_parts(document, address))


def _parts(document: Data, address: str) -> Iterator[str]:
    title, version = escape(document["info"]["title"]), escape(document["info"]["version"])
    yield f"<!DOCTYPE html><html lang=en><meta charset=utf-8><title>{title}</title>"
    yield f'<meta name=viewport content="width=device-width, initial-scale=1"><style>{_STYLE}</style>'
    yield f"<h1>{title}</h1><p class=soft>version {version}; as a document for programs: <a href=/openapi.json>/openapi.json</a></p>"
    for paragraph in document["info"]["description"].split("\n\n"):
        yield f"<p>{_prose(paragraph)}</p>"
    keyed = bool(document.get("security"))
    if keyed:
        yield "<p>Each request needs a key: <code>Authorization: Bearer KEY</code>. The examples take it from the variable STEPMARK_API_KEY.</p>"
    routes = [
        (path, method, route)
        for path, methods in document["paths"].items()
        for method, route in methods.items()
    ]
    yield "<nav>"
    for path, method, route in routes:
        name = f"<span class=method>{method.upper()}</span><code>{escape(path)}</code>"
        yield f'<a href="#{_anchor(method, path)}">{name} {escape(route.get("summary", ""))}</a>'
    yield "</nav>"
    for path, method, route in routes:
        yield from _route(document, address, path, method, route, keyed)
    yield f"<script>{_SCRIPT}</script></html>"


def _route(document: Data, address: str, path: str, method: str, route: Data, keyed: bool) -> Iterator[str]:
    yield f'<h2 id="{_anchor(method, path)}"><span class=method>{method.upper()}</span><code>{escape(path)}</code></h2>'
    for paragraph in route.get("description", "").split("\n\n"):
        yield f"<p>{_prose(paragraph)}</p>"
    content = route.get("requestBody", {}).get("content", {}).get("application/json", {})
    examples = [one["value"] for one in content.get("examples", {}).values()]
    if content:
        yield "<h3>Body</h3>"
        yield from _fields(document, content["schema"])
    yield "<h3>Try it</h3>"
    for example in examples or [None]:
        yield _copyable(curl(address, path, method, example, keyed=keyed))
    yield _copyable(python(address, path, method, examples[0] if examples else None, keyed=keyed))
    responses = route.get("responses", {})
    answered = responses.get("200", {}).get("content", {}).get("application/json", {}).get("schema")
    if answered:
        yield "<h3>Answer</h3>"
        for example in _resolved(document, answered).get("examples", []):
            yield f"<pre>{escape(_json(example))}</pre>"
        yield from _fields(document, answered)
    yield "<h3>When it fails</h3><table>"
    for status, response in sorted(responses.items()):
        if status != "200":
            yield f"<tr><td>{escape(status)}<td>{_prose(response.get('description', ''))}"
    yield "</table>"


def curl(address: str, path: str, method: str, body: Any, *, keyed: bool = False) -> str:
    """A line for a shell."""
    plain = method.upper() == ("GET" if body is None else "POST")
    words = [f"curl {'' if plain else f'-X {method.upper()} '}{_quoted(address + path)}"]
    if keyed:
        words.append('-H "Authorization: Bearer $STEPMARK_API_KEY"')
    if body is not None:
        words += [
            "-H 'Content-Type: application/json'",
            f"-d {_quoted(json.dumps(body, ensure_ascii=False))}",
        ]
    return " \\\n  ".join(words)


def python(address: str, path: str, method: str, body: Any, *, keyed: bool = False) -> str:
    """The same for Python, with httpx."""
    lines = ["import httpx", ""]
    more = ""
    if keyed:
        lines[:1] = ["import os", "", "import httpx"]
        more = ', headers={"Authorization": f"Bearer {os.environ[\'STEPMARK_API_KEY\']}"}'
    if body is not None:
        lines.append(f"body = {body!r}")
        more = f", json=body{more}"
    lines.append(f"print(httpx.{method.lower()}({address + path!r}{more}).json())")
    if path == "/metrics":
        lines[-1] = lines[-1].replace(".json())", ".text)")
    return "\n".join(lines)


def _fields(document: Data, schema: Data) -> Iterator[str]:
    waiting, done = [_name(schema)], set[str]()
    while waiting:
        name = waiting.pop(0)
        if name is None or name in done:
            continue
        done.add(name)
        one = document["components"]["schemas"][name]
        yield f"<table><caption class=soft><code>{escape(name)}</code>: {_prose(one.get('description', ''))}</caption>"
        for field, what in one.get("properties", {}).items():
            must = "needed" if field in one.get("required", ()) else ""
            waiting += _names(what)
            yield f"<tr><td><code>{escape(field)}</code><td class=soft>{escape(_kind(what))} {must}<td>{_prose(what.get('description', ''))}"
        yield "</table>"


def _kind(schema: Data) -> str:
    """What a field holds, in a few words."""
    if "anyOf" in schema:
        kinds = list(dict.fromkeys(_kind(one) for one in schema["anyOf"]))
        return " or ".join(kind for kind in kinds if kind != "null") + (", null" if "null" in kinds else "")
    if "$ref" in schema:
        return str(_name(schema))
    if "const" in schema:
        return json.dumps(schema["const"])
    if "enum" in schema:
        return " or ".join(json.dumps(one) for one in schema["enum"])
    if schema.get("type") == "array":
        return f"list of {_kind(schema.get('items', {}))}"
    kind = str(schema.get("type", "anything"))
    return {"integer": "whole number"}.get(kind, kind)


def _names(schema: Any) -> list[str | None]:
    if isinstance(schema, Mapping):
        found = [_name(schema)] if "$ref" in schema else []
        return found + [name for value in schema.values() for name in _names(value)]
    return [name for value in schema for name in _names(value)] if isinstance(schema, list) else []


def _name(schema: Data) -> str | None:
    reference = schema.get("$ref")
    return None if reference is None else str(reference).rpartition("/")[2]


def _resolved(document: Data, schema: Data) -> Data:
    name = _name(schema)
    found: Data = schema if name is None else document["components"]["schemas"][name]
    return found


def _anchor(method: str, path: str) -> str:
    return method + "".join(c if c.isalnum() else "-" for c in path)


def _prose(text: str) -> str:
    """Text whose `words` in backticks are code."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(text))


def _copyable(text: str) -> str:
    return f"<div class=copy><pre>{escape(text)}</pre></div>"


def _json(data: Any) -> str:
    return json.dumps(data, ensure_ascii=False, indent=2)


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"
