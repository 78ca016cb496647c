"""A carving: what operators and guests need of cards, and the units of the plan file."""

from __future__ import annotations

import errno
import json
import uuid
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.carving.carving import (
    NAME,
    NUMBER,
    Carving,
    Mdev,
    MigInstance,
    NeededUnit,
    Plan,
    Seen,
    SeenFunction,
    Sight,
    Step,
    StepKind,
    VgpuType,
    join,
    needed_units,
    needs_to_json,
    on_mixed_cards,
    plan,
    read_needs,
    read_step,
    undo,
)
from agent.claims.claim import Claim, ClaimState
from agent.claims.request import ClaimRequest, RequestGroup
from agent.device_names import DASHED_UUID, PCI_ADDRESS
from agent.driver import CarvedUnit, DeclaredCarving, Guest, GuestState, UsedUnit
from agent.errors import UsageError


@pytest.mark.parametrize("text", ["..", ".", "../x", "a/b", "", "a\n", "a b", "/", "\x00"])
def test_what_leads_elsewhere_is_no_name(text: str) -> None:
    assert not any(pattern.fullmatch(text) for pattern in (PCI_ADDRESS, NAME, NUMBER, DASHED_UUID))


def test_the_names_of_real_hosts_are_names() -> None:
    assert PCI_ADDRESS.fullmatch("0000:41:10.2") and PCI_ADDRESS.fullmatch("10000:e1:00.0")
    for name in ("vfio-pci", "mlx5_vfio_pci", "nvidia-471", "i915-GVTg_V5_4"):
        assert NAME.fullmatch(name)


CARD, VF, OTHER = "0000:84:00.0", "0000:84:00.1", "0000:85:00.1"
MDEV = "00000000-0000-0000-0000-000000000001"
SEEN = Seen({CARD: SeenFunction(CARD, vfs_max=4, vf_addresses=(VF, "0000:84:00.2"))})
DECLARED = DeclaredCarving({CARD: 2}, mdev_types={"nvidia-471": frozenset({CARD})})


def joined(unit: CarvedUnit, declared: DeclaredCarving = DECLARED) -> tuple[Carving, tuple[str, ...]]:
    return join(declared, [NeededUnit(unit, "instance gpu1")], SEEN)


def test_a_mediated_device_of_an_enabled_type_on_a_named_card_is_needed_with_its_holder() -> None:
    carving, problems = joined(CarvedUnit(MDEV, CARD, VF, "nvidia-471"))
    assert problems == ()
    assert carving == Carving(
        {CARD: 2}, mdevs={MDEV: Mdev(VF, "nvidia-471")}, holders={MDEV: "instance gpu1"}
    )


def test_what_the_operator_did_not_name_is_left_out_and_told() -> None:
    for unit, options in (
        (CarvedUnit(MDEV, CARD, VF, "nvidia-472"), "enabled_mdev_types and"),  # a type that is not enabled
        # Functions of another card, as the kernel shows.
        (CarvedUnit(MDEV, CARD, OTHER, "nvidia-471"), "enabled_mdev_types and"),
        (CarvedUnit(OTHER, CARD, OTHER, "nvidia-471"), "enabled_mdev_types and"),
        (CarvedUnit(VF, CARD, VF, "vram-8192"), "vram_cards does not allow"),
    ):
        carving, (problem,) = joined(unit)
        assert (carving.mdevs, carving.types) == ({}, {})
        assert problem.startswith(f"instance gpu1 has {unit.unit} of type {unit.type_id} on {unit.parent}")
        assert f"which [devices] {options}" in problem


def test_a_vgpu_type_that_a_guest_has_counts_before_the_one_that_the_operator_declared() -> None:
    declared = DeclaredCarving(
        {CARD: 2}, vgpu_types={VF: "nvidia-468"}, mdev_types={"nvidia-471": frozenset()}
    )
    assert joined(CarvedUnit(VF, CARD, VF), declared)[0].types == {VF: VgpuType("468")}
    carving, problems = joined(CarvedUnit(VF, CARD, VF, "nvidia-471", 12), declared)
    assert (carving.types, problems) == ({VF: VgpuType("471", 12)}, ())


def test_the_types_of_a_card_in_mixed_size_mode_are_those_that_claims_need_alone() -> None:
    declared = DeclaredCarving(
        {CARD: 2},
        vgpu_types={VF: "nvidia-468"},
        mdev_types={"nvidia-471": frozenset()},
        mixed=frozenset({CARD}),
    )
    carving, (problem,) = joined(CarvedUnit("0000:84:00.2", CARD, "0000:84:00.2", "nvidia-471", 0), declared)
    assert carving.mixed == {CARD} and carving.types == {"0000:84:00.2": VgpuType("471", 0)}
    assert "mixed_size_cards" in problem and VF in problem


def test_a_function_that_nobody_makes_is_told_with_the_option() -> None:
    carving, (problem,) = joined(CarvedUnit(OTHER, "0000:85:00.0", OTHER))
    assert carving.vfs == {CARD: 2} and carving.holders == {OTHER: "instance gpu1"}
    assert problem == (
        f"instance gpu1 has {OTHER}, which is not there, and [devices] sriov_vfs does not say how many "
        "virtual functions 0000:85:00.0 is to have."
    )
    assert joined(CarvedUnit(VF, CARD, VF))[1] == ()


ADDRESSES = st.builds("0000:{:02x}:{:02x}.{}".format, *(st.integers(0, most) for most in (255, 31, 7)))
UNITS = st.builds(
    CarvedUnit,
    ADDRESSES | st.builds(str, st.builds(uuid.UUID, int=st.integers(0, 2**128 - 1))),
    ADDRESSES,
    ADDRESSES,
    st.sampled_from(["", "nvidia-471", "i915-GVTg_V5_4"]),
    st.none() | st.integers(0, 100),
    st.sampled_from(["", "52:54:00:00:00:01", "52:54:00:00:00:01 VLAN 100"]),
)
CARVED = CarvedUnit(MDEV, CARD, VF, "nvidia-471")


def guest(*units: str) -> Guest:
    used = tuple(UsedUnit("VGPU", unit, f"pci:{CARD}") for unit in units)
    return Guest(str(uuid.UUID(int=7)), "gpu1", GuestState.SHUTOFF, {}, used)


