"""The options of group [libvirt], with nova's names where nova has the option."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from oslo_config import cfg, types

from agent.errors import SettingsError
from drivers.libvirt.describe.cpu_model import MODES, CpuModel
from drivers.libvirt.describe.pmem import PmemLabels, parse_pmem_namespaces
from drivers.libvirt.describe.tpm_secrets import WAYS


@dataclass(frozen=True, slots=True)
class LibvirtOptions:
    """The values of the group, with its defaults. Times are in seconds."""

    connection_uri: str = "qemu:///system"
    virt_type: str | None = None
    cpu_model: CpuModel = field(default_factory=CpuModel)
    file_backed_memory: int = 0
    pmem_namespaces: PmemLabels = field(default_factory=dict)
    supported_tpm_secret_security: tuple[str, ...] = ()
    num_intel_tdx_guests: int | None = None
    call_timeout: float = 10.0
    probe_timeout: float = 60.0
    read_timeout: float = 120.0
    full_read_interval: float = 300.0
    full_connection: bool = True
    storage_pools: tuple[str, ...] = ()
    images_path: str = "/var/lib/libvirt/images"
    image_cache_path: str = ""
    report_numa: bool = False
    sysfs_path: str = "/sys"

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> "LibvirtOptions":
        """The options in the configuration {option: value}. Raises SettingsError where one makes no sense."""
        known = {each.name for each in fields(cls)}
        given = {name: value for name, value in values.items() if name in known and value is not None}
        given["cpu_model"] = CpuModel.of(
            values.get("cpu_mode"), values.get("cpu_models") or (), values.get("cpu_model_extra_flags") or ()
        )
        given["pmem_namespaces"] = parse_pmem_namespaces(given.get("pmem_namespaces", ()))
        given["supported_tpm_secret_security"] = tuple(given.get("supported_tpm_secret_security", ()))
        given["storage_pools"] = tuple(given.get("storage_pools", ()))
        options = cls(**given)
        if len(set(options.storage_pools)) != len(options.storage_pools):
            raise SettingsError("[libvirt] storage_pools names a pool twice; remove one of them")
        if options.image_cache_path and options.storage_pools:
            raise SettingsError(
                "[libvirt] image_cache_path is for images_path; with storage_pools, set reserved_host_disk_mb"
            )
        if not _URI.fullmatch(options.connection_uri):
            raise SettingsError(
                f"[libvirt] connection_uri = {options.connection_uri} is no libvirt URI; write "
                "qemu:///system, or an alias of libvirt.conf"
            )
        for name in ("images_path", "image_cache_path", "sysfs_path"):
            path = getattr(options, name)
            if path and not path.startswith("/"):
                raise SettingsError(f"[libvirt] {name} {path!r} must be an absolute path")
        return options


_DEFAULT = LibvirtOptions()

_URI = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://.*|[A-Za-z0-9_-]*")
"""A URI of libvirt, or one of its aliases."""

OPTIONS = (
    cfg.StrOpt(
        "connection_uri", default=_DEFAULT.connection_uri, help="The libvirt URI of this host's hypervisor."
    ),
    cfg.StrOpt(
        "virt_type",
        choices=["kvm", "qemu"],
        help="The type of guests whose CPU flags and devices become traits. Unset: kvm if the host has it.",
    ),
    cfg.StrOpt(
        "cpu_mode",
        choices=list(MODES),
        help="The CPU that guests get, whose flags become traits. Unset: host-model, or the host's CPU where "
        "libvirt has no model of it.",
    ),
    cfg.ListOpt(
        "cpu_models",
        default=[],
        help="libvirt's names of the models that guests may get (cpu_mode = custom), the most basic first: "
        "the host has the flags of any of them.",
    ),
    cfg.ListOpt(
        "cpu_model_extra_flags",
        default=[],
        help="Flags that guests have beside those of the model; with a minus, those that they do not have.",
    ),
    cfg.ListOpt(
        "supported_tpm_secret_security",
        item_type=types.String(choices=WAYS),
        default=[],
        help="How the secrets of guests' TPMs are kept (user, host, deployment), as traits; a scheduler of "
        "nova asks for one. Unset: the agent neither sets these traits nor takes them away.",
    ),
    cfg.IntOpt(
        "num_intel_tdx_guests",
        min=0,
        help="The most guests with Intel TDX, where that is fewer than the processor has keys for, or where "
        "the kernel does not tell their number (fs/cgroup/misc.capacity). Unset: the kernel's number.",
    ),
    cfg.IntOpt(
        "file_backed_memory",
        default=_DEFAULT.file_backed_memory,
        min=0,
        help="MiB for the memory of guests in files (memory_backing_dir in libvirt's qemu.conf), which are "
        "then MEMORY_MB instead of the host's memory; 0: none. It needs reserved_host_memory_mb = 0 and no "
        "overcommit of memory, and no large pages are offered.",
    ),
    cfg.ListOpt(
        "pmem_namespaces",
        default=[],
        help="Namespaces of persistent memory (mode devdax, created with a name) for guests, as "
        "LABEL:NAME|NAME, ...: hw:pmem=LABEL gives a guest one of them, CUSTOM_PMEM_NAMESPACE_LABEL.",
    ),
    cfg.FloatOpt(
        "call_timeout",
        default=_DEFAULT.call_timeout,
        min=0.1,
        help="Seconds that a call to libvirt may take; after that the agent replaces the connection.",
    ),
    cfg.FloatOpt(
        "probe_timeout",
        default=_DEFAULT.probe_timeout,
        min=0.1,
        help="The same for calls for which libvirt starts an emulator to find out what it can do.",
    ),
    cfg.FloatOpt(
        "read_timeout",
        default=_DEFAULT.read_timeout,
        min=0.1,
        help="Seconds that reading the whole host, or all domains, may take.",
    ),
    cfg.FloatOpt(
        "full_read_interval",
        default=_DEFAULT.full_read_interval,
        min=1.0,
        help="Seconds after which the agent reads every domain again, even without an event.",
    ),
    cfg.BoolOpt(
        "full_connection",
        default=_DEFAULT.full_connection,
        help="Read what guests can have over a second connection, which may write and is closed at once: "
        "libvirt refuses that call on a read-only one. Without it, traits of firmware, vTPM, disk buses and "
        "graphics are missing.",
    ),
    cfg.ListOpt(
        "storage_pools",
        default=list(_DEFAULT.storage_pools),
        help="The storage pools whose sizes are DISK_GB. Unset: the file system of images_path.",
    ),
    cfg.StrOpt(
        "images_path",
        default=_DEFAULT.images_path,
        help="The directory of the guests' disks; without storage_pools, its file system is DISK_GB.",
    ),
    cfg.StrOpt(
        "image_cache_path",
        default=_DEFAULT.image_cache_path,
        help="The directory of cached images that are the base of guests' disks; what its files take on the "
        "file system of images_path is reserved (nova: reserve_disk_resource_for_image_cache). Empty: none.",
    ),
    cfg.BoolOpt(
        "report_numa",
        default=_DEFAULT.report_numa,
        help="Report CPUs, memory and devices below a provider for each NUMA cell: claims can then request "
        "resources of one cell (same_subtree). A change moves the allocations of running guests.",
    ),
    cfg.StrOpt(
        "sysfs_path",
        default=_DEFAULT.sysfs_path,
        help="Where the host's sysfs is mounted; change it only in a container.",
    ),
)
