"""Puts the parts of one host's agent together; `agent.daemon.service` makes a process of them."""

from collections.abc import Callable
from typing import NamedTuple

from agent.audit.auditor import Auditor
from agent.backoff import Backoff
from agent.config.settings import Settings
from agent.daemon.host_agent import HostAgent
from agent.driver import Driver
from agent.gate.gate import Gate
from agent.placement.client import PlacementClient
from agent.placement.transport import Transport
from agent.reconcile.placement_home import arrive, place
from agent.reconcile.reconciler import Reconciler
from agent.reconcile.reshape_runner import ReshapeRunner
from agent.reconcile.tree_cache import TreeCache
from agent.state.identity import Identity
from agent.state.journal import Journal
from agent.status.condition import Condition, HostState
from agent.status.metered_transport import MeteredTransport
from agent.status.recorder import Recorder
from agent.tracker.tracker import ResourceTracker


class Assembled(NamedTuple):
    """`reconciler` is what holds the driver: who lets go of the host closes it."""

    agent: HostAgent
    reconciler: Reconciler


def assemble(
    settings: Settings,
    identity: Identity,
    journal: Journal,
    driver: Driver,
    transport: Transport,
    observer: Recorder,
    *,
    turned: Callable[[HostState, str], None],
    wake: Callable[[float], None],
    backoff: Backoff | None = None,
) -> Assembled:
    """Nothing is asked of the driver or of placement yet, and nothing written.

    `turned(state, sentence)` is told each change of the agent's state; `wake(delay_s)` is asked for a pass in
    so many seconds.
    """
    client = PlacementClient(MeteredTransport(transport, observer.meters))
    tracker = ResourceTracker(journal, client)
    here = place(settings.placement)
    reconciler = Reconciler(
        driver,
        client,
        tracker,
        journal,
        identity.uuid,
        reshape_runner=ReshapeRunner(client, tracker, journal, identity.uuid),
        arrive=lambda: arrive(settings.state_path, client, here, tracker.claims().values()),
        seen=TreeCache(settings.state_path, here),
        provider_config=settings.provider_config,
    )
    auditor = Auditor(
        tracker, client, identity.uuid, reconciler.read_guests, journal.devices, lambda: reconciler.tree
    )
    agent = HostAgent(
        settings,
        identity,
        reconciler,
        tracker,
        client,
        Condition(turned),
        wake=wake,
        prove=lambda: journal.remember_host(identity.uuid),
        auditor=auditor,
        observer=observer,
        gate=Gate(tracker, client, reconciler.guest_of, journal.devices),
        backoff=backoff,
    )
    return Assembled(agent, reconciler)
