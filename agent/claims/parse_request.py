"""Claim requests from JSON, the form of the local API, with groups or by a flavor; and to JSON. Pure.

A request has either groups, in Placement's terms:

    {"consumer": uuid, "groups": [{"suffix": "", "resources": {"VCPU": 2},
                                   "required": ["HW_CPU_X86_AVX2", "in:A,B", "!CUSTOM_X"],
                                   "member_of": [uuid, "in:uuid,uuid"]}],
     "group_policy": "none" | "isolate", "same_subtree": [["_A", "_B"]]}

or a flavor with its extra specs and, if it is known, an image with its properties, as nova defines them:

    {"consumer": uuid, "flavor": {"vcpus": 2, ...}, "image": {property: value}}

Where a name may stand for the consumer, `consumer` may be missing.
Both forms may have name, project_id, user_id, consumer_type, and the `process` that the claim ends with.
The first form may also have `topology` and
`pci`, which express a flavor's `hw:` and `pci_passthrough:` specs, `root_required` with traits of the host's
root, and each group a `numa_policy`.

agent.claims.extra_specs lists the extra specs and the properties; each says what nova asks for and what the
claim asks for. An unknown spec in a namespace of nova is refused, with the nearest known name in the error.

Source: https://docs.openstack.org/nova/latest/configuration/extra-specs.html.
"""

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from agent.claims import extra_specs
from agent.claims.device_profiles import SPEC as PROFILE_SPEC
from agent.claims.device_profiles import DeviceProfiles, group_suffix, groups_of_profile
from agent.claims.guest_cells import wants_cells
from agent.claims.near_names import near_class, near_trait, unknown_class, unknown_trait
from agent.claims.request import (
    CPU_POLICIES,
    GROUP_POLICIES,
    NUMA_POLICIES,
    PAGE_WORDS,
    THREAD_POLICIES,
    ClaimRequest,
    RequestGroup,
    TopologyRequest,
    check_request,
    with_others,
)
from agent.codec import decode, encode
from agent.cpuset import format_cpu_set, parse_cpu_set
from agent.device_names import pmem_class
from agent.errors import UsageError, counted
from agent.http.owner_process import OwnerProcess
from agent.json_checks import (
    below,
    fault,
    read_choice,
    read_list,
    read_object,
    read_text,
    read_uuid,
    read_whole,
)
from agent.tree import MAX_UNIT

CELLS_MAX = 64
KIB_PER = {"k": 1, "m": 1 << 10, "g": 1 << 20, "t": 1 << 30}

_CELL = re.compile(r"(numa_cpus|numa_mem)\.([0-9]{1,4})", re.ASCII)
_PAGE_SIZE = re.compile(r"([0-9]{1,9})(?:([KMGTkmgt])(?:i?B)?)?", re.ASCII)
_CPUS = re.compile(r"resources([A-Za-z0-9_-]{1,64})?:(VCPU|PCPU)", re.ASCII)
_THREADS = re.compile(r"trait([1-9][0-9]{0,63})?:HW_CPU_HYPERTHREADING", re.ASCII)
_WHOLE = re.compile(r"[0-9]{1,10}", re.ASCII)
_LABEL = re.compile(r"[A-Za-z0-9_]{1,200}", re.ASCII)


def topology_of(vcpus: int, memory_mb: int, specs: Mapping[str, str]) -> TopologyRequest:
    """The CPU, cell and page requests of the specs, for a guest with `vcpus` CPUs and `memory_mb` MiB.

    Raises UsageError, naming the spec at fault.
    """
    policy = _cpu_policy(vcpus, specs)
    realtime = _realtime(specs, policy, vcpus)
    cells = _cells(vcpus, memory_mb, specs)
    return replace(
        cells,
        cpu_policy=policy,
        cpu_thread_policy=_thread_policy(specs, policy),
        cells=cells.cells or (1 if pmem_labels(specs) else 0),
        dedicated_cpus=_dedicated(specs, policy, vcpus, realtime),
        mem_page_size=_spec_page_size(specs.get("hw:mem_page_size")),
        pci_numa_policy=_spec_choice(specs, "hw:pci_numa_affinity_policy", NUMA_POLICIES),
        isolate_emulator=_isolates_emulator(specs, policy),
    )


def pmem_labels(specs: Mapping[str, str]) -> tuple[str, ...]:
    """The labels of persistent memory in `hw:pmem`. Raises UsageError where one is no label."""
    labels = tuple(label.strip() for label in specs.get("hw:pmem", "").split(",") if label.strip())
    for label in labels:
        if not _LABEL.fullmatch(label):
            raise fault("hw:pmem", "labels of A-Z a-z 0-9 _, separated by commas", label)
    return labels


