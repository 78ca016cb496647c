"""When the embedded core's HTTP door opens, for whom, and that it closes cleanly."""

import contextlib
import logging
import os
import signal
import socket
import ssl
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from kits.served_core_client import door_client, make_certificate

from agent.config.settings import load
from agent.errors import SettingsError
from agent.placement.connect import open_transport
from agent.placement.embedded import Core
from agent.placement.embedded.serve import ServeError, Server

SERVICE_TOKEN = "service-token-0123456789"
READER_TOKEN = "reader-token-0123456789"


@pytest.fixture
def core(tmp_path: Path) -> Iterator[Core]:
    core = Core.open(tmp_path / "state")
    yield core
    core.close()


@pytest.fixture
def tokens(tmp_path: Path) -> Path:
    path = tmp_path / "tokens"
    path.write_text(f"nova service {SERVICE_TOKEN}\nmetrics reader {READER_TOKEN}\n")
    path.chmod(0o600)
    return path


def test_off_loopback_it_refuses_to_start_and_says_what_is_lacking(core: Core, tokens: Path) -> None:
    with pytest.raises(ServeError, match=r"a token file.* and a TLS certificate"):
        Server(core, ["127.0.0.1:0", "0.0.0.0:0"])
    with pytest.raises(ServeError, match="lacks a TLS certificate"):
        Server(core, ["0.0.0.0:0"], tokens_file=tokens)
    with pytest.raises(ServeError, match="both files"):
        Server(core, ["0.0.0.0:0"], tokens_file=tokens, tls_cert=tokens)
    with pytest.raises(ServeError, match="cannot be used"):
        Server(core, ["0.0.0.0:0"], tokens_file=tokens, tls_cert=tokens, tls_key=tokens)
    with pytest.raises(ServeError, match="at least one address"):
        Server(core, [])


def test_off_loopback_only_tokens_over_tls_open(core: Core, tokens: Path, tmp_path: Path) -> None:
    certificate, key = make_certificate(tmp_path)
    with Server(core, ["0.0.0.0:0"], tokens_file=tokens, tls_cert=certificate, tls_key=key) as server:
        address = server.addresses[0].replace("0.0.0.0", "127.0.0.1")
        bearer = {"Authorization": f"Bearer {SERVICE_TOKEN}"}
        with door_client(address, headers=bearer, ca=certificate) as nova:
            created = nova("POST", "/resource_providers", {"name": "a"})
            assert created.status == 200
            assert created.headers["location"].startswith("https://")
        with door_client(address, headers={"X-Auth-Token": READER_TOKEN}, ca=certificate) as metrics:
            assert metrics("GET", "/resource_providers").status == 200
            assert metrics("POST", "/resource_providers", {"name": "b"}).status == 403
        with door_client(address, ca=certificate) as nobody:
            assert nobody("GET", "/resource_providers").status == 401
            assert nobody("GET", "/").status == 200


@pytest.mark.parametrize("with_tls", [False, True])
def test_clients_that_connect_and_say_nothing_keep_nobody_else_waiting(
    core: Core, tokens: Path, tmp_path: Path, with_tls: bool
) -> None:
    certificate, key = make_certificate(tmp_path) if with_tls else (None, None)
    with Server(
        core, ["127.0.0.1:0"], tokens_file=tokens, tls_cert=certificate, tls_key=key, threads=2
    ) as server:
        host, _, port = server.addresses[0].rpartition(":")
        with ExitStack() as silent:
            for _ in range(6):
                silent.enter_context(socket.create_connection((host, int(port))))
            begin = time.monotonic()
            with door_client(server.addresses[0], ca=certificate) as client:
                assert client("GET", "/").status == 200
            assert time.monotonic() - begin < 5


SLOW_HEAD = b"PUT /allocations/x HTTP/1.1\r\nHost: x\r\nX-"
SLOW_BODY = b"PUT /allocations/x HTTP/1.1\r\nHost: x\r\nContent-Length: 9999\r\n\r\n{"


@pytest.mark.parametrize("count", [64, 600])
@pytest.mark.parametrize(
    ("with_tls", "greets", "sent"),
    [
        (False, False, SLOW_HEAD),
        (False, False, SLOW_BODY),
        (True, True, SLOW_HEAD),
        (True, True, SLOW_BODY),
        (True, False, b"\x16\x03\x01"),
    ],
    ids=["head", "body", "head over TLS", "body over TLS", "handshake"],
)
def test_a_client_beside_slow_ones_is_answered_within_a_second(
    core: Core, tokens: Path, tmp_path: Path, with_tls: bool, greets: bool, sent: bytes, count: int
) -> None:
    certificate, key = make_certificate(tmp_path) if with_tls else (None, None)
    trust = ssl.create_default_context(cafile=certificate)
    with (
        Server(core, ["127.0.0.1:0"], tokens_file=tokens, tls_cert=certificate, tls_key=key) as server,
        ExitStack() as stack,
    ):
        host, _, port = server.addresses[0].rpartition(":")
        slow: list[socket.socket] = []
        for _ in range(count):
            sock = socket.create_connection((host, int(port)), 10)
            slow.append(trust.wrap_socket(sock, server_hostname=host) if greets else sock)
            stack.enter_context(slow[-1]).sendall(sent)
        for again in range(3):
            for sock in slow[again::40]:
                sock.sendall(b"x")
            begin = time.monotonic()
            headers = {"X-Auth-Token": SERVICE_TOKEN}
            with door_client(server.addresses[0], headers, certificate) as client:
                assert client("GET", "/resource_providers").status == 200
            assert time.monotonic() - begin < 1


