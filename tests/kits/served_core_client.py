"""What tests of the embedded core's HTTP door share: a client for every kind of address, and TLS files."""

import http.client
import json
import socket
import ssl
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from agent.placement.embedded import Core, CoreResponse

TIMEOUT_S = 10.0
ADMIN = {"X-Auth-Token": "admin"}
SERVICE = {"X-Auth-Token": "nova:service", "X-Roles": "service"}


class Reply(NamedTuple):
    status: int
    headers: Mapping[str, str]
    text: bytes

    @property
    def body(self) -> Any:
        return json.loads(self.text)

    @property
    def error(self) -> Any:
        return self.body["errors"][0]


class CurrentCore:
    """Stands for whichever core a test has open, so that tests can share a server."""

    core: Core

    def request(self, *args: Any, **kwargs: Any) -> CoreResponse:
        return self.core.request(*args, **kwargs)

    def submit_whole(self, *args: Any) -> Any:
        return self.core.submit_whole(*args)

    @property
    def takes_writes(self) -> bool:
        return self.core.takes_writes


class _Unix(http.client.HTTPConnection):
    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=TIMEOUT_S)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


class DoorClient:
    """One kept-alive connection to an address in the form of a bind; `headers` go with every request."""

    def __init__(
        self,
        address: str,
        headers: Mapping[str, str] = ADMIN,
        ca: Path | None = None,
        version: str | None = "1.39",
    ) -> None:
        if address.startswith("unix:"):
            self.connection: http.client.HTTPConnection = _Unix(address.removeprefix("unix:"))
        elif ca is not None:
            context = ssl.create_default_context(cafile=ca)
            self.connection = http.client.HTTPSConnection(address, timeout=TIMEOUT_S, context=context)
        else:
            self.connection = http.client.HTTPConnection(address, timeout=TIMEOUT_S)
        self._headers = dict(headers)
        if version is not None:
            self._headers["OpenStack-API-Version"] = f"placement {version}"

    def __call__(
        self, method: str, path: str, body: Any = None, *, text: bytes | None = None, **headers: str | None
    ) -> Reply:
        """Send `body` as JSON, or `text` as it is; `accept="x"` is a header more, `accept=None` one less."""
        told: dict[str, str | None] = dict(self._headers)
        if body is not None:
            text = json.dumps(body).encode()
        if text is not None:
            told["Content-Type"] = "application/json"
        told.update({name.replace("_", "-").title(): value for name, value in headers.items()})
        if "Openstack-Api-Version" in told:
            told["OpenStack-API-Version"] = told.pop("Openstack-Api-Version")
        self.connection.request(
            method, path, text, {name: value for name, value in told.items() if value is not None}
        )
        answer = self.connection.getresponse()
        return Reply(
            answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read()
        )

    def close(self) -> None:
        self.connection.close()


@contextmanager
def door_client(address: str, *args: Any, **kwargs: Any) -> Iterator[DoorClient]:
    with closing(DoorClient(address, *args, **kwargs)) as client:
        yield client


def make_certificate(directory: Path, host: str = "127.0.0.1") -> tuple[Path, Path]:
    """A certificate for `host` signed by itself, and its key."""
    certificate, key = directory / "cert.pem", directory / "key.pem"
    subject = ["-days", "2", "-subj", "/CN=door", "-addext", f"subjectAltName=IP:{host}"]
    kind = ["-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    files = ["-keyout", str(key), "-out", str(certificate)]
    subprocess.run(["openssl", "req", *kind, *subject, *files], check=True, capture_output=True)
    return certificate, key