def _cpu_policy(vcpus: int, specs: Mapping[str, str]) -> str:
    """The policy; an explicit amount of PCPU is as good as `dedicated`."""
    given = _spec_choice(specs, "hw:cpu_policy", CPU_POLICIES)
    shared, dedicated = _explicit(specs, "VCPU"), _explicit(specs, "PCPU")
    if given and (shared or dedicated):
        spec = next(iter(shared or dedicated))
        raise UsageError(
            f"{spec}: hw:cpu_policy={given} already determines the number of CPUs of each kind; remove one "
            "of the two specs.",
            spec=spec,
        )
    if not dedicated:
        return given or "shared"
    if shared:
        raise UsageError(
            f"resources:PCPU: {next(iter(shared))} is given, too; use hw:cpu_policy=mixed for a guest with "
            "both.",
            spec="resources:PCPU",
        )
    (amount,) = dedicated.values()
    wanted = vcpus + _isolates_emulator(specs, "dedicated")
    if amount != wanted:
        raise UsageError(
            f"resources:PCPU: {counted(amount, 'is', 'are')} asked for, and the flavor's "
            f"{counted(vcpus, 'CPU needs', 'CPUs need')} {wanted}; "
            "hw:cpu_policy=dedicated asks for the right number.",
            spec="resources:PCPU",
        )
    return "dedicated"


def _explicit(specs: Mapping[str, str], name: str) -> dict[str, int]:
    """{spec that asks for some of the class, in any group: the amount}.

    Raises UsageError where dedicated CPUs are in a suffixed group.
    """
    found = {}
    for spec, text in specs.items():
        match = _CPUS.fullmatch(spec)
        if match and match[2] == name:
            amount = read_whole_spec(spec, text, 0, MAX_UNIT)
            if amount and match[1] and name == "PCPU":
                raise UsageError(
                    f"{spec}: dedicated CPUs are those of the guest's cells and in no group of their own; "
                    "use hw:cpu_policy=dedicated.",
                    spec=spec,
                )
            if amount:
                found[spec] = amount
    return found


def _thread_policy(specs: Mapping[str, str], policy: str) -> str | None:
    """The thread policy; HW_CPU_HYPERTHREADING as a trait of pinned CPUs stands for one, as in nova."""
    thread_policy = _spec_choice(specs, "hw:cpu_thread_policy", THREAD_POLICIES)
    threads = next((value for spec, value in specs.items() if _THREADS.fullmatch(spec)), None)
    if thread_policy and threads:
        raise UsageError(
            "hw:cpu_thread_policy: trait:HW_CPU_HYPERTHREADING says the same in another way; remove one of "
            "the two specs.",
            spec="hw:cpu_thread_policy",
        )
    if policy != "shared":
        return thread_policy or {"required": "require", "forbidden": "isolate"}.get(threads or "")
    if thread_policy:
        raise UsageError(
            "hw:cpu_thread_policy: it needs hw:cpu_policy=dedicated or mixed; shared CPUs have no siblings.",
            spec="hw:cpu_thread_policy",
        )
    return None


def _isolates_emulator(specs: Mapping[str, str], policy: str) -> bool:
    spec = "hw:emulator_threads_policy"
    isolate = _spec_choice(specs, spec, ("share", "isolate")) == "isolate"
    if isolate and policy == "shared":
        raise UsageError(
            f"{spec}=isolate: it needs hw:cpu_policy=dedicated or mixed; the threads of a guest on shared "
            "CPUs are not kept apart.",
            spec=spec,
        )
    return isolate


def _realtime(specs: Mapping[str, str], policy: str, vcpus: int) -> frozenset[int]:
    """The CPUs with realtime priority; empty without hw:cpu_realtime."""
    if not extra_specs.read_flag("hw:cpu_realtime", specs.get("hw:cpu_realtime", "false")):
        return frozenset()
    spec = "hw:cpu_realtime_mask"
    everything = frozenset(range(vcpus))
    cpus = _mask(spec, specs[spec], vcpus) if specs.get(spec) else everything
    if policy == "shared":
        raise UsageError(
            "hw:cpu_realtime: it needs hw:cpu_policy=dedicated or mixed.", spec="hw:cpu_realtime"
        )
    if not cpus or not cpus <= everything:
        raise UsageError(
            f"{spec}: {specs[spec]!r} must name some of the guest's CPUs 0-{vcpus - 1}.", spec=spec
        )
    if cpus == everything and "hw:emulator_threads_policy" not in specs:
        raise UsageError(
            f"{spec}: it must leave a CPU for the guest's other threads, or the flavor needs "
            "hw:emulator_threads_policy.",
            spec=spec,
        )
    return cpus


