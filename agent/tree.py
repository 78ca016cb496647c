"""The provider tree: frozen value types, indexed by uuid and by name. Pure.

Terms are OpenStack Placement's: a *resource provider* has an *inventory* per resource class, *traits* and
*aggregates*, and a *generation* that placement raises with each change.
Source: https://docs.openstack.org/api-ref/placement/, seeds 2018 and `reference/nova.md` section 3.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

MAX_UNIT = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Inventory:
    """How much of one resource class a provider has.

    `reserved` is not for guests; capacity is `(total - reserved) * allocation_ratio`; one consumer may hold
    between `min_unit` and `max_unit`, in multiples of `step_size`.
    """

    total: int
    reserved: int = 0
    min_unit: int = 1
    max_unit: int = MAX_UNIT
    step_size: int = 1
    allocation_ratio: float = 1.0

    @property
    def capacity(self) -> int:
        return int((self.total - self.reserved) * self.allocation_ratio)


@dataclass(frozen=True, slots=True)
class Provider:
    """One resource provider. `parent` is a uuid, None for a root.

    `generation` is what placement last said, None if placement does not have the provider; it is no part of
    what a provider *is*, so equality leaves it out.
    """

    uuid: str
    name: str
    parent: str | None = None
    inventories: Mapping[str, Inventory] = field(default_factory=dict)
    traits: frozenset[str] = frozenset()
    aggregates: frozenset[str] = frozenset()
    generation: int | None = field(default=None, compare=False)


class ProviderTree:
    """An immutable set of providers whose parents are in it; a change makes a new tree. (Skeleton.)"""

    def __init__(self, providers: Iterable[Provider] = ()) -> None:
        raise NotImplementedError

    def __iter__(self) -> Iterator[Provider]:
        raise NotImplementedError
