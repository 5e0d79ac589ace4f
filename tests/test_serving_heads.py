"""What comes before a body: first lines and headers without end, connections that say nothing, and what is no HTTP."""

from __future__ import annotations

import sys
from contextlib import suppress

import pytest

import serving_site  # noqa: F401  (it skips where fastapi is not installed)
from score_servers import OnPort
from stepmark.models.scripted import ScriptedPRM
from stepmark.serving.settings import ServerSettings
from test_serving_load import Raw, message

MOST = 65_536
START = b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Long: "
CHUNKED = (
    b"POST /v1/score HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
    b'1f\r\n{"problem": "p", "steps": ["a"]\r\n'
)


@pytest.fixture(scope="module")
def server():
    with OnPort(ScriptedPRM(lambda problem, steps: 0.5)) as server:
        yield server


def closed(connection):
    """Whether the server has ended it; what it would say else is no end."""
    try:
        return connection.socket.recv(1) == b""
    except ConnectionResetError:
        return True


def closed_within(connection, seconds):
    connection.socket.settimeout(seconds)
    try:
        return closed(connection)
    except TimeoutError:
        return False
    finally:
        connection.socket.settimeout(30)


def error_of(connection):
    status, headers, answer = connection.answer()
    assert headers["connection"] == "close"
    assert headers["content-type"] == "application/json"
    return status, answer["error"]["type"], answer["error"]["message"]


@pytest.mark.parametrize(
    "begun", [START, b"GET /", b"\r\n", b"x" * 70], ids=["header", "address", "nothing", "no-method"]
)
def test_what_has_no_end_is_refused_as_soon_as_it_is_too_much(server, begun):
    # One byte more than it takes, so that the server has read all that was sent when it closes.
    filler = b"\r\n" * MOST if begun == b"\r\n" else b"a" * MOST
    with Raw(server, (begun + filler)[: MOST + 1]) as connection:
        status, kind, said = error_of(connection)
        if begun.startswith(b"x"):  # that it is none shows before its end
            assert (status, kind) == (400, "invalid_request")
        else:
            assert (status, kind) == (431, "headers_too_large")
            assert "at most 65536 bytes" in said
        assert closed(connection)


def test_headers_that_end_are_taken_up_to_the_limit_and_refused_beyond(server):
    few = START + b"a" * (MOST - 200) + b"\r\n\r\n"
    many = b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n" + b"".join(
        b"X-%05d: abcd\r\n" % i for i in range(6000)
    )
    with Raw(server, few) as connection:
        assert connection.answer()[0] == 200
        # Over the same connection: one request's bytes do not count for the next one's.
        for _ in range(3):
            connection.socket.sendall(few)
            assert connection.answer()[0] == 200
        connection.socket.sendall(message("p", "a"))
        assert connection.answer()[0] == 200
    with Raw(server, many + b"\r\n") as connection:
        assert error_of(connection)[:2] == (431, "headers_too_large")


def test_a_large_body_is_no_header(server):
    with Raw(server, message("p", "a" * 500_000)) as connection:
        status, _, answer = connection.answer()
        assert (status, answer["results"][0]["scores"]) == (200, [0.5])


@pytest.mark.parametrize("more", [b"1;x=", b"0\r\nX-Long: "], ids=["chunk", "trailer"])
def test_what_stands_between_chunks_has_an_end_too(server, more):
    with Raw(server, CHUNKED) as connection:
        # More than is read at a time: what comes with a chunk is not counted.
        with suppress(ConnectionError):
            connection.socket.sendall(more + b"a" * (1 << 20))
        assert closed(connection)
    with Raw(server, CHUNKED + b"1;x=y\r\n}\r\n0\r\nX-Short: a\r\n\r\n") as connection:
        assert connection.answer()[0] == 200


def test_what_is_no_http_has_the_body_of_every_refusal(server):
    with Raw(server, b"\x16\x03\x01 is this TLS?\r\n\r\n") as connection:
        status, kind, said = error_of(connection)
        assert (status, kind) == (400, "invalid_request")
        assert said.startswith("expected a request in HTTP/1.1, found none")


UPGRADE = b"Connection: Upgrade, HTTP2-Settings\r\n%s: h2c\r\nHTTP2-Settings: AAMAAABkAAQAoAAAAAIAAAAA\r\n"


@pytest.mark.parametrize("name", [b"Upgrade", b"upgrade", b"UPGRADE "], ids=repr)
def test_an_offer_to_speak_something_else_is_left_aside_and_the_body_is_read(server, name):
    plain = message("p", "upgrade: a")
    offered = plain.replace(b"\r\n\r\n", b"\r\n" + (UPGRADE % name) + b"\r\n", 1)
    with Raw(server) as connection:
        for sent in (offered, plain, offered):
            connection.socket.sendall(sent)
            status, _, answer = connection.answer()
            if name.endswith(b" "):  # that is no header
                assert (status, answer["error"]["type"]) == (400, "invalid_request")
                return
            assert (status, answer["results"][0]["scores"]) == (200, [0.5])


def test_where_it_is_not_seen_in_time_the_refusal_says_what_to_leave_out(server):
    first = message("p", "a")
    second = first.replace(b"\r\n\r\n", b"\r\n" + (UPGRADE % b"Upgrade") + b"\r\n", 1)
    with Raw(server, first + second) as connection:  # it comes while the first one is served
        told = b""
        while part := connection.socket.recv(1 << 16):
            told += part
        assert told.startswith(b"HTTP/1.1 200 ")
        assert told.count(b"HTTP/1.1 400 ") == 1
        assert b"with the header Upgrade; leave that out" in told


def test_who_says_nothing_or_too_little_is_not_waited_for():
    settings = ServerSettings(body_timeout=1.0)
    with OnPort(ScriptedPRM(lambda problem, steps: 0.5), settings=settings) as server:

        def said_in_time(sent, then=None):
            """What it answers; anew where this machine took so long to send it that the server had closed."""
            for _ in range(20):
                with suppress(OSError, IndexError), Raw(server, sent) as connection:
                    found = connection.answer()
                    if then is None:
                        return found
                    assert found[0] in (200, 404)
                    if closed_within(connection, 1.5):  # else it is kept, for what comes next
                        continue
                    connection.socket.sendall(then)
                    return connection.answer()
            raise AssertionError("it was never in time")

        with Raw(server) as silent:
            assert closed(silent)
        # A body that is not waited for is no beginning of another request.
        large = (
            b"DELETE /v1/sessions/x HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 100000\r\n\r\n"
            + b"a" * 100_000
        )
        assert said_in_time(large, message("p", "a"))[0] == 200
        for found in (said_in_time(START), said_in_time(message("p", "a"), START)):
            status, headers, answer = found
            assert (status, headers["connection"], answer["error"]["type"]) == (408, "close", "slow_body")
            assert "headers did not arrive within 1 s (`body_timeout`)" in answer["error"]["message"]


def test_without_httptools_it_is_h11_which_has_a_bound_of_its_own(monkeypatch):
    from stepmark.serving import listening

    assert callable(listening._protocol(ServerSettings()))
    monkeypatch.setitem(sys.modules, "stepmark.serving.heads", None)
    assert listening._protocol(ServerSettings()) == "h11"
