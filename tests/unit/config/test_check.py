"""What keeps an agent with these settings from starting, and what of them does not work as meant."""

import os
from pathlib import Path

import pytest

from agent.api.server import prepare_place
from agent.config.check import check_api_socket, check_start, check_state_path
from agent.config.settings import load
from agent.durable.files import check_accepts_files
from agent.errors import SettingsError, StateError


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "host.yaml").write_text(
        "cells: [{id: 0, cpus: 0-7, memory_mb: 8192, pages: {2048: 16}}]\ndisk_gb: 100\n"
    )
    return tmp_path / "plimsoll.conf"


def checked(file: Path, text: str) -> tuple[str, ...]:
    file.write_text(
        f"[DEFAULT]\ncompute_driver = fake\nhost = node1\nstate_path = {file.parent}\n{text}\n"
        f"[api]\nsocket = {file.parent}/s\n[fake]\nhost_file = {file.parent}/host.yaml\n"
    )
    return check_start(load([file]))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "reserved_host_memory_mb = 8193",
            "reserved_host_memory_mb = 8193 leaves nothing of the 8192 MEM",
        ),
        (
            "reserved_host_memory_mb = 8192",
            "reserved_host_memory_mb = 8192 leaves nothing of the 8192 MEM",
        ),
        (
            "reserved_host_disk_mb = 102400",
            "leaves nothing of the 100 DISK_GB",
        ),
        ("reserved_host_cpus = 8", "reserved_host_cpus = 8 leaves nothing of the 8 VCPU"),
        ("reserved_huge_pages = node:0,size:2048,count:17", "17 pages of 2048 KiB on cell 0, which has 16"),
        ("reserved_huge_pages = node:1,size:2048,count:1", "cell 1, which this host does not have"),
        ("reserved_huge_pages = node:0,size:4096,count:1", "1 page of 4096 KiB on cell 0, which has 0"),
    ],
)
def test_what_offers_nothing_or_too_much_is_told(file: Path, text: str, said: str) -> None:
    (note,) = checked(file, text)
    assert said in note


@pytest.mark.parametrize(
    "text",
    [
        "cpu_allocation_ratio = 1000000",
        "reserved_host_memory_mb = 8191\nreserved_host_disk_mb = 102399\nreserved_host_cpus = 7",
        "reserved_huge_pages = node:0,size:2048,count:16",
    ],
)
def test_what_leaves_something_is_good(file: Path, text: str) -> None:
    assert checked(file, text) == ()


PROVIDER = """meta: {{schema_version: '1.0'}}
providers:
  - identification: {{name: {name}}}
    inventories: {{additional: [{{CUSTOM_X: {{total: 10}}}}]}}
"""


def test_a_provider_file_that_matches_nothing_is_told(file: Path, tmp_path: Path) -> None:
    (tmp_path / "files").mkdir()
    location = f"[compute]\nprovider_config_location = {tmp_path}/files"
    (tmp_path / "files/a.yaml").write_text(PROVIDER.format(name="node2"))
    (note,) = checked(file, location)
    assert "a.yaml: providers[0]" in note and "describes no provider node2" in note
    for identification in ("name: node1", "uuid: $COMPUTE_NODE"):
        text = PROVIDER.replace("name: {name}", identification).format()
        (tmp_path / "files/a.yaml").write_text(text)
        assert checked(file, location) == (), identification


@pytest.mark.parametrize("name", ["cpu", "ram", "disk", "initial_cpu", "initial_ram", "initial_disk"])
def test_an_absurd_ratio_is_refused_as_in_a_provider_file(file: Path, name: str) -> None:
    for ratio in ("100000000000000000000", "1e20", "1000001"):
        with pytest.raises(SettingsError, match=rf"{name}_allocation_ratio = .* to 1000000"):
            checked(file, f"{name}_allocation_ratio = {ratio}")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('device_spec = {"vendor_id": "8086", "vendor_id": "8087"}', "vendor_id is given twice"),
        ('device_spec = [{"address": {"bus": "41", "bus": "42"}}]', "bus is given twice"),
        ('device_spec = {"vendor_id": "8086", "colour": 1}', "'colour' is not known"),
        ("device_spec = {", "is not JSON"),
        ('alias = {"name": "a", "name": "b", "resource_class": "PGPU"}', "name is given twice"),
    ],
)
def test_the_json_of_pci_is_checked_with_any_driver(file: Path, text: str, said: str) -> None:
    with pytest.raises(SettingsError, match=said):
        checked(file, f"[pci]\n{text}")


REMOTE = "[placement]\nkind = remote\nauth_type = none\n"


def notes_of(folder: Path, default: str = "", more: str = "", api: str = "") -> tuple[str, ...]:
    """What `config validate` notes of settings in `folder`; {0} stands for the folder."""
    file = folder / "plimsoll.conf"
    state = "" if "state_path" in default else "state_path = {0}/state\n"
    text = (
        f"[DEFAULT]\ncompute_driver = fake\nhost = node1\n{state}{default}[api]\n{api or 'socket = {0}/s'}\n"
    )
    file.write_text((text + more).format(folder))
    return check_start(load([file]))


def test_places_that_are_good_are_not_made(tmp_path: Path) -> None:
    more = "[placement]\nserve = unix:{0}/run/x.sock,127.0.0.1:8778\n[http]\nlisten = 127.0.0.1:9464\n"
    assert notes_of(tmp_path, more=more, api="socket = {0}/run/s") == ()
    assert [path.name for path in tmp_path.iterdir()] == ["plimsoll.conf"]


