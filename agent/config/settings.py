"""The agent's settings: read and checked as a whole, and frozen. A failed reload leaves the running ones.

They are shown with the origin of each value. oslo.config ignores a misspelt option, and finds a bad value
only when a program reads it. So each reading makes a new ConfigOpts, reads every option once, and rejects
unknown ones; it reads the files that options name as well. A `Reading` opens each file once, so that what is
judged is what is used, also while another process writes the file. Source:
https://docs.openstack.org/oslo.config/latest/reference/
"""

import difflib
import grp
import io
import os
import re
import stat
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, NoReturn, Self
from urllib.parse import urlsplit

from oslo_config import cfg, iniparser

from agent.claims.choice import Strategy
from agent.claims.device_profiles import DeviceProfiles, parse_device_profiles
from agent.claims.near_names import unknown_class, unknown_trait
from agent.claims.pci_alias import Aliases, parse_aliases
from agent.config.access import Access, Address
from agent.config.options import (
    NEED_RESTART,
    PROVIDER_CONFIG_LOCATION,
    Options,
    all_options,
    allowed,
    driver_class,
    driver_classes,
    names_of,
    options_of,
    why_refused,
    with_groups,
)
from agent.cpuset import format_cpu_set
from agent.driver import Driver, DriverSettings, HostSettings, ReservedPages
from agent.durable.files import is_there
from agent.errors import SettingsError, counted
from agent.placement.transport import addresses_of
from agent.providers.limits import parse_caps
from agent.providers.provider_config import ProviderConfig, ProviderEntry, merge_entries, parse_provider_file
from agent.strict_text import FILE_BYTES_MAX

DEFAULT_FILE = Path("/etc/plimsoll/plimsoll.conf")
DEFAULT_DIRECTORY = Path("/etc/plimsoll/conf.d")
READERS_GROUP = "plimsoll"
HOST_NAME_CHARS_MAX = 200
SOCKET_PATH_BYTES_MAX = 107
MASK = "***"
STORES = (
    Path("/run/credentials/plimsoll-agent.service"),
    Path("/etc/credstore"),
    Path("/run/credstore"),
    Path("/usr/lib/credstore"),
)
"""The directories of the service's credentials: of the running service, and for its next start."""
FILES_MAX = 64
SETTLED_S = 0.25
"""A reload takes files that no program has written to for so long."""
UNSETTLED_MAX_S = 3.0
"""A reload waits so long for files that are being written."""
Sections = Mapping[str, Mapping[str, list[str]]]
_KIB_PER = {"": 1, "k": 1, "m": 1 << 10, "g": 1 << 20}
_SIZE = re.compile(r"([0-9]{1,9})\s*([kmg]?)(?:i?b)?", re.ASCII | re.IGNORECASE)


# The files


class Reading:
    """The files and directories of one load or reload. Each is read once, and has that content from then on.

    That is also so for one that cannot be read: it has its error.
    """

    def __init__(self) -> None:
        self._contents: dict[Path, bytes | OSError] = {}
        self._names: dict[Path, list[Path] | OSError] = {}
        self._modes: dict[Path, int] = {}
        self._unsettled: Path | None = None

    @property
    def unsettled(self) -> Path | None:
        """A file or directory that was written to within SETTLED_S before it was read, or meanwhile."""
        return self._unsettled

    def content(self, path: Path, size: int = -1) -> bytes:
        """The first `size` bytes of the file, by default all. Raises OSError."""
        if path not in self._contents:
            try:
                with path.open("rb") as file:
                    before = os.fstat(file.fileno())
                    self._contents[path] = file.read(size)
                    self._settle(path, before, os.fstat(file.fileno()))
                self._modes[path] = stat.S_IMODE(before.st_mode)
            except OSError as error:
                self._contents[path] = error
        content = self._contents[path]
        if isinstance(content, OSError):
            raise content
        return content

    def names(self, directory: Path, pattern: str) -> list[Path]:
        """The directory's paths that match, in the order of names. Raises OSError.

        Hidden files, which editors leave, are skipped.
        """
        if directory not in self._names:
            try:
                before = directory.stat()
                self._names[directory] = sorted(directory.iterdir())
                self._settle(directory, before, directory.stat())
            except OSError as error:
                self._names[directory] = error
        paths = self._names[directory]
        if isinstance(paths, OSError):
            raise paths
        return [path for path in paths if path.match(f"[!.]{pattern}")]

    def mode(self, path: Path) -> int:
        """The permissions of a file that was read, as they were then."""
        return self._modes[path]

    def _settle(self, path: Path, before: os.stat_result, after: os.stat_result) -> None:
        is_written = (before.st_mtime_ns, before.st_size) != (after.st_mtime_ns, after.st_size)
        if is_written or abs(time.time() - after.st_mtime) < SETTLED_S:
            self._unsettled = path


