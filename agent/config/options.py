"""Every option of the configuration file, named and meant as operators know them from nova where nova has it.

The drivers' own options are found by entry point (`agent.driver.ENTRY_POINT_GROUP`) and stand beside these.
"""

import importlib.metadata
import math
import socket
from collections.abc import Iterable, Mapping
from typing import Any

from oslo_config import cfg, types

from agent.cpuset import format_cpu_set, parse_cpu_set
from agent.driver import ENTRY_POINT_GROUP, Driver
from agent.errors import SettingsError

Options = Mapping[str, tuple[Any, ...]]
"""{group: (oslo.config options, ...)}"""

RATIO_MIN = 0.01
HOURS_24_S = 86400
PROVIDER_CONFIG_LOCATION = "/etc/plimsoll/provider_config"


class CpuSet(types.ConfigType):
    """A CPU specification such as "0-3,^2,8" -> the frozenset of ids; "" -> None, not configured."""

    allowed = "CPU ids and ranges such as 0-3,8, with ^2 to take one out again"

    def __init__(self) -> None:
        super().__init__(type_name="CPU set value")

    def __call__(self, value: Any) -> frozenset[int] | None:
        if value is None or isinstance(value, frozenset):
            return value
        if not str(value).strip():
            return None
        cpus = parse_cpu_set(str(value))
        if not cpus:
            raise ValueError("no CPU is left in it")
        return cpus

    def _formatter(self, value: Any) -> str:
        return format_cpu_set(value)


class Ratio(types.Float):
    """A number, which "nan" and "inf" are not, though Python would take them."""

    def __call__(self, value: Any) -> int | float | None:
        ratio: int | float | None = super().__call__(value)
        if ratio is not None and not math.isfinite(ratio):
            raise ValueError("a ratio is a finite number")
        return ratio


def _ratio(name: str, help_: str, default: float | None = None) -> Any:
    return cfg.Opt(name, type=Ratio(min=RATIO_MIN), default=default, help=help_)


_DEFAULT = (
    cfg.StrOpt(
        "host",
        default=socket.gethostname(),
        sample_default="the host's name",
        help="The name of this host's root resource provider. Changing it later needs `plimsoll adopt`.",
    ),
    cfg.StrOpt(
        "state_path",
        default="/var/lib/plimsoll",
        help="Where the agent keeps its identity and its databases: a directory that only it may write.",
    ),
    cfg.StrOpt(
        "compute_driver",
        default="libvirt",
        help="The virt driver, by its entry point in the group plimsoll.drivers: libvirt, fake, ...",
    ),
    cfg.IntOpt(
        "update_resources_interval",
        default=60,
        min=1,
        max=HOURS_24_S,
        help="Seconds between two looks at the hypervisor. Its events cause a look at once.",
    ),
    cfg.IntOpt("reserved_host_cpus", default=0, min=0, help="Host CPUs that no guest is given."),
    cfg.IntOpt("reserved_host_memory_mb", default=512, min=0, help="MiB of memory that no guest is given."),
    cfg.IntOpt("reserved_host_disk_mb", default=0, min=0, help="MiB of disk that no guest is given."),
    _ratio("cpu_allocation_ratio", "Overcommit of VCPU. Unset leaves what placement has alone."),
    _ratio("ram_allocation_ratio", "Overcommit of MEMORY_MB. Unset leaves what placement has alone."),
    _ratio("disk_allocation_ratio", "Overcommit of DISK_GB. Unset leaves what placement has alone."),
    _ratio("initial_cpu_allocation_ratio", "Overcommit of VCPU where placement has none yet.", 4.0),
    _ratio("initial_ram_allocation_ratio", "Overcommit of MEMORY_MB where placement has none yet.", 1.0),
    _ratio("initial_disk_allocation_ratio", "Overcommit of DISK_GB where placement has none yet.", 1.0),
)

_COMPUTE = (
    cfg.Opt(
        "cpu_shared_set",
        type=CpuSet(),
        help="Host CPUs for guests that share CPUs (VCPU). Unset: all, or none with cpu_dedicated_set.",
    ),
    cfg.Opt("cpu_dedicated_set", type=CpuSet(), help="Host CPUs for guests with CPUs of their own (PCPU)."),
    cfg.IntOpt(
        "resource_provider_association_refresh",
        default=300,
        min=0,
        max=HOURS_24_S,
        help="Seconds between two comparisons of placement with what was written there; 0 for never.",
    ),
    cfg.StrOpt(
        "provider_config_location",
        default=PROVIDER_CONFIG_LOCATION,
        help="The directory of provider config files (*.yaml, as nova has them): inventories and traits of "
        "the operator's own for the host's providers. Empty: none are read.",
    ),
)

