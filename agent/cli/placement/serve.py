"""`plimsoll placement serve`."""

from __future__ import annotations

import os
from argparse import Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from agent.errors import ExitCode, SettingsError, StateError

if TYPE_CHECKING:
    from agent.cli.grammar import CommandAdder


def add_serve(add: CommandAdder) -> None:
    """Add `plimsoll placement serve`."""
    parser = add(
        "serve",
        serve,
        "serve an embedded Placement over HTTP, in the foreground",
        "On a loopback address and on a Unix socket the server trusts callers, as `noauth2` of OpenStack\n"
        "Placement does (X-Auth-Token: admin). Any other address needs a token file and TLS files; if they\n"
        "are given they hold for loopback addresses too. A line of the token file is\n"
        "NAME ROLE[,ROLE][@PROJECT] TOKEN, with the roles admin, service and reader. SIGTERM stops the\n"
        "server.",
        "  plimsoll placement serve --bind 127.0.0.1:8778 --state-dir /var/lib/plimsoll\n"
        "  plimsoll placement serve --bind unix:/run/plimsoll/placement.sock --state-dir DIR\n"
        "  plimsoll placement serve --bind 192.0.2.7:8778 --tokens-file TOKENS --tls-cert CERT.pem \\\n"
        "      --tls-key KEY.pem --state-dir DIR",
    )
    parser.add_argument(
        "--bind",
        metavar="ADDRESS",
        action="append",
        required=True,
        help="HOST:PORT, [IPV6]:PORT or unix:PATH; may be repeated",
    )
    parser.add_argument(
        "--state-dir", metavar="DIR", type=Path, required=True, help="the directory of placement.db"
    )
    parser.add_argument("--tokens-file", metavar="FILE", type=Path, help="the callers and their roles")
    parser.add_argument("--tls-cert", metavar="FILE", type=Path, help="the certificate and its chain, PEM")
    parser.add_argument("--tls-key", metavar="FILE", type=Path, help="the certificate's key, PEM")


def serve(args: Namespace) -> ExitCode:
    """Serve until a signal ends it. Raises SettingsError, StateError."""
    from agent.daemon.descriptors import take_all_descriptors
    from agent.placement.embedded import DatabaseError
    from agent.placement.embedded.http.auth import ServeError
    from agent.placement.embedded.http.serve import serve as run
    from agent.systemd import journald
    from agent.systemd.notify import Notifier

    journald.configure("info", "auto")
    take_all_descriptors()
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