@pytest.mark.parametrize("bytes_sent", [b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"\x00" * 300, b""])
def test_what_does_not_speak_tls_gets_no_answer_and_one_line_of_the_log(
    core: Core, tokens: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, bytes_sent: bytes
) -> None:
    certificate, key = make_certificate(tmp_path)
    with (
        caplog.at_level(logging.INFO, "agent"),
        Server(core, ["127.0.0.1:0"], tokens_file=tokens, tls_cert=certificate, tls_key=key) as server,
    ):
        host, _, port = server.addresses[0].rpartition(":")
        with socket.create_connection((host, int(port)), timeout=10) as sock:
            sock.sendall(bytes_sent)
            with contextlib.suppress(OSError):  # the server may have reset the connection already
                sock.shutdown(socket.SHUT_WR)
            answer = b""
            with contextlib.suppress(ConnectionResetError):
                answer = sock.recv(4096)
            assert b"HTTP" not in answer
    (record,) = caplog.records
    assert record.getMessage().startswith("No TLS handshake with 127.0.0.1: ")
    assert (record.levelname, record.exc_info) == ("INFO", None)


def test_given_tokens_hold_on_loopback_too_but_not_on_the_socket(
    core: Core, tokens: Path, tmp_path: Path
) -> None:
    with Server(core, ["127.0.0.1:0", f"unix:{tmp_path}/s"], tokens_file=tokens) as server:
        with door_client(server.addresses[0]) as client:
            assert client("GET", "/resource_providers").status == 401
        with door_client(server.addresses[1]) as client:
            assert client("GET", "/resource_providers").status == 200


def test_the_socket_file_is_for_owner_and_group_and_goes_away(core: Core, tmp_path: Path) -> None:
    path = tmp_path / "door.sock"
    with Server(core, [f"unix:{path}"]):
        assert stat.S_IMODE(path.stat().st_mode) == 0o660
        with pytest.raises(ServeError, match="another server"):
            Server(core, [f"unix:{path}"]).start()
        assert path.exists()
    assert not path.exists()


def test_a_socket_left_over_is_taken_over_and_a_file_is_not(core: Core, tmp_path: Path) -> None:
    path = tmp_path / "door.sock"
    with socket.socket(socket.AF_UNIX) as left_over:
        left_over.bind(str(path))
    with Server(core, [f"unix:{path}"]) as server, door_client(server.addresses[0]) as client:
        assert client("GET", "/").status == 200
    path.write_text("precious")
    with pytest.raises(ServeError, match="no socket"):
        Server(core, [f"unix:{path}"]).start()
    assert path.read_text() == "precious"


def test_where_one_address_cannot_be_had_none_is_opened(core: Core, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        server = Server(core, [f"unix:{tmp_path}/s", f"127.0.0.1:{taken.getsockname()[1]}"])
        with pytest.raises(ServeError, match="not in use"):
            server.start()
    assert not (tmp_path / "s").exists()


def test_a_directory_that_is_not_there_is_named(core: Core, tmp_path: Path) -> None:
    with pytest.raises(ServeError, match="directory that exists"):
        Server(core, [f"unix:{tmp_path}/missing/s"]).start()


SERVE = """
import sys
from pathlib import Path
from agent.placement.embedded.serve import serve
serve(Path(sys.argv[1]), sys.argv[2:])
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_cleanly(tmp_path: Path, number: signal.Signals) -> None:
    path = tmp_path / "s"
    arguments = [sys.executable, "-c", SERVE, str(tmp_path / "state"), f"unix:{path}"]
    with subprocess.Popen(arguments, env={**os.environ, "LISTEN_PID": "1"}) as process:
        deadline = time.monotonic() + 20
        while not path.exists():
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.02)
        with door_client(f"unix:{path}") as client:
            assert client("POST", "/resource_providers", {"name": "kept"}).status == 200
        process.send_signal(number)
        assert process.wait(10) == 0
    assert not path.exists()
    core = Core.open(tmp_path / "state")
    try:
        found = core.request("GET", "/resource_providers").body["resource_providers"]
    finally:
        core.close()
    assert [provider["name"] for provider in found] == ["kept"]


def test_the_agent_serves_its_placement_where_the_settings_say(tmp_path: Path) -> None:
    options = {"serve": [f"unix:{tmp_path}/s"]}
    transport = open_transport("embedded", state_dir=tmp_path / "state", options=options)
    with door_client(f"unix:{tmp_path}/s") as client:
        assert client("POST", "/resource_providers", {"name": "a"}).status == 200
    reply = transport.request("GET", "/resource_providers", microversion="1.39")
    assert [each["name"] for each in reply.body["resource_providers"]] == ["a"]
    transport.close()
    assert not (tmp_path / "s").exists()


def test_settings_that_would_open_the_door_too_wide_start_nothing(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="serve: Refusing to listen"):
        open_transport("embedded", state_dir=tmp_path, options={"serve": ["0.0.0.0:0"]})
    Core.open(tmp_path).close()  # the lock was given back
    file = tmp_path / "plimsoll.conf"
    file.write_text(
        "[DEFAULT]\ncompute_driver = fake\n[placement]\nkind = remote\nserve = 127.0.0.1:8778\n"
        "auth_type = none\nendpoint_override = http://127.0.0.1:1\n"
    )
    with pytest.raises(SettingsError, match="is for kind = embedded"):
        load((file,), ())
