"""Fitting: the semantics of allocation candidates for one host, exact units, and reasons for a refusal."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from kits.fit import CONSUMER, HOST, NUMA, RACK, SHARING, ask, fitted, group, provider, reasons, uuid_of

from agent.claims.claim import Fit
from agent.claims.fit import ProviderIndex, _asked_of_cell, cover, fit
from agent.claims.guest_cells import GuestCell
from agent.claims.refusal import does_not_fit
from agent.claims.request import ClaimRequest, RequestGroup, TopologyRequest
from agent.errors import UsageError
from agent.placement.embedded import model as core
from agent.placement.embedded.candidates import CandidateGroup as QueryGroup
from agent.placement.embedded.candidates import CandidateQuery, find_candidates
from agent.placement.embedded.validation import AggregateFilter, TraitFilter
from agent.tree import Inventory, Provider, ProviderTree


def test_the_unsuffixed_group_spreads_but_is_not_torn_apart_where_one_cell_can_give_both() -> None:
    found = fitted(ask(group(VCPU=2, MEMORY_MB=2048, DISK_GB=10)), *NUMA)
    assert found.allocations == {"numa1": {"VCPU": 2, "MEMORY_MB": 2048}, "host": {"DISK_GB": 10}}
    full = {"numa1": {"VCPU": 8}}
    found = fitted(ask(group(VCPU=2, MEMORY_MB=2048)), *NUMA, used=full)
    assert found.allocations == {"numa0": {"VCPU": 2}, "numa1": {"MEMORY_MB": 2048}}


def test_a_trait_of_the_root_is_asked_of_the_root_alone() -> None:
    root = provider("host", traits={"COMPUTE_NODE"})
    cell = provider("cell", "host", traits={"HW_NUMA_ROOT"}, VCPU=4)
    request = ask(group(VCPU=1))
    assert fitted(replace(request, root_required=frozenset({"COMPUTE_NODE"})), root, cell).fits
    for wanted in (
        replace(request, root_required=frozenset({"HW_NUMA_ROOT"})),
        replace(request, root_forbidden=frozenset({"COMPUTE_NODE"})),
    ):
        (reason,) = reasons(fitted(wanted, root, cell))
        assert reason in (
            ("", 0, 0, "host", "lacks trait HW_NUMA_ROOT"),
            ("", 0, 0, "host", "has the forbidden trait COMPUTE_NODE"),
        )


def test_a_context_for_encrypted_memory_comes_from_the_provider_of_its_kind() -> None:
    kinds = ("sev", "sev_es")
    contexts = [
        provider(kind, "host", traits={f"HW_CPU_X86_AMD_{kind.upper()}"}, MEM_ENCRYPTION_CONTEXT=2)
        for kind in kinds
    ]
    for kind in kinds:
        wanted = group(VCPU=1, MEM_ENCRYPTION_CONTEXT=1)
        wanted = replace(wanted, required=(frozenset({f"HW_CPU_X86_AMD_{kind.upper()}"}),))
        found = fitted(ask(wanted), provider("host", VCPU=4), *contexts)
        assert found.allocations == {"host": {"VCPU": 1}, kind: {"MEM_ENCRYPTION_CONTEXT": 1}}


SNP, TDX = "HW_CPU_X86_AMD_SEV_SNP", "HW_CPU_X86_INTEL_TDX"
BOTH = f"HW_CPU_X86_AMD_SEV_ES,{SNP}"
KEYS = provider("keys", "host", traits=(SNP, TDX, "HW_CPU_X86_AMD_SEV"), MEM_ENCRYPTION_CONTEXT=9)
NOT_CONFIDENTIAL = "has trait CUSTOM_CC: only guests with SEV-SNP or TDX get such a card"
LACKS = "lacks trait CUSTOM_CC_ON, and the guest's memory is encrypted by SEV-SNP or TDX"
UNUSABLE = "has trait CUSTOM_CC alone: no guest of this host can have it, `plimsoll status` says why"


def card_of(mode: str, name: str) -> Provider:
    return provider("card", "host", traits=[f"CUSTOM_{each}" for each in mode.split()], **{name: 1})


@pytest.mark.parametrize(
    ("kind", "wants", "mode", "why"),
    [
        (SNP, "", "CC CC_ON", ""),
        (TDX, "", "CC CC_ON", ""),
        (TDX, "", "CC_OFF", LACKS),
        (TDX, "", "", LACKS),
        (TDX, "", "CC CC_DEVTOOLS", LACKS),
        (TDX, "CUSTOM_CC_DEVTOOLS", "CC CC_DEVTOOLS", ""),
        (TDX, "", "CC", UNUSABLE),
        ("HW_CPU_X86_AMD_SEV", "", "", ""),
        ("HW_CPU_X86_AMD_SEV", "", "CC CC_ON", NOT_CONFIDENTIAL),
        (BOTH, "", "CC_OFF", ""),
        ("", "", "CC_OFF", ""),
        ("", "", "CC CC_ON", NOT_CONFIDENTIAL),
        ("", "", "CC", NOT_CONFIDENTIAL),
        ("", "CUSTOM_CC_ON", "CC CC_ON", NOT_CONFIDENTIAL),
        ("unknown", "", "CC CC_ON", ""),
        ("unknown", "", "", ""),
    ],
)
@pytest.mark.parametrize("name", ["PGPU", "VGPU", "FPGA", "CUSTOM_VRAM_8192MB", "CUSTOM_H100"])
@pytest.mark.parametrize("suffix", ["", "1"])
def test_a_confidential_guest_gets_confidential_cards_and_no_other_guest_does(
    kind: str, wants: str, mode: str, why: str, suffix: str, name: str
) -> None:
    """Of SEV-ES the keys may be those of SEV-SNP. By what an amount alone is encrypted is not known.

    A card is told by what it gives, and not by traits that only some drivers report.
    """
    card = card_of(mode, name)
    own = group("", *([kind] if kind not in ("", "unknown") else ()), VCPU=1)
    own = replace(own, resources={"VCPU": 1, **({"MEM_ENCRYPTION_CONTEXT": 1} if kind else {})})
    if suffix:
        groups = (own, group(suffix, *filter(None, [wants]), **{name: 1}))
    else:
        required = (*own.required, *(frozenset({each}) for each in filter(None, [wants])))
        groups = (replace(own, resources={**own.resources, name: 1}, required=required),)
    found = fitted(ask(*groups), provider("host", VCPU=4), KEYS, card)
    assert found.fits == (not why)
    if why:
        (reason,) = reasons(found)
        assert reason == (name, 1, 1, "card", f"group '1': {why}" if suffix else why)


def test_ports_and_what_is_no_card_are_for_confidential_guests_too() -> None:
    """Nor is what an operator adds to the host or to a cell, or a function over vDPA of any class."""
    nic = card_of("PCI_TYPE_VF", "SRIOV_NET_VF")
    nic = replace(nic, inventories={**nic.inventories, "NET_BW_EGR_KILOBIT_PER_SEC": Inventory(100)})
    near = ("CUSTOM_HUGEPAGES_2048KIB", "CUSTOM_CPULESS_MEMORY_MB", "CUSTOM_SGX_EPC_MB")
    others = [provider(name, "host", **{name: 4}) for name in (*near, "CUSTOM_PMEM_NAMESPACE_A")]
    vdpa = provider("vdpa", "host", traits=["CUSTOM_PCI_TYPE_VDPA"], CUSTOM_PORT=1)
    cell = provider("cell", "host", PCPU=4, CUSTOM_LICENSE=1)
    names = ("MEM_ENCRYPTION_CONTEXT", "CUSTOM_SEAT", "CUSTOM_LICENSE", "CUSTOM_PORT", *near)
    own = replace(group("", TDX), resources=dict.fromkeys((*names, "CUSTOM_PMEM_NAMESPACE_A"), 1))
    port = group("1", SRIOV_NET_VF=1, NET_BW_EGR_KILOBIT_PER_SEC=10)
    host = provider("host", DISK_GB=4, CUSTOM_SEAT=1)
    found = fitted(ask(own, port), host, cell, KEYS, nic, vdpa, *others)
    assert found.fits, reasons(found)


def test_a_suffixed_group_comes_from_one_provider() -> None:
    found = fitted(ask(group("1", VCPU=2, MEMORY_MB=2048)), *NUMA)
    assert found.allocations == {"numa1": {"VCPU": 2, "MEMORY_MB": 2048}}
    found = fitted(ask(group("1", VCPU=2, DISK_GB=1)), *NUMA)
    assert ("DISK_GB", 1, 0, "numa0", "group '1': has no DISK_GB") in reasons(found)


def test_isolated_groups_and_shared_ones() -> None:
    pair = (group("1", VGPU=2), group("2", VGPU=2))
    assert fitted(ask(*pair, policy="none"), *NUMA).allocations == {"gpu0": {"VGPU": 4}}
    assert fitted(ask(*pair, policy="isolate"), *NUMA).allocations == {
        "gpu0": {"VGPU": 2},
        "gpu1": {"VGPU": 2},
    }
    three = ask(*pair, group("3", VGPU=2), policy="isolate")
    rule = "group_policy isolate puts each of 3 groups on a provider of its own, and 2 can serve them"
    assert {each[4] for each in reasons(fitted(three, *NUMA))} == {f"group '{n}': {rule}" for n in (1, 2, 3)}


def test_two_groups_of_four_over_two_devices_with_four_free_each() -> None:
    """Scenario 41: what the first group takes, the second does not see as free."""
    request = ask(group("1", VGPU=4), group("2", VGPU=4), policy="none")
    assert fitted(request, *NUMA).allocations == {"gpu0": {"VGPU": 4}, "gpu1": {"VGPU": 4}}
    short = fitted(request, *NUMA, used={"gpu1": {"VGPU": 1}})
    assert reasons(short) == [
        ("VGPU", 8, 4, "gpu0", "the groups '1', '2' together ask for more than fits"),
    ]
    halves = ask(group("1", VGPU=2), group("2", VGPU=2), policy="none")
    assert fitted(halves, *NUMA, used={"gpu1": {"VGPU": 4}}).fits
    assert not fitted(halves, *NUMA, used={"gpu0": {"VGPU": 1}, "gpu1": {"VGPU": 4}}).fits


def test_traits_are_met_together_by_the_unsuffixed_group_alone_by_a_suffixed_one() -> None:
    host = provider("host", VCPU=8, traits=("HW_CPU_X86_AVX2",))
    disk = provider("disk", "host", DISK_GB=9, traits=("STORAGE_DISK_SSD",))
    both = ("HW_CPU_X86_AVX2", "STORAGE_DISK_SSD")
    assert fitted(ask(group("", *both, VCPU=1, DISK_GB=1)), host, disk).fits
    lone = fitted(ask(group("", *both, VCPU=1)), host, disk)
    assert reasons(lone) == [
        ("VCPU", 1, 8, "host", "no provider that can give any of the group has trait STORAGE_DISK_SSD")
    ]
    found = fitted(ask(group("1", *both, VCPU=1)), host, disk)
    assert reasons(found) == [("VCPU", 1, 8, "host", "group '1': lacks trait STORAGE_DISK_SSD")]
    assert fitted(ask(group("1", "A,HW_CPU_X86_AVX2", VCPU=1)), host).fits
    found = fitted(ask(group("1", "A,B", VCPU=1)), host)
    assert reasons(found)[0][4] == "group '1': lacks any of the traits A, B"


def test_a_forbidden_trait_bars_the_provider() -> None:
    found = fitted(ask(group("1", forbidden="CUSTOM_T4", VGPU=1)), *NUMA)
    assert found.allocations == {"gpu1": {"VGPU": 1}}
    found = fitted(ask(group("", forbidden="CUSTOM_T4 CUSTOM_M60", VGPU=1)), *NUMA)
    assert {each[4] for each in reasons(found)} == {
        "has the forbidden trait CUSTOM_T4",
        "has the forbidden trait CUSTOM_M60",
    }


def test_same_subtree_keeps_a_device_near_its_cell() -> None:
    near = ask(group("_C", VCPU=1), group("_G", "CUSTOM_M60", VGPU=1), policy="none", subtree="_C _G")
    assert fitted(near, *NUMA).allocations == {"numa1": {"VCPU": 1}, "gpu1": {"VGPU": 1}}
    found = fitted(near, *NUMA, used={"numa1": {"VCPU": 8}})
    assert all("must lie in one subtree" in each[4] for each in reasons(found))
    anywhere = ask(group("_C", VCPU=1), group("_G", "CUSTOM_M60", VGPU=1), policy="none")
    assert fitted(anywhere, *NUMA, used={"numa1": {"VCPU": 8}}).fits


def test_a_group_without_resources_holds_others_together() -> None:
    cells = (
        provider("host", VCPU=8),
        provider("numa0", "host", traits=("HW_NUMA_ROOT",)),
        provider("numa1", "host", traits=("HW_NUMA_ROOT",)),
        provider("gpu0", "numa0", VGPU=1),
        provider("nic0", "numa0", VF=0),
        provider("gpu1", "numa1", VGPU=1),
        provider("nic1", "numa1", VF=1),
    )
    request = ask(
        group("_N", "HW_NUMA_ROOT"), group("_G", VGPU=1), group("_V", VF=1), policy="none", subtree="_N _G _V"
    )
    assert fitted(request, *cells).allocations == {"gpu1": {"VGPU": 1}, "nic1": {"VF": 1}}
    found = fitted(ask(group("_N", "CUSTOM_X"), group("_G", VGPU=1), policy="none", subtree="_N _G"), *cells)
    assert reasons(found) == [("", 0, 0, "host", "group '_N': no provider of this host has trait CUSTOM_X")]


def test_a_group_of_an_aggregate_alone_is_no_place_that_a_refusal_could_name() -> None:
    host = (
        provider("host", VCPU=8),
        provider("gpu0", "host", VGPU=1, aggregates=(RACK,)),
        provider("nic0", "host", VF=1),
    )
    rack = replace(group("_R"), member_of=(frozenset({RACK}),))
    asked = ask(rack, group("_G", VGPU=1), group("_V", VF=1), policy="none", subtree="_R _G _V")
    apart = "the groups '_G', '_V' must lie in one subtree, and here they do not fit together"
    assert reasons(fitted(asked, *host)) == [
        ("VGPU", 1, 1, "gpu0", f"group '_G': {apart}"),
        ("VF", 1, 1, "nic0", f"group '_V': {apart}"),
    ]


def test_an_aggregate_without_providers_is_named() -> None:
    nowhere = replace(group("_R"), member_of=(frozenset({RACK}),))
    asked = ask(nowhere, group("_G", VGPU=1), policy="none", subtree="_R _G")
    found = fitted(asked, HOST, provider("gpu0", "host", VGPU=1))
    assert [each[4] for each in reasons(found)] == [
        f"group '_R': no provider of this host has aggregate {RACK}"
    ]


def test_a_refusal_names_the_largest_vram_only_where_vram_is_asked_for_and_there_is_some() -> None:
    card = provider("card", "host", CUSTOM_VRAM_2048MB=1, CUSTOM_VRAM_8192MB=1)
    nowhere = "no provider of this host has it"
    for wanted, providers, clause in (
        (group("1", CUSTOM_VRAM_MB=9000), (HOST,), nowhere),
        (group("1", CUSTOM_FPGA=1), (HOST, card), nowhere),
        (
            group("1", CUSTOM_VRAM_MB=9000),
            (HOST, card),
            "no function of this host has so much; the largest have 8192 MiB",
        ),
    ):
        (reason,) = reasons(fitted(ask(wanted), *providers))
        assert reason[4] == f"group '1': {clause}"


def test_one_gpu_is_taken_where_it_parts_the_fewest_peers() -> None:
    """A guest that needs two peers may come, and a GPU without a free peer serves one that needs a single GPU
    as well.
    """
    host = (
        provider("host", VCPU=8),
        provider("group0", "host", traits=("CUSTOM_LINK",)),
        provider("group1", "host", traits=("CUSTOM_LINK",)),
        *(provider(f"gpu0{number}", "group0", PGPU=1) for number in range(3)),
        *(provider(f"gpu1{number}", "group1", PGPU=1) for number in range(2)),
        provider("gpu9", "host", PGPU=1),
    )
    one = ask(group("1", PGPU=1))
    assert fitted(one, *host).allocations.keys() == {"gpu9"}
    used = {"gpu9": {"PGPU": 1}}
    assert fitted(one, *host, used=used).allocations.keys() == {"gpu10"}
    used |= {"gpu10": {"PGPU": 1}}
    assert fitted(one, *host, used=used).allocations.keys() == {"gpu11"}
    alike = [*host[:-1], provider("zgpu", "host", PGPU=1)]
    assert fitted(one, *alike).allocations.keys() == {"zgpu"}
    assert fitted(one, *alike, used=used).allocations.keys() == {"gpu11"}, "neither has a peer: by name"
    used |= {"gpu11": {"PGPU": 1}}
    assert fitted(one, *host, used=used).allocations.keys() == {"gpu00"}


def test_a_refusal_of_peers_tells_of_each_switch_what_is_not_free_below_it() -> None:
    """By the trait that the caller asked for: the group of it may have a name that the caller never gave."""
    switches = (
        provider("host", VCPU=8),
        *(provider(f"switch{number}", "host", traits=("CUSTOM_SWITCH",)) for number in range(3)),
        provider("gpu0", "switch0", PGPU=1),
        provider("nic0", "switch0", VF=2),
        provider("gpu1", "switch1", PGPU=1),
        provider("nic1", "switch1", VF=1),
        provider("gpu2", "switch2", PGPU=1),
    )
    named = {"policy": "isolate", "subtree": "_top0 gpu nic"}
    asked = ask(group("_top0", "CUSTOM_SWITCH"), group("gpu", PGPU=1), group("nic", VF=1), **named)
    place = "below {}, which has trait CUSTOM_SWITCH,"
    assert reasons(fitted(asked, *switches, used={"gpu0": {"PGPU": 1}, "nic1": {"VF": 1}})) == [
        ("PGPU", 1, 0, "gpu0", f"group 'gpu': {place.format('switch0')} only 0 of 1 are free"),
        ("VF", 1, 0, "nic1", f"group 'nic': {place.format('switch1')} only 0 of 1 are free"),
        ("VF", 1, 0, "switch2", "group 'nic': nothing below it has that, and it has trait CUSTOM_SWITCH"),
    ]
    two = ask(
        group("_top0", "CUSTOM_SWITCH"),
        group("a", PGPU=1),
        group("b", PGPU=1),
        policy="isolate",
        subtree="_top0 a b",
    )
    found = fitted(two, *switches)
    assert {each[4] for each in reasons(found)} == {
        "has trait CUSTOM_SWITCH, and below it the groups 'a', 'b' do not fit together"
    }
    assert "switch0 has trait CUSTOM_SWITCH" in does_not_fit(two, found.shortfalls).message
    pair = [*switches, provider("gpu3", "switch0", PGPU=1)]
    of_pair = [
        each for each in reasons(fitted(two, *pair, used={"gpu3": {"PGPU": 1}})) if "0" in each[4] + each[3]
    ]
    assert of_pair == [
        (
            "",
            0,
            0,
            "switch0",
            "has trait CUSTOM_SWITCH, and below it the groups 'a', 'b' do not fit together",
        ),
        ("PGPU", 1, 0, "gpu3", f"group 'a': {place.format('switch0')} only 0 of 1 are free"),
    ]


def test_a_sharing_provider_serves_the_whole_tree_and_comes_last() -> None:
    pool = provider("a_pool", traits=(SHARING,), aggregates=(RACK,), DISK_GB=1000)
    cell = provider("numa0", "host", aggregates=(RACK,), VCPU=8)
    bare = provider("host")
    assert fitted(ask(group(VCPU=1, DISK_GB=10)), pool, bare, cell).allocations == {
        "numa0": {"VCPU": 1},
        "a_pool": {"DISK_GB": 10},
    }
    local = provider("host", DISK_GB=10)
    assert fitted(ask(group(DISK_GB=10)), pool, local, cell).allocations == {"host": {"DISK_GB": 10}}
    assert fitted(ask(group(DISK_GB=11)), pool, local, cell).allocations == {"a_pool": {"DISK_GB": 11}}
    stranger = provider("numa0", "host", VCPU=8)
    assert reasons(fitted(ask(group(DISK_GB=1)), pool, bare, stranger)) == [
        ("DISK_GB", 1, 0, "host", "no provider of this host has it")
    ]


def test_member_of() -> None:
    def within(suffix: str) -> ClaimRequest:
        return ask(RequestGroup(suffix, {"VGPU": 1}, member_of=(frozenset({RACK}),)))

    root = provider("host", aggregates=(RACK,))
    gpu = provider("gpu", "host", VGPU=1)
    assert fitted(within(""), root, gpu).fits
    assert reasons(fitted(within("1"), root, gpu)) == [
        ("VGPU", 1, 1, "gpu", f"group '1': is not in aggregate {RACK}")
    ]


def test_an_alias_is_refused_and_not_ignored() -> None:
    with pytest.raises(UsageError, match="pci_passthrough:alias"):
        fitted(ClaimRequest(CONSUMER, (group(VCPU=1),), pci=(("fpga", 1),)), HOST)


def test_a_guest_with_cells_is_refused_while_the_hosts_are_not_known() -> None:
    request = ClaimRequest(CONSUMER, (group(PCPU=1),), topology=TopologyRequest("dedicated"))
    assert reasons(fitted(request, provider("host", PCPU=2))) == [
        ("", 1, 0, "host", "the driver has not reported the host's NUMA cells yet")
    ]


def test_what_a_consumer_holds_covers_its_request_or_tells_what_is_missing() -> None:
    tree = ProviderTree([HOST, provider("gpu0", "host", VGPU=4, PCPU=4)])
    host, gpu = uuid_of("host"), uuid_of("gpu0")
    held = {host: {"VCPU": 2, "DISK_GB": 10}, gpu: {"VGPU": 1, "PCPU": 2}, uuid_of("elsewhere"): {"VCPU": 9}}
    units = {gpu: {"PCPU": ("7", "8", "9")}}
    found = cover(ask(group(VCPU=2), group("1", VGPU=1)), ProviderIndex.of(tree), held, units)
    assert found == Fit(True, {host: held[host], gpu: held[gpu]}, {gpu: {"PCPU": ("7", "8")}}, ())
    found = cover(ask(group(VCPU=4)), ProviderIndex.of(tree), held, units)
    assert reasons(found) == [("VCPU", 4, 2, "host", "only 2 of 2 are free")]


# -- against the embedded core's own candidates --

CLASSES = ("CUSTOM_A", "CUSTOM_B", "CUSTOM_C")
TRAITS = ("CUSTOM_T", "CUSTOM_U", SHARING)
AGGREGATES = (RACK, CONSUMER)

inventories = st.dictionaries(
    st.sampled_from(CLASSES),
    st.builds(
        Inventory,
        st.integers(2, 12),
        reserved=st.integers(0, 1),
        min_unit=st.sampled_from([1, 1, 1, 2]),
        max_unit=st.integers(2, 6),
        step_size=st.sampled_from([1, 1, 1, 2]),
        allocation_ratio=st.sampled_from([0.5, 1.0, 1.5, 4.0]),
    ),
    max_size=3,
)


@st.composite
def trees(draw: st.DrawFn) -> ProviderTree:
    """One host of up to 6 providers, and up to 2 roots that may share with it."""
    made: list[Provider] = []
    for number in range(draw(st.integers(1, 6)) + draw(st.integers(0, 2))):
        name = f"p{number}"
        foreign = number >= 6 or (number > 0 and draw(st.integers(0, 5)) == 0)
        parent = (
            None if number == 0 or foreign else draw(st.sampled_from([p for p in made if p.name[0] == "p"]))
        )
        traits = draw(st.frozensets(st.sampled_from(TRAITS[:2]), max_size=2))
        made.append(
            Provider(
                uuid_of(name),
                f"s{number}" if foreign else name,
                parent.uuid if parent else None,
                draw(inventories),
                traits | {SHARING} if foreign else traits,
                draw(st.frozensets(st.sampled_from(AGGREGATES), max_size=1)),
            )
        )
    return ProviderTree(made)


rarely = st.integers(0, 4).map(lambda n: n == 4)


@st.composite
def asked(draw: st.DrawFn) -> ClaimRequest:
    suffixes = draw(st.sampled_from([[""], ["", "1"], ["1", "2"], ["", "1", "2"], ["1", "2", "3"]]))
    subtree = frozenset(suffix for suffix in suffixes if suffix) if draw(rarely) else frozenset()
    groups = []
    for suffix in suffixes:
        empty = suffix == "2" and suffix in subtree and draw(st.booleans())
        resources = st.dictionaries(st.sampled_from(CLASSES), st.integers(1, 3), min_size=1, max_size=2)
        any_of = st.frozensets(st.sampled_from(TRAITS[:2]), min_size=1, max_size=2)
        required = (draw(any_of),) if empty or draw(rarely) else ()
        plain = {name for names in required if len(names) == 1 for name in names}
        groups.append(
            RequestGroup(
                suffix,
                {} if empty else draw(resources),
                required,
                (draw(any_of) if draw(rarely) else frozenset()) - plain,
                (draw(st.frozensets(st.sampled_from(AGGREGATES), min_size=1)),) if draw(rarely) else (),
            )
        )
    return ClaimRequest(
        CONSUMER,
        tuple(groups),
        draw(st.sampled_from(["none", "isolate"])),
        (subtree,) if subtree else (),
    )


def core_model(tree: ProviderTree, used: dict[str, dict[str, int]]) -> core.Model:
    model = core.Model(dict.fromkeys(TRAITS, 0.0), dict.fromkeys(CLASSES, 0.0))
    model.load(
        [
            core.ProviderRecord(
                each.uuid,
                each.name,
                0,
                each.parent,
                tree.root_of(each.uuid).uuid,
                {
                    name: core.InventoryRecord(
                        i.total, i.reserved, i.min_unit, i.max_unit, i.step_size, i.allocation_ratio, 0
                    )
                    for name, i in each.inventories.items()
                },
                each.traits,
                each.aggregates,
                0.0,
            )
            for each in tree
        ],
        [core.ConsumerRecord("other", "p", "u", "INSTANCE", 1, used, 0.0)] if used else [],
    )
    return model


def core_query(request: ClaimRequest) -> CandidateQuery:
    return CandidateQuery(
        tuple(
            QueryGroup(
                each.suffix,
                each.resources,
                TraitFilter(each.required, each.forbidden),
                AggregateFilter(each.member_of),
            )
            for each in request.groups
        ),
        39,
        isolate=request.group_policy == "isolate",
        same_subtrees=request.same_subtree,
    )


@given(tree=trees(), request=asked(), data=st.data())
def test_it_fits_exactly_when_placement_has_a_candidate_and_takes_one_of_them(
    tree: ProviderTree, request: ClaimRequest, data: st.DataObject
) -> None:
    used = {
        each.uuid: {name: data.draw(st.integers(1, 2)) for name in each.inventories}
        for each in tree
        if each.inventories and data.draw(st.booleans())
    }
    host = ProviderIndex.of(tree)
    served = {each.uuid for each in host.providers}
    candidates = [
        {uuid: dict(amounts) for uuid, amounts in each.allocations.items()}
        for each, _ in find_candidates(core_model(tree, used), core_query(request))
        if set(each.allocations) <= served
    ]
    found = fit(request, host, used, {})
    assert found.fits == bool(candidates)
    if found.fits:
        assert found.allocations in candidates
    else:
        assert found.shortfalls
        assert all(short.reason for short in found.shortfalls)


ONE_CARD = ProviderTree([provider("host", CUSTOM_A=4, CUSTOM_B=2)])


@given(tree=trees(), request=asked())
@example(ONE_CARD, ask(group(CUSTOM_A=1, CUSTOM_B=1)))
@example(ONE_CARD, ask(group("1", CUSTOM_A=1, CUSTOM_B=1)))
@example(ONE_CARD, ask(group("1", CUSTOM_A=1), group("2", CUSTOM_B=1), policy="none"))
def test_every_refusal_says_why_also_where_classes_exclude_each_other(
    tree: ProviderTree, request: ClaimRequest
) -> None:
    ways = {each.uuid: tuple(frozenset({name}) for name in sorted(each.inventories)) for each in tree}
    found = fit(request, ProviderIndex.of(tree, ways=ways), {}, {})
    assert found.fits or (found.shortfalls and all(short.reason for short in found.shortfalls))


def test_classes_that_cannot_be_given_together_are_named_with_the_reason() -> None:
    for ways, reason in (
        (
            (frozenset({"CUSTOM_A"}), frozenset({"CUSTOM_B"})),
            "CUSTOM_A and CUSTOM_B exclude each other there",
        ),
        ((frozenset({"CUSTOM_A", "CUSTOM_B"}),), "it has no room for 3 CUSTOM_A, 2 CUSTOM_B together"),
    ):
        index = ProviderIndex.of(ONE_CARD, ways={uuid_of("host"): ways})
        found = fit(ask(group(CUSTOM_A=3, CUSTOM_B=2)), index, {}, {})
        assert reasons(found) == [
            ("CUSTOM_A", 3, 4, "host", reason),
            ("CUSTOM_B", 2, 2, "host", reason),
        ]


@pytest.mark.parametrize(
    ("sizes_kib", "memory"),
    [
        (None, {"MEMORY_MB": 2048}),
        ((4,), {"MEMORY_MB": 2048}),
        ((2048, 4), {"MEMORY_MB": 2048}),
        ((2048,), {"CUSTOM_HUGEPAGES_2048KIB": 1024}),
        ((1024,), {"CUSTOM_HUGEPAGES_1024KIB": 2048}),
        ((1048576, 2048), {"CUSTOM_HUGEPAGES_1048576KIB": 2}),
    ],
    ids=["any", "small", "large or small", "large", "s390x", "the largest first"],
)
def test_a_cell_is_asked_for_what_the_largest_cell_of_the_guest_needs(
    sizes_kib: tuple[int, ...] | None, memory: dict[str, int]
) -> None:
    guest = (
        GuestCell(0, frozenset({0}), frozenset({1, 2}), 2048, emulator=1),
        GuestCell(1, frozenset({3, 4}), frozenset({5}), 1024),
    )
    asked = _asked_of_cell(ask(group(VCPU=3, PCPU=4, MEMORY_MB=3072, VGPU=1)), guest, sizes_kib)
    assert asked == {"VGPU": 1, "PCPU": 3, "VCPU": 2, **memory}


def test_a_trait_that_no_provider_of_the_group_has_is_told_with_the_one_that_was_meant() -> None:
    found = fitted(ask(group("", "CUSTOM_M06", VGPU=1)), *NUMA)
    assert {each[4] for each in reasons(found)} == {
        "no provider that can give any of the group has trait CUSTOM_M06; did you mean CUSTOM_M60?"
    }


def test_a_suffixed_group_takes_its_own_first_choice_whatever_the_unsuffixed_one_takes() -> None:
    cells = (
        provider("host", DISK_GB=9),
        provider("numa0", "host", VCPU=8, MEMORY_MB=64),
        provider("numa1", "host", VCPU=8),
    )
    asked = ask(group(VCPU=1, MEMORY_MB=1), group("a", VCPU=1), policy="none")
    found = fitted(asked, *cells, used={"numa1": {"VCPU": 7}})
    assert found.allocations == {"numa0": {"VCPU": 1, "MEMORY_MB": 1}, "numa1": {"VCPU": 1}}


def test_groups_that_compete_are_told_of_the_class_that_they_compete_for() -> None:
    gpu = provider("gpu0", "host", VGPU=4)
    found = fitted(ask(group(VCPU=1), group("a", VGPU=3), group("b", VGPU=3), policy="none"), HOST, gpu)
    assert reasons(found) == [("VGPU", 6, 4, "gpu0", "the groups 'a', 'b' together ask for more than fits")]
