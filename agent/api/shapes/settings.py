"""The settings in force: `GET /v1/config`."""

from typing import Annotated, Any, NamedTuple, TypedDict

from agent.api.shapes.columns import Column, list_text
from agent.api.shapes.schema import Named


class OptionShape(TypedDict):
    """The value of an option."""

    value: Any
    origin: Annotated[str, "the file, the environment variable or the default that the value comes from"]


ConfigurationShape = Annotated[
    dict[str, dict[str, OptionShape]],
    Named("Configuration", "{group: {option: {value, origin}}}, secrets masked"),
]


class SettingRow(NamedTuple):
    """A row of the table of `plimsoll config show`."""

    group: str
    option: str
    setting: OptionShape


def _value(row: SettingRow) -> str:
    value = row.setting["value"]
    if isinstance(value, list):
        return list_text(value)
    return "-" if value is None or value == "" else str(value)


SETTING_COLUMNS: tuple[Column[SettingRow], ...] = (
    Column("GROUP", lambda row: f"[{row.group}]"),
    Column("OPTION", lambda row: row.option),
    Column("VALUE", _value),
    Column("ORIGIN", lambda row: row.setting["origin"]),
)
"""The table of `plimsoll config show`."""
