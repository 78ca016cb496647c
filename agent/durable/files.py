"""Durable files and directories, synced to disk, a lock file that names its holder, and the kernel's files.

Those are the small texts, numbers and links below /sys and /proc.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import pwd
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from mmap import ACCESS_READ, mmap
from pathlib import Path

FILE_MODE = 0o600
DIRECTORY_MODE = 0o700
PID_WIDTH = 31
NO_SPACE = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
NO_NAMELESS_FILES = frozenset({errno.EOPNOTSUPP, errno.EISDIR})
SIZE_MAX = 65536
_NUMBER = re.compile(r"[0-9]{1,19}", re.ASCII)
_BLACKWELL = ((0x2900, 0x2A00), (0x2B80, 0x2E00), (0x2F00, 0x2F80), (0x3180, 0x3280))
_CC_REGISTERS = {range(0x22F0, 0x2380): 0x1182CC} | dict.fromkeys((range(*ids) for ids in _BLACKWELL), 0x590)
"""{ids of NVIDIA's GPUs: where in their BAR 0 the mode is}"""
_CC_MODES = {0: "off", 1: "on", 3: "devtools"}
_COMMAND, _MEMORY_SPACE = 4, 2
KERNEL_FILE_SYSTEMS = (Path("/proc"), Path("/sys"))


class LockHeld(Exception):
    """Another process holds the lock; `pid` is None if the lock file does not name it."""

    def __init__(self, pid: int | None) -> None:
        super().__init__(pid)
        self.pid = pid


def is_there(path: Path) -> bool:
    """Whether the path exists. Raises OSError where that cannot be told.

    From Python 3.14 on, `Path.exists` answers False then.
    """
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def read_text(path: Path) -> str | None:
    """The text of a small file, as the kernel's are, without blanks around it; None where there is none.

    It is cut to SIZE_MAX characters, and what is not UTF-8 is replaced.
    """
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            return file.read(SIZE_MAX).strip()
    except OSError:
        return None


def read_number(path: Path) -> int | None:
    """The whole number in a small file; None where there is none."""
    text = read_text(path) or ""
    return int(text) if _NUMBER.fullmatch(text) else None


def read_bytes(path: Path, size: int) -> bytes | None:
    """The first bytes of the file, unbuffered: so many and no more are asked of the kernel."""
    try:
        with path.open("rb", buffering=0) as file:
            return file.read(size)
    except OSError:
        return None


def link_name(path: Path) -> str:
    """The last part of what the link leads to; empty where it is no link."""
    try:
        return path.readlink().name
    except OSError:
        return ""


def entries(path: Path) -> list[Path]:
    """What is in the folder, by name; nothing where it cannot be read."""
    try:
        return sorted(path.iterdir())
    except OSError:
        return []


def sriov_profile(function: Path) -> Path | None:
    """The folder with what the card's driver (Intel's xe) gives a virtual function, None without one.

    `function` is its folder in sysfs. Source: Linux, from 6.19 on,
    Documentation/ABI/testing/sysfs-driver-intel-xe-sriov
    """
    for folder in (function / "physfn" / "sriov_admin").glob("vf[0-9]*"):
        if link_name(folder / "device") == function.name:
            return folder / "profile"
    return None


def vram_quota(function: Path) -> tuple[Path, bool] | None:
    """(the file with the bytes of VRAM of a virtual function, whether it can be changed); from Linux 7.0 on.

    None where its card has no such files, see `sriov_profile`.
    """
    profile = sriov_profile(function)
    with contextlib.suppress(OSError):
        if profile is not None:
            return profile / "vram_quota", bool((profile / "vram_quota").stat().st_mode & 0o222)
    return None


def cc_register(card: Path) -> int | None:
    """Where in its memory the card has the register with its `cc_mode`, None where it has no such mode."""
    with contextlib.suppress(ValueError):
        product = int(read_text(card / "device") or "", 16)
        if read_text(card / "vendor") == "0x10de" and not (card / "physfn").exists():
            return next((at for products, at in _CC_REGISTERS.items() if product in products), None)
    return None


def cc_mode(card: Path) -> str | None:
    """In which mode of confidential computing the card is, one of NVIDIA's GPUs since Hopper: "on".

    None where that cannot be read: only root may, while the card is awake, and not where a kernel with strict
    access to I/O memory has given it to a driver, or is locked down.

    Source: query_cc_mode of https://github.com/NVIDIA/gpu-admin-tools
    """
    register = cc_register(card)
    command = (read_bytes(card / "config", 6) or b"").ljust(6, b"\0")[_COMMAND]
    if register is None or read_text(card / "power_state") != "D0" or not command & _MEMORY_SPACE:
        return None
    with (
        contextlib.suppress(OSError, ValueError),
        (card / "resource0").open("rb") as file,
        mmap(file.fileno(), register + 4, access=ACCESS_READ) as bar,
        memoryview(bar) as view,
        view.cast("I") as words,
    ):
        word = words[register // 4]
        is_bad = word == 0xFFFFFFFF or word >> 16 == 0xBADF
        return None if is_bad else _CC_MODES.get(word & 3)
    return None


def cc_modes(
    cards: Iterable[Path],
    former: Mapping[str, str],
    awake: Callable[[Path], contextlib.AbstractContextManager[None]],
) -> dict[str, str]:
    """{card: its `cc_mode`, read in the context `awake`; that of `former` where it cannot be read}."""
    modes = {}
    for card in (each for each in cards if cc_register(each) is not None):
        mode = former.get(card.name)
        with contextlib.suppress(OSError), awake(card):
            mode = cc_mode(card) or mode
        if mode is not None:
            modes[card.name] = mode
    return modes


def make_directory(path: Path) -> None:
    """Create the directory and its missing parents, with mode 0700, and sync each one. Raises OSError."""
    if not path.is_dir():
        make_directory(path.parent)
        path.mkdir(mode=DIRECTORY_MODE, exist_ok=True)
        sync_directory(path.parent)


def check_accepts_files(directory: Path) -> None:
    """Check that this process may make files in the directory; none appears there. Raises OSError.

    A full disk is no reason: what becomes of that is the writer's to decide. A file system without O_TMPFILE
    is believed to accept files, but for those of the kernel.
    """
    try:
        os.close(os.open(directory, os.O_TMPFILE | os.O_WRONLY | os.O_CLOEXEC, FILE_MODE))
    except OSError as error:
        if error.errno in NO_SPACE:
            return
        if error.errno not in NO_NAMELESS_FILES:
            raise
        if any(directory.resolve().is_relative_to(root) for root in KERNEL_FILE_SYSTEMS):
            raise OSError(errno.EOPNOTSUPP, "no file can be made there") from error


def owner_beside_root(path: Path) -> str | None:
    """The user name (or uid) of the directory's owner, if this process is root and the owner is not.

    Otherwise None. Raises OSError.
    """
    uid = path.stat().st_uid
    if os.geteuid() != 0 or uid == 0:
        return None
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def make_file(path: Path) -> None:
    """Create an empty file with mode 0600 unless it exists, and sync its directory."""
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE))
    sync_directory(path.parent)


