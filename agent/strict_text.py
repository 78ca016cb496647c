"""What an operator wrote, read strictly: YAML files, and the JSON of nova's [pci] options.

YAML requires that the keys of a mapping are unique (https://yaml.org/spec/1.2.2/#3213-node-comparison), but
PyYAML accepts a repeated key and keeps its last value: half of what the operator wrote would be ignored
without a word. JSON's own reader does the same.

The objects of nova's options, such as `device_spec` and `alias`, are read key by key. Each function for them
raises ValueError with the key and the problem of its value; all but `read_json` return None for a missing
key.
Source: https://docs.openstack.org/nova/latest/configuration/config.html#pci
"""

import json
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import yaml

from agent.device_names import hexadecimal_id
from agent.errors import SettingsError

FILE_BYTES_MAX = 256 * 1024
DEPTH_MAX = 16


class UniqueKeyLoader(yaml.SafeLoader):
    """A SafeLoader that raises MarkedYAMLError for a key that is repeated in a mapping."""

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        """The mapping of a node. Raises MarkedYAMLError for a repeated key."""
        keys = set()
        for key, _ in node.value:
            if str(key.value) in keys:
                raise yaml.MarkedYAMLError(
                    problem=f"the key {str(key.value)[:80]!r} is there twice", problem_mark=key.start_mark
                )
            keys.add(str(key.value))
        return super().construct_mapping(node, deep)


class _OperatorLoader(UniqueKeyLoader):
    """A loader that also refuses aliases, and more than DEPTH_MAX levels."""

    depth = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            event = self.peek_event()  # type: ignore[no-untyped-call]
            raise yaml.MarkedYAMLError(
                problem="an alias (*name) is not allowed here: write it out", problem_mark=event.start_mark
            )
        self.depth += 1
        if self.depth > DEPTH_MAX:
            raise yaml.MarkedYAMLError(problem=f"it is nested deeper than {DEPTH_MAX} levels")
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node


def load_operator_yaml(text: bytes, file: str, kind: str) -> Any:
    """The data of an operator's file; `kind` names it in sentences ("provider config file").

    It has at most FILE_BYTES_MAX bytes and no aliases: a few lines with aliases can expand to gigabytes.
    Raises SettingsError, naming `file`.
    """
    if len(text) > FILE_BYTES_MAX:
        raise SettingsError(f"{file}: a {kind} has at most {FILE_BYTES_MAX} bytes.", file=file)
    try:
        return yaml.load(text.decode(), Loader=_OperatorLoader)  # noqa: S506 - a SafeLoader, see above
    except UnicodeDecodeError as error:
        raise SettingsError(f"{file}: the file is not UTF-8 text.", file=file) from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise SettingsError(
            f"{file}: the file is not valid YAML: {' '.join(str(error).split())}.", file=file
        ) from error


_WORDS = {
    **dict.fromkeys(("yes", "true", "on", "1"), True),
    **dict.fromkeys(("no", "false", "off", "0"), False),
}
"""nova's configuration writes a flag as text."""


def key_path(path: Iterable[str | int]) -> str:
    """The place of a value in a document, as `providers[0].name`; empty for the whole document."""
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path).removeprefix(".")


def read_json(text: str) -> object:
    """The value; a key that stands twice in an object is an error, where JSON's own reader takes the last."""
    return json.loads(text, object_pairs_hook=_without_twins)


def _without_twins(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    given = dict(pairs)
    if len(given) < len(pairs):
        names = [name for name, _ in pairs]
        twin = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"{twin} is given twice")
    return given


def known_object(data: object, keys: Collection[str]) -> Mapping[str, Any]:
    """The object, which may have only these keys."""
    if not isinstance(data, dict):
        raise ValueError("an object was expected")
    unknown = sorted(data.keys() - set(keys))
    if unknown:
        raise ValueError(f"{unknown[0]!r} is not known; there are {', '.join(sorted(keys))}")
    return data


def text_of(data: Mapping[str, Any], key: str) -> str | None:
    """The text without surrounding blanks; empty text is an error."""
    value = data.get(key)
    if value is None:
        return None
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"{key} must be text, not {value!r}")
    return value.strip()


def id_of(data: Mapping[str, Any], key: str) -> str | None:
    """A vendor or product id as four lower-case hexadecimal digits."""
    text = text_of(data, key)
    try:
        return None if text is None else hexadecimal_id(text)
    except ValueError as error:
        raise ValueError(f"{key} {error}") from error


def flag_of(data: Mapping[str, Any], key: str) -> bool | None:
    """A JSON boolean, or one of nova's words for it (yes, true, on, 1, no, false, off, 0)."""
    value = data.get(key)
    if value is None or isinstance(value, bool):
        return value
    flag = _WORDS.get(value.strip().lower()) if isinstance(value, str) else None
    if flag is None:
        raise ValueError(f"{key} must be true or false, not {value!r}")
    return flag