def _dedicated(specs: Mapping[str, str], policy: str, vcpus: int, realtime: frozenset[int]) -> frozenset[int]:
    spec = "hw:cpu_dedicated_mask"
    mask = specs.get(spec)
    if policy != "mixed":
        if mask is not None:
            raise UsageError(f"{spec}: only hw:cpu_policy=mixed has it (the policy is {policy}).", spec=spec)
        return frozenset()
    if (mask is None) == (not realtime):
        raise UsageError(
            f"{spec}: hw:cpu_policy=mixed needs it, or hw:cpu_realtime with a mask, and not both.", spec=spec
        )
    if mask is None:
        spec, mask = "hw:cpu_realtime_mask", specs.get("hw:cpu_realtime_mask", "")
    cpus = realtime or _mask(spec, mask, vcpus)
    if not cpus or not cpus < frozenset(range(vcpus)):
        raise UsageError(
            f"{spec}: {mask!r} must name some of the guest's CPUs 0-{vcpus - 1} and leave at least one.",
            spec=spec,
        )
    return cpus


def _mask(spec: str, mask: str, vcpus: int) -> frozenset[int]:
    """The CPUs of a mask; one that begins with ^ takes away from all of the guest's CPUs."""
    return _cpu_set(spec, f"0-{vcpus - 1},{mask}" if mask.strip().startswith("^") else mask)


def _cells(vcpus: int, memory_mb: int, specs: Mapping[str, str]) -> TopologyRequest:
    given: dict[str, dict[int, str]] = {"numa_cpus": {}, "numa_mem": {}}
    for key, value in specs.items():
        match = _CELL.fullmatch(key.removeprefix("hw:")) if key.startswith("hw:") else None
        if match:
            given[match[1]][int(match[2])] = value
    if "hw:numa_nodes" not in specs:
        for kind, values in given.items():
            if values:
                raise UsageError(
                    f"hw:{kind}.{min(values)}: it needs hw:numa_nodes.", spec=f"hw:{kind}.{min(values)}"
                )
        return TopologyRequest()
    count = read_whole_spec("hw:numa_nodes", specs["hw:numa_nodes"], 1, CELLS_MAX)
    if count > vcpus:
        raise UsageError(
            f"hw:numa_nodes: {counted(count, 'cell is', 'cells are')} asked for, and the flavor has "
            f"{counted(vcpus, 'vCPU')}: each cell needs one.",
            spec="hw:numa_nodes",
        )
    for kind, values in given.items():
        if values and set(values) != set(range(count)):
            raise UsageError(
                f"hw:{kind}.N: give one for each of the guest's cells 0-{count - 1}, or none; given are "
                f"{', '.join(map(str, sorted(values)))}.",
                spec=f"hw:{kind}",
            )
    for kind, total in (("numa_cpus", vcpus), ("numa_mem", memory_mb)):
        if not given[kind] and total % count:
            raise UsageError(f"hw:numa_nodes: {total} cannot be split evenly in {count}; give hw:{kind}.N.")
    cell_cpus = _cell_cpus(given["numa_cpus"], vcpus)
    memory = tuple(
        read_whole_spec(f"hw:numa_mem.{cell}", text, 1, MAX_UNIT)
        for cell, text in sorted(given["numa_mem"].items())
    )
    if memory and sum(memory) != memory_mb:
        raise UsageError(
            f"hw:numa_mem.N: the cells have {sum(memory)} MiB together, the flavor has {memory_mb}.",
            spec="hw:numa_mem",
        )
    return TopologyRequest(cells=count, cell_cpus=cell_cpus, cell_memory_mb=memory)


def _cell_cpus(given: Mapping[int, str], vcpus: int) -> tuple[frozenset[int], ...]:
    cell_cpus: list[frozenset[int]] = []
    for cell in sorted(given):
        spec = f"hw:numa_cpus.{cell}"
        cpus = _cpu_set(spec, given[cell])
        twice = cpus & frozenset().union(*cell_cpus)
        if not cpus or twice or max(cpus) >= vcpus:
            raise UsageError(
                f"{spec}: {given[cell]!r} must name CPUs of the guest, 0-{vcpus - 1}, "
                "that no cell before it has.",
                spec=spec,
            )
        cell_cpus.append(cpus)
    missing = frozenset(range(vcpus)).difference(*cell_cpus) if cell_cpus else frozenset()
    if missing:
        raise UsageError(
            f"hw:numa_cpus.N: no cell has the guest's CPU {format_cpu_set(missing)}.", spec="hw:numa_cpus"
        )
    return tuple(cell_cpus)


