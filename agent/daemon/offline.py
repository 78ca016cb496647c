"""What an operator does in the daemon's place while it does not run: `plimsoll reshape --offline` and
`plimsoll adopt UUID`.

A reshape is a pass, by the daemon's code. A command that only looks works on a copy of the state directory:
what it writes is written to the copy. `adopt` gives this host a uuid.
"""

import os
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from agent.config.options import driver_class
from agent.config.settings import Settings
from agent.daemon.host_agent import reconciler_of
from agent.durable.files import LockHeld, is_there, lock_file_itself
from agent.errors import IdentityError, StateError, counted
from agent.placement.client import PlacementClient
from agent.placement.connect import open_transport
from agent.providers.resolve import OwnedProviders
from agent.reconcile.one_writer import writer_of
from agent.reconcile.pass_report import Preview
from agent.reconcile.placement_memory import go_on_without
from agent.reconcile.reconciler import Reconciler
from agent.reshape.receipt import Receipt
from agent.state import identity
from agent.state.identity import ID_FILE, Identity, WriterRecord, establish_identity, network_cards, place_of
from agent.state.journal import FILE_NAME, Journal
from agent.tracker.tracker import ResourceTracker


@contextmanager
def copied_state(settings: Settings) -> Iterator[Settings]:
    """The settings with a copy of the state directory, which may not exist yet.

    The lock of the journal keeps the agent from starting until the copy is there. Raises StateError while the
    agent is running, and where the directory cannot be read.
    """
    with TemporaryDirectory(prefix="plimsoll-") as directory:
        copy, journal = Path(directory) / "state", settings.state_path / FILE_NAME
        try:
            with ExitStack() as lock:
                with suppress(FileNotFoundError):
                    lock.callback(os.close, lock_file_itself(journal))
                if is_there(settings.state_path):
                    shutil.copytree(settings.state_path, copy, ignore=shutil.ignore_patterns("*.lock"))
                else:
                    copy.mkdir(mode=0o700)
        except LockHeld as error:
            raise StateError(
                f"The agent is running on {settings.state_path}: leave out --offline, or stop the agent.",
                path=str(journal),
            ) from error
        except (OSError, shutil.Error) as error:
            raise StateError(
                f"The state directory {settings.state_path} cannot be read: {error}; run this as root or as "
                "the agent's user.",
                path=str(settings.state_path),
            ) from error
        driver = replace(settings.driver, state_path=copy, read_only=True)
        yield replace(settings, state_path=copy, driver=driver)


def preview_reshape(settings: Settings, undo: str | None) -> Preview:
    """See `Reconciler.preview_reshape`. Writes nothing. Raises StateError while the agent is running."""
    with copied_state(settings) as copied:
        runs_in = settings.state_path if is_there(settings.state_path) else copied.state_path
        with _reconciler(copied, runs_in) as reconciler:
            return reconciler.preview_reshape(undo)


def reshape(settings: Settings, undo: str | None) -> tuple[Receipt, ...]:
    """See `Reconciler.reshape`; does nothing where no agent has run. Raises StateError while one runs."""
    if not any(is_there(settings.state_path / name) for name in (FILE_NAME, ID_FILE)):
        return ()  # a command that has nothing to move makes no host
    with _reconciler(settings, settings.state_path) as reconciler:
        return reconciler.reshape(undo)


@contextmanager
def _reconciler(settings: Settings, runs_in: Path) -> Iterator[Reconciler]:
    """The daemon's reconciler without its threads and sockets. The journal's lock excludes the daemon.

    `runs_in` is the state directory of the daemon for which it writes.
    """
    with ExitStack() as stack:
        journal = stack.enter_context(closing(Journal.open(settings.state_path)))
        directories = dict.fromkeys(file.parent for file in settings.files)
        identity = establish_identity(settings.state_path, settings.host, journal.host_uuid(), directories)
        if journal.host_uuid() is None:
            journal.remember_host(identity.uuid)
        driver = stack.enter_context(closing(driver_class(settings.compute_driver).create(settings.driver)))
        unserved = {**settings.placement.options, "serve": ()}
        transport = open_transport(settings.placement.kind, state_dir=settings.state_path, options=unserved)
        client = stack.enter_context(closing(PlacementClient(transport)))
        tracker = ResourceTracker(journal, client)
        # It ends before another agent can answer, so it challenges none.
        hurried = replace(settings, association_refresh_s=0)
        writer = writer_of(hurried, journal, client, identity.uuid, place_of(runs_in), network_cards())
        yield reconciler_of(settings, driver, client, tracker, journal, identity.uuid, writer)


def adopt(settings: Settings, host_uuid: str) -> Identity:
    """Make `host_uuid` the uuid of this host under its current name.

    Repairs a lost uuid file, a changed host name, a name that another provider has, or the mark of another
    agent: at its next start the agent writes for the host again, even if another agent wrote last. Raises
    IdentityError where the text is no uuid, where it is that of a child of this host's root, such as a card,
    or where the journal has claims of another host; StateError while the agent is running.
    """
    wanted = identity.canonical_uuid(host_uuid)
    with closing(Journal.open(settings.state_path)) as journal:
        recorded, claims = journal.host_uuid(), journal.claims()
        if recorded not in (None, wanted) and wanted in journal.owned():
            raise IdentityError(
                f"{wanted} is a part of this host, such as a card, and no host: the agent made that provider "
                f"below {recorded}, which stays this host's uuid. If another client took it out of the "
                "host's tree, start the agent: it puts it back.",
                uuid=recorded,
            )
        if claims and recorded not in (None, wanted):
            raise IdentityError(
                f"The agent's journal has {counted(len(claims), 'claim')} of the host {recorded}; release "
                f"{'it' if len(claims) == 1 else 'them'}, or adopt that uuid instead.",
                uuid=recorded,
                claims=len(claims),
            )
        adopted = identity.adopt_identity(settings.state_path, settings.host, wanted)
        go_on_without(settings.state_path)
        journal.remember_writer(WriterRecord(journal.writer().own, takes_over=True))
        if recorded != adopted.uuid:
            # The agent has written nothing on that provider, so it must not remove anything there.
            journal.remember_owned(OwnedProviders())
            journal.remember_host(adopted.uuid)
        return adopted
