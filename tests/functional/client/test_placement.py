"""`plimsoll.Placement`: the embedded core in this process, and the same core served."""

import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest
from kits.paths import CHECKOUT

import plimsoll
from agent.placement.embedded.core import Core
from agent.placement.embedded.serve import Server


@pytest.fixture(params=["open", "connect"])
def placement(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[plimsoll.Placement]:
    if request.param == "open":
        with plimsoll.Placement.open(tmp_path / "new" / "core") as opened:
            yield opened
        return
    core = Core.open(tmp_path)
    server = Server(core, [f"unix:{tmp_path}/s"])
    server.start()
    try:
        with plimsoll.Placement.connect(f"unix:{tmp_path}/s") as connected:
            yield connected
    finally:
        server.stop()
        core.close()


def test_a_provider_is_made_once_and_changed(placement: plimsoll.Placement) -> None:
    made = placement.put_provider("hv1", {"VCPU": 8, "CUSTOM_LICENCE": 2}, traits=["CUSTOM_RACK_7"])
    assert made.inventories["VCPU"].total == 8 and made.traits == {"CUSTOM_RACK_7"}
    again = placement.put_provider("hv1", {"VCPU": 16})
    assert again.uuid == made.uuid and set(again.inventories) == {"VCPU"} and again.traits == frozenset()
    child = placement.put_provider("hv1_gpu", {"PGPU": 1}, parent=made.uuid, aggregates=[str(uuid4())])
    assert {provider.name for provider in placement.providers(in_tree=made.uuid)} == {"hv1", "hv1_gpu"}
    assert placement.inventories(child.uuid)["PGPU"].capacity == 1
    assert placement.delete_provider(child.uuid) and not placement.delete_provider(child.uuid)


def test_a_claim_is_made_once(placement: plimsoll.Placement) -> None:
    host = placement.put_provider("hv1", {"VCPU": 8, "MEMORY_MB": 1024}).uuid
    claimed = placement.claim(resources={"VCPU": 2, "MEMORY_MB": 512})
    assert claimed.allocations == {host: {"VCPU": 2, "MEMORY_MB": 512}}
    assert placement.claim(consumer=claimed.consumer, resources={"VCPU": 2, "MEMORY_MB": 512}) == claimed
    assert placement.claim(claimed.allocations, consumer=claimed.consumer) == claimed
    assert placement.allocations(claimed.consumer) == claimed.allocations
    assert placement.usages(host) == {"VCPU": 2, "MEMORY_MB": 512}
    with pytest.raises(plimsoll.Conflict, match="another allocation") as caught:
        placement.claim({host: {"VCPU": 1}}, consumer=claimed.consumer)
    assert caught.value.key == claimed.consumer
    with pytest.raises(plimsoll.Conflict, match="another allocation"):
        placement.claim(resources={"MEMORY_MB": 1}, consumer=claimed.consumer)
    assert placement.allocations(claimed.consumer) == claimed.allocations
    with pytest.raises(plimsoll.Conflict):
        placement.put_provider("hv1", {"MEMORY_MB": 1024})
    with pytest.raises(plimsoll.InvalidRequest, match="a provider has a name"):
        placement.put_provider(" ", {})
    assert set(placement.inventories(host)) == {"VCPU", "MEMORY_MB"}
    assert placement.release(claimed.consumer) and not placement.release(claimed.consumer)
    assert placement.usages(host) == {"VCPU": 0, "MEMORY_MB": 0}


def test_what_does_not_fit_is_refused(placement: plimsoll.Placement) -> None:
    host = placement.put_provider("hv1", {"VCPU": 2}, traits=["HW_CPU_X86_AVX2"]).uuid
    with pytest.raises(plimsoll.Refused):
        placement.claim(resources={"VCPU": 3})
    with pytest.raises(plimsoll.Refused):
        placement.claim({host: {"VCPU": 3}})
    assert placement.candidates({"VCPU": 2}, required="HW_CPU_X86_AVX2") == ({host: {"VCPU": 2}},)
    assert placement.candidates({"VCPU": 2}, required="!HW_CPU_X86_AVX2") == ()
    with pytest.raises(plimsoll.InvalidRequest):
        placement.candidates({"VCPU": 0})
    where = placement.where(resources={"VCPU": 3})
    assert where.verdict == "never" and placement.where(resources={"VCPU": 1}).places[0].host == "hv1"


def test_programs_that_claim_at_once_get_no_more_than_there_is(placement: plimsoll.Placement) -> None:
    host = placement.put_provider("hv1", {"VCPU": 8}).uuid
    granted: list[str] = []

    def claim() -> None:
        for _ in range(4):
            try:
                granted.append(placement.claim(resources={"VCPU": 1}).consumer)
            except plimsoll.Refused:
                return

    threads = [threading.Thread(target=claim) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(granted) == 8 and placement.usages(host) == {"VCPU": 8}


def test_it_is_on_disk_and_the_directory_is_of_one_process(tmp_path: Path) -> None:
    with plimsoll.Placement.open(tmp_path) as placement:
        placement.put_provider("hv1", {"VCPU": 2})
        claimed = placement.claim(resources={"VCPU": 1})
        with pytest.raises(plimsoll.PlimsollError, match=f"in use by process {os.getpid()}") as caught:
            plimsoll.Placement.open(tmp_path)
        assert caught.value.code == "plimsoll.state"
    with plimsoll.Placement.open(tmp_path) as placement:
        assert placement.allocations(claimed.consumer) == claimed.allocations


def test_after_a_fork_only_the_first_process_has_it(tmp_path: Path) -> None:
    with plimsoll.Placement.open(tmp_path) as placement:
        placement.put_provider("hv1", {"VCPU": 2})
        read, write = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                placement.claim(resources={"VCPU": 1})
            except plimsoll.PlimsollError as error:
                os.write(write, error.message.encode())
            finally:
                os._exit(0)
        os.close(write)
        with os.fdopen(read) as pipe:
            assert "forked off it" in pipe.read()
        os.waitpid(pid, 0)
        assert placement.claim(resources={"VCPU": 2}), "here it goes on"


def test_no_placement_and_no_address(tmp_path: Path) -> None:
    with pytest.raises(plimsoll.Unavailable):
        plimsoll.Placement.connect(f"unix:{tmp_path}/none").providers()
    with pytest.raises(plimsoll.Unavailable):
        plimsoll.Placement.connect("http://127.0.0.1:1").providers()
    with pytest.raises(plimsoll.InvalidRequest):
        plimsoll.Placement.connect("http://127.0.0.1:1", auth_type="none such")


def test_without_the_agent_it_says_what_to_install(tmp_path: Path) -> None:
    shutil.copytree(
        CHECKOUT / "plimsoll", tmp_path / "plimsoll", ignore=shutil.ignore_patterns("__pycache__")
    )
    program = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import plimsoll; plimsoll.Placement.open('x')"
    )
    command = [sys.executable, "-I", "-S", "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "pip uninstall plimsoll-client, then pip install plimsoll." in done.stderr.splitlines()[-1]


def test_the_agent_is_found_beside_the_package_that_a_link_leads_to(tmp_path: Path) -> None:
    """As in the Debian package: only `plimsoll` is on Python's path."""
    (tmp_path / "plimsoll").symlink_to(CHECKOUT / "plimsoll")
    program = (
        f"import sys; sys.path = [path for path in sys.path if path != {str(CHECKOUT)!r}]; "
        "sys.meta_path = [one for one in sys.meta_path if 'editable' not in str(one)]; "
        f"sys.path.insert(0, {str(tmp_path)!r}); import plimsoll; "
        f"print(plimsoll.Placement.open({str(tmp_path / 'core')!r}).providers())"
    )
    command = [sys.executable, "-P", "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.stdout == "()\n", done.stderr


def test_a_refusal_says_what_is_short_where(placement: plimsoll.Placement) -> None:
    host = placement.put_provider("hv1", {"VCPU": 8}).uuid
    placement.claim(resources={"VCPU": 6})
    with pytest.raises(plimsoll.Refused, match="not now: hv1 is 2 VCPU short") as caught:
        placement.claim(resources={"VCPU": 4})
    (short,) = caught.value.shortfalls
    assert (short.resource_class, short.asked, short.free, short.provider_uuid) == ("VCPU", 4, 2, host)
    with pytest.raises(plimsoll.Refused, match="CUSTOM_NONE"):
        placement.claim(resources={"CUSTOM_NONE": 1})


def test_what_can_be_no_directory_and_no_address(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "agent.db").touch()
    for name, sentence in (
        (tmp_path / "file", "cannot be made: File exists"),
        (tmp_path / "file" / "below", "cannot be made: Not a directory"),
        (Path("/proc/none"), "cannot be made"),
        ("", "no name of a directory"),
        ("a\0b", "no name of a directory"),
        (tmp_path / "state", "the state directory of an agent"),
    ):
        with pytest.raises(plimsoll.PlimsollError, match=sentence):
            plimsoll.Placement.open(name)
    for address in ("", "zzz", "ftp://x", "https://", "http://a,zzz"):
        with pytest.raises(plimsoll.InvalidRequest, match="is no address"):
            plimsoll.Placement.connect(address)
    with pytest.raises(plimsoll.InvalidRequest, match="no option 'foo'"):
        plimsoll.Placement.connect("http://127.0.0.1:1", foo=1)
    plimsoll.Placement.connect("http://127.0.0.1:1", auth_type="none", connect_retries=1).close()


def test_one_that_is_closed_answers_nothing(placement: plimsoll.Placement) -> None:
    host = placement.put_provider("hv1", {"VCPU": 8}).uuid
    placement.close()
    for call in (lambda: placement.usages(host), lambda: placement.claim(resources={"VCPU": 1})):
        with pytest.raises(plimsoll.InvalidRequest, match="is closed"):
            call()
    placement.close()
