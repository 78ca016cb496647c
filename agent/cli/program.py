"""`plimsoll claim --exec`: a program that runs with a claim, which ends with it.

The command forks before it claims, so that the claim names the process of the program, and lets the process
go on as the program once the claim is granted. The command releases the claim when the program has ended.
Where something ends the command itself, the agent does that: it looks whether the process is still there.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, NoReturn

from agent.cli.client import Client, claim_path
from agent.cpuset import format_cpu_set
from agent.device_names import DASHED_UUID, PCI_ADDRESS
from agent.errors import ExitCode, PlimsollError, UnknownConsumer, UsageError, plain
from agent.http.owner_process import OwnerProcess

if TYPE_CHECKING:
    from agent.api.shapes.instance import ClaimShape, MakingShape

SYS = Path("/sys")
NOT_FOUND, NOT_RUN, OF_A_SIGNAL = 127, 126, 128
"""Exit codes as a shell has them: no such program, a file that is none, and 128 and the signal's number."""
_NO_NAME = re.compile(r"[^A-Za-z0-9_]", re.ASCII)


class ClaimedProgram:
    """A process that waits for its claim, to become the program `command` then."""

    def __init__(self, command: list[str]) -> None:
        """Raises UsageError where no such program is found."""
        if shutil.which(command[0]) is None:
            raise UsageError(f"claim: --exec: no program {command[0]!r} is found")
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        read, write = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(write)
            _become(command, read)
        os.close(read)
        self._go = write
        self.process = OwnerProcess.of(self.pid)

    def __enter__(self) -> ClaimedProgram:
        return self

    def __exit__(self, *error: object) -> None:
        """Without a claim the process ends by itself: it reads that nothing follows."""
        if self._go >= 0:
            self._let_go("")
            os.waitpid(self.pid, 0)

    def run(self, client: Client, claim: ClaimShape) -> int:
        """Run the program with the claim, and release the claim; the program's exit code, as a shell has it.

        Raises PlimsollError where a mediated device cannot be made; the claim is released then, too.
        """
        with ExitStack() as undo:
            undo.callback(self._release, client, claim["consumer"])
            for unit, making in claim["to_make"].items():
                undo.enter_context(_mediated_device(unit, making))
            with self._signals_passed_on():
                self._let_go(json.dumps(environment_of(claim)))
                code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return code if code >= 0 else OF_A_SIGNAL - code

    def _release(self, client: Client, consumer: str) -> None:
        """Release the claim, unless it was released meanwhile and is another program's."""
        self.__exit__()  # where it waits still, as a device could not be made
        try:
            claim: ClaimShape = client.get(claim_path(consumer))
            if claim["request"].get("process") == self.process.to_json():
                client.request("DELETE", claim_path(consumer))
        except UnknownConsumer:
            pass  # the agent saw first that the program has ended
        except PlimsollError as error:
            sentence = f"the claim of {consumer} is not released yet, the agent does that: {error.message}"
            print(f"plimsoll: note: {plain(sentence)}", file=sys.stderr)

    def _let_go(self, text: str) -> None:
        with suppress(BrokenPipeError), os.fdopen(self._go, "w", encoding="utf-8") as pipe:
            pipe.write(text)
        self._go = -1

    @contextmanager
    def _signals_passed_on(self) -> Iterator[None]:
        """What is sent to the command alone goes to the program; a terminal sends Ctrl-C to both."""

        def pass_on(number: int, _: object) -> None:
            if number in (signal.SIGINT, signal.SIGQUIT):
                with suppress(OSError), Path("/dev/tty").open("rb") as terminal:
                    if os.tcgetpgrp(terminal.fileno()) == os.getpgrp():
                        return  # in the foreground of a terminal
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

        passed_on = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGQUIT)
        former = {number: signal.signal(number, pass_on) for number in passed_on}
        try:
            yield
        finally:
            for number, handler in former.items():
                signal.signal(number, handler)


