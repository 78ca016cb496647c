"""The dashboard and the alert rules ask for metrics that there are, by labels that these have."""

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import yaml
from kits.embedded_api import Api
from kits.paths import CHECKOUT
from kits.status import fill, sight
from prometheus_client.parser import text_string_to_metric_families

from agent.cli.parser import build
from agent.placement.embedded import Core

HERE = CHECKOUT
RULES = HERE / "etc" / "prometheus" / "plimsoll.rules.yml"
RULES_TEST = RULES.with_name("plimsoll.rules.test.yml")
DASHBOARDS = sorted((HERE / "etc" / "grafana").glob("*.json"))


@pytest.fixture(scope="module")
def fleet_metrics(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """What a served core says of a host that has all that a host can have."""
    with closing(Core.open(tmp_path_factory.mktemp("core"))) as core:
        api, root = Api(core), str(uuid4())
        api.done("POST", "/resource_providers", {"name": 'h"1\n\\', "uuid": root})
        api.set_inventories(root, {"VCPU": {"total": 4}})
        api.done("PUT", f"/hosts/{root}/note", {"state": "ready", "version": "0.1.0"})
        core.notes.flavors = {"m1.small": "resources=VCPU:3"}
        yield str(api.done("GET", "/metrics")["text"])


@pytest.fixture(scope="module")
def labels(fleet_metrics: str) -> dict[str, set[str]]:
    """{sample's name: the labels that it has}"""
    with sight() as shown:
        fill(shown)
        text = shown.host_status.metrics().decode() + fleet_metrics
    found: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(text):
        for each in family.samples:
            found.setdefault(each.name, set()).update(each.labels)
        if not family.samples:
            found.setdefault(family.name + ("_total" if family.type == "counter" else ""), set())
    return found


def rules() -> list[dict[str, Any]]:
    return [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]


def panels(dashboard: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(dashboard.read_text())["panels"]
    return found


def expressions() -> list[str]:
    every = [panel for dashboard in DASHBOARDS for panel in panels(dashboard)]
    asked = [target["expr"] for panel in every for target in panel.get("targets", ())]
    return [*(rule["expr"] for rule in rules()), *asked]


def test_each_metric_is_one_of_ours_and_has_these_labels(labels: dict[str, set[str]]) -> None:
    for expression in expressions():
        named = re.findall(r"\b(plimsoll_\w+)(?:\{([^}]*)\})?", expression)
        assert named or expression.startswith("up{")
        for name, selectors in named:
            assert name in labels, expression
            for label in re.findall(r"(\w+)=~?\"", selectors):
                assert label in {"instance", "job"} | labels[name] or not labels[name], (label, expression)


def test_each_alert_says_what_and_what_to_do() -> None:
    names = [rule["alert"] for rule in rules()]
    assert len(set(names)) == len(names)
    for rule in rules():
        assert set(rule) == {"alert", "expr", "for", "labels", "annotations"}
        assert rule["labels"]["severity"] in ("critical", "warning", "info")
        assert set(rule["annotations"]) == {"summary", "description"}


def test_each_alert_has_a_case_in_which_it_fires_and_one_in_which_it_does_not() -> None:
    """test_promtool_finds_nothing_wrong_with_the_rules runs them."""
    cases = [
        (each["alertname"], bool(each["exp_alerts"]))
        for story in yaml.safe_load(RULES_TEST.read_text())["tests"]
        for each in story["alert_rule_test"]
    ]
    assert {*cases} == {(rule["alert"], fires) for rule in rules() for fires in (True, False)}


def test_the_commands_that_they_name_are_there() -> None:
    known = {name for action in build()._actions for name in (getattr(action, "choices", None) or ())}
    for rule in rules():
        for command in re.findall(r"plimsoll ([a-z]+)", rule["annotations"]["description"]):
            assert command in known


@pytest.mark.parametrize("dashboard", DASHBOARDS, ids=lambda file: file.stem)
def test_the_dashboard_s_panels_do_not_lie_on_each_other(dashboard: Path) -> None:
    taken: set[tuple[int, int]] = set()
    ids = [panel["id"] for panel in panels(dashboard)]
    assert len(set(ids)) == len(ids)
    for panel in panels(dashboard):
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not cells & taken and at["x"] + at["w"] <= 24
        taken |= cells


PROMTOOL = shutil.which("promtool")
needs_promtool = pytest.mark.skipif(
    PROMTOOL is None, reason="./dev test-seeing installs promtool, and runs this"
)


def promtool(*words: str, directory: Path) -> None:
    done = subprocess.run(
        [str(PROMTOOL), *words], cwd=directory, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_fleets_metrics_are_what_its_table_has(fleet_metrics: str) -> None:
    told = {
        (each.name.removeprefix("plimsoll_fleet_"), *each.labels.values()): each.value
        for family in text_string_to_metric_families(fleet_metrics)
        for each in family.samples
    }
    host = 'h"1\n\\'
    assert told["hosts", "ready"] == told["room", "m1.small"] == told["host_state", host, "ready"] == 1
    assert told["hosts", "silent"] == told["stranded", "m1.small"] == told["host_findings", host] == 0
    assert told["free", "VCPU"] == told["host_capacity", host, "VCPU"] == 4
    assert told["host_room", host, "m1.small"] == told["host_info", host, "0.1.0"] == told["active",] == 1


def test_every_metric_of_the_fleet_is_documented(fleet_metrics: str) -> None:
    page = (HERE / "docs" / "fleet.md").read_text(encoding="utf-8")
    for family in text_string_to_metric_families(fleet_metrics):
        labels = ", ".join(sorted({label for each in family.samples for label in each.labels})) or "-"
        row = f"| `{family.name}` | {labels} | {family.documentation} |"
        assert row in page, row


@needs_promtool
def test_promtool_finds_nothing_wrong_with_the_rules() -> None:
    promtool("check", "rules", RULES.name, directory=RULES.parent)
    promtool("test", "rules", RULES_TEST.name, directory=RULES.parent)


@needs_promtool
def test_promtool_reads_every_expression_of_the_dashboard(tmp_path: Path) -> None:
    said = [
        re.sub(r"\$__rate_interval", "5m", re.sub(r"\$(instance|host|resource_class)", ".*", each))
        for each in expressions()
    ]
    records = [{"record": f"checked:{number}", "expr": each} for number, each in enumerate(said)]
    (tmp_path / "rules.yml").write_text(yaml.safe_dump({"groups": [{"name": "all", "rules": records}]}))
    promtool("check", "rules", "rules.yml", directory=tmp_path)


@needs_promtool
def test_promtool_finds_nothing_wrong_with_the_metrics(fleet_metrics: str) -> None:
    with sight() as shown:
        fill(shown)
        text = shown.host_status.metrics().decode() + fleet_metrics
    done = subprocess.run(
        [str(PROMTOOL), "check", "metrics"],
        input=text,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", ""), done.stdout + done.stderr
