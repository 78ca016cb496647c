"""The one Placement that a verb of `plimsoll placement` works on: its options, its transport, its content."""

from __future__ import annotations

import argparse
import os
import sys
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agent.cli.waiting import waiting
from agent.errors import PlacementError, PlacementUnavailable, StateError, UsageError, counted

if TYPE_CHECKING:
    from agent.placement.transfer.invariants import ServiceEvidence
    from agent.placement.transfer.snapshot import PlacementSnapshot
    from agent.placement.transport import Reply, Transport

TOKEN = "PLIMSOLL_PLACEMENT_TOKEN"  # noqa: S105 - the name of a variable
STANDARD_STREAM = "-"
PROBE_S = 2.0

SOURCES_HELP = (
    "Which Placement: --state-dir for an embedded one that does not run, --url for one that is served, or\n"
    "--config-file for the one that the agent's [placement] settings name.\n"
)


def add_source_options(command: argparse.ArgumentParser) -> None:
    """Add the options that name a Placement."""
    group = command.add_argument_group("which Placement")
    group.add_argument("--state-dir", metavar="DIR", type=Path, help="an embedded one, not running")
    group.add_argument(
        "--url", metavar="URL", help="one that is served: http://..., https://... or unix:PATH"
    )
    group.add_argument(
        "--config-file", metavar="FILE", action="append", help="the one in these settings' [placement]"
    )
    group.add_argument(
        "--token-file",
        metavar="FILE",
        type=Path,
        help=f"the token for --url; else ${TOKEN}, else `admin`, which noauth trusts",
    )
    group.add_argument("--cafile", metavar="FILE", help="the authority of the certificate behind --url, PEM")


def is_state_dir(args: Namespace) -> bool:
    """Whether the options name the files of an embedded Placement, and nothing else."""
    return bool(args.state_dir) and not (args.url or args.config_file)


def read_content(args: Namespace, *, with_usages: bool = False) -> tuple[PlacementSnapshot, ServiceEvidence]:
    """All that the Placement has."""
    from agent.placement.transfer.read import SnapshotClient, read_service, read_state_dir

    if is_state_dir(args):
        with naming_the_place(args):
            return read_state_dir(args.state_dir)
    with opened_with_progress(args) as transport:
        return read_service(SnapshotClient(transport), with_usages=with_usages)


def counts_text(answer: Mapping[str, Any]) -> str:
    """`2 providers and 7 consumers`, from the counts of some content."""
    return (
        f"{counted(answer['resource_providers'], 'provider')} and {counted(answer['consumers'], 'consumer')}"
    )


@contextmanager
def opened_with_progress(args: Namespace) -> Iterator[Transport]:
    """As `opened`; a terminal shows the number of requests."""
    with opened(args) as transport, waiting("asking Placement") as show_activity:
        yield _CountingTransport(transport, show_activity)


@contextmanager
def opened(args: Namespace) -> Iterator[Transport]:
    """The transport to the Placement that the options name. Raises UsageError unless they name one."""
    openers: list[Callable[[], Transport]] = []
    if args.state_dir:
        openers.append(lambda: _open("embedded", state_dir=args.state_dir))
    if args.url:
        openers.append(lambda: _open_url(args))
    if args.config_file:
        openers.append(lambda: _open_configured(args))
    if len(openers) != 1:
        raise UsageError(
            "Say which Placement, in one way: --state-dir DIR, --url URL (http://..., unix:PATH) or "
            "--config-file FILE."
        )
    with naming_the_place(args), closing(openers[0]()) as transport:
        yield transport


@contextmanager
def naming_the_place(args: Namespace) -> Iterator[None]:
    """Errors name the URL that was asked, and where a database in use can be read instead."""
    from agent.durable.errors import DatabaseLocked

    try:
        yield
    except PlacementError as error:
        if args.url and args.url not in error.message:
            error.message = f"{args.url}: {error.message}"
        raise
    except StateError as error:
        if isinstance(error.__cause__, DatabaseLocked):
            locked = error.__cause__
            error.message = f"{locked.path} is in use by {locked.holder}{_instead(locked.holder_pid)}"
        raise


def _instead(pid: int | None) -> str:
    """What to do where the process with this id has the database open."""
    served = [] if pid is None else list(_served_sockets(pid))
    if served:
        return f", which serves it: name it by --url unix:{served[0]} instead."
    return (
        ", and answers at no Unix socket that this user can see. Name it by --url and an address at which it "
        "serves (an agent: [placement] serve of its settings; `plimsoll placement serve`: its --bind), or "
        "stop it first (an agent: systemctl stop plimsoll-agent)."
    )


def _served_sockets(pid: int) -> Iterator[Path]:
    """The sockets of the process at which a Placement answers."""
    from agent.http.unix_socket import sockets_of
    from agent.placement.transport_socket import SocketTransport

    for path in sockets_of(pid):
        with suppress(PlacementUnavailable):
            SocketTransport(path, timeout_s=PROBE_S).request("GET", "/", microversion="1.0")
            yield path


class _CountingTransport:
    """A transport that reports the number of its requests."""

    def __init__(self, inner: Transport, show_activity: Callable[[str], None]) -> None:
        self._inner = inner
        self._show_activity = show_activity
        self._count = 0

    def request(self, method: str, path: str, body: Any = None, *, microversion: str) -> Reply:
        self._count += 1
        self._show_activity(f"asking Placement, request {self._count}: {method} {path}")
        return self._inner.request(method, path, body, microversion=microversion)

    def close(self) -> None:
        self._inner.close()


def _open(kind: str, **options: Any) -> Transport:
    from agent.placement.connect import open_transport

    return open_transport(kind, **options)


def _open_url(args: Namespace) -> Transport:
    token = _token(args)
    if args.url.startswith("unix:"):
        from agent.placement.transport_socket import SocketTransport

        path = Path(args.url.removeprefix("unix:"))
        return SocketTransport(path, token=token, timeout_s=args.timeout)
    if not args.url.startswith(("http://", "https://")):
        raise UsageError(f"--url takes http://..., https://... or unix:PATH, not {args.url!r}.")
    if args.cafile is not None and not Path(args.cafile).is_file():
        raise UsageError(f"--cafile {args.cafile} is no file; it must hold certificates, PEM.")
    options = {
        "auth_type": "admin_token",
        "endpoint_override": args.url,
        "token": token or "admin",
        "cafile": args.cafile,
        "timeout": args.timeout,
    }
    return _open("remote", options={name: value for name, value in options.items() if value is not None})


def _open_configured(args: Namespace) -> Transport:
    from dataclasses import asdict

    from agent.config.settings import load

    settings = load(tuple(Path(name) for name in args.config_file), ())
    options = {**asdict(settings.placement), "serve": ()}  # only the agent serves
    return _open(settings.placement.kind, state_dir=settings.state_path, options=options)


def _token(args: Namespace) -> str | None:
    if args.token_file is None:
        return os.environ.get(TOKEN) or None
    words = read_text_file(str(args.token_file)).split()
    if len(words) != 1 or not words[0].isascii():
        raise UsageError(f"The token file {args.token_file} must hold one token and nothing else.")
    return words[0]


def read_text_file(file: str) -> str:
    """The text of a file; `-` is standard input. Raises UsageError where it cannot be read."""
    try:
        if file == STANDARD_STREAM:
            return sys.stdin.read()
        return Path(file).read_text(encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{file} cannot be read: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{file} cannot be read: it is not UTF-8 text.") from error
