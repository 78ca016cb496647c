"""nova's options that the agent does not have, each with the reason and what to do. Pure.

They are those by which nova-compute decides what it puts into Placement, or nova-scheduler what it asks for,
and all others of groups that the agent has, too. Source: nova 34, nova/conf.
"""

from collections.abc import Mapping

_ALWAYS = "PCI devices are always in Placement, and claims always ask for them there; remove the option"
_NOT_HERE = "it steers nova's own compute service, and no claim depends on it; remove the option"
_SCHEDULER = "it steers nova's scheduler, which runs elsewhere; remove the option"
_DISK = (
    "the agent reads the file system of images_path, or the pools of storage_pools (LVM, RBD), and need not "
    "know how disks are made in them"
)
_NEUTRON = (
    "the agent does not ask Neutron: physical_network of [pci] device_spec names a device's network, and a "
    "guest's cells are its flavor's"
)
_CYBORG = "the agent does not ask Cyborg: [claims] device_profiles names a file with the profiles"
_LOG = "the agent logs to the journal or to standard error; [log] level and format say what and how"
_MARK = (
    "the services of the control plane know whether they have it: a provider config file can list the traits"
)

NOVA_NAMES: Mapping[str, Mapping[str, str]] = {
    "DEFAULT": {
        "vcpu_pin_set": "write [compute] cpu_dedicated_set and cpu_shared_set",
        "instances_path": "write [libvirt] images_path",
        "compute_monitors": _NOT_HERE,
        "max_concurrent_builds": _NOT_HERE,
        "resume_guests_state_on_host_boot": "libvirt starts guests again that are marked with autostart, and "
        "plimsoll-devices.service makes their devices again; remove the option",
        "debug": "write [log] level = debug",
        **dict.fromkeys(("log_dir", "log_file", "use_journal", "use_syslog", "use_stderr"), _LOG),
    },
    "compute": {
        "packing_host_numa_cells_allocation_strategy": "write [claims] strategy = pack or spread",
        "image_type_exclude_list": _MARK,
        "vmdk_allowed_types": _NOT_HERE,
        "sharing_providers_max_uuids_per_request": "the agent reads sharing providers by their aggregates; "
        "remove the option",
        **dict.fromkeys(
            (
                *("consecutive_build_service_disable_threshold", "live_migration_wait_for_vif_plug"),
                *("max_concurrent_disk_ops", "max_disk_devices_to_attach", "shutdown_retry_interval"),
                "update_resources_max_workers",
            ),
            _NOT_HERE,
        ),
    },
    "pci": {"report_in_placement": _ALWAYS, "passthrough_whitelist": "write device_spec"},
    "devices": {"enabled_vgpu_types": "write enabled_mdev_types"},
    "libvirt": {
        **dict.fromkeys(
            ("swtpm_enabled", "swtpm_user", "swtpm_group"),
            "the agent reports the TPMs that libvirt says guests can have; remove the option",
        ),
        "num_memory_encrypted_guests": "nova has it no more, and the number is the processor's; remove it",
        **dict.fromkeys(
            (
                *("images_type", "images_volume_group", "images_rbd_pool", "images_rbd_ceph_conf"),
                *("rbd_user", "rbd_secret_uuid", "sparse_logical_volumes", "snapshots_directory"),
            ),
            _DISK,
        ),
        "hw_machine_type": "the agent reads what guests of pc and of q35 can have, and reports both; remove "
        "the option",
        "num_pcie_ports": _NOT_HERE,
        "max_queues": _NOT_HERE,
    },
    "filter_scheduler": {"pci_in_placement": _ALWAYS, "*": _SCHEDULER},
    "scheduler": {
        "image_metadata_prefilter": "the properties of an image always ask for their traits, each by itself; "
        "remove the option",
        "query_placement_for_image_type_support": f"no claim asks for COMPUTE_IMAGE_TYPE_*; {_MARK}",
        "*": _SCHEDULER,
    },
    "workarounds": {
        "reserve_disk_resource_for_image_cache": "write [libvirt] image_cache_path, the cache's directory",
        "*": _NOT_HERE,
    },
    "neutron": {"*": _NEUTRON},
    "cyborg": {"*": _CYBORG},
    "image_cache": {
        "*": "the agent has no cache of images; [libvirt] image_cache_path names that of another"
    },
}
"""{group: {nova's option, or * for any: why the agent does not have it, and what to write instead}}"""

_STARTS = {"neutron_physnet_": _NEUTRON}


def why_not_of_nova(group: str, name: str) -> str | None:
    """Why the agent does not have nova's option of this group; None: it is not known as one of nova's."""
    names = NOVA_NAMES.get(group, {})
    of_group = next((why for start, why in _STARTS.items() if group.startswith(start)), None)
    return names.get(name) or names.get("*") or of_group
