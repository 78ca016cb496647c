"""The options of the configuration file, with nova's name and meaning where nova has the option.

The drivers add their own options; they are found by entry point (`agent.driver.ENTRY_POINT_GROUP`).

An operator who copies groups of nova's file finds each of their words taken, or refused with the reason.
Refused are nova's options by which nova-compute decides what it puts into Placement, or nova-scheduler what
it asks for, all others of groups that the agent has, too (source: nova 34, nova/conf), and the names of
keystoneauth that [placement] does not have; a test compares these with what keystoneauth registers.

They are also written: a sample of every option, or a proposal for a new host, with the options that it needs,
each with the reason.
"""

import importlib.metadata
import math
import socket
import textwrap
from collections.abc import Iterable, Mapping
from typing import Any

from oslo_config import cfg, types

from agent.cpuset import format_cpu_set, parse_cpu_set
from agent.driver import ENTRY_POINT_GROUP, Driver, Suggestion, Topology
from agent.errors import SettingsError
from agent.providers.owner import OWNER_TRAIT

Options = Mapping[str, tuple[Any, ...]]
"""{group: (oslo.config options, ...)}"""
RATIO_MIN = 0.01
RATIO_MAX = 1_000_000
"""As in provider config files; a higher one is a slip, such as 10^20."""
GOVERNOR = r"^[a-z_]{1,16}$"
HOURS_24_S = 86400
PROVIDER_CONFIG_LOCATION = "/etc/plimsoll/provider_config"


class CpuSet(types.ConfigType):
    """A CPU specification such as "0-3,^2,8", as the frozenset of ids; "" is None: not configured."""

    allowed = "CPU ids and ranges such as 0-3,8, where ^2 excludes a CPU"

    def __init__(self) -> None:
        super().__init__(type_name="CPU set value")

    def __call__(self, value: Any) -> frozenset[int] | None:
        if value is None or isinstance(value, frozenset):
            return value
        if not str(value).strip():
            return None
        cpus = parse_cpu_set(str(value))
        if not cpus:
            raise ValueError("it excludes every CPU")
        return cpus

    def _formatter(self, value: Any) -> str:
        return format_cpu_set(value)


class Ratio(types.Float):
    """A finite number; "nan" and "inf", which Python accepts, are errors."""

    def __call__(self, value: Any) -> int | float | None:
        ratio: int | float | None = super().__call__(value)
        if ratio is not None and not math.isfinite(ratio):
            raise ValueError("a ratio is a finite number")
        return ratio


def _ratio(name: str, help_: str, default: float | None = None) -> Any:
    return cfg.Opt(name, type=Ratio(min=RATIO_MIN, max=RATIO_MAX), default=default, help=help_)


