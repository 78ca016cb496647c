"""The libvirt driver: `Driver`, from the readers in `io` and the pure functions in `describe`.

The driver imports libvirt's binding when it connects, so that the class can be imported without it.
"""

import importlib.util
import os
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from dataclasses import replace as changed
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

from agent.device_names import PLAIN_VFIO, address_of, is_vfio
from agent.driver import (
    ROOT_SIGHT,
    CarvedUnit,
    DeclaredCarving,
    Description,
    DeviceSigns,
    DomainNeeds,
    Driver,
    DriverSettings,
    GivenResources,
    Guest,
    HostDevice,
    PassedDevice,
    Suggestion,
    Topology,
)
from agent.errors import DriverUnavailable, SettingsError, counted
from drivers.host.domain_writer import write_domain
from drivers.host.domain_xml import over_iommufd, parse_domain, passed_addresses, read_needs, starting_guest
from drivers.host.providers import absent_cpus, check_cpu_sets, check_file_backed_memory, lacking_pages
from drivers.host.sysfs import Sysfs, boot_id, default_huge_page_kib, device_addresses, read_signs
from drivers.libvirt.describe import mixed_sizes
from drivers.libvirt.describe.bandwidth import parse_ovs
from drivers.libvirt.describe.cards import DeviceSpec
from drivers.libvirt.describe.devices import (
    spec_of,
    unknown_groups,
    vdpa_functions,
    with_functions,
    write_vdpa,
)
from drivers.libvirt.describe.history import carved_units, lost_mdevs
from drivers.libvirt.describe.host import (
    HostFacts,
    HostModel,
    ModelSettings,
    build_model,
    with_devices_of_domain,
    with_other_devices,
)
from drivers.libvirt.describe.memory import unmatched_namespaces, write_namespaces
from drivers.libvirt.describe.options import (
    OPTIONS,
    LibvirtOptions,
    declared_carving,
    device_settings,
    health_checks,
    suggestions,
    unmatched_options,
)

if TYPE_CHECKING:
    from drivers.libvirt.io.connection import ChangeNotifier, Connection, PendingReads, VcpuWatch
    from drivers.libvirt.io.devices import DeviceReader, DeviceState, MdevRestorer
    from drivers.libvirt.io.domain_reader import DomainReader
    from drivers.libvirt.io.host_reader import HostReader

PROC, MODULES = Path("/proc"), Path("/lib/modules")


@dataclass(frozen=True, slots=True)
class _Readers:
    """The connection, what reads and writes over it, and what is to be read again and remembered."""

    connection: "Connection"
    pending_reads: "PendingReads"
    host: "HostReader"
    devices: "DeviceReader"
    device_state: "DeviceState"
    domains: "DomainReader"
    mdevs: "MdevRestorer"


