"""What a claim asks for, as values, and the rules that they keep among each other. Pure.

Import these from `agent.claims.parse_request`, which also reads and writes them as JSON.
Source: https://docs.openstack.org/api-ref/placement/#list-allocation-candidates (granular groups).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from agent.errors import UsageError

GROUP_POLICIES = ("none", "isolate")
GROUPS_MAX = 64
NUMA_POLICIES = ("required", "preferred", "legacy", "socket")
DEVICE_PREFIX = "pci-"
"""With which the suffix of a group begins that a device asked for by alias became."""


@dataclass(frozen=True, slots=True)
class RequestGroup:
    """`resources` {class: amount} wanted together.

    suffix "" is the unsuffixed group, whose classes may come from several providers of the tree; any other
    group comes from one provider. `required` is a conjunction of any-of sets; `forbidden` traits bar a
    provider. `member_of` likewise is a conjunction of any-of sets of aggregates. `numa_policy` says how near
    to the guest's cells its provider must be (NUMA_POLICIES, as in nova), None: as near as it can be.
    """

    suffix: str = ""
    resources: Mapping[str, int] = field(default_factory=dict)
    required: tuple[frozenset[str], ...] = ()
    forbidden: frozenset[str] = frozenset()
    member_of: tuple[frozenset[str], ...] = ()
    numa_policy: str | None = None


@dataclass(frozen=True, slots=True)
class TopologyRequest:
    """What a guest wants of CPUs, cells and pages; names as in a flavor's `hw:` extra specs.

    `cell_cpus` and `cell_memory_mb` have one entry a guest cell, empty for "split evenly".
    `dedicated_cpus` are the guest's CPUs to be pinned under the policy "mixed".
    `mem_page_size` is KiB, or "small", "large", "any"; None: the guest does not care. `pci_numa_policy` goes
    before that of an alias.
    """

    cpu_policy: str = "shared"
    cpu_thread_policy: str | None = None
    cells: int = 0
    cell_cpus: tuple[frozenset[int], ...] = ()
    cell_memory_mb: tuple[int, ...] = ()
    dedicated_cpus: frozenset[int] = frozenset()
    mem_page_size: int | str | None = None
    pci_numa_policy: str | None = None


@dataclass(frozen=True, slots=True)
class ClaimRequest:
    """All a consumer asks for at once. `name` is for people, `pci` is ((alias, count), ...)
    makes groups of it where the request enters.
    """

    consumer: str
    groups: tuple[RequestGroup, ...]
    group_policy: str | None = None
    same_subtree: tuple[frozenset[str], ...] = ()
    topology: TopologyRequest = TopologyRequest()
    pci: tuple[tuple[str, int], ...] = ()
    name: str = ""
    project_id: str = "plimsoll"
    user_id: str = "plimsoll"
    consumer_type: str = "INSTANCE"

    @property
    def resources(self) -> dict[str, int]:
        """{class: amount}, over all groups."""
        total: dict[str, int] = {}
        for group in self.groups:
            for name, amount in group.resources.items():
                total[name] = total.get(name, 0) + amount
        return total


def check_request(request: ClaimRequest) -> ClaimRequest:
    """The request, if its groups make sense together. Raises UsageError as Placement answers 400."""
    suffixes = [group.suffix for group in request.groups]
    devices = {group.suffix for group in request.groups if is_device_group(group)}
    # Devices are counted before they are groups: nobody shall have millions made.
    count = len(suffixes) - len(devices) + max(len(devices), sum(number for _, number in request.pci))
    if not any(group.resources for group in request.groups):
        raise UsageError("groups: nothing is asked for; name at least one resource and its amount.")
    if count > GROUPS_MAX:
        raise UsageError(
            f"groups: {count} groups are asked for, {GROUPS_MAX} are allowed; each device asked for by alias "
            "is one."
        )
    for suffix in suffixes:
        if suffixes.count(suffix) > 1:
            raise UsageError(f"groups: the suffix {suffix!r} is given twice; merge the groups or rename one.")
    for group in request.groups:
        _check_group(group, request.same_subtree)
    _check_policies(request, [suffix for suffix in suffixes if suffix and suffix not in devices])
    return request


def is_device_group(group: RequestGroup) -> bool:
    """Whether the group is what a device asked for by alias became."""
    return group.suffix.startswith(DEVICE_PREFIX)


def has_unresolved_devices(request: ClaimRequest) -> bool:
    """Whether it asks for devices by alias that are no groups yet."""
    return bool(request.pci) and not any(map(is_device_group, request.groups))


def _check_group(group: RequestGroup, same_subtree: tuple[frozenset[str], ...]) -> None:
    called = f"group {group.suffix!r}" if group.suffix else "the unsuffixed group"
    both = group.forbidden & {name for any_of in group.required if len(any_of) == 1 for name in any_of}
    if both:
        raise UsageError(f"{called}: trait {', '.join(sorted(both))} is both required and forbidden.")
    if group.resources:
        return
    if not any(group.suffix in suffixes for suffixes in same_subtree):
        raise UsageError(
            f"{called} has traits or aggregates but no resources: give it some, or name it in same_subtree."
        )
    if not group.required and not group.member_of:
        raise UsageError(
            f"{called} has no resources: it needs a required trait or an aggregate to be found by."
        )


def _check_policies(request: ClaimRequest, suffixed: list[str]) -> None:
    if request.group_policy not in (None, *GROUP_POLICIES):
        raise UsageError(f"group_policy: {request.group_policy!r} is not one of none, isolate.")
    if len(suffixed) > 1 and request.group_policy is None:
        raise UsageError(
            f"group_policy: the groups {_listed(suffixed)} need one: isolate puts each on a provider of its "
            "own, none lets them share."
        )
    for suffixes in request.same_subtree:
        unknown = suffixes - set(suffixed)
        if unknown or not suffixes:
            raise UsageError(
                f"same_subtree: {_listed(unknown) or 'an empty set'} is no suffix of a group; "
                f"there are {_listed(suffixed) or 'none'}."
            )


def _listed(names: Iterable[str]) -> str:
    return ", ".join(map(repr, sorted(names)))