_PCI = (
    cfg.MultiStrOpt(
        "alias",
        default=[],
        help="A name by which flavors ask for PCI devices (pci_passthrough:alias=NAME:COUNT), as JSON: name; "
        "vendor_id and product_id, or resource_class; device_type (type-PCI, type-PF, type-VF), numa_policy "
        "(required, preferred, legacy, socket), traits, live_migratable. May be given many times.",
    ),
)

_PLACEMENT = (
    cfg.StrOpt(
        "kind",
        default="embedded",
        choices=[
            ("embedded", "the placement core inside the agent, in state_path"),
            ("remote", "an OpenStack Placement, found by the options below"),
        ],
        help="Which placement the agent reports to and claims from.",
    ),
    cfg.ListOpt(
        "serve",
        default=[],
        help="Where the embedded placement answers other Placement clients: unix:PATH, 127.0.0.1:8778, or an "
        "address off loopback, which needs the three options below. None: the agent alone uses it.",
    ),
    cfg.StrOpt(
        "serve_tokens",
        help="Who may call at an address of `serve`: a file of NAME ROLE[,ROLE][@PROJECT] TOKEN lines, mode "
        "0600 or a systemd credential.",
    ),
    cfg.StrOpt("serve_tls_cert", help="The certificate (and chain) for `serve`, PEM."),
    cfg.StrOpt("serve_tls_key", help="The key of serve_tls_cert, PEM."),
    cfg.StrOpt(
        "auth_type",
        default="password",
        help="How the agent proves to a remote placement who it is: a plug-in of keystoneauth, such as "
        "password, v3applicationcredential, admin_token, or none.",
    ),
    cfg.StrOpt("auth_url", help="Keystone's address."),
    cfg.StrOpt("endpoint_override", help="Placement's address, instead of what Keystone's catalog says."),
    cfg.StrOpt("region_name", help="The region of Keystone's catalog."),
    cfg.ListOpt(
        "valid_interfaces",
        default=["internal", "public"],
        help="Interfaces of the catalog, in order of preference.",
    ),
    cfg.IntOpt("timeout", default=15, min=1, max=600, help="Seconds after which a request is given up."),
    cfg.StrOpt("cafile", help="Certificates of the authorities that vouch for placement and Keystone."),
    cfg.BoolOpt("insecure", default=False, help="Believe servers without checking their certificates."),
    cfg.StrOpt("certfile", help="The agent's own certificate, where the servers ask for one."),
    cfg.StrOpt("keyfile", help="The key of certfile."),
    cfg.StrOpt("username", help="The agent's user."),
    cfg.StrOpt(
        "password",
        secret=True,
        help="The user's password, in a file of mode 0600; better LoadCredential=placement.password:PATH in "
        "the unit.",
    ),
    cfg.StrOpt("user_domain_name", default="Default", help="The domain of the user."),
    cfg.StrOpt("project_name", default="service", help="The project of the user."),
    cfg.StrOpt("project_domain_name", default="Default", help="The domain of the project."),
    cfg.StrOpt("token", secret=True, help="For auth_type admin_token; as with password."),
    cfg.StrOpt("application_credential_id", help="For auth_type v3applicationcredential."),
    cfg.StrOpt(
        "application_credential_secret",
        secret=True,
        help="For auth_type v3applicationcredential; as with password.",
    ),
)

_API = (
    cfg.StrOpt("socket", default="/run/plimsoll/plimsoll.sock", help="The Unix socket of the local API."),
    cfg.ListOpt(
        "readers",
        sample_default="@plimsoll",
        help="Who may look: names of users, or @group. Unset: the group plimsoll, where there is one.",
    ),
    cfg.ListOpt("claimers", default=[], help="Who may also claim and release: names of users, or @group."),
    cfg.ListOpt("admins", default=[], help="Who may do all, beside root and the agent's own user."),
)

_HTTP = (
    cfg.ListOpt(
        "listen",
        default=[],
        help="Where the status page, the health checks and the metrics are served read-only to whoever can "
        "connect, such as 127.0.0.1:9464 or [::1]:9464; off loopback without the page. None: only the local "
        "API's socket has them.",
    ),
)

