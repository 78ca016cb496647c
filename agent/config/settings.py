"""The agent's settings: read and checked as a whole, and frozen. A failed reload leaves the running ones."""

import grp
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any
from urllib.parse import urlsplit

from agent.claims.choice import Strategy
from agent.claims.device_profiles import DeviceProfiles
from agent.claims.near_names import unknown_class, unknown_trait
from agent.claims.pci_alias import Aliases, parse_aliases
from agent.config import device_profile_file
from agent.config import provider_config_files as provider_config_files
from agent.config.access import Access
from agent.config.address import Address
from agent.config.files import MASK, Configured, Table, expand, read, unreadable
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
from agent.config.reserved_pages import parse_reserved_pages
from agent.cpuset import format_cpu_set
from agent.driver import Driver, DriverSettings, HostSettings
from agent.durable.files import is_there
from agent.errors import SettingsError
from agent.providers.caps import Caps, parse_caps
from agent.providers.owner import OWNER_TRAIT
from agent.providers.provider_config import ProviderConfig

DEFAULT_FILE = Path("/etc/plimsoll/plimsoll.conf")
DEFAULT_DIRECTORY = Path("/etc/plimsoll/conf.d")
READERS_GROUP = "plimsoll"

HOST_NAME_CHARS_MAX = 200
SOCKET_PATH_BYTES_MAX = 107
SAMPLE_WIDTH = 100


@dataclass(frozen=True, slots=True)
class PlacementSettings:
    """The group [placement].

    The `serve` options are for the embedded kind. All others except `kind` are for the remote kind, as in
    keystoneauth; `timeout` and the delays are seconds. `owner_trait` is for both.
    """

    kind: str = "embedded"
    owner_trait: str = OWNER_TRAIT
    serve: tuple[str, ...] = ()
    serve_tokens: str | None = None
    serve_tls_cert: str | None = None
    serve_tls_key: str | None = None
    auth_type: str = "password"
    auth_url: str | None = None
    endpoint_override: str | None = None
    region_name: str | None = None
    service_type: str = "placement"
    service_name: str | None = None
    valid_interfaces: tuple[str, ...] = ("internal", "public")
    timeout: int = 15
    cafile: str | None = None
    insecure: bool = False
    tls_ciphers: str | None = None
    tls_min_version: str | None = None
    certfile: str | None = None
    keyfile: str | None = None
    connect_retries: int = 0
    connect_retry_delay: float | None = None
    status_code_retries: int = 0
    status_code_retry_delay: float | None = None
    retriable_status_codes: tuple[int, ...] = (503,)
    split_loggers: bool = False
    username: str | None = None
    user_id: str | None = None
    password: str | None = field(default=None, repr=False)
    user_domain_name: str | None = "Default"
    user_domain_id: str | None = None
    project_name: str | None = "service"
    project_id: str | None = None
    project_domain_name: str | None = "Default"
    project_domain_id: str | None = None
    default_domain_id: str | None = None
    default_domain_name: str | None = None
    domain_id: str | None = None
    domain_name: str | None = None
    trust_id: str | None = None
    system_scope: str | None = None
    token: str | None = field(default=None, repr=False)
    application_credential_id: str | None = None
    application_credential_name: str | None = None
    application_credential_secret: str | None = field(default=None, repr=False)

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

    listen: tuple[Address, ...] = ()


