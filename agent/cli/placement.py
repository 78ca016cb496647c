"""`plimsoll placement`: serve an embedded Placement, carry the content of one to another, check it.

Each verb but `serve` works on one Placement, which its options name: one that is served, one whose agent
does not run, or that of some settings.
"""

from __future__ import annotations

import argparse
import os
import sys
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agent import errors
from agent.cli.grammar import CommandAdder, add_column_option, add_verbs
from agent.cli.output import NOTHING, Style, show, show_table, table_lines, waiting
from agent.cli.top import interval, watching
from agent.errors import ExitCode, counted, plain

if TYPE_CHECKING:
    from agent.api.shapes.schema import Column
    from agent.placement.snapshot import PlacementSnapshot, ServiceEvidence
    from agent.placement.transport import Reply, Transport


TOKEN = "PLIMSOLL_PLACEMENT_TOKEN"  # noqa: S105 - the name of a variable
STANDARD_STREAM = "-"
PROBE_S = 2.0

SOURCES_HELP = (
    "Which Placement: --state-dir for an embedded one that does not run, --url for one that is served, or\n"
    "--config-file for the one that the agent's [placement] settings name.\n"
)


def add_placement_command(add: CommandAdder) -> None:
    """Add `plimsoll placement`."""
    command = add(
        "placement",
        None,
        "serve, watch, export, import, remove, check or ping a Placement",
        "An embedded Placement can be served to any Placement client, and its content carried to another\n"
        "embedded one or to an OpenStack Placement.",
        "  plimsoll placement serve --bind 127.0.0.1:8778 --state-dir /var/lib/plimsoll\n"
        "  plimsoll placement export --state-dir /var/lib/plimsoll host1.json\n"
        "  plimsoll placement import host1.json --url http://placement.example/placement\n"
        "  plimsoll placement check --state-dir /var/lib/plimsoll\n"
        "  plimsoll placement top --url unix:/run/plimsoll/placement.sock",
    )
    add_verb = add_verbs(command)
    for add_one in (add_serve, add_top, add_export, add_import, add_remove, add_check, add_ping):
        add_one(add_verb)


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
    from agent.placement import transfer

    if is_state_dir(args):
        with naming_the_place(args):
            return transfer.read_state_dir(args.state_dir)
    with opened_with_progress(args) as transport:
        return transfer.read_service(transfer.SnapshotClient(transport), with_usages=with_usages)


def counts_text(answer: Mapping[str, Any]) -> str:
    """`2 providers and 7 consumers`, from the counts of some content."""
    return (
        f"{counted(answer['resource_providers'], 'provider')} and {counted(answer['consumers'], 'consumer')}"
    )


@contextmanager
def opened_with_progress(args: Namespace, *, writes: bool = False) -> Iterator[Transport]:
    """As `opened`; a terminal shows the number of requests.

    At a standby, a command that `writes` is refused before it does, and another says that its answer may be
    old.
    """
    with opened(args) as transport, waiting("asking Placement") as show_activity:
        counting = _CountingTransport(transport, show_activity, writes=writes)
        yield counting
    if counting.standby:
        print(f"plimsoll: note: {args.url}: {plain(counting.standby)}.", file=sys.stderr)


@contextmanager
def opened(args: Namespace) -> Iterator[Transport]:
    """The transport to the Placement that the options name. Raises UsageError unless they name one."""
    from agent.placement.connect import open_transport

    if sum(map(bool, (args.state_dir, args.url, args.config_file))) != 1:
        raise errors.UsageError(
            "Say which Placement, in one way: --state-dir DIR, --url URL (http://..., unix:PATH) or "
            "--config-file FILE."
        )
    with naming_the_place(args):
        if args.url:
            transport = open_url(args)
        elif args.state_dir:
            transport = open_transport("embedded", state_dir=args.state_dir)
        else:
            from agent.config.settings import load

            settings = load(tuple(Path(name) for name in args.config_file), ())
            options = {**settings.placement.options, "serve": ()}  # only the agent serves
            transport = open_transport(
                settings.placement.kind, state_dir=settings.state_path, options=options
            )
        with closing(transport):
            yield transport


