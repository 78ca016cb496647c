"""What all commands have in common: output for programs, errors on one line, wrong use."""

import json
from pathlib import Path

import pytest
import yaml
from kits.api_host import GPU, SmallHost
from kits.cli_process import one_line, plimsoll

from agent.errors import ExitCode

CONSUMER = "5b2cd5f6-7f3c-4a0e-9f4e-1f2d3c4b5a69"
WANTED = ("--resources", "VCPU=2,VGPU=1")


def test_a_failure_inside_the_agent_is_one_line(host: SmallHost, path: Path) -> None:
    def fault() -> None:
        raise ZeroDivisionError

    host.fault = fault
    done = plimsoll(path, "tree")
    assert done.returncode == ExitCode.FAILED
    assert "its log tells more under error" in one_line(done)


@pytest.mark.parametrize(
    "command",
    [("status",), ("tree",), ("instances",), ("plan",), ("config", "show"), ("claim", "--dry-run", *WANTED)],
)
def test_json_and_yaml_say_the_same(path: Path, command: tuple[str, ...]) -> None:
    words = [*command[:1], CONSUMER, *command[1:]] if command[0] == "claim" else command
    as_json = plimsoll(path, *words, "-o", "json")
    as_yaml = plimsoll(path, "-o", "yaml", *words)
    assert (as_json.returncode, as_yaml.returncode) == (0, 0)
    assert json.loads(as_json.stdout) == yaml.safe_load(as_yaml.stdout)


@pytest.mark.parametrize("form", ["json", "yaml"])
def test_errors_are_json_where_programs_read(path: Path, form: str) -> None:
    done = plimsoll(path, "claim", CONSUMER, "--resources", "VGPU=9", "-o", form)
    assert (done.returncode, done.stdout) == (ExitCode.REFUSED, "")
    error = json.loads(done.stderr)["error"]
    assert (error["code"], error["details"]["shortfalls"][0]["provider_uuid"]) == (
        "plimsoll.claim.does_not_fit",
        GPU,
    )


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        ((), "a command is missing"),
        (("config",), "a command is missing"),
        (("bogus",), "has no command 'bogus'"),
        (("status", "--timeout", "0"), "'0' is not a number of seconds above 0"),
        (("status", "--timeout", "nan"), "'nan' is not a number of seconds"),
        (("status", "-o", "xml"), "invalid choice: 'xml'"),
        (("release",), "required: CONSUMER"),
        (("release", ""), "is an empty text: give its uuid"),
        (("relase", "web1"), "did you mean `plimsoll release`?"),
        (("move", "confrm", "x"), "did you mean `plimsoll move confirm`?"),
        (("claim", "--spek", "a=b"), "plimsoll claim has no option '--spek': did you mean `--spec`?"),
        (("claim", "--nonsense"), "has no option '--nonsense': `plimsoll claim --help` lists them"),
        (("release", "web1", "web2"), "takes no further argument 'web2'"),
        (("claim",), "none is given"),
        (("claim", "--resources", "VCPU=0"), "groups[0].resources.VCPU"),
        (("claim", "--flavor", "vcpus=1,memory_mb=64", "--spec", "hw:cpu_polcy=shared"), "hw:cpu_policy"),
        (("claim", "--file", "/nowhere/body.json"), "cannot be read"),
    ],
)
def test_wrong_use_is_one_line_and_2(path: Path, words: tuple[str, ...], complaint: str) -> None:
    done = plimsoll(path, *words)
    assert done.returncode == ExitCode.USAGE
    assert complaint in one_line(done)
