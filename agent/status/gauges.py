"""The overview as metrics: how things are at the moment of a scrape."""

import platform
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from prometheus_client.core import GaugeMetricFamily

from agent.audit.findings import KIND_NAMES
from agent.claims.claim import ClaimState
from agent.driver import GuestState
from agent.status.condition import HostState
from agent.status.overview import Overview

CONCERNS = ("agent", "driver", "identity", "placement", "reshape")


def gauges(seen: Overview) -> Iterator[GaugeMetricFamily]:
    """Every gauge of the agent, each with all its labels; docs/seeing.md lists them."""
    yield from _agent(seen)
    yield from _inventory(seen)
    yield from _instances(seen)
    yield _one_hot("audit_findings", "What the last audit found.", "kind", KIND_NAMES, _kinds(seen))
    yield _gauge(
        "reshape_pending", "1 while a reshape that is due is not done.", seen.reshape_pending is not None
    )


def _agent(seen: Overview) -> Iterator[GaugeMetricFamily]:
    status, fault = seen.status, seen.fault
    yield _info(
        "build_info",
        "The agent's version.",
        {"version": status["version"], "python_version": platform.python_version()},
    )
    yield _info(
        "host_info",
        "Which host this is, by which driver and which kind of placement.",
        {
            "host": status["host"],
            "uuid": status["uuid"],
            "driver": status["driver"]["name"],
            "placement": status["placement"]["kind"],
        },
    )
    yield _one_hot("state", "1 for the state the agent is in.", "state", HostState, {status["state"]: 1})
    yield _gauge("state_changed_timestamp_seconds", "When the agent got into its state.", seen.since)
    yield _one_hot(
        "fault", "1 for what is not in order.", "concern", CONCERNS, {fault.concern: 1} if fault else {}
    )
    yield _gauge("driver_up", "1 while the hypervisor answers.", status["driver"]["ok"])
    yield _gauge("placement_up", "1 while placement answers.", status["placement"]["ok"])
    yield _gauge("claims_open", "1 while claims are let in.", status["claims"]["open"])
    checks = GaugeMetricFamily(
        "plimsoll_health_check", "1 for each check that is well.", labels=("probe", "check")
    )
    for probe, found in (("livez", seen.health.live), ("readyz", seen.health.ready)):
        for check in found:
            checks.add_metric((probe, check.name), check.ok)
    yield checks
    yield _gauge("last_pass_timestamp_seconds", "When the last pass began.", seen.passed_at)
    yield _gauge("last_audit_timestamp_seconds", "When the last audit ended.", seen.audited_at)


def _inventory(seen: Overview) -> Iterator[GaugeMetricFamily]:
    labels = ("provider", "resource_class")
    size, reserved, capacity, used = (
        GaugeMetricFamily(f"plimsoll_inventory_{name}", text, labels=labels)
        for name, text in (
            ("size", "How much there is (total), in the resource class's own unit."),
            ("reserved", "How much of it is not for guests."),
            ("capacity", "How much may be used: (total - reserved) * allocation ratio."),
            ("used", "How much is in use, by whomever, as of the last pass and the claims since."),
        )
    )
    for provider in seen.tree:
        held = seen.used.get(provider.uuid, {})
        for name in sorted({*provider.inventories, *(each for each, amount in held.items() if amount)}):
            where = (provider.name, name)
            inventory = provider.inventories.get(name)
            size.add_metric(where, inventory.total if inventory else 0)
            reserved.add_metric(where, inventory.reserved if inventory else 0)
            capacity.add_metric(where, inventory.capacity if inventory else 0)
            used.add_metric(where, held.get(name, 0))
    yield _gauge("providers", "Resource providers in the host's tree.", len(seen.tree))
    yield from (size, reserved, capacity, used)


def _instances(seen: Overview) -> Iterator[GaugeMetricFamily]:
    guests = Counter(guest.state.value for guest in seen.guests)
    yield _one_hot("guests", "Guests on this host.", "state", GuestState, guests)
    claims = Counter(claim.state.value for claim in seen.claims.values())
    yield _one_hot("claims", "Claims on this host, those of moves too.", "state", ClaimState, claims)
    unclaimed = sum(guest is not None and claim is None for guest, claim in seen.instances)
    yield _gauge("unclaimed_guests", "Guests that nobody has claimed for.", unclaimed)
    yield _gauge(
        "pending_operations",
        "Releases, intents in doubt and ends of moves that wait for placement, or for a guest to go.",
        seen.pending,
    )
    moves = GaugeMetricFamily("plimsoll_moves", "Moves under way.", labels=("kind", "role", "state"))
    counted = Counter((move.kind.value, move.role.value, move.state.value) for move in seen.under_way)
    for where, number in sorted(counted.items()):
        moves.add_metric(where, number)
    yield moves


def _kinds(seen: Overview) -> Mapping[str, int]:
    return Counter(finding.kind for finding in seen.findings)


def _gauge(name: str, text: str, value: float | None) -> GaugeMetricFamily:
    """Without a value, only the name."""
    family = GaugeMetricFamily(f"plimsoll_{name}", text, labels=())
    if value is not None:
        family.add_metric((), float(value))
    return family


def _one_hot(
    name: str, text: str, label: str, known: Iterable[str], values: Mapping[str, int]
) -> GaugeMetricFamily:
    """One series for each of `known`, 0 where `values` has none."""
    family = GaugeMetricFamily(f"plimsoll_{name}", text, labels=(label,))
    for each in known:
        family.add_metric((str(each),), values.get(str(each), 0))
    return family


def _info(name: str, text: str, labels: Mapping[str, str]) -> GaugeMetricFamily:
    family = GaugeMetricFamily(f"plimsoll_{name}", text, labels=tuple(labels))
    family.add_metric(tuple(map(str, labels.values())), 1)
    return family
