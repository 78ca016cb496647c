"""The agent's settings: read and checked as a whole, and frozen. A failed reload leaves the running ones.

They are shown with the origin of each value, and written: a sample of every option, or a proposal for a new
host, with the options that it needs, each with the reason.
"""

import grp
import re
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self
from urllib.parse import urlsplit

from agent.claims.choice import Strategy
from agent.claims.device_profiles import DeviceProfiles
from agent.claims.near_names import unknown_class, unknown_trait
from agent.claims.pci_alias import Aliases, parse_aliases
from agent.config.access import Access, Address
from agent.config.files import (
    MASK,
    Configured,
    Table,
    expand,
    load_device_profiles,
    load_provider_config,
    read,
    unreadable,
)
from agent.config.options import (
    NEED_RESTART,
    PROVIDER_CONFIG_LOCATION,
    Options,
    all_options,
    allowed,
    driver_class,
    driver_classes,
    is_pattern,
    with_groups,
)
from agent.cpuset import format_cpu_set
from agent.driver import Driver, DriverSettings, HostSettings, ReservedPages, Suggestion, Topology
from agent.durable.files import is_there
from agent.errors import SettingsError
from agent.providers.limits import parse_caps
from agent.providers.provider_config import ProviderConfig

DEFAULT_FILE = Path("/etc/plimsoll/plimsoll.conf")
DEFAULT_DIRECTORY = Path("/etc/plimsoll/conf.d")
READERS_GROUP = "plimsoll"
HOST_NAME_CHARS_MAX = 200
SOCKET_PATH_BYTES_MAX = 107
SAMPLE_WIDTH = 100
MEMORY_SHARE = 32
MEMORY_MIN_MB = 512
MEMORY_MAX_MB = 8192
PROPOSAL_HEAD = """# Proposed by `plimsoll init` for this host. `plimsoll config sample` shows every option;
# `plimsoll config validate` checks this file.
"""
_KIB_PER = {"": 1, "k": 1, "m": 1 << 10, "g": 1 << 20}
_SIZE = re.compile(r"([0-9]{1,9})\s*([kmg]?)(?:i?b)?", re.ASCII | re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class PlacementSettings:
    """The group [placement]: the options by which the agent itself decides, and all of them by name.

    The `serve` options are for the embedded kind. All others except `kind` are for the remote kind, as in
    keystoneauth; `timeout` and the delays are seconds. `owner_trait` is for both.
    """

    kind: str
    owner_trait: str
    serve: tuple[str, ...]
    auth_type: str
    auth_url: str | None
    endpoint_override: str | None
    region_name: str | None
    options: Mapping[str, Any] = field(repr=False)

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> Self:
        """From the values of all options of the group."""
        own = {each.name: options[each.name] for each in fields(cls) if each.name != "options"}
        return cls(**own, options=options)

    @property
    def shared_owner_trait(self) -> str | None:
        """The owner's trait, if others can read this Placement; None: no trait."""
        return self.owner_trait if self.owner_trait and (self.kind == "remote" or self.serve) else None


@dataclass(frozen=True, slots=True)
class ApiSettings:
    """The group [api]; `access` has the user and group ids of now."""

    socket: Path
    access: Access


@dataclass(frozen=True, slots=True)
class HttpSettings:
    """The group [http]."""

    listen: tuple[Address, ...]


@dataclass(frozen=True, slots=True)
class LogSettings:
    """The group [log]."""

    level: str
    format: str


@dataclass(frozen=True, slots=True)
class Settings:
    """All settings. Intervals are seconds; 0 of `association_refresh_s`, `closed_disable_after_s` and
    `audit_interval_s` is never."""

    host: str
    state_path: Path
    compute_driver: str
    update_resources_interval_s: int
    association_refresh_s: int
    closed_disable_after_s: int
    audit_interval_s: int
    audit_heal_own: bool
    claims_grow: bool
    claims_strategy: Strategy
    claim_missed: bool
    driver: DriverSettings
    placement: PlacementSettings
    api: ApiSettings
    http: HttpSettings
    log: LogSettings
    pci_aliases: Aliases
    device_profiles: DeviceProfiles
    provider_config: ProviderConfig
    files: tuple[Path, ...]
    table: Table = field(repr=False)

    @property
    def secrets(self) -> frozenset[str]:
        """The values that no output may show."""
        return frozenset(
            item.value
            for options in self.table.values()
            for item in options.values()
            if item.secret and item.value
        )


@dataclass(frozen=True, slots=True)
class DriverChoice:
    """The name of the driver's class, its settings, and the files that say anything in its groups."""

    compute_driver: str
    driver: DriverSettings
    origins: tuple[Path, ...]


def load(config_files: Sequence[Path] = (), config_dirs: Sequence[Path] = ()) -> Settings:
    """Read and check the settings.

    Without arguments, reads /etc/plimsoll/plimsoll.conf and conf.d if they exist. Raises SettingsError; a
    running agent is not affected.
    """
    table, files = _read(config_files, config_dirs)
    return build(table, files)


def load_driver(config_files: Sequence[Path] = (), config_dirs: Sequence[Path] = ()) -> DriverChoice:
    """The driver alone, for a process that is given no secrets; files as for `load`. Raises SettingsError."""
    table, files = _read(config_files, config_dirs)
    default = _values(table, "DEFAULT")
    groups = with_groups(driver_class(default["compute_driver"]).OPTIONS, table)
    said = {item.origin for group in groups for item in table[group].values()}
    origins = tuple(path for path in files if str(path) in said)
    return DriverChoice(default["compute_driver"], _driver_settings(table), origins)


def read_only_driver(settings: Settings) -> Driver:
    """The driver, which keeps nothing and changes nothing; to be closed. Raises SettingsError."""
    driver = driver_class(settings.compute_driver)
    return driver.create(replace(settings.driver, state_path=None, read_only=True))


def _read(config_files: Sequence[Path], config_dirs: Sequence[Path]) -> tuple[Table, tuple[Path, ...]]:
    files, directories = tuple(config_files), tuple(config_dirs)
    if not files and not directories:
        try:
            files = (DEFAULT_FILE,) if is_there(DEFAULT_FILE) else ()
            directories = (DEFAULT_DIRECTORY,) if is_there(DEFAULT_DIRECTORY) else ()
        except OSError as error:  # only root and the agent's group may read the package's file
            raise unreadable("file", DEFAULT_FILE, error) from error
    files = expand(files, directories)
    return read(files, all_options(driver_classes()[0])), files


def build(table: Table, files: tuple[Path, ...] = ()) -> Settings:
    """Settings from values that are valid each. Raises SettingsError where two contradict each other."""
    default, compute, claims = (_values(table, group) for group in ("DEFAULT", "compute", "claims"))
    profiles = claims["device_profiles"]
    settings = Settings(
        host=_host(default["host"]),
        state_path=_absolute("state_path", default["state_path"]),
        compute_driver=default["compute_driver"],
        update_resources_interval_s=default["update_resources_interval"],
        association_refresh_s=compute["resource_provider_association_refresh"],
        closed_disable_after_s=compute["closed_disable_after"],
        audit_interval_s=table["audit"]["interval"].value,
        audit_heal_own=table["audit"]["heal"].value == "own",
        claims_grow=claims["follow"] == "grow",
        claims_strategy=_strategy(claims["strategy"]),
        claim_missed=table["gate"]["claim_missed"].value,
        driver=_driver_settings(table),
        placement=PlacementSettings.of(_values(table, "placement")),
        api=_api(_values(table, "api")),
        http=HttpSettings(tuple(map(Address.parse, table["http"]["listen"].value))),
        log=LogSettings(**_values(table, "log")),
        pci_aliases=parse_aliases(table["pci"]["alias"].value),
        device_profiles=load_device_profiles(_absolute("[claims] device_profiles", profiles))
        if profiles
        else {},
        provider_config=replace(
            _provider_config(compute["provider_config_location"]), caps=parse_caps(default["cap"])
        ),
        files=files,
        table=table,
    )
    _check_cpus(settings.driver.host_settings)
    _check_addresses(settings)
    _check_placement(settings.placement)
    caps = settings.provider_config.caps
    for name, amount in caps.items():
        unknown = unknown_class(name)
        if unknown:
            raise SettingsError(
                f"[DEFAULT] cap = {name}={amount}: {unknown}", group="DEFAULT", option="cap", value=name
            )
    return settings


def _driver_settings(table: Table) -> DriverSettings:
    default = _values(table, "DEFAULT")
    values = {**default, **_values(table, "compute")}
    values["reserved_huge_pages"] = parse_reserved_pages(values["reserved_huge_pages"])
    groups = with_groups(driver_class(default["compute_driver"]).OPTIONS, table)
    return DriverSettings(
        host=default["host"],
        host_settings=HostSettings(**{option.name: values[option.name] for option in fields(HostSettings)}),
        options=MappingProxyType(
            {group: MappingProxyType(values) for group, values in values_of(table, groups).items()}
        ),
        state_path=_absolute("state_path", default["state_path"]),
    )


def parse_reserved_pages(texts: Iterable[str]) -> tuple[ReservedPages, ...]:
    """The pages of the option's texts; blank ones are ignored. Raises SettingsError."""
    reserved = []
    for text in filter(str.strip, texts):
        parts = dict(part.strip().split(":", 1) for part in text.split(",") if ":" in part)
        size = _SIZE.fullmatch(parts.get("size", "").strip())
        node, count = (parts.get(key, "").strip() for key in ("node", "count"))
        is_whole = all(re.fullmatch("[0-9]{1,9}", number) for number in (node, count))
        if parts.keys() != {"node", "size", "count"} or size is None or not is_whole:
            raise SettingsError(
                f"[DEFAULT] reserved_huge_pages = {text} is not node:N,size:SIZE,count:N, such as "
                "node:0,size:2048,count:64 (the size in KiB, or as 1GB).",
                group="DEFAULT",
                option="reserved_huge_pages",
            )
        reserved.append(ReservedPages(int(node), int(size[1]) * _KIB_PER[size[2].lower()], int(count)))
    return tuple(reserved)


def values_of(table: Table, groups: Options) -> dict[str, dict[str, Any]]:
    """{group: {option: value}} of these groups' options."""
    return {
        group: {option.dest: table[group][option.dest].value for option in options}
        for group, options in groups.items()
    }


def _values(table: Table, group: str) -> dict[str, Any]:
    return {option: configured.value for option, configured in table[group].items()}


def _provider_config(location: str) -> ProviderConfig:
    """The provider config files of the directory; only the default directory may be missing."""
    if not location:
        return ProviderConfig()
    directory = _absolute("[compute] provider_config_location", location)
    return load_provider_config(directory, required=location != PROVIDER_CONFIG_LOCATION)


def _host(name: str) -> str:
    if not 1 <= len(name) <= HOST_NAME_CHARS_MAX or not name.isprintable() or name.split() != [name]:
        raise SettingsError(
            f"[DEFAULT] host = {name!r} is not allowed; a host's name has 1 to {HOST_NAME_CHARS_MAX} "
            "printable characters and no blanks.",
            group="DEFAULT",
            option="host",
            value=name,
        )
    return name


def _absolute(option: str, value: str) -> Path:
    path = Path(value)
    if not path.is_absolute():
        raise SettingsError(
            f"{option} = {value} must be an absolute path, such as /var/lib/plimsoll.",
            option=option,
            value=value,
        )
    return path


def _strategy(words: Sequence[str]) -> Strategy:
    try:
        strategy = Strategy.parse(words)
        unknown = next(filter(None, map(unknown_class, strategy.by_class)), None)
        if unknown:
            raise ValueError(unknown.rstrip("?."))
        return strategy
    except ValueError as error:
        value = ", ".join(words)
        raise SettingsError(
            f"[claims] strategy = {value} is not allowed: {error}; write for example `pack, VGPU:spread`.",
            group="claims",
            option="strategy",
            value=value,
        ) from error


def _api(values: Mapping[str, Any]) -> ApiSettings:
    socket = _absolute("socket", values["socket"])
    if len(bytes(socket)) > SOCKET_PATH_BYTES_MAX:
        raise SettingsError(
            f"[api] socket = {socket} is too long; its path has {SOCKET_PATH_BYTES_MAX} bytes at most.",
            group="api",
            option="socket",
            value=str(socket),
        )
    readers = values["readers"]
    if readers is None:
        readers = ()
        with suppress(KeyError):  # there is no such group
            grp.getgrnam(READERS_GROUP)
            readers = (f"@{READERS_GROUP}",)
    return ApiSettings(socket, Access.parse(readers, values["claimers"], values["admins"]))


def _check_cpus(host: HostSettings) -> None:
    both = (host.cpu_shared_set or frozenset()) & (host.cpu_dedicated_set or frozenset())
    if both:
        raise SettingsError(
            f"[compute] cpu_shared_set and cpu_dedicated_set both name CPU {format_cpu_set(both)}; "
            "a CPU is either shared or dedicated; remove it from one of them.",
            group="compute",
            option="cpu_dedicated_set",
        )
    if host.reserved_host_cpus and host.cpu_dedicated_set and host.cpu_shared_set is None:
        raise SettingsError(
            f"[DEFAULT] reserved_host_cpus = {host.reserved_host_cpus} has no effect, because all CPUs for "
            "guests are dedicated; leave CPUs out of [compute] cpu_dedicated_set instead.",
            group="DEFAULT",
            option="reserved_host_cpus",
        )


def _check_addresses(settings: Settings) -> None:
    """Raises SettingsError where two servers of the agent would have the same address."""
    serve = settings.placement.serve
    listen = [str(address) for address in settings.http.listen]
    if f"unix:{settings.api.socket}" in serve:
        raise SettingsError(
            f"[placement] serve and [api] socket are both {settings.api.socket}; give one of them another "
            "path.",
            group="placement",
            option="serve",
        )
    for option, texts in (("[placement] serve", serve), ("[http] listen", listen)):
        twice = next((text for text in texts if texts.count(text) > 1 and not text.endswith(":0")), None)
        if twice:
            raise SettingsError(f"{option} names {twice} twice; remove one of them.")
    both = next((text for text in listen if text in map(_same_form, serve) and not text.endswith(":0")), None)
    if both:
        raise SettingsError(
            f"[placement] serve and [http] listen are both {both}; give one of them another port.",
            group="http",
            option="listen",
        )


def _same_form(address: str) -> str:
    """An address of [placement] serve as [http] listen writes it."""
    try:
        return str(Address.parse(address))
    except SettingsError:
        return address


def _check_placement(placement: PlacementSettings) -> None:
    unknown = placement.owner_trait and unknown_trait(placement.owner_trait)
    if unknown:
        raise SettingsError(
            f"[placement] owner_trait: {unknown}",
            group="placement",
            option="owner_trait",
            value=placement.owner_trait,
        )
    if placement.kind != "remote":
        return
    if placement.serve:
        raise SettingsError(
            f"[placement] serve = {','.join(placement.serve)} is for kind = embedded: a remote Placement has "
            "its own server. Remove the option.",
            group="placement",
            option="serve",
        )
    needed = {
        "password": ("auth_url", "username", "password"),
        "v3applicationcredential": ("auth_url", "application_credential_id", "application_credential_secret"),
        "admin_token": ("endpoint_override", "token"),
        "none": ("endpoint_override",),
    }.get(placement.auth_type, ())
    missing = [name for name in needed if not placement.options[name]]
    if missing:
        raise SettingsError(
            f"[placement] kind = remote, auth_type = {placement.auth_type} needs {' and '.join(missing)}; "
            "set it (a secret by LoadCredential=placement.OPTION), or use kind = embedded.",
            group="placement",
            option=missing[0],
        )
    for name in ("auth_url", "endpoint_override"):
        _check_url(name, placement.options[name])
    if bool(placement.options["certfile"]) != bool(placement.options["keyfile"]):
        raise SettingsError(
            "[placement] certfile and keyfile belong together; set both or neither.",
            group="placement",
            option="certfile",
        )


def _check_url(option: str, url: str | None) -> None:
    """Raises SettingsError where the value cannot be a URL of an HTTP service, or has a password."""
    if not url:
        return
    has_password = is_good = False
    with suppress(ValueError):  # a port that is none, brackets
        parts = urlsplit(url)
        has_password = parts.password is not None
        is_good = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    if has_password:
        raise SettingsError(
            f"[placement] {option} contains a password, which error messages would show: remove it, "
            "and use username and password.",
            group="placement",
            option=option,
        )
    if not is_good:
        shown = MASK if "@" in url else url
        raise SettingsError(
            f"[placement] {option} = {shown} is no URL; write http:// or https://, a host, and a port of at "
            "most 65535, such as http://127.0.0.1:8778.",
            group="placement",
            option=option,
            value=shown,
        )


def describe(settings: Settings) -> dict[str, dict[str, dict[str, Any]]]:
    """JSON-ready {group: {option: {value, origin}}}, with secrets masked."""
    return {
        group: {
            option: {
                "value": MASK if item.secret and item.value else _plain(item.value),
                "origin": item.origin,
            }
            for option, item in options.items()
        }
        for group, options in settings.table.items()
    }


def _plain(value: Any) -> Any:
    if isinstance(value, frozenset):
        return format_cpu_set(value)
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    return value


@dataclass(frozen=True, slots=True)
class Reloaded:
    """The result of a reload: `changed` options are in force, those of `restart` need a restart.

    Each is "[group] option".
    """

    settings: Settings
    changed: tuple[str, ...]
    restart: tuple[str, ...]


def reload(
    running: Settings, config_files: Sequence[Path] = (), config_dirs: Sequence[Path] = ()
) -> Reloaded:
    """Load the settings again, but keep those that need a restart. Raises SettingsError."""
    wanted = load(config_files, config_dirs)
    table: dict[str, Mapping[str, Configured]] = {}
    changed: list[str] = []
    restart: list[str] = []
    for group, options in wanted.table.items():
        merged = dict(options)
        for option, new in options.items():
            old = running.table.get(group, {}).get(option)
            if old is None:  # the group is new in the file
                changed.extend([f"[{group}] {option}"] if new.origin != "default" else [])
                continue
            if option in NEED_RESTART.get(group, ()):
                merged[option] = old
            if old.value != new.value:
                (restart if option in NEED_RESTART.get(group, ()) else changed).append(f"[{group}] {option}")
        table[group] = merged
    changed.extend(f"[{group}]" for group in running.table if group not in wanted.table)
    settings = build(table, wanted.files)
    if settings.provider_config != running.provider_config:
        changed.append("the provider config files")
    if settings.device_profiles != running.device_profiles:
        changed.append("the device profiles")
    return Reloaded(settings, tuple(changed), tuple(restart))


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