_DEFAULT = (
    cfg.StrOpt(
        "host",
        default=socket.gethostname(),
        sample_default="the host's name",
        help="The name of this host's root resource provider. To change it later, run `plimsoll adopt`.",
    ),
    cfg.StrOpt(
        "state_path",
        default="/var/lib/plimsoll",
        help="The directory of the agent's identity and databases. Only the agent may write to it.",
    ),
    cfg.StrOpt(
        "compute_driver",
        default="libvirt",
        help="The virt driver: the name of its entry point in the group plimsoll.drivers, such as libvirt or "
        "fake.",
    ),
    cfg.IntOpt(
        "update_resources_interval",
        default=60,
        min=1,
        max=HOURS_24_S,
        help="Seconds between two passes over the hypervisor's inventory. An event of the hypervisor starts "
        "one at once.",
    ),
    cfg.IntOpt(
        "reserved_host_cpus", default=0, min=0, help="The number of host CPUs that guests do not get."
    ),
    cfg.IntOpt("reserved_host_memory_mb", default=512, min=0, help="MiB of memory that guests do not get."),
    cfg.IntOpt("reserved_host_disk_mb", default=0, min=0, help="MiB of disk that guests do not get."),
    cfg.MultiStrOpt(
        "cap",
        default=[],
        help="At most so much of a resource class for all guests of the host together, as CLASS=N, such as "
        "VGPU=4; the agent reserves the rest in Placement. What guests have already stays theirs. Of an "
        "overcommitted class, whole units of the host are offered. Repeat the option for each class.",
    ),
    cfg.MultiStrOpt(
        "reserved_huge_pages",
        default=[],
        help="Large pages of a NUMA node that guests do not get, as node:0,size:2048,count:64 (the size in "
        "KiB, or as 1GB). Their memory is not offered either. Repeat the option for each node and size.",
    ),
    _ratio("cpu_allocation_ratio", "Overcommit of VCPU. Unset: the value in Placement stays."),
    _ratio("ram_allocation_ratio", "Overcommit of MEMORY_MB. Unset: the value in Placement stays."),
    _ratio("disk_allocation_ratio", "Overcommit of DISK_GB. Unset: the value in Placement stays."),
    _ratio("initial_cpu_allocation_ratio", "Overcommit of VCPU where Placement has no value yet.", 4.0),
    _ratio("initial_ram_allocation_ratio", "Overcommit of MEMORY_MB where Placement has no value yet.", 1.0),
    _ratio("initial_disk_allocation_ratio", "Overcommit of DISK_GB where Placement has no value yet.", 1.0),
)
_COMPUTE = (
    cfg.Opt(
        "cpu_shared_set",
        type=CpuSet(),
        help="Host CPUs for guests that share CPUs (VCPU). Unset: all, or none if cpu_dedicated_set is set.",
    ),
    cfg.Opt("cpu_dedicated_set", type=CpuSet(), help="Host CPUs for guests with dedicated CPUs (PCPU)."),
    cfg.BoolOpt(
        "cpu_power_management",
        default=False,
        help="Dedicated CPUs without a guest may be down: plimsoll-cpus.service brings those of a claim up, "
        "and takes those of no instance down at a boot; libvirt's hook (the gate) powers a guest's CPUs up "
        "before it starts, and down when it has ended. CPU 0 stays up. Unset: an offline CPU in "
        "cpu_dedicated_set is not offered.",
    ),
    cfg.StrOpt(
        "cpu_power_management_strategy",
        default="cpu_state",
        choices=[
            ("cpu_state", "a CPU that is down is offline, and is offered to guests"),
            ("governor", "a CPU that is down is online and has the governor cpu_power_governor_low"),
        ],
        help="How dedicated CPUs are powered down.",
    ),
    cfg.StrOpt(
        "cpu_power_governor_low",
        default="powersave",
        regex=GOVERNOR,
        help="The governor of dedicated CPUs without a guest.",
    ),
    cfg.StrOpt(
        "cpu_power_governor_high",
        default="performance",
        regex=GOVERNOR,
        help="The governor of dedicated CPUs with a guest.",
    ),
    cfg.IntOpt(
        "resource_provider_association_refresh",
        default=300,
        min=0,
        max=HOURS_24_S,
        help="Seconds between two comparisons of Placement with what the agent wrote there; 0: never.",
    ),
    cfg.IntOpt(
        "closed_disable_after",
        default=60,
        min=0,
        max=HOURS_24_S,
        help="After so many seconds in which the host took no claims, for any reason, its root provider "
        "gets the trait COMPUTE_STATUS_DISABLED, so that schedulers pass it over, until claims are open "
        "again; 0: never.",
    ),
    cfg.StrOpt(
        "provider_config_location",
        default=PROVIDER_CONFIG_LOCATION,
        help="The directory of provider config files (*.yaml, in nova's format), with the operator's own "
        "inventories and traits for the host's providers. Empty: the agent reads none.",
    ),
)
_PCI = (
    cfg.MultiStrOpt(
        "alias",
        default=[],
        help="A name by which flavors request PCI devices (pci_passthrough:alias=NAME:COUNT), as JSON: name; "
        "vendor_id and product_id, or resource_class; device_type (type-PCI, type-PF, type-VF), numa_policy "
        "(required, preferred, legacy, socket), traits, live_migratable. Repeat the option for each alias.",
    ),
)
_PLACEMENT = (
    cfg.StrOpt(
        "kind",
        default="embedded",
        choices=[
            ("embedded", "the Placement core inside the agent; its database is in state_path"),
            ("remote", "an OpenStack Placement, which the options below describe"),
        ],
        help="The Placement that the agent reports to and claims from.",
    ),
    cfg.StrOpt(
        "owner_trait",
        default=OWNER_TRAIT,
        help="The trait by which others tell this agent's providers apart, where the Placement is shared "
        "(kind is remote, or `serve` has addresses); empty: none. nova marks its own with OWNER_NOVA.",
    ),
    cfg.ListOpt(
        "serve",
        default=[],
        help="Addresses where the embedded Placement serves other Placement clients: unix:PATH, "
        "127.0.0.1:8778, or an address off loopback, which requires the three options below. None: only the "
        "agent uses it.",
    ),
    cfg.StrOpt(
        "serve_tokens",
        help="The file of the clients' tokens for the addresses of `serve`, with lines of NAME "
        "ROLE[,ROLE][@PROJECT] TOKEN [host=HOST]: mode 0600, or a systemd credential.",
    ),
    cfg.StrOpt("serve_tls_cert", help="The certificate (and chain) for `serve`, PEM."),
    cfg.StrOpt("serve_tls_key", help="The key of serve_tls_cert, PEM."),
    cfg.StrOpt(
        "serve_tls_client_ca",
        help="The authorities, PEM, that must have issued the certificates of the clients of `serve`, which "
        "show one beside their token; without it, none is asked for.",
    ),
    cfg.StrOpt(
        "auth_type",
        default="password",
        deprecated_opts=[cfg.DeprecatedOpt("auth_plugin")],
        help="How the agent authenticates to a remote Placement: a plug-in of keystoneauth, such as "
        "password, v3applicationcredential, admin_token, or none.",
    ),
    cfg.StrOpt("auth_url", help="Keystone's address."),
    cfg.StrOpt(
        "endpoint_override",
        help="Placement's address, instead of the one in Keystone's catalog; or the addresses of several "
        "servers of one Placement, separated by commas, of which the active one is used.",
    ),
    cfg.StrOpt("region_name", help="The region in Keystone's catalog."),
    cfg.StrOpt("service_type", default="placement", help="The type of Placement's service in the catalog."),
    cfg.StrOpt("service_name", help="The name of Placement's service in the catalog."),
    cfg.ListOpt(
        "valid_interfaces",
        default=["internal", "public"],
        help="Interfaces in the catalog, in order of preference.",
    ),
    cfg.IntOpt(
        "timeout", default=15, min=1, max=600, help="Seconds until a request without an answer fails."
    ),
    cfg.StrOpt(
        "cafile", help="Certificates of the authorities that sign those of Placement and Keystone, PEM."
    ),
    cfg.BoolOpt("insecure", default=False, help="Do not verify the servers' certificates."),
    cfg.StrOpt(
        "tls_ciphers",
        help="The ciphers of TLS connections to Placement and Keystone, as OpenSSL names them. Unset: "
        "OpenSSL's own choice.",
    ),
    cfg.StrOpt(
        "tls_min_version",
        choices=[("1.2", "TLS 1.2 or newer"), ("1.3", "TLS 1.3 or newer")],
        help="The oldest version of TLS for these connections. Unset: as the system's policy says.",
    ),
    cfg.StrOpt("certfile", help="The agent's own certificate, for servers that require one."),
    cfg.StrOpt("keyfile", help="The key of certfile."),
    cfg.IntOpt(
        "connect_retries",
        default=0,
        min=0,
        max=10,
        help="How often a read is repeated if no connection is made. A write is never sent twice; the next "
        "pass repeats what is missing.",
    ),
    cfg.FloatOpt(
        "connect_retry_delay",
        min=0,
        max=60,
        help="Seconds between these; not set: half a second at first, then twice as long each time.",
    ),
    cfg.IntOpt(
        "status_code_retries",
        default=0,
        min=0,
        max=10,
        help="How often a read is repeated if its answer has one of retriable_status_codes.",
    ),
    cfg.FloatOpt(
        "status_code_retry_delay",
        min=0,
        max=60,
        help="Seconds between these; not set: as with connect_retry_delay.",
    ),
    cfg.ListOpt(
        "retriable_status_codes",
        item_type=types.Integer(400, 599),
        default=[503],
        sample_default="503",
        help="The HTTP status codes of the answers after which a read is repeated.",
    ),
    cfg.BoolOpt(
        "split_loggers",
        default=False,
        help="Whether keystoneauth logs request, answer, header and body to four loggers, instead of one; "
        "with [log] level = debug.",
    ),
    cfg.StrOpt("username", deprecated_opts=[cfg.DeprecatedOpt("user_name")], help="The agent's user."),
    cfg.StrOpt("user_id", help="The user's id, instead of the name."),
    cfg.StrOpt(
        "password",
        secret=True,
        help="The user's password. The configuration file must have mode 0600; better, use "
        "LoadCredential=placement.password:PATH in the unit.",
    ),
    cfg.StrOpt("user_domain_name", default="Default", help="The domain of the user."),
    cfg.StrOpt("user_domain_id", help="The id of the user's domain, instead of its name."),
    cfg.StrOpt(
        "project_name",
        default="service",
        deprecated_opts=[cfg.DeprecatedOpt("tenant_name")],
        help="The project of the user.",
    ),
    cfg.StrOpt(
        "project_id",
        deprecated_opts=[cfg.DeprecatedOpt("tenant_id")],
        help="The project's id, instead of the name.",
    ),
    cfg.StrOpt("project_domain_id", help="The id of the project's domain, instead of its name."),
    cfg.StrOpt("default_domain_id", help="The id of the domain of user and project, where none is given."),
    cfg.StrOpt(
        "default_domain_name", help="The name of the domain of user and project, where none is given."
    ),
    cfg.StrOpt("domain_id", help="The id of the domain that the token is for, instead of a project."),
    cfg.StrOpt("domain_name", help="The name of the domain that the token is for, instead of a project."),
    cfg.StrOpt("trust_id", help="The id of the trust that the token is for, instead of a project."),
    cfg.StrOpt("system_scope", help="The system that the token is for (`all`), instead of a project."),
    cfg.StrOpt("project_domain_name", default="Default", help="The domain of the project."),
    cfg.StrOpt("token", secret=True, help="The token for auth_type admin_token; protect it like password."),
    cfg.StrOpt("application_credential_id", help="The id for auth_type v3applicationcredential."),
    cfg.StrOpt("application_credential_name", help="The name, instead of the id."),
    cfg.StrOpt(
        "application_credential_secret",
        secret=True,
        help="The secret for auth_type v3applicationcredential; protect it like password.",
    ),
)
_API = (
    cfg.StrOpt("socket", default="/run/plimsoll/plimsoll.sock", help="The Unix socket of the local API."),
    cfg.ListOpt(
        "readers",
        sample_default="@plimsoll",
        help="Users, or groups as @group, that may read. Unset: the group plimsoll, if it exists.",
    ),
    cfg.ListOpt("claimers", default=[], help="Users, or groups as @group, that may also claim and release."),
    cfg.ListOpt(
        "admins",
        default=[],
        help="Users, or groups as @group, that may use every command, as root and the agent's user may.",
    ),
)
_HTTP = (
    cfg.ListOpt(
        "listen",
        default=[],
        help="Addresses of the status page, the health checks and the metrics, such as 127.0.0.1:9464 or "
        "[::1]:9464. They are read-only, and every client that can connect may read them; addresses off "
        "loopback have no page. None: only the local API's socket serves them.",
    ),
)
_CLAIMS = (
    cfg.StrOpt(
        "follow",
        default="report",
        choices=[
            ("report", "a finding says what came or went, and what came is reserved in Placement"),
            ("grow", "the claim gets what came if it fits, and gives back what went; otherwise as `report`"),
        ],
        help="What happens to the claim of a guest to which vCPUs, memory, disks or devices are added while "
        "it runs, or from which they are taken.",
    ),
    cfg.ListOpt(
        "strategy",
        default=["pack"],
        help="Which of several places that fit a claim takes, once those with devices that the guest "
        "does not ask for are spared: `pack` takes the one with the least left, so that whole cells and "
        "cards stay free; `spread` the one with the most. CLASS:pack or CLASS:spread says so for one "
        "resource class, as in `pack, VGPU:spread`.",
    ),
    cfg.StrOpt(
        "device_profiles",
        default="",
        help="The file (YAML) of the device profiles that flavors name by accel:device_profile: a list of "
        "name and groups, as Cyborg answers. Empty: the agent knows none, and refuses such a flavor.",
    ),
)
_GATE = (
    cfg.BoolOpt(
        "claim_missed",
        default=True,
        help="Where the gate is enabled: whether the agent claims by itself for guests that started while "
        "the gate did not decide. One that does not fit goes on running, and the audit reports it.",
    ),
)
_AUDIT = (
    cfg.IntOpt(
        "interval",
        default=600,
        min=0,
        max=HOURS_24_S,
        help="Seconds between two audits of guests, claims and Placement; 0: never.",
    ),
    cfg.StrOpt(
        "heal",
        default="own",
        choices=[
            ("own", "what this agent provably wrote itself"),
            ("nothing", "the audit only reports; `plimsoll audit --heal` heals"),
        ],
        help="What the scheduled audit heals, after two consecutive audits agree on the finding.",
    ),
)
_LOG = (
    cfg.StrOpt(
        "level",
        default="info",
        choices=["debug", "info", "warning", "error"],
        help="The lowest severity that is logged.",
    ),
    cfg.StrOpt(
        "format",
        default="auto",
        choices=[
            ("auto", "journald under systemd, logfmt elsewhere"),
            ("journald", "to the journal's socket, with each field on its own: journalctl CONSUMER=..."),
            ("journal", "one line a record, with the journal's <priority> in front"),
            ("logfmt", "time, level, logger and fields as key=value"),
            ("json", "one JSON object per line"),
        ],
        help="The format of the log on standard error.",
    ),
)
AGENT_OPTIONS: Options = {
    "DEFAULT": _DEFAULT,
    "compute": _COMPUTE,
    "pci": _PCI,
    "placement": _PLACEMENT,
    "api": _API,
    "http": _HTTP,
    "claims": _CLAIMS,
    "gate": _GATE,
    "audit": _AUDIT,
    "log": _LOG,
}
NEED_RESTART: Mapping[str, frozenset[str]] = {
    "DEFAULT": frozenset(("host", "state_path", "compute_driver")),
    "placement": frozenset(option.dest for option in _PLACEMENT),
    "api": frozenset(option.dest for option in _API),
    "http": frozenset(option.dest for option in _HTTP),
}
"""{group: options that only a restart changes}."""
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
_LOGGED = "the agent logs to the journal or to standard error; [log] level and format say what and how"
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
        **dict.fromkeys(("log_dir", "log_file", "use_journal", "use_syslog", "use_stderr"), _LOGGED),
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
_VERSION = "the agent asks for the versions of Placement's API that it needs; remove the option"
_ENDPOINT = "write endpoint_override, which every auth_type takes"
_PLUGIN = (
    "it belongs to a plug-in of keystoneauth for which the agent has no options; use the auth_type password, "
    "v3applicationcredential, token, admin_token, http_basic or none"
)
REFUSED_NAMES: Mapping[str, str] = {
    "auth_section": "the agent reads its credentials from [placement] alone; write them there",
    "collect_timing": "keystoneauth would keep the time of each request in memory, and nothing reads it; "
    "plimsoll_placement_request_duration_seconds is the metric; remove the option",
    "interface": "write valid_interfaces",
    **dict.fromkeys(("version", "min_version", "max_version"), _VERSION),
    **dict.fromkeys(("endpoint", "url"), _ENDPOINT),
    **dict.fromkeys(
        (
            *("access_key", "access_secret", "access_token", "access_token_endpoint", "access_token_type"),
            *("auth_methods", "authorization_code", "client_id", "client_secret", "code"),
            *("code_challenge_method", "consumer_key", "consumer_secret", "device_authorization_endpoint"),
            *("discovery_endpoint", "identity_provider", "identity_provider_url", "idp_otp_key"),
            *(
                "login_timeout",
                "mutual_auth",
                "oauth2_client_id",
                "oauth2_client_secret",
                "oauth2_endpoint",
                "passcode",
            ),
            *("protocol", "redirect_host", "redirect_port", "redirect_uri", "scope"),
            *("service_provider_endpoint", "service_provider_entity_id"),
        ),
        _PLUGIN,
    ),
}
"""{name: why the agent does not have it, and what to write instead}"""


