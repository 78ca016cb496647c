"""YAML whose mappings have unique keys, and files of such YAML that an operator writes.

YAML requires that (https://yaml.org/spec/1.2.2/#3213-node-comparison), but PyYAML accepts a repeated key and
keeps its last value: half of what the operator wrote would be ignored without a word.
"""

from typing import Any

import yaml

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
