"""The parts of one host's agent, put together; what makes it a process is around that, in `agent.service`."""

from collections.abc import Callable
from typing import NamedTuple

from agent.audit.auditing import Auditor
from agent.backoff import Backoff
from agent.condition import Condition, State
from agent.driver import Driver
from agent.gate.gate import Gate
from agent.home import arrive, place
from agent.host import HostAgent
from agent.identity import Identity
from agent.journal import Journal
from agent.placement.client import PlacementClient
from agent.placement.transport import Transport
from agent.report import Reporter
from agent.reshape.reshaping import Reshaping
from agent.seeing.metered import MeteredTransport
from agent.seeing.observer import Observer
from agent.seen import Seen
from agent.settings import Settings
from agent.tracker import ResourceTracker


class Assembled(NamedTuple):
    """`reporter` is what holds the driver: who lets go of the host closes it."""

    agent: HostAgent
    reporter: Reporter


def assemble(
    settings: Settings,
    identity: Identity,
    journal: Journal,
    driver: Driver,
    transport: Transport,
    observer: Observer,
    *,
    turned: Callable[[State, str], None],
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
    reporter = Reporter(
        driver,
        client,
        tracker,
        journal,
        identity.uuid,
        reshaping=Reshaping(client, tracker, journal, identity.uuid),
        arrive=lambda: arrive(settings.state_path, client, here, tracker.claims().values()),
        seen=Seen(settings.state_path, here),
        provider_config=settings.provider_config,
    )
    auditor = Auditor(
        tracker, client, identity.uuid, reporter.guests_now, journal.devices, lambda: reporter.tree
    )
    agent = HostAgent(
        settings,
        identity,
        reporter,
        tracker,
        client,
        Condition(turned),
        wake=wake,
        prove=lambda: journal.remember_host(identity.uuid),
        auditor=auditor,
        observer=observer,
        gate=Gate(tracker, client, reporter.guest_of, journal.devices),
        backoff=backoff,
    )
    return Assembled(agent, reporter)