class GivenDevices(NamedTuple):
    """What a claim gave that a program opens: PCI addresses, uuids of mediated devices, pinned host CPUs as a
    CPU set, and the exact units of each group with a suffix, by its name in capitals.
    """

    pci: tuple[str, ...]
    mdevs: tuple[str, ...]
    cpus: str
    groups: Mapping[str, Sequence[str]]


def given_devices(claim: ClaimShape) -> GivenDevices:
    """What the claim gave."""
    units = [unit for classes in claim["units"].values() for exact in classes.values() for unit in exact]
    # The vGPU of a function is known by its place on the card; the function is what a program opens.
    placed = {unit: making["parent"] for unit, making in claim["to_make"].items() if "placement" in making}
    units = [placed.get(unit, unit) for unit in units]
    groups: dict[str, list[str]] = {}
    for mapping in claim["mappings"]:
        if mapping["suffix"]:  # suffixes that differ in such characters alone share a name
            name = _NO_NAME.sub("_", mapping["label"]).strip("_").upper()
            of_group = [unit for by in mapping["units"].values() for exact in by.values() for unit in exact]
            groups.setdefault(name, []).extend(of_group)
    return GivenDevices(
        tuple(filter(PCI_ADDRESS.fullmatch, units)),
        tuple(filter(DASHED_UUID.fullmatch, units)),
        format_cpu_set(pin for cell in claim["cells"] for pin in cell["pinned_cpus"].values()),
        groups,
    )


def environment_of(claim: ClaimShape) -> dict[str, str]:
    """What the program finds in its environment; lists are separated by commas."""
    devices = given_devices(claim)
    return {
        "PLIMSOLL_CONSUMER": claim["consumer"],
        "PLIMSOLL_PCI_ADDRESSES": ",".join(devices.pci),
        "PLIMSOLL_MDEV_UUIDS": ",".join(devices.mdevs),
        "PLIMSOLL_CPUS": devices.cpus,
        **{f"PLIMSOLL_UNITS_{name}": ",".join(units) for name, units in devices.groups.items()},
    }


def _become(command: list[str], read: int) -> NoReturn:
    """In the forked process: wait for the environment, then be the program."""
    code = ExitCode.FAILED.value
    try:
        for number in (signal.SIGINT, signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(number, signal.SIG_DFL)
        with os.fdopen(read, encoding="utf-8") as pipe:
            text = pipe.read()
        if text:
            os.execvpe(command[0], command, {**os.environ, **json.loads(text)})  # noqa: S606 - no shell is wanted
    except FileNotFoundError:
        code = NOT_FOUND
        print(f"plimsoll: claim: --exec: no program {command[0]!r} is found", file=sys.stderr)
    except OSError as error:
        code = NOT_RUN
        print(f"plimsoll: claim: --exec: {command[0]} cannot be run: {error.strerror}", file=sys.stderr)
    finally:
        sys.stderr.flush()
        os._exit(code)


@contextmanager
def _mediated_device(uuid: str, making: MakingShape) -> Iterator[None]:
    """Make the mediated device, and remove it at the end. Raises PlimsollError where sysfs refuses it."""
    if "placement" in making:  # the carver writes the type of a vGPU of a function, and keeps it
        yield
        return
    folder = SYS / "bus" / "pci" / "devices" / making["parent"] / "mdev_supported_types" / making["type"]
    try:
        (folder / "create").write_text(uuid, encoding="ascii")
    except OSError as error:
        raise PlimsollError(
            f"the mediated device {uuid} cannot be made on {making['parent']} as {making['type']} "
            f"({error.strerror}): run the command as root, or make the device before, and claim it then"
        ) from error
    try:
        yield
    finally:
        with suppress(OSError):  # it went with its card, or a program holds it open still
            (SYS / "bus" / "mdev" / "devices" / uuid / "remove").write_text("1", encoding="ascii")
