"""The status listener's application: its paths, and which clients get the page."""

import pytest
from kits.api_host import SmallHost
from werkzeug.test import Client, TestResponse

from agent.status.web import Web


def get(path: str, *, local: bool = True, host: str = "localhost", method: str = "GET") -> TestResponse:
    return Client(Web(SmallHost().host_status, local=local)).open(path, method=method, headers={"Host": host})


@pytest.mark.parametrize("path", ["/healthz", "/livez", "/readyz", "/metrics"])
@pytest.mark.parametrize("local", [True, False])
def test_health_and_metrics_are_at_every_address(path: str, local: bool) -> None:
    reply = get(path, local=local)
    assert reply.status_code == 200 and reply.headers["Cache-Control"] == "no-store"


def test_the_page_is_at_loopback_only() -> None:
    assert b"<h1>host1</h1>" in get("/").data
    refused = get("/", local=False)
    assert refused.status_code == 403 and b"at loopback addresses only" in refused.data


def test_a_loopback_address_refuses_requests_for_another_host() -> None:
    assert get("/metrics", host="evil.example").status_code == 421
    assert get("/metrics", host="127.0.0.1:9464").status_code == 200
    assert get("/metrics", host="evil.example", local=False).status_code == 200


@pytest.mark.parametrize(
    ("path", "method", "status"),
    [("/nothing", "GET", 404), ("/metrics", "POST", 405), ("/?refresh=1", "GET", 400)],
)
def test_other_requests_are_errors_in_text(path: str, method: str, status: int) -> None:
    reply = get(path, method=method)
    assert reply.status_code == status and reply.content_type.startswith("text/plain")


def test_an_unexpected_error_shows_no_details() -> None:
    host = SmallHost()

    def fault() -> None:
        raise ZeroDivisionError("the secret inside")

    host.fault = fault
    reply = Client(Web(host.host_status, local=True)).get("/healthz", headers={"Host": "localhost"})
    assert reply.status_code == 500 and b"secret" not in reply.data
