"""YAML whose mappings have unique keys.

YAML requires that (https://yaml.org/spec/1.2.2/#3213-node-comparison), but PyYAML accepts a repeated key and
keeps its last value: half of what the operator wrote would be ignored without a word.
"""

from typing import Any

import yaml


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
