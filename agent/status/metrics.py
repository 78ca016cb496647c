"""The agent's metrics for Prometheus: counters and histograms, and gauges that are computed at each scrape.

Names and units follow https://prometheus.io/docs/practices/naming/. No guest, claim or caller chooses a
label's value: providers and resource classes are those of the host's own tree, all others are enumerated in
the code.
docs/seeing.md lists every metric; a test compares the two.
"""

import platform
import re
import time
from collections import Counter as Tally
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Histogram,
    ProcessCollector,
    generate_latest,
)
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from agent import __version__
from agent.audit.findings import KIND_NAMES
from agent.claims.claim import ClaimState, ClaimStep
from agent.driver import GuestState
from agent.errors import PlacementUnavailable
from agent.moves.states import MoveKind
from agent.placement.transport import Reply, Transport, is_certain
from agent.providers.device_health import Symptom
from agent.state.journal import RESHAPE_EVENT
from agent.status.overview import PLACEMENT, HostState, Overview

FAST_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
SLOW_S = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 10, 30, 60, 300)
GRANTED = "granted"
NO_ANSWER = "none"
_CREATED = re.compile(rb"(# (HELP|TYPE) )?plimsoll_\w+_created\b")


class Metrics:
    """One agent's metrics, in a registry of its own. Any thread may count."""

    def __init__(self) -> None:
        registry = self.registry = CollectorRegistry()

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"plimsoll_{name}", text, labels, registry=registry)

        def histogram(name: str, text: str, buckets: tuple[float, ...], *labels: str) -> Histogram:
            return Histogram(f"plimsoll_{name}", text, labels, buckets=buckets, registry=registry)

        self.claim_requests = counter(
            "claim_requests", "Claim requests; outcome is granted, or the error's code.", "outcome"
        )
        self.claim_seconds = histogram(
            "claim_duration_seconds", "From a claim's request to its answer, granted or not.", FAST_S
        )
        self.claim_steps = counter("claim_steps", "Steps in the lives of claims.", "step")
        self.move_requests = counter(
            "move_requests",
            "Requests to begin a move to this host; outcome is begun, or the error's code.",
            "kind",
            "outcome",
        )
        self.gate_requests = counter(
            "gate_requests",
            "Questions to the gate; outcome is the verdict's, or the error's code.",
            "outcome",
        )
        self.gate_seconds = histogram("gate_duration_seconds", "Duration of the gate's decisions.", FAST_S)
        self.move_steps = counter("move_steps", "Steps in the lives of moves.", "kind", "step")
        self.reshapes = counter("reshapes", "Reshapes that were done.")
        self.passes = counter("passes", "Passes; outcome is unchanged, changed or failed.", "outcome")
        self.pass_seconds = histogram("pass_duration_seconds", "Duration of passes.", SLOW_S)
        self.operations = counter("pass_operations", "Changes that passes made in Placement.")
        self.audits = counter("audits", "Audits; outcome is done or failed.", "outcome")
        self.healed = counter("healed_findings", "Findings of the audit that were healed.", "kind")
        self.placement_requests = counter(
            "placement_requests",
            "Requests to Placement; status is its HTTP status, none where no answer came.",
            "method",
            "status",
        )
        self.placement_seconds = histogram(
            "placement_request_duration_seconds", "Duration of Placement's answers.", FAST_S, "method"
        )
        self.commit_seconds = histogram(
            "commit_duration_seconds", "Duration of commits to the agent's own database.", FAST_S
        )
        self.claim_requests.labels(GRANTED)
        for step in ClaimStep:
            self.claim_steps.labels(step)
        for outcome in ("unchanged", "changed", "failed"):
            self.passes.labels(outcome)
        ProcessCollector(registry=registry)

    def count_step(self, step: str, kind: MoveKind | None) -> None:
        """Count a step of a claim, of a move (then `kind` is given), or a reshape."""
        if kind is not None:
            self.move_steps.labels(kind, step).inc()
        elif step == RESHAPE_EVENT:
            self.reshapes.inc()
        else:
            self.claim_steps.labels(step).inc()

    def collect_at_scrape(self, collect: Callable[[], Iterable[Metric]]) -> None:
        """Call `collect` at each scrape, for gauges."""
        self.registry.register(_ScrapeCollector(collect))

    def text(self) -> bytes:
        """All metrics in Prometheus's text format, version 0.0.4.

        Without the `_created` series of each counter, since the process's start time tells the same. The
        library's switch for that differs between its versions, and applies to the whole process.
        """
        lines = generate_latest(self.registry).splitlines(keepends=True)
        return b"".join(line for line in lines if not _CREATED.match(line))


