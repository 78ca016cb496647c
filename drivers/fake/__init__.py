"""A driver without a hypervisor: a described host that tests, and the curious, can change as they like."""

from drivers.fake.driver import FakeDriver, default_host
from drivers.fake.host import FakeHost, Gpu, Nic, cell
from drivers.fake.hostfile import load_host, parse_host

__all__ = ["FakeDriver", "FakeHost", "Gpu", "Nic", "cell", "default_host", "load_host", "parse_host"]
