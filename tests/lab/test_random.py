"""Devices and guests come and go at random, behind the agent's back; each time its tree and its guests' units
become what sysfs and libvirt say. `--minutes` bounds it, `--seed` repeats it.
"""

import random
import time
from collections.abc import Callable, Iterator
from uuid import UUID

import pytest
from kits.lab_node import UNIT, Node, Prepare, Truth, alone
from test_one_node import DEVICES, TYPES

NICS = ("0000:41:00.0", "0000:81:00.0")
A100 = "0000:84:00.0"
M60S = ("0000:42:00.0", "0000:82:00.0")
T4S = ("0000:43:00.0", "0000:83:00.0")
GUESTS_MAX = 4
"""Each is a QEMU under emulation, and 48 MiB."""
SETTLED_WITHIN_S = 120


class Chaos:
    """One thing at a time, chosen among those that make sense as things are."""

    def __init__(self, node: Node, seed: int) -> None:
        self.node = node
        self.random = random.Random(seed)
        self.known: dict[str, str] = {}
        self.truth = self.look()
        self.made = 0

    def look(self) -> Truth:
        truth = self.node.truth(TYPES, self.known)
        self.known |= truth.units
        return truth

    def step(self) -> None:
        actions = [*self._functions(), *self._mediated(), *self._guests(), *self._services()]
        weights = [weight for weight, _ in actions]
        ((_, action),) = self.random.choices(actions, weights)
        action()
        self.settle()

    def settle(self) -> None:
        """Until the agent says the same as the host."""
        end = time.monotonic() + SETTLED_WITHIN_S
        while True:
            self.truth = self.look()
            told = self.node.devices(), self.node.units()
            if told == (self.truth.totals, self.truth.guests):
                return
            assert time.monotonic() < end, f"{told}\nis not\n{self.truth}\n{self.node.log()}"
            time.sleep(1)

    # What can be done now: (weight, action)

    def _functions(self) -> Iterator[tuple[float, Callable[[], None]]]:
        for card in (*NICS, A100):
            units = {unit for unit, owner in self.known.items() if owner == card}
            if not units & self._named():
                number = self.random.choice((0, 1, 3, 4))
                yield 1, self._command(f"labdev vfs {card} {number}")

    def _mediated(self) -> Iterator[tuple[float, Callable[[], None]]]:
        for card in M60S:
            for kind in ("nvidia-11", "nvidia-11", "nvidia-12", "nvidia-22"):
                verb = self.random.choice(("mdev", "mdev", "define"))
                yield 0.5, self._command(f"labdev {verb} {card} {kind} {self._uuid()}")
        for function in self.truth.functions.get(A100, ()):
            yield 0.5, self._command(f"labdev mdev {function} nvidia-471 {self._uuid()}")
        for uuid in self.truth.mdevs:
            name = f"$(virsh nodedev-list mdev | grep {uuid.replace('-', '_')})"
            yield 2 / len(self.truth.mdevs), self._command(f"virsh nodedev-destroy {name}")

    def _guests(self) -> Iterator[tuple[float, Callable[[], None]]]:
        states, free = self.truth.states, self._free()
        if free and len(states) < GUESTS_MAX:
            asked = " ".join(self.random.sample(free, min(len(free), self.random.choice((1, 1, 2)))))
            verb = self.random.choice(("create", "define"))
            self.made += 1
            yield 4, self._command(f"labvm {verb} vm{self.made} uuid={self._uuid()} {asked}")
        for name, state in states.items():
            if state == "running":
                yield 1, self._command(f"virsh destroy {name}")
            else:
                yield 1, self._command(f"virsh start {name}")
                yield 0.7, self._command(f"virsh undefine {name}")

    def _services(self) -> Iterator[tuple[float, Callable[[], None]]]:
        yield 0.3, self._command("systemctl restart libvirtd")
        yield 0.3, self._command(f"systemctl restart {UNIT}")

    # Below

    def _named(self) -> set[str]:
        return {unit for units in self.truth.guests.values() for _, unit, _ in units}

    def _free(self) -> list[str]:
        functions = (vf for card in NICS for vf in self.truth.functions.get(card, ()))
        found = [
            *(("vf", vf) for vf in functions),
            *(("mdev", uuid) for uuid in self.truth.mdevs),
            *(("pci", card) for card in T4S),
        ]
        return [f"{kind}={unit}" for kind, unit in found if unit not in self._named()]

    def _uuid(self) -> str:
        return str(UUID(int=self.random.getrandbits(128), version=4))

    def _command(self, command: str) -> Callable[[], None]:
        """What cannot be (no room on the card, a device in use) is refused, and changes nothing."""
        return lambda: void(self.node.run(command, ends=(0, 1)))


def void(_: object) -> None:
    pass


@pytest.mark.timeout(4 * 3600)
def test_the_tree_follows_whatever_happens(prepare: Prepare, request: pytest.FixtureRequest) -> None:
    (node,) = prepare(1)
    seed = request.config.getoption("--seed") or random.SystemRandom().randrange(2**32)
    minutes = request.config.getoption("--minutes")
    node.title(f"Devices and guests at random, for {minutes:g} minutes, seed {seed}")
    node.configure(alone(node.name, DEVICES))
    node.start()
    chaos = Chaos(node, seed)
    chaos.settle()
    end, steps = time.monotonic() + 60 * minutes, 0
    while time.monotonic() < end:
        chaos.step()
        steps += 1
    node.run("plimsoll tree; plimsoll instances")
    node.ready()
    node.title(f"{steps} steps, and after each the tree was what the host had")