@given(st.lists(st.builds(NeededUnit, UNITS, st.just("instance gpu1"))))
def test_the_units_come_back_as_they_were(needs: list[NeededUnit]) -> None:
    assert read_needs(json.loads(json.dumps(needs_to_json(needs)))) == tuple(needs)


def test_a_domain_needs_what_it_names_also_while_it_is_shut_off() -> None:
    (need,) = needed_units([], [guest(MDEV, "7")], [CARVED, CarvedUnit(VF, CARD, VF)], [])
    assert need == NeededUnit(CARVED, f"instance gpu1 ({uuid.UUID(int=7)})")


def test_a_unit_that_a_boot_took_away_is_needed_as_long_as_somebody_has_it() -> None:
    former = needed_units([], [guest(MDEV)], [CARVED], [])
    assert needed_units([], [guest(MDEV)], [], former) == former
    assert needed_units([], [guest()], [], former) == ()


PORT = "52:54:00:00:00:01 VLAN 100"


def test_a_function_keeps_its_mac_and_vlan_as_long_as_the_same_guest_has_it() -> None:
    with_port, bare = (CarvedUnit(VF, CARD, VF, port=port) for port in (PORT, ""))
    former = needed_units([], [guest(VF)], [with_port], [])
    assert [need.unit.port for need in former] == [PORT]
    assert needed_units([], [guest(VF)], [bare], former) == former, "the boot took it"
    other = replace(guest(VF), uuid=str(uuid.UUID(int=9)))
    assert [need.unit.port for need in needed_units([], [other], [bare], former)] == [""]
    newer = CarvedUnit(VF, CARD, VF, port="52:54:00:00:00:02")
    assert [need.unit for need in needed_units([], [guest(VF)], [newer], former)] == [newer]


def test_a_plan_file_of_before_has_no_ports_and_one_that_is_none_is_refused() -> None:
    data = needs_to_json([NeededUnit(CarvedUnit(VF, CARD, VF, port=PORT), "instance gpu1")])
    del data["units"][0]["port"]
    assert [need.unit.port for need in read_needs(data)] == [""]
    data["units"][0]["port"] = f"{PORT} 802.1ad"
    assert [need.unit.port for need in read_needs(data)] == [f"{PORT} 802.1ad"]
    for text in (
        "52:54:00:00:00:01 VLAN 100\n",
        "52:54:00:00:00:01 802.1ad",
        "52:54:00",
        "52:54:00:00:00:01; VLAN 1",
    ):
        data["units"][0]["port"] = text
        with pytest.raises(UsageError, match=r"units\[0\].port"):
            read_needs(data)


@pytest.mark.parametrize(
    ("ports", "card", "wanted"), [(True, CARD, {VF: PORT}), (False, CARD, {}), (True, VF, {})]
)
def test_ports_are_given_where_the_operator_says_so_on_cards_that_are_named(
    ports: bool, card: str, wanted: dict[str, str]
) -> None:
    declared = replace(DECLARED, ports=ports)
    assert joined(CarvedUnit(VF, card, VF, port=PORT), declared)[0].ports == wanted


def test_a_claim_needs_what_is_still_to_be_made_for_it() -> None:
    making = {MDEV: {"parent": VF, "type": "nvidia-471"}}
    request = ClaimRequest(str(uuid.UUID(int=8)), (RequestGroup(resources={"VGPU": 1}),), name="gpu2")
    units = {"p": {"VGPU": (MDEV,)}}
    claim = Claim(request.consumer, ClaimState.CLAIMED, request, {"p": {"VGPU": 1}}, units, makings=making)
    (need,) = needed_units([claim], [], [], [])
    assert (need.unit.parent, need.unit.type_id) == (VF, "nvidia-471")
    assert need.holder == f"instance gpu2 ({uuid.UUID(int=8)})"


def test_the_vgpu_of_a_claim_is_needed_on_its_function_in_its_place() -> None:
    unit = f"{VF}/nvidia-471@20"
    making = {unit: {"parent": VF, "type": "nvidia-471", "placement": "20"}}
    request = ClaimRequest(str(uuid.UUID(int=8)), (RequestGroup(resources={"VGPU": 1}),), name="gpu2")
    units = {"p": {"VGPU": (unit,)}}
    claim = Claim(request.consumer, ClaimState.CLAIMED, request, {"p": {"VGPU": 1}}, units, makings=making)
    needed = needed_units([claim], [], [], [])
    assert [need.unit for need in needed] == [CarvedUnit(VF, VF, VF, "nvidia-471", 20)]
    made = [CarvedUnit(VF, CARD, VF, "nvidia-471", 20)]
    assert [need.unit for need in needed_units([claim], [guest(unit)], made, needed)] == made
    elsewhere = [CarvedUnit(VF, CARD, VF, "nvidia-471", 0)]
    assert [need.unit.placement for need in needed_units([claim], [], elsewhere, [])] == [20]


def test_where_a_claim_has_its_vgpu_counts_and_not_where_its_guest_has_it() -> None:
    request = ClaimRequest(str(uuid.UUID(int=8)), (RequestGroup(resources={"VGPU": 1}),), name="gpu2")
    for claimed, found in ((0, 20), (20, 0)):
        unit, making = f"{VF}/nvidia-471@{claimed}", {"parent": VF, "type": "nvidia-471"}
        claim = Claim(
            request.consumer,
            ClaimState.CLAIMED,
            request,
            {"p": {"VGPU": 1}},
            {"p": {"VGPU": (unit,)}},
            makings={unit: {**making, "placement": str(claimed)}},
        )
        seen = CarvedUnit(VF, CARD, VF, "nvidia-471", found)
        needed = needed_units([claim], [guest(f"{VF}/nvidia-471@{found}")], [seen], [])
        assert [need.unit.placement for need in needed] == [claimed]


@pytest.mark.parametrize(
    "change",
    [
        {"unit": "../../x"},
        {"parent": "0000:84:00.1/../.."},
        {"card": "eth0"},
        {"type_id": "../create"},
        {"type_id": ".."},
        {"placement": -1},
        {"placement": True},
        {"holder": "a\nb"},
        {"path": "/etc/shadow"},
    ],
)
def test_whatever_could_be_more_than_a_name_is_refused(change: dict[str, object]) -> None:
    data = needs_to_json([NeededUnit(CARVED, "instance gpu1")])
    data["units"][0] |= change
    with pytest.raises(UsageError, match=r"units\[0\]"):
        read_needs(data)


