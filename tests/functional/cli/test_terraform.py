"""`plimsoll terraform`: the protocol of the `external` data source and of provisioners, with a real agent."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from uuid import uuid4

import pytest
from kits.agent_process import Agent
from kits.cli_process import ENVIRONMENT, one_line, plimsoll
from kits.doc_commands import fenced
from lxml import etree

from agent.errors import ExitCode

CONSUMER = str(uuid4())
ASKED = {"flavor": "vcpus=2,memory_mb=512", "spec": "hw:cpu_policy=dedicated resources_gpu:PGPU=1"}
CARD = {"domain": 0, "bus": 0x83, "slot": 0, "function": 0}


@pytest.fixture(scope="module")
def agent(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Agent]:
    more = "[compute]\ncpu_shared_set = 0-3\ncpu_dedicated_set = 4-7\n"
    agent = Agent(tmp_path_factory.mktemp("agent"), more=more)
    agent.start()
    yield agent
    agent.stop()


def told(
    agent: Agent, verb: str, query: Mapping[str, object], *, by_environment: bool = False
) -> dict[str, str]:
    """The answer, which is what Terraform takes: one JSON object of strings, and nothing else."""
    text = json.dumps(query)
    environment, stdin = ({"PLIMSOLL_QUERY": text}, "") if by_environment else ({}, text)
    done = plimsoll(agent.socket, "terraform", verb, stdin=stdin, environment=environment)
    assert (done.returncode, done.stderr) == (ExitCode.DONE, "")
    answer = json.loads(done.stdout)
    assert all(isinstance(each, str) for pair in answer.items() for each in pair)
    return dict(answer)


def test_a_claim_lives_from_its_creation_to_its_destruction(agent: Agent) -> None:
    resource = {"consumer": CONSUMER, "name": "ai1", **ASKED}
    made = told(agent, "claim", resource, by_environment=True)
    assert (made["consumer"], made["state"], json.loads(made["pci"])) == (CONSUMER, "claimed", [CARD])
    assert made["pci_addresses"] == made["units_gpu"] == "0000:83:00.0" and made["mdev_uuids"] == ""
    assert len(made["cpus"]) == 3 and set(made["cpus"]) <= set("4567,-")
    assert told(agent, "claim", resource, by_environment=True) == made, (
        "a run that was cut, and its repetition"
    )
    assert told(agent, "show", {"consumer": CONSUMER}) == told(agent, "show", {"name": "ai1"}) == made
    assert "Terraform (uid" in plimsoll(agent.socket, "instances").stdout
    lists = {**resource, "tags": ["a", "b"]}
    assert told(agent, "release", lists, by_environment=True) == {"released": "true"}
    assert told(agent, "release", resource, by_environment=True) == {"released": "false"}
    gone = plimsoll(agent.socket, "terraform", "show", stdin=json.dumps({"consumer": CONSUMER}))
    assert gone.returncode == ExitCode.FAILED and "No claim of" in one_line(gone)


def test_where_answers_a_no_without_an_error(agent: Agent) -> None:
    fits = told(agent, "where", ASKED)
    assert (fits["fits"], fits["verdict"], fits["host"], fits["hosts"]) == ("true", "fits", "node1", "node1")
    body = {"flavor": {"vcpus": 1, "memory_mb": 64, "extra_specs": {"resources:PGPU": "2"}}}
    never = told(agent, "where", {"request": json.dumps(body), "count": "1", "strategy": "spread"})
    assert (never["fits"], never["verdict"], never["host"]) == ("false", "never", "") and "PGPU" in never[
        "reason"
    ]


@pytest.mark.parametrize(
    ("verb", "text", "sentence"),
    [
        ("claim", "", "no query"),
        ("claim", "[]", "another kind of JSON"),
        ("claim", '{"name": "x", "flavor": {"vcpus": 1}}', "'flavor' must be a string"),
        ("claim", '{"name": "x", "resource": "VCPU=1"}', "unknown key 'resource'"),
        ("claim", '{"resources": "VCPU=1"}', "neither consumer nor name"),
        ("claim", '{"name": "x"}', "none is given"),
        ("claim", '{"name": "x", "request": "{", "consumer": ""}', "jsonencode"),
        ("claim", '{"name": "x", "request": "[]"}', "the body of a claim"),
        ("claim", '{"name": "x", "request": "{}", "group": "a:PGPU=1"}', "both request and group"),
        ("claim", '{"consumer": "web1", "resources": "VCPU=1"}', "consumer"),
        ("where", '{"resources": "VCPU=1", "count": "some"}', "count"),
        ("show", "{}", "names no claim"),
        ("show", '{"consumer": "web1"}', "no uuid"),
        ("release", '{"consumer": "../x"}', "no uuid"),
    ],
)
def test_a_query_that_is_wrong_is_one_sentence_and_changes_nothing(
    agent: Agent, verb: str, text: str, sentence: str
) -> None:
    done = plimsoll(agent.socket, "terraform", verb, stdin=text)
    assert done.returncode == ExitCode.USAGE and sentence in one_line(done)
    assert plimsoll(agent.socket, "instances").stdout == "no guests, no claims\n"


def test_the_example_of_the_page_is_what_the_commands_take(agent: Agent) -> None:
    place, guest, later = (fenced("terraform.md", "text", number) for number in range(3))
    (asked,) = re.findall(r"query += \{ (.*) \}", place)
    assert told(agent, "where", dict(re.findall(r'(\w+) = "(.*?)"', asked)))["fits"] == "true"
    (resource,) = re.findall(r"input = \{\n(.*?)\n  \}", guest, re.DOTALL)
    query = {"consumer": CONSUMER, **dict(re.findall(r'(\w+) += "(.*?)"', resource))}
    assert set(query) == {"consumer", "name", "resources", "group"}
    for text in (guest, later):
        for verb in re.findall(r"plimsoll terraform (\w+)", text):
            told(agent, verb, query, by_environment=True)
    assert plimsoll(agent.socket, "instances").stdout == "no guests, no claims\n"


def test_the_stylesheet_of_the_page_puts_uuid_and_device_into_a_domain(tmp_path: Path) -> None:
    text = fenced("terraform.md", "xml").replace("${uuid}", CONSUMER)
    before, each, after = re.split(r"%\{.*?~\}\n", text)
    for name, number in CARD.items():
        each = each.replace(f"${{each.{name}}}", str(number))
    transform = etree.XSLT(etree.fromstring(before + each + after))
    domain = etree.fromstring("<domain><name>ai1</name><vcpu>4</vcpu><devices><disk/></devices></domain>")
    written = transform(domain)
    assert written.findtext("uuid") == CONSUMER and written.findtext("vcpu") == "4"
    assert written.find("devices/disk") is not None
    address = written.find("devices/hostdev/source/address")
    assert {name: int(value) for name, value in address.attrib.items()} == CARD


TERRAFORM = shutil.which("terraform") or shutil.which("tofu")


@pytest.mark.skipif(TERRAFORM is None, reason="needs Terraform 1.4 or OpenTofu in PATH")
def test_the_claim_of_the_page_with_terraform_itself(agent: Agent, tmp_path: Path) -> None:
    """Applied, cut between the claim and the state, applied again, destroyed; without its other providers."""
    claim = fenced("terraform.md", "text", 1).partition('data "external"')[0]
    (tmp_path / "main.tf").write_text(claim)
    (tmp_path / "plimsoll").write_text(f'#!/bin/sh\nexec {sys.executable} -m agent.cli.main "$@"\n')
    (tmp_path / "plimsoll").chmod(0o755)
    environment = {
        **ENVIRONMENT,
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "PLIMSOLL_SOCKET": str(agent.socket),
        "CHECKPOINT_DISABLE": "1",
    }

    def terraform(*words: str) -> str:
        command = [str(TERRAFORM), *words, "-no-color"]
        done = subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def claimed() -> list[str]:
        listed = json.loads(plimsoll(agent.socket, "instances", "-o", "json").stdout)["instances"]
        return [each["name"] for each in listed]

    terraform("init")
    terraform("fmt", "-check", "-diff")
    terraform("apply", "-auto-approve")
    assert claimed() == ["ai1"] and "Terraform (uid" in plimsoll(agent.socket, "instances").stdout
    assert "No changes" in terraform("plan")
    (tmp_path / "terraform.tfstate").unlink()  # the state is not written, and the claim is made
    assert "1 added" in terraform("apply", "-auto-approve")
    assert claimed() == ["ai1"]
    assert "1 destroyed" in terraform("destroy", "-auto-approve")
    assert claimed() == []


@pytest.mark.skipif(TERRAFORM is None, reason="needs Terraform 1.4 or OpenTofu in PATH")
@pytest.mark.parametrize("number", range(3))
def test_the_examples_of_the_page_are_written_as_terraform_writes(number: int) -> None:
    done = subprocess.run(
        [str(TERRAFORM), "fmt", "-"],
        input=fenced("terraform.md", "text", number),
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, fenced("terraform.md", "text", number))
