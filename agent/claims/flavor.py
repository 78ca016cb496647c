"""Turn a flavor with its extra specs and an image's properties, as nova defines them, into a claim. Pure.

agent.claims.extra_specs lists the extra specs, agent.claims.image the properties; each says what nova asks
for and what the claim asks for. An unknown spec in a namespace of nova is refused, with the nearest known
name in the error.

Source: https://docs.openstack.org/nova/latest/configuration/extra-specs.html.
"""

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace

from agent.claims.device_profiles import SPEC as PROFILE_SPEC
from agent.claims.device_profiles import DeviceProfiles, ProfileGroup, group_suffix, groups_of_profile
from agent.claims.extra_specs import check_known
from agent.claims.flavor_hw import pmem_labels, read_whole_spec, topology_of
from agent.claims.host_traits import encryption_trait, host_traits
from agent.claims.image import Image, check_encryption, image_traits, required_traits, with_image
from agent.claims.near_names import unknown_class, unknown_trait
from agent.claims.numa.guest_cells import wants_cells
from agent.claims.request import ClaimRequest, RequestGroup, TopologyRequest, check_request
from agent.device_names import pmem_class
from agent.errors import UsageError
from agent.json_checks import below, fault, read_object, read_text, read_whole
from agent.tree import MAX_UNIT

SPEC_MAX = 1024

_GROUPED = re.compile(r"(resources|trait)([A-Za-z0-9_-]{1,64})?:(.*)", re.ASCII | re.DOTALL)
_NAME = re.compile(r"[A-Z0-9_]{1,255}", re.ASCII)
_ALIAS = re.compile(r"\s*([^\s:,]{1,255})\s*:\s*([0-9]{1,5})\s*", re.ASCII)

_PLURAL = "s"
"""A suffix of a group; of one that has traits alone, it is a slip: `traits:NAME`."""
_THREADS = "trait:HW_CPU_HYPERTHREADING"
_NO_DEVICES = ("VCPU", "PCPU", "MEMORY_MB", "DISK_GB", "MEM_ENCRYPTION_CONTEXT")


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
    image: Image | None = None,
    profiles: DeviceProfiles | None = None,
    *,
    name: str = "",
    project_id: str = "plimsoll",
    user_id: str = "plimsoll",
    consumer_type: str = "INSTANCE",
) -> ClaimRequest:
    """The claim request of a guest of that flavor, made of that image; None: nothing is known of its image.

    `profiles` are the device profiles that `accel:device_profile` may name.
    Raises UsageError, naming the spec or the property at fault.
    """
    for key in flavor.extra_specs:
        if not _GROUPED.fullmatch(key):
            check_known(key)
    specs = with_image(flavor.extra_specs, image or {})
    of_image = required_traits(image or {})
    # A flavor or an image may require the trait; it is a thread policy of pinned CPUs (claims.flavor_hw).
    threads = {_THREADS: "required"} if _THREADS in {f"trait:{name}" for name in of_image} else {}
    profile = groups_of_profile(specs[PROFILE_SPEC], profiles or {}) if PROFILE_SPEC in specs else ()
    topology = topology_of(flavor.vcpus, flavor.memory_mb, threads | specs)
    encryption = encryption_trait(specs)
    if encryption and image is not None:
        check_encryption(image, encryption)
    policy = specs.get("group_policy")
    if policy not in (None, "none", "isolate"):
        raise fault("group_policy", "none or isolate", policy)
    groups = _groups(
        replace(flavor, extra_specs=specs),
        topology,
        of_image | ({encryption} if encryption else set()),
    )
    if wants_cells(topology):
        _check_memory(groups, specs)
    own = sum(bool(group.suffix) for group in groups)
    if policy is None and own <= 1 < own + len(profile):
        policy = "none"  # as nova: the flavor alone would need no policy
    return check_request(
        ClaimRequest(
            consumer,
            (*groups, *_profile_groups(profile, topology.pci_numa_policy)),
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
            root_required=host_traits(specs) | image_traits(image or {}),
        )
    )


