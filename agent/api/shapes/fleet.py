"""Where in the fleet a request fits, and why not (`/v1/where`): all hosts of the agent's Placement."""

from typing import Annotated, Literal, NotRequired, TypedDict

from agent.api.shapes.instance import AdditionShape, DomainXml
from agent.api.shapes.schema import Column, Count, Notes, ResourcesShape, Schema, Uuid, amounts_text


class WhereBodyShape(TypedDict):
    """What is to fit, in the order of preference, and how the hosts are ranked."""

    requests: Annotated[
        list[AdditionShape],
        Schema(minItems=1, maxItems=16),
        "as for a claim, without a consumer; the first that fits anywhere counts",
    ]
    xml: NotRequired[Annotated[DomainXml, "a domain, beside which the requests are asked for"]]
    strategy: NotRequired[Annotated[Literal["pack", "spread"], Schema(default="pack")]]
    count: NotRequired[
        Annotated[int, Schema(minimum=1, maximum=1000, default=1), "so many guests are to fit together"]
    ]
    host: NotRequired[Annotated[str, Schema(minLength=1), "ask of this host alone: its name or its uuid"]]


class WhereHostsShape(TypedDict):
    """How many hosts there are."""

    fit: Annotated[Count, "that have room, or of several guests together, that got some"]
    complete: Annotated[bool, "false: there may be more than were found"]
    looked_at: Annotated[Count | None, "that were read one by one; null: that was not needed"]
    able: Annotated[Count | None, "of those, that have room or could make it"]


class PlaceAllocationShape(TypedDict):
    """What a guest would get of a provider."""

    name: str
    resources: ResourcesShape


class LeftShape(TypedDict):
    """What is left of a class."""

    free: int
    capacity: int


class PlaceShape(TypedDict):
    """A place for the guest."""

    host: str
    uuid: Uuid
    allocations: Annotated[dict[str, PlaceAllocationShape], "by the uuid of the provider"]
    left: Annotated[dict[str, LeftShape], "{resource class: what the host has left with the guest}"]


class ClosedHostShape(TypedDict):
    """A host that takes no claims, or of which nothing was heard."""

    host: str
    uuid: Uuid
    reason: str


class MissShape(TypedDict):
    """The first thing that a host lacks."""

    host: str
    uuid: Uuid
    lacks: Annotated[str, "an amount of a class, a trait, an aggregate, or what concerns several groups"]
    words: Annotated[str, "the words of the request that ask for it"]
    forever: Annotated[bool, "true: the host lacks it even with nothing in use"]
    fits_without: Annotated[bool, "true: the host lacks nothing else"]
    asked: Annotated[Count | None, "null: it is no amount"]
    free: Count | None
    total: Count | None
    provider: Annotated[str, "the one that has the most free of it"]
    provider_uuid: Uuid
    holders: Annotated[dict[str, Count], "{consumer: amount} that use it there"]


class WhereSummaryShape(TypedDict):
    """The hosts with the same first obstacle; each host is counted once."""

    lacks: str
    words: str
    hosts: Count
    forever: Annotated[Count, "of these, that lack it even with nothing in use"]
    fit_without: Annotated[Count, "of these, that lack nothing else"]


class ChangeShape(TypedDict):
    """What would make room on a host."""

    kind: Annotated[
        Literal["move", "reshape", "lift", "resume"],
        "instances leave; a pending reshape is done; a reservation of a whole class is lifted; a closed host "
        "is opened",
    ]
    host: str
    providers: Annotated[
        list[str], "of which the reservation is lifted, or the shared ones of which the instances have a part"
    ]
    instances: Annotated[
        dict[str, str], "{consumer: the host with room for what it holds, empty if none was found}"
    ]
    migrations: Annotated[
        list[Uuid], "of the instances, migrations: each gives its place back when its move is confirmed"
    ]
    reverts: Annotated[
        list[Uuid], "of the instances, those that give their place back when their move is reverted"
    ]
    reason: Annotated[str, "why the reshape waits"]


class WhereShape(TypedDict):
    """Where the request fits, best first, or why it does not."""

    verdict: Annotated[Literal["fits", "not_now", "never"], "never: on no host, even with nothing in use"]
    sentence: Annotated[str, "the verdict for people"]
    alternative: Annotated[Count, "which of the requests it is about, from 0"]
    hosts: WhereHostsShape
    places: Annotated[list[PlaceShape], "the best hosts, or a place for each guest that has one"]
    closed: list[ClosedHostShape]
    nearest: Annotated[list[MissShape], "the hosts that lack the least"]
    summary: list[WhereSummaryShape]
    changes: Annotated[list[ChangeShape], "the smallest of each kind"]
    not_known: Annotated[list[str], "what Placement does not tell, so that the answer cannot rest on it"]
    notes: NotRequired[Notes]


PLACE_COLUMNS: tuple[Column[PlaceShape], ...] = (
    Column("HOST", lambda place: place["host"]),
    Column(
        "GETS",
        lambda place: "; ".join(
            f"{part['name']} {amounts_text(part['resources'])}" for part in place["allocations"].values()
        ),
    ),
    Column(
        "LEFT ON THE HOST",
        lambda place: amounts_text({name: left["free"] for name, left in place["left"].items()}),
    ),
)

SUMMARY_COLUMNS: tuple[Column[WhereSummaryShape], ...] = (
    Column("FIRST OBSTACLE", lambda row: row["lacks"]),
    Column("REQUEST", lambda row: row["words"] or "-"),
    Column("HOSTS", lambda row: row["hosts"]),
    Column("FOR GOOD", lambda row: row["forever"]),
    Column("FIT WITHOUT IT", lambda row: row["fit_without"]),
)
