"""The libvirt driver: the contract, over the reader and the pure functions.

libvirt-python is imported when the driver connects, so that the class can be had without it.
"""

import importlib.util
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Self

from agent.driver import Description, Driver, DriverSettings, Guest, Suggestion, Topology
from agent.errors import DriverUnavailable, SettingsError
from drivers.host.domain_xml import parse_domain, starting_guest
from drivers.host.inventory import check_cpu_sets
from drivers.libvirt.describe.device_options import OPTIONS as DEVICE_OPTIONS
from drivers.libvirt.describe.device_options import device_settings
from drivers.libvirt.describe.host import HostFacts
from drivers.libvirt.describe.lost_mdevs import lost_mdevs
from drivers.libvirt.describe.model import DeviceModel, ModelSettings, make_model
from drivers.libvirt.describe.moves import Tenant
from drivers.libvirt.describe.suggest import suggestions
from drivers.libvirt.io.deadline import Runner
from drivers.libvirt.io.hints import Hints, Watcher
from drivers.libvirt.io.options import OPTIONS, LibvirtOptions
from drivers.libvirt.io.remembered import DriverMemory, boot_id
from drivers.libvirt.io.sysfs import usual_page_kib

if TYPE_CHECKING:
    from drivers.libvirt.io.connection import Connection
    from drivers.libvirt.io.reader import Reader


class LibvirtDriver(Driver):
    """A host that libvirt looks after. What did not change is the very same object as before."""

    OPTIONS: ClassVar[Mapping[str, tuple[Any, ...]]] = {"libvirt": OPTIONS, **DEVICE_OPTIONS}

    def __init__(self, settings: DriverSettings, options: LibvirtOptions) -> None:
        self._settings = settings
        self._options = options
        self._hints = Hints()
        self._lock = threading.RLock()
        self._parts: tuple[Connection, Reader] | None = None
        self._watchers: list[Watcher] = []
        self._model_settings = ModelSettings(
            settings.host, settings.host_settings, device_settings(settings.options), options.report_numa
        )
        self._memory = DriverMemory(settings.state_path)
        self._boot = boot_id()
        self._restores = bool(settings.options.get("devices", {}).get("restore_mdevs", True))
        self._facts: HostFacts | None = None
        self._seen: tuple[object, ...] = ()
        self._model: DeviceModel | None = None
        self._closed = False

    @classmethod
    def create(cls, settings: DriverSettings) -> Self:
        check_cpu_sets(settings.host_settings)
        options = LibvirtOptions.of(settings.options.get("libvirt", {}))
        if importlib.util.find_spec("libvirt") is None:
            raise SettingsError(
                "the libvirt driver needs libvirt's Python binding: install plimsoll[libvirt], or Debian's "
                "package python3-libvirt"
            )
        return cls(settings, options)

    def describe(self) -> Description:
        model = self._look()
        self._restore(model)
        return model.description

    def topology(self) -> Topology:
        return self._look(at_host=False).topology

    def guests(self) -> tuple[Guest, ...]:
        return self._look(at_host=False).guests

    def suggest(self) -> tuple[Suggestion, ...]:
        model = self._look()
        return suggestions(model.topology, model.devices.cards)

    def guest_of(self, xml: str) -> Guest:
        with self._lock:
            model, parts = self._model, self._parts
        if model is None or parts is None:
            raise DriverUnavailable("the devices of this host were not read yet")
        domain = parse_domain(xml, huge_page_kib=usual_page_kib())
        disk_gb = parts[1].disk_gb(domain)
        dedicated = self._settings.host_settings.cpu_dedicated_set or frozenset()
        return starting_guest(domain, disk_gb, dedicated, model.places)

    def watch(self, changed: Callable[[str], None]) -> None:
        watcher = Watcher(changed, self._connect)
        with self._lock:
            self._watchers.append(watcher)
        watcher.start()
        watcher.connect()

    def close(self) -> None:
        with self._lock:
            self._closed = True
            watchers, self._watchers = self._watchers, []
            parts, self._parts = self._parts, None
        for watcher in watchers:
            watcher.close()
        if parts is not None:
            parts[0].close()

    def _look(self, *, at_host: bool = True) -> DeviceModel:
        """The host as it is now; what did not change is the same object as before.

        Without `at_host` what was last known of it will do: guests are there though a pool is away.
        """
        _, reader = self._connected()
        facts = reader.facts() if at_host or self._facts is None else self._facts
        domains, devices = reader.domains(), reader.devices()
        with self._lock:
            self._facts = self._facts if self._facts == facts else facts
            seen = (self._facts, devices, domains)
            if self._model is None or not all(a is b for a, b in zip(self._seen, seen, strict=True)):
                model = make_model(
                    facts,
                    devices,
                    [Tenant(known.guest, known.domain) for known in domains],
                    self._memory.units,
                    self._boot,
                    self._model_settings,
                    self._memory.classes,
                )
                self._memory.keep(model.units, model.classes)
                self._model = model if self._model is None else _keep_same(self._model, model)
                self._seen = seen
            return self._model

    def _restore(self, model: DeviceModel) -> None:
        """Make again what a reboot took; libvirt's events then have the host looked at again."""
        lost = lost_mdevs(model.missing, model.devices, self._boot) if self._restores else []
        if lost:
            made = self._connected()[1].restore(lost)
            if made:
                self._hints.all_devices()
                self._hint(f"{len(made)} mediated devices were made again")

    def _connected(self) -> "tuple[Connection, Reader]":
        """The connection and its reader, which open it when they need to."""
        with self._lock:
            if self._closed:
                raise DriverUnavailable("the libvirt driver was closed")
            if self._parts is None:
                self._parts = self._make_parts()
            return self._parts

    def _make_parts(self) -> "tuple[Connection, Reader]":
        from drivers.libvirt.io.connection import Connection  # late: they import libvirt
        from drivers.libvirt.io.reader import Reader

        options = self._options
        connection = Connection(
            options.connection_uri,
            Runner(
                "libvirt",
                "the connection is given up and a new one made; if that does not help, look at the state of "
                "libvirtd, and restart it if it does not answer virsh either",
                options.call_timeout,
                options.read_timeout,
            ),
            self._hints,
            turn_timeout_s=options.read_timeout,
            why=self._hint,
            opened=self._opened,
            lost=self._lost,
        )
        dedicated = self._settings.host_settings.cpu_dedicated_set or frozenset()
        return connection, Reader(connection, self._hints, options, dedicated)

    def _connect(self) -> None:
        """The watchers' way to connect again. Raises DriverUnavailable."""
        self._connected()[0].run("connect", _nothing, _nothing)

    def _hint(self, why: str) -> None:
        for watcher in tuple(self._watchers):
            watcher.hint(why)

    def _opened(self, again: bool) -> None:
        for watcher in tuple(self._watchers):
            watcher.found()
            if again:
                watcher.hint("connected to libvirt again")

    def _lost(self, why: str) -> None:
        for watcher in tuple(self._watchers):
            watcher.lost(why)


def _keep_same(old: DeviceModel, new: DeviceModel) -> DeviceModel:
    """The new model, with the old one's very objects where they are equal."""
    return replace(
        new,
        description=old.description if old.description == new.description else new.description,
        topology=old.topology if old.topology == new.topology else new.topology,
        guests=old.guests if old.guests == new.guests else new.guests,
    )


def _nothing(_: object) -> None:
    pass
