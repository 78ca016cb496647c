"""How the cards that are known can be divided, as data. Pure.

Mixed sizes of vGPUs (Ampere and later): the unit of the axis is a GiB of frame buffer; the starts are those
that the driver computes: NVIDIA/open-gpu-kernel-modules 595.45.04,
src/nvidia/src/kernel/virtualization/kernel_vgpu_mgr.c, _kvgpumgrSetHeterogeneousResources. MIG: the unit is a
memory slice; the starts are those of `nvidia-smi mig -lgipp` in NVIDIA's "Multi-Instance GPU User Guide".
"""

from collections.abc import Mapping
from dataclasses import dataclass

from agent.providers.cards.division import CardModel, Shape

VFS = "virtual functions"
COMPUTE = "compute slices"
MEDIA = "media engines"


@dataclass(frozen=True, slots=True)
class MixedSizes:
    """A card in mixed-size mode: the GiB of its axis, and {GiB of a vGPU: the starts that it may have}."""

    slots: int
    starts: Mapping[int, tuple[int, ...]]

    def model(self, sizes: Mapping[str, int], vfs: int) -> CardModel:
        """The card for these shapes {name: GiB} and a number of virtual functions. Each part takes one.

        Raises KeyError for a size that the card does not have in this mode.
        """
        shapes = {name: Shape(name, gib, self.starts[gib], {VFS: 1}) for name, gib in sizes.items()}
        return CardModel(self.slots, {VFS: vfs}, shapes)


def _every(step: int, end: int) -> tuple[int, ...]:
    return tuple(range(0, end, step))


_A100_80 = {
    4: tuple(sorted([*range(0, 80, 10), *range(6, 80, 10)])),
    8: (0, 12, 20, 32, 40, 52, 60, 72),
    10: _every(10, 80),
    16: (0, 24, 40, 64),
    20: _every(20, 80),
    40: (0, 40),
    80: (0,),
}

_A40 = {
    2: (0, 4, 6, 10, 12, 16, 18, 22, 24, 28, 30, 34, 36, 40, 42, 46),
    3: _every(3, 48),
    4: (0, 8, 12, 20, 24, 32, 36, 44),
    6: _every(6, 48),
    8: (0, 16, 24, 40),
    12: _every(12, 48),
    16: (0, 32),
    24: (0, 24),
    48: (0,),
}

MIXED_SIZES: Mapping[str, MixedSizes] = {
    "A16": MixedSizes(16, {1: _every(1, 16), 2: _every(2, 16), 4: _every(4, 16), 8: _every(8, 16), 16: (0,)}),
    "A40": MixedSizes(
        48,
        {
            1: (
                0,
                2,
                3,
                5,
                6,
                9,
                11,
                12,
                14,
                15,
                17,
                18,
                20,
                21,
                23,
                24,
                26,
                27,
                29,
                30,
                33,
                35,
                36,
                38,
                39,
                41,
                42,
                44,
                45,
                47,
            ),
            **_A40,
        },
    ),
    "L40": MixedSizes(48, {1: (0, 5, 6, 11, 12, 17, 18, 23, 24, 29, 30, 35, 36, 41, 42, 47), **_A40}),
    "L40S": MixedSizes(48, {1: (0, 5, 6, 11, 12, 17, 18, 23, 24, 29, 30, 35, 36, 41, 42, 47), **_A40}),
    "L4": MixedSizes(
        24,
        {
            1: (0, 2, 3, 5, 6, 8, 9, 11, 12, 14, 15, 17, 18, 20, 21, 23),
            2: (0, 4, 6, 10, 12, 16, 18, 22),
            3: _every(3, 24),
            4: (0, 8, 12, 20),
            6: _every(6, 24),
            8: (0, 16),
            12: (0, 12),
            24: (0,),
        },
    ),
    "A100 40 GB": MixedSizes(
        40,
        {
            4: (0, 6, 10, 16, 20, 26, 30, 36),
            5: _every(5, 40),
            8: (0, 12, 20, 32),
            10: _every(10, 40),
            20: (0, 20),
            40: (0,),
        },
    ),
    "A100 80 GB": MixedSizes(80, _A100_80),
    "H100 80 GB": MixedSizes(80, {**_A100_80, 5: _every(5, 80)}),
}
"""{card: how it is divided in mixed-size mode}, one GPU of the card"""


def _mig(name: str, size: int, starts: tuple[int, ...], compute: int, media: int = 0) -> Shape:
    return Shape(name, size, starts, {COMPUTE: compute, **({MEDIA: media} if media else {})}, "MIG")


def _mig_card(slots: int, compute: int, *shapes: Shape) -> CardModel:
    return CardModel(slots, {COMPUTE: compute, MEDIA: 1}, {shape.name: shape for shape in shapes})


def _seven_slices(gib: int) -> CardModel:
    """A card of 7 compute and 8 memory slices of `gib` GiB."""
    return _mig_card(
        8,
        7,
        _mig(f"1g.{gib}gb", 1, _every(1, 7), 1),
        _mig(f"1g.{gib}gb+me", 1, _every(1, 7), 1, media=1),
        _mig(f"1g.{2 * gib}gb", 2, (0, 2, 4, 6), 1),
        _mig(f"2g.{2 * gib}gb", 2, (0, 2, 4), 2),
        _mig(f"3g.{4 * gib}gb", 4, (0, 4), 3),
        _mig(f"4g.{4 * gib}gb", 4, (0,), 4),
        _mig(f"7g.{8 * gib}gb", 8, (0,), 7, media=1),
    )


MIG: Mapping[str, CardModel] = {
    "A100 40 GB": _seven_slices(5),
    "A100 80 GB": _seven_slices(10),
    "H100 80 GB": _seven_slices(10),
    "A30": _mig_card(
        4,
        4,
        _mig("1g.6gb", 1, _every(1, 4), 1),
        _mig("1g.6gb+me", 1, _every(1, 4), 1, media=1),
        _mig("2g.12gb", 2, (0, 2), 2),
        _mig("2g.12gb+me", 2, (0, 2), 2, media=1),
        _mig("4g.24gb", 4, (0,), 4, media=1),
    ),
}
"""{card: how MIG divides it}"""


def same_size(frame_buffer: int, sizes: Mapping[str, int], most: Mapping[str, int]) -> CardModel:
    """A card in same-size mode: vGPUs of one size exclude those of every other.

    `frame_buffer` is the card's GiB, `sizes` {shape: GiB}, `most` {shape: how many the driver allows}.
    """
    shapes = {name: Shape(name, counters={f"{gib} GiB": 1}, mode=f"{gib} GiB") for name, gib in sizes.items()}
    counters = {
        f"{gib} GiB": min(most.get(name, frame_buffer // gib), frame_buffer // gib)
        for name, gib in sizes.items()
    }
    return CardModel(frame_buffer, counters, shapes)