def _check_memory(groups: Collection[RequestGroup], specs: Mapping[str, str]) -> None:
    """Raises UsageError where the specs take all memory away from the guest's cells.

    nova gives such cells the flavor's memory, and Placement counts none of it.
    """
    if any("MEMORY_MB" in group.resources for group in groups if not group.suffix):
        return
    spec = next(key for key in sorted(specs) if _GROUPED.fullmatch(key) and key.endswith(":MEMORY_MB"))
    raise UsageError(
        f"{spec}: the guest has NUMA cells, asked for or for its pinned CPUs or pages, and their memory is "
        "the MEMORY_MB of the unsuffixed group; remove the spec, or give resources:MEMORY_MB too.",
        spec=spec,
    )


def _profile_groups(profile: Collection[ProfileGroup], numa_policy: str | None) -> Iterator[RequestGroup]:
    for number, group in enumerate(profile):
        yield RequestGroup(
            group_suffix(number),
            group.resources,
            tuple(frozenset({name}) for name in sorted(group.required)),
            group.forbidden,
            numa_policy=numa_policy,
        )


def _groups(flavor: Flavor, topology: TopologyRequest, traits: frozenset[str]) -> tuple[RequestGroup, ...]:
    """The groups of the specs; `traits` are also required of the unsuffixed one."""
    resources: dict[str, dict[str, int]] = {}
    required: dict[str, set[str]] = {"": set(traits)}
    forbidden: dict[str, set[str]] = {}
    for key, value in flavor.extra_specs.items():
        match = _GROUPED.fullmatch(key)
        if not match:
            continue
        kind, suffix, name = match[1], match[2] or "", match[3]
        _check_name(key, kind, name)
        if kind == "resources":
            resources.setdefault(suffix, {})[name] = read_whole_spec(key, value, 0, MAX_UNIT)
        elif value in ("required", "forbidden"):
            (required if value == "required" else forbidden).setdefault(suffix, set()).add(name)
        else:
            raise fault(key, "required or forbidden", value)
    named = {name for amounts in resources.values() for name in amounts}
    resources[""] = _own_resources(flavor, topology, named) | resources.get("", {})
    resources[""] |= _asked_by_specs(flavor.extra_specs)
    if _PLURAL not in resources and (plural := {*required, *forbidden} & {_PLURAL}):
        name = min({*required.get(_PLURAL, ()), *forbidden.get(_PLURAL, ())})
        key = f"trait{plural.pop()}:{name}"
        raise UsageError(f"{key}: unknown extra spec; did you mean trait:{name}?", spec=key)
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


def _check_name(key: str, kind: str, name: str) -> None:
    """As nova's API: the name is a standard one or begins with CUSTOM_. Raises UsageError."""
    if not _NAME.fullmatch(name):
        raise fault(key, f"a name of {'resource class' if kind == 'resources' else 'trait'}", name)
    unknown = unknown_class(name) if kind == "resources" else unknown_trait(name)
    if unknown:
        raise UsageError(f"{key}: {unknown}", spec=key)


def _own_resources(flavor: Flavor, topology: TopologyRequest, named: Collection[str]) -> dict[str, int]:
    """What the flavor itself asks for, without the classes that its specs name in any group."""
    own = {"MEMORY_MB": flavor.memory_mb, "DISK_GB": flavor.disk_gb}
    own = {name: amount for name, amount in own.items() if name not in named}
    if not {"VCPU", "PCPU"} & set(named) or topology.cpu_policy != "shared":
        own = _cpu_resources(flavor.vcpus, topology) | own
    return own


def _asked_by_specs(specs: Mapping[str, str]) -> dict[str, int]:
    """The resources that `hw:` specs ask of the unsuffixed group, beside CPUs and memory."""
    asked = {"MEM_ENCRYPTION_CONTEXT": 1} if encryption_trait(specs) else {}
    for label in pmem_labels(specs):
        name = pmem_class(label)
        asked[name] = asked.get(name, 0) + 1
    return asked


def _has_device(resources: Mapping[str, int]) -> bool:
    return any(amount for name, amount in resources.items() if name not in _NO_DEVICES)


def _cpu_resources(vcpus: int, topology: TopologyRequest) -> dict[str, int]:
    if topology.cpu_policy == "shared":
        return {"VCPU": vcpus}
    pinned = vcpus if topology.cpu_policy == "dedicated" else len(topology.dedicated_cpus)
    return {"VCPU": vcpus - pinned, "PCPU": pinned + topology.isolate_emulator}


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