def why_refused(group: str, name: str) -> str | None:
    """Why the agent does not have an option of nova or keystoneauth, and what to do; None: of neither."""
    if group == "placement":
        return REFUSED_NAMES.get(name)
    if group.startswith("neutron_physnet_"):
        return _NEUTRON
    names = NOVA_NAMES.get(group, {})
    return names.get(name) or names.get("*")


def driver_classes() -> tuple[dict[str, type[Driver]], dict[str, str]]:
    """({name: class} of the installed drivers, {name: reason} of those that do not load)."""
    loaded: dict[str, type[Driver]] = {}
    broken: dict[str, str] = {}
    for entry in importlib.metadata.entry_points(group=ENTRY_POINT_GROUP):
        try:
            loaded_object = entry.load()
        except (ImportError, AttributeError) as error:
            broken[entry.name] = str(error)
            continue
        if isinstance(loaded_object, type) and issubclass(loaded_object, Driver):
            loaded[entry.name] = loaded_object
        else:
            broken[entry.name] = f"{entry.value} is no subclass of agent.driver.Driver"
    return loaded, broken


def driver_class(name: str) -> type[Driver]:
    """The installed driver of this name. Raises SettingsError where it is missing or does not load."""
    loaded, broken = driver_classes()
    if name in loaded:
        return loaded[name]
    if name in broken:
        raise SettingsError(
            f"The driver {name!r} of [DEFAULT] compute_driver does not load: {broken[name]}; install "
            "its dependencies (for libvirt: python3-libvirt, or plimsoll[libvirt]) or choose another driver.",
            option="compute_driver",
            value=name,
        )
    raise SettingsError(
        f"The driver of [DEFAULT] compute_driver = {name} is not installed; installed are "
        f"{', '.join(sorted(loaded))}.",
        option="compute_driver",
        value=name,
    )


