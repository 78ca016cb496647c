"""The agent of one host as the service puts it together, but without its process and with its own clock."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast
from uuid import uuid4

from agent.api.operations import Operations
from agent.backoff import Backoff
from agent.claims.request import ClaimRequest, RequestGroup
from agent.clock import HostClock
from agent.config.settings import Settings, load
from agent.daemon.host_agent import HostAgent, Surroundings, assemble
from agent.driver import Driver
from agent.gate.effect import GatePaths
from agent.placement.connect import open_transport
from agent.placement.transport import Transport
from agent.state.identity import establish_identity
from agent.state.journal import Journal
from agent.status.metrics import Metrics
from agent.status.recorder import Recorder
from drivers.fake.driver import FakeDriver
from kits.placements import Placement, section_of
from kits.restarted import Closing
from kits.wire import Wire


class _Clock(HostClock):
    """Tests look at a host from a time that is still to come."""

    def age_s(self, stamp: float, least_s: float = 0.0) -> float:
        return self.now() - stamp


@dataclass
class World(Closing):
    agent: HostAgent
    operations: Operations
    driver: FakeDriver
    wire: Wire
    journal: Journal
    retries: list[float]
    time: list[float]
    audits_requested: list[float]
    carvings_requested: list[float]

    def retry(self) -> None:
        """Let the time pass until the agent tries again."""
        self.time[0] += self.retries[-1]
        self.agent.reconcile("the retry")

    def has_candidate(self, **amounts: int) -> bool:
        """Whether Placement has an allocation candidate; not for nothing."""
        wanted = ",".join(f"{name}:{amount}" for name, amount in amounts.items() if amount)
        path = f"/allocation_candidates?resources={wanted}"
        reply = self.wire.inner.request("GET", path, microversion="1.36") if wanted else None
        assert reply is None or reply.status == 200, reply
        return reply is not None and bool(reply.body["allocation_requests"])

    def close(self) -> None:
        self.driver.close()
        self.wire.close()
        self.journal.close()


def request(**resources: int) -> ClaimRequest:
    return ClaimRequest(str(uuid4()), (RequestGroup(resources=resources),))


def told(directory: Path, placement: Placement, more: str = "") -> Settings:
    """Settings for a fake host on that placement; `more` is further text of the file."""
    lines = ["[DEFAULT]", "compute_driver = fake", "host = node1", f"state_path = {directory}"]
    file = directory / "plimsoll.conf"
    file.touch(mode=0o600)
    file.write_text(section_of(placement) + "\n".join(lines) + "\n" + more)
    return load([file])


def opened(
    settings: Settings,
    over: Transport | None = None,
    gate_paths: GatePaths | None = None,
    other_driver: Driver | None = None,
    clock: HostClock | None = None,
) -> World:
    """The daemon's parts, put together as the service does it; `over`: another host's way to Placement.

    With `other_driver`, that is the driver; a test then leaves `World.driver` alone.
    """
    journal = Journal.open(settings.state_path)
    identity = establish_identity(settings.state_path, settings.host, journal.host_uuid())
    journal.remember_host(identity.uuid)
    told = settings.placement
    own = over or open_transport(told.kind, state_dir=settings.state_path, options=told.options)
    wire = Wire(own, shared=over is not None)
    metrics = Metrics()
    journal.observe_commits(metrics.commit_seconds.observe)
    recorder = Recorder(metrics, journal.record_event)
    driver = cast(FakeDriver, other_driver or FakeDriver.create(settings.driver))
    retries: list[float] = []
    now = [0.0]
    audits_requested: list[float] = []
    carvings_requested: list[float] = []
    agent, operations, _ = assemble(
        settings,
        identity,
        journal,
        driver,
        wire,
        recorder,
        Surroundings(
            on_change=recorder.record_event,
            wake=retries.append,
            gate_paths=gate_paths,
            wake_audit=lambda: audits_requested.append(now[0]),
            wake_carving=lambda: carvings_requested.append(now[0]),
            backoff=Backoff(clock=lambda: now[0], uniform=lambda _, high: high),
            clock=clock or _Clock(),
            steady=lambda: now[0],
        ),
    )
    return World(
        agent,
        operations,
        driver,
        wire,
        journal,
        retries,
        now,
        audits_requested,
        carvings_requested,
    )


def world_of(settings: Settings, over: Transport | None = None, **host: Any) -> World:
    """The same, once it has seen its host, of which the fake driver has these fields."""
    world = opened(settings, over)
    if host:
        world.driver.change(**host)
    world.agent.reconcile("the start")
    return world
