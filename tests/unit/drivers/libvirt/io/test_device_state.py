import json
import logging
from pathlib import Path

import pytest

from drivers.libvirt.describe.cards import UnitRecord
from drivers.libvirt.io.device_state import FILE, DeviceState

UNITS = {
    each.unit: each
    for each in (
        UnitRecord("0000:41:10.0", "0000:41:00.0", "SRIOV_NET_VF"),
        UnitRecord(
            "11111111-1111-4111-8111-111111111111", "0000:42:00.0", "VGPU", "0000:42:00.0", "nvidia-11", "b"
        ),
    )
}


CLASSES = {"pci:0000:42:00.0": ("VGPU", "CUSTOM_X")}


def test_what_is_kept_is_there_after_a_restart(tmp_path: Path) -> None:
    DeviceState(tmp_path).save(UNITS, CLASSES)
    again = DeviceState(tmp_path)
    assert (again.units, again.history) == (UNITS, CLASSES)
    written = json.loads((tmp_path / FILE).read_text())
    (tmp_path / FILE).write_text(json.dumps(written["units"]))
    earlier = DeviceState(tmp_path)
    assert (earlier.units, earlier.history) == (UNITS, {}), "a version before this wrote the units only"
    DeviceState(tmp_path).save({}, {})
    assert DeviceState(tmp_path).units == {}
    assert DeviceState(None).units == {}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}",
        "[3]",
        '{"units": [], "classes": {"a": 3}}',
        '[{"unit": 3, "card": "x"}]',
        '[{"unit": "x"}]',
        "\xff",
    ],
)
def test_a_file_that_makes_no_sense_is_told_and_left_alone(
    tmp_path: Path, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / FILE).write_bytes(text.encode("latin-1"))
    assert DeviceState(tmp_path).units == {}
    assert "cannot be read, so the driver has forgotten earlier devices" in caplog.text
    assert (tmp_path / FILE).read_bytes() == text.encode("latin-1")


def test_a_disk_that_does_not_take_it_is_told_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    memory = DeviceState(tmp_path / "nowhere")
    with caplog.at_level(logging.WARNING):
        memory.save(UNITS, {})
        memory.save({}, {})
    assert caplog.text.count("cannot be written: No such file") == 1
    assert memory.units == {}


def test_making_a_driver_touches_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    DeviceState(tmp_path / "file")  # what cannot be read is no error until it is asked for