@pytest.mark.parametrize("data", [None, [], {}, {"version": 2, "units": []}, {"version": 1, "units": {}}])
def test_another_file_is_refused(data: object) -> None:
    with pytest.raises(UsageError):
        read_needs(data)


# The steps from what the kernel shows to a carving, and what undoes them after a run that was cut off

TEXTS = st.text(max_size=20)


@given(st.builds(Step, st.sampled_from(StepKind), TEXTS, TEXTS, TEXTS, TEXTS))
def test_a_step_comes_back_as_it_was(step: Step) -> None:
    assert read_step(json.loads(json.dumps(step.to_json()))) == step


@pytest.mark.parametrize("value", [None, {}, {"kind": "format"}, {"kind": "vfs", "card": "", "function": 1}])
def test_anything_else_is_refused(value: object) -> None:
    with pytest.raises(UsageError):
        read_step(value)


# A model of what the kernel makes of the writes of a carving, in memory and as slow as a test wants.
#
# Its answers are those of drivers/pci/iov.c and of the documentation of mediated devices: a number of virtual
# functions changes over 0 only, a driver that is named alone binds, and what is on a function goes with it.


@dataclass
class ModelCard:
    """A card, what its virtual functions are like, and `late`: how many waits its functions need to appear.

    `driver` comes to it after `driver_late` waits.
    """

    address: str
    vf_addresses: tuple[str, ...] = ()
    driver: str = "pf"
    vf_driver: str = "vf"
    vendor_vfio: bool = False
    mdev_types: frozenset[str] = frozenset()
    vf_mdev_types: frozenset[str] = frozenset()
    room: int = 8
    driver_late: int = 0
    late: int = 0


@dataclass
class ModelKernel:
    """The host. `do` takes a step or raises OSError, as a write to sysfs does; `uses` {function: clauses}."""

    cards: dict[str, ModelCard]
    functions: dict[str, SeenFunction] = field(default_factory=dict)
    mdevs: dict[str, Mdev] = field(default_factory=dict)
    uses: dict[str, tuple[str, ...]] = field(default_factory=dict)
    writes: int = 0
    _waits: dict[str, int] = field(default_factory=dict)
    _hidden: dict[str, int] = field(default_factory=dict)

    def boot(self) -> None:
        """What a reboot leaves: the cards alone."""
        self.functions = {card.address: self._new(card, card.address) for card in self.cards.values()}
        self.mdevs, self.uses, self._hidden = {}, {}, {}
        self._waits = {card.address: card.driver_late for card in self.cards.values()}

    def seen(self) -> Seen:
        """What it shows now."""
        return Seen(
            {
                address: replace(self._shown(function), uses=self.uses.get(address, ()))
                for address, function in self.functions.items()
                if function.card is None or not self._hidden.get(function.card)
            },
            dict(self.mdevs),
        )

    def _shown(self, function: SeenFunction) -> SeenFunction:
        if self._waits.get(function.address):
            return replace(function, driver="", vfs_max=None, vf_addresses=(), mdev_types=frozenset())
        return replace(function, vfs=()) if self._hidden.get(function.address) else function

    def do(self, step: Step) -> None:
        """Take the step. Raises OSError, and TimeoutError for a wait that is in vain."""
        if step.kind is StepKind.AWAIT:
            self._await(step)
            return
        self.writes += 1
        function = self.functions.get(step.function)
        if function is None:
            raise OSError(errno.ENOENT, step.text)
        getattr(self, f"_{step.kind.value}")(function, step)

    def _await(self, step: Step) -> None:
        self._waits.pop(step.card, None)
        self._hidden.pop(step.card, None)
        function = self.functions.get(step.function)
        met = (
            function is not None
            and {
                Sight.FUNCTION: True,
                Sight.SRIOV: function.vfs_max is not None,
                Sight.VFS: str(len(function.vfs)) == step.unit,
                Sight.VGPU_TYPE: function.vgpu_type is not None,
                Sight.MDEV_TYPE: step.unit in function.mdev_types,
            }[Sight(step.value)]
        )
        if not met:
            raise TimeoutError(step.text)

    def _new(self, card: ModelCard, address: str) -> SeenFunction:
        if address == card.address:
            return SeenFunction(
                address,
                card.driver,
                vfs_max=len(card.vf_addresses) or None,
                vf_addresses=card.vf_addresses,
                autoprobe=True if card.vf_addresses else None,
                mdev_types=card.mdev_types,
            )
        probe = self.functions[card.address].autoprobe
        return SeenFunction(
            address,
            card.vf_driver if probe else "",
            card=card.address,
            vgpu_type="0" if card.vendor_vfio and probe else None,
            mdev_types=card.vf_mdev_types if probe else frozenset(),
        )

    def _vfs(self, function: SeenFunction, step: Step) -> None:
        number, card = int(step.value), self.cards[step.function]
        if function.vfs_max is None or self._waits.get(card.address):
            raise OSError(errno.ENOENT, step.text)
        if number > function.vfs_max:
            raise OSError(errno.ERANGE, step.text)
        if number == function.vfs_number:
            return
        if function.vfs_number and number:
            raise OSError(errno.EBUSY, step.text)
        assert not any(self.uses.get(vf) for vf in function.vfs), "a function in use was removed"
        for vf in function.vfs:
            del self.functions[vf]
            self.mdevs = {uuid: mdev for uuid, mdev in self.mdevs.items() if mdev.parent != vf}
        vfs = card.vf_addresses[:number]
        self.functions[card.address] = replace(function, vfs_number=number, vfs=vfs)
        for vf in vfs:
            self.functions[vf] = self._new(card, vf)
        if number and card.late:
            self._hidden[card.address] = card.late

    def _autoprobe(self, function: SeenFunction, step: Step) -> None:
        self.functions[step.function] = replace(function, autoprobe=step.value == "1")

    def _driver_override(self, function: SeenFunction, step: Step) -> None:
        self.functions[step.function] = replace(function, override=step.value)

    def _unbind(self, function: SeenFunction, step: Step) -> None:
        if function.driver != step.value:
            raise OSError(errno.ENODEV, step.text)
        assert not self.uses.get(step.function), "a driver was taken from a device in use"
        gone = replace(function, driver="", vfs_max=None, vgpu_type=None, mdev_types=frozenset())
        self.functions[step.function] = gone

    def _bind(self, function: SeenFunction, step: Step) -> None:
        card = self.cards.get(step.function) or self.cards[function.card or ""]
        default = card.driver if card.address == step.function else card.vf_driver
        if not function.driver:
            self.functions[step.function] = replace(function, driver=function.override or default)

    def _vgpu_type(self, function: SeenFunction, step: Step) -> None:
        if function.vgpu_type is None:
            raise OSError(errno.ENOENT, step.text)
        if function.vgpu_type != "0" and step.value != "0":
            raise OSError(errno.EBUSY, step.text)
        self.functions[step.function] = replace(function, vgpu_type=step.value)

    def _create_mdev(self, function: SeenFunction, step: Step) -> None:
        if step.unit in self.mdevs:
            raise OSError(errno.EEXIST, step.text)
        if step.value not in function.mdev_types:
            raise OSError(errno.ENOENT, step.text)
        self.mdevs[step.unit] = Mdev(step.function, step.value)

    def _remove_mdev(self, function: SeenFunction, step: Step) -> None:
        if self.mdevs.pop(step.unit, None) is None:
            raise OSError(errno.ENOENT, step.text)


