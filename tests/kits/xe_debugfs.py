"""What Intel's xe shows of contexts and doorbells below /sys/kernel/debug/dri, and how it gives them.

Source: drivers/gpu/drm/xe of Linux. xe_gt_sriov_pf_debugfs.c of 6.12 has the first layout; the same,
xe_sriov_pf_debugfs.c, xe_tile_sriov_pf_debugfs.c and xe_gt_debugfs.c of 6.19 have the second.
xe_gt_sriov_pf_config.c (`pf_provision_vf_ctxs`, `pf_provision_vf_dbs`), xe_guc_id_mgr.c and xe_guc_db_mgr.c
have the allocators: what a function has is given back first, and one range of the new number is looked for.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

LAYOUTS = ("6.12", "6.19")
CONTEXTS, DOORBELLS = "contexts", "doorbells"
TOTAL = {CONTEXTS: 65535, DOORBELLS: 256}
SPARE = {CONTEXTS: 256, DOORBELLS: 0}
OF_HOST = 16
"""Contexts of the host's own work, at the lower end."""
TOTAL_VFS = 5
Range = tuple[int, int]


class XeDebugfs:
    """The folder of the card below `sys`, with `gts` GTs, the first of which is the primary one."""

    def __init__(self, sys: Path, card: str, layout: str, gts: int = 2) -> None:
        self.root = sys / "kernel" / "debug" / "dri" / card
        self.layout, self.gts = layout, gts
        self._taken: dict[tuple[int, str], dict[int, Range]] = {}
        for gt in range(gts):
            self._taken[gt, CONTEXTS], self._taken[gt, DOORBELLS] = {0: (0, OF_HOST)}, {}
            for vf in range(TOTAL_VFS + 1):
                self._populate(gt, vf)
        if layout == "6.19":
            (self.root / "sriov" / "restore_auto_provisioning").touch()
        self._quotas = {
            self.quota(gt, vf, what).resolve(): (gt, vf, what)
            for gt, what in self._taken
            for vf in range(1, TOTAL_VFS + 1)
        }
        for number in ("0", "128"):
            (self.root.parent / number).symlink_to(card)

    def _populate(self, gt: int, vf: int) -> None:
        name = f"vf{vf}" if vf else "pf"
        folder = self.folder(gt, vf)
        folder.mkdir(parents=True)
        for what in (CONTEXTS, DOORBELLS):
            (folder / f"{what}_{'quota' if vf else 'spare'}").write_text(f"{0 if vf else SPARE[what]}\n")
        for file in ("exec_quantum_ms", "preempt_timeout_us"):
            (folder / file).write_text("0\n")
        if self.layout == "6.19":  # what clients of the first layout look for are links
            legacy = self.root / "tile0" / f"gt{gt}"
            legacy.mkdir(parents=True, exist_ok=True)
            (legacy / name).symlink_to(f"../../sriov/{name}/tile0/gt{gt}")
            if not vf:
                (self.root / f"gt{gt}").symlink_to(f"tile0/gt{gt}")

    def folder(self, gt: int, vf: int) -> Path:
        name = f"vf{vf}" if vf else "pf"
        if self.layout == "6.19":
            return self.root / "sriov" / name / "tile0" / f"gt{gt}"
        return self.root / f"gt{gt}" / name

    def quota(self, gt: int, vf: int, what: str) -> Path:
        return self.folder(gt, vf) / f"{what}_quota"

    def of(self, vf: int) -> tuple[str, ...]:
        """What the function has, such as 8192/32, of each GT."""
        return tuple(
            "/".join(self.quota(gt, vf, what).read_text().strip() for what in (CONTEXTS, DOORBELLS))
            for gt in range(self.gts)
        )

    def share(self, vfs: int) -> None:
        """As after a boot: so many functions share all that there is (`xe_gt_sriov_pf_config_set_fair`)."""
        for gt, what in self._taken:
            for vf in range(1, TOTAL_VFS + 1):
                self.give(gt, vf, what, 0)
            for vf in range(1, vfs + 1):
                used = OF_HOST if what == CONTEXTS else 0
                self.give(gt, vf, what, (TOTAL[what] - SPARE[what] - used) // vfs)

    def write(self, path: Path, text: str) -> None:
        """Write to a file of a quota, as the kernel does. Raises OSError."""
        self.give(*self._quotas[path.resolve()], int(text))

    def give(self, gt: int, vf: int, what: str, number: int) -> None:
        taken, file = self._taken[gt, what], self.quota(gt, vf, what)
        if number > TOTAL[what]:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        taken.pop(vf, None)
        file.write_text("0\n")
        if not number:
            return
        used = sum(count for _, count in taken.values())
        if SPARE[what] and used + number + SPARE[what] > TOTAL[what]:
            raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))
        holes = [(start, end) for start, end in self._holes(gt, what) if end - start >= number]
        if not holes:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        taken[vf] = (holes[-1][1] - number if what == CONTEXTS else holes[0][0], number)
        file.write_text(f"{number}\n")

    def _holes(self, gt: int, what: str) -> Iterator[Range]:
        end = 0
        for start, count in sorted(self._taken[gt, what].values()):
            if start > end:
                yield end, start
            end = start + count
        if end < TOTAL[what]:
            yield end, TOTAL[what]