class LibvirtDriver(Driver):
    """A host with libvirt. Methods return the same object as before while its value stays the same."""

    OPTIONS: ClassVar[Mapping[str, tuple[Any, ...]]] = OPTIONS

    def __init__(self, settings: DriverSettings, options: LibvirtOptions) -> None:
        self._settings = settings
        self._options = options
        self._lock = threading.RLock()
        self._readers: _Readers | None = None
        self._notifiers: list[ChangeNotifier] = []
        self._vcpu_watch: VcpuWatch | None = None
        self._model_settings = ModelSettings(
            settings.host,
            settings.host_settings,
            device_settings(settings.options),
            options.report_numa,
            frozenset(options.supported_tpm_secret_security),
            options.pmem_namespaces,
            parse_ovs(settings.options.get("ovs", {}), settings.host),
            options.file_backed_memory,
            options.cpuless_memory,
        )
        self._health_checks = health_checks(settings.options)
        self._sysfs = Sysfs(
            Path(options.sysfs_path), PROC, MODULES / os.uname().release, Path("/", ROOT_SIGHT)
        )
        self._boot_id = boot_id()
        restore = bool(settings.options.get("devices", {}).get("restore_mdevs", True))
        self._restore_mdevs = restore and not settings.read_only
        self._facts: HostFacts | None = None
        self._model_inputs: tuple[object, ...] = ()
        self._model: HostModel | None = None
        self._closed = False

    @classmethod
    def create(cls, settings: DriverSettings) -> Self:
        """See `Driver`."""
        check_cpu_sets(settings.host_settings)
        options = LibvirtOptions.of(settings.options.get("libvirt", {}))
        check_file_backed_memory(options.file_backed_memory, settings.host_settings)
        cls.declared_carving(settings)
        if importlib.util.find_spec("libvirt") is None:
            raise SettingsError(
                "the libvirt driver needs libvirt's Python binding: install plimsoll[libvirt], or Debian's "
                "package python3-libvirt"
            )
        return cls(settings, options)

    @classmethod
    def check_options(cls, options: Mapping[str, Mapping[str, Any]]) -> None:
        """See `Driver`."""
        LibvirtOptions.of(options.get("libvirt", {}))
        device_settings(options)

    def describe(self) -> Description:
        """See `Driver`. Creates mediated devices again that a reboot removed."""
        model = self._read_model()
        lost = lost_mdevs(model.missing, model.devices, self._boot_id) if self._restore_mdevs else []
        if lost:
            readers = self._connected()
            created = readers.connection.run(
                "create mediated devices again",
                lambda session: readers.mdevs.restore(session, lost),
                lambda uuids: uuids,
            )
            if created:  # libvirt's events then cause another reading
                readers.pending_reads.add_all_devices()
                self._report_change(
                    f"{counted(len(created), 'mediated device was', 'mediated devices were')} created again"
                )
        return model.description

    def topology(self) -> Topology:
        """See `Driver`."""
        return self._read_model(read_host=False).topology

    def guests(self) -> tuple[Guest, ...]:
        """See `Driver`."""
        return self._read_model(read_host=False).guests

    def suggest(self) -> tuple[Suggestion, ...]:
        """See `Driver`."""
        model = self._read_model()
        return suggestions(model.topology, model.devices.cards)

    def guest_of(self, xml: str) -> Guest:
        """See `Driver`."""
        with self._lock:
            model, readers = self._model, self._readers
        if model is None or readers is None:
            raise DriverUnavailable("the devices of this host were not read yet")
        domain = parse_domain(xml, huge_page_kib=default_huge_page_kib())
        domain = with_functions(domain, vdpa_functions(model.devices.cards))
        units = self._vgpus_now(model, readers)
        disk_gb = readers.domains.disk_gb(domain.uuid, domain.disks)
        dedicated = self._settings.host_settings.cpu_dedicated_set or frozenset()
        guest = starting_guest(
            mixed_sizes.domain_with_units(domain, units), disk_gb, dedicated, model.locations
        )
        return with_devices_of_domain(
            guest, domain, model.encryption, model.pmem, self._model_settings, model.topology.near
        )

    def needs_of(self, xml: str) -> DomainNeeds:
        """See `Driver`."""
        with self._lock:
            readers, model = self._readers, self._model
        dedicated = self._settings.host_settings.cpu_dedicated_set or frozenset()
        if readers is None:
            raise DriverUnavailable("the devices of this host were not read yet")
        needs = read_needs(xml, dedicated, default_huge_page_kib(), readers.domains.disk_gb)
        if model is None:
            return needs
        needs = changed(
            needs, devices=mixed_sizes.needs_with_units(needs.devices, self._vgpus_now(model, readers))
        )
        return with_other_devices(needs, xml, model, self._model_settings)

    def _vgpus_now(self, model: HostModel, readers: _Readers) -> Mapping[str, str]:
        """The units of functions on cards in mixed-size mode, see `vgpu_units`; their types are read again.

        A type is written just before its guest starts, and no event tells it.
        """
        devices, settings, known = model.devices, self._model_settings.devices, readers.device_state.units
        functions = mixed_sizes.vgpu_units(devices, settings, known)
        if not functions:
            return functions
        types = {function: self._sysfs.vgpu_type(function) for function in functions}
        places = {function: self._sysfs.vgpu_place(function) for function in functions}
        devices = changed(
            devices,
            vgpu_types={**devices.vgpu_types, **{name: number for name, number in types.items() if number}},
            vgpu_places={name: place for name, place in places.items() if place is not None},
            vram={name: quota for name in functions if (quota := self._sysfs.vram(name)) is not None},
        )
        return mixed_sizes.vgpu_units(mixed_sizes.with_vram(devices, settings), settings, known)

    def write_domain(self, xml: str, given: GivenResources, *, replace: bool = False) -> str:
        """See `Driver`."""
        model = self._model
        if model is None:
            return write_domain(xml, given, replace=replace)
        unmanaged = mixed_sizes.unmanaged_functions(model.devices, self._model_settings.devices)
        vgpus = unmanaged.intersection(address_of(each.unit) for each in given.devices)
        given = mixed_sizes.given_functions(given)
        functions, classes = vdpa_functions(model.devices.cards), self._model_settings.pmem.values()
        vdpa = [device for device in given.devices if device.unit in functions.values()]
        memory = {device.unit for device in given.devices if device.resource_class in classes}
        others = (each for each in given.devices if each not in vdpa and each.unit not in memory)
        written = write_domain(xml, changed(given, devices=tuple(others)), replace=replace)
        written = mixed_sizes.write_unmanaged(write_vdpa(written, vdpa, functions), vgpus)
        return write_namespaces(written, (each for each in model.pmem if each.name in memory))

    def host_device(self, address: str) -> HostDevice | None:
        """See `Driver`."""
        device, model = self._sysfs.read(address), self._model
        if device is None or model is None:
            return device
        becomes, name = self._sysfs.variant(device.address) or "", device.address
        if name in model.devices.vgpu_types or (device.vfio and not is_vfio(device.driver)):
            becomes = ""  # it has a vendor's own driver of VFIO, and keeps that
        elif name in model.devices.plain:
            becomes = PLAIN_VFIO
        elif becomes == device.driver.replace("-", "_"):
            becomes = device.driver
        found = (
            spec_of(self._model_settings.devices, function, card)
            for card in model.devices.cards
            for function in (card.device, *card.vfs)
            if function.address == name
        )
        spec = next(found, None) or DeviceSpec()
        return changed(device, becomes=becomes, managed=spec.managed, live_migratable=spec.live_migratable)

    def passed_devices(self, xml: str) -> tuple[PassedDevice, ...]:
        """See `Driver`."""
        return self._sysfs.passed(passed_addresses(xml), over_iommufd(xml))

    def device_signs(self) -> tuple[DeviceSigns, ...]:
        """See `Driver`."""
        model = self._model
        if model is None:
            raise DriverUnavailable("the devices of this host were not read yet")
        addresses = device_addresses(model.description.providers)
        return read_signs(Path(self._options.sysfs_path), addresses, self._health_checks)

    @classmethod
    def declared_carving(cls, settings: DriverSettings) -> DeclaredCarving:
        """See `Driver`."""
        return declared_carving(settings.options.get("devices", {}), device_settings(settings.options))

    def carved_units(self) -> tuple[CarvedUnit, ...]:
        """See `Driver`."""
        model = self._model
        if model is None:
            raise DriverUnavailable("the devices of this host were not read yet")
        return carved_units(model.devices, model.missing, self._model_settings.devices)

    def unmatched_options(self) -> tuple[str, ...]:
        """See `Driver`."""
        model, facts = self._model, self._facts
        if model is None or facts is None:
            return ()
        settings = self._model_settings
        sight, why = self._sysfs.root_sight()
        return (
            *unmatched_options(model.devices, settings.devices),
            *unmatched_namespaces(model.pmem, settings.pmem),
            *lacking_pages(facts.capabilities.cells, self._settings.host_settings.reserved_huge_pages),
            *absent_cpus(model.topology.cells, self._settings.host_settings),
            *unknown_groups(model.devices, settings.devices.peers, sight.problem),
            *([why] if why else ()),
        )

    def disk_free_gb(self) -> int | None:
        """See `Driver`."""
        return self._connected().host.disk_free_gb()

    def watch(self, changed: Callable[[str], None]) -> None:
        """See `Driver`."""
        from drivers.libvirt.io.connection import ChangeNotifier, VcpuWatch  # late: it imports libvirt

        notifier = ChangeNotifier(changed, self._connect)
        with self._lock:
            self._notifiers.append(notifier)
        notifier.start()
        notifier.start_connecting()
        with self._lock:
            if self._vcpu_watch is None and not self._closed:
                self._vcpu_watch = VcpuWatch(self._look_for_vcpus)
                self._vcpu_watch.start()

    def close(self) -> None:
        """See `Driver`."""
        with self._lock:
            self._closed = True
            notifiers, self._notifiers = self._notifiers, []
            readers, self._readers = self._readers, None
            watch, self._vcpu_watch = self._vcpu_watch, None
        if watch is not None:
            watch.close()
        for notifier in notifiers:
            notifier.close()
        if readers is not None:
            readers.connection.close()

    def _read_model(self, *, read_host: bool = True) -> HostModel:
        """The model of the host now; parts that did not change are the same objects as before.

        Without `read_host` the facts of an earlier reading do: guests can be listed while a pool is inactive.
        """
        readers = self._connected()
        facts = readers.host.read() if read_host or self._facts is None else self._facts
        domains = readers.domains.read()
        devices = readers.connection.run("read the devices", readers.devices.read, readers.devices.keep)
        with self._lock:
            self._facts = self._facts if self._facts == facts else facts
            inputs = (self._facts, devices, domains)
            if self._model is None or not all(
                old is new for old, new in zip(self._model_inputs, inputs, strict=True)
            ):
                state, old = readers.device_state, self._model
                model = build_model(
                    facts, devices, domains, state.units, self._boot_id, self._model_settings, state.history
                )
                state.save(model.units, model.history)
                if old is not None:
                    # The objects of the old model stay where they are equal.
                    same = {
                        name: getattr(old, name)
                        for name in ("description", "topology", "guests")
                        if getattr(old, name) == getattr(model, name)
                    }
                    model = changed(model, **same)
                self._model, self._model_inputs = model, inputs
            return self._model

    def _connected(self) -> _Readers:
        """The readers, which open the connection when they need it."""
        with self._lock:
            if self._closed:
                raise DriverUnavailable("the libvirt driver was closed")
            if self._readers is not None:
                return self._readers
            # Late: these modules import libvirt.
            from drivers.libvirt.io.connection import Connection, DeadlineRunner, PendingReads
            from drivers.libvirt.io.devices import DeviceReader, DeviceState, MdevRestorer
            from drivers.libvirt.io.domain_reader import DomainReader
            from drivers.libvirt.io.host_reader import HostReader

            options, pending_reads = self._options, PendingReads()
            connection = Connection(
                options.connection_uri,
                DeadlineRunner(
                    "libvirt",
                    "it may be busy, as while it probes QEMU's binaries; the agent replaces the connection "
                    "and tries again. If it stays so, see whether `virsh -r list` answers",
                    options.call_timeout,
                    options.read_timeout,
                ),
                pending_reads,
                turn_timeout_s=options.read_timeout,
                changed=self._report_change,
                opened=self._report_connect,
                disconnected=self._report_disconnect,
            )
            dedicated = self._settings.host_settings.cpu_dedicated_set or frozenset()
            interval_s = options.full_read_interval
            self._readers = _Readers(
                connection,
                pending_reads,
                HostReader(connection, options),
                DeviceReader(pending_reads, self._sysfs, interval_s),
                DeviceState(self._settings.state_path),
                DomainReader(connection, pending_reads, dedicated, interval_s),
                MdevRestorer(options.connection_uri),
            )
            return self._readers

    def _look_for_vcpus(self) -> None:
        """Report the guests whose vCPUs changed. Raises DriverUnavailable."""
        readers = self._readers
        for name in readers.domains.find_changed_vcpus() if readers is not None else ():
            self._report_change(f"domain {name} has another number of vCPUs")

    def _connect(self) -> None:
        """Open the connection, for the notifiers. Raises DriverUnavailable."""
        self._connected().connection.run("connect", _do_nothing, _do_nothing)

    def _report_change(self, why: str) -> None:
        for notifier in tuple(self._notifiers):
            notifier.report_change(why)

    def _report_connect(self, again: bool) -> None:
        for notifier in tuple(self._notifiers):
            notifier.report_connect()
            if again:
                notifier.report_change("connected to libvirt again")

    def _report_disconnect(self, why: str) -> None:
        for notifier in tuple(self._notifiers):
            notifier.report_disconnect(why)


def _do_nothing(_: object) -> None:
    pass