NIC = "0000:41:00.0"
NIC_VFS = tuple(f"0000:41:10.{number}" for number in (0, 2, 4, 6))
GPU = "0000:84:00.0"
GPU_VFS = tuple(f"0000:84:00.{number}" for number in (1, 2, 3, 4))
NEW_GPU = "0000:85:00.0"
NEW_GPU_VFS = tuple(f"0000:85:00.{number}" for number in (1, 2, 3, 4))
OLD_GPU = "0000:42:00.0"
WHOLE = "0000:83:00.0"
UUIDS = tuple(str(uuid.UUID(int=number)) for number in range(1, 9))
STEPS_MAX = 200


def host(driver_late: int = 0, late: int = 0) -> ModelKernel:
    """A network card, a card with mediated devices on its functions, one with vGPU types, one without VFs."""
    delays = {"driver_late": driver_late, "late": late}
    cards = [
        ModelCard(NIC, NIC_VFS, **delays),
        ModelCard(GPU, GPU_VFS, "nvidia", "nvidia", vf_mdev_types=frozenset({"nvidia-471"}), **delays),
        ModelCard(NEW_GPU, NEW_GPU_VFS, "nvidia", "nvidia", vendor_vfio=True, **delays),
        ModelCard(OLD_GPU, (), "nvidia", mdev_types=frozenset({"nvidia-11"})),
        ModelCard(WHOLE, (), "nouveau"),
    ]
    kernel = ModelKernel({card.address: card for card in cards})
    kernel.boot()
    return kernel


def take_all(kernel: ModelKernel, carving: Carving) -> None:
    """Take the first step of the plan until there is none."""
    for _ in range(STEPS_MAX):
        steps = plan(carving, kernel.seen()).steps
        if not steps:
            return
        kernel.do(steps[0])
    raise AssertionError(f"no end: {steps[0].text}")


def is_reached(carving: Carving, seen: Seen) -> bool:
    """Whether what is seen is what the carving says, by the words of its docstring."""
    at = seen.functions
    drivers = dict(carving.drivers)
    for card, driver in carving.vf_drivers.items():
        drivers = dict.fromkeys(at[card].vfs, driver) | drivers
    return (
        all(len(at[card].vfs) == number for card, number in carving.vfs.items())
        and all((at[each].driver, at[each].override) == (name, name) for each, name in drivers.items())
        and all(at[function].vgpu_type == wanted.number for function, wanted in carving.types.items())
        and all(seen.mdevs.get(uuid) == mdev for uuid, mdev in carving.mdevs.items())
    )


@st.composite
def carvings(draw: st.DrawFn) -> Carving:
    """A carving of that host in which all that is on a function is on one that is to be there."""
    numbers = {card: draw(st.integers(0, 4)) for card in (NIC, GPU, NEW_GPU)}
    vf_drivers = {NIC: "vfio-pci"} if draw(st.booleans()) else {}
    drivers = {WHOLE: "vfio-pci"} if draw(st.booleans()) else {}
    if numbers[NIC] and draw(st.booleans()):
        drivers[NIC_VFS[numbers[NIC] - 1]] = "mlx5_vfio_pci"
    types = {vf: VgpuType("471") for vf in NEW_GPU_VFS[: draw(st.integers(0, numbers[NEW_GPU]))]}
    uuids = iter(UUIDS)
    mdevs = {
        **{next(uuids): Mdev(vf, "nvidia-471") for vf in GPU_VFS[: draw(st.integers(0, numbers[GPU]))]},
        **{next(uuids): Mdev(OLD_GPU, "nvidia-11") for _ in range(draw(st.integers(0, 3)))},
    }
    return Carving(numbers, drivers, vf_drivers, types, mdevs)


@given(carvings(), st.none() | carvings(), st.integers(0, 60), st.integers(0, 1), st.integers(0, 1))
def test_a_plan_from_any_partial_state_reaches_the_carving(
    carving: Carving, other: Carving | None, done: int, driver_late: int, late: int
) -> None:
    kernel, former = host(driver_late, late), other or carving
    for _ in range(done):  # a former run, of this or of another carving, that ended in the middle
        steps = plan(replace(former, mdevs=carving.mdevs, types=carving.types), kernel.seen()).steps
        if not steps or (other and (steps[0].function in carving.types or steps[0].unit)):
            break
        try:
            kernel.do(steps[0])
        except TimeoutError:
            break  # it waited for a function that its carving does not have made
    seen = kernel.seen()
    if other and any(each.driver == "mlx5_vfio_pci" for each in seen.functions.values()):
        return  # a driver that no carving names any more stays
    take_all(kernel, carving)
    assert is_reached(carving, kernel.seen()) or (other and plan(carving, kernel.seen()).refusals)


@given(carvings(), st.integers(0, 1), st.integers(0, 1))
def test_applying_twice_changes_nothing(carving: Carving, driver_late: int, late: int) -> None:
    kernel = host(driver_late, late)
    take_all(kernel, carving)
    assert is_reached(carving, kernel.seen())
    writes = kernel.writes
    assert plan(carving, kernel.seen()) == Plan()
    take_all(kernel, carving)
    assert kernel.writes == writes


@given(carvings())
def test_the_plan_that_is_shown_is_the_plan_that_is_taken(carving: Carving) -> None:
    if set(carving.drivers) & set(NIC_VFS) and not carving.vf_drivers:
        return  # which driver the kernel binds by itself is known only when the function is there
    shown, taken = host(), host()
    for step in plan(carving, shown.seen()).steps:
        shown.do(step)
    take_all(taken, carving)
    assert shown.seen() == taken.seen()