def all_options(classes: Mapping[str, type[Driver]]) -> Options:
    """The options of the agent and the drivers; of an option that several drivers have, the first counts."""
    merged: dict[str, dict[str, Any]] = {
        group: {option.dest: option for option in options} for group, options in AGENT_OPTIONS.items()
    }
    for name in sorted(classes):
        for group, options in classes[name].OPTIONS.items():
            for option in options:
                merged.setdefault(group, {}).setdefault(option.dest, option)
    return {group: tuple(options.values()) for group, options in merged.items()}


def is_pattern(group: str) -> bool:
    """True for a name such as "mdev_<type>", which stands for every group that begins with "mdev_"."""
    return group.endswith(">") and "<" in group


def options_of(group: str, options: Options) -> tuple[Any, ...] | None:
    """The options of a group in a file, by its name or by a pattern; None if the group is unknown."""
    if group in options and not is_pattern(group):
        return options[group]
    for pattern, declared in options.items():
        prefix = pattern.partition("<")[0]
        if is_pattern(pattern) and group.startswith(prefix) and len(group) > len(prefix):
            return declared
    return None


def with_groups(options: Options, groups: Iterable[str]) -> Options:
    """The options, with the groups of a file in place of the patterns that they match."""
    known = {group: declared for group, declared in options.items() if not is_pattern(group)}
    for group in groups:
        declared = options_of(group, options)
        if declared is not None:
            known.setdefault(group, declared)
    return known


