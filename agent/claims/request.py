"""Claim requests as values, and the rules between their parts. Pure.

`agent.claims.parse_request` reads them from JSON and writes them.
Source: https://docs.openstack.org/api-ref/placement/#list-allocation-candidates (granular groups).
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice, product
from typing import Annotated

from agent import device_names
from agent.codec import Decoder, Form, whole
from agent.cpuset import format_cpu_set, parse_cpu_set
from agent.device_names import CC, CC_DEVTOOLS, CC_ON, CONFIDENTIAL, CONTEXT, PORTS, VDPA_TRAIT
from agent.driver import Guest
from agent.errors import UsageError, counted
from agent.http.owner_process import OwnerProcess
from agent.json_checks import fault, read_choice, read_text, read_whole
from agent.shapes import Usages, by_class
from agent.tree import MAX_UNIT, Provider, ProviderTree

GROUP_POLICIES = ("none", "isolate")
GROUPS_MAX = 64
NUMA_POLICIES = ("required", "preferred", "legacy", "socket")
CPU_POLICIES = ("shared", "dedicated", "mixed")
THREAD_POLICIES = ("prefer", "isolate", "require")
PAGE_WORDS = ("small", "large", "any")
DEVICE_PREFIX = "pci-"
"""Prefix of the suffixes of groups that come from a PCI alias."""
SIZES_MAX, WAYS_MAX = 16, 4096
"""How many sizes of VRAM are tried for a request, and of how many ways the smallest ones are."""
PLACE_PREFIX = "_"
"""Prefix of the suffixes of groups that the agent makes for the places that a guest names."""


@dataclass(frozen=True, slots=True)
class RequestGroup:
    """A request group of Placement: `resources` {class: amount} that are wanted together.

    The suffix "" is the unsuffixed group, whose classes may come from several providers of the tree; any
    other group comes from one provider. `required` is a conjunction of any-of sets of traits, `member_of` one
    of any-of sets of aggregates. A provider with a `forbidden` trait cannot serve the group. `numa_policy`
    says how near the provider must be to the guest's cells (NUMA_POLICIES, as in nova); None: as near as
    possible.
    """

    suffix: str = ""
    resources: Mapping[str, int] = field(default_factory=dict)
    required: tuple[frozenset[str], ...] = ()
    forbidden: frozenset[str] = frozenset()
    member_of: tuple[frozenset[str], ...] = ()
    numa_policy: str | None = None


def _one_of(choices: tuple[str, ...]) -> Decoder:
    return lambda value, path: read_choice(value, path, choices)


def _read_cpus(value: object, path: str) -> frozenset[int]:
    text = read_text(value, path, None, "a CPU set such as 0-3,6", 16384)
    try:
        return parse_cpu_set(text)
    except ValueError as error:
        raise UsageError(f"{path}: {error}.", path=path) from error


def _read_page_size(value: object, path: str) -> int | str | None:
    if value is None or value in PAGE_WORDS:
        return value
    if isinstance(value, str):
        raise fault(path, f"KiB, or one of {', '.join(PAGE_WORDS)}", value)
    return read_whole(value, path, 1, MAX_UNIT)


GuestCpus = Annotated[frozenset[int], Form(format_cpu_set, _read_cpus)]


@dataclass(frozen=True, slots=True)
class TopologyRequest:
    """CPU policy, NUMA cells and page size of a guest; the names are those of a flavor's `hw:` extra specs.

    `cell_cpus` and `cell_memory_mb` (MiB) have one entry for each guest cell, or none for an even split.
    `dedicated_cpus` are the guest CPUs that are pinned under the policy "mixed". `mem_page_size` is a size in
    KiB, or "small", "large", "any"; None: any page size is acceptable. `pci_numa_policy` overrides that of an
    alias. `isolate_emulator`: one PCPU of the request is for the emulator's threads alone.
    """

    cpu_policy: Annotated[str, _one_of(CPU_POLICIES)] = "shared"
    cpu_thread_policy: Annotated[str, _one_of(THREAD_POLICIES)] | None = None
    cells: Annotated[int, whole(0, 1024)] = 0
    cell_cpus: tuple[GuestCpus, ...] = ()
    cell_memory_mb: tuple[Annotated[int, whole(1)], ...] = ()
    dedicated_cpus: GuestCpus = frozenset()
    mem_page_size: Annotated[int | str | None, _read_page_size] = None
    pci_numa_policy: Annotated[str, _one_of(NUMA_POLICIES)] | None = None
    isolate_emulator: bool = False


@dataclass(frozen=True, slots=True)
class ClaimRequest:
    """Everything that one consumer asks for. `name` is for people.

    `root_required` and `root_forbidden` are traits that the host's root provider must have, or must not.
    `pci` ((alias, count), ...) are the devices requested by alias; agent.claims.pci_alias adds a group for
    each. The claim ends with the `process`, if one is given. `others` are asked for, in their order, where
    this request does not fit; a claim's request has none. `alternative` is its number among them, from 1; 0:
    there was no alternative. It says where the request comes from, and nothing of what it asks for.
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
    root_required: frozenset[str] = frozenset()
    root_forbidden: frozenset[str] = frozenset()
    process: OwnerProcess | None = None
    alternative: int = field(default=0, compare=False)
    others: tuple["ClaimRequest", ...] = ()

    @property
    def options(self) -> "tuple[ClaimRequest, ...]":
        """The alternatives in their order of preference, each as a request of its own, for one consumer."""
        others = (
            replace(other, consumer=self.consumer, name=self.name, process=self.process)
            for other in self.others
        )
        return (replace(self, others=()), *others) if self.others else (self,)

    @property
    def resources(self) -> dict[str, int]:
        """{class: amount}, summed over all groups."""
        return by_class(group.resources for group in self.groups)

    @property
    def unsuffixed(self) -> RequestGroup:
        """The unsuffixed group; an empty one where there is none."""
        return next((group for group in self.groups if not group.suffix), RequestGroup())

    def with_more(self, more: Mapping[str, int]) -> "ClaimRequest":
        """The request with these amounts beside those of the unsuffixed group."""
        grown = replace(self.unsuffixed, resources=by_class((self.unsuffixed.resources, more)))
        return replace(self, groups=(grown, *(group for group in self.groups if group.suffix)))


