import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kits.recorded_cards import VF, WHOLE, cards

from agent.errors import SettingsError
from drivers.libvirt.describe.cards import DeviceSpec, parse_device_specs


@pytest.mark.parametrize(
    ("text", "matching"),
    [
        ('{"vendor_id": "8086", "product_id": "10ca"}', 6),
        ('{"vendor_id": "0x8086", "product_id": "10CA"}', 6),
        ('{"address": "0000:41:10.2"}', 1),
        ('{"address": ":41:10."}', 4),
        ('{"address": "0000:41:00.0"}', 5),
        ('{"address": "*:41:00.0"}', 1),
        ('{"address": {"domain": "0000", "bus": "41", "slot": "00", "function": "0"}}', 5),
        ('{"address": {"bus": "41", "slot": "00", "function": "0"}}', 1),
        ('{"address": {"bus": "4", "slot": "10"}}', 4),
        ('{"address": {"bus": "4$"}}', 0),
        ('{"address": "10.2"}', 2),
        ('{"address": "0:41:10.2"}', 1),
        ('{"address": "*:4*:10."}', 4),
        ('{"address": {"bus": "41|81", "slot": "10"}}', 6),
        ('{"devname": "enp129s0"}', 3),
        ('{"devname": "enp129s0", "product_id": "10ca"}', 2),
        ('{"vendor_id": "*", "address": "0000:43:00.0"}', 1),
        ('{"vendor_id": "dead"}', 0),
    ],
)
def test_specs_match_as_nova_has_them(text: str, matching: int) -> None:
    (spec,) = parse_device_specs((text,))
    found = [
        function.address
        for card in tuple(cards("vfs").values())
        for function in (card.device, *card.vfs)
        if spec.matches(function, card)
    ]
    assert len(found) == matching


def test_a_list_of_specs_is_as_good_as_many() -> None:
    assert parse_device_specs((f"[{VF}, {WHOLE}]",)) == parse_device_specs((VF, WHOLE))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nonsense", "is not JSON"),
        ("3", "an object was expected"),
        ("{}", "it names no device"),
        ('{"physical_network": "p"}', "it names no device"),
        ('{"vendor": "8086"}', "'vendor' is not known; there are address, devname,"),
        ('{"vendor_id": "80867"}', "vendor_id '80867' is not an id of one to four hexadecimal digits"),
        ('{"vendor_id": 8086}', "vendor_id must be text"),
        ('{"address": "41"}', "is not a PCI address such as"),
        ('{"address": {"bus": "("}}', "address: "),
        ('{"address": {"bus": 3, "x": 1}}', "address must be text or an object of"),
        ('{"devname": "eth0", "address": "0000:41:00.0"}', "both name devices"),
        ('{"address": "0000:41:00.0", "traits": 3}', "traits must be text"),
        ('{"address": "0000:41:00.0", "resource_class": "!"}', "'!' has no letter or digit"),
    ],
)
def test_specs_that_make_no_sense(text: str, message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        parse_device_specs((text,))


def test_names_are_made_fit_for_placement() -> None:
    (spec,) = parse_device_specs(
        ('{"vendor_id": "1", "resource_class": "my-gpu", "traits": "HW_GPU_API_VULKAN, a b"}',)
    )
    assert spec == DeviceSpec(
        vendor_id="0001",
        resource_class="CUSTOM_MY_GPU",
        traits=frozenset({"HW_GPU_API_VULKAN", "CUSTOM_A_B"}),
    )


_JSON = st.recursive(
    st.none() | st.integers() | st.text(max_size=6) | st.sampled_from(["*", "8086", ":41:*.", "("]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(
        st.sampled_from(["vendor_id", "product_id", "address", "devname", "traits", "resource_class", "bus"]),
        inner,
        max_size=4,
    ),
    max_leaves=6,
)  # fmt: skip


@given(_JSON)
def test_no_spec_does_worse_than_settingserror(data: object) -> None:
    try:
        specs = parse_device_specs((json.dumps(data),))
    except SettingsError as error:
        assert error.message.startswith("[pci] device_spec ")
    else:
        card = replace(next(iter(cards("boot").values())))
        assert all(spec.matches(card.device, card) in (True, False) for spec in specs)