@given(carvings(), carvings(), st.sampled_from(NIC_VFS + GPU_VFS), st.booleans())
def test_what_is_in_use_is_left_alone(first: Carving, second: Carving, vf: str, is_known: bool) -> None:
    kernel = host()
    take_all(kernel, first)
    seen = kernel.seen()
    if vf not in seen.functions:
        return
    kernel.uses[vf] = ("its driver vfio-pci gives it to a guest",)
    holders = {vf: "instance web1"} if is_known else {}
    second = replace(second, holders=holders)
    wanted = plan(second, kernel.seen())
    take_all(kernel, second)  # the model fails where a function in use is removed or loses its driver
    after = kernel.seen().functions[vf]
    assert replace(after, override="") == replace(seen.functions[vf], override="", uses=after.uses)
    card = seen.functions[vf].card or ""
    if second.vfs[card] != seen.functions[card].vfs_number:
        refusal = next(text for text in wanted.refusals if text.startswith(card))
        assert vf in refusal and "vfio-pci" in refusal and (not is_known or "instance web1" in refusal)


def test_the_steps_of_a_network_card_are_in_the_kernels_order() -> None:
    steps = plan(Carving({NIC: 2}, vf_drivers={NIC: "vfio-pci"}), host().seen()).steps
    assert steps == (
        Step(StepKind.AUTOPROBE, NIC, NIC, "0"),
        Step(StepKind.VFS, NIC, NIC, "2"),
        Step(StepKind.AWAIT, NIC, NIC, Sight.VFS, "2"),
        Step(StepKind.OVERRIDE, NIC, "0000:41:10.0", "vfio-pci"),
        Step(StepKind.BIND, NIC, "0000:41:10.0", "vfio-pci"),
        Step(StepKind.OVERRIDE, NIC, "0000:41:10.2", "vfio-pci"),
        Step(StepKind.BIND, NIC, "0000:41:10.2", "vfio-pci"),
    )


def test_a_mediated_device_waits_for_the_functions_of_its_card() -> None:
    mdev = Mdev(GPU_VFS[1], "nvidia-471")
    steps = plan(Carving({GPU: 2}, mdevs={UUIDS[0]: mdev}), host().seen()).steps
    assert [step.text for step in steps] == [
        f"write 2 to sriov_numvfs of {GPU}",
        f"wait for its virtual functions of {GPU}",
        f"wait for its types of mediated devices of {GPU_VFS[1]}",
        f"create mediated device {UUIDS[0]} of type nvidia-471 on {GPU_VFS[1]}",
    ]


def test_a_place_on_the_card_is_written_with_the_type() -> None:
    kernel = host()
    take_all(kernel, Carving({NEW_GPU: 1}))
    carving = Carving({NEW_GPU: 1}, types={NEW_GPU_VFS[0]: VgpuType("471", 12)})
    (step,) = plan(carving, kernel.seen()).steps
    assert (step.kind, step.value, step.unit) == (StepKind.VGPU_TYPE, "471", "12")


def test_on_a_card_in_mixed_size_mode_what_is_not_wanted_goes_before_what_is_comes() -> None:
    kernel = host()
    take_all(kernel, Carving({NEW_GPU: 4}))
    for vf, number, place in zip(NEW_GPU_VFS, ("472", "468", "470", "472"), (0, 20, 32, 20), strict=True):
        kernel.functions[vf] = replace(kernel.functions[vf], vgpu_type=number, vgpu_place=place)
    wanted = {NEW_GPU_VFS[0]: VgpuType("472", 20), NEW_GPU_VFS[2]: VgpuType("470", 32)}
    steps = plan(Carving(types=wanted, mixed=frozenset({NEW_GPU})), kernel.seen()).steps
    assert [(step.function, step.value, step.unit) for step in steps] == [
        (NEW_GPU_VFS[0], "0", ""),
        (NEW_GPU_VFS[1], "0", ""),
        (NEW_GPU_VFS[3], "0", ""),
        (NEW_GPU_VFS[0], "472", "20"),
    ]
    assert plan(Carving(types=wanted), kernel.seen()).steps == (), "no other card's types are taken away"


def test_vram_is_taken_back_before_it_is_given_and_not_changed_while_in_use() -> None:
    kernel = host()
    take_all(kernel, Carving({NEW_GPU: 4}))
    for vf, mib in zip(NEW_GPU_VFS, ("5120", "8192", "0", "5120"), strict=True):
        kernel.functions[vf] = replace(kernel.functions[vf], vgpu_type=mib, vgpu_place=0, vram=True)
    wanted = {vf: VgpuType(mib, 0, vram=True) for vf, mib in zip(NEW_GPU_VFS, ("8192",) * 3, strict=False)}
    carving = Carving(types=wanted, mixed=frozenset({NEW_GPU}))
    steps = plan(carving, kernel.seen()).steps
    assert [(step.kind, step.function, step.value, step.unit) for step in steps] == [
        (StepKind.VRAM, NEW_GPU_VFS[0], "0", ""),
        (StepKind.VRAM, NEW_GPU_VFS[3], "0", ""),
        (StepKind.VRAM, NEW_GPU_VFS[0], "8192", ""),
        (StepKind.VRAM, NEW_GPU_VFS[2], "8192", ""),
    ]
    assert steps[2].text == f"write 8192 MiB to vram_quota of {NEW_GPU_VFS[0]}"
    kernel.uses = dict.fromkeys((NEW_GPU_VFS[0], NEW_GPU_VFS[2]), ("process 7 (qemu) has it open",))
    found = plan(carving, kernel.seen())
    assert [step.function for step in found.steps] == [NEW_GPU_VFS[3]]
    assert "5120 MiB of VRAM, which no claim has there" in found.refusals[0]
    assert "0 MiB of VRAM, and 8192 MiB are wanted; they cannot change while" in found.refusals[1]


def test_vram_of_a_function_that_is_still_to_be_made_is_waited_for() -> None:
    carving = Carving(
        {NEW_GPU: 1}, types={NEW_GPU_VFS[0]: VgpuType("8192", 0, vram=True)}, mixed=frozenset({NEW_GPU})
    )
    steps = plan(carving, host().seen()).steps
    assert [step.text for step in steps[-2:]] == [
        f"wait for its quota of VRAM of {NEW_GPU_VFS[0]}",
        f"write 8192 MiB to vram_quota of {NEW_GPU_VFS[0]}",
    ]


