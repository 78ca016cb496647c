"""The fewest refusals beside what is free that any choice of cells comes down to without knowing the future.

    python -m benchmarks.stranded_floor

The guests of benchmarks/stranded.py come to its host of two cells, at random moments, and stay for random
times. So the host is a Markov chain, of which all states are known: how many guests of each kind are on each
cell. Value iteration finds, for each state and each guest that comes, the cell that leads to the fewest
refusals of device guests beside what they need, in the long run; every guest that fits is placed. No choice
that sees only what is there now, and refuses no guest that fits, has fewer.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from benchmarks.stranded import CORES, GPU, HOSTS, KINDS, VF, Host, Kind, arrivals, run

ARRIVALS = 10_000
CPUS = 2 * CORES
ROUNDS_MAX = 2_000
CLOSE = 1e-5
Guests = tuple[int, ...]
"""How many guests of each kind a cell has."""


@dataclass(frozen=True)
class Chain:
    """The host with guests that, if all were placed, would have `load` of its CPUs in use."""

    host: Host
    load: float

    @cached_property
    def kinds(self) -> list[tuple[Kind, float]]:
        """(kind, its share of the arrivals); kinds that differ in memory alone, which suffices, are one."""
        total = sum(kind.weight for kind in KINDS)
        shares: dict[tuple[int, tuple[tuple[str, int], ...]], float] = {}
        for kind in KINDS:
            key = kind.cpus, tuple(kind.devices.items())
            shares[key] = shares.get(key, 0.0) + kind.weight / total
        return [(Kind(cpus, 0, 0.0, dict(devices)), share) for (cpus, devices), share in shares.items()]

    def free(self, cell: int, guests: Guests) -> dict[str, int]:
        """{resource: what is free on the cell}"""
        free = {"PCPU": CPUS, GPU: self.host.gpus.get(cell, 0), VF: self.host.vfs.get(cell, 0)}
        for (kind, _), number in zip(self.kinds, guests, strict=True):
            for name, amount in {"PCPU": kind.cpus, **kind.devices}.items():
                free[name] -= amount * number
        return free

    def states_of(self, cell: int) -> list[Guests]:
        """All that a cell may have on it."""

        def more(guests: Guests) -> Iterator[Guests]:
            if len(guests) == len(self.kinds):
                yield guests
                return
            rest = (0,) * (len(self.kinds) - len(guests) - 1)
            number = 0
            while min(self.free(cell, (*guests, number, *rest)).values()) >= 0:
                yield from more((*guests, number))
                number += 1

        return list(more(()))


def floor(chain: Chain) -> float:
    """The refusals beside what is free, of one arrival on average."""
    kinds = [kind for kind, _ in chain.kinds]
    cells = [chain.states_of(0), chain.states_of(1)]
    numbers = [{guests: number for number, guests in enumerate(states)} for states in cells]
    free = [[chain.free(cell, guests) for guests in cells[cell]] for cell in (0, 1)]
    width = len(cells[1])

    def changed(cell: int, index: int, kind: int, by: int) -> int | None:
        guests = cells[cell][index]
        return numbers[cell].get((*guests[:kind], guests[kind] + by, *guests[kind + 1 :]))

    after = [
        [[[changed(cell, index, kind, by) for kind in range(len(kinds))] for index in range(len(cells[cell]))]
         for by in (1, -1)]
        for cell in (0, 1)
    ]  # fmt: skip
    mean_cpus = sum(kind.cpus * share for kind, share in chain.kinds)
    leave = mean_cpus / (chain.load * chain.host.cells * CPUS)
    events = 1 + 2 * (CPUS // 2) * leave

    arriving: list[list[tuple[float, float, tuple[int, ...]]]] = []
    leaving: list[list[tuple[float, int]]] = []
    for one in range(len(cells[0])):
        for two in range(width):
            here = one * width + two
            comes, goes = [], []
            for kind, (_, share) in enumerate(chain.kinds):
                first, second = after[0][0][one][kind], after[1][0][two][kind]
                to = [first * width + two] if first is not None else []
                to += [one * width + second] if second is not None else []
                cost = 0.0 if to else refused_beside(kinds[kind], free[0][one], free[1][two])
                comes.append((share / events, cost, tuple(to) or (here,)))
                for cell, index in ((0, one), (1, two)):
                    number = cells[cell][index][kind]
                    left = after[cell][1][index][kind]
                    if number and left is not None:
                        rest = left * width + two if cell == 0 else one * width + left
                        goes.append((number * leave / events, rest))
            stays = 1 - 1 / events - sum(rate for rate, _ in goes)
            arriving.append(comes)
            leaving.append([*goes, (stays, here)])

    values = [0.0] * len(arriving)
    for _ in range(ROUNDS_MAX):
        later = [
            sum(rate * (cost + min(values[state] for state in to)) for rate, cost, to in comes)
            + sum(rate * values[state] for rate, state in goes)
            for comes, goes in zip(arriving, leaving, strict=True)
        ]
        steps = [new - old for new, old in zip(later, values, strict=True)]
        values = [value - later[0] for value in later]
        if max(steps) - min(steps) < CLOSE:
            break
    return (max(steps) + min(steps)) / 2 * events


def refused_beside(kind: Kind, one: dict[str, int], two: dict[str, int]) -> float:
    """1 where a device guest is refused, one cell has its devices free, and the host its CPUs, in sum."""
    devices = any(all(free[name] >= amount for name, amount in kind.devices.items()) for free in (one, two))
    return float(bool(kind.devices) and devices and one["PCPU"] + two["PCPU"] >= kind.cpus)


def main() -> None:
    called, host = next((called, host) for called, host in HOSTS.items() if host.cells == 2)
    total = dict.fromkeys(("former", "pack", "fewest"), 0.0)
    for load in (0.4, 0.6, 0.8):
        guests = list(arrivals(host, ARRIVALS, seed=11, load=load))
        refused = {name: float(run(host, name, guests)["stranded"]) for name in ("former", "pack")}
        refused["fewest"] = floor(Chain(host, load)) * ARRIVALS
        total = {name: total[name] + number for name, number in refused.items()}
        print(f"{called}, load {load:.0%}: " + ", ".join(f"{name} {n:.0f}" for name, n in refused.items()))
    for name in ("pack", "fewest"):
        print(f"{name}: {total[name] / total['former']:.2f} of the former choice's")


if __name__ == "__main__":
    main()
