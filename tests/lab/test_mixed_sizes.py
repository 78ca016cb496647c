"""A GPU in mixed-size mode: three sizes on one card, each in its place, with guests that run.

After each step Placement's candidates are what the card can still make: the places that the published table
of an A100 40GB has for the size, without those that overlap what is there, by trying all sets of them.
"""

from collections.abc import Mapping
from itertools import combinations

import pytest
from kits.lab_node import Node, Prepare, alone

CARD = "0000:84:00.0"
A100 = f"hv1_pci_{CARD}"
VFS = 4
SIZES: Mapping[str, tuple[str, int, tuple[int, ...]]] = {
    "CUSTOM_VGPU_4C": ("468", 4, (0, 6, 10, 16, 20, 26, 30, 36)),
    "CUSTOM_VGPU_8C": ("470", 8, (0, 12, 20, 32)),
    "CUSTOM_VGPU_20C": ("472", 20, (0, 20)),
}
"""{class: (number of the type, GiB, places)}"""
DEVICES = (
    f"[devices]\nsriov_vfs = {CARD}={VFS}\n"
    f"enabled_mdev_types = {', '.join(f'nvidia-{number}' for number, _, _ in SIZES.values())}\n"
    f"mixed_size_cards = {CARD}=A100 40 GB\n"
    + "".join(f"[mdev_nvidia-{number}]\nmdev_class = {name}\n" for name, (number, _, _) in SIZES.items())
)
VM = "a0000000-0000-4000-8000-00000000001{}".format
HOMOGENEOUS = "/sys/module/vgpusim/parameters/homogeneous"
Vgpus = dict[str, tuple[str, int]]
"""{function: (number of its type, place)}"""


@pytest.fixture(scope="module")
def node(prepare: Prepare) -> Node:
    (only,) = prepare(1, "vfio")
    only.title("Several sizes of vGPUs on one card")
    only.run(f"echo N >{HOMOGENEOUS}; cat {HOMOGENEOUS}")
    only.configure(alone("hv1", DEVICES))
    only.run("plimsoll devices plan", ends=3)
    only.run("plimsoll devices apply")
    only.run(f"cat /sys/bus/pci/devices/{CARD}/virtfn0/nvidia/creatable_vgpu_types")
    listed = "virsh -q nodedev-list | grep -c pci_0000_84"
    only.wait("libvirt lists the functions", lambda: int(only.ask(listed) or 0) > VFS)
    only.start()
    return only


def vgpus(node: Node) -> Vgpus:
    """What sysfs says, without the agent."""
    text = node.run(
        f"cd /sys/bus/pci/devices; for f in {CARD}/virtfn*; do f=$(basename $(readlink $f)); "
        "echo $f $(cat $f/nvidia/current_vgpu_type) $(cat $f/nvidia/placement_id); done",
        note=False,
    )
    rows = (line.split() for line in text.splitlines())
    return {function: (number, int(place)) for function, number, place in rows if number != "0"}


def most(there: Vgpus, name: str) -> int:
    """How many more of a size the card can make, if it makes no other."""
    gib = {number: size for number, size, _ in SIZES.values()}
    slots = {slot for number, at in there.values() for slot in range(at, at + gib[number])}
    _, size, starts = SIZES[name]
    spans = [span for span in ({*range(start, start + size)} for start in starts) if not slots & span]
    return max(
        many
        for many in range(min(VFS - len(there), len(spans)) + 1)
        if any(len(set().union(*chosen)) == many * size for chosen in combinations(spans, many))
    )


def offered(node: Node, name: str, amount: int) -> bool:
    """Whether Placement has a candidate."""
    answer = node.placement("GET", f"'/allocation_candidates?resources={name}:{amount}'", note=False)
    return bool(answer["allocation_requests"])


def units(node: Node) -> set[str]:
    """The units of all claims on the card."""
    return {
        unit
        for each in node.json("plimsoll -o json instances")["instances"]
        if each["claim"]
        for by_class in each["claim"]["units"].values()
        for exact in by_class.values()
        for unit in exact
        if "@" in unit
    }


def made(node: Node) -> set[str]:
    """The units of the vGPUs that the card has."""
    return {f"{vf}/nvidia-{number}@{place}" for vf, (number, place) in vgpus(node).items()}


