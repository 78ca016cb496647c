"""What a program gets where no agent answers as it should; each test runs with both clients."""

import json
import os
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from kits.api_client import NOBODY, ROOT_NEEDED, is_root
from kits.client import CLIENTS, answer, answering

import plimsoll
from plimsoll import shapes

Client = Callable[..., plimsoll.Agent]
RELEASED = json.dumps({"consumer": "c", "released": True}).encode()
UNKNOWN = json.dumps(
    {"error": {"code": "plimsoll.consumer.unknown", "message": "no c", "details": {}}}
).encode()
BUSY = json.dumps({"error": {"code": "plimsoll.api.busy", "message": "busy", "details": {}}}).encode()


@pytest.fixture(params=CLIENTS)
def client(request: pytest.FixtureRequest) -> Client:
    return CLIENTS[request.param]


def test_no_socket_a_file_and_one_that_was_left_over(client: Client, tmp_path: Path) -> None:
    with pytest.raises(plimsoll.Unavailable, match="the socket does not exist"):
        client(str(tmp_path / "none")).status()
    (tmp_path / "file").touch()
    with pytest.raises(plimsoll.Unavailable, match=r"is no socket; Agent\(PATH\)"):
        client(str(tmp_path / "file")).status()
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(tmp_path / "left"))
    with pytest.raises(plimsoll.Unavailable, match="left over"):
        client(str(tmp_path / "left")).claim(resources={"VCPU": 1})
    with pytest.raises(plimsoll.InvalidRequest, match="too long"):
        client("/" + "x" * 200)


