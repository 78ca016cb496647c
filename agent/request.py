"""What a claim asks for: Placement's request groups, and what the host itself must fit. Pure.

Source: https://docs.openstack.org/api-ref/placement/#list-allocation-candidates (granular groups).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class RequestGroup:
    """`resources` {class: amount} wanted together.

    suffix "" is the unsuffixed group, whose classes may come from several providers of the tree; any other
    group comes from one provider. `required` is a conjunction of any-of sets; `forbidden` traits bar a provider.
    `member_of` likewise is a conjunction of any-of sets of aggregates.
    """

    suffix: str = ""
    resources: Mapping[str, int] = field(default_factory=dict)
    required: tuple[frozenset[str], ...] = ()
    forbidden: frozenset[str] = frozenset()
    member_of: tuple[frozenset[str], ...] = ()


@dataclass(frozen=True, slots=True)
class TopologyRequest:
    """What a guest wants of CPUs, cells and pages; names as in a flavor's `hw:` extra specs.

    `cell_cpus` and `cell_memory_mb` have one entry a guest cell, empty for "split evenly".
    `page_size_kib` None means any size.
    """

    cpu_policy: str = "shared"
    cpu_thread_policy: str | None = None
    cells: int = 0
    cell_cpus: tuple[frozenset[int], ...] = ()
    cell_memory_mb: tuple[int, ...] = ()
    page_size_kib: int | None = None


@dataclass(frozen=True, slots=True)
class ClaimRequest:
    """All a consumer asks for at once. `name` is for people, `pci` is ((alias, count), ...)."""

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
