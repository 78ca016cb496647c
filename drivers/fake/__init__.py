"""The fake driver: a described host, for tests and to try Plimsoll without a hypervisor.

CONTRIBUTING.md has the recipe for a new resource class or kind of device.
"""

from drivers.fake.driver import FakeDriver, default_host
from drivers.fake.host import DividedGpu, FakeHost, Gpu, Nic, cell, load_host, parse_host

__all__ = [
    "DividedGpu",
    "FakeDriver",
    "FakeHost",
    "Gpu",
    "Nic",
    "cell",
    "default_host",
    "load_host",
    "parse_host",
]
