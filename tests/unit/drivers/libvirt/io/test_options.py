import subprocess
import sys

import pytest
from oslo_config import cfg

from agent.driver import DriverSettings, HostSettings
from agent.errors import DriverUnavailable, SettingsError
from drivers.fake import FakeDriver
from drivers.libvirt import LibvirtDriver
from drivers.libvirt.io.options import OPTIONS, LibvirtOptions


def test_the_declared_defaults_are_the_ones_that_hold() -> None:
    conf = cfg.ConfigOpts()
    conf.register_opts(OPTIONS, group="libvirt")
    conf([])
    declared = {option.dest: conf.libvirt[option.dest] for option in OPTIONS}
    assert LibvirtOptions.of(declared) == LibvirtOptions()


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"storage_pools": ["a", "a"]}, "names a pool twice"),
        ({"images_path": "images"}, "must be an absolute path"),
    ],
)
def test_options_that_make_no_sense(values: dict, message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        LibvirtDriver.create(DriverSettings("node1", options={"libvirt": values}))


def test_cpu_sets_that_overlap_are_refused_before_anything_is_asked() -> None:
    both = HostSettings(cpu_shared_set=frozenset({1}), cpu_dedicated_set=frozenset({1}))
    with pytest.raises(SettingsError, match="both name CPU 1"):
        LibvirtDriver.create(DriverSettings("node1", both))


def test_the_class_can_be_had_without_libvirt_but_not_the_driver() -> None:
    program = (
        "import sys; sys.modules['libvirt'] = None\n"
        "from agent.driver import DriverSettings\n"
        "from agent.errors import SettingsError\n"
        "from drivers.libvirt import LibvirtDriver\n"
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


def test_both_drivers_are_found_by_their_entry_points() -> None:
    from importlib.metadata import EntryPoint

    for name, driver in (
        ("drivers.fake:FakeDriver", FakeDriver),
        ("drivers.libvirt:LibvirtDriver", LibvirtDriver),
    ):
        assert EntryPoint("x", name, "plimsoll.drivers").load() is driver
