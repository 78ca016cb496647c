import pytest
from oslo_config import cfg

from agent.driver import DriverSettings, HostSettings
from agent.errors import SettingsError
from drivers.libvirt import LibvirtDriver
from drivers.libvirt.describe.options import OPTIONS, LibvirtOptions


def test_the_declared_defaults_are_the_ones_that_hold() -> None:
    conf = cfg.ConfigOpts()
    conf.register_opts(OPTIONS["libvirt"], group="libvirt")
    conf([])
    declared = {option.dest: conf.libvirt[option.dest] for option in OPTIONS["libvirt"]}
    assert LibvirtOptions.of(declared) == LibvirtOptions()


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"storage_pools": ["a", "a"]}, "names a pool twice"),
        ({"connection_uri": "qemu:system"}, "is no libvirt URI"),
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