@contextmanager
def naming_the_place(args: Namespace) -> Iterator[None]:
    """Errors name the URL that was asked, and where a database in use can be read instead."""
    from agent.durable.errors import DatabaseLocked

    try:
        yield
    except errors.PlacementError as error:
        if args.url and args.url not in error.message:
            error.message = f"{args.url}: {error.message}"
        raise
    except errors.StateError as error:
        if isinstance(error.__cause__, DatabaseLocked):
            from agent.http.unix_socket import sockets_of
            from agent.placement.transport import SocketTransport

            locked = error.__cause__
            instead = (
                ", and answers at no Unix socket that this user can see. Name it by --url and an address at "
                "which it serves (an agent: [placement] serve of its settings; `plimsoll placement serve`: "
                "its --bind), or stop it first (an agent: systemctl stop plimsoll-agent)."
            )
            # The process that has the database open may serve it at a Unix socket.
            for path in () if locked.holder_pid is None else sockets_of(locked.holder_pid):
                with suppress(errors.PlacementUnavailable):
                    SocketTransport(path, timeout_s=PROBE_S).request("GET", "/", microversion="1.0")
                    instead = f", which serves it: name it by --url unix:{path} instead."
                    break
            error.message = f"{locked.path} is in use by {locked.holder}{instead}"
        raise


class _CountingTransport:
    """A transport that reports the number of its requests, and notices a standby."""

    def __init__(self, inner: Transport, show_activity: Callable[[str], None], *, writes: bool) -> None:
        self.standby = ""
        self._writes = writes
        self._inner = inner
        self._show_activity = show_activity
        self._count = 0

    def request(self, method: str, path: str, body: Any = None, *, microversion: str) -> Reply:
        self._count += 1
        self._show_activity(f"asking Placement, request {self._count}: {method} {path}")
        from agent.placement.transport import ACTIVE_HEADER, standby_sentence

        reply = self._inner.request(method, path, body, microversion=microversion)
        self.standby = self.standby or standby_sentence(reply)
        if self.standby and self._writes:
            remedy = "name that one by --url" if ACTIVE_HEADER in reply.headers else "try again when one is"
            raise errors.PlacementUnavailable(f"{self.standby}. Nothing was written: {remedy}.")
        return reply

    def close(self) -> None:
        self._inner.close()


def open_url(args: Namespace, option: str = "--url") -> Transport:
    """The transport to `url`, which `option` gives, with the token and the authority of the options.

    Raises UsageError.
    """
    from agent.placement.connect import open_transport

    token = os.environ.get(TOKEN) or None
    if args.token_file is not None:
        words = read_text_file(str(args.token_file)).split()
        if len(words) != 1 or not words[0].isascii():
            raise errors.UsageError(f"The token file {args.token_file} must hold one token and nothing else.")
        (token,) = words
    if args.url.startswith("unix:"):
        from agent.placement.transport import SocketTransport

        path = Path(args.url.removeprefix("unix:"))
        return SocketTransport(path, token=token, timeout_s=args.timeout)
    if not args.url.startswith(("http://", "https://")):
        raise errors.UsageError(f"{option} takes http://..., https://... or unix:PATH, not {args.url!r}.")
    if args.cafile is not None and not Path(args.cafile).is_file():
        raise errors.UsageError(f"--cafile {args.cafile} is no file; it must hold certificates, PEM.")
    options = {
        "auth_type": "admin_token",
        "endpoint_override": args.url,
        "token": token or "admin",
        "cafile": args.cafile,
        "timeout": args.timeout,
    }
    given = {name: value for name, value in options.items() if value is not None}
    return open_transport("remote", options=given)