@pytest.mark.parametrize(
    ("api", "complaint"),
    [
        ("socket = {0}/plain", "is no socket"),
        ("socket = {0}/folder", "is no socket"),
        ("socket = /proc/s.sock", "/proc cannot be used"),
        ("socket = {0}/open/s.sock", "Every user may write"),
        ("socket = {0}/none/none/s.sock", "No such file"),
        ("socket = {0}/plain/s.sock", "Not a directory"),
    ],
)
def test_a_socket_that_cannot_be_made(tmp_path: Path, api: str, complaint: str) -> None:
    (tmp_path / "plain").touch()
    (tmp_path / "folder").mkdir()
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    with pytest.raises(SettingsError, match=complaint) as validated:
        notes_of(tmp_path, api=api)
    with pytest.raises(SettingsError) as started:
        prepare_place(Path(api.removeprefix("socket = ").format(tmp_path)))
    assert started.value.message == validated.value.message


@pytest.mark.parametrize("path", ["{0}/plain", "{0}/plain/state", "/proc/st", "{0}/none/none", "{0}/open"])
def test_a_state_directory_that_cannot_be_used(tmp_path: Path, path: str) -> None:
    (tmp_path / "plain").touch()
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    with pytest.raises(SettingsError) as validated:
        notes_of(tmp_path, f"state_path = {path}\n")
    with pytest.raises(StateError) as started:
        check_state_path(Path(path.format(tmp_path)))
    assert started.value.message == validated.value.message


@pytest.mark.parametrize(
    ("more", "complaint"),
    [
        ("[placement]\nserve = unix:{0}/s\n", "serve and .* socket are both"),
        ("[placement]\nserve = 127.0.0.1:8778,127.0.0.1:8778\n", "names 127.0.0.1:8778 twice"),
        ("[http]\nlisten = 127.0.0.1:9464,localhost:9464\n", "names 127.0.0.1:9464 twice"),
        (
            "[placement]\nserve = localhost:8778\n[http]\nlisten = 127.0.0.1:8778\n",
            "serve and .* listen are both 127.0.0.1:8778",
        ),
        (f"{REMOTE}endpoint_override = 127.0.0.1:8778\n", "is no URL"),
        (f"{REMOTE}endpoint_override = http://127.0.0.1:99999\n", "is no URL"),
        (f"{REMOTE}endpoint_override = http:/placement\n", "is no URL"),
        (f"{REMOTE}endpoint_override = http://one:8778, two:8778\n", "override = two:8778 is no URL"),
        (f"{REMOTE}endpoint_override = https://one, https://u:p@two\n", "contains a password"),
        (f"{REMOTE}endpoint_override = ,\n", "is no URL"),
    ],
)
def test_an_address_that_can_never_work(tmp_path: Path, more: str, complaint: str) -> None:
    with pytest.raises(SettingsError, match=complaint):
        notes_of(tmp_path, more=more)


@pytest.mark.parametrize(
    ("addresses", "said"),
    [
        ("https://one:8778, https://two:8778", []),
        ("https://one:8778,", ["has a comma with no address beside it"]),
        ("https://one,,https://two", ["has a comma with no address beside it"]),
        ("https://one,https://ONE:443/", ["names one:443 2 times"]),
        ("https://one/placement,https://one/other", []),
        ("http://one:8778,https://two:8778", ["has http and https addresses: where it is http"]),
        ("http://one,http://one,https://two,", ["comma", "names one:80 2 times", "http and https"]),
    ],
)
def test_what_is_odd_about_the_addresses_of_several_servers_is_noted(
    tmp_path: Path, addresses: str, said: list[str]
) -> None:
    notes = notes_of(tmp_path, more=f"{REMOTE}endpoint_override = {addresses}\n")
    assert len(notes) == len(said)
    assert all(words in note for words, note in zip(said, notes, strict=True)), notes


def test_a_password_in_what_is_no_url_is_not_shown(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="is no URL") as caught:
        notes_of(tmp_path, more=f"{REMOTE}endpoint_override = me:canary@placement\n")
    assert "canary" not in caught.value.message


def test_a_file_that_is_missing_and_cpus_that_are_not_there_are_noted(tmp_path: Path) -> None:
    more = f"{REMOTE}endpoint_override = https://[::1]:8778/x\ncafile = {{0}}/none.pem\n"
    (note,) = notes_of(tmp_path, more=more)
    assert "cafile" in note and "No such file" in note
    (note,) = notes_of(tmp_path, more="[compute]\ncpu_shared_set = 0-5000\n")
    assert "not online" in note and "5000" in note


def test_a_misspelt_variable_of_the_default_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OS_DEFAULT__HOTS", "node2")
    with pytest.raises(SettingsError, match=r"OS_DEFAULT__HOTS.*'host'"):
        notes_of(tmp_path)


def test_a_full_disk_does_not_keep_the_agent_from_its_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "open", full)
    check_accepts_files(tmp_path)
    check_api_socket(tmp_path / "s")


def test_what_only_the_agents_user_may_is_a_note(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(directory: Path) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("agent.config.check.check_accepts_files", denied)
    assert [note.partition(": ")[0] for note in notes_of(tmp_path)] == [
        "checked only as far as this user may"
    ] * 2
    with pytest.raises(SettingsError, match="Permission denied"):
        prepare_place(tmp_path / "s")
