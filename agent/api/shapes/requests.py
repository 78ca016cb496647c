"""What the API is asked for: the bodies of its requests."""

from collections.abc import Iterable
from typing import Annotated, Literal, NotRequired, TypedDict

from agent.api.shapes.schema import Count, Named, Positive, Schema, Uuid, Values

NumaPolicy = Literal["required", "preferred", "legacy", "socket"]
Name = Annotated[str, Schema(maxLength=255), "for people"]
Identifier = Annotated[str, Schema(minLength=1, maxLength=255)]
ConsumerType = Annotated[str, Schema(pattern="^[A-Z0-9_]{1,255}$")]


class GroupShape(TypedDict, total=False):
    """A request group, in Placement's terms."""

    suffix: Annotated[
        str,
        Schema(pattern="^[A-Za-z0-9_-]{0,64}$", default=""),
        "the group without a suffix may come from several providers, each other group comes from one",
    ]
    resources: Annotated[
        dict[str, Annotated[int, Schema(minimum=1, maximum=2147483647)]],
        Schema(propertyNames={"pattern": "^[A-Z0-9_]{1,255}$"}),
        "{resource class: amount}",
    ]
    required: Annotated[
        list[str], "traits, all of which must hold: TRAIT, in:TRAIT,TRAIT (one of), !TRAIT (not)"
    ]
    member_of: Annotated[list[str], "aggregates: uuid or in:uuid,uuid (one of)"]
    numa_policy: Annotated[
        NumaPolicy | None,
        "how near the provider must be to the guest's NUMA cells; null: as near as possible",
    ]


class TopologyShape(TypedDict, total=False):
    """The guest's CPUs, memory and NUMA cells, as a flavor's `hw:` extra specs ask for them."""

    cpu_policy: Literal["shared", "dedicated", "mixed"]
    cpu_thread_policy: Literal["prefer", "isolate", "require"] | None
    cells: Count
    cell_cpus: Annotated[list[Annotated[str, "a CPU set such as 0-3,6"]], "the guest CPUs of each cell"]
    cell_memory_mb: list[Positive]
    dedicated_cpus: str
    mem_page_size: Annotated[int | str | None, "KiB, or small, large, any"]
    pci_numa_policy: Annotated[NumaPolicy | None, "takes precedence over the policy of a PCI alias"]
    isolate_emulator: Annotated[bool, "one PCPU of the request is for the emulator's threads alone"]


class PciRequestShape(TypedDict):
    """PCI devices, asked for by an alias."""

    alias: str
    count: NotRequired[Annotated[int, Schema(minimum=1, default=1)]]


class FlavorShape(TypedDict):
    """A flavor, as nova has it."""

    vcpus: Positive
    memory_mb: Positive
    disk_gb: NotRequired[Count]
    extra_specs: NotRequired[
        Annotated[dict[str, str | int], "resources:VGPU, trait:..., hw:cpu_policy and others, as in nova"]
    ]


Consumer = Annotated[
    Uuid,
    "the instance; only a claim with a name may leave it out: it is the instance of this host that has the "
    "name, else a new one",
]


class ClaimByGroupsShape(TypedDict):
    """A claim, asked for by request groups."""

    consumer: NotRequired[Consumer]
    groups: Annotated[list[GroupShape], Schema(minItems=1, maxItems=64)]
    group_policy: NotRequired[Literal["none", "isolate"] | None]
    same_subtree: NotRequired[list[list[str]]]
    root_required: NotRequired[
        Annotated[list[str], "traits that the host's root provider must have, or with ! must not"]
    ]
    topology: NotRequired[TopologyShape]
    pci: NotRequired[list[PciRequestShape]]
    name: NotRequired[Name]
    project_id: NotRequired[Identifier]
    user_id: NotRequired[Identifier]
    consumer_type: NotRequired[ConsumerType]


class ClaimByFlavorShape(TypedDict):
    """A claim, asked for by a flavor."""

    consumer: NotRequired[Consumer]
    flavor: FlavorShape
    image: NotRequired[
        Annotated[
            dict[str, str | int | bool],
            "properties of the guest's image, as glance has them: hw_firmware_type, trait:..., and others",
        ]
    ]
    name: NotRequired[Name]
    project_id: NotRequired[Identifier]
    user_id: NotRequired[Identifier]
    consumer_type: NotRequired[ConsumerType]


ClaimBodyShape = Annotated[
    ClaimByGroupsShape | ClaimByFlavorShape, Named("ClaimBody", "by groups or by a flavor")
]

ClaimRequestShape = Annotated[
    ClaimByGroupsShape,
    Schema(required=["consumer", "project_id", "user_id", "consumer_type"]),
    Named("ClaimRequest", "the request, in its form by groups"),
]


def _move_kinds() -> Iterable[str]:
    from agent.moves.states import MoveKind

    return sorted(set(MoveKind) - {MoveKind.UNKNOWN})


DomainXml = Annotated[str, Schema(maxLength=1048576), "the domain's XML, without a document type"]


class AdditionShape(TypedDict, total=False):
    """What is asked for beside a domain's XML: by groups, by a flavor, or nothing."""

    flavor: FlavorShape
    image: dict[str, str | int | bool]
    root_required: list[str]
    groups: Annotated[list[GroupShape], Schema(maxItems=64)]
    group_policy: Literal["none", "isolate"] | None
    same_subtree: list[list[str]]
    topology: TopologyShape
    pci: list[PciRequestShape]
    name: Name
    project_id: Identifier
    user_id: Identifier
    consumer_type: ConsumerType


class MoveBodyShape(TypedDict):
    """A move to begin; with a domain, the request may leave out what its XML says."""

    migration: Annotated[Uuid, "the uuid of the migration"]
    kind: Annotated[str, Values(_move_kinds)]
    request: NotRequired[ClaimBodyShape | AdditionShape]
    domain: NotRequired[DomainXml]
    consumer: NotRequired[Annotated[Uuid, "the instance, with a domain"]]


class ClaimDomainBodyShape(TypedDict):
    """A domain to claim for."""

    xml: DomainXml
    consumer: NotRequired[
        Annotated[
            Uuid,
            "for a domain without a <uuid>; without it, the instance of this host that has its name, else a "
            "new one",
        ]
    ]
    request: NotRequired[AdditionShape]


class ReshapeBodyShape(TypedDict, total=False):
    """A reshape to do or to undo."""

    undo: Annotated[str | None, "the receipt to undo"]


class GateBodyShape(TypedDict):
    """The arguments of libvirt's hook after the guest's name, and its standard input."""

    operation: Annotated[str, Schema(maxLength=64)]
    sub_operation: Annotated[str, Schema(maxLength=64)]
    extra: NotRequired[Annotated[str, Schema(maxLength=64)]]
    xml: Annotated[str, Schema(maxLength=1048576), "the domain's XML, without a document type"]


class DomainBodyShape(TypedDict):
    """The domain to complete."""

    xml: DomainXml
    replace: NotRequired[
        Annotated[bool, Schema(default=False), "write over what the domain has from a former place"]
    ]


class PauseBodyShape(TypedDict, total=False):
    """A pause. On a host that is paused, what is not named stays as it is."""

    reason: Annotated[str, Schema(maxLength=255)]
    schedulers: Annotated[bool, "tell schedulers, by the trait COMPUTE_STATUS_DISABLED"]
    drain: Annotated[bool, "the instances that are here are to leave"]


class NothingShape(TypedDict):
    """An empty object."""