def _spec_page_size(text: str | None) -> int | str | None:
    """The size in KiB, or one of the words small, large, any."""
    if text is None or text in PAGE_WORDS:
        return text
    match = _PAGE_SIZE.fullmatch(text.strip())
    size = int(match[1]) * KIB_PER[(match[2] or "k").lower()] if match else 0
    if not 0 < size <= MAX_UNIT:
        raise fault("hw:mem_page_size", "small, large, any, or a size such as 2MB or 2048 (KiB)", text)
    return size


def _spec_choice(specs: Mapping[str, str], spec: str, choices: tuple[str, ...]) -> str | None:
    value = specs.get(spec)
    if value is not None and value not in choices:
        raise fault(spec, f"one of {', '.join(choices)}", value)
    return value


def read_whole_spec(spec: str, text: str, least: int, most: int) -> int:
    """The whole number of a spec. Raises UsageError where it is not between `least` and `most`."""
    digits = text.strip()  # int() accepts more: signs, underscores, digits of other scripts
    if not _WHOLE.fullmatch(digits) or not least <= int(digits) <= most:
        raise fault(spec, f"a whole number between {least} and {most}", text)
    return int(digits)


def _cpu_set(spec: str, text: str) -> frozenset[int]:
    try:
        return parse_cpu_set(text)
    except ValueError as error:
        raise UsageError(f"{spec}: {error}.", spec=spec) from error


SPEC_MAX = 1024

_GROUPED = re.compile(r"(resources|trait)([A-Za-z0-9_-]{1,64})?:(.*)", re.ASCII | re.DOTALL)
_NAME = re.compile(r"[A-Z0-9_]{1,255}", re.ASCII)
_ALIAS = re.compile(r"\s*([^\s:,]{1,255})\s*:\s*([0-9]{1,5})\s*", re.ASCII)

_PLURAL = "s"
"""A suffix of a group; of one that has traits alone, it is a slip: `traits:NAME`."""
_OF_THREADS = "trait:HW_CPU_HYPERTHREADING"
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
    image: extra_specs.Image | None = None,
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
            extra_specs.check_known(key)
    specs = extra_specs.with_image(flavor.extra_specs, image or {})
    of_image = extra_specs.required_traits(image or {})
    # A flavor or an image may require the trait; it is a thread policy of pinned CPUs.
    threads = {_OF_THREADS: "required"} if _OF_THREADS in {f"trait:{name}" for name in of_image} else {}
    profile = groups_of_profile(specs[PROFILE_SPEC], profiles or {}) if PROFILE_SPEC in specs else ()
    topology = topology_of(flavor.vcpus, flavor.memory_mb, threads | specs)
    encryption = extra_specs.encryption_trait(specs)
    if encryption and image is not None:
        extra_specs.check_encryption(image, encryption)
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
    of_profile = [
        RequestGroup(
            group_suffix(number),
            group.resources,
            tuple(frozenset({name}) for name in sorted(group.required)),
            group.forbidden,
            numa_policy=topology.pci_numa_policy,
        )
        for number, group in enumerate(profile)
    ]
    own = sum(bool(group.suffix) for group in groups)
    if policy is None and own <= 1 < own + len(profile):
        policy = "none"  # as nova: the flavor alone would need no policy
    return check_request(
        ClaimRequest(
            consumer,
            (*groups, *of_profile),
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
            root_required=extra_specs.host_traits(specs) | extra_specs.image_traits(image or {}),
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
        # As nova's API: the name is a standard one or begins with CUSTOM_.
        if not _NAME.fullmatch(name):
            raise fault(key, f"a name of {'resource class' if kind == 'resources' else 'trait'}", name)
        unknown = unknown_class(name) if kind == "resources" else unknown_trait(name)
        if unknown:
            raise UsageError(f"{key}: {unknown}", spec=key)
        if kind == "resources":
            resources.setdefault(suffix, {})[name] = read_whole_spec(key, value, 0, MAX_UNIT)
        elif value in ("required", "forbidden"):
            (required if value == "required" else forbidden).setdefault(suffix, set()).add(name)
        else:
            raise fault(key, "required or forbidden", value)
    named = {name for amounts in resources.values() for name in amounts}
    resources[""] = _own_resources(flavor, topology, named) | resources.get("", {})
    # What `hw:` specs ask of the unsuffixed group, beside CPUs and memory.
    if extra_specs.encryption_trait(flavor.extra_specs):
        resources[""]["MEM_ENCRYPTION_CONTEXT"] = 1
    resources[""] |= Counter(map(pmem_class, pmem_labels(flavor.extra_specs)))
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
            if suffix and any(n for name, n in resources.get(suffix, {}).items() if name not in _NO_DEVICES)
            else None,
        )
        for suffix in sorted({*resources, *required, *forbidden})
        if any(resources.get(suffix, {}).values()) or required.get(suffix) or forbidden.get(suffix)
    )