class _ScrapeCollector(Collector):
    def __init__(self, collect: Callable[[], Iterable[Metric]]) -> None:
        self._collect = collect

    def collect(self) -> Iterable[Metric]:
        return self._collect()

    def describe(self) -> Iterable[Metric]:
        return ()  # else the registry collects once, to learn the names


CONCERNS = ("agent", "driver", "identity", "placement", "reshape")


def gauges(overview: Overview) -> Iterator[GaugeMetricFamily]:
    """All gauges of the agent, with all their labels; docs/seeing.md lists them."""
    yield from _agent(overview)
    labels = ("provider", "resource_class")
    size, reserved, capacity, used = (
        GaugeMetricFamily(f"plimsoll_inventory_{name}", text, labels=labels)
        for name, text in (
            ("size", "The total, in the unit of the resource class."),
            ("reserved", "The part of it that is not for guests."),
            ("capacity", "What guests may use: (total - reserved) * allocation ratio."),
            ("used", "What all consumers use, as of the last pass and the claims since."),
        )
    )
    for provider in overview.tree:
        used_here = overview.used.get(provider.uuid, {})
        for name in sorted({*provider.inventories, *(name for name, amount in used_here.items() if amount)}):
            labels_here = (provider.name, name)
            inventory = provider.inventories.get(name)
            size.add_metric(labels_here, inventory.total if inventory else 0)
            reserved.add_metric(labels_here, inventory.reserved if inventory else 0)
            capacity.add_metric(labels_here, inventory.capacity if inventory else 0)
            used.add_metric(labels_here, used_here.get(name, 0))
    yield _gauge("providers", "Resource providers in the host's tree.", len(overview.tree))
    yield from (size, reserved, capacity, used)
    # Guests, claims and moves.
    guests = Tally(guest.state.value for guest in overview.guests)
    yield _one_hot("guests", "Guests on this host.", "state", GuestState, guests)
    claims = Tally(claim.state.value for claim in overview.claims.values())
    yield _one_hot("claims", "Claims on this host, including those of moves.", "state", ClaimState, claims)
    unclaimed = sum(
        guest is not None and not guest.is_off and claim is None and guest.uuid not in overview.moving
        for guest, claim in overview.instances
    )
    yield _gauge("unclaimed_guests", "Guests that run without a claim, and that are in no move.", unclaimed)
    yield _gauge(
        "moved_away_guests",
        "Guests on this host whose instance is on another one, by Placement.",
        len(overview.seen.moved_away),
    )
    yield _gauge(
        "pending_operations",
        "Releases, intents in doubt and ends of moves that wait for Placement or for a guest to leave.",
        overview.pending,
    )
    moves = GaugeMetricFamily("plimsoll_moves", "Moves under way.", labels=("kind", "role", "state"))
    counted = Tally((move.kind.value, move.role.value, move.state.value) for move in overview.under_way)
    for move_labels, number in sorted(counted.items()):
        moves.add_metric(move_labels, number)
    yield moves
    yield _one_hot(
        "audit_findings",
        "What the last audit found.",
        "kind",
        KIND_NAMES,
        Tally(finding.kind for finding in overview.findings),
    )
    yield _one_hot(
        "unhealthy_devices",
        "Devices that are not well, by symptom; one with several symptoms counts for each.",
        "symptom",
        Symptom,
        Tally(symptom.value for health in overview.unhealthy.values() for symptom in health.causes),
    )
    yield _gauge(
        "reshape_pending", "1 while a reshape is due but not done.", overview.reshape_pending is not None
    )