def quanta_of(**cards: str) -> dict[str, dict[str, str]]:
    return {"execution_quanta": cards}


def test_execution_quanta_are_those_of_each_function_also_of_guests_that_run() -> None:
    carving, kernel = Carving({NEW_GPU: 2}, quotas=quanta_of(**{NEW_GPU: "25/500000"})), host()
    steps = plan(carving, kernel.seen()).steps
    wanted = [Step(StepKind.QUANTA, NEW_GPU, vf, "25/500000") for vf in NEW_GPU_VFS[:2]]
    assert steps[0].kind is StepKind.VFS and list(steps[-2:]) == wanted
    assert wanted[0].text == f"write 25/500000 to exec_quantum_ms and preempt_timeout_us of {NEW_GPU_VFS[0]}"
    take_all(kernel, replace(carving, quotas={}))
    for vf, quanta in zip(NEW_GPU_VFS, ("25/500000", "25/None"), strict=False):
        kernel.functions[vf] = replace(kernel.functions[vf], quotas={"execution_quanta": quanta})
    kernel.uses = dict.fromkeys(NEW_GPU_VFS, ("process 7 (qemu) has it open",))
    found = plan(replace(carving, vfs={}), kernel.seen())
    assert (found.steps, found.refusals) == ((wanted[1],), ())
    found = plan(Carving(quotas=quanta_of(**{GPU: "1/1", "0000:99:00.0": "1/1"})), kernel.seen())
    assert found == Plan(
        (),
        tuple(
            f"{card} has no virtual functions, and [devices] execution_quanta names it."
            for card in (GPU, "0000:99:00.0")
        ),
    )
    quotas = quanta_of(**{NEW_GPU: "25/500000", GPU: "1/1"})
    declared = DeclaredCarving(mixed=frozenset({NEW_GPU}), quotas=quotas)
    assert on_mixed_cards(declared, (), kernel.seen())[0].quotas == quanta_of(**{NEW_GPU: "25/500000"})


def test_contexts_change_neither_under_a_guest_nor_under_a_driver_that_counted_them() -> None:
    carving = Carving({NEW_GPU: 2}, quotas={"context_quotas": {NEW_GPU: "8192/32", WHOLE: "1/0"}})
    kernel = host()
    found = plan(carving, kernel.seen())
    wanted = [Step(StepKind.CONTEXTS, NEW_GPU, vf, "8192/32") for vf in NEW_GPU_VFS[:2]]
    assert found.steps[0].kind is StepKind.VFS and list(found.steps[-2:]) == wanted
    assert found.refusals == (f"{WHOLE} has no virtual functions, and [devices] context_quotas names it.",)
    take_all(kernel, replace(carving, quotas={}))
    for vf, pair in zip(NEW_GPU_VFS, ("8192/32", "16384/64", "8192/32, 8192/64", "0/0"), strict=True):
        kernel.functions[vf] = replace(
            kernel.functions.get(vf) or SeenFunction(vf, card=NEW_GPU), quotas={"context_quotas": pair}
        )
    kernel.functions[NEW_GPU_VFS[3]] = replace(kernel.functions[NEW_GPU_VFS[3]], driver="xe")
    kernel.uses = dict.fromkeys(NEW_GPU_VFS[:2], ("process 7 (qemu) has it open",))
    found = plan(Carving(quotas={"context_quotas": {NEW_GPU: "8192/32"}}), kernel.seen())
    assert found == Plan(
        (Step(StepKind.CONTEXTS, NEW_GPU, NEW_GPU_VFS[2], "8192/32"),),
        (
            f"{NEW_GPU_VFS[1]} has 16384/64, and [devices] context_quotas wants 8192/32; they cannot change "
            "while the device is in use: process 7 (qemu) has it open.",
            f"{NEW_GPU_VFS[3]} has 0/0, and [devices] context_quotas wants 8192/32; they cannot change while "
            "the device is in use: its driver xe has read them; name another in [devices] driver_overrides.",
        ),
    )
    # Under the driver that the operator wants for it, it can have them.
    drivers = {NEW_GPU_VFS[3]: "vfio-pci"}
    steps = plan(Carving(drivers=drivers, quotas=carving.quotas), kernel.seen()).steps
    assert [step.kind for step in steps if step.function == NEW_GPU_VFS[3]] == [
        StepKind.OVERRIDE,
        StepKind.UNBIND,
        StepKind.BIND,
        StepKind.CONTEXTS,
    ]
    locked = replace(kernel.seen(), debugfs_problem="it is locked")
    assert plan(Carving(quotas={"context_quotas": {NEW_GPU: "8192/32"}}), locked) == Plan(
        (), (f"{NEW_GPU}: [devices] context_quotas cannot be written: it is locked.",)
    )


def test_gim_changes_the_number_of_functions_by_its_tool_and_not_over_0() -> None:
    kernel = host()
    take_all(kernel, Carving({NEW_GPU: 2}))
    kernel.functions[NEW_GPU] = replace(kernel.functions[NEW_GPU], driver="gim")
    found = plan(Carving({NEW_GPU: 4}, vf_drivers={NEW_GPU: "vfio-pci"}), kernel.seen())
    assert [step.text for step in found.steps[:3]] == [
        f"write 0 to sriov_drivers_autoprobe of {NEW_GPU}",
        f"let amd-smi give {NEW_GPU} 4 virtual functions",
        f"wait for its virtual functions of {NEW_GPU}",
    ]
    assert {step.function for step in found.steps[3:]} == {*NEW_GPU_VFS}, "all of them are new"
    assert undo(found.steps, Carving(), kernel.seen()) == ()
    kernel.uses = {NEW_GPU_VFS[0]: ("process 7 (qemu) has it open",)}
    found = plan(Carving({NEW_GPU: 4}), kernel.seen())
    assert found.steps == () and "the number cannot change while one is in use" in found.refusals[0]
    kernel.uses = {}
    assert plan(Carving({NEW_GPU: 2}), kernel.seen()).steps == ()