def _own_resources(flavor: Flavor, topology: TopologyRequest, named: Collection[str]) -> dict[str, int]:
    """What the flavor itself asks for, without the classes that its specs name in any group."""
    own = {"MEMORY_MB": flavor.memory_mb, "DISK_GB": flavor.disk_gb}
    own = {name: amount for name, amount in own.items() if name not in named}
    if not {"VCPU", "PCPU"} & set(named) or topology.cpu_policy != "shared":
        pinned = flavor.vcpus if topology.cpu_policy == "dedicated" else len(topology.dedicated_cpus)
        cpus = {"VCPU": flavor.vcpus - pinned, "PCPU": pinned + topology.isolate_emulator}
        own = ({"VCPU": flavor.vcpus} if topology.cpu_policy == "shared" else cpus) | own
    return own


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


__all__ = [
    "ClaimRequest",
    "RequestGroup",
    "TopologyRequest",
    "notes_of",
    "parse_addition",
    "parse_claim",
    "read_domain",
    "read_request",
    "request_to_json",
]

ALTERNATIVES_MAX = 16
NAME_MAX = 255
DOMAIN_CHARS_MAX = 2**20
_NO_CONSUMER = "00000000-0000-0000-0000-000000000000"

_IDENTITY = ("name", "project_id", "user_id", "consumer_type")
_BY_GROUPS = ("groups", "group_policy", "same_subtree", "root_required", "topology", "pci")
_BY_FLAVOR = ("flavor", "image")
_OF_EACH = ("process", *_IDENTITY)
"""What all alternatives of a body have in common, beside the consumer."""
_GROUPS_FORM = ("consumer", *_BY_GROUPS, *_OF_EACH, "alternatives", "alternative")
_FLAVOR_FORM = ("consumer", *_BY_FLAVOR, *_OF_EACH, "alternatives")
_GROUP_KEYS = tuple(field.name for field in fields(RequestGroup) if field.name != "forbidden")
_TOPOLOGY_KEYS = tuple(field.name for field in fields(TopologyRequest))

_OF_ALTERNATIVE = re.compile(r"plimsoll:or([2-9]|1[0-6]):((?!plimsoll:).+)", re.ASCII | re.DOTALL)
_SUFFIX = re.compile(r"[A-Za-z0-9_-]{0,64}", re.ASCII)
_CONSUMER_TYPE = re.compile(r"[A-Z0-9_]{1,255}", re.ASCII)
_SOMETHING = re.compile(r".+", re.DOTALL)
_ALIAS_NAME = re.compile(r"[^\s:,]{1,255}")
_CLASS_WANTED = "a resource class such as MEMORY_MB or CUSTOM_FPGA"
_ROOT_TRAIT_WANTED = "a trait such as COMPUTE_NODE, or !TRAIT"
_TRAIT_WANTED = "a trait such as HW_CPU_X86_AVX2, in:TRAIT,TRAIT or !TRAIT"


def parse_claim(
    body: object, profiles: DeviceProfiles | None = None, *, by_name: bool = False
) -> ClaimRequest:
    """The request in a body of the local API; `profiles` are the device profiles that a flavor may name.

    `by_name`: a body with a name may have no consumer; that of the request is empty then.
    Raises UsageError, naming the path of the key at fault and what is allowed there.
    """
    if by_name and isinstance(body, dict) and "consumer" not in body and body.get("name"):
        return replace(parse_claim({**body, "consumer": _NO_CONSUMER}, profiles), consumer="")

    def parse(one: object) -> ClaimRequest:
        if not isinstance(one, dict) or "flavor" not in one:
            return _check_names(read_request(one))
        given = read_object(one, "", _FLAVOR_FORM)
        _check_present(given, "consumer")
        return _read_flavor_form(given, profiles)

    return _parse_each(body, parse)


def _parse_each(body: object, parse: Callable[[object], ClaimRequest]) -> ClaimRequest:
    """The request for the first of the body's alternatives that fits."""
    bodies, requests = alternatives_of(body), []
    for number, one in enumerate(bodies, 1):
        try:
            requests.append(parse(one))
        except UsageError as error:
            if len(bodies) > 1:
                error.message = f"Alternative {number}: {error.message}"
            raise
    return with_others(requests)