def names_of(option: Any) -> tuple[str, ...]:
    """The names that an option may have in a file: its present one, then former ones."""
    return (option.dest, *(former.name.replace("-", "_") for former in option.deprecated_opts))


def allowed(option: Any) -> str:
    """The values that an option allows, as the end of a sentence."""
    type_ = option.type
    if isinstance(type_, CpuSet):
        return type_.allowed
    if getattr(type_, "choices", None):
        return "one of " + ", ".join(str(choice) for choice in type_.choices)
    if isinstance(type_, types.Number):
        kind = "a whole number" if isinstance(type_, types.Integer) else "a number"
        low, high = type_.min, type_.max
        if low is not None and high is not None:
            return f"{kind} from {low} to {high}"
        return kind if low is None else f"{kind} not below {low}"
    if isinstance(type_, types.Boolean):
        return "true or false"
    if isinstance(type_, types.List):
        return "words separated by commas"
    return "text" if isinstance(type_, types.String) else str(getattr(type_, "type_name", type_))


# A sample and a proposal

SAMPLE_WIDTH = 100
MEMORY_SHARE = 32
MEMORY_MIN_MB = 512
MEMORY_MAX_MB = 8192
PROPOSAL_HEAD = """# Proposed by `plimsoll init` for this host. `plimsoll config sample` shows every option;
# `plimsoll config validate` checks this file.
"""