def test_a_function_has_its_mac_and_vlan_before_its_driver_and_not_while_it_is_in_use() -> None:
    port = "52:54:00:00:00:01 VLAN 100"
    carving = Carving({NIC: 1}, vf_drivers={NIC: "vfio-pci"}, ports={NIC_VFS[0]: port})
    kernel = host()
    steps = plan(carving, kernel.seen()).steps
    assert [step.kind for step in steps][-3:] == [StepKind.PORT, StepKind.OVERRIDE, StepKind.BIND]
    assert steps[-3].text == f"give {NIC_VFS[0]} the MAC address {port} on its card"
    take_all(kernel, replace(carving, ports={}))
    (step,) = plan(carving, kernel.seen()).steps
    assert (step.kind, step.function, step.value) == (StepKind.PORT, NIC_VFS[0], port)
    kernel.uses = {NIC_VFS[0]: ("process 7 (qemu) has it open",)}
    assert plan(carving, kernel.seen()).steps == ()
    kernel.uses = {}
    kernel.functions[NIC_VFS[0]] = replace(kernel.functions[NIC_VFS[0]], port=port)
    assert plan(carving, kernel.seen()).steps == ()


def test_mig_instances_are_made_where_they_are_not_before_the_types_of_functions() -> None:
    kernel = host()
    carving = Carving(
        {NEW_GPU: 1}, types={NEW_GPU_VFS[0]: VgpuType("471")}, mig={NEW_GPU: ("3g.20gb:0", "3g.20gb:4")}
    )
    assert [(step.kind, step.value) for step in plan(carving, kernel.seen()).steps][-5:] == [
        (StepKind.AWAIT, Sight.MIG),
        (StepKind.MIG, "3g.20gb:0"),
        (StepKind.MIG, "3g.20gb:4"),
        (StepKind.AWAIT, Sight.VGPU_TYPE),
        (StepKind.VGPU_TYPE, "471"),
    ]
    carving = replace(carving, vfs={}, types={})
    third = MigInstance("2", range(4, 8), computes=True)
    kernel.functions[NEW_GPU] = replace(kernel.functions[NEW_GPU], mig={"3g.20gb:4": third})
    (step,) = plan(carving, kernel.seen()).steps
    assert step.text == f"create the MIG instance 3g.20gb:0 on {NEW_GPU}"
    other = MigInstance("9", range(3, 4), computes=True)
    kernel.functions[NEW_GPU] = replace(
        kernel.functions[NEW_GPU], mig={"3g.20gb:4": replace(third, computes=False), "1g.5gb:3": other}
    )
    found = plan(carving, kernel.seen())
    (refusal,) = found.refusals
    assert "has the MIG instance 1g.5gb:3 (GPU instance 9), where [devices] mig_instances wants 3g" in refusal
    assert [step.text for step in found.steps] == [
        f"create the compute instance of the MIG instance 3g.20gb:4 on {NEW_GPU}"
    ]
    kernel.uses = {NEW_GPU_VFS[0]: ("process 7 (qemu) has it open",)}
    take_all(kernel, Carving({NEW_GPU: 1}))
    found = plan(carving, kernel.seen())
    assert found.steps == () and f"nvidia-smi mig -i {NEW_GPU} -gi 2 -cci" in found.refusals[1]
    kernel.functions[NEW_GPU] = replace(kernel.functions[NEW_GPU], mig=None, mig_problem="it does not end")
    found = plan(carving, kernel.seen())
    assert found.steps == () and "not known: it does not end" in found.refusals[0]


def test_a_vgpu_in_use_keeps_its_type_and_is_told() -> None:
    kernel = host()
    take_all(kernel, Carving({NEW_GPU: 2}))
    for vf in NEW_GPU_VFS[:2]:
        kernel.functions[vf] = replace(kernel.functions[vf], vgpu_type="472", vgpu_place=0)
    kernel.uses = {NEW_GPU_VFS[0]: ("process 7 (qemu) has it open",)}
    found = plan(
        Carving(mixed=frozenset({NEW_GPU}), holders={NEW_GPU_VFS[1]: "instance gpu1"}), kernel.seen()
    )
    assert found.steps == () and len(found.refusals) == 2
    assert "process 7 (qemu) has it open" in found.refusals[0] and "instance gpu1" in found.refusals[1]


def test_the_largest_types_come_first_so_that_no_small_one_stands_in_their_way() -> None:
    kernel = host()
    take_all(kernel, Carving({NEW_GPU: 4, GPU: 2}))
    sizes = {"468": 4096, "472": 20480, "471": 10240, "nvidia-471": 10240, "nvidia-472": 20480}
    for address in (NEW_GPU_VFS[3], GPU_VFS[0]):
        kernel.functions[address] = replace(
            kernel.functions[address],
            type_sizes=sizes,
            mdev_types=kernel.functions[address].mdev_types | {"nvidia-472"},
        )
    wanted = dict(zip(NEW_GPU_VFS, map(VgpuType, ("468", "472", "468", "471")), strict=True))
    mdevs = {UUIDS[0]: Mdev(GPU_VFS[1], "nvidia-471"), UUIDS[1]: Mdev(GPU_VFS[0], "nvidia-472")}
    steps = plan(Carving(types=wanted, mdevs=mdevs), kernel.seen()).steps
    types = [step.value for step in steps if step.kind is StepKind.VGPU_TYPE]
    assert types == ["472", "471", "468", "468"]
    assert [step.unit for step in steps if step.kind is StepKind.CREATE_MDEV] == [UUIDS[1], UUIDS[0]]


@pytest.mark.parametrize(
    ("holders", "who"),
    [
        ({NIC_VFS[0]: "instance web1 (a0b1)"}, "instance web1 (a0b1) has 0000:41:10.0"),
        ({UUIDS[0]: "instance gpu1"}, f"instance gpu1 has {UUIDS[0]} on 0000:41:10.0"),
    ],
)
def test_a_number_that_would_change_is_refused_with_who_holds_a_function(
    holders: dict[str, str], who: str
) -> None:
    kernel = host()
    take_all(kernel, Carving({NIC: 2}))
    mdevs = {UUIDS[0]: Mdev(NIC_VFS[0], "t-1")} if UUIDS[0] in holders else {}
    kernel.mdevs = dict(mdevs)
    refused = plan(Carving({NIC: 3}, mdevs=mdevs, holders=holders), kernel.seen())
    assert refused.steps == () and len(refused.refusals) == 1
    assert refused.refusals[0] == (
        f"{NIC} has 2 virtual functions, and [devices] sriov_vfs wants 3; the number cannot change while one "
        f"is in use: {who}."
    )


