"""The callers of a served core and what their roles allow: noauth on local addresses, bearer tokens
elsewhere.

The rules are OpenStack Placement's defaults: `admin` and `service` may send everything, but POST /reshaper
needs `service`; a `reader` of a project may read that project's usages. A token file may also grant the role
`reader` without a project, which may send any GET.

Source: https://docs.openstack.org/placement/latest/configuration/policy.html.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import stat
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import parse_qsl

from agent.placement.embedded.problems import FORBIDDEN, RequestRefused

ROLES = ("admin", "service", "reader")
TOKEN_CHARACTERS_MIN = 16
FILE_BYTES_MAX = 1 << 20

Environ = Mapping[str, Any]
"""A WSGI environ (PEP 3333)."""


class ServeError(Exception):
    """The core cannot be served like this; the sentence says why and what to do."""


class TokenUser(NamedTuple):
    """The caller. `project_id` is None for a token without a project."""

    name: str
    project_id: str | None
    roles: frozenset[str]


class Unauthenticated(Exception):
    """The request does not identify its caller; the sentence goes to the client."""


Authenticator = Callable[[Environ], TokenUser]
"""Returns the caller of a request. Raises Unauthenticated where the request does not identify it."""


def noauth(environ: Environ) -> TokenUser:
    """The caller as `noauth2` of OpenStack Placement reads it: `X-Auth-Token: USER[:PROJECT]`, without proof.

    USER "admin" has the role admin; `X-Roles: ROLE,ROLE` overrides. Use it only at addresses that no other
    machine reaches. Raises Unauthenticated without that header.
    """
    token = environ.get("HTTP_X_AUTH_TOKEN")
    if token is None:
        raise Unauthenticated("Say who is asking in X-Auth-Token, as USER or USER:PROJECT.")
    user, _, project = token.partition(":")
    given = environ.get("HTTP_X_ROLES")
    roles = {"admin"} if user == "admin" and given is None else _words(given or "")
    if environ.get("HTTP_OPENSTACK_SYSTEM_SCOPE"):
        roles = set()  # Placement accepts a system scope for no request
    return TokenUser(user, environ.get("HTTP_X_PROJECT_ID") or project or user, frozenset(roles))


class Tokens:
    """Bearer tokens, of which only the SHA-256 digests are stored."""

    def __init__(self, callers: Mapping[bytes, TokenUser]) -> None:
        self._callers = tuple(callers.items())

    def __call__(self, environ: Environ) -> TokenUser:
        """The caller with the token in `Authorization: Bearer` or `X-Auth-Token`. Raises Unauthenticated."""
        scheme, _, token = environ.get("HTTP_AUTHORIZATION", "").partition(" ")
        if scheme.lower() != "bearer":
            token = environ.get("HTTP_X_AUTH_TOKEN", "")
        digest = hashlib.sha256(token.strip().encode("latin-1", "replace")).digest()
        match = None
        for known, caller in self._callers:  # compare all, so that the time does not depend on the token
            if hmac.compare_digest(known, digest):
                match = caller
        if match is None:
            raise Unauthenticated("The request needs a valid token in Authorization: Bearer or X-Auth-Token.")
        return match

    @classmethod
    def read(cls, path: Path) -> Tokens:
        """Read a token file that only its owner may read, or a systemd credential.

        Each line is `NAME ROLE[,ROLE][@PROJECT] TOKEN`, where TOKEN may be `sha256:HEX` (its digest); empty
        lines and lines that begin with # are skipped.

        Raises ServeError where the file cannot be read, is readable by others, or is malformed.
        """
        try:
            with path.open("rb") as file:
                mode = os.fstat(file.fileno()).st_mode
                content = file.read(FILE_BYTES_MAX + 1)
        except OSError as error:
            raise ServeError(f"The token file {path} cannot be read: {error.strerror}.") from error
        # Of a systemd credential (LoadCredential=) the group bits of the mode show an access list.
        directory = os.environ.get("CREDENTIALS_DIRECTORY")
        is_credential = directory and path.absolute().is_relative_to(Path(directory).absolute())
        if mode & (stat.S_IRWXG | stat.S_IRWXO) and not is_credential:
            raise ServeError(
                f"The token file {path} is open to others (mode {stat.S_IMODE(mode):04o}); chmod it to 0600."
            )
        if len(content) > FILE_BYTES_MAX:
            raise ServeError(
                f"The token file {path} has more than {FILE_BYTES_MAX} bytes; is it the right file?"
            )
        try:
            lines = content.decode("ascii").splitlines()
        except UnicodeDecodeError as error:
            raise ServeError(f"The token file {path} holds something other than ASCII text.") from error
        callers = dict(
            _parse_line(f"Line {number} of the token file {path}", line)
            for number, line in enumerate(map(str.strip, lines), start=1)
            if line and not line.startswith("#")
        )
        if not callers:
            raise ServeError(
                f"The token file {path} holds no token; write lines of NAME ROLE[,ROLE][@PROJECT] TOKEN."
            )
        return cls(callers)


def permits(caller: TokenUser, method: str, path: str, query: str) -> bool:
    """Whether the caller's roles allow the request; `path` and `query` are as in a WSGI environ."""
    if "service" in caller.roles:
        return True
    if method == "POST" and path == "/reshaper":
        return False
    if "admin" in caller.roles:
        return True
    if "reader" not in caller.roles or method != "GET":
        return False
    if caller.project_id is None:
        return True
    return path == "/usages" and dict(parse_qsl(query)).get("project_id") == caller.project_id


def authorize(caller: TokenUser, method: str, path: str, query: str) -> None:
    """Raises RequestRefused (403) where `permits` is false."""
    if not permits(caller, method, path, query):
        roles = ", ".join(sorted(caller.roles)) or "none"
        raise RequestRefused(FORBIDDEN, f"The roles of {caller.name} ({roles}) do not allow {method} {path}.")


def _words(text: str) -> set[str]:
    return {word.strip().lower() for word in text.split(",") if word.strip()}


def _parse_line(where: str, line: str) -> tuple[bytes, TokenUser]:
    words = line.split()
    if len(words) != 3:
        raise ServeError(f"{where} must be NAME ROLE[,ROLE][@PROJECT] TOKEN.")
    name, grant, token = words
    roles_text, at, project = grant.partition("@")
    roles = _words(roles_text)
    unknown = roles.difference(ROLES)
    if unknown or not roles or (at and not project):
        raise ServeError(
            f"{where} must grant some of {', '.join(ROLES)} (and @PROJECT, if any), not {grant!r}."
        )
    if token.startswith("sha256:"):
        if not re.fullmatch(r"sha256:[0-9a-fA-F]{64}", token):
            raise ServeError(f"{where} must hold 64 hexadecimal digits after sha256:.")
        digest = bytes.fromhex(token.removeprefix("sha256:"))
    elif len(token) < TOKEN_CHARACTERS_MIN:
        raise ServeError(
            f"{where} holds a token of fewer than {TOKEN_CHARACTERS_MIN} characters; make a longer one."
        )
    else:
        digest = hashlib.sha256(token.encode("ascii")).digest()
    return digest, TokenUser(name, project or None, frozenset(roles))