def test_the_socket_is_that_of_the_environment(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PLIMSOLL_SOCKET", str(tmp_path / "other"))
    with pytest.raises(plimsoll.Unavailable, match="other"):
        client().status()
    monkeypatch.delenv("PLIMSOLL_SOCKET")
    with pytest.raises(plimsoll.PlimsollError, match=r"/run/plimsoll/plimsoll\.sock"):
        client().request("GET", "/no/such/path")


@pytest.mark.skipif(not is_root(), reason=ROOT_NEEDED)
def test_a_socket_without_rights(client: Client, tmp_path: Path) -> None:
    with answering(tmp_path / "s", b""):
        (tmp_path / "s").chmod(0o600)
        agent = client(str(tmp_path / "s"))
        os.seteuid(NOBODY)
        try:
            with pytest.raises(plimsoll.Forbidden, match="may not open") as caught:
                agent.claim(resources={"VCPU": 1})
        finally:
            os.seteuid(0)
    assert caught.value.status == 0


@pytest.mark.parametrize(
    "cut", [None, b"HTTP/1.1 2", b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{", b"\x00" * 100]
)
def test_an_answer_that_is_cut(client: Client, tmp_path: Path, cut: bytes | None) -> None:
    with answering(tmp_path / "s", cut) as got:
        agent = client(str(tmp_path / "s"), retries=1)
        with pytest.raises(plimsoll.BadAnswer, match="gave no usable answer"):
            agent.status()
        with pytest.raises(plimsoll.OutcomeUnknown) as caught:
            agent.claim(resources={"VCPU": 1})
    assert len(got) == 4, "each was tried twice"
    bodies = [json.loads(request.partition(b"\r\n\r\n")[2]) for request in got[2:]]
    assert bodies[0] == bodies[1] and bodies[0]["consumer"] == caught.value.key


def test_a_lost_answer_is_asked_for_again_with_the_same_key(client: Client, tmp_path: Path) -> None:
    with answering(tmp_path / "s", None, answer("200 OK", RELEASED)) as got:
        assert client(str(tmp_path / "s")).release("c") == shapes.Released(consumer="c", released=True)
    assert got[0] == got[1]


def test_a_release_whose_answer_was_lost_is_done(client: Client, tmp_path: Path) -> None:
    with answering(tmp_path / "s", None, answer("404 Not Found", UNKNOWN)):
        assert client(str(tmp_path / "s")).release("c").released
    (tmp_path / "s").unlink()
    with answering(tmp_path / "s", answer("404 Not Found", UNKNOWN)), pytest.raises(plimsoll.NotFound):
        client(str(tmp_path / "s")).release("c")


def test_a_busy_agent_is_asked_again_and_nothing_is_in_doubt(client: Client, tmp_path: Path) -> None:
    busy = answer("503 Service Unavailable", BUSY)
    with answering(tmp_path / "s", busy, answer("200 OK", RELEASED)) as got:
        assert client(str(tmp_path / "s")).release("c").released
        assert len(got) == 2
    (tmp_path / "s").unlink()
    with answering(tmp_path / "s", busy), pytest.raises(plimsoll.Unavailable):
        client(str(tmp_path / "s"), retries=1).release("c")


def test_an_error_within_the_agent_leaves_a_write_in_doubt(client: Client, tmp_path: Path) -> None:
    error = {"error": {"code": "plimsoll.internal", "message": "it failed", "details": {"id": "1"}}}
    with answering(tmp_path / "s", answer("500 Internal Server Error", json.dumps(error).encode())):
        with pytest.raises(plimsoll.OutcomeUnknown, match="it failed") as caught:
            client(str(tmp_path / "s")).release("c")
        assert caught.value.key == "c"
        with pytest.raises(plimsoll.AgentFailed):
            client(str(tmp_path / "s")).status()


def test_an_agent_that_is_gone_after_the_first_try(client: Client, tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "s"))
        server.listen()

        def end() -> None:
            connection, _ = server.accept()
            (tmp_path / "s").unlink()
            connection.close()

        thread = threading.Thread(target=end)
        thread.start()
        with pytest.raises(plimsoll.OutcomeUnknown) as caught:
            client(str(tmp_path / "s"), retries=2).release("c")
        thread.join()
    assert caught.value.key == "c"


def test_no_answer_in_time(client: Client, tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(tmp_path / "s"))
        silent.listen()
        agent = client(str(tmp_path / "s"), timeout=60)
        began = time.monotonic()
        with pytest.raises(plimsoll.Unavailable, match=r"did not answer within 0.2 s"):
            agent.status(timeout=0.2)
        with pytest.raises(plimsoll.OutcomeUnknown, match=r"timeout= waits longer") as caught:
            agent.claim(consumer="c", resources={}, timeout=0.2)
        assert caught.value.key == "c" and time.monotonic() - began < 5


def test_a_full_queue_of_connections_is_waited_for(client: Client, tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as full:
        full.bind(str(tmp_path / "s"))
        full.listen(0)
        with socket.socket(socket.AF_UNIX) as first:
            first.connect(str(tmp_path / "s"))
            with pytest.raises(plimsoll.Unavailable, match="did not answer within"):
                client(str(tmp_path / "s")).status(timeout=0.2)


@pytest.mark.parametrize("body", [b"<html>", b"", b"\xff"])
def test_another_service(client: Client, tmp_path: Path, body: bytes) -> None:
    with (
        answering(tmp_path / "s", answer("200 OK", body)),
        pytest.raises(plimsoll.BadAnswer, match="does not answer like an agent"),
    ):
        client(str(tmp_path / "s")).status()


def test_json_of_another_service(client: Client, tmp_path: Path) -> None:
    with (
        answering(tmp_path / "s", answer("418 I'm a teapot", b'{"short": "stout"}')),
        pytest.raises(plimsoll.BadAnswer, match="did not explain"),
    ):
        client(str(tmp_path / "s")).readyz()


def test_an_agent_of_another_version(client: Client, tmp_path: Path) -> None:
    body = json.dumps({"consumer": "c", "when": "now"}).encode()
    with (
        answering(tmp_path / "s", answer("200 OK", body, "Plimsoll-Version: 7.1")),
        pytest.raises(plimsoll.Incompatible, match=r"Released\.released.* 7\.1.* 0\.1\.0") as caught,
    ):
        client(str(tmp_path / "s")).release("c")
    assert caught.value.key == "c", "it was executed"


@pytest.mark.parametrize("body", [b'{"consumer": "c"}', b"[" * 100_000, b"<html>", b"\xff"])
def test_an_answer_to_a_claim_that_cannot_be_read(client: Client, tmp_path: Path, body: bytes) -> None:
    """The claim is made: its caller must learn that, and one that the caller could not name is released."""
    made = answer("201 Created", body)
    with answering(tmp_path / "s", made, answer("200 OK", RELEASED), made) as got:
        agent = client(str(tmp_path / "s"))
        with pytest.raises(plimsoll.BadAnswer, match=r"status 201 the write is done.*undone again") as caught:
            agent.claim(resources={"VCPU": 1})
        assert json.loads(got[0].partition(b"\r\n\r\n")[2])["consumer"] == caught.value.key
        assert got[1].startswith(f"DELETE /v1/claims/{caught.value.key} ".encode())
        with pytest.raises(plimsoll.BadAnswer, match="the write is done; its key is web1") as caught:
            agent.claim(name="web1", resources={"VCPU": 1})
    assert len(got) == 3 and caught.value.done and caught.value.key == "web1"
    assert str(caught.value).endswith("its key is web1.")


def test_what_cannot_be_asked_is_invalid(client: Client, tmp_path: Path) -> None:
    circle: dict[str, object] = {}
    circle["groups"] = circle
    with answering(tmp_path / "s", answer("200 OK", RELEASED)) as got:
        agent = client(str(tmp_path / "s"))
        for wrong in (
            lambda: agent.claim(resources={"VCPU": object()}),  # type: ignore[dict-item]
            lambda: agent.claim(resources=5),  # type: ignore[arg-type]
            lambda: agent.claim(circle),
            lambda: agent.release("c", timeout=float("nan")),
            lambda: agent.release("c", timeout=-1),
            lambda: client(str(tmp_path / "s"), timeout=float("nan")),
            lambda: agent.request("GET", "/v1/status\r\nX: y"),
            lambda: agent.request("GET", "/v1/ü"),
            lambda: agent.request("GET /v1/status HTTP/1.1\r\nX: y\r\n\r\nGET", "/v1/status"),
        ):
            with pytest.raises(plimsoll.InvalidRequest):
                wrong()
        assert got == []
        assert agent.release("\udcff", timeout=float("inf")).released
    assert got[0].startswith(b"DELETE /v1/claims/%ED%B3%BF ")


@pytest.mark.parametrize("status", ["200 OK", "503 Service Unavailable"])
def test_odd_answers_are_errors_of_the_package(client: Client, tmp_path: Path, status: str) -> None:
    with answering(tmp_path / "s", answer(status, b"3")):
        agent = client(str(tmp_path / "s"))
        for call in (agent.readyz, agent.status, agent.instances):
            with pytest.raises(plimsoll.BadAnswer):
                call()
    odd = {"code": "plimsoll.claim.does_not_fit", "message": "no", "details": {"shortfalls": 7}}
    (tmp_path / "s").unlink()
    with answering(tmp_path / "s", answer("409 Conflict", json.dumps({"error": odd}).encode())):
        for refused in (lambda: agent.claim(resources={"VCPU": 1}), agent.metrics):
            with pytest.raises(plimsoll.Refused) as caught:
                refused()
            assert caught.value.shortfalls == ()


def test_an_answer_without_a_length_ends_with_the_connection(client: Client, tmp_path: Path) -> None:
    with answering(tmp_path / "s", b"HTTP/1.0 200 OK\r\n\r\n" + RELEASED):
        assert client(str(tmp_path / "s")).release("c").released


def test_who_asks_is_said_in_each_request(client: Client, tmp_path: Path) -> None:
    with answering(tmp_path / "s", answer("200 OK", RELEASED)) as got:
        client(str(tmp_path / "s"), made_by="ansible 2.19").release("c")
    assert f"User-Agent: plimsoll/{plimsoll.__version__} (ansible 2.19)\r\n".encode() in got[0]
    for wrong in ("a\r\nb", "(", "x" * 65, "ü"):
        with pytest.raises(plimsoll.InvalidRequest, match="made_by"):
            client(str(tmp_path / "s"), made_by=wrong)