@dataclass(frozen=True, slots=True)
class Configured:
    """One option's value; `origin` is "default", a file, "environment NAME" or "credential NAME or file"."""

    value: Any
    origin: str = "default"
    secret: bool = False

    def __repr__(self) -> str:
        return f"Configured({MASK if self.secret else self.value!r}, {self.origin!r})"


Table = Mapping[str, Mapping[str, Configured]]
"""{group: {option: Configured}}, with every option."""


def unreadable(kind: str, path: Path, error: OSError) -> SettingsError:
    """The error for a file or directory (`kind`) that cannot be read."""
    remedy = " Run the command as root or as the agent's user." if isinstance(error, PermissionError) else ""
    return SettingsError(
        f"The configuration {kind} {path} cannot be read: {error.strerror}.{remedy}", file=str(path)
    )


def read(files: Sequence[Path], options: Options, reading: Reading) -> Table:
    """Every option's value: environment over files, later files over earlier ones, files over defaults.

    Raises SettingsError with file, group, option, value and the allowed values.
    """
    parsed = [(path, _parse(path, reading)) for path in files]
    for path, sections in parsed:
        _check_known(path, sections, options)
    options = with_groups(options, (group for _, sections in parsed for group in sections))
    # Check that OS_<GROUP>__<OPTION> names an option, if it names one of the agent's groups.
    by_upper = {group.upper(): group for group in options}
    for variable in os.environ:
        group_part, separator, name = variable.removeprefix("OS_").partition("__")
        group = by_upper.get(group_part)
        if not variable.startswith("OS_") or not separator or group is None:
            continue
        known = [option.dest for option in options[group]]
        if name.lower() not in known:
            why = why_refused(group, name.lower())
            hint = f": {why}" if why else _nearest(name.lower(), known)
            raise SettingsError(
                f"The environment variable {variable} names no option of [{group}]{hint}.",
                file="environment",
                group=group,
                option=name.lower(),
            )
    conf: Any = cfg.ConfigOpts()
    for group, declared in options.items():
        conf.register_opts(declared, group=None if group == "DEFAULT" else group)
    try:
        conf(args=[], project="plimsoll", default_config_files=[], default_config_dirs=[])
    except cfg.Error as error:
        raise SettingsError(f"The configuration cannot be used: {error}.") from error
    for path, sections in parsed:
        # oslo.config itself would open the file again, which may say something else by now.
        conf._namespace._add_parsed_config_file(str(path), sections, sections)
    return MappingProxyType(
        {
            group: MappingProxyType(
                {option.dest: _value(conf, group, option, parsed, reading) for option in declared}
            )
            for group, declared in options.items()
        }
    )


def _parse(path: Path, reading: Reading) -> Sections:
    sections: dict[str, dict[str, list[str]]] = {}
    try:
        lines = io.StringIO(reading.content(path).decode("utf-8"), newline=None).readlines()
        iniparser.BaseParser.parse(cfg.ConfigParser(str(path), sections), lines)
    except OSError as error:
        raise unreadable("file", path, error) from error
    except UnicodeDecodeError as error:
        raise SettingsError(f"The configuration file {path} is not UTF-8 text.", file=str(path)) from error
    except cfg.ParseError as error:
        # Without the line itself, which may contain a secret. An option without a section is noticed in the
        # line behind the option: it is the first line with one.
        line = error.lineno
        if not error.line:
            numbered = enumerate(lines, start=1)
            line = next(number for number, text in numbered if text.strip() and text[0] not in "#;")
        raise SettingsError(
            f"The configuration file {path} has an error in line {line}: {error.msg}.",
            file=str(path),
            line=line,
        ) from error
    merged: dict[str, dict[str, list[str]]] = {}
    for name, assignments in sections.items():
        group = merged.setdefault("DEFAULT" if name.upper() == "DEFAULT" else name.lower(), {})
        for option, values in assignments.items():
            group.setdefault(option, []).extend(values)
    return merged


