"""Only names and numbers of sysfs are names: nothing that leads out of a folder."""

from __future__ import annotations

import pytest

from agent.carving.names import ADDRESS, NAME, NUMBER, UUID


@pytest.mark.parametrize("text", ["..", ".", "../x", "a/b", "", "a\n", "a b", "/", "\x00"])
def test_what_leads_elsewhere_is_no_name(text: str) -> None:
    assert not any(pattern.fullmatch(text) for pattern in (ADDRESS, NAME, NUMBER, UUID))


def test_the_names_of_real_hosts_are_names() -> None:
    assert ADDRESS.fullmatch("0000:41:10.2") and ADDRESS.fullmatch("10000:e1:00.0")
    for name in ("vfio-pci", "mlx5_vfio_pci", "nvidia-471", "i915-GVTg_V5_4"):
        assert NAME.fullmatch(name)
