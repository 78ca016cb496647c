"""`plimsoll reshape --offline`: the pass and its reshape while the daemon is not running; the same code."""

from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict

from agent.config.options import driver_class
from agent.config.settings import Settings
from agent.placement.client import PlacementClient
from agent.placement.connect import open_transport
from agent.reconcile.placement_home import check_home, home_name
from agent.reconcile.reconciler import Reconciler
from agent.reconcile.reshape_preview import Preview
from agent.reshape.receipt import Receipt
from agent.state.identity import establish_identity
from agent.state.journal import Journal
from agent.tracker.tracker import ResourceTracker


def preview_reshape(told: Settings, undo: str | None) -> Preview:
    """See `Reconciler.preview_reshape`. Raises StateError while the agent is running."""
    with _reconciler(told) as reconciler:
        return reconciler.preview_reshape(undo)


def reshape(told: Settings, undo: str | None) -> tuple[Receipt, ...]:
    """See `Reconciler.reshape`. Raises StateError while the agent is running."""
    with _reconciler(told) as reconciler:
        return reconciler.reshape(undo)


@contextmanager
def _reconciler(told: Settings) -> Iterator[Reconciler]:
    """The daemon's parts without its threads and sockets. The journal's lock keeps the daemon out."""
    with ExitStack() as stack:
        journal = stack.enter_context(closing(Journal.open(told.state_path)))
        directories = dict.fromkeys(file.parent for file in told.files)
        identity = establish_identity(told.state_path, told.host, journal.host_uuid(), directories)
        if journal.host_uuid() is None:
            journal.remember_host(identity.uuid)
        driver = stack.enter_context(closing(driver_class(told.compute_driver).create(told.driver)))
        unserved = asdict(told.placement) | {"serve": ()}
        transport = open_transport(told.placement.kind, state_dir=told.state_path, options=unserved)
        client = stack.enter_context(closing(PlacementClient(transport)))
        tracker = ResourceTracker(journal, client)
        yield Reconciler(
            driver,
            client,
            tracker,
            journal,
            identity.uuid,
            provider_config=told.provider_config,
            check_home=lambda: check_home(
                told.state_path, client, home_name(told.placement), tracker.claims().values()
            ),
        )
