"""Builds one host's agent from its parts; `agent.daemon.service` runs it as a process."""

import time
from collections.abc import Callable
from typing import NamedTuple

from agent.api.operations import Operations
from agent.audit.auditor import Auditor
from agent.backoff import Backoff
from agent.clock import HostClock
from agent.config.places import check_running_state_path
from agent.config.settings import Settings
from agent.daemon.host_agent import HostAgent
from agent.daemon.kept_needs import BootNeeds, CpuNeeds
from agent.driver import Driver
from agent.gate.effect import GateEffect, GatePaths, is_enabled, read_effect
from agent.gate.gate import Gate
from agent.moves.states import MoveKind
from agent.placement.client import PlacementClient
from agent.placement.transport import Transport
from agent.reconcile.one_writer import writer_of
from agent.reconcile.placement_home import check_home, home_name
from agent.reconcile.reconciler import Reconciler
from agent.reconcile.tree_cache import TreeCache
from agent.state.identity import Identity
from agent.state.journal import Journal
from agent.status.host_status import AgentStatus
from agent.status.metrics import MeteredTransport
from agent.status.overview import Condition, HostState
from agent.status.recorder import Recorder
from agent.tracker.tracker import ResourceTracker


class Assembled(NamedTuple):
    """One host's agent. `agent` runs the jobs, `operations` answer the local API; close `reconciler` at the
    end, which closes the driver. `boot_needs` keeps the plan file, `cpu_needs` that of dedicated CPUs."""

    agent: HostAgent
    operations: Operations
    reconciler: Reconciler
    boot_needs: BootNeeds
    cpu_needs: CpuNeeds


def assemble(
    settings: Settings,
    identity: Identity,
    journal: Journal,
    driver: Driver,
    transport: Transport,
    recorder: Recorder,
    *,
    on_change: Callable[[HostState, str], None],
    wake: Callable[[float], None],
    wake_audit: Callable[[], None] = lambda: None,
    wake_carving: Callable[[], None] = lambda: None,
    gate_paths: GatePaths | None = None,
    place: str | None = None,
    backoff: Backoff | None = None,
    clock: HostClock | None = None,
    steady: Callable[[], float] = time.monotonic,
) -> Assembled:
    """Build the parts; make no request to the driver or to Placement yet, and write nothing.

    `on_change(state, sentence)` is called after each change of the agent's state; `wake(delay_s)` schedules a
    pass in so many seconds, `wake_audit` the first audit, and `wake_carving` a look at what a boot needs.
    `gate_paths`: where to look for the gate's hook. `clock` tells how old claims, moves and doubts are, and
    `steady` for how long the host has been closed. `place`: where this agent runs, if not in the state
    directory of this machine. Raises StateError.
    """
    clock = clock or HostClock()
    client = PlacementClient(MeteredTransport(transport, recorder.metrics))

    def on_step(step: str, kind: MoveKind | None) -> None:
        recorder.metrics.count_step(step, kind)
        wake_carving()

    tracker = ResourceTracker(journal, client, on_step=on_step, clock=clock.now, age_s=clock.age_s)
    tracker.choose_by(settings.claims_strategy)
    home = home_name(settings.placement)
    reconciler = Reconciler(
        driver,
        client,
        tracker,
        journal,
        identity.uuid,
        check_home=lambda: check_home(settings.state_path, client, home, tracker.claims().values()),
        tree_cache=TreeCache(settings.state_path, home),
        provider_config=settings.provider_config,
        owner_trait=settings.placement.shared_owner_trait,
        writer=writer_of(settings, journal, client, identity.uuid, place),
        clock=clock.now,
    )
    auditor = Auditor(
        tracker,
        client,
        identity.uuid,
        reconciler.read_known_guests,
        journal.devices,
        lambda: reconciler.tree,
        lambda: reconciler.leads,
        check_writer=reconciler.check_audited,
        may_not_heal=lambda tree, taking: reconciler.holds_back(tree, taking=taking),
    )
    gate = Gate(
        tracker,
        client,
        reconciler.guest_of,
        journal.devices,
        reconciler.passed_devices,
        clock=clock.now,
    )
    condition = Condition(on_change)
    host_status = AgentStatus(
        settings,
        identity,
        tracker,
        journal,
        reconciler,
        condition,
        auditor,
        recorder.metrics,
        gate_effect=lambda undecided: (
            GateEffect() if gate_paths is None else read_effect(gate_paths, undecided, settings.api.socket)
        ),
    )
    agent = HostAgent(
        settings,
        identity,
        reconciler,
        tracker,
        condition,
        host_status,
        auditor,
        recorder,
        gate,
        wake=wake,
        wake_audit=wake_audit,
        is_gate_enabled=lambda: gate_paths is not None and is_enabled(gate_paths),
        check_directory=lambda: check_running_state_path(settings.state_path),
        check_state=lambda: journal.remember_host(identity.uuid),
        ask_placement=lambda: client.generations(identity.uuid),
        backoff=backoff,
        steady=steady,
    )
    operations = Operations(
        agent,
        identity,
        tracker,
        reconciler,
        client,
        auditor,
        gate,
        recorder,
        condition,
        host_status,
    )
    boot_needs = BootNeeds(
        settings.state_path,
        lambda: tracker.claims().values(),
        lambda: reconciler.guests,
        reconciler.carved_units,
    )
    cpu_needs = CpuNeeds(
        settings.state_path,
        lambda: agent.settings.driver.host_settings,
        lambda: tracker.rows().values(),
        lambda: reconciler.guests,
    )
    return Assembled(agent, operations, reconciler, boot_needs, cpu_needs)
