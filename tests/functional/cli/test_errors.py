"""What an operator mistypes, or what is away: each says what is wrong and what to do, in one line, once."""

import http.server
import json
import os
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from textwrap import indent

import pytest
from kits.agent import opened
from kits.api_client import serving
from kits.cli_process import one_line, output_of, plimsoll
from kits.paths import DOCS
from kits.status import FORGOTTEN, Sight, uuid_of

from agent.config.settings import load
from agent.errors import ExitCode
from agent.placement.connect import open_transport

FLAVOR = ("claim", "--dry-run", "--flavor", "vcpus=1,memory_mb=512", "--spec")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("release", ""), "the instance is an empty text: give its uuid"),
        (("claim", " ", "--resources", "VCPU=1"), "CONSUMER is an empty text"),
        (("explain", ""), "it is an empty text; name a consumer"),
        (("claim", "--flavor", "vcpus=1"), "lacks memory_mb; write vcpus=N,memory_mb=N"),
        (("claim", "--resources", "VCPU=-1"), "VCPU cannot be negative: give 1 or more"),
        (("claim", "--resources", "VCPU=99999999999999999999"), "at most 2147483647 is possible"),
        (("claim", "--resources", "VCPU=99999999999"), "between 1 and 2147483647"),
        (("claim", "--resources", "vcpu=1"), "did you mean VCPU?"),
        (("claim", "--resources", "VGPUS=1"), "did you mean VGPU?"),
        (
            ("claim", "--resources", "VCPU=1", "--required", "HW_CPU_X86_AVX22"),
            "did you mean HW_CPU_X86_AVX2?",
        ),
        ((*FLAVOR, "hw:secure_boot=required"), "did you mean os:secure_boot?"),
        ((*FLAVOR, "hw:cpu_polcy=dedicated"), "did you mean hw:cpu_policy?"),
        ((*FLAVOR, "traits:HW_CPU_X86_AVX2=required"), "did you mean trait:HW_CPU_X86_AVX2?"),
        ((*FLAVOR, f"hw:{'x' * 10_000}=1"), "x..."),
        (("relase", "web1"), "did you mean `plimsoll release`?"),
        (("instances", "-c", "nam"), "there is no column 'nam'"),
    ],
)
def test_what_is_mistyped(full: tuple[Sight, Path], words: tuple[str, ...], said: str) -> None:
    done = plimsoll(full[1], *words)
    assert done.returncode not in (ExitCode.DONE, ExitCode.UNREACHABLE)
    assert said in one_line(done)


BLANKS = "K " * 5000


@pytest.mark.parametrize(
    "words",
    [
        ("claim", "--resources", f"{BLANKS}=1"),
        ("claim", "--flavor", BLANKS),
        ("claim", "--group", f"{BLANKS}:VCPU=1"),
        ("claim", BLANKS, "--resources", "VCPU=1"),
        ("claim", "--resources", "VCPU=1", "--required", BLANKS),
        ("claim", "--resources", "VCPU=1", "--name", BLANKS),
        (*FLAVOR, f"foo:{BLANKS}=1"),
        (*FLAVOR, f"hw:{BLANKS}=1"),
        (*FLAVOR, f"hw:cpu_policy={BLANKS}"),
        (*FLAVOR[:-1], "--image", f"hw_{BLANKS}=1"),
        *((word, BLANKS) for word in ("release", "explain", "-o", "--timeout", f"--{BLANKS}", BLANKS)),
        ("history", "--since", BLANKS),
        ("pause", "--reason", BLANKS),
        ("instances", "-c", BLANKS),
    ],
    ids=lambda words: " ".join(words)[:40],
)
def test_a_long_word_is_cut_also_if_it_has_blanks(full: tuple[Sight, Path], words: tuple[str, ...]) -> None:
    done = plimsoll(full[1], *words)
    assert done.returncode not in (ExitCode.DONE, ExitCode.UNREACHABLE)
    assert 0 < len(one_line(done)) < 900


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("hw:boot_menu=true", "hw:boot_menu has no effect on the claim: it only shapes"),
        ("foo:bar=1", "foo:bar has no effect: it is no extra spec of nova"),
    ],
)
def test_a_spec_without_effect_is_told(full: tuple[Sight, Path], spec: str, said: str) -> None:
    done = plimsoll(full[1], *FLAVOR, spec)
    assert done.returncode == ExitCode.DONE and "it fits" in done.stdout
    assert said in done.stderr


def test_a_claim_with_a_spec_of_no_service_is_made_as_without_it_and_tells_that(
    fresh: tuple[Sight, Path],
) -> None:
    _, path = fresh
    wanted = ("claim", "--flavor", "vcpus=1,memory_mb=512")
    without = output_of(path, *wanted, "-o", "json")
    done = plimsoll(path, *wanted, "--spec", "foo:bar=1", "-o", "json")
    assert done.returncode == ExitCode.DONE
    assert "foo:bar has no effect: it is no extra spec of nova" in done.stderr
    assert json.loads(done.stdout)["allocations"] == json.loads(without)["allocations"]


def test_an_image_property_without_effect_is_told(full: tuple[Sight, Path]) -> None:
    image = ("--image", "foo=bar", "--image", "os_distro=debian", "--image", "hw_disk_bus=virtio")
    done = plimsoll(full[1], *FLAVOR[:-1], *image)
    assert "image foo has no effect: it is no image property of nova" in done.stderr
    assert "image os_distro has no effect on the claim: it only shapes" in done.stderr
    assert "hw_disk_bus" not in done.stderr


