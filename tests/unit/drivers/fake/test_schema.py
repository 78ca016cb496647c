"""The schema of the host file: its keys, and their descriptions for the documentation."""

from dataclasses import dataclass, field

from drivers.fake.host_file import HOST_SCHEMA
from drivers.fake.schema import AMOUNT, TEXT, dataclass_schema, described, file_key, key_rows, list_of, record


@dataclass
class Thing:
    name: str = field(metadata=file_key(TEXT, "its name", unique=True))
    count: int = field(default=0, metadata=file_key(AMOUNT, "how many"))


def test_a_field_without_default_is_a_required_key() -> None:
    schema = dataclass_schema(Thing)
    assert schema["required"] == ["name"]
    assert schema["properties"]["count"] == {**AMOUNT, "description": "how many"}
    assert schema["additionalProperties"] is False


def test_a_row_for_each_key_also_of_the_objects_in_a_list() -> None:
    schema = record(things=described(list_of(dataclass_schema(Thing)), "all things"))
    assert list(key_rows(schema)) == [
        ("things", "all things"),
        ("things[].name", "its name"),
        ("things[].count", "how many"),
    ]


def test_each_key_of_the_host_file_has_a_description_that_fits_into_a_table() -> None:
    rows = dict(key_rows(HOST_SCHEMA))
    assert {"disk_gb", "gpus[].address", "nics[].vfs", "guests[].units[].device"} <= rows.keys()
    assert all(text and "|" not in text and not text.endswith(".") for text in rows.values())
