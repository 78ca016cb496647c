"""The overview as gauges, at the moment of a scrape."""

import platform
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from prometheus_client.core import GaugeMetricFamily

from agent.audit.findings import KIND_NAMES
from agent.claims.claim import ClaimState
from agent.claims.used import IDLE
from agent.driver import GuestState
from agent.providers.device_health import Symptom
from agent.status.condition import HostState
from agent.status.overview import Overview

CONCERNS = ("agent", "driver", "identity", "placement", "reshape")


def gauges(overview: Overview) -> Iterator[GaugeMetricFamily]:
    """All gauges of the agent, with all their labels; docs/seeing.md lists them."""
    yield from _agent(overview)
    yield from _inventory(overview)
    yield from _instances(overview)
    yield _one_hot("audit_findings", "What the last audit found.", "kind", KIND_NAMES, _kinds(overview))
    yield _one_hot(
        "unhealthy_devices",
        "Devices that are not well, by symptom; one with several symptoms counts for each.",
        "symptom",
        Symptom,
        Counter(symptom.value for health in overview.unhealthy.values() for symptom in health.causes),
    )
    yield _gauge(
        "reshape_pending", "1 while a reshape is due but not done.", overview.reshape_pending is not None
    )


def _agent(overview: Overview) -> Iterator[GaugeMetricFamily]:
    status, fault = overview.status, overview.fault
    yield _info(
        "build_info",
        "The agent's version.",
        {"version": status["version"], "python_version": platform.python_version()},
    )
    yield _info(
        "host_info",
        "The host, its driver and its kind of Placement.",
        {
            "host": status["host"],
            "uuid": status["uuid"],
            "driver": status["driver"]["name"],
            "placement": status["placement"]["kind"],
        },
    )
    yield _one_hot("state", "1 for the state the agent is in.", "state", HostState, {status["state"]: 1})
    yield _gauge("state_changed_timestamp_seconds", "When the agent's state last changed.", overview.since)
    yield _one_hot(
        "fault", "1 for the part that has a fault.", "concern", CONCERNS, {fault.concern: 1} if fault else {}
    )
    yield _gauge("driver_up", "1 while the hypervisor answers.", status["driver"]["ok"])
    yield _gauge("placement_up", "1 while Placement answers.", status["placement"]["ok"])
    yield _gauge("claims_open", "1 while the agent takes claims.", status["claims"]["open"])
    yield _gauge(
        "gate_in_effect",
        "1 while guests start only by the gate's word; no sample while the gate is disabled.",
        status["gate"]["in_effect"],
    )
    yield _gauge("paused", "1 while an operator has paused or drained the host.", status["pause"] is not None)
    checks = GaugeMetricFamily(
        "plimsoll_health_check", "1 for each health check that passes.", labels=("probe", "check")
    )
    for probe, health_checks in (("livez", overview.health.live), ("readyz", overview.health.ready)):
        for check in health_checks:
            checks.add_metric((probe, check.name), check.ok)
    yield checks
    yield _gauge("last_pass_timestamp_seconds", "When the last pass began.", overview.passed_at)
    yield _gauge("last_audit_timestamp_seconds", "When the last audit ended.", overview.audited_at)


def _inventory(overview: Overview) -> Iterator[GaugeMetricFamily]:
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


def _instances(overview: Overview) -> Iterator[GaugeMetricFamily]:
    guests = Counter(guest.state.value for guest in overview.guests)
    yield _one_hot("guests", "Guests on this host.", "state", GuestState, guests)
    claims = Counter(claim.state.value for claim in overview.claims.values())
    yield _one_hot("claims", "Claims on this host, including those of moves.", "state", ClaimState, claims)
    unclaimed = sum(
        guest is not None and guest.state not in IDLE and claim is None for guest, claim in overview.instances
    )
    yield _gauge("unclaimed_guests", "Guests that run without a claim.", unclaimed)
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
    counted = Counter((move.kind.value, move.role.value, move.state.value) for move in overview.under_way)
    for move_labels, number in sorted(counted.items()):
        moves.add_metric(move_labels, number)
    yield moves


def _kinds(overview: Overview) -> Mapping[str, int]:
    return Counter(finding.kind for finding in overview.findings)


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
