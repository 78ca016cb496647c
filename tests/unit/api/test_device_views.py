"""What users name when they cordon a device."""

from __future__ import annotations

import pytest

from agent.api.device_views import read_clear_body, read_cordon_body


@pytest.mark.parametrize(
    ("given", "address"),
    [
        ("0000:C1:00.0", "0000:c1:00.0"),
        ("0000:84:00.0/CUSTOM_VGPU_4@6", "0000:84:00.0/CUSTOM_VGPU_4@6"),
        ("0000:C1:00.2/nvidia-471@20", "0000:c1:00.2/nvidia-471@20"),
    ],
)
def test_a_device_is_named_as_the_list_shows_it_or_by_its_address_in_capitals(
    given: str, address: str
) -> None:
    assert read_cordon_body({"address": given}, 0).address == address
    assert read_clear_body({"address": given}) == address
