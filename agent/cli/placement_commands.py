"""`plimsoll placement`: serve an embedded placement, carry a placement's content elsewhere, check it."""

import os
import sys
from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agent.cli.output import Output
from agent.cli.waiting import waiting
from agent.errors import ExitCode, SettingsError, StateError, UsageError

if TYPE_CHECKING:
    from agent.placement.transfer.invariants import ServiceEvidence
    from agent.placement.transfer.snapshot import PlacementSnapshot
    from agent.placement.transport import Reply, Transport

TOKEN = "PLIMSOLL_PLACEMENT_TOKEN"  # noqa: S105 - the name of a variable
STANDARD_STREAM = "-"

Json = dict[str, Any]


def serve(args: Namespace) -> ExitCode:
    from agent.placement.embedded import DatabaseError
    from agent.placement.embedded.http.auth import ServeError
    from agent.placement.embedded.http.serve import serve as run
    from agent.systemd import log_setup
    from agent.systemd.notify import Notifier

    log_setup.configure("info", "auto")
    notifier = Notifier(os.environ)
    try:
        run(
            args.state_dir,
            args.bind,
            tokens_file=args.tokens_file,
            tls_cert=args.tls_cert,
            tls_key=args.tls_key,
            on_ready=lambda addresses: notifier.ready(f"serving placement at {', '.join(addresses)}"),
        )
    except ServeError as error:
        raise SettingsError(str(error)) from error
    except DatabaseError as error:
        raise StateError(str(error), path=str(error.path)) from error
    return ExitCode.DONE


def export(args: Namespace) -> ExitCode:
    from agent.durable.files import write_atomically
    from agent.placement.transfer.document import to_document, to_text

    content = _read_part(args) if args.root else _read(args)[0]
    if args.file == STANDARD_STREAM:
        Output(args.output).show(to_document(content), lambda _: [to_text(content).removesuffix("\n")])
        return ExitCode.DONE
    try:
        write_atomically(Path(args.file), to_text(content))
    except OSError as error:
        raise StateError(f"{args.file} cannot be written: {error.strerror}; choose another file.") from error
    answer = {"file": args.file, **content.counts()}
    Output(args.output).show(answer, lambda _: [f"exported {_counted(answer)} to {args.file}"])
    return ExitCode.DONE


def import_(args: Namespace) -> ExitCode:
    from agent.placement.transfer.document import from_text
    from agent.placement.transfer.import_ import UNTYPED_MICROVERSION, apply_import, plan_import
    from agent.placement.transfer.read import SnapshotClient, read_counterpart
    from agent.placement.transfer.snapshot import differences, foreign_consumers

    wanted = from_text(_text(args.file))
    with _transport(args) as transport:
        client = SnapshotClient(transport)
        again, evidence = read_counterpart(client, wanted)
        if not client.has_consumer_types():
            wanted = wanted.without_types()
        plan = plan_import(wanted, again, evidence.names, overwrite=args.overwrite)
        if not args.dry_run:
            apply_import(client, SnapshotClient(transport, microversion=UNTYPED_MICROVERSION), plan)
            again, _ = read_counterpart(client, wanted)
    if args.dry_run:
        lines = list(plan.lines()) or ["nothing to write: the target says all of it already"]
        Output(args.output).show(plan.to_json(), lambda _: lines)
        return ExitCode.DONE if plan.empty else ExitCode.DRIFT_FOUND
    left = differences(wanted, again)
    others = foreign_consumers(wanted, again)
    answer = {
        **wanted.counts(),
        "written": {"operations": plan.operations, "consumers": len(plan.consumers)},
        "differences": [each.to_json() for each in left],
        "other_consumers": list(others),
    }
    Output(args.output).show(answer, lambda _: _imported(answer, [each.line() for each in left]))
    return ExitCode.DRIFT_FOUND if left else ExitCode.DONE


def _imported(answer: Json, left: list[str]) -> Iterator[str]:
    written = answer["written"]
    wrote = f"{written['operations']} operations and {written['consumers']} consumers were written"
    yield f"imported {_counted(answer)}: {wrote}"
    if left:
        yield f"read again, the target differs in {len(left)} places:"
        yield from (f"  {line}" for line in left)
    else:
        yield "read again, the target says what the document says; generations are its own"
    others = len(answer["other_consumers"])
    if others:
        yield f"{others} consumers that the document does not have use these providers too"


def remove(args: Namespace) -> ExitCode:
    from agent.placement.transfer.document import from_text
    from agent.placement.transfer.read import SnapshotClient, read_counterpart
    from agent.placement.transfer.remove import apply_removal, plan_removal

    unwanted = from_text(_text(args.file))
    with _transport(args) as transport:
        client = SnapshotClient(transport)
        plan = plan_removal(unwanted, read_counterpart(client, unwanted)[0])
        if not args.dry_run:
            apply_removal(client, plan)
    answer = {
        "resource_providers": len(plan.providers),
        "consumers": len(plan.consumers),
        "removed": not args.dry_run,
    }
    done = "to be removed" if args.dry_run else "removed"
    lines = [*(plan.lines() if args.dry_run else ()), f"{done}: {_counted(answer)}"]
    Output(args.output).show(answer, lambda _: lines)
    return ExitCode.DRIFT_FOUND if args.dry_run and not plan.empty else ExitCode.DONE


