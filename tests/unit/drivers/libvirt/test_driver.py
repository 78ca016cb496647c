import subprocess
import sys
from pathlib import Path

import pytest
from kits.libvirt_model import model
from kits.pci_tree import recorded_tree

from agent.driver import DriverSettings
from agent.errors import DriverUnavailable
from drivers.fake.driver import FakeDriver
from drivers.libvirt.describe.options import LibvirtOptions
from drivers.libvirt.driver import LibvirtDriver


def test_the_class_can_be_had_without_libvirt_but_not_the_driver() -> None:
    program = (
        "import sys; sys.modules['libvirt'] = None\n"
        "from agent.driver import DriverSettings\n"
        "from agent.errors import SettingsError\n"
        "from drivers.libvirt.driver import LibvirtDriver\n"
        "assert LibvirtDriver.OPTIONS['libvirt']\n"
        "try: LibvirtDriver.create(DriverSettings('node1'))\n"
        "except SettingsError as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "needs libvirt's Python binding" in done.stdout


def test_a_closed_driver_says_so() -> None:
    driver = LibvirtDriver(DriverSettings("node1"), LibvirtOptions())
    driver.close()
    driver.close()
    with pytest.raises(DriverUnavailable, match="was closed"):
        driver.describe()


def test_the_devices_of_the_last_description_are_looked_at_without_libvirt(tmp_path: Path) -> None:
    recorded_tree(tmp_path)
    options = LibvirtOptions(sysfs_path=str(tmp_path / "sys"))
    driver = LibvirtDriver(DriverSettings("node1"), options)
    with pytest.raises(DriverUnavailable, match="not read yet"):
        driver.device_signs()
    driver._model = model("vfs")
    found = {signs.address: signs for signs in driver.device_signs()}
    assert found["0000:41:00.0"].driver == "igb" and found["0000:41:10.2"].driver == "igbvf"
    assert not any(signs.answers is False for signs in found.values())
    settings = DriverSettings("node1", options={"devices": {"health_checks": ["answer"]}})
    less = LibvirtDriver(settings, options)
    less._model = driver._model
    assert {signs.driver for signs in less.device_signs()} == {None}


def test_both_drivers_are_found_by_their_entry_points() -> None:
    from importlib.metadata import EntryPoint

    for name, driver in (
        ("drivers.fake.driver:FakeDriver", FakeDriver),
        ("drivers.libvirt.driver:LibvirtDriver", LibvirtDriver),
    ):
        assert EntryPoint("x", name, "plimsoll.drivers").load() is driver
