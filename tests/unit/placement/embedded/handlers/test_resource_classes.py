"""/resource_classes: the standard classes exist, custom ones are created, renamed (up to 1.6) and deleted."""

from __future__ import annotations

from kits.embedded_api import UNDEFINED, Api

FPGA = "/resource_classes/CUSTOM_FPGA"


def test_a_custom_class_is_created_shown_and_deleted(api: Api) -> None:
    created = api.ask("POST", "/resource_classes", {"name": "CUSTOM_FPGA"})
    assert (created.status, created.headers["location"]) == (201, FPGA)
    assert api.done("GET", FPGA)["name"] == "CUSTOM_FPGA"
    names = {record["name"] for record in api.done("GET", "/resource_classes")["resource_classes"]}
    assert {"VCPU", "CUSTOM_FPGA"} <= names
    assert api.ask("DELETE", FPGA).status == 204 and api.ask("GET", FPGA).status == 404


def test_put_creates_from_1_7_and_renames_before(api: Api) -> None:
    assert [api.ask("PUT", FPGA, mv="1.7").status for _ in range(2)] == [201, 204]
    assert api.ask("PUT", FPGA, {"name": "CUSTOM_CHIP"}, mv="1.6").status == 200
    assert (
        api.ask("GET", FPGA).status == 404 and api.ask("GET", "/resource_classes/CUSTOM_CHIP").status == 200
    )


def test_a_standard_class_stays(api: Api) -> None:
    api.refused(400, "DELETE", "/resource_classes/VCPU", code=UNDEFINED)
