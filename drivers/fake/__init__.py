"""The fake driver: a described host, for tests and to try Plimsoll without a hypervisor.

To add a resource class that a kind of device has:

1. `drivers/fake/devices.py`: give the kind a field for the amount, with its description, and add the class
   to `totals` (and to `exact_units` if its units can be told apart).
2. `docs/drivers.md`: write its table of keys with `./dev generate`.
3. `tests/unit/drivers/fake/test_devices.py`: compare the provider.

To add a kind of device: the same, with a class of its own in `devices.py` (a subclass of `Device`), and a
field for the list of such devices in `FakeHost` (`drivers/fake/host.py`). To add a class that the host itself
has: a field in `FakeHost`, and its inventory in `describe_host` (`drivers/fake/describe.py`). The built-in
host, `default.yaml`, may have the device as well; many tests compare its tree.

The schema of the host file, the checks of addresses and cells, the providers, their moves and the table in
the documentation follow from the class. The agent has no list of resource classes: a class is a standard one
of os-resource-classes or begins with CUSTOM_.
"""

from drivers.fake.devices import Gpu, Nic
from drivers.fake.driver import FakeDriver, default_host
from drivers.fake.host import FakeHost, cell
from drivers.fake.host_file import load_host, parse_host

__all__ = ["FakeDriver", "FakeHost", "Gpu", "Nic", "cell", "default_host", "load_host", "parse_host"]