def with_others(requests: Sequence[ClaimRequest]) -> ClaimRequest:
    """One request for the first of these that fits; each has its number, if there are several."""
    if len(requests) == 1:
        return requests[0]
    first, *others = (replace(each, alternative=number) for number, each in enumerate(requests, 1))
    return replace(first, others=tuple(others))


def by_size(request: ClaimRequest, classes: Callable[[], Iterable[str]]) -> ClaimRequest:
    """The request with a class for each amount of VRAM: an alternative for each size that is large enough.

    `classes` gives those that there are; it is asked only where it matters. The smallest size comes first,
    each with the number of the alternative that it is a size of. A request for more than any of them stays as
    it is, and fits nowhere.
    """
    if not any(
        device_names.VRAM_CLASS in group.resources for option in request.options for group in option.groups
    ):
        return request
    sizes, found = device_names.vram_sizes(classes()), list[ClaimRequest]()
    for option in request.options:
        asked = [group for group in option.groups if device_names.VRAM_CLASS in group.resources]
        ways = product(
            *([mib for mib in sizes if mib >= each.resources[device_names.VRAM_CLASS]] for each in asked)
        )
        chosen = sorted(islice(ways, WAYS_MAX), key=sum)[:SIZES_MAX]
        for way in chosen:
            named = {each.suffix: device_names.vram_class(mib) for each, mib in zip(asked, way, strict=True)}
            groups = tuple(_of_class(group, named.get(group.suffix)) for group in option.groups)
            found.append(replace(option, groups=groups))
        found += [] if chosen else [option]
    return replace(found[0], others=tuple(found[1:]))


def _of_class(group: RequestGroup, name: str | None) -> RequestGroup:
    """The group with a unit of the class in place of its amount of VRAM."""
    if name is None:
        return group
    others = {each: amount for each, amount in group.resources.items() if each != device_names.VRAM_CLASS}
    return replace(group, resources={**others, name: others.get(name, 0) + 1})


def check_request(request: ClaimRequest) -> ClaimRequest:
    """Return the request if its groups are consistent. Raises UsageError where Placement answers 400."""
    suffixes = [group.suffix for group in request.groups]
    devices = {group.suffix for group in request.groups if is_device_group(group)}
    # Count devices before they become groups, so that a request cannot make the agent create millions.
    count = len(suffixes) - len(devices) + max(len(devices), sum(number for _, number in request.pci))
    if not any(group.resources for group in request.groups):
        raise UsageError("groups: the request is empty; name at least one resource and its amount.")
    if count > GROUPS_MAX:
        raise UsageError(
            f"groups: {counted(count, 'group is', 'groups are')} asked for, {GROUPS_MAX} are allowed; each "
            "device requested by alias is one."
        )
    for suffix in suffixes:
        if suffixes.count(suffix) > 1:
            raise UsageError(f"groups: the suffix {suffix!r} is given twice; merge the groups or rename one.")
    for group in request.groups:
        _check_group(group, request.same_subtree)
    both = request.root_required & request.root_forbidden
    if both:
        raise UsageError(f"root_required: trait {', '.join(sorted(both))} is both required and forbidden.")
    if request.group_policy not in (None, *GROUP_POLICIES):
        raise UsageError(f"group_policy: {request.group_policy!r} is not one of none, isolate.")
    suffixed = [suffix for suffix in suffixes if suffix and suffix not in devices]
    if len(suffixed) > 1 and request.group_policy is None:
        raise UsageError(
            f"group_policy: the groups {_listed(suffixed)} need one: isolate puts each on a provider of its "
            "own, none lets them share."
        )
    for named in request.same_subtree:
        unknown = named - set(suffixed)
        if unknown or not named:
            raise UsageError(
                f"same_subtree: {_listed(unknown) or 'an empty set'} is no suffix of a group; "
                f"there are {_listed(suffixed) or 'none'}."
            )
    return request


