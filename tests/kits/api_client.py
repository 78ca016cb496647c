"""What the tests of the local API share: a served host, requests to it, the OpenAPI document's schemas."""

import json
import os
import socket
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from jsonschema import Draft202012Validator, FormatChecker

from agent.api.operations import Operations
from agent.api.routes import document
from agent.api.server import ApiServer
from agent.config.access import Access
from agent.http.unix_connection import UnixConnection

TIMEOUT_S = 10.0


class Reply(NamedTuple):
    status: int
    headers: Mapping[str, str]
    body: Any


@contextmanager
def serving(
    operations: Operations, path: Path, access: Access | None = None, **options: Any
) -> Iterator[ApiServer]:
    server = ApiServer(operations, access or Access.parse([], [], []), path, **options)
    server.start()
    try:
        yield server
    finally:
        server.stop()


def ask(
    path: Path, method: str, url: str, body: Any = None, headers: Mapping[str, str] | None = None
) -> Reply:
    """One request on a connection of its own; a `body` of bytes is sent as it is, anything else as JSON."""
    sent = dict(headers or {})
    if body is not None and not isinstance(body, bytes):
        body = json.dumps(body).encode()
        sent.setdefault("Content-Type", "application/json")
    with closing(UnixConnection(str(path), TIMEOUT_S)) as connection:
        connection.request(method, url, body, sent)
        reply = connection.getresponse()
        text = reply.read()
        assert reply.getheader("Content-Type") == "application/json"
        return Reply(reply.status, dict(reply.getheaders()), json.loads(text) if text else None)


def raw(path: Path, sent: bytes) -> bytes:
    """What comes back for these bytes, until the server closes."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        sock.settimeout(TIMEOUT_S)
        sock.connect(str(path))
        sock.sendall(sent)
        received = b""
        while chunk := sock.recv(65536):
            received += chunk
        return received


def check(method: str, template: str, reply: Reply) -> None:
    """Fail unless the OpenAPI document describes this reply to this operation."""
    responses = document()["paths"][template][method.lower()]["responses"]
    response = responses.get(str(reply.status), responses["default"])
    response = resolve(response)
    validate(response["content"]["application/json"]["schema"], reply.body)
    if str(reply.status) not in responses:
        assert reply.status >= 400, (
            f"{reply.status} is no error, and {method} {template} does not describe it"
        )


def resolve(node: Mapping[str, Any]) -> Mapping[str, Any]:
    if "$ref" not in node:
        return node
    found: Any = document()
    for part in node["$ref"].removeprefix("#/").split("/"):
        found = found[part]
    return found


def validate(schema: Mapping[str, Any], value: Any) -> None:
    whole = {**schema, "components": document()["components"]}
    Draft202012Validator(whole, format_checker=FormatChecker()).validate(value)


NOBODY = 65534
ROOT_NEEDED = "starts a process as another user, which takes root"


def is_root() -> bool:
    return os.geteuid() == 0


@contextmanager
def public_directory() -> Iterator[Path]:
    """A directory that other users can reach, which pytest's own are not."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)