def alternatives_of(body: object) -> list[Any]:
    """The body of each alternative in the order of preference; the body itself where it has no other.

    A body names others in `alternatives`, and a flavor in extra specs of this agent's own:
    `plimsoll:or2:KEY` is what the second one has in place of the flavor's KEY; an empty text takes it away.
    Other parts of the body are not checked. Raises UsageError.
    """
    if not isinstance(body, dict):
        return [body]
    shared = {key: body[key] for key in ("consumer", *_OF_EACH) if key in body}
    bodies = [{key: value for key, value in body.items() if key != "alternatives"}]
    for number, item in enumerate(read_list(body.get("alternatives", []), "alternatives")):
        asked = read_object(item, f"alternatives[{number}]", (*_BY_GROUPS, *_BY_FLAVOR))
        bodies.append({**shared, **asked})
    found = []
    for one in bodies:
        flavor: Any = one.get("flavor")
        specs = flavor.get("extra_specs") if isinstance(flavor, dict) else None
        each = list(_alternative_specs(specs)) if isinstance(specs, dict) else []
        several = [{**one, "flavor": {**flavor, "extra_specs": its}} for its in each] if len(each) > 1 else []
        found += several or [one]
    if len(found) > ALTERNATIVES_MAX:
        raise UsageError(f"alternatives: at most {ALTERNATIVES_MAX} are asked for, not {len(found)}.")
    return found