_AUDIT = (
    cfg.IntOpt(
        "interval",
        default=600,
        min=0,
        max=HOURS_24_S,
        help="Seconds between two audits of guests, claims and placement; 0 for never.",
    ),
    cfg.StrOpt(
        "heal",
        default="own",
        choices=[
            ("own", "what is provably this agent's own"),
            ("nothing", "findings are only told; `plimsoll audit --heal` heals"),
        ],
        help="What the audit heals by itself, once two audits running have found it.",
    ),
)

_LOG = (
    cfg.StrOpt(
        "level",
        default="info",
        choices=["debug", "info", "warning", "error"],
        help="The least severe line to write.",
    ),
    cfg.StrOpt(
        "format",
        default="auto",
        choices=[
            ("auto", "journald under systemd, logfmt elsewhere"),
            ("journald", "to the journal's own socket, each field by itself: journalctl CONSUMER=..."),
            ("journal", "one line a record, after the journal's <priority>"),
            ("logfmt", "time, level, logger and fields as key=value"),
            ("json", "one JSON object a line"),
        ],
        help="How lines are written to standard error.",
    ),
)

AGENT_OPTIONS: Options = {
    "DEFAULT": _DEFAULT,
    "compute": _COMPUTE,
    "pci": _PCI,
    "placement": _PLACEMENT,
    "api": _API,
    "http": _HTTP,
    "audit": _AUDIT,
    "log": _LOG,
}

NEED_RESTART: Mapping[str, frozenset[str]] = {
    "DEFAULT": frozenset(("host", "state_path", "compute_driver")),
    "placement": frozenset(option.dest for option in _PLACEMENT),
    "api": frozenset(option.dest for option in _API),
    "http": frozenset(option.dest for option in _HTTP),
}
"""What a reload cannot change: the process is built on it."""


def driver_classes() -> tuple[dict[str, type[Driver]], dict[str, str]]:
    """({name: class} of the installed drivers, {name: why} of those that do not load)."""
    loaded: dict[str, type[Driver]] = {}
    broken: dict[str, str] = {}
    for entry in importlib.metadata.entry_points(group=ENTRY_POINT_GROUP):
        try:
            found = entry.load()
        except (ImportError, AttributeError) as error:
            broken[entry.name] = str(error)
            continue
        if isinstance(found, type) and issubclass(found, Driver):
            loaded[entry.name] = found
        else:
            broken[entry.name] = f"{entry.value} is no subclass of agent.driver.Driver"
    return loaded, broken


def driver_class(name: str) -> type[Driver]:
    """Raises SettingsError for a driver that is not installed or does not load."""
    loaded, broken = driver_classes()
    if name in loaded:
        return loaded[name]
    if name in broken:
        raise SettingsError(
            f"The driver {name!r} of [DEFAULT] compute_driver does not load: {broken[name]}; install what it "
            "needs (for libvirt: python3-libvirt, or plimsoll[libvirt]) or choose another.",
            option="compute_driver",
            value=name,
        )
    raise SettingsError(
        f"[DEFAULT] compute_driver = {name} is not installed; installed are {', '.join(sorted(loaded))}.",
        option="compute_driver",
        value=name,
    )


def all_options(classes: Mapping[str, type[Driver]]) -> Options:
    """The agent's options and those of the drivers; where drivers share an option, the first one's stands."""
    merged: dict[str, dict[str, Any]] = {
        group: {option.dest: option for option in options} for group, options in AGENT_OPTIONS.items()
    }
    for name in sorted(classes):
        for group, options in classes[name].OPTIONS.items():
            for option in options:
                merged.setdefault(group, {}).setdefault(option.dest, option)
    return {group: tuple(options.values()) for group, options in merged.items()}


def is_pattern(group: str) -> bool:
    """ "mdev_<type>" stands for every group that begins with "mdev_"."""
    return group.endswith(">") and "<" in group


def options_of(group: str, options: Options) -> tuple[Any, ...] | None:
    """The options of a group that a file has, by its own name or by a pattern; None for no such."""
    if group in options and not is_pattern(group):
        return options[group]
    for pattern, declared in options.items():
        prefix = pattern.partition("<")[0]
        if is_pattern(pattern) and group.startswith(prefix) and len(group) > len(prefix):
            return declared
    return None


def with_groups(options: Options, groups: Iterable[str]) -> Options:
    """The options with those of `groups` in the place of patterns."""
    found = {group: declared for group, declared in options.items() if not is_pattern(group)}
    for group in groups:
        declared = options_of(group, options)
        if declared is not None:
            found.setdefault(group, declared)
    return found


def allowed(option: Any) -> str:
    """What may stand in an option, as the end of a sentence."""
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
