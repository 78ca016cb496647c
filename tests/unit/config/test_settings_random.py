"""Whatever stands in a configuration file, it is either good settings or one SettingsError."""

import tempfile
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kits.examples import examples

from agent.config.options import all_options, driver_classes
from agent.config.settings import Settings, describe, load
from agent.errors import SettingsError

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