@dataclass(frozen=True, slots=True)
class LogSettings:
    """The group [log]."""

    level: str = "info"
    format: str = "auto"


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
    pci_aliases: Aliases = field(default_factory=dict)
    device_profiles: DeviceProfiles = field(default_factory=dict)
    provider_config: ProviderConfig = field(default_factory=ProviderConfig)
    files: tuple[Path, ...] = ()
    table: Table = field(default_factory=dict, repr=False)

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
    default, compute = _values(table, "DEFAULT"), _values(table, "compute")
    settings = Settings(
        host=_host(default["host"]),
        state_path=_absolute("state_path", default["state_path"]),
        compute_driver=default["compute_driver"],
        update_resources_interval_s=default["update_resources_interval"],
        association_refresh_s=compute["resource_provider_association_refresh"],
        closed_disable_after_s=compute["closed_disable_after"],
        audit_interval_s=table["audit"]["interval"].value,
        audit_heal_own=table["audit"]["heal"].value == "own",
        claims_grow=table["claims"]["follow"].value == "grow",
        claims_strategy=_strategy(table["claims"]["strategy"].value),
        claim_missed=table["gate"]["claim_missed"].value,
        driver=_driver_settings(table),
        placement=PlacementSettings(**_values(table, "placement")),
        api=_api(_values(table, "api")),
        http=HttpSettings(tuple(map(Address.parse, table["http"]["listen"].value))),
        log=LogSettings(**_values(table, "log")),
        pci_aliases=parse_aliases(table["pci"]["alias"].value),
        device_profiles=_device_profiles(table["claims"]["device_profiles"].value),
        provider_config=replace(
            _provider_config(table["compute"]["provider_config_location"].value),
            caps=parse_caps(table["DEFAULT"]["cap"].value),
        ),
        files=files,
        table=table,
    )
    _check_cpus(settings.driver.host_settings)
    _check_addresses(settings)
    _check_placement(settings.placement)
    _check_caps(settings.provider_config.caps)
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
    return provider_config_files.load(directory, required=location != PROVIDER_CONFIG_LOCATION)


def _device_profiles(location: str) -> DeviceProfiles:
    return device_profile_file.load(_absolute("[claims] device_profiles", location)) if location else {}


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
        readers = (f"@{READERS_GROUP}",) if _group_exists(READERS_GROUP) else ()
    return ApiSettings(socket, Access.parse(readers, values["claimers"], values["admins"]))


def _group_exists(name: str) -> bool:
    try:
        grp.getgrnam(name)
    except KeyError:
        return False
    return True


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


def _check_caps(caps: Caps) -> None:
    for name, amount in caps.items():
        unknown = unknown_class(name)
        if unknown:
            raise SettingsError(
                f"[DEFAULT] cap = {name}={amount}: {unknown}", group="DEFAULT", option="cap", value=name
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
    missing = [name for name in needed if not getattr(placement, name)]
    if missing:
        raise SettingsError(
            f"[placement] kind = remote, auth_type = {placement.auth_type} needs {' and '.join(missing)}; "
            "set it (a secret by LoadCredential=placement.OPTION), or use kind = embedded.",
            group="placement",
            option=missing[0],
        )
    for name in ("auth_url", "endpoint_override"):
        if _has_password(getattr(placement, name)):
            raise SettingsError(
                f"[placement] {name} contains a password, which error messages would show: remove it, "
                "and use username and password.",
                group="placement",
                option=name,
            )
        _check_url(name, getattr(placement, name))
    if bool(placement.certfile) != bool(placement.keyfile):
        raise SettingsError(
            "[placement] certfile and keyfile belong together; set both or neither.",
            group="placement",
            option="certfile",
        )


def _check_url(option: str, url: str | None) -> None:
    """Raises SettingsError where the value cannot be a URL of an HTTP service."""
    if not url:
        return
    try:
        parts = urlsplit(url)
        is_good = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # a port that is none, brackets
        is_good = False
    if not is_good:
        shown = MASK if "@" in url else url
        raise SettingsError(
            f"[placement] {option} = {shown} is no URL; write http:// or https://, a host, and a port of at "
            "most 65535, such as http://127.0.0.1:8778.",
            group="placement",
            option=option,
            value=shown,
        )


def _has_password(url: str | None) -> bool:
    try:
        return urlsplit(url or "").password is not None
    except ValueError:
        return False  # not a URL, which its user reports


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
        blocks.extend(_sample_option(option) for option in options)
    return "".join(blocks)


def _sample_option(option: Any) -> str:
    lines = textwrap.wrap(
        option.help or option.dest, SAMPLE_WIDTH, initial_indent="# ", subsequent_indent="# "
    )
    choices = getattr(option.type, "choices", None) or {}
    if any(choices.values()):
        lines.extend(f"#   {choice}: {meaning}" for choice, meaning in choices.items())
    elif allowed(option) != "text":
        lines.append(f"# Allowed: {allowed(option)}.")
    default = option.sample_default if option.sample_default is not None else option.default
    return "\n".join(("", *lines, f"#{option.dest} = {_sample_default(default)}".rstrip(), ""))


def _sample_default(default: Any) -> str:
    if default is None:
        return ""
    if isinstance(default, list):
        return ",".join(default)
    return str(default).lower() if isinstance(default, bool) else str(default)
