"""docs/device-health.md says of each symptom what the agent does."""

from __future__ import annotations

import re

from kits.paths import CHECKOUT

from agent.providers.device_health import DEBOUNCE, Symptom
from drivers.host.sysfs import CHECKS

PAGE = (CHECKOUT / "docs" / "device-health.md").read_text()


def test_each_symptom_is_in_the_table_with_its_numbers_of_looks() -> None:
    rows = re.findall(r"^\| ([a-z ]+) \| .+ \| (\d+)[^|]* \| (\d+)[^|]* \|$", PAGE, re.MULTILINE)
    assert {name: (int(looks), int(quiet)) for name, looks, quiet in rows} == {
        symptom.value: tuple(DEBOUNCE[symptom]) for symptom in Symptom
    }


def test_the_example_leaves_out_the_check_that_the_text_names() -> None:
    (told,) = re.findall(r"^health_checks = (.+)$", PAGE, re.MULTILINE)
    assert set(CHECKS) - set(told.split(",")) == {"link"}