def carve(node: Node) -> None:
    """What `plimsoll-devices` does, once the agent has written what claims need now."""

    def carved() -> bool:
        node.run("plimsoll devices apply")
        return made(node) == units(node)

    node.wait("the card has what claims say", carved)


def check(node: Node) -> None:
    """The card has what claims say, where they say it; Placement offers what the card can make."""
    there = vgpus(node)
    assert made(node) == units(node)
    for name in SIZES:
        many = most(there, name)
        node.wait(
            f"{many} of {name} are offered",
            lambda name=name, many=many: (
                (not many or offered(node, name, many)) and not offered(node, name, many + 1)
            ),
        )


def start(node: Node, number: int, name: str) -> str:
    """Claim, make, and start a guest; its unit."""
    before = units(node)
    node.run(f"plimsoll claim {VM(number)} --name vm{number} --resources VCPU=1,MEMORY_MB=48,{name}=1")
    (unit,) = units(node) - before
    carve(node)
    function = unit.partition("/")[0]
    node.run(f"labvm define vm{number} uuid={VM(number)} unmanaged={function} && virsh start vm{number}")
    used = node.wait("the guest is seen", lambda: node.units().get(f"vm{number}"))
    assert used == [(name, unit, f"pci:{CARD}")], "the guest has the place of its claim"
    return unit


def test_an_empty_card_offers_every_size(node: Node) -> None:
    assert vgpus(node) == {}
    check(node)


def test_three_sizes_run_beside_each_other(node: Node) -> None:
    for number, name in enumerate(("CUSTOM_VGPU_20C", "CUSTOM_VGPU_8C", "CUSTOM_VGPU_4C")):
        start(node, number, name)
        check(node)
    node.run("plimsoll tree; plimsoll instances; virsh list")
    assert len({number for number, _ in vgpus(node).values()}) == 3
    assert node.run("plimsoll audit").strip() == "nothing differs"


def test_what_does_not_fit_is_refused_in_words(node: Node) -> None:
    refused = node.run("plimsoll claim --resources CUSTOM_VGPU_20C=1 2>&1", ends=5)
    assert "CUSTOM_VGPU_20C" in refused


def test_a_place_that_is_given_back_is_offered_again(node: Node) -> None:
    node.run(f"virsh destroy vm0 && virsh undefine vm0 && plimsoll release {VM(0)}")
    node.wait("its end is seen", lambda: "vm0" not in node.units())
    carve(node)
    check(node)
    start(node, 3, "CUSTOM_VGPU_4C")
    check(node)


def test_a_guest_in_another_place_is_a_finding(node: Node) -> None:
    node.title("A vGPU that was made in another place")
    node.run("virsh destroy vm3")
    (unit,) = [unit for unit in units(node) if f"vm3: {unit}" in _held(node)]
    function, place = unit.partition("/")[0], int(unit.rpartition("@")[2])
    folder = f"/sys/bus/pci/devices/{function}/nvidia"
    there = {other: vgpu for other, vgpu in vgpus(node).items() if other != function}
    number, size, starts = SIZES["CUSTOM_VGPU_4C"]
    gib = {each: gib for each, gib, _ in SIZES.values()}
    slots = {slot for each, at in there.values() for slot in range(at, at + gib[each])}
    other = next(at for at in starts if at != place and not slots & {*range(at, at + size)})
    node.run(
        f"echo 0 >{folder}/current_vgpu_type; echo {other} >{folder}/placement_id; "
        f"echo {number} >{folder}/current_vgpu_type"
    )
    node.run("virsh start vm3")
    node.wait("it is a finding", lambda: f"@{other} instead of {unit}" in node.ask("plimsoll audit"))
    node.run("plimsoll audit", ends=3)
    refused = node.run("plimsoll devices apply 2>&1", ends=5)
    assert function in refused, "a vGPU that a guest has open stays"
    node.run("virsh destroy vm3")
    carve(node)
    node.run("virsh start vm3")
    node.wait("nothing differs", lambda: "nothing differs" in node.ask("plimsoll audit"))
    check(node)


def _held(node: Node) -> list[str]:
    return [f"{name}: {unit}" for name, used in node.units().items() for _, unit, _ in used]