def take_lock(path: Path) -> int:
    """Lock the file at `path`, creating it if necessary, and write this process's pid into it.

    Returns the descriptor; the lock ends when it is closed or the process ends. Raises LockHeld where another
    process has the lock, OSError.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # Over the former pid, without a truncation: on a full disk others could take the block.
        with suppress_full_disk():
            os.pwrite(descriptor, f"{os.getpid():<{PID_WIDTH}}\n".encode(), 0)
    except BlockingIOError:
        text = os.pread(descriptor, PID_WIDTH, 0).decode("ascii", "replace").strip()
        os.close(descriptor)
        raise LockHeld(int(text) if text.isdigit() else None) from None
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


@contextlib.contextmanager
def suppress_full_disk() -> Iterator[None]:
    """Go on behind the block if the disk has no space for what it does."""
    try:
        yield
    except OSError as error:
        if error.errno not in NO_SPACE:
            raise


def lock_file_itself(path: Path) -> int:
    """Lock the file at `path`, which keeps its content; the lock does not depend on other files.

    As `take_lock`. The lock is one of flock(2), which the locks of SQLite (fcntl) do not meet. The caller
    closes the descriptor after all its other ones of the file: closing any descriptor of a file drops the
    process's fcntl locks on it.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise LockHeld(None) from None
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def sync_file(path: Path) -> None:
    """Sync the file's content to disk."""
    _sync(path, os.O_RDWR)


def sync_directory(path: Path) -> None:
    """Sync the directory's entries to disk."""
    _sync(path, os.O_RDONLY | os.O_DIRECTORY)


def _sync(path: Path, flags: int) -> None:
    descriptor = os.open(path, flags | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_atomically(path: Path, text: str, mode: int = FILE_MODE) -> None:
    """Replace the file's content by `text`, which survives a power cut after this returns. Raises OSError.

    What is no regular file, such as a pipe or /dev/null, takes the text and is not replaced.
    """
    if path.exists() and not path.is_file():
        path.write_text(text, encoding="utf-8")
        return
    scratch = path.with_name(f".{path.name}.{os.getpid()}.new")
    try:
        descriptor = os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, FILE_MODE)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            os.fchmod(descriptor, mode)
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        scratch.replace(path)
    except OSError:
        scratch.unlink(missing_ok=True)
        raise
    sync_directory(path.parent)