def test_a_mediated_device_of_nobody_that_the_agent_knows_keeps_its_function() -> None:
    kernel = host()
    take_all(kernel, Carving({GPU: 2}, mdevs={UUIDS[0]: Mdev(GPU_VFS[0], "nvidia-471")}))
    refused = plan(Carving({GPU: 3}), kernel.seen())
    assert refused.steps == () and UUIDS[0] in refused.refusals[0]


@pytest.mark.parametrize(
    ("carving", "what"),
    [
        (Carving({NIC: 9}), "can have 4 virtual functions"),
        (Carving({NIC: 1}, drivers={NIC_VFS[3]: "vfio-pci"}), f"{NIC_VFS[3]} is none of the virtual"),
        (Carving(types={NEW_GPU_VFS[0]: VgpuType("99")}), "has the vGPU type 471"),
        (Carving(mdevs={UUIDS[0]: Mdev(OLD_GPU, "nvidia-12")}), "is of type nvidia-11 on"),
        (Carving(drivers={WHOLE: "vfio-pci"}), "has the driver nouveau"),
    ],
)
def test_what_cannot_be_is_refused_and_the_rest_is_planned(carving: Carving, what: str) -> None:
    kernel = host()
    take_all(
        kernel,
        Carving(
            {NIC: 1, NEW_GPU: 1},
            types={NEW_GPU_VFS[0]: VgpuType("471")},
            mdevs={UUIDS[0]: Mdev(OLD_GPU, "nvidia-11")},
        ),
    )
    kernel.uses[WHOLE] = ("shows the host's console",)
    also = Mdev(OLD_GPU, "nvidia-11")
    told = plan(replace(carving, mdevs={**carving.mdevs, UUIDS[1]: also}), kernel.seen())
    assert len(told.refusals) == 1 and what in told.refusals[0]
    assert [step.unit for step in told.steps] == [UUIDS[1]]


def test_a_card_whose_driver_is_not_there_yet_is_waited_for() -> None:
    seen = Seen({NIC: SeenFunction(NIC)})
    first, *_ = plan(Carving({NIC: 2}), seen).steps
    assert (first.kind, first.value) == (StepKind.AWAIT, Sight.SRIOV)
    assert plan(Carving({NIC: 2}), Seen()).steps[0] == first


def test_no_virtual_functions_of_a_card_without_any_are_nothing_to_do() -> None:
    assert plan(Carving({WHOLE: 0}), host().seen()).steps == ()


UUID = "00000000-0000-0000-0000-000000000001"
SEEN_CARVED = Seen(
    {
        CARD: SeenFunction(CARD, "pf", vfs_max=4, vfs_number=1, vfs=(VF,), autoprobe=False),
        VF: SeenFunction(VF, "", "vfio-pci", CARD, vgpu_type="471"),
    },
    {UUID: Mdev(CARD, "t-1")},
)
TAKEN = (
    Step(StepKind.AUTOPROBE, CARD, CARD, "0"),
    Step(StepKind.VFS, CARD, CARD, "1"),
    Step(StepKind.UNBIND, CARD, VF, "vf"),
    Step(StepKind.OVERRIDE, CARD, VF, "vfio-pci"),
    Step(StepKind.VGPU_TYPE, CARD, VF, "471", "12"),
    Step(StepKind.CREATE_MDEV, CARD, CARD, "t-1", UUID),
)
WANTED = Carving(
    {CARD: 1}, {VF: "vfio-pci"}, {CARD: "vfio-pci"}, {VF: VgpuType("471")}, {UUID: Mdev(CARD, "t-1")}
)


def test_all_that_is_not_wanted_is_undone_the_last_first() -> None:
    assert undo(TAKEN, Carving(), SEEN_CARVED) == (
        Step(StepKind.REMOVE_MDEV, CARD, CARD, "t-1", UUID),
        Step(StepKind.VGPU_TYPE, CARD, VF, "0"),
        Step(StepKind.OVERRIDE, CARD, VF, ""),
        Step(StepKind.BIND, CARD, VF, ""),
        Step(StepKind.VFS, CARD, CARD, "0"),
        Step(StepKind.AUTOPROBE, CARD, CARD, "1"),
    )


def test_what_is_wanted_is_left_for_the_plan_to_finish() -> None:
    assert undo(TAKEN, WANTED, SEEN_CARVED) == ()


def test_what_the_run_did_not_do_is_left_alone() -> None:
    assert undo((), Carving(), SEEN_CARVED) == ()
    function = SeenFunction(VF, "x", "mlx5_vfio_pci", CARD, vgpu_type="468")
    others = Seen({VF: function}, {UUID: Mdev(CARD, "t-2")})
    assert undo(TAKEN, Carving(), others) == ()


@pytest.mark.parametrize("holders", [{VF: "vm1"}, {UUID: "vm1"}])
def test_what_somebody_has_is_not_undone(holders: dict[str, str]) -> None:
    (held,) = holders
    kinds = {step.kind for step in undo(TAKEN, Carving(holders=holders), SEEN_CARVED)}
    assert StepKind.VFS not in kinds if held == VF else StepKind.REMOVE_MDEV not in kinds


VFS = tuple(f"0000:84:00.{number}" for number in range(1, 5))


@pytest.mark.parametrize(
    ("number", "function", "refusal"),
    [
        (2, VFS[3], f"{VFS[3]} is none of the virtual functions of 0000:84:00.0."),
        (2, VFS[1], ""),
        (None, VFS[3], ""),
        (4, VFS[3], ""),
        (5, VFS[3], "0000:84:00.0 can have 4 virtual functions, and [devices] sriov_vfs wants 5."),
    ],
)
def test_a_function_is_waited_for_unless_its_card_has_all_that_it_will_have(
    number: int | None, function: str, refusal: str
) -> None:
    card = SeenFunction(
        "0000:84:00.0", "nvidia", vfs_max=4, vfs_number=2, vfs=VFS[:2], vf_addresses=VFS, autoprobe=True
    )
    functions = [card, *(SeenFunction(vf, "nvidia", card=card.address) for vf in VFS[:2])]
    wanted = Carving({} if number is None else {card.address: number}, drivers={function: "vfio-pci"})
    found = plan(wanted, Seen({each.address: each for each in functions}))
    assert refusal in found.refusals if refusal else not found.refusals
    awaited = Step(StepKind.AWAIT, card.address, function, Sight.FUNCTION)
    assert (awaited in found.steps) is (number is None)
