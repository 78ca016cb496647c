"""The grammar of `plimsoll placement`."""

import argparse
from collections.abc import Callable
from pathlib import Path

from agent.cli import placement_commands

Adder = Callable[..., argparse.ArgumentParser]
"""Takes name, function, short help, text and examples."""

STANDARD_OUTPUT = "-"

_SOURCES = (
    "Which placement: --state-dir for an embedded one that does not run, --url for one that is served, or\n"
    "--config-file for the one that the agent's [placement] settings name.\n"
)


def add_placement_commands(add: Adder, verbs_of: Callable[[argparse.ArgumentParser], Adder]) -> None:
    """Add `placement` and its verbs; `verbs_of` gives the adder for verbs of a command."""
    group = add(
        "placement",
        None,
        "serve, export, import, remove, check or ping a placement",
        "An embedded placement can be served to any Placement client, and its content carried to another\n"
        "embedded one or to an OpenStack Placement.",
        "  plimsoll placement serve --bind 127.0.0.1:8778 --state-dir /var/lib/plimsoll\n"
        "  plimsoll placement export --state-dir /var/lib/plimsoll host1.json\n"
        "  plimsoll placement import host1.json --url http://placement.example/placement\n"
        "  plimsoll placement check --state-dir /var/lib/plimsoll",
    )
    verbs = verbs_of(group)
    _serve(verbs)
    _export(verbs)
    _import(verbs)
    _remove(verbs)
    _check(verbs)
    _ping(verbs)


def _serve(add: Adder) -> None:
    serve = add(
        "serve",
        placement_commands.serve,
        "serve an embedded placement over HTTP, in the foreground",
        "On a loopback address and on a Unix socket callers are believed, as `noauth2` of OpenStack\n"
        "Placement does (X-Auth-Token: admin). Any other address needs a token file and TLS files; where\n"
        "they are given they hold for loopback addresses too. A line of the token file is\n"
        "NAME ROLE[,ROLE][@PROJECT] TOKEN, with the roles admin, service and reader. SIGTERM stops it.",
        "  plimsoll placement serve --bind 127.0.0.1:8778 --state-dir /var/lib/plimsoll\n"
        "  plimsoll placement serve --bind unix:/run/plimsoll/placement.sock --state-dir DIR\n"
        "  plimsoll placement serve --bind 192.0.2.7:8778 --tokens-file TOKENS --tls-cert CERT.pem \\\n"
        "      --tls-key KEY.pem --state-dir DIR",
    )
    serve.add_argument(
        "--bind",
        metavar="ADDRESS",
        action="append",
        required=True,
        help="HOST:PORT, [IPV6]:PORT or unix:PATH; may be repeated",
    )
    serve.add_argument("--state-dir", metavar="DIR", type=Path, required=True, help="where placement.db is")
    serve.add_argument("--tokens-file", metavar="FILE", type=Path, help="who may call, and as what")
    serve.add_argument("--tls-cert", metavar="FILE", type=Path, help="the certificate and its chain, PEM")
    serve.add_argument("--tls-key", metavar="FILE", type=Path, help="the certificate's key, PEM")


def _export(add: Adder) -> None:
    export = add(
        "export",
        placement_commands.export,
        "write all that a placement holds as one JSON document",
        f"{_SOURCES}The same content always makes the same document. Nobody should write to the placement\n"
        "meanwhile.",
        "  plimsoll placement export --state-dir /var/lib/plimsoll host1.json\n"
        "  plimsoll placement export --url unix:/run/plimsoll/placement.sock | jq .consumers",
    )
    _source(export)
    export.add_argument(
        "--root",
        metavar="ROOT",
        action="append",
        help="only the tree of this root provider, by name or uuid, and what is held on it; may be repeated",
    )
    export.add_argument(
        "file", nargs="?", metavar="FILE", default=STANDARD_OUTPUT, help="- (default) is standard output"
    )


def _import(add: Adder) -> None:
    import_ = add(
        "import",
        placement_commands.import_,
        "bring an exported document into a placement, and verify it",
        f"{_SOURCES}What the target holds besides stays. Where it holds something else in the place of\n"
        "what the document has, nothing is written (exit code 5), unless --overwrite says so. Afterwards\n"
        "the target is read again; differences end with 3. An import that was cut off can be run again.",
        "  plimsoll placement import host1.json --url http://placement.example/placement --dry-run\n"
        "  plimsoll placement import host1.json --state-dir /var/lib/plimsoll",
    )
    _source(import_)
    import_.add_argument("file", metavar="FILE", help="the document; - is standard input")
    import_.add_argument(
        "--overwrite",
        action="store_true",
        help="make the target say what the document says, where it differs",
    )
    import_.add_argument("--dry-run", action="store_true", help="print what would be written; write nothing")


def _remove(add: Adder) -> None:
    remove = add(
        "remove",
        placement_commands.remove,
        "take out of a placement what was carried elsewhere",
        f"{_SOURCES}The last step of a move from one placement to another, after the import was verified.\n"
        "If the placement says anything else than the document by now, nothing is removed (exit code 5).",
        "  plimsoll placement remove host1.json --state-dir /var/lib/plimsoll --dry-run\n"
        "  plimsoll placement remove host1.json --url http://placement.example/placement",
    )
    _source(remove)
    remove.add_argument("file", metavar="FILE", help="the document; - is standard input")
    remove.add_argument("--dry-run", action="store_true", help="print what would go; change nothing")


def _check(add: Adder) -> None:
    check = add(
        "check",
        placement_commands.check,
        "find broken invariants, and what to do about each",
        f"{_SOURCES}Or a FILE that was exported. Ends with 3 when something is broken: allocations without\n"
        "provider or inventory, more in use than there is, usages that do not add up, missing parents,\n"
        "rings, wrong roots, unknown classes and traits.",
        "  plimsoll placement check --state-dir /var/lib/plimsoll\n"
        "  plimsoll placement check host1.json -o json | jq '.findings[].name'",
    )
    _source(check)
    check.add_argument("file", nargs="?", metavar="FILE", help="an exported document; - is standard input")


def _ping(add: Adder) -> None:
    ping = add(
        "ping",
        placement_commands.ping,
        "whether a placement is there and will do",
        f"{_SOURCES}Says where it is, as whom it is asked, which microversions it speaks, how long an\n"
        "answer takes, and what the agent may not do there. Writes nothing. Ends with 3 where something is\n"
        "lacking that the agent can do without, with 1 where it cannot.",
        "  plimsoll placement ping --config-file /etc/plimsoll/plimsoll.conf\n"
        "  plimsoll placement ping --url http://placement.example/placement -o json | jq .round_trip_ms",
    )
    _source(ping)


def _source(command: argparse.ArgumentParser) -> None:
    group = command.add_argument_group("which placement")
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
        help=f"the token for --url; else ${placement_commands.TOKEN}, else `admin`, which noauth believes",
    )
    group.add_argument("--cafile", metavar="FILE", help="who vouches for the certificate behind --url, PEM")