def _check_known(path: Path, sections: Sections, options: Options) -> None:
    for group, assignments in sections.items():
        declared = options_of(group, options)
        if declared is None:
            of_nova = next((name for name in assignments if why_refused(group, name)), None)
            if of_nova:
                _refuse_unknown(path, group, of_nova, options)
            raise SettingsError(
                f"{path}: there is no group [{group}]{_nearest(group, options)}.", file=str(path), group=group
            )
        for option in declared:
            count = sum(len(assignments.get(name, ())) for name in names_of(option))
            if count > 1 and not option.multi:
                raise SettingsError(
                    f"{path}: [{group}] {option.dest} is given {counted(count, 'time')}; remove all lines "
                    "but one.",
                    file=str(path),
                    group=group,
                    option=option.dest,
                )
        known = {name for option in declared for name in names_of(option)}
        for name in assignments:
            if name not in known:
                _refuse_unknown(path, group, name, options)


def _refuse_unknown(path: Path, group: str, name: str, options: Options) -> NoReturn:
    """Raises SettingsError with what is wrong with an option that the group does not have."""
    why = why_refused(group, name)
    if why:
        fault = f"{name} is of no use here: {why}"
    else:
        others = (other for other, declared in options.items() if name in {each.dest for each in declared})
        belongs = next(others, None)
        near = _nearest(name, [option.dest for option in options_of(group, options) or ()])
        fault = f"has no option {name!r}{near if belongs is None else f'; it belongs to [{belongs}]'}"
    raise SettingsError(f"{path}: [{group}] {fault}.", file=str(path), group=group, option=name)