def read_text_file(file: str) -> str:
    """The text of a file; `-` is standard input. Raises UsageError where it cannot be read."""
    try:
        if file == STANDARD_STREAM:
            return sys.stdin.read()
        return Path(file).read_text(encoding="utf-8")
    except OSError as error:
        raise errors.UsageError(f"{file} cannot be read: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise errors.UsageError(f"{file} cannot be read: it is not UTF-8 text.") from error


def add_serve(add: CommandAdder) -> None:
    """Add `plimsoll placement serve`."""
    parser = add(
        "serve",
        serve,
        "serve an embedded Placement over HTTP, in the foreground",
        "On a loopback address and on a Unix socket the server trusts callers, as `noauth2` of OpenStack\n"
        "Placement does (X-Auth-Token: admin). Any other address needs a token file and TLS files; if they\n"
        "are given they hold for loopback addresses too. A line of the token file is\n"
        "NAME ROLE[,ROLE][@PROJECT] TOKEN [host=HOST], with the roles admin, service and reader. host=\n"
        "binds it to the host whose root provider has that name or uuid. SIGTERM stops the server.\n"
        "\n"
        "Several servers can share a journal in PostgreSQL: one of them takes writes, the others follow it,\n"
        "take over if it is gone, and meanwhile answer reads and name it to those who write.",
        "  plimsoll placement serve --bind 127.0.0.1:8778 --state-dir /var/lib/plimsoll\n"
        "  plimsoll placement serve --bind unix:/run/plimsoll/placement.sock --state-dir DIR\n"
        "  plimsoll placement serve --bind 192.0.2.7:8778 --tokens-file TOKENS --tls-cert CERT.pem \\\n"
        "      --tls-key KEY.pem --state-dir DIR\n"
        "  plimsoll placement serve --bind 192.0.2.7:8778 --tokens-file TOKENS --tls-cert CERT.pem \\\n"
        "      --tls-key KEY.pem --state-dir DIR --journal 'postgresql://plimsoll@db.example/plimsoll'",
    )
    parser.add_argument(
        "--bind",
        metavar="ADDRESS",
        action="append",
        required=True,
        help="HOST:PORT, [IPV6]:PORT or unix:PATH; may be repeated",
    )
    parser.add_argument(
        "--state-dir",
        metavar="DIR",
        type=Path,
        help="the directory of placement.db; with --journal, of what this server has seen of the journal",
    )
    parser.add_argument(
        "--journal", metavar="DSN", help="a PostgreSQL database; its password is better in a passfile (libpq)"
    )
    parser.add_argument(
        "--advertise",
        metavar="URL",
        help="with --journal: where clients reach this server; by default its first address",
    )
    parser.add_argument(
        "--accept-loss",
        action="store_true",
        help="with --journal: go on where the database has lost writes that this server has seen",
    )
    parser.add_argument("--tokens-file", metavar="FILE", type=Path, help="the callers and their roles")
    add_flavors_option(parser, "for the fleet's page")
    parser.add_argument("--tls-cert", metavar="FILE", type=Path, help="the certificate and its chain, PEM")
    parser.add_argument("--tls-key", metavar="FILE", type=Path, help="the certificate's key, PEM")
    parser.add_argument(
        "--tls-client-ca", metavar="FILE", type=Path, help="who must have issued clients' certificates, PEM"
    )


def serve(args: Namespace) -> ExitCode:
    """Serve until a signal ends it. Raises SettingsError, StateError."""
    from agent.http.process import take_all_descriptors
    from agent.placement.embedded import DatabaseError
    from agent.placement.embedded.serve import ServeError
    from agent.placement.embedded.serve import serve as run
    from agent.systemd import journald
    from agent.systemd.notify import Notifier

    journald.configure("info", "auto")
    take_all_descriptors()
    notifier = Notifier(os.environ)
    try:
        run(
            args.state_dir,
            args.bind,
            journal=args.journal,
            address=args.advertise,
            accept_loss=args.accept_loss,
            tokens_file=args.tokens_file,
            tls_cert=args.tls_cert,
            tls_key=args.tls_key,
            tls_client_ca=args.tls_client_ca,
            flavors=read_flavors(args.flavors) if args.flavors else {},
            on_ready=lambda addresses: notifier.ready(f"serving placement at {', '.join(addresses)}"),
        )
    except ServeError as error:
        raise errors.SettingsError(str(error)) from error
    except ImportError as error:
        raise errors.SettingsError(
            f"--journal needs psycopg 3 ({error}): install python3-psycopg, or plimsoll[postgresql] with pip."
        ) from error
    except DatabaseError as error:
        raise errors.StateError(str(error), path=str(error.path)) from error
    return ExitCode.DONE


def add_export(add: CommandAdder) -> None:
    """Add `plimsoll placement export`."""
    parser = add(
        "export",
        export,
        "write the content of a Placement as one JSON document",
        f"{SOURCES_HELP}The same content always makes the same document. Stop writing to the Placement\n"
        "meanwhile.",
        "  plimsoll placement export --state-dir /var/lib/plimsoll host1.json\n"
        "  plimsoll placement export --url unix:/run/plimsoll/placement.sock | jq .consumers",
    )
    add_source_options(parser)
    parser.add_argument(
        "--root",
        metavar="ROOT",
        action="append",
        help="only the tree of this root provider, by name or uuid, with its allocations; may be repeated",
    )
    parser.add_argument(
        "file", nargs="?", metavar="FILE", default=STANDARD_STREAM, help="- (default) is standard output"
    )


def export(args: Namespace) -> ExitCode:
    """Write the document. Raises StateError where the file cannot be written."""
    from agent.durable.files import write_atomically
    from agent.placement import transfer
    from agent.placement.snapshot import select_trees, to_document, to_text

    if args.root and not is_state_dir(args):
        with opened_with_progress(args) as transport:
            content = transfer.read_trees(transfer.SnapshotClient(transport), args.root)
    else:
        content, _ = read_content(args)
    if args.root:
        content = select_trees(content, args.root)
    if args.file == STANDARD_STREAM:
        show(args, to_document(content), lambda _: [to_text(content).removesuffix("\n")])
        return ExitCode.DONE
    try:
        write_atomically(Path(args.file), to_text(content))
    except OSError as error:
        raise errors.StateError(
            f"{args.file} cannot be written: {error.strerror}; choose another file."
        ) from error
    answer = {"file": args.file, **content.counts()}
    show(args, answer, lambda _: [f"exported {counts_text(answer)} to {args.file}"])
    return ExitCode.DONE


def add_import(add: CommandAdder) -> None:
    """Add `plimsoll placement import`."""
    parser = add(
        "import",
        import_,
        "bring an exported document into a Placement, and verify it",
        f"{SOURCES_HELP}Other content of the target stays. Where the target differs from the document, the\n"
        "command writes nothing (exit code 5), unless --overwrite is given. Afterwards it reads the target\n"
        "again; differences end with 3. An import that was interrupted can be run again.",
        "  plimsoll placement import host1.json --url http://placement.example/placement --dry-run\n"
        "  plimsoll placement import host1.json --state-dir /var/lib/plimsoll",
    )
    add_source_options(parser)
    parser.add_argument("file", metavar="FILE", help="the document; - is standard input")
    parser.add_argument(
        "--overwrite",
        action="store_true",
        help="change the target to what the document says, where they differ",
    )
    parser.add_argument("--dry-run", action="store_true", help="print what would be written; write nothing")


def import_(args: Namespace) -> ExitCode:
    """Import a document, then read the target again and compare."""
    from agent.placement import transfer
    from agent.placement.snapshot import differences, foreign_consumers, from_text

    wanted = from_text(read_text_file(args.file))
    with opened_with_progress(args, writes=not args.dry_run) as transport:
        client = transfer.SnapshotClient(transport)
        present, evidence = transfer.read_counterpart(client, wanted)
        if not client.has_consumer_types():
            wanted = wanted.without_types()
        plan = transfer.plan_import(wanted, present, evidence.names, overwrite=args.overwrite)
        if not args.dry_run:
            transfer.apply_import(
                client, transfer.SnapshotClient(transport, microversion=transfer.UNTYPED_MICROVERSION), plan
            )
            present, _ = transfer.read_counterpart(client, wanted)
    if args.dry_run:
        told = list(plan.lines()) or ["nothing to write: the target has all of it already"]
        show(args, plan.to_json(), lambda _: told)
        return ExitCode.DONE if plan.empty else ExitCode.DRIFT_FOUND
    left, others = differences(wanted, present), list(foreign_consumers(wanted, present))
    answer = {
        **wanted.counts(),
        "written": {"operations": plan.operations, "consumers": len(plan.consumers)},
        "differences": [difference.to_json() for difference in left],
        "other_consumers": others,
    }

    def lines(_: Style) -> Iterator[str]:
        yield (
            f"imported {counts_text(answer)}: {counted(plan.operations, 'operation')} and "
            f"{counted(len(plan.consumers), 'consumer was', 'consumers were')} written"
        )
        if left:
            yield f"read again, the target differs in {counted(len(left), 'place')}:"
            yield from (f"  {difference.line()}" for difference in left)
        else:
            yield "read again, the target says what the document says; generations are its own"
        if others:
            uses = "uses" if len(others) == 1 else "use"
            yield f"{counted(len(others), 'consumer')} not in the document {uses} these providers too"

    show(args, answer, lines)
    return ExitCode.DRIFT_FOUND if left else ExitCode.DONE


def add_remove(add: CommandAdder) -> None:
    """Add `plimsoll placement remove`."""
    parser = add(
        "remove",
        remove,
        "remove from a Placement what was carried elsewhere",
        f"{SOURCES_HELP}The last step of a move from one Placement to another, after the import was\n"
        "verified. If the Placement differs from the document by now, nothing is removed (exit code 5).",
        "  plimsoll placement remove host1.json --state-dir /var/lib/plimsoll --dry-run\n"
        "  plimsoll placement remove host1.json --url http://placement.example/placement",
    )
    add_source_options(parser)
    parser.add_argument("file", metavar="FILE", help="the document; - is standard input")
    parser.add_argument("--dry-run", action="store_true", help="print what would go; change nothing")


def remove(args: Namespace) -> ExitCode:
    """Remove the content of a document from a Placement."""
    from agent.placement import transfer
    from agent.placement.snapshot import from_text

    unwanted = from_text(read_text_file(args.file))
    with opened_with_progress(args, writes=not args.dry_run) as transport:
        client = transfer.SnapshotClient(transport)
        plan = transfer.plan_removal(unwanted, transfer.read_counterpart(client, unwanted)[0])
        if not args.dry_run:
            transfer.apply_removal(client, plan)
    answer = {
        "resource_providers": len(plan.providers),
        "consumers": len(plan.consumers),
        "removed": not args.dry_run,
    }
    outcome = "to be removed" if args.dry_run else "removed"
    lines = [*(plan.lines() if args.dry_run else ()), f"{outcome}: {counts_text(answer)}"]
    show(args, answer, lambda _: lines)
    return ExitCode.DRIFT_FOUND if args.dry_run and not plan.empty else ExitCode.DONE


def add_check(add: CommandAdder) -> None:
    """Add `plimsoll placement check`."""
    parser = add(
        "check",
        check,
        "find broken invariants, and what to do about each",
        f"{SOURCES_HELP}Or an exported FILE. Ends with 3 if something is broken: allocations without\n"
        "provider or inventory, more in use than the capacity, usages that do not add up, missing parents,\n"
        "rings, wrong roots, unknown classes and traits.",
        "  plimsoll placement check --state-dir /var/lib/plimsoll\n"
        "  plimsoll placement check host1.json -o json | jq '.findings[].name'",
    )
    add_source_options(parser)
    parser.add_argument("file", nargs="?", metavar="FILE", help="an exported document; - is standard input")


def check(args: Namespace) -> ExitCode:
    """Check the invariants of a Placement, or of a document."""
    from agent.placement.snapshot import broken_invariants, from_text

    if args.file is None:
        content, evidence = read_content(args, with_usages=True)
    elif args.state_dir or args.url or args.config_file:
        raise errors.UsageError("Check either a file or a Placement, not both.")
    else:
        content, evidence = from_text(read_text_file(args.file)), None
    broken = broken_invariants(content, evidence)
    answer = {**content.counts(), "findings": [invariant.to_json() for invariant in broken]}

    def lines(_: Style) -> Iterator[str]:
        for invariant in broken:
            yield f"{invariant.name}: {invariant.sentence}"
            yield f"  {invariant.remedy}"
        end = f"{counted(len(broken), 'broken invariant')} in" if broken else "all is well with"
        yield f"{end} {counts_text(answer)}"

    show(args, answer, lines)
    return ExitCode.DRIFT_FOUND if broken else ExitCode.DONE


def add_ping(add: CommandAdder) -> None:
    """Add `plimsoll placement ping`."""
    parser = add(
        "ping",
        ping,
        "test whether a Placement answers, and whether the agent can use it",
        f"{SOURCES_HELP}Shows its address, the identity of the caller, its microversions, how long an\n"
        "answer takes, and what the agent may not do there. Writes nothing. Ends with 3 if something is\n"
        "missing that the agent can do without, with 1 if it cannot.",
        "  plimsoll placement ping --config-file /etc/plimsoll/plimsoll.conf\n"
        "  plimsoll placement ping --url http://placement.example/placement -o json | jq .round_trip_ms",
    )
    add_source_options(parser)


def ping(args: Namespace) -> ExitCode:
    """Ask a Placement who and what it is."""
    from agent.placement.connect import ping as ask

    with opened(args) as transport:
        result = ask(transport, f"embedded in {args.state_dir or 'the state directory'}")
    answer = result.to_json()
    versions, times = answer["microversions"], answer["round_trip_ms"]
    lines = [
        f"placement   {answer['where']}",
        f"asked as    {answer['who']}",
        f"speaks      {versions['lowest']} to {versions['highest']}, spoken to in {versions['spoken']}",
        f"round trip  {times['best']:.1f} ms at best, {times['median']:.1f} ms in the middle",
        *(f"lacking     {sentence}" for sentence in answer["lacking"]),
    ]
    show(args, answer, lambda _: lines)
    return ExitCode.DRIFT_FOUND if result.lacking else ExitCode.DONE


TOP_CLASSES = ("VCPU", "PCPU", "MEMORY_MB", "DISK_GB")
"""Those of a host that everybody knows: the table's, and what a Placement without notes is asked for."""
NO_NOTES = (
    "This Placement has no notes of hosts: whether a host is there, closed, moving guests, or has "
    "findings is not known, nor are instances and aggregates. Each counts as if it were well."
)
WATCH_DEFAULT_S = 5.0


def add_flavors_option(parser: argparse.ArgumentParser, what: str) -> None:
    """Add the option that names the file of flavors."""
    parser.add_argument(
        "--flavors",
        metavar="FILE",
        help=f'{what}: JSON, {{NAME: {{"vcpus": N, "memory_mb": N, "disk_gb": N, "extra_specs": {{...}}}}}}, '
        "or the output of `openstack flavor list --long -f json`",
    )


def read_flavors(file: str) -> dict[str, str]:
    """{name: query for candidates} of the flavors in a file. Raises UsageError with what is wrong."""
    import json

    from agent.claims.parse_request import claim_for_flavor, parse_flavor
    from agent.fleet.answer import candidates_query

    try:
        given = json.loads(read_text_file(file))
        if isinstance(given, list):  # OpenStackClient's list
            given = {
                each["Name"]: {
                    "vcpus": each["VCPUs"],
                    "memory_mb": each["RAM"],
                    "disk_gb": each["Disk"],
                    "extra_specs": each.get("Properties") or {},
                }
                for each in given
            }
        flavors = dict(given)
    except (ValueError, RecursionError, TypeError, KeyError) as error:
        raise errors.UsageError(f"{file} holds no flavors: {error!r}.") from error
    queries = {}
    for name, flavor in flavors.items():
        request = claim_for_flavor("", parse_flavor(flavor, f"{file}: {name}"))
        if request.pci:
            raise errors.UsageError(
                f"{file}: {name} asks for devices by alias, of which Placement knows nothing; ask for their "
                "class (resources1:CLASS)."
            )
        queries[name] = candidates_query(request)
    return queries


def add_top(add: CommandAdder) -> None:
    """Add `plimsoll placement top`."""
    parser = add(
        "top",
        top,
        "show all hosts of a Placement in one table",
        f"{SOURCES_HELP}A served Placement has notes of the agents: which hosts are silent or closed, with\n"
        "what they found. What is free there is in no sum. Any other one shows what Placement knows.",
        "  plimsoll placement top --url unix:/run/plimsoll/placement.sock\n"
        "  plimsoll placement top --url https://placement.example:8778 --token-file TOKEN \\\n"
        "      --room-for m1.large --flavors flavors.json --sort=-room\n"
        "  plimsoll placement top --url http://127.0.0.1:8778 --room-for vcpus=4,memory_mb=8GiB --watch\n"
        "  plimsoll placement top --url http://127.0.0.1:8778 --group aggregate -o json",
    )
    add_source_options(parser)
    add_column_option(parser)
    parser.add_argument(
        "--room-for",
        metavar="FLAVOR",
        help="count the guests that fit: a name in --flavors, or vcpus=N,memory_mb=N, or CLASS=N,...",
    )
    add_flavors_option(parser, "where --room-for finds its name")
    parser.add_argument("--search", metavar="TEXT", default="", help="only hosts with this text in their row")
    parser.add_argument(
        "--sort",
        metavar="COLUMN",
        default="",
        help="a column or a class; -COLUMN: the largest first",
    )
    parser.add_argument(
        "--group", choices=("state", "aggregate", "trait"), help="subtotals of groups in place of hosts"
    )
    parser.add_argument(
        "--class", metavar="CLASS", dest="of_class", action="append", default=[], help="a column more"
    )
    parser.add_argument(
        "--watch",
        metavar="SECONDS",
        type=interval,
        nargs="?",
        const=WATCH_DEFAULT_S,
        help=f"again and again (default {WATCH_DEFAULT_S:g} s), until q or Ctrl-C",
    )


def top(args: Namespace) -> ExitCode:
    """Show the table, once or until the operator ends it."""
    from urllib.parse import urlencode

    if len(args.of_class) > 1:
        raise errors.UsageError(
            f"--class is given {counted(len(args.of_class), 'time')}: show one class more"
        )
    of_class = "".join(args.of_class)
    asked = {"search": args.search, "sort": args.sort, "group": args.group or "", "class": of_class}
    asked |= _room(args) | {"limit": "100000"}
    query = urlencode({name: value for name, value in asked.items() if value})

    def show_once(style: Style | None = None) -> list[str]:
        answer = _fleet(transport, asked, query)
        columns, rows = _top_columns(answer, asked)
        notes = [answer["sentence"], *answer["not_known"]]
        if style is not None:
            return [*notes, "", *table_lines(columns, rows, style)]
        show_table(args, answer, columns, rows, "no host", ["", *notes])
        return []

    with opened(args) as transport:
        if args.watch is None:
            show_once()
        else:
            watching(show_once, args.watch, live=args.output == "table" and sys.stdout.isatty())
    return ExitCode.DONE


def _room(args: Namespace) -> dict[str, str]:
    """What --room-for asks for. A name that no file explains is the server's to know."""
    if not args.room_for:
        return {}
    from agent.cli.claim_request import FLAVOR_NAMES, parse_amounts

    known, text = read_flavors(args.flavors) if args.flavors else {}, args.room_for
    if text in known:
        return {"room": known[text], "label": text}
    if "=" not in text:
        if args.flavors:
            raise errors.UsageError(f"{args.flavors} has no flavor {text!r}; it has {', '.join(known)}.")
        return {"room": text}
    amounts = parse_amounts("--room-for", text)
    if amounts.keys() <= set(FLAVOR_NAMES):
        from agent.claims.parse_request import claim_for_flavor, parse_flavor
        from agent.fleet.answer import candidates_query

        return {
            "room": candidates_query(claim_for_flavor("", parse_flavor(amounts, "--room-for"))),
            "label": text,
        }
    return {"room": ",".join(f"{name}:{amount}" for name, amount in amounts.items()), "label": text}


def _fleet(transport: Transport, asked: Mapping[str, str], query: str) -> dict[str, Any]:
    """The table of a served core; of another Placement what it knows of its hosts, in the same form."""
    from agent.placement import transfer
    from agent.placement.embedded import fleet
    from agent.placement.embedded.problems import RequestRefused
    from agent.placement.transport import error_of_reply, standby_sentence

    client = transfer.SnapshotClient(transport)
    reply = transport.request("GET", f"/fleet?{query}", microversion=client.microversion)
    if reply.status == 400:
        raise errors.UsageError(reply.body["errors"][0]["detail"])
    if reply.status == 200 and isinstance(reply.body, dict):
        standby = standby_sentence(reply)
        return {
            **reply.body,
            "not_known": [f"This server has no notes of hosts: {standby}."] if standby else [],
        }
    if reply.status not in (404, 405, 406):
        raise error_of_reply(reply, "show its hosts", full=False)
    try:
        wanted = fleet.Wanted.of(asked)
        room = fleet.room_query(wanted.room, {}) if wanted.room else None
        classes = {*TOP_CLASSES, wanted.of_class, *(room.resource_classes() if room else ())}
        model, full = transfer.read_fleet(client, classes)
        answer = fleet.show_table(fleet.read_table(model, None, room, wanted.of_class), wanted)
    except RequestRefused as refusal:
        raise errors.UsageError(refusal.detail) from refusal
    missing = [
        f"{counted(len(full), 'host')} with nothing free of {', '.join(sorted(classes))} "
        f"{'is' if len(full) == 1 else 'are'} not shown: {errors.first_few(full, 5)}."
    ]
    return {**answer, "flavors": [], "not_known": [NO_NOTES, *(missing if full else ())]}


def _top_columns(
    answer: Mapping[str, Any], asked: Mapping[str, str]
) -> tuple[list[Column[dict[str, Any]]], list[dict[str, Any]]]:
    """The columns of the table, and its rows: hosts, or the groups with their subtotals."""
    from agent.api.shapes.schema import Column

    def amount(name: str) -> Column[dict[str, Any]]:
        def text(row: dict[str, Any]) -> str:
            free, capacity = row["resources"].get(name, (0, 0))
            return f"{free}/{capacity}" if capacity else NOTHING

        return Column(f"FREE {name}", text)

    def column(title: str, key: str) -> Column[dict[str, Any]]:
        return Column(title, lambda row: NOTHING if row[key] is None or row[key] == "" else row[key])

    present = answer["resources"]
    classes = [name for name in dict.fromkeys((*TOP_CLASSES, asked["class"])) if name in present]
    room = [column("ROOM", "room"), column("STRANDED", "stranded")] if asked.get("room") else []
    if asked["group"]:
        rows = [{"group": name, **total} for name, total in answer["groups"].items()]
        named = [column(asked["group"].upper(), "group"), column("HOSTS", "hosts")]
        tail = [
            column("INSTANCES", "instances"),
            column("MOVES", "moves"),
            column("WITH FINDINGS", "with_findings"),
        ]
        return [*named, *room, *map(amount, classes), *tail], rows
    head = [column("HOST", "name"), column("STATE", "state"), *room, *map(amount, classes)]
    if answer["not_known"]:
        return head, answer["rows"]
    age: Column[dict[str, Any]] = Column(
        "HEARD", lambda row: NOTHING if row["age_s"] is None else f"{row['age_s']:.0f} s ago"
    )
    counts = [column(name.upper(), name) for name in ("instances", "moves", "findings", "withheld")]
    return [*head, *counts, age, column("WHY", "reason")], answer["rows"]
