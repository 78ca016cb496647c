"""Turn a flavor and its extra specs, as nova defines them, into a claim request. Pure.

    resources:CLASS=n, resourcesS:CLASS=n    amount in the unsuffixed group, or in group S; it replaces the
                                             flavor's amount, and 0 removes it
    trait:T=required|forbidden, traitS:T=..  trait of the unsuffixed group, or of group S
    group_policy=none|isolate                needed with two suffixed groups or more same_subtree=_A,_B
    one provider of these groups is above the others; `;` between sets hw:cpu_policy=shared|dedicated|mixed
    VCPU, PCPU, or both (hw:cpu_dedicated_mask says which) hw:cpu_thread_policy=prefer|isolate|require
    hw:numa_nodes=n, hw:numa_cpus.N=0-3, hw:numa_mem.N=MiB hw:mem_page_size=small|large|any|2MB     or a bare
    number of KiB pci_passthrough:alias=name:count,...

An unknown spec in one of these namespaces is refused, with the nearest known name in the error. Other
namespaces (`quota:`, `os:`, `capabilities:`, ...) do not concern resources and are ignored.

Source: https://docs.openstack.org/nova/latest/configuration/extra-specs.html.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches

from agent.claims.flavor_hw import check_hw, read_whole_spec, topology_of
from agent.claims.request import ClaimRequest, RequestGroup, TopologyRequest, check_request
from agent.errors import UsageError
from agent.json_checks import below, fault, read_object, read_text, read_whole
from agent.tree import MAX_UNIT

SPEC_MAX = 1024

_GROUPED = re.compile(r"(resources|trait)([A-Za-z0-9_-]{1,64})?:(.*)", re.ASCII | re.DOTALL)
_NAME = re.compile(r"[A-Z0-9_]{1,255}", re.ASCII)
_ALIAS = re.compile(r"\s*([^\s:,]{1,255})\s*:\s*([0-9]{1,5})\s*", re.ASCII)

_UNSCOPED = ("group_policy", "same_subtree")
_NAMESPACES = ("resources", "trait", "hw", "pci_passthrough")
_NO_DEVICES = ("VCPU", "PCPU", "MEMORY_MB", "DISK_GB")


@dataclass(frozen=True, slots=True)
class Flavor:
    """A nova flavor: `memory_mb` in MiB, `disk_gb` in GiB, `extra_specs` {key: text}."""

    vcpus: int
    memory_mb: int
    disk_gb: int = 0
    extra_specs: Mapping[str, str] = field(default_factory=dict)


def parse_flavor(value: object, path: str = "flavor") -> Flavor:
    """A flavor from parsed JSON. Raises UsageError, naming the path of the value at fault."""
    given = read_object(value, path, ("vcpus", "memory_mb", "disk_gb", "extra_specs"))
    specs = {}
    for key, text in read_object(given.get("extra_specs", {}), f"{path}.extra_specs").items():
        spec_path = below(f"{path}.extra_specs", key)
        read_text(key, spec_path, wanted="a name of at most 255 characters")
        numeric = isinstance(text, int) and not isinstance(text, bool)
        specs[key] = str(text) if numeric else read_text(text, spec_path, wanted="a text", longest=SPEC_MAX)
    return Flavor(
        read_whole(given.get("vcpus"), f"{path}.vcpus", 1, 65536),
        read_whole(given.get("memory_mb"), f"{path}.memory_mb", 1, MAX_UNIT),
        read_whole(given.get("disk_gb", 0), f"{path}.disk_gb", 0, MAX_UNIT),
        specs,
    )


def claim_for_flavor(
    consumer: str,
    flavor: Flavor,
    *,
    name: str = "",
    project_id: str = "plimsoll",
    user_id: str = "plimsoll",
    consumer_type: str = "INSTANCE",
) -> ClaimRequest:
    """The claim request of a guest of that flavor. Raises UsageError, naming the spec at fault."""
    specs = flavor.extra_specs
    for key in specs:
        _check_known(key, specs[key])
    topology = topology_of(flavor.vcpus, flavor.memory_mb, specs)
    policy = specs.get("group_policy")
    if policy not in (None, "none", "isolate"):
        raise fault("group_policy", "none or isolate", policy)
    return check_request(
        ClaimRequest(
            consumer,
            _groups(flavor, topology),
            group_policy=policy,
            same_subtree=tuple(
                frozenset(suffix.strip() for suffix in suffixes.split(","))
                for suffixes in specs.get("same_subtree", "").split(";")
                if suffixes.strip()
            ),
            topology=topology,
            pci=_spec_aliases(specs.get("pci_passthrough:alias")),
            name=name,
            project_id=project_id,
            user_id=user_id,
            consumer_type=consumer_type,
        )
    )


def _check_known(key: str, value: str) -> None:
    """Raises UsageError for an unknown spec in a namespace that concerns resources."""
    namespace, colon, spec = key.partition(":")
    if not colon:
        if key not in _UNSCOPED:
            _refuse_near(key, key, _UNSCOPED)
    elif _GROUPED.fullmatch(key):
        return
    elif namespace == "hw":
        check_hw(key, spec, value)
    elif namespace == "pci_passthrough":
        if spec != "alias":
            raise UsageError(f"{key}: unknown extra spec; did you mean pci_passthrough:alias?", spec=key)
    else:
        _refuse_near(key, namespace, _NAMESPACES)


def _refuse_near(key: str, name: str, known: tuple[str, ...]) -> None:
    near = get_close_matches(name, known, n=1, cutoff=0.85)
    if near:
        raise UsageError(f"{key}: unknown extra spec; did you mean {near[0]}{key[len(name) :]}?", spec=key)


def _groups(flavor: Flavor, topology: TopologyRequest) -> tuple[RequestGroup, ...]:
    resources: dict[str, dict[str, int]] = {
        "": {
            **_cpu_resources(flavor.vcpus, topology),
            "MEMORY_MB": flavor.memory_mb,
            "DISK_GB": flavor.disk_gb,
        }
    }
    required: dict[str, set[str]] = {}
    forbidden: dict[str, set[str]] = {}
    for key, value in flavor.extra_specs.items():
        match = _GROUPED.fullmatch(key)
        if not match:
            continue
        kind, suffix, name = match[1], match[2] or "", match[3]
        if not _NAME.fullmatch(name):
            raise fault(key, f"a name of {'resource class' if kind == 'resources' else 'trait'}", name)
        if kind == "resources":
            _check_against_policy(key, suffix, name, topology)
            resources.setdefault(suffix, {})[name] = read_whole_spec(key, value, 0, MAX_UNIT)
        elif value in ("required", "forbidden"):
            (required if value == "required" else forbidden).setdefault(suffix, set()).add(name)
        else:
            raise fault(key, "required or forbidden", value)
    return tuple(
        RequestGroup(
            suffix,
            {name: amount for name, amount in resources.get(suffix, {}).items() if amount},
            tuple(frozenset({name}) for name in sorted(required.get(suffix, ()))),
            frozenset(forbidden.get(suffix, ())),
            numa_policy=topology.pci_numa_policy
            if suffix and _has_device(resources.get(suffix, {}))
            else None,
        )
        for suffix in sorted({*resources, *required, *forbidden})
        if any(resources.get(suffix, {}).values()) or required.get(suffix) or forbidden.get(suffix)
    )


def _has_device(resources: Mapping[str, int]) -> bool:
    return any(amount for name, amount in resources.items() if name not in _NO_DEVICES)


def _check_against_policy(key: str, suffix: str, name: str, topology: TopologyRequest) -> None:
    if not suffix and name in ("VCPU", "PCPU") and topology.cpu_policy != "shared":
        raise UsageError(
            f"{key}: hw:cpu_policy={topology.cpu_policy} already determines the number of CPUs of each "
            "kind; remove one of the two specs.",
            spec=key,
        )


def _cpu_resources(vcpus: int, topology: TopologyRequest) -> dict[str, int]:
    if topology.cpu_policy == "shared":
        return {"VCPU": vcpus}
    if topology.cpu_policy == "dedicated":
        return {"PCPU": vcpus}
    pinned = len(topology.dedicated_cpus)
    return {"VCPU": vcpus - pinned, "PCPU": pinned}


def _spec_aliases(text: str | None) -> tuple[tuple[str, int], ...]:
    if text is None:
        return ()
    counts: dict[str, int] = {}
    for part in text.split(","):
        match = _ALIAS.fullmatch(part)
        if not match or int(match[2]) < 1:
            raise fault("pci_passthrough:alias", "name:count,name:count", text)
        counts[match[1]] = counts.get(match[1], 0) + int(match[2])
    return tuple(counts.items())
