"""The server against its own OpenAPI document: requests that schemathesis draws from it, right and wrong ones, over a port.

An answer must be one that the document names, in its status, its headers and its body; no request may make the server fail; a request that the
document forbids must be refused. (The reverse is not asked: what a PRM can read, the document cannot say.)
"""

from __future__ import annotations

import pytest

import serving_site  # isort: skip  (it skips where fastapi is not installed)

pytest.importorskip("schemathesis", reason="needs schemathesis: pip install stepmark[dev]")

import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
    unsupported_method,
)

from score_servers import OnPort
from stepmark import load_prm
from stepmark.models.scripted import ScriptedPRM
from stepmark.serving.app import build_app
from stepmark.serving.service import Service

SCHEMA = schemathesis.openapi.from_dict(build_app(Service(serving_site.prm())).openapi())
# A secret of a header would be hidden where a failure is shown; these fields are none.
SCHEMA.config.output.sanitization.update(enabled=False)
AS_DOCUMENTED = [
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
    unsupported_method,
]


def few(examples):
    return settings(
        max_examples=examples,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        phases=(Phase.explicit, Phase.generate),
        derandomize=examples < 50,
    )


def words(problem: str, steps: tuple[str, ...]) -> float:
    """Knows an answer to everything: 1 over the characters of a step."""
    return 1 / len(steps[-1])


@pytest.fixture(scope="module")
def scripted():
    with OnPort(ScriptedPRM(words, name="words")) as server:
        yield server


@pytest.fixture(scope="module")
def real(zoo):
    """With a tokenizer, markers, a memory, and a head for /pooling."""
    with OnPort(load_prm(str(zoo["token-classification"].folder), dtype="float32", device="cpu")) as server:
        yield server


def asked_for_it(case) -> bool:
    """Whether the request may be answered with 504: it gives the server no time."""
    timeout = case.body.get("timeout") if isinstance(case.body, dict) else None
    return isinstance(timeout, int | float) and timeout < 10


def hold(case, server, *more):
    """Send it, and hold the answer against the document."""
    answer = case.call(base_url=server.url)
    checks = [*AS_DOCUMENTED, *more]
    if not (answer.status_code == 504 and asked_for_it(case)):
        checks.append(not_a_server_error)
    case.validate_response(answer, checks=checks)
    return answer


@SCHEMA.parametrize()
@few(4)
def test_answers_are_as_documented(case, scripted):
    hold(case, scripted, negative_data_rejection)


@pytest.mark.slow
@SCHEMA.parametrize()
@few(150)
def test_many_answers_are_as_documented(case, real):
    hold(case, real, negative_data_rejection)


@pytest.mark.slow
@few(300)
@given(SCHEMA["/pooling"]["POST"].as_strategy(generation_mode=GenerationMode.POSITIVE))
def test_token_ids_of_all_kinds(real, case):
    answer = hold(case, real)
    assert answer.status_code in (200, 400, 404, 413, 504)