def sample() -> str:
    """A configuration file with every option of agent and drivers, commented out, at its default."""
    blocks = ["# Every option of Plimsoll with its default. `plimsoll config validate` checks a file.\n"]
    for group, options in all_options(driver_classes()[0]).items():
        blocks.append(f"\n{'#' * is_pattern(group)}[{group}]\n")
        for option in options:
            lines = textwrap.wrap(
                option.help or option.dest, SAMPLE_WIDTH, initial_indent="# ", subsequent_indent="# "
            )
            choices = getattr(option.type, "choices", None) or {}
            if any(choices.values()):
                lines.extend(f"#   {choice}: {meaning}" for choice, meaning in choices.items())
            elif allowed(option) != "text":
                lines.append(f"# Allowed: {allowed(option)}.")
            default = option.default if option.sample_default is None else option.sample_default
            if isinstance(default, list):
                default = ",".join(default)
            elif isinstance(default, bool):
                default = str(default).lower()
            said = f"#{option.dest} = {'' if default is None else default}".rstrip()
            blocks.append("\n".join(("", *lines, said, "")))
    return "".join(blocks)


def own_suggestions(host: str, driver: str, topology: Topology) -> tuple[Suggestion, ...]:
    """The options that a host needs with any driver."""
    memory_mb = sum(cell.memory_mb for cell in topology.cells)
    reserved_mb = min(max(memory_mb // MEMORY_SHARE, MEMORY_MIN_MB), MEMORY_MAX_MB)
    return (
        Suggestion(
            "DEFAULT", "host", host, "The name of the host's root provider. It should not change later."
        ),
        Suggestion("DEFAULT", "compute_driver", driver, "The virt driver."),
        Suggestion(
            "DEFAULT",
            "reserved_host_memory_mb",
            str(reserved_mb),
            f"Of {memory_mb} MiB, for the host itself and for QEMU's own memory besides that of the guests.",
        ),
        Suggestion(
            "placement", "kind", "embedded", "This agent keeps the claims; `remote` joins an OpenStack cloud."
        ),
    )


def propose(suggestions: Iterable[Suggestion]) -> str:
    """The text of a configuration file, with groups in the order of their first suggestion."""
    groups: dict[str, list[Suggestion]] = {}
    for suggestion in suggestions:
        groups.setdefault(suggestion.group, []).append(suggestion)
    blocks = [PROPOSAL_HEAD]
    for group, members in groups.items():
        blocks.append(f"\n[{group}]\n")
        for option in members:
            why = textwrap.wrap(option.why, SAMPLE_WIDTH, initial_indent="# ", subsequent_indent="# ")
            mark = "" if option.certain else "#"
            blocks.append("\n".join((*why, f"{mark}{option.option} = {option.value}", "")))
    return "".join(blocks)
