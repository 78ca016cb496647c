"""The values of a fake host."""

import pytest

from drivers.fake.devices import Gpu, Nic
from drivers.fake.host import DEVICE_KINDS, FakeHost, cell


def test_the_threads_of_a_core_are_numbered_as_on_x86() -> None:
    assert cell(0, frozenset({0, 1, 4, 5}), 1024, threads=2).siblings == (
        frozenset({0, 4}),
        frozenset({1, 5}),
    )


def test_cpus_that_are_no_whole_cores_are_an_error() -> None:
    with pytest.raises(ValueError, match="3 CPUs cannot be cores of 2 threads"):
        cell(0, frozenset({0, 1, 2}), 1024, threads=2)


def test_devices_are_listed_by_their_key_in_the_host_file() -> None:
    gpu = Gpu("0000:42:00.0")
    host = FakeHost((cell(0, frozenset({0}), 1024),), gpus=(gpu,))
    assert {key: devices for key, devices in host.devices.items() if devices} == {"gpus": (gpu,)}
    assert host.devices.keys() == DEVICE_KINDS.keys()
    assert (DEVICE_KINDS["gpus"], DEVICE_KINDS["nics"]) == (Gpu, Nic)
