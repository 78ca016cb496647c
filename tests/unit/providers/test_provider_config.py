"""Provider config files: what nova's schema has is taken, everything else refused with file and key."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kits.paths import CHECKOUT

from agent.driver import DescribedInventory, DescribedProvider, Description, MoveInstruction
from agent.errors import SettingsError
from agent.providers.provider_config import (
    COMPUTE_NODE,
    ProviderConfig,
    ProviderEntry,
    merge_entries,
    overlay,
    parse_provider_file,
)
from agent.strict_text import FILE_BYTES_MAX
from agent.tree import MAX_UNIT

SAMPLE = CHECKOUT / "etc/plimsoll/provider_config/provider.yaml.sample"
ROOT, GPU = "0b5b8f9c-8a0c-4a53-9f6b-9b7f2a4f1a11", "11111111-8a0c-4a53-9f6b-9b7f2a4f1a11"
HEAD = "meta: {schema_version: '1.0'}\nproviders:\n"


def entry(**changes: object) -> ProviderEntry:
    return replace(ProviderEntry("a.yaml", "providers[0]", traits=frozenset({"CUSTOM_T"})), **changes)


def one(text: str) -> str:
    return f"{HEAD}  - {text}\n"


def added(text: str) -> str:
    """A file that adds this inventory to the host."""
    return one(f"{{identification: {{uuid: $COMPUTE_NODE}}, inventories: {{additional: [{text}]}}}}")


def test_what_nova_takes_is_taken() -> None:
    host, card = parse_provider_file(SAMPLE.read_bytes(), "sample")
    assert (host.uuid, host.name, host.traits) == (COMPUTE_NODE, None, frozenset({"CUSTOM_RACK_7"}))
    assert host.inventories == {
        "CUSTOM_LICENSE_DB": DescribedInventory(4, max_unit=MAX_UNIT, allocation_ratio=1.0)
    }
    assert (card.name, card.key, card.inventories) == ("node1_pci_0000:41:00.0", "providers[1]", {})


def test_an_entry_that_adds_nothing_is_none_and_uuids_are_lower_case() -> None:
    text = one(f"identification: {{uuid: {ROOT.upper()}}}\n    traits: {{additional: [CUSTOM_T]}}")
    assert parse_provider_file(text.encode(), "f") == (
        ProviderEntry("f", "providers[0]", None, ROOT, {}, frozenset({"CUSTOM_T"})),
    )
    assert parse_provider_file(one("identification: {name: node1}").encode(), "f") == ()
    assert parse_provider_file(b"meta: {schema_version: '1.0'}", "f") == ()


@pytest.mark.parametrize(
    ("text", "key", "why"),
    [
        ("", "the top level", "is not of type 'object'"),
        ("providers: []", "the top level", "'meta' is a required property"),
        ("meta: {schema_version: '2.0'}", "meta.schema_version", "'2.0' is not supported"),
        ("meta: {schema_version: 1.0}", "meta.schema_version", "is not of type 'string'"),
        (one("traits: {additional: [CUSTOM_T]}"), "providers[0]", "'identification' is a required"),
        (one("identification: {uuid: node1}"), "providers[0].identification.uuid", "does not match"),
        (one(f"identification: {{uuid: {ROOT}, name: a}}"), "providers[0].identification", "too many"),
        (one("identification: {}"), "providers[0].identification", "non-empty"),
        (one("{identification: {name: a}, trait: {}}"), "providers[0]", "'trait' was unexpected"),
        (
            added("VCPU: {total: 1}"),
            "providers[0].inventories.additional[0].VCPU",
            "not a custom resource class",
        ),
        (
            added("CUSTOM_: {total: 1}"),
            "providers[0].inventories.additional[0].CUSTOM_",
            "CUSTOM_ followed by",
        ),
        (
            added("CUSTOM_A: {total: -1}"),
            "providers[0].inventories.additional[0].CUSTOM_A.total",
            "less than the minimum",
        ),
        (added("CUSTOM_A: {reserved: 1}"), "providers[0].inventories.additional[0].CUSTOM_A", "'total'"),
        (
            added("CUSTOM_A: {total: 1, reserved: 2}"),
            "providers[0].inventories.additional[0].CUSTOM_A.reserved",
            "2 cannot be reserved of 1",
        ),
        (
            added("CUSTOM_A: {total: 1, allocation_ratio: .nan}"),
            "providers[0].inventories.additional[0].CUSTOM_A.allocation_ratio",
            "not a finite number",
        ),
        (
            added("CUSTOM_A: {total: 1}, CUSTOM_A: {total: 2}"),
            "",
            "is given twice",
        ),
        (
            one(
                "{identification: {name: a}, inventories: {additional: [{CUSTOM_A: {total: 1}}, "
                "{CUSTOM_A: {total: 2}}]}}"
            ),
            "providers[0].inventories.additional[1].CUSTOM_A",
            "is given twice",
        ),
        (
            one("{identification: {name: a}, traits: {additional: [HW_CPU_X86_AVX]}}"),
            "providers[0].traits.additional[0]",
            "not a custom trait",
        ),
    ],
)
def test_what_is_wrong_is_refused_with_file_and_key(text: str, key: str, why: str) -> None:
    with pytest.raises(SettingsError) as refused:
        parse_provider_file(text.encode(), "/etc/x.yaml")
    assert refused.value.message.startswith(f"/etc/x.yaml: {key}"), refused.value.message
    assert why in refused.value.message, refused.value.message
    assert refused.value.details["file"] == "/etc/x.yaml"


@pytest.mark.parametrize(
    "text",
    [
        "a: &a [x]\nb: [*a, *a]",
        "a: {b: 1, b: 2}",
        "[" * 5000,
        "meta: {schema_version: '1.0'}\nproviders: " + "[" * 40 + "]" * 40,
        "!!python/object/apply:os.system [true]",
        "a: [",
        "? [a]\n: b",
        "a: 2026-99-99",
        "# " + "x" * FILE_BYTES_MAX,
        "\x00",
    ],
)
def test_yaml_that_is_harmful_is_refused(text: str) -> None:
    with pytest.raises(SettingsError, match=r"f\.yaml"):
        parse_provider_file(text.encode(), "f.yaml")


@given(st.binary(max_size=200) | st.text(max_size=200).map(str.encode))
def test_anything_at_all_is_either_read_or_refused(content: bytes) -> None:
    try:
        assert parse_provider_file(content, "f") == ()
    except SettingsError as error:
        assert error.message.startswith("f:")


def test_two_entries_of_one_provider_are_refused_across_files() -> None:
    other = entry(file="b.yaml", key="providers[3]", name="gpu")
    with pytest.raises(SettingsError, match=r"b.yaml: providers\[3\].*a.yaml: .* configures provider gpu"):
        merge_entries([entry(name="gpu"), other])
    assert merge_entries([entry(name="gpu"), entry(uuid=COMPUTE_NODE)]).entries[0].name == "gpu"


UUIDS = {"node1": ROOT, "gpu": GPU}
HOST = Description(
    (
        DescribedProvider("node1", inventories={"VCPU": DescribedInventory(8)}, traits=frozenset({"HW_A"})),
        DescribedProvider("gpu", "node1", {"CUSTOM_GPU": DescribedInventory(2)}),
    ),
    (MoveInstruction("node1", {"CUSTOM_GPU": 2}, "gpu"),),
)


def test_an_explicit_entry_beats_the_one_for_the_host_in_general() -> None:
    """Scenario 23: all of it, whether by name or by uuid."""
    inventory = {"CUSTOM_A": DescribedInventory(3)}
    general = entry(uuid=COMPUTE_NODE, inventories=inventory)
    for own in (entry(name="node1"), entry(uuid=ROOT)):
        for entries in ((general, own), (own, general)):
            root, _ = overlay(ProviderConfig(entries), HOST, UUIDS).description.providers
            assert root.inventories == HOST.providers[0].inventories
            assert root.traits == {"HW_A", "CUSTOM_T"}
    root, gpu = overlay(ProviderConfig((general, entry(uuid=GPU))), HOST, UUIDS).description.providers
    assert root.inventories.keys() == {"VCPU", "CUSTOM_A"} and gpu.traits == {"CUSTOM_T"}


def test_what_the_driver_reports_stays_the_drivers() -> None:
    """On the provider that has it, and on the one that it moved from."""
    inventory = {"CUSTOM_GPU": DescribedInventory(9), "CUSTOM_A": DescribedInventory(1)}
    for name in ("gpu", "node1"):
        laid = overlay(ProviderConfig((entry(name=name, inventories=inventory),)), HOST, UUIDS)
        (conflict,) = laid.conflicts
        assert conflict.startswith("a.yaml: providers[0].inventories.additional: ")
        assert f"reports CUSTOM_GPU on {name}" in conflict
        now = {each.name: each for each in laid.description.providers}[name]
        before = {each.name: each for each in HOST.providers}[name]
        assert now.inventories == {**before.inventories, "CUSTOM_A": DescribedInventory(1)}


def test_one_provider_by_name_and_by_uuid_is_a_conflict_and_a_strange_one_is_told() -> None:
    laid = overlay(
        ProviderConfig((entry(name="gpu"), entry(uuid=GPU, file="b.yaml"), entry(name="other"))), HOST, UUIDS
    )
    (conflict,) = laid.conflicts
    assert conflict.startswith("b.yaml: providers[0].identification") and "a.yaml" in conflict
    assert [each.name for each in laid.unmatched] == ["other"]
    assert overlay(ProviderConfig(), HOST, UUIDS).description is HOST
