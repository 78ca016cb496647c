"""Settings: everything wrong is refused with a sentence, everything right says where it came from."""

from __future__ import annotations

import errno
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kits.examples import examples
from kits.paths import CHECKOUT

from agent.claims.device_profiles import ProfileGroup
from agent.config import settings as settings_module
from agent.config.check import check_start
from agent.config.options import all_options, driver_classes, sample
from agent.config.settings import (
    FILES_MAX,
    Settings,
    describe,
    load,
    load_device_profiles,
    load_provider_config,
    parse_reserved_pages,
    reload,
)
from agent.driver import ReservedPages
from agent.errors import SettingsError
from agent.providers.provider_config import ProviderConfig


def written(path: Path, text: str) -> Path:
    path.touch(mode=0o600)
    path.write_text(text, encoding="utf-8")
    return path


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return written(tmp_path / "plimsoll.conf", "[DEFAULT]\ncompute_driver = fake\nhost = node1\n")


def refusal(file: Path, text: str) -> SettingsError:
    written(file, "[DEFAULT]\ncompute_driver = fake\n" + text)
    with pytest.raises(SettingsError) as caught:
        load([file])
    return caught.value


def test_the_operators_words_arrive_frozen(file: Path) -> None:
    written(
        file,
        """
[DEFAULT]
compute_driver = fake
host = node1
state_path = /srv/plimsoll
reserved_host_memory_mb = 2048
cpu_allocation_ratio = 2.5
[compute]
cpu_shared_set = 0-3,^2,8
cpu_dedicated_set = 10-12
[fake]
host_file = /etc/plimsoll/host.yaml
""",
    )
    settings = load([file])
    assert settings.host == settings.driver.host == "node1"
    assert settings.state_path == Path("/srv/plimsoll")
    host = settings.driver.host_settings
    assert host.reserved_host_memory_mb == 2048
    assert host.cpu_allocation_ratio == 2.5
    assert host.ram_allocation_ratio is None
    assert host.cpu_shared_set == frozenset((0, 1, 3, 8))
    assert host.cpu_dedicated_set == frozenset((10, 11, 12))
    assert settings.driver.options["fake"]["host_file"] == "/etc/plimsoll/host.yaml"
    with pytest.raises(TypeError):
        settings.driver.options["fake"]["host_file"] = "x"  # type: ignore[index]


def test_nova_s_defaults(file: Path) -> None:
    settings = load([file])
    assert settings.driver.host_settings.reserved_host_memory_mb == 512
    assert settings.driver.host_settings.initial_cpu_allocation_ratio == 4.0
    assert settings.association_refresh_s == 300
    assert settings.placement.kind == "embedded"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("reserved_host_memroy_mb = 1\n", ["reserved_host_memroy_mb", "reserved_host_memory_mb"]),
        ("[placment]\nkind = remote\n", ["[placment]", "'placement'"]),
        ("cpu_dedicated_set = 1\n", ["[DEFAULT]", "[compute]"]),
        ("reserved_host_cpus = few\n", ["reserved_host_cpus = few", "a whole number not below 0"]),
        ("update_resources_interval = 0\n", ["from 1 to 86400"]),
        ("[placement]\nkind = local\n", ["one of embedded, remote"]),
        ("[compute]\ncpu_shared_set = 0-x\n", ["cpu_shared_set = 0-x", "CPU ids and ranges"]),
        ("[compute]\ncpu_shared_set = 1,^1\n", ["it excludes every CPU"]),
        ("[compute]\ncpu_shared_set = 0-4\ncpu_dedicated_set = 4-7\n", ["both name CPU 4"]),
        ("reserved_host_cpus = 2\n[compute]\ncpu_dedicated_set = 4-7\n", ["has no effect"]),
        ("[placement]\nkind = remote\n", ["auth_url and username and password"]),
        ("[placement]\nkind = remote\nauth_type = none\n", ["endpoint_override"]),
        ("state_path = plimsoll\n", ["state_path = plimsoll", "an absolute path"]),
        ("[api]\nsocket = /" + "x" * 120 + "\n", ["107 bytes"]),
        ("host = two words\n", ["'two words'"]),
        ("host = $nowhere\nstate_path = /x/$state_path2\n", ["$$ stands for a dollar sign"]),
        ("[api]\nadmins = no-such-user-here\n", ["no-such-user-here"]),
        ("[claims]\nstrategy = full\n", ["[claims] strategy = full", "neither pack nor spread"]),
        ("[claims]\nstrategy = VGPUS:pack\n", ["VGPUS is no standard resource class", "did you mean VGPU"]),
        ("cap = VGPUS=4\n", ["cap = VGPUS=4", "VGPUS is no standard resource class", "did you mean VGPU"]),
        ("[placement]\nowner_trait = OWNER_MINE\n", ["owner_trait: OWNER_MINE is no standard trait"]),
        ("this is no option\n", ["line 3"]),
    ],
)
def test_what_is_wrong_is_named(file: Path, text: str, words: list[str]) -> None:
    error = refusal(file, text)
    for word in words:
        assert word in error.message


