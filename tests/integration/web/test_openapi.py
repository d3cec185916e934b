"""The OpenAPI document says what the API does: schemathesis sends generated requests, and checks the answers against it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import count
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import GenerationMode
from schemathesis.specs.openapi.checks import positive_data_acceptance

from coordinator import errors
from coordinator.web import Limits
from coordinator.web.problems import STATUSES
from coordinator.web.rest.endpoint import Endpoint
from coordinator.web.rest.routes import ROUTES
from tests.integration.web.conftest import Site

EXAMPLES = 40


async def test_document_has_every_route_of_the_table(site: Site) -> None:
    answer = await site.http.get("/openapi.json")
    assert answer.status_code == 200
    found = answer.json()
    assert found["openapi"].startswith("3.1")
    assert found["servers"] == [{"url": "/api"}]
    operations = {(method.upper(), path) for path, methods in found["paths"].items() for method in methods}
    assert operations == {(endpoint.method, endpoint.path) for endpoint in ROUTES}


def test_every_error_of_the_library_has_a_status() -> None:
    raised = {
        kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, errors.CoordinatorError)
    }
    assert raised == set(STATUSES)


@pytest.mark.matrix("searches for unknown bugs")
@pytest.mark.parametrize(
    ("endpoint", "mode"),
    [(endpoint, GenerationMode.POSITIVE) for endpoint in ROUTES]
    + [(endpoint, GenerationMode.NEGATIVE) for endpoint in ROUTES if endpoint.parameters or endpoint.body],
    ids=lambda value: value.name,
)
async def test_generated_requests_get_documented_answers(
    make_site: Callable[..., Any], worker: None, endpoint: Endpoint, mode: GenerationMode
) -> None:
    site: Site = await make_site(limits=Limits(wait=0.1, idle=0.2, keep_alive=0.1))
    known = [await site.enqueue("ask"), await site.enqueue("fail"), await site.enqueue("double", {"number": 1})]
    await asyncio.to_thread(send_generated_requests, site.url, endpoint, mode, known)


def send_generated_requests(url: str, endpoint: Endpoint, mode: GenerationMode, known: list[str]) -> None:
    """Send generated requests to one route, half of them to runs that exist."""
    operation = schemathesis.openapi.from_url(f"{url}/openapi.json")[endpoint.path][endpoint.method]
    numbers = count()

    @settings(
        max_examples=EXAMPLES, deadline=None, derandomize=True, database=None, phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(case=operation.as_strategy(mode))
    def send(case: Any) -> None:
        number = next(numbers)
        if "id" in case.path_parameters and number % 2:
            case.path_parameters["id"] = known[number // 2 % len(known)]
        case.query.pop("cursor", None)  # only the API itself can make one
        response = case.call(base_url=url, timeout=30)
        # JSON schema can't say that whole numbers of any place in a value have up to 64 bits
        not_plain = b'"error": "NotPlain"' in response.content
        case.validate_response(response, excluded_checks=[positive_data_acceptance] if not_plain else None)

    send()
