"""`plimsoll reshape --offline`: a pass with its reshape, by the daemon's code, while no daemon runs."""

from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict

from agent.config.options import driver_class
from agent.config.settings import Settings
from agent.daemon.state_copy import copied_state
from agent.durable.files import is_there
from agent.placement.client import PlacementClient
from agent.placement.connect import open_transport
from agent.reconcile.placement_home import check_home, home_name
from agent.reconcile.reconciler import Reconciler
from agent.reconcile.reshape_preview import Preview
from agent.reshape.receipt import Receipt
from agent.state.identity import ID_FILE, establish_identity
from agent.state.journal import FILE_NAME, Journal
from agent.tracker.tracker import ResourceTracker


def preview_reshape(settings: Settings, undo: str | None) -> Preview:
    """See `Reconciler.preview_reshape`. Writes nothing. Raises StateError while the agent is running."""
    with copied_state(settings) as copied, _reconciler(copied) as reconciler:
        return reconciler.preview_reshape(undo)


def reshape(settings: Settings, undo: str | None) -> tuple[Receipt, ...]:
    """See `Reconciler.reshape`; does nothing where no agent has run. Raises StateError while one runs."""
    if not any(is_there(settings.state_path / name) for name in (FILE_NAME, ID_FILE)):
        return ()  # a command that has nothing to move makes no host
    with _reconciler(settings) as reconciler:
        return reconciler.reshape(undo)


@contextmanager
def _reconciler(settings: Settings) -> Iterator[Reconciler]:
    """The daemon's reconciler without its threads and sockets. The journal's lock excludes the daemon."""
    with ExitStack() as stack:
        journal = stack.enter_context(closing(Journal.open(settings.state_path)))
        directories = dict.fromkeys(file.parent for file in settings.files)
        identity = establish_identity(settings.state_path, settings.host, journal.host_uuid(), directories)
        if journal.host_uuid() is None:
            journal.remember_host(identity.uuid)
        driver = stack.enter_context(closing(driver_class(settings.compute_driver).create(settings.driver)))
        unserved = asdict(settings.placement) | {"serve": ()}
        transport = open_transport(settings.placement.kind, state_dir=settings.state_path, options=unserved)
        client = stack.enter_context(closing(PlacementClient(transport)))
        tracker = ResourceTracker(journal, client)
        yield Reconciler(
            driver,
            client,
            tracker,
            journal,
            identity.uuid,
            provider_config=settings.provider_config,
            owner_trait=settings.placement.shared_owner_trait,
            check_home=lambda: check_home(
                settings.state_path, client, home_name(settings.placement), tracker.claims().values()
            ),
        )