def test_a_bad_value_says_file_group_option_value_and_what_is_allowed(file: Path) -> None:
    error = refusal(file, "[compute]\nresource_provider_association_refresh = soon\n")
    assert error.details == {
        "file": str(file),
        "group": "compute",
        "option": "resource_provider_association_refresh",
        "value": "soon",
        "allowed": "a whole number from 0 to 86400",
    }


@pytest.mark.parametrize("value", ["nan", "inf", "-1", "0", "much"])
def test_a_ratio_is_a_finite_number(file: Path, value: str) -> None:
    assert refusal(file, f"[DEFAULT]\ncpu_allocation_ratio = {value}\n").details["value"] == value


def test_an_unknown_driver_names_the_installed_ones(file: Path) -> None:
    written(file, "[DEFAULT]\ncompute_driver = xen\n")
    with pytest.raises(SettingsError, match=r"xen is not installed; installed are .*fake"):
        load([file])


def test_the_driver_has_a_word_on_its_own_options(file: Path) -> None:
    check_start(load([file]))
    written(file, "[DEFAULT]\ncompute_driver = fake\n[fake]\nhost_file = /nowhere/host.yaml\n")
    with pytest.raises(SettingsError, match=r"/nowhere/host\.yaml"):
        check_start(load([file]))


def test_an_option_before_any_group_is_named_with_its_line(file: Path) -> None:
    for text in ("host = x\n[DEFAULT]\n", "# about\n\nhost = x\n\n[DEFAULT]\n", "host = x"):
        written(file, text)
        with pytest.raises(SettingsError, match=f"error in line {3 if '#' in text else 1}: Section must be"):
            load([file])


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"gone\.conf cannot be read: No such file"):
        load([tmp_path / "gone.conf"])