def ping(args: Namespace) -> ExitCode:
    from agent.placement.ping import ping as ask

    with _opened(args) as transport:
        found = ask(transport, f"embedded in {args.state_dir or 'the state directory'}")
    Output(args.output).show(found.to_json(), lambda _: _pinged(found.to_json()))
    return ExitCode.DRIFT_FOUND if found.lacking else ExitCode.DONE


def _pinged(answer: Json) -> Iterator[str]:
    versions, times = answer["microversions"], answer["round_trip_ms"]
    yield f"placement   {answer['where']}"
    yield f"asked as    {answer['who']}"
    yield f"speaks      {versions['lowest']} to {versions['highest']}, spoken to in {versions['spoken']}"
    yield f"round trip  {times['best']:.1f} ms at best, {times['median']:.1f} ms in the middle"
    for each in answer["lacking"]:
        yield f"lacking     {each}"


def check(args: Namespace) -> ExitCode:
    from agent.placement.transfer.invariants import broken_invariants

    content, evidence = _read_any(args)
    broken = broken_invariants(content, evidence)
    answer = {**content.counts(), "findings": [each.to_json() for each in broken]}
    Output(args.output).show(answer, lambda _: _checked(answer))
    return ExitCode.DRIFT_FOUND if broken else ExitCode.DONE


def _checked(answer: Json) -> Iterator[str]:
    for each in answer["findings"]:
        yield f"{each['name']}: {each['sentence']}"
        yield f"  {each['remedy']}"
    if answer["findings"]:
        yield f"{len(answer['findings'])} broken invariants in {_counted(answer)}"
    else:
        yield f"all is well with {_counted(answer)}"


def _counted(answer: Json) -> str:
    return f"{answer['resource_providers']} providers and {answer['consumers']} consumers"


def _read_any(args: Namespace) -> "tuple[PlacementSnapshot, ServiceEvidence | None]":
    if args.file is None:
        return _read(args, with_usages=True)
    if args.state_dir or args.url or args.config_file:
        raise UsageError("Check either a file or a placement, not both.")
    from agent.placement.transfer.document import from_text

    return from_text(_text(args.file)), None


def _read(args: Namespace, *, with_usages: bool = False) -> "tuple[PlacementSnapshot, ServiceEvidence]":
    from agent.placement.transfer.read import SnapshotClient, read_service, read_state_dir

    if args.state_dir and not (args.url or args.config_file):
        return read_state_dir(args.state_dir)
    with _transport(args) as transport:
        return read_service(SnapshotClient(transport), with_usages=with_usages)


def _read_part(args: Namespace) -> "PlacementSnapshot":
    from agent.placement.transfer.read import SnapshotClient, read_state_dir, read_trees
    from agent.placement.transfer.remove import select_trees

    if args.state_dir and not (args.url or args.config_file):
        return select_trees(read_state_dir(args.state_dir)[0], args.root)
    with _transport(args) as transport:
        return select_trees(read_trees(SnapshotClient(transport), args.root), args.root)


@contextmanager
def _transport(args: Namespace) -> "Iterator[Transport]":
    """As `_opened`; a person at a terminal sees how far it is."""
    with _opened(args) as transport, waiting("asking placement") as tell:
        yield _CountingTransport(transport, tell)


@contextmanager
def _opened(args: Namespace) -> "Iterator[Transport]":
    """The transport to the one placement that the options name."""
    openers: list[Callable[[], Transport]] = []
    if args.state_dir:
        openers.append(lambda: _open("embedded", state_dir=args.state_dir))
    if args.url:
        openers.append(lambda: _open_url(args))
    if args.config_file:
        openers.append(lambda: _open_configured(args))
    if len(openers) != 1:
        raise UsageError(
            "Say which placement, in one way: --state-dir DIR, --url URL (http://..., unix:PATH) or "
            "--config-file FILE."
        )
    with closing(openers[0]()) as transport:
        yield transport


class _CountingTransport:
    """A transport that tells how many requests it has carried."""

    def __init__(self, inner: "Transport", tell: Callable[[str], None]) -> None:
        self._inner = inner
        self._tell = tell
        self._count = 0

    def request(self, method: str, path: str, body: Any = None, *, microversion: str) -> "Reply":
        self._count += 1
        self._tell(f"asking placement, request {self._count}: {method} {path}")
        return self._inner.request(method, path, body, microversion=microversion)

    def close(self) -> None:
        self._inner.close()


def _open(kind: str, **options: Any) -> "Transport":
    from agent.placement.connect import open_transport

    return open_transport(kind, **options)


def _open_url(args: Namespace) -> "Transport":
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


def _open_configured(args: Namespace) -> "Transport":
    from dataclasses import asdict

    from agent.config.settings import load

    told = load(tuple(Path(name) for name in args.config_file), ())
    options = {**asdict(told.placement), "serve": ()}  # that is the agent's to do
    return _open(told.placement.kind, state_dir=told.state_path, options=options)


def _token(args: Namespace) -> str | None:
    if args.token_file is None:
        return os.environ.get(TOKEN) or None
    words = _text(str(args.token_file)).split()
    if len(words) != 1 or not words[0].isascii():
        raise UsageError(f"The token file {args.token_file} must hold one token and nothing else.")
    return words[0]


def _text(file: str) -> str:
    try:
        if file == STANDARD_STREAM:
            return sys.stdin.read()
        return Path(file).read_text(encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{file} cannot be read: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{file} cannot be read: it is not UTF-8 text.") from error
