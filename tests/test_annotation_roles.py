"""Every route and every role: who is let in, who is not, and what stands in front of all."""

from __future__ import annotations

import httpx
import pytest
from fastapi.routing import APIRoute

from annotation_worlds import BASE, an_item, anyio_backend, gold_item, serving
from stepmark.annotation.accounts import ROLES
from stepmark.annotation.app import ROUTERS

__all__ = ["anyio_backend"]
pytestmark = pytest.mark.anyio
NOBODY, ANNOTATOR, ADJUDICATOR, ADMIN = None, "annotator", "adjudicator", "admin"
TABLE = {
    ("GET", "/"): NOBODY,
    ("GET", "/join"): NOBODY,
    ("GET", "/favicon.ico"): NOBODY,
    ("GET", "/health"): NOBODY,
    ("POST", "/api/join"): NOBODY,
    ("POST", "/api/login"): NOBODY,
    ("POST", "/api/logout"): ANNOTATOR,
    ("GET", "/api/me"): ANNOTATOR,
    ("GET", "/api/next"): ANNOTATOR,
    ("GET", "/api/items/{id:path}"): ANNOTATOR,
    ("GET", "/api/mine"): ANNOTATOR,
    ("POST", "/api/changes"): ANNOTATOR,
    ("GET", "/api/disputes"): ADJUDICATOR,
    ("GET", "/api/disputes/{item:path}"): ADJUDICATOR,
    ("POST", "/api/decisions"): ADJUDICATOR,
    ("GET", "/api/admin/progress"): ADMIN,
    ("GET", "/api/admin/agreement"): ADMIN,
    ("GET", "/api/admin/accounts"): ADMIN,
    ("POST", "/api/admin/accounts"): ADMIN,
    ("POST", "/api/admin/invitations"): ADMIN,
    ("POST", "/api/admin/items"): ADMIN,
    ("GET", "/api/admin/export"): ADMIN,
    ("GET", "/api/admin/audit"): ADMIN,
    ("GET", "/api/admin/backup"): ADMIN,
}
"""What the issue's table of roles says, written by hand."""

API = [route for route, role in TABLE.items() if role is not None]


def filled(path: str) -> str:
    return path.replace("{id:path}", "one").replace("{item:path}", "one").replace("{name:path}", "base.css")


def paths(routes):
    """The path of every route; newer versions of FastAPI keep an included router whole, older ones copy its routes."""
    for route in routes:
        router = getattr(route, "original_router", None)
        yield from [route.path] if router is None else paths(router.routes)


def roles():
    """The role that each route needs, by (method, path)."""
    routes = [route for router in ROUTERS for route in router.routes if isinstance(route, APIRoute)]
    return {
        (method, route.path): route.dependencies[0].dependency.__name__ if route.dependencies else None
        for route in routes
        for method in route.methods
    }


async def test_no_route_is_left_out(tmp_path):
    async with serving(tmp_path / "x.sqlite") as world:
        assert roles() == TABLE
        assert sorted(paths(world.app.routes)) == sorted(
            ["/api/openapi.json", "/static", "/static/katex"] + [path for _, path in TABLE]
        ), "these, the document and the files, and no others"
        assert (await world.stranger().get("/api/openapi.json")).status_code == 401


async def test_who_is_let_in(tmp_path):
    async with serving(tmp_path / "x.sqlite", [an_item("one")]) as world:
        people = {role: await world.join(f"the {role}", role) for role in ROLES}
        nobody = world.stranger()
        # Logging out comes last: it ends the session.
        for method, path in sorted(API, key=lambda route: route[1] == "/api/logout"):
            role = TABLE[method, path]
            answer = await nobody.request(method, filled(path))
            assert answer.status_code == 401, (method, path)
            for has, person in people.items():
                headers = {"x-csrf-token": person.csrf}
                answer = await person.client.request(method, filled(path), headers=headers)
                may = ROLES.index(has) >= ROLES.index(role)
                if may:
                    # Let in: what is missing is a body, or the item was never given to this account.
                    assert answer.status_code not in (401, 500), (method, path, has, answer.text)
                    assert "role" not in answer.json().get("error", "") if answer.status_code == 403 else True
                else:
                    assert answer.status_code == 403, (method, path, has)
                    assert f"expected the role {role}, found {has}" in answer.json()["error"]


async def test_every_post_needs_the_token_of_its_own_session(tmp_path):
    async with serving(tmp_path / "x.sqlite", [an_item("one")]) as world:
        root, other = await world.join("root", "admin"), await world.join("other", "admin")
        for method, path in API:
            if method == "GET":
                continue
            for headers in (
                {},
                {"x-csrf-token": ""},
                {"x-csrf-token": other.csrf},
                {"x-csrf-token": "x" * 43},
            ):
                answer = await root.client.post(path, headers=headers)
                assert answer.status_code == 403 and "X-CSRF-Token" in answer.json()["error"], path
        assert (await root.get("/api/me")).status_code == 200, "nothing of it was done: the session lives"


async def test_posts_of_other_sites_pages(tmp_path):
    async with serving(tmp_path / "x.sqlite") as world:
        ada = await world.join("ada")
        for path in ("/api/join", "/api/login", "/api/changes"):
            for headers in (
                {"origin": "http://evil.example"},
                {"origin": "null"},
                {"sec-fetch-site": "cross-site"},
                {"sec-fetch-site": "same-site"},
            ):
                answer = await ada.post(path, {}, headers=headers)
                assert answer.status_code == 403 and "another site" in answer.json()["error"]
            own = await ada.post(path, {}, headers={"origin": BASE, "sec-fetch-site": "same-origin"})
            assert own.status_code == 400


async def test_a_name_that_was_bent_to_this_address(tmp_path):
    async with serving(tmp_path / "x.sqlite") as world:
        for host in ("evil.example", "evil.example:8000", "127.0.0.1", "127.0.0.1:80", ""):
            for path in ("/", "/api/me", "/health"):
                answer = await world.stranger().get(path, headers={"host": host})
                assert answer.status_code == 400 and "Host" in answer.json()["error"]


async def test_the_headers_of_every_answer(tmp_path):
    async with serving(tmp_path / "x.sqlite", [an_item("one")]) as world:
        ada = await world.join("ada")
        answers: list[httpx.Response] = [
            await ada.get("/"), await ada.get("/api/next"), await ada.get("/api/me"), await ada.get("/nothing"),
            await ada.get("/static/app.js"), await ada.post("/api/changes", {}), await world.stranger().get("/api/me"),
        ]  # fmt: skip
        for answer in answers:
            policy = answer.headers["content-security-policy"]
            assert "default-src 'self'" in policy and "frame-ancestors 'none'" in policy
            assert "unsafe" not in policy
            assert answer.headers["x-content-type-options"] == "nosniff"
            if answer.url.path.startswith("/api/"):
                assert answer.headers["cache-control"] == "no-store"
                assert answer.headers["content-type"] == "application/json"


async def test_what_is_known_to_be_right_never_leaves(tmp_path):
    """Gold marks, roles and sources are in the database and in no answer that an annotator gets."""
    items = [gold_item("quiz", 1, "screening"), gold_item("hidden", 2)]
    async with serving(tmp_path / "x.sqlite", items) as world:
        ada = await world.join("ada")
        text = (await ada.get("/api/next")).text + (await ada.get("/api/items/quiz")).text
        assert "problem quiz" in text
        for word in ("gold", "screening", 'role"', "first_error"):
            assert word not in text