def _nearest(name: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(name, list(known), n=1)
    return f"; the nearest one is {close[0]!r}" if close else ""


def _value(
    conf: Any, group: str, option: Any, parsed: Sequence[tuple[Path, Sections]], reading: Reading
) -> Configured:
    origin, text = _source(group, option, parsed)
    try:
        value = conf[option.dest] if group == "DEFAULT" else conf[group][option.dest]
    except ValueError as error:
        if text.strip() or option.default is not None:
            _refuse(group, option, origin, text, str(error).rpartition("is not valid: ")[2])
        value = None
    except cfg.Error as error:
        _refuse(group, option, origin, text, str(error), ", where $$ stands for a dollar sign")
    if value == "" and option.default is None:
        value = None  # "option =" in a file leaves it unset
    if value is None and option.secret:
        # A secret from a systemd credential (LoadCredential=GROUP.OPTION), else None. A command that an
        # operator runs finds it in the service's directories, if it may read them.
        # Source: https://systemd.io/CREDENTIALS/
        name = f"{group}.{option.dest}"
        own_directory = os.environ.get("CREDENTIALS_DIRECTORY")
        directories = [Path(own_directory)] if own_directory else STORES
        for path in (directory / name for directory in directories):
            try:
                text = path.read_text(encoding="utf-8")
            except FileNotFoundError:
                continue
            except (OSError, UnicodeDecodeError) as error:
                if not own_directory and isinstance(error, PermissionError):
                    continue
                raise SettingsError(
                    f"The credential {name} cannot be read: {error}.", group=group, option=option.dest
                ) from error
            origin = f"credential {name}" if own_directory else f"credential {path}"
            return Configured(text.removesuffix("\n"), origin, True)
        return Configured(None, "default", True)
    if option.secret:
        _check_secrecy(group, option, origin, reading)
    return Configured(_frozen(value), origin, bool(option.secret))


def _source(group: str, option: Any, parsed: Sequence[tuple[Path, Sections]]) -> tuple[str, str]:
    """The origin of the value, and the text that it has there."""
    variable = f"OS_{group.upper()}__{option.dest.upper()}"
    if variable in os.environ:
        return f"environment {variable}", os.environ[variable]
    for path, sections in reversed(parsed):
        assignments = sections.get(group, {})
        texts = [assignments[name][-1] for name in names_of(option) if name in assignments]
        if texts:
            return str(path), texts[-1]
    return "default", str(option.default)


def _refuse(group: str, option: Any, origin: str, text: str, why: str, hint: str = "") -> NoReturn:
    shown = MASK if option.secret else text
    reason = "" if option.secret else f" ({why.rstrip('.')})"
    raise SettingsError(
        f"{origin}: [{group}] {option.dest} = {shown} is not allowed{reason}; "
        f"allowed is {allowed(option)}{hint}.",
        file=origin,
        group=group,
        option=option.dest,
        value=shown,
        allowed=allowed(option),
    )


def _check_secrecy(group: str, option: Any, origin: str, reading: Reading) -> None:
    """Raises SettingsError where other users may read the secret."""
    name = f"{group}.{option.dest}"
    better = f"better, remove it and use a systemd credential (LoadCredential={name}:PATH)"
    if origin.startswith("environment "):
        why, remedy = "other users can see a service's environment (systemctl show)", better
    else:
        mode = reading.mode(Path(origin))
        if not mode & (stat.S_IRWXG | stat.S_IRWXO):
            return
        why = f"other users may open that file (mode {mode:04o})"
        remedy = f"make it the agent's user's, with mode 0600; {better}"
    raise SettingsError(
        f"{origin}: [{group}] {option.dest} is a secret, and {why}: {remedy}.",
        file=origin,
        group=group,
        option=option.dest,
    )


def _frozen(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(_frozen(item) for item in value)
    if isinstance(value, dict):
        return MappingProxyType({key: _frozen(item) for key, item in value.items()})
    return value


def load_provider_config(
    directory: Path, *, required: bool, reading: Reading | None = None
) -> ProviderConfig:
    """The entries of the directory's *.yaml files, in the order of the file names, as nova reads them.

    Hidden files, which editors leave, are skipped. Without `required`, a missing directory counts as empty.
    Raises SettingsError with file and key.
    """
    reading = reading or Reading()
    try:
        files = reading.names(directory, "*.yaml")
    except OSError as error:
        if isinstance(error, FileNotFoundError) and not required:
            return ProviderConfig()
        raise SettingsError(
            f"[compute] provider_config_location = {directory} cannot be read: {error.strerror}; create "
            "it, readable for the agent, or remove the option.",
            file=str(directory),
            group="compute",
            option="provider_config_location",
        ) from error
    if len(files) > FILES_MAX:
        raise SettingsError(
            f"{directory} has {len(files)} provider config files; at most {FILES_MAX} are allowed.",
            file=str(directory),
        )
    entries: list[ProviderEntry] = []
    for path in files:
        try:
            content = reading.content(path, FILE_BYTES_MAX + 1)
        except OSError as error:
            raise SettingsError(
                f"The provider config file {path} cannot be read: {error.strerror}.", file=str(path)
            ) from error
        entries.extend(parse_provider_file(content, str(path)))
    return merge_entries(entries)


def load_device_profiles(path: Path, reading: Reading | None = None) -> DeviceProfiles:
    """The profiles of the file. Raises SettingsError where it cannot be read or is invalid."""
    try:
        text = (reading or Reading()).content(path, FILE_BYTES_MAX + 1)
    except OSError as error:
        raise SettingsError(
            f"[claims] device_profiles = {path} cannot be read: {error.strerror}; create the file, readable "
            "for the agent, or remove the option.",
            file=str(path),
            group="claims",
            option="device_profiles",
        ) from error
    return parse_device_profiles(text, str(path))


# The settings


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

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> Self:
        """From the values of all options of the group. Raises SettingsError."""
        socket = _absolute("socket", options["socket"])
        if len(bytes(socket)) > SOCKET_PATH_BYTES_MAX:
            raise SettingsError(
                f"[api] socket = {socket} is too long; its path has {SOCKET_PATH_BYTES_MAX} bytes at most.",
                group="api",
                option="socket",
                value=str(socket),
            )
        readers = options["readers"]
        if readers is None:
            readers = ()
            with suppress(KeyError):  # there is no such group
                grp.getgrnam(READERS_GROUP)
                readers = (f"@{READERS_GROUP}",)
        return cls(socket, Access.parse(readers, options["claimers"], options["admins"]))


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
    http_listen: tuple[Address, ...]
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
    return _load(config_files, config_dirs, Reading())


def _load(config_files: Sequence[Path], config_dirs: Sequence[Path], reading: Reading) -> Settings:
    table, files = _read(config_files, config_dirs, reading)
    return build(table, files, reading)


def load_driver(config_files: Sequence[Path] = (), config_dirs: Sequence[Path] = ()) -> DriverChoice:
    """The driver alone, for a process that is given no secrets; files as for `load`. Raises SettingsError."""
    table, files = _read(config_files, config_dirs, Reading())
    default = _values(table, "DEFAULT")
    groups = with_groups(driver_class(default["compute_driver"]).OPTIONS, table)
    said = {item.origin for group in groups for item in table[group].values()}
    origins = tuple(path for path in files if str(path) in said)
    return DriverChoice(default["compute_driver"], _driver_settings(table), origins)


def read_only_driver(settings: Settings) -> Driver:
    """The driver, which keeps nothing and changes nothing; to be closed. Raises SettingsError."""
    driver = driver_class(settings.compute_driver)
    return driver.create(replace(settings.driver, state_path=None, read_only=True))


def _read(
    config_files: Sequence[Path], config_dirs: Sequence[Path], reading: Reading
) -> tuple[Table, tuple[Path, ...]]:
    """Every option's value, and the files: those named, then each directory's *.conf in the order of names.

    Hidden files, which editors leave, are skipped. Raises SettingsError also for a missing directory.
    """
    files, directories = list(config_files), tuple(config_dirs)
    if not files and not directories:
        try:
            files = [DEFAULT_FILE] if is_there(DEFAULT_FILE) else []
            directories = (DEFAULT_DIRECTORY,) if is_there(DEFAULT_DIRECTORY) else ()
        except OSError as error:  # only root and the agent's group may read the package's file
            raise unreadable("file", DEFAULT_FILE, error) from error
    for directory in directories:
        try:
            files.extend(reading.names(directory, "*.conf"))
        except OSError as error:
            raise unreadable("directory", directory, error) from error
    return read(files, all_options(driver_classes()[0]), reading), tuple(files)


def build(table: Table, files: tuple[Path, ...], reading: Reading) -> Settings:
    """Settings from values that are valid each. Raises SettingsError where two contradict each other."""
    default, compute, claims = (_values(table, group) for group in ("DEFAULT", "compute", "claims"))
    host, profiles, location = (
        default["host"],
        claims["device_profiles"],
        compute["provider_config_location"],
    )
    if not 1 <= len(host) <= HOST_NAME_CHARS_MAX or not host.isprintable() or host.split() != [host]:
        raise SettingsError(
            f"[DEFAULT] host = {host!r} is not allowed; a host's name has 1 to {HOST_NAME_CHARS_MAX} "
            "printable characters and no blanks.",
            group="DEFAULT",
            option="host",
            value=host,
        )
    provider_config = ProviderConfig()
    if location:
        directory = _absolute("[compute] provider_config_location", location)
        is_required = location != PROVIDER_CONFIG_LOCATION  # only the default directory may be missing
        provider_config = load_provider_config(directory, required=is_required, reading=reading)
    settings = Settings(
        host=host,
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
        api=ApiSettings.of(_values(table, "api")),
        http_listen=tuple(map(Address.parse, table["http"]["listen"].value)),
        log=LogSettings(**_values(table, "log")),
        pci_aliases=parse_aliases(table["pci"]["alias"].value),
        device_profiles=load_device_profiles(_absolute("[claims] device_profiles", profiles), reading)
        if profiles
        else {},
        provider_config=replace(provider_config, caps=parse_caps(default["cap"])),
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
    listen = [str(address) for address in settings.http_listen]
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
    _check_url("auth_url", placement.auth_url)
    for address in addresses_of(placement.endpoint_override) or (placement.endpoint_override,):
        _check_url("endpoint_override", address)
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
    wanted, reading = _load_settled(config_files, config_dirs)
    if not (config_files or config_dirs) and DEFAULT_FILE in set(running.files) - set(wanted.files):
        raise SettingsError(
            f"{DEFAULT_FILE} is gone: put it back, or restart the agent to use the defaults.",
            file=str(DEFAULT_FILE),
        )
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
    settings = build(table, wanted.files, reading)
    if settings.provider_config != running.provider_config:
        changed.append("the provider config files")
    if settings.device_profiles != running.device_profiles:
        changed.append("the device profiles")
    return Reloaded(settings, tuple(changed), tuple(restart))


def _load_settled(config_files: Sequence[Path], config_dirs: Sequence[Path]) -> tuple[Settings, Reading]:
    """The settings of files that are not being written meanwhile: a half of a file may be valid, too.

    Raises SettingsError, also where the writing does not end.
    """
    end = time.monotonic() + UNSETTLED_MAX_S
    while True:
        reading = Reading()
        try:
            wanted = _load(config_files, config_dirs, reading)
            if reading.unsettled is None:
                return wanted, reading
            if time.monotonic() >= end:
                raise SettingsError(
                    f"{reading.unsettled} is being written; reload again when that is done.",
                    file=str(reading.unsettled),
                )
        except SettingsError:
            if reading.unsettled is None or time.monotonic() >= end:
                raise
        time.sleep(SETTLED_S)