def named_as(request: ClaimRequest, other: ClaimRequest) -> ClaimRequest:
    """The request with the other's name, where one of the two has none: a name is for people."""
    return request if request.name and other.name else replace(request, name=other.name)


def is_device_group(group: RequestGroup) -> bool:
    """Whether the group comes from a PCI alias."""
    return group.suffix.startswith(DEVICE_PREFIX)


def is_confidential(request: ClaimRequest) -> bool | None:
    """Whether the guest's memory is encrypted by SEV-SNP or TDX; None: by what, the request does not say.

    SEV and SEV-ES do not count: there are no cards for such guests.
    """
    kinds = [any_of for group in request.groups if CONTEXT in group.resources for any_of in group.required]
    if any(any_of and any_of <= CONFIDENTIAL for any_of in kinds):
        return True
    has_kind = any("_AMD_SEV" in trait for any_of in kinds for trait in any_of)
    return False if has_kind or CONTEXT not in request.resources else None


def card_obstacle(
    confidential: bool | None, group: RequestGroup, names: Collection[str], provider: Provider
) -> str:
    """Why the guest gets none of these classes from the provider, as a clause; "" if it may.

    `confidential` as of `is_confidential`. A confidential guest gets cards whose mode is on, or devtools if
    its group asks for that; any other guest gets none of these. None gets what `wrong_mode` is about. Ports
    are for both, and so is what an operator adds to the host or to a cell: it is no card.
    """
    traits, devices = provider.traits, [*filter(device_names.is_device_class, names)]
    wrong = device_names.wrong_mode(traits) if devices else ""
    is_free = confidential is None or (not confidential and CC not in traits)
    if wrong or is_free or not PORTS.isdisjoint(names):
        return wrong
    if provider.parent is None or not provider.inventories.keys().isdisjoint(("VCPU", "PCPU", "MEMORY_MB")):
        devices = [name for name in devices if not name.startswith("CUSTOM_")]
    if not devices:
        return ""
    if not confidential:
        return f"has trait {CC}: only guests with SEV-SNP or TDX get such a card"
    wanted = {CC_ON, *(CC_DEVTOOLS for any_of in group.required if CC_DEVTOOLS in any_of)}
    if (CC in traits and wanted & traits) or VDPA_TRAIT in traits:
        return ""
    if CC in traits and CC_DEVTOOLS not in traits:
        return f"has trait {CC} alone: no guest of this host can have it, `plimsoll status` says why"
    lacking = CC if CC_ON in traits else CC_ON  # the one that the mode of the card's spec would give it
    return f"lacks trait {lacking}, and the guest's memory is encrypted by SEV-SNP or TDX"


def wrong_cards(
    request: ClaimRequest | None, guest: Guest | None, needed: Usages, tree: ProviderTree
) -> Iterator[tuple[Provider, str]]:
    """(card, why it is not for this guest, as a clause) of those of which it needs something."""
    confidential = is_confidential(request) if request is not None else False
    if guest is not None and (guest.encryption or not (guest.is_off or guest.problem)):
        confidential = bool(guest.encryption) and guest.encryption <= CONFIDENTIAL
    asked = request.groups if request is not None else ()
    group = RequestGroup(required=tuple(any_of for each in asked for any_of in each.required))
    for uuid, amounts in sorted(needed.items()):
        card = tree.get(uuid)
        clause = card_obstacle(confidential, group, amounts, card) if card is not None else ""
        if card is not None and clause:
            yield card, clause


def has_unresolved_devices(request: ClaimRequest) -> bool:
    """Whether the request has devices by alias for which no groups were added yet."""
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


def _listed(names: Iterable[str]) -> str:
    return ", ".join(map(repr, sorted(names)))