def _agent(overview: Overview) -> Iterator[GaugeMetricFamily]:
    status, fault = overview.status, overview.status.fault
    yield _info(
        "build_info",
        "The agent's version.",
        {"version": __version__, "python_version": platform.python_version()},
    )
    yield _info(
        "host_info",
        "The host, its driver and its kind of Placement.",
        {
            "host": status.host,
            "uuid": status.uuid or "",
            "driver": status.driver,
            "placement": status.placement,
        },
    )
    yield _one_hot("state", "1 for the state the agent is in.", "state", HostState, {status.state: 1})
    yield _gauge("state_changed_timestamp_seconds", "When the agent's state last changed.", status.since)
    yield _one_hot(
        "fault", "1 for the part that has a fault.", "concern", CONCERNS, {fault.concern: 1} if fault else {}
    )
    yield _gauge("driver_up", "1 while the hypervisor answers.", status.error("driver") is None)
    yield _gauge("placement_up", "1 while Placement answers.", status.error(PLACEMENT) is None)
    yield _gauge("claims_open", "1 while the agent takes claims.", status.closed is None)
    yield _gauge(
        "gate_in_effect",
        "1 while guests start only by the gate's word; no sample while the gate is disabled.",
        status.gate.in_effect,
    )
    yield _gauge("paused", "1 while an operator has paused or drained the host.", status.pause is not None)
    checks = GaugeMetricFamily(
        "plimsoll_health_check", "1 for each health check that passes.", labels=("probe", "check")
    )
    for probe, health_checks in (("livez", overview.health.live), ("readyz", overview.health.ready)):
        for check in health_checks:
            checks.add_metric((probe, check.name), check.ok)
    yield checks
    passed_at = status.last_pass.at if status.last_pass else None
    yield _gauge("last_pass_timestamp_seconds", "When the last pass began.", passed_at)
    yield _gauge(
        "last_pass_age_seconds",
        "How long ago the last pass ended, or the agent started, by the monotonic clock.",
        overview.pass_age_s,
    )
    yield _gauge("last_audit_timestamp_seconds", "When the last audit ended.", status.audited)


def _gauge(name: str, text: str, value: float | None) -> GaugeMetricFamily:
    """A gauge without labels; without a value, only its name."""
    family = GaugeMetricFamily(f"plimsoll_{name}", text, labels=())
    if value is not None:
        family.add_metric((), float(value))
    return family


def _one_hot(
    name: str, text: str, label: str, known: Iterable[str], values: Mapping[str, int]
) -> GaugeMetricFamily:
    """One series for each of `known`, 0 where `values` has none."""
    family = GaugeMetricFamily(f"plimsoll_{name}", text, labels=(label,))
    for value in known:
        family.add_metric((str(value),), values.get(str(value), 0))
    return family


def _info(name: str, text: str, labels: Mapping[str, str]) -> GaugeMetricFamily:
    family = GaugeMetricFamily(f"plimsoll_{name}", text, labels=tuple(labels))
    family.add_metric(tuple(map(str, labels.values())), 1)
    return family


class MeteredTransport:
    """Sends through `inner`; `timer` gives seconds of a steady clock."""

    def __init__(
        self, inner: Transport, metrics: Metrics, timer: Callable[[], float] = time.perf_counter
    ) -> None:
        self._inner = inner
        self._metrics = metrics
        self._timer = timer

    @property
    def certain(self) -> bool:
        """See `agent.placement.transport.is_certain`."""
        return is_certain(self._inner)

    def request(self, method: str, path: str, body: Any = None, *, microversion: str) -> Reply:
        """See `agent.placement.transport.Transport`, as for `close`."""
        began, status = self._timer(), NO_ANSWER
        try:
            reply = self._inner.request(method, path, body, microversion=microversion)
            status = str(reply.status)
            return reply
        except PlacementUnavailable as error:
            status = str(error.status or NO_ANSWER)
            raise
        finally:
            self._metrics.placement_seconds.labels(method).observe(self._timer() - began)
            self._metrics.placement_requests.labels(method, status).inc()

    def close(self) -> None:
        """Close `inner`."""
        self._inner.close()