def _alternative_specs(specs: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The extra specs of each alternative of a flavor."""
    changes: dict[int, dict[str, Any]] = {}
    for key in specs:
        if key.strip().lower().startswith("plimsoll:"):
            match = _OF_ALTERNATIVE.fullmatch(key)
            if not match:
                raise UsageError(
                    f"{key}: unknown extra spec; plimsoll:orN:KEY is what the Nth alternative has in place "
                    f"of the flavor's KEY, N from 2 to {ALTERNATIVES_MAX}.",
                    spec=key,
                )
            changes.setdefault(int(match[1]), {})[match[2]] = specs[key]
    yield (own := {key: text for key, text in specs.items() if not key.startswith("plimsoll:")})
    for number in range(2, max(changes, default=1) + 1):
        if number not in changes:
            raise UsageError(f"plimsoll:or{number}: missing; plimsoll:or{max(changes)} is given.")
        changed = changes[number]
        if vain := next((key for key in changed if changed[key] == "" and key not in own), None):
            spec = f"plimsoll:or{number}:{vain}"
            raise UsageError(f"{spec}: the flavor has no {vain} that it could take away.", spec=spec)
        yield {key: text for key, text in (own | changed).items() if text != "" or key not in changed}


def read_request(body: object) -> ClaimRequest:
    """The request in what `request_to_json` made, maybe under another os-traits: its names stay as they are.

    Raises UsageError as `parse_claim`.
    """
    given = read_object(body, "", _GROUPS_FORM)
    _check_present(given, "consumer", "groups")
    return check_request(_read_groups_form(given))


def parse_extension(body: object) -> dict[str, int]:
    """The amounts that a claim is to have in all, {resource class: amount}. Raises UsageError."""
    return _read_resources(read_object(body, "", ("resources",)).get("resources"), "resources")


def parse_addition(body: object, consumer: str, profiles: DeviceProfiles | None = None) -> ClaimRequest:
    """The request in a body that adds to what a domain asks for: without a consumer, maybe without groups.

    `consumer` is empty where it is not known yet, `profiles` as for `parse_claim`.
    Raises UsageError as `parse_claim`.
    """

    def parse(one: object) -> ClaimRequest:
        by_flavor = isinstance(one, dict) and "flavor" in one
        form = _FLAVOR_FORM if by_flavor else _GROUPS_FORM
        read_object(one, "request", [key for key in form if key not in ("consumer", "process")])
        given = {**read_object(one, "request"), "consumer": consumer or _NO_CONSUMER}
        request = _read_flavor_form(given, profiles) if by_flavor else _read_groups_form(given)
        if request.groups and not by_flavor:
            check_request(request)
        return replace(_check_names(request), consumer=consumer)

    return _parse_each(body, parse)


def notes_of(body: object) -> tuple[str, ...]:
    """A sentence for each extra spec and image property without effect, in a body that was parsed above."""
    notes: dict[str, None] = {}
    for given in alternatives_of(body if isinstance(body, dict) else {}):
        specs, image = given.get("flavor", {}).get("extra_specs", {}), given.get("image", {})
        notes |= dict.fromkeys(extra_specs.without_effect(specs, image))
        notes |= dict.fromkeys(extra_specs.properties_without_effect(image))
    return tuple(notes)


def read_domain(value: object, path: str) -> str:
    """The XML of a domain, which is not parsed. Raises UsageError."""
    return read_text(value, path, wanted="the XML of a domain", longest=DOMAIN_CHARS_MAX)


def _check_present(given: Mapping[str, Any], *keys: str) -> None:
    for key in keys:
        if key not in given:
            choice = " (or flavor)" if key == "groups" else ""
            raise UsageError(f"{key}{choice}: missing; a claim needs it.", path=key)


def _check_names(request: ClaimRequest) -> ClaimRequest:
    """The request, if each class and trait can exist: a forbidden one that is misspelt forbids nothing."""
    for number, group in enumerate(request.groups):
        path = f"groups[{number}]"
        for name in group.resources:
            _refuse_unknown(f"{path}.resources.{name}", unknown_class(name))
        for name in sorted(group.forbidden.union(*group.required)):
            _refuse_unknown(f"{path}.required", unknown_trait(name))
    for name in sorted(request.root_required | request.root_forbidden):
        _refuse_unknown("root_required", unknown_trait(name))
    return request


def _refuse_unknown(path: str, why: str | None) -> None:
    if why:
        raise UsageError(f"{path}: {why}", path=path)


def _read_flavor_form(given: Mapping[str, Any], profiles: DeviceProfiles | None) -> ClaimRequest:
    consumer, identity = read_uuid(given["consumer"], "consumer"), _read_identity(given)
    image = extra_specs.parse_image(given["image"]) if "image" in given else None
    flavor = parse_flavor(given["flavor"], "flavor")
    request = claim_for_flavor(consumer, flavor, image, profiles, **identity)
    return replace(request, process=_read_process(given))


def _read_groups_form(given: Mapping[str, Any]) -> ClaimRequest:
    policy = given.get("group_policy")
    root_required: set[str] = set()
    root_forbidden: set[str] = set()
    for number, item in enumerate(read_list(given.get("root_required", []), "root_required")):
        path = f"root_required[{number}]"
        text = read_text(item, path, _SOMETHING, _ROOT_TRAIT_WANTED)
        name = read_text(text.removeprefix("!"), path, _NAME, _ROOT_TRAIT_WANTED)
        (root_forbidden if text.startswith("!") else root_required).add(name)
    return ClaimRequest(
        read_uuid(given["consumer"], "consumer"),
        tuple(
            _read_group(group, f"groups[{number}]")
            for number, group in enumerate(read_list(given.get("groups", []), "groups"))
        ),
        group_policy=None if policy is None else read_choice(policy, "group_policy", GROUP_POLICIES),
        same_subtree=tuple(
            frozenset(
                read_text(suffix, f"same_subtree[{number}]", _SUFFIX, "suffixes of groups")
                for suffix in read_list(suffixes, f"same_subtree[{number}]")
            )
            for number, suffixes in enumerate(read_list(given.get("same_subtree", []), "same_subtree"))
        ),
        topology=decode(
            TopologyRequest, read_object(given.get("topology", {}), "topology", _TOPOLOGY_KEYS), "topology"
        ),
        pci=_read_aliases(given.get("pci", [])),
        root_required=frozenset(root_required),
        root_forbidden=frozenset(root_forbidden),
        process=_read_process(given),
        alternative=read_whole(given.get("alternative", 0), "alternative", 0, ALTERNATIVES_MAX),
        others=(),
        **_read_identity(given),
    )


def _read_process(given: Mapping[str, Any]) -> OwnerProcess | None:
    return None if "process" not in given else OwnerProcess.read(given["process"], "process")


def _read_identity(given: Mapping[str, Any]) -> dict[str, str]:
    identity = {}
    for key in _IDENTITY:
        if key == "consumer_type" and key in given:
            identity[key] = read_text(given[key], key, _CONSUMER_TYPE, "a type such as INSTANCE")
        elif key == "name" and key in given:
            identity[key] = read_text(
                given[key], key, None, f"a name of at most {NAME_MAX} characters", NAME_MAX
            )
        elif key in given:
            identity[key] = read_text(given[key], key, _SOMETHING, "a text of 1 to 255 characters")
    return identity


def _read_group(value: object, path: str) -> RequestGroup:
    given = read_object(value, path, _GROUP_KEYS)
    required: list[frozenset[str]] = []
    forbidden: set[str] = set()
    policy = given.get("numa_policy")
    for number, item in enumerate(read_list(given.get("required", []), f"{path}.required")):
        item_path = f"{path}.required[{number}]"
        text = read_text(item, item_path, _SOMETHING, _TRAIT_WANTED, 16384)
        if text.startswith("!"):
            forbidden.add(_read_trait(text[1:], item_path))
        else:
            required.append(frozenset(_read_trait(name, item_path) for name in _alternatives(text)))
    return RequestGroup(
        read_text(given.get("suffix", ""), f"{path}.suffix", _SUFFIX, "at most 64 of A-Z a-z 0-9 _ -"),
        _read_resources(given.get("resources", {}), f"{path}.resources"),
        tuple(required),
        frozenset(forbidden),
        tuple(
            _read_aggregates(item, f"{path}.member_of[{number}]")
            for number, item in enumerate(read_list(given.get("member_of", []), f"{path}.member_of"))
        ),
        None if policy is None else read_choice(policy, f"{path}.numa_policy", NUMA_POLICIES),
    )


def _read_trait(name: str, path: str) -> str:
    return read_text(name, path, _NAME, _wanted(_TRAIT_WANTED, name, near_trait))


def _wanted(wanted: str, name: object, near: Callable[[str, tuple[str, ...]], str | None]) -> str:
    """What is wanted, with the name that was probably meant where `name` is spelt wrongly."""
    wrong = isinstance(name, str) and not _NAME.fullmatch(name)
    meant = near(str(name)[:255], ()) if wrong else None
    return f"{wanted} (did you mean {meant}?)" if meant else wanted


def _alternatives(text: str) -> list[str]:
    return text.removeprefix("in:").split(",") if text.startswith("in:") else [text]


def _read_resources(value: object, path: str) -> dict[str, int]:
    return {
        read_text(name, below(path, str(name)), _NAME, _wanted(_CLASS_WANTED, name, near_class)): read_whole(
            amount, below(path, name), 1, MAX_UNIT
        )
        for name, amount in read_object(value, path).items()
    }


def _read_aggregates(value: object, path: str) -> frozenset[str]:
    text = read_text(value, path, _SOMETHING, "an aggregate's uuid or in:uuid,uuid", 16384)
    if text.startswith("!"):
        raise UsageError(
            f"{path}: forbidden aggregates ({text}) have no meaning for a single host; remove them.",
            path=path,
        )
    return frozenset(read_uuid(uuid, path) for uuid in _alternatives(text))


def _read_aliases(value: object) -> tuple[tuple[str, int], ...]:
    aliases = []
    for number, item in enumerate(read_list(value, "pci")):
        path = f"pci[{number}]"
        given = read_object(item, path, ("alias", "count"))
        alias = read_text(given.get("alias"), f"{path}.alias", _ALIAS_NAME, "the name of an alias")
        aliases.append((alias, read_whole(given.get("count", 1), f"{path}.count", 1, MAX_UNIT)))
    return tuple(aliases)


def request_to_json(request: ClaimRequest) -> dict[str, Any]:
    """The body, in the groups form, that `parse_claim` turns into an equal request; without defaults."""
    groups = []
    for group in request.groups:
        of_group: dict[str, Any] = {"suffix": group.suffix, "resources": dict(group.resources)}
        required = [_any_of(traits) for traits in group.required]
        required += [f"!{name}" for name in sorted(group.forbidden)]
        if required:
            of_group["required"] = required
        if group.member_of:
            of_group["member_of"] = [_any_of(aggregates) for aggregates in group.member_of]
        if group.numa_policy:
            of_group["numa_policy"] = group.numa_policy
        groups.append(of_group)
    topology = {} if request.topology == _NO_TOPOLOGY else encode(TopologyRequest, request.topology)
    body: dict[str, Any] = {
        "consumer": request.consumer,
        "name": request.name,
        "groups": groups,
        "group_policy": request.group_policy,
        "same_subtree": [sorted(suffixes) for suffixes in request.same_subtree],
        "root_required": [
            *sorted(request.root_required),
            *(f"!{name}" for name in sorted(request.root_forbidden)),
        ],
        "topology": {key: value for key, value in topology.items() if value},
        "pci": [{"alias": alias, "count": count} for alias, count in request.pci],
        "process": request.process and request.process.to_json(),
        "alternative": request.alternative,
    }
    body = {key: value for key, value in body.items() if value}
    body.setdefault("groups", [])
    for key in ("project_id", "user_id", "consumer_type"):
        body[key] = getattr(request, key)
    return body


def _any_of(names: frozenset[str]) -> str:
    return next(iter(names)) if len(names) == 1 else "in:" + ",".join(sorted(names))


_NO_TOPOLOGY = TopologyRequest()