def test_a_socket_that_is_no_socket(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("text")
    for path in (tmp_path / "file", tmp_path):
        done = plimsoll(path, "status")
        assert done.returncode == ExitCode.UNREACHABLE
        assert f"{path} is no socket; --socket or PLIMSOLL_SOCKET" in one_line(done)


def test_the_audit_speaks_in_words(full: tuple[Sight, Path]) -> None:
    done = plimsoll(full[1], "audit", FORGOTTEN)
    assert "  guest: 20 DISK_GB, 2048 MEMORY_MB, 2 VCPU\n  claim: none\n  placement: nothing\n" in done.stdout
    repair = f"repair: claim what the guest {uuid_of(FORGOTTEN)} uses: 20 DISK_GB, 2048 MEMORY_MB, 2 VCPU"
    assert repair in done.stdout
    assert indent(done.stdout, "    ") in (DOCS / "audit.md").read_text(), "the page shows just that"
    assert "{" not in done.stdout and "None" not in done.stdout


def test_a_placement_that_is_away_is_one_line_once(tmp_path: Path) -> None:
    file = tmp_path / "plimsoll.conf"
    file.touch(mode=0o600)
    lines = ["[DEFAULT]", "compute_driver = fake", "host = node1", f"state_path = {tmp_path}", "[placement]"]
    lines += ["kind = remote", "auth_type = admin_token", "token = admin"]
    file.write_text("\n".join([*lines, "endpoint_override = http://127.0.0.1:1"]) + "\n")
    world = opened(load([file]))
    try:
        world.agent.reconcile("the start")
        with serving(world.operations, tmp_path / "s"):
            reason = (
                "Placement did not answer to GET /resource_providers: http://127.0.0.1:1: connection refused."
            )
            said = output_of(tmp_path / "s", "status")
            assert said.count("connection refused") == 1 and reason in said
            refused = one_line(plimsoll(tmp_path / "s", "claim", "--resources", "VCPU=1"))
            assert refused == f"plimsoll: Claims are closed: {reason}"
    finally:
        world.close()


class _Elsewhere(http.server.BaseHTTPRequestHandler):
    """A web server that is no Placement, a wrong path of one (/there), and one that rejects every token."""

    def do_GET(self) -> None:
        versions = {"versions": [{"id": "v1.0", "min_version": "1.0", "max_version": "1.39"}]}
        code = 404 if not self.path.startswith("/locked") else 200 if self.path == "/locked/" else 401
        body = json.dumps(versions).encode() if code == 200 else b""
        self.send_response(code)
        if code == 200 or self.path.startswith("/there"):
            self.send_header("x-openstack-request-id", "req-1")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def elsewhere() -> Iterator[str]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Elsewhere)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("http://127.0.0.1:1", "http://127.0.0.1:1: connection refused."),
        ("http://name.invalid", "http://name.invalid: the name of the host is not known."),
        ("unix:/nowhere/s", "at /nowhere/s (No such file or directory)"),
        ("nonsense", "--url takes http://..., https://... or unix:PATH"),
    ],
)
def test_a_wrong_url(tmp_path: Path, url: str, said: str) -> None:
    done = plimsoll(tmp_path, "placement", "ping", "--url", url)
    assert done.returncode in (ExitCode.FAILED, ExitCode.USAGE)
    assert said in one_line(done)


def test_a_url_of_something_else(tmp_path: Path, elsewhere: str) -> None:
    done = plimsoll(tmp_path, "placement", "ping", "--url", elsewhere)
    assert "no Placement" in one_line(done) and elsewhere in done.stderr


def test_a_bad_token(tmp_path: Path, elsewhere: str) -> None:
    done = plimsoll(tmp_path, "placement", "ping", "--url", f"{elsewhere}/locked")
    assert done.returncode == ExitCode.FAILED
    assert "it does not accept the token" in one_line(done) and "check it" in done.stderr


@pytest.mark.parametrize("verb", ["export", "check"])
@pytest.mark.parametrize("path", ["", "/there"])
def test_a_404_to_a_list_is_not_taken_for_other_writers(
    tmp_path: Path, elsewhere: str, verb: str, path: str
) -> None:
    """No client can delete the list of the providers: whoever answers 404 is no Placement."""
    done = plimsoll(tmp_path, "placement", verb, "--url", elsewhere + path)
    assert done.returncode == ExitCode.FAILED
    for words in ("no placement", "404", elsewhere + path, "check the url"):
        assert words in one_line(done).lower()
    assert "Other clients" not in done.stderr


@pytest.mark.parametrize("serve", ["", "placement.sock"])
def test_a_placement_in_use_says_where_it_can_be_read(tmp_path: Path, serve: str) -> None:
    """The command that the error names is done."""
    options = {"serve": [f"unix:{tmp_path / serve}"]} if serve else {}
    transport = open_transport("embedded", state_dir=tmp_path, options=options)
    try:
        for more in ((), ("--root", "host1")):
            line = one_line(plimsoll(tmp_path, "placement", "export", "--state-dir", str(tmp_path), *more))
            assert f"process {os.getpid()}" in line
            named = re.findall(r"--url (\S+) instead", line)
            assert named == ([f"unix:{tmp_path / serve}"] if serve else [])
            assert ("systemctl stop plimsoll-agent" in line) == (not serve)
        for url in named:
            assert output_of(tmp_path, "placement", "export", "--url", url).startswith("{")
    finally:
        transport.close()
