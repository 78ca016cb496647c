"""The `hw:` extra specs of a flavor: CPU policy, NUMA cells and page sizes of a guest. Pure.

See agent.claims.flavor. Specs that concern only the guest's virtual hardware are accepted and ignored. Specs
that need something of the host that this agent cannot place yet are refused.

Source: https://docs.openstack.org/nova/latest/configuration/extra-specs.html.
"""

import re
from collections.abc import Mapping
from dataclasses import replace
from difflib import get_close_matches

from agent.claims.request import NUMA_POLICIES, TopologyRequest
from agent.cpuset import format_cpu_set, parse_cpu_set
from agent.errors import UsageError
from agent.json_checks import fault
from agent.tree import MAX_UNIT

CELLS_MAX = 64
KIB_PER = {"k": 1, "m": 1 << 10, "g": 1 << 20, "t": 1 << 30}

_CELL = re.compile(r"(numa_cpus|numa_mem)\.([0-9]{1,4})", re.ASCII)
_PAGE_SIZE = re.compile(r"([0-9]{1,9})(?:([kmgt])(?:i?b)?)?", re.ASCII | re.IGNORECASE)
_WHOLE = re.compile(r"[0-9]{1,10}", re.ASCII)

_FITTED = (
    *("cpu_policy", "cpu_dedicated_mask", "cpu_thread_policy", "numa_nodes", "mem_page_size"),
    "pci_numa_affinity_policy",
)
_CELLED = ("numa_cpus.0", "numa_mem.0")
_GUEST_ONLY = (
    *("boot_menu", "hide_hypervisor_id", "locked_memory", "pmu", "serial_port_count", "watchdog_action"),
    *("cpu_cores", "cpu_sockets", "cpu_threads", "cpu_max_cores", "cpu_max_sockets", "cpu_max_threads"),
    *("max_cpu_cores", "max_cpu_sockets", "max_cpu_threads", "cpu_realtime", "cpu_realtime_mask"),
    *("maxphysaddr_bits", "maxphysaddr_mode", "tpm_model", "tpm_version", "tpm_secret_security"),
    *("ephemeral_encryption", "ephemeral_encryption_format", "viommu_model", "virtio_packed_ring"),
    *("pointer_model", "redirected_usb_ports", "sound_model", "usb_model", "vif_multiqueue_enabled"),
)
_NOT_YET: Mapping[str, frozenset[str]] = {  # spec: the values under which it asks for nothing
    "emulator_threads_policy": frozenset({"share"}),
    "mem_encryption": frozenset({"false", "no", "0"}),
    "mem_encryption_model": frozenset(),
    "pmem": frozenset(),
}


def check_hw(key: str, spec: str, value: str) -> None:
    """Check the spec `key` = hw:`spec`. Raises UsageError where it is unknown or cannot be placed."""
    if spec in _FITTED or spec in _GUEST_ONLY or _CELL.fullmatch(spec):
        return
    if spec in _NOT_YET:
        if value.strip().lower() in _NOT_YET[spec]:
            return
        raise UsageError(
            f"{key}={value}: this agent cannot place it yet; remove it from the flavor.", spec=key
        )
    near = get_close_matches(spec, (*_FITTED, *_CELLED, *sorted(_GUEST_ONLY), *_NOT_YET), n=1, cutoff=0.0)
    raise UsageError(f"{key}: unknown extra spec; did you mean hw:{near[0]}?", spec=key)


def topology_of(vcpus: int, memory_mb: int, specs: Mapping[str, str]) -> TopologyRequest:
    """The CPU, cell and page requests of the specs, for a guest with `vcpus` CPUs and `memory_mb` MiB.

    Raises UsageError, naming the spec at fault.
    """
    policy = _spec_choice(specs, "hw:cpu_policy", ("shared", "dedicated", "mixed")) or "shared"
    thread_policy = _spec_choice(specs, "hw:cpu_thread_policy", ("prefer", "isolate", "require"))
    if thread_policy and policy == "shared":
        raise UsageError(
            "hw:cpu_thread_policy: it needs hw:cpu_policy=dedicated or mixed; shared CPUs have no siblings.",
            spec="hw:cpu_thread_policy",
        )
    cells = _cells(vcpus, memory_mb, specs)
    return replace(
        cells,
        cpu_policy=policy,
        cpu_thread_policy=thread_policy,
        dedicated_cpus=_dedicated(specs, policy, vcpus),
        mem_page_size=_spec_page_size(specs.get("hw:mem_page_size")),
        pci_numa_policy=_spec_choice(specs, "hw:pci_numa_affinity_policy", NUMA_POLICIES),
    )


def _dedicated(specs: Mapping[str, str], policy: str, vcpus: int) -> frozenset[int]:
    spec = "hw:cpu_dedicated_mask"
    mask = specs.get(spec)
    if (mask is not None) != (policy == "mixed"):
        raise UsageError(
            f"{spec}: hw:cpu_policy=mixed needs it, and no other policy has it (the policy is {policy}).",
            spec=spec,
        )
    if mask is None:
        return frozenset()
    everything = f"0-{vcpus - 1},"
    cpus = _cpu_set(spec, everything + mask if mask.strip().startswith("^") else mask)
    if not cpus or not cpus < frozenset(range(vcpus)):
        raise UsageError(
            f"{spec}: {mask!r} must name some of the guest's CPUs 0-{vcpus - 1} and leave at least one.",
            spec=spec,
        )
    return cpus


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
    count = read_whole_spec("hw:numa_nodes", specs["hw:numa_nodes"], 1, min(CELLS_MAX, vcpus))
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
    return TopologyRequest(
        cells=count,
        cell_cpus=_cell_cpus(given["numa_cpus"], vcpus),
        cell_memory_mb=_cell_memory(given["numa_mem"], memory_mb),
    )


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


def _cell_memory(given: Mapping[int, str], memory_mb: int) -> tuple[int, ...]:
    memory = tuple(read_whole_spec(f"hw:numa_mem.{cell}", given[cell], 1, MAX_UNIT) for cell in sorted(given))
    if memory and sum(memory) != memory_mb:
        raise UsageError(
            f"hw:numa_mem.N: the cells have {sum(memory)} MiB together, the flavor has {memory_mb}.",
            spec="hw:numa_mem",
        )
    return memory


def _spec_page_size(text: str | None) -> int | str | None:
    """The size in KiB, or one of the words small, large, any."""
    if text is None or text in ("small", "large", "any"):
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
