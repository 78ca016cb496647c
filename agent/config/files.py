"""Reads configuration files to checked values, each with its origin, and the files that options name.

oslo.config ignores a misspelt option, and finds a bad value only when a program reads it. So each reading
makes a new ConfigOpts, reads every option once, and rejects unknown ones. Source:
https://docs.openstack.org/oslo.config/latest/reference/
"""

import difflib
import os
import stat
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, NoReturn

from oslo_config import cfg

from agent.claims.device_profiles import DeviceProfiles, parse_device_profiles
from agent.config.options import Options, allowed, names_of, options_of, why_refused, with_groups
from agent.errors import SettingsError, counted
from agent.providers.provider_config import (
    ProviderConfig,
    ProviderEntry,
    merge_entries,
    parse_provider_file,
)
from agent.strict_text import FILE_BYTES_MAX

MASK = "***"
STORES = (
    Path("/run/credentials/plimsoll-agent.service"),
    Path("/etc/credstore"),
    Path("/run/credstore"),
    Path("/usr/lib/credstore"),
)
"""The directories of the service's credentials: of the running service, and for its next start."""
FILES_MAX = 64
Sections = Mapping[str, Mapping[str, list[str]]]


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


def expand(files: Sequence[Path], directories: Sequence[Path]) -> tuple[Path, ...]:
    """The files, then each directory's *.conf files in the order of their names.

    Hidden files, which editors leave, are skipped. Raises SettingsError for a missing directory.
    """
    expanded = list(files)
    for directory in directories:
        try:
            expanded.extend(sorted(path for path in directory.iterdir() if path.match("[!.]*.conf")))
        except OSError as error:
            raise unreadable("directory", directory, error) from error
    return tuple(expanded)


def unreadable(kind: str, path: Path, error: OSError) -> SettingsError:
    """The error for a file or directory (`kind`) that cannot be read."""
    remedy = " Run the command as root or as the agent's user." if isinstance(error, PermissionError) else ""
    return SettingsError(
        f"The configuration {kind} {path} cannot be read: {error.strerror}.{remedy}", file=str(path)
    )


def read(files: Sequence[Path], options: Options) -> Table:
    """Every option's value: environment over files, later files over earlier ones, files over defaults.

    Raises SettingsError with file, group, option, value and the allowed values.
    """
    parsed = [(path, _parse(path)) for path in files]
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
    conf = cfg.ConfigOpts()
    for group, declared in options.items():
        conf.register_opts(declared, group=None if group == "DEFAULT" else group)
    try:
        conf(
            args=[],
            project="plimsoll",
            default_config_files=[str(path) for path in files],
            default_config_dirs=[],
        )
    except cfg.Error as error:
        raise SettingsError(f"The configuration cannot be used: {error}.") from error
    return MappingProxyType(
        {
            group: MappingProxyType({option.dest: _value(conf, group, option, parsed) for option in declared})
            for group, declared in options.items()
        }
    )


def _parse(path: Path) -> Sections:
    sections: dict[str, dict[str, list[str]]] = {}
    try:
        cfg.ConfigParser(str(path), sections).parse()
    except OSError as error:
        raise unreadable("file", path, error) from error
    except UnicodeDecodeError as error:
        raise SettingsError(f"The configuration file {path} is not UTF-8 text.", file=str(path)) from error
    except cfg.ParseError as error:
        # Without the line itself, which may contain a secret. An option without a section is noticed in the
        # line behind the option: it is the first line with one.
        line = error.lineno
        if not error.line:
            lines = enumerate(path.read_text(encoding="utf-8").splitlines(), start=1)
            line = next(number for number, text in lines if text.strip() and text[0] not in "#;")
        raise SettingsError(
            f"The configuration file {path} has an error in line {line}: {error.msg}.",
            file=str(path),
            line=line,
        ) from error
    merged: dict[str, dict[str, list[str]]] = {}
    for name, assignments in sections.items():
        for option, values in assignments.items():
            merged.setdefault(_group_name(name), {}).setdefault(option, []).extend(values)
        merged.setdefault(_group_name(name), {})
    return merged


def _group_name(name: str) -> str:
    return "DEFAULT" if name.upper() == "DEFAULT" else name.lower()


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


def _value(conf: Any, group: str, option: Any, parsed: Sequence[tuple[Path, Sections]]) -> Configured:
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
        _check_secrecy(group, option, origin)
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


def _check_secrecy(group: str, option: Any, origin: str) -> None:
    """Raises SettingsError where other users may read the secret."""
    name = f"{group}.{option.dest}"
    better = f"better, remove it and use a systemd credential (LoadCredential={name}:PATH)"
    if origin.startswith("environment "):
        why, remedy = "other users can see a service's environment (systemctl show)", better
    else:
        mode = stat.S_IMODE(Path(origin).stat().st_mode)
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


def load_provider_config(directory: Path, *, required: bool) -> ProviderConfig:
    """The entries of the directory's *.yaml files, in the order of the file names, as nova reads them.

    Hidden files, which editors leave, are skipped. Without `required`, a missing directory counts as empty.
    Raises SettingsError with file and key.
    """
    try:
        files = sorted(path for path in directory.iterdir() if path.match("[!.]*.yaml"))
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
            with path.open("rb") as file:
                content = file.read(FILE_BYTES_MAX + 1)
        except OSError as error:
            raise SettingsError(
                f"The provider config file {path} cannot be read: {error.strerror}.", file=str(path)
            ) from error
        entries.extend(parse_provider_file(content, str(path)))
    return merge_entries(entries)


def load_device_profiles(path: Path) -> DeviceProfiles:
    """The profiles of the file. Raises SettingsError where it cannot be read or is invalid."""
    try:
        with path.open("rb") as file:
            text = file.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise SettingsError(
            f"[claims] device_profiles = {path} cannot be read: {error.strerror}; create the file, readable "
            "for the agent, or remove the option.",
            file=str(path),
            group="claims",
            option="device_profiles",
        ) from error
    return parse_device_profiles(text, str(path))