@pytest.mark.parametrize("kind", ["file", "directory"])
def test_what_may_not_be_read_is_named_with_who_may(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, real = tmp_path / "x.conf", Path.open
    path.mkdir()

    def refused(self: Path, *arguments: Any, **words: Any) -> Any:
        if self == path:
            raise PermissionError(errno.EACCES, "Permission denied")
        return real(self, *arguments, **words)

    monkeypatch.setattr(Path, "open", refused)
    monkeypatch.setattr(Path, "iterdir", refused)
    with pytest.raises(SettingsError, match=rf"{kind} {path} cannot be read: .*as root or as the agent's"):
        load([path] if kind == "file" else [], [path] if kind == "directory" else [])


def test_a_file_that_is_no_text(tmp_path: Path) -> None:
    (tmp_path / "x.conf").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(SettingsError, match="not UTF-8"):
        load([tmp_path / "x.conf"])


def test_the_environment_beats_the_file_and_is_shown_as_origin(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OS_DEFAULT__HOST", "node2")
    settings = load([file])
    assert settings.host == "node2"
    shown = describe(settings)
    assert shown["DEFAULT"]["host"] == {"value": "node2", "origin": "environment OS_DEFAULT__HOST"}
    assert shown["DEFAULT"]["compute_driver"]["origin"] == str(file)
    assert shown["DEFAULT"]["reserved_host_cpus"]["origin"] == "default"


def test_a_misspelt_variable_of_our_groups_is_refused(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OS_DATABASE__CONNECTION", "somebody else's")
    load([file])
    monkeypatch.setenv("OS_PLACEMENT__KNID", "remote")
    with pytest.raises(SettingsError, match=r"OS_PLACEMENT__KNID.*'kind'"):
        load([file])


def test_a_bad_value_in_the_environment_is_named_as_such(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OS_DEFAULT__RESERVED_HOST_CPUS", "-3")
    with pytest.raises(SettingsError, match=r"environment OS_DEFAULT__RESERVED_HOST_CPUS.*= -3"):
        load([file])


def test_later_files_win_and_each_value_knows_its_own_file(file: Path, tmp_path: Path) -> None:
    directory = tmp_path / "conf.d"
    directory.mkdir()
    written(directory / "20-b.conf", "[DEFAULT]\nreserved_host_cpus = 2\n")
    written(directory / "10-a.conf", "[DEFAULT]\nreserved_host_cpus = 1\nreserved_host_disk_mb = 7\n")
    written(directory / "notes.txt", "no configuration")
    (directory / ".#20-b.conf").symlink_to("somebody@edits-this")
    shown = describe(load([file], [directory]))["DEFAULT"]
    assert shown["reserved_host_cpus"] == {"value": 2, "origin": str(directory / "20-b.conf")}
    assert shown["reserved_host_disk_mb"] == {"value": 7, "origin": str(directory / "10-a.conf")}
    assert shown["host"]["origin"] == str(file)


REMOTE = (
    "[placement]\nkind = remote\nauth_url = http://[::1]:5000\nusername = plimsoll\npassword = canary-$$1\n"
)


def test_secrets_are_never_shown(file: Path) -> None:
    written(file, "[DEFAULT]\ncompute_driver = fake\n" + REMOTE)
    settings = load([file])
    assert settings.placement.options["password"] == "canary-$1"
    assert settings.secrets == frozenset(("canary-$1",))
    assert describe(settings)["placement"]["password"]["value"] == "***"
    assert "canary" not in repr(settings) + str(describe(settings)) + repr(settings.table)


def test_a_bad_line_with_a_secret_is_not_repeated(file: Path) -> None:
    assert "canary" not in refusal(file, "[placement]\npassword canary\n").message


def test_a_dollar_sign_in_a_secret_is_told_without_the_secret(file: Path) -> None:
    told = refusal(file, "[placement]\npassword = canary$ary\n").message
    assert "where $$ stands for a dollar sign" in told and "ary" not in told.replace(str(file), "")


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o644])
def test_a_secret_that_others_may_read_is_refused(file: Path, mode: int) -> None:
    written(file, "[DEFAULT]\ncompute_driver = fake\n" + REMOTE)
    file.chmod(mode)
    with pytest.raises(SettingsError) as caught:
        load([file])
    told = caught.value.message
    assert str(file) in told and "[placement] password" in told and f"{mode:04o}" in told
    assert "LoadCredential=placement.password:PATH" in told and "canary" not in told


def test_a_secret_in_the_environment_is_refused(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OS_PLACEMENT__TOKEN", "canary")
    with pytest.raises(SettingsError, match="environment OS_PLACEMENT__TOKEN") as caught:
        load([written(file, "[DEFAULT]\ncompute_driver = fake\n")])
    assert "canary" not in caught.value.message


@pytest.mark.parametrize("option", ["auth_url", "endpoint_override"])
def test_a_password_in_an_address_is_refused(file: Path, option: str) -> None:
    addresses = {
        "auth_url": "http://k",
        "endpoint_override": "http://p",
        option: "https://u:canary@h:5000/v3",
    }
    lines = "".join(f"{name} = {url}\n" for name, url in addresses.items())
    told = refusal(file, f"[placement]\nkind = remote\nusername = u\npassword = pw\n{lines}").message
    assert f"[placement] {option} contains a password" in told and "canary" not in told


def test_a_secret_comes_by_credential(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written(file, "[DEFAULT]\ncompute_driver = fake\n" + REMOTE.replace("password = canary-$$1\n", ""))
    written(tmp_path / "placement.password", "canary\n")
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(tmp_path))
    settings = load([file])
    assert settings.placement.options["password"] == "canary"
    assert describe(settings)["placement"]["password"]["origin"] == "credential placement.password"


def test_a_command_run_by_hand_finds_the_credential_of_the_service(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written(file, "[DEFAULT]\ncompute_driver = fake\n" + REMOTE.replace("password = canary-$$1\n", ""))
    running, kept = tmp_path / "running", tmp_path / "kept"
    monkeypatch.setattr(settings_module, "STORES", (running, kept))
    monkeypatch.delenv("CREDENTIALS_DIRECTORY", raising=False)
    with pytest.raises(SettingsError, match=r"needs password.*LoadCredential"):
        load([file])
    for directory, secret in ((kept, "of the next one"), (running, "of the running one")):
        directory.mkdir()
        stored = written(directory / "placement.password", f"{secret}\n")
        settings = load([file])
        assert settings.placement.options["password"] == secret
        assert describe(settings)["placement"]["password"]["origin"] == f"credential {stored}"
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(tmp_path))
    with pytest.raises(SettingsError, match="needs password"):
        load([file])


def test_a_reload_changes_what_it_can_and_names_what_needs_a_restart(file: Path) -> None:
    running = load([file])
    written(
        file, "[DEFAULT]\ncompute_driver = fake\nhost = node9\nreserved_host_cpus = 3\n[log]\nlevel = debug\n"
    )
    reloaded = reload(running, [file])
    assert reloaded.changed == ("[DEFAULT] reserved_host_cpus", "[log] level")
    assert reloaded.restart == ("[DEFAULT] host",)
    assert reloaded.settings.host == reloaded.settings.driver.host == "node1"
    assert reloaded.settings.driver.host_settings.reserved_host_cpus == 3
    assert describe(reloaded.settings)["DEFAULT"]["host"]["value"] == "node1"


def test_a_bad_reload_raises_and_leaves_the_running_settings(file: Path) -> None:
    running = load([file])
    before = describe(running)
    written(file, "[DEFAULT]\ncompute_driver = fake\nreserved_host_cpus = many\n")
    with pytest.raises(SettingsError):
        reload(running, [file])
    assert describe(running) == before


class Opened:
    """The names of the files that this process opens below `root`, once that is set."""

    root: Path | None = None
    names: list[Path] = []  # noqa: RUF012 - an audit hook cannot be removed: there is one

    @classmethod
    def hear(cls, event: str, arguments: tuple[object, ...]) -> None:
        """See `sys.addaudithook`."""
        if cls.root is not None and event == "open" and str(arguments[0]).startswith(f"{cls.root}/"):
            cls.names.append(Path(str(arguments[0])))


def settle(*paths: Path) -> None:
    """As if the last program had written to them a minute ago."""
    for path in paths:
        os.utime(path, (time.time() - 60, time.time() - 60))


def test_a_reload_opens_each_file_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What another process writes between two readings would be used without having been judged."""
    configs, providers = tmp_path / "conf.d", tmp_path / "provider_config"
    configs.mkdir()
    providers.mkdir()
    first, second, profiles = configs / "1.conf", configs / "2.conf", tmp_path / "profiles.yaml"
    provider = written(providers / "a.yaml", SAMPLE.read_text(encoding="utf-8"))
    written(first, "[DEFAULT]\ncompute_driver = fake\nhost = node1\n[placement]\npassword = x\n")
    written(second, f"[claims]\ndevice_profiles = {profiles}\n")
    written(second, second.read_text() + f"[compute]\nprovider_config_location = {providers}\n")
    profiles.write_text(ONE)
    settle(first, second, profiles, provider, configs, providers)
    running = load([], [configs])
    sys.addaudithook(Opened.hear)
    monkeypatch.setattr(Opened, "names", [])
    monkeypatch.setattr(Opened, "root", tmp_path)
    reload(running, [], [configs])
    monkeypatch.setattr(Opened, "root", None)
    assert sorted(Opened.names) == sorted((first, second, profiles, provider))


@settings(max_examples=examples(40), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_a_reload_beside_a_writer_takes_a_whole_file_or_nothing(
    file: Path, monkeypatch: pytest.MonkeyPatch, data: st.DataObject
) -> None:
    """A process writes the file in place, in pieces; each opening of it, and each pause, is one piece later.

    A half of the file may be valid, too: then nothing of it may be taken.
    """
    texts = {str(n): f"[DEFAULT]\ncompute_driver = fake\nhost = node1\ncap = VCPU={n}\n" for n in (1, 2)}
    written(file, texts["1"])
    settle(file)
    running = load([file])
    marks = data.draw(st.lists(st.integers(0, len(texts["2"]) - 1), min_size=1, max_size=6).map(sorted))
    pieces = iter([texts["2"][:mark] for mark in marks] + [texts["2"]])

    def write(*_: object) -> None:
        piece = next(pieces, None)
        if piece is None:
            settle(file)
        else:
            file.write_text(piece, encoding="utf-8")

    real_open, real_sleep = Path.open, time.sleep

    def opened(path: Path, *arguments: Any, **words: Any) -> Any:
        stream = real_open(path, *arguments, **words)
        if path == file and arguments == ("rb",):
            with real_open(file, "w", encoding="utf-8") as other:
                other.write(next(pieces, texts["2"]))
        return stream

    with monkeypatch.context() as patches:
        patches.setattr(Path, "open", opened)
        patches.setattr(settings_module.time, "sleep", write)
        patches.setattr(settings_module, "SETTLED_S", 30)  # a slow machine, too
        patches.setattr(settings_module, "UNSETTLED_MAX_S", 0.2)
        try:
            caps = reload(running, [file]).settings.provider_config.caps
        except SettingsError as error:
            assert "is being written" in error.message or "conf" in error.message
        else:
            assert caps in ({"VCPU": 1}, {"VCPU": 2})
    assert time.sleep is real_sleep


def test_a_reload_whose_file_is_being_written_says_so(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    running = load([file])
    monkeypatch.setattr(settings_module.time, "sleep", lambda _: file.write_text(""))
    monkeypatch.setattr(settings_module, "UNSETTLED_MAX_S", 0.1)
    with pytest.raises(SettingsError, match=f"{file} is being written; reload again when that is done"):
        reload(running, [file])


def test_a_reload_does_not_take_the_defaults_of_a_file_that_is_gone(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settings_module, "DEFAULT_FILE", file)
    monkeypatch.setattr(settings_module, "DEFAULT_DIRECTORY", tmp_path / "none.d")
    running = load()
    file.unlink()
    with pytest.raises(SettingsError, match=f"{file} is gone: put it back, or restart the agent"):
        reload(running)


def test_the_sample_is_a_good_file_and_has_every_option(tmp_path: Path) -> None:
    text = sample()
    load([written(tmp_path / "sample.conf", text + "\n[DEFAULT]\ncompute_driver = fake\n")])
    for group, options in describe(load([tmp_path / "sample.conf"])).items():
        assert f"[{group}]" in text
        for option in options:
            assert f"#{option} =" in text


def test_the_sample_s_defaults_are_the_defaults(tmp_path: Path, file: Path) -> None:
    lines = [
        line.removeprefix("#") if line.startswith("#") and not line.startswith("# ") else line
        for line in sample().splitlines()
    ]
    fixed = [line for line in lines if not line.startswith(("#", "host =", "readers =", "compute_driver ="))]
    path = written(
        tmp_path / "full.conf", "\n".join(fixed) + "\n[DEFAULT]\ncompute_driver = fake\nhost = node1\n"
    )
    assert load([path]).driver.host_settings == load([file]).driver.host_settings
    assert load([path]).placement == load([file]).placement


def test_the_packaged_sample_is_what_the_options_say() -> None:
    packaged = CHECKOUT / "etc" / "plimsoll" / "plimsoll.conf"
    assert packaged.read_text(encoding="utf-8") == sample()


MDEVS = "[devices]\nenabled_mdev_types = nvidia-35\n"


def test_groups_that_a_driver_names_by_a_pattern(file: Path) -> None:
    text = "[DEFAULT]\ncompute_driver = libvirt\nhost = node1\n" + MDEVS
    written(file, text + "[mdev_nvidia-35]\nmax_instances = 3\n[pci]\ndevice_spec = {}\ndevice_spec = []\n")
    settings = load([file])
    assert settings.driver.options["mdev_nvidia-35"] == {
        "device_addresses": (),
        "mdev_class": "VGPU",
        "max_instances": 3,
    }
    assert settings.driver.options["pci"]["device_spec"] == ("{}", "[]")
    assert settings.driver.state_path == settings.state_path
    assert "mdev_<type>" not in settings.table
    written(file, text + "[mdev_nvidia-36]\nmdev_class = CUSTOM_X\n")
    again = reload(settings, [file])
    assert set(again.changed) == {"[mdev_nvidia-36] mdev_class", "[mdev_nvidia-35]", "[pci] device_spec"}
    with pytest.raises(SettingsError, match=r"\[mdev_nvidia-36\] is of a type that"):
        check_start(again.settings)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "[mdev_nvidia-35]\nmax_instance = 3\n",
            "has no option 'max_instance'; the nearest one is 'max_instances'",
        ),
        ("[mdev_nvidia-35]\nmax_instances = 0\n", "a whole number not below 1"),
        ("[mdev_]\nmax_instances = 3\n", r"there is no group \[mdev_\]"),
        ("[mdev_<type>]\nmax_instances = 3\n", "of a type that"),
    ],
)
def test_groups_of_a_pattern_are_checked_as_all_are(file: Path, text: str, message: str) -> None:
    written(file, "[DEFAULT]\ncompute_driver = libvirt\nhost = node1\n" + MDEVS + text)
    with pytest.raises(SettingsError, match=message):
        check_start(load([file]))


OPTIONS = [
    (group.replace("<type>", "nvidia-11"), option.dest)
    for group, options in all_options(driver_classes()[0]).items()
    for option in options
]
VALUES = (
    st.text(st.characters(blacklist_categories=("Cs",), blacklist_characters="\r\n\x00"), max_size=20)
    | st.sampled_from(
        ["", "0", "-1", "1e400", "nan", "true", "0-3,^2", "$host", "${nothing}", "/x", "a,b", "{}", "@"]
    )
    | st.integers(-(2**70), 2**70).map(str)
)
LINES = st.tuples(st.sampled_from(OPTIONS), VALUES)


@settings(max_examples=examples(150), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(LINES, max_size=4), st.sampled_from(["fake", "libvirt"]))
def test_known_options_with_any_value(lines: list[tuple[tuple[str, str], str]], driver: str) -> None:
    text = f"[DEFAULT]\ncompute_driver = {driver}\n"
    check(text + "".join(f"[{group}]\n{option} = {value}\n" for (group, option), value in lines))


@settings(max_examples=examples(150), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.binary(max_size=200) | st.text(max_size=200).map(lambda text: text.encode("utf-8", "surrogatepass"))
)
def test_any_bytes_at_all(content: bytes) -> None:
    check(content)


def check(content: str | bytes) -> None:
    with tempfile.NamedTemporaryFile(suffix=".conf") as file:
        file.write(content.encode() if isinstance(content, str) else content)
        file.flush()
        try:
            found = load((Path(file.name),))
        except SettingsError as error:
            assert error.message
            return
        assert isinstance(found, Settings)
        assert describe(found)


def test_the_pages_of_each_node_and_size() -> None:
    texts = ["node:0,size:2048,count:64", " node:1, size:1GB, count:1", ""]
    assert parse_reserved_pages(texts) == (ReservedPages(0, 2048, 64), ReservedPages(1, 1 << 20, 1))


@pytest.mark.parametrize(
    "text",
    [
        "64",
        "node:0,size:2048",
        "node:0,size:big,count:1",
        "node:a,size:4,count:1",
        "node:0,size:4,count:1,x:2",
    ],
)
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(SettingsError, match="is not node:N,size:SIZE,count:N"):
        parse_reserved_pages([text])


# The files that options name: provider config files and device profiles, read, and refused as a whole

SAMPLE = CHECKOUT / "etc/plimsoll/provider_config/provider.yaml.sample"
HEAD = "meta: {schema_version: '1.0'}\nproviders:\n"


def one(text: str) -> str:
    return f"{HEAD}  - {text}\n"


def test_the_files_of_a_directory_are_read_by_name(tmp_path: Path) -> None:
    assert load_provider_config(tmp_path / "none", required=False) == ProviderConfig()
    with pytest.raises(SettingsError, match="cannot be read"):
        load_provider_config(tmp_path / "none", required=True)
    with pytest.raises(SettingsError, match="cannot be read"):
        load_provider_config(SAMPLE, required=False)
    for name in ("b", "a"):
        text = one(f"{{identification: {{name: {name}}}, traits: {{additional: [CUSTOM_T]}}}}")
        (tmp_path / f"{name}.yaml").write_text(text)
    (tmp_path / "c.yaml.sample").write_text("nonsense: [")
    (tmp_path / ".#a.yaml").symlink_to("somebody@edits-this")
    assert [each.name for each in load_provider_config(tmp_path, required=True).entries] == ["a", "b"]
    (tmp_path / "d.yaml").mkdir()
    with pytest.raises(SettingsError, match=r"d.yaml cannot be read"):
        load_provider_config(tmp_path, required=True)
    for number in range(FILES_MAX):
        (tmp_path / f"{number}.yaml").write_text("")
    with pytest.raises(SettingsError, match="are allowed"):
        load_provider_config(tmp_path, required=True)


ONE = "- {name: a, groups: [{'resources:FPGA': 1}]}\n"


def test_the_settings_have_the_profiles_and_a_reload_those_of_the_file_now(tmp_path: Path) -> None:
    profiles, file = tmp_path / "profiles.yaml", tmp_path / "plimsoll.conf"
    profiles.write_text(ONE)
    file.write_text(f"[DEFAULT]\nstate_path = {tmp_path}\n[claims]\ndevice_profiles = {profiles}\n")
    running = load([file])
    assert running.device_profiles == {"a": (ProfileGroup({"FPGA": 1}),)}
    assert "the device profiles" not in reload(running, [file]).changed
    profiles.write_text(ONE.replace("1}", "2}"))
    again = reload(running, [file])
    assert again.changed == ("the device profiles",)
    assert again.settings.device_profiles == {"a": (ProfileGroup({"FPGA": 2}),)}
    profiles.write_text("[")
    with pytest.raises(SettingsError, match="not valid YAML"):
        reload(again.settings, [file])


def test_without_the_option_there_are_none_and_a_missing_file_is_named(tmp_path: Path) -> None:
    file = tmp_path / "plimsoll.conf"
    file.write_text(f"[DEFAULT]\nstate_path = {tmp_path}\n")
    assert load([file]).device_profiles == {}
    with pytest.raises(SettingsError, match=r"device_profiles = .*/none cannot be read: No such file"):
        load_device_profiles(tmp_path / "none")
    file.write_text("[claims]\ndevice_profiles = profiles.yaml\n")
    with pytest.raises(SettingsError, match="must be an absolute path"):
        load([file])
