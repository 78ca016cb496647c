"""The entry point of `plimsoll`: parse, run, and end with an exit code, never with a traceback."""

import contextlib
import io
import os
import sys
from argparse import Namespace
from collections.abc import Sequence

from agent import __version__
from agent.cli.agent import agent
from agent.cli.output import show_error
from agent.cli.parser import DEBUG, INTERRUPTED, READER_GONE, build, defaults
from agent.errors import ExitCode, PlimsollError, UsageError


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code, one of those that `plimsoll --help` lists."""
    _prepare_streams()
    args = defaults()
    try:
        try:
            build().parse_args(argv, args)
            return _run(args)
        finally:
            sys.stdout.flush()
    except PlimsollError as error:
        show_error(error, args.output)
        return error.exit_code
    except BrokenPipeError:
        _drop_output()
        return READER_GONE
    except OSError as error:
        _drop_output()
        print(f"plimsoll: {error.strerror or error}: {error.filename or 'standard output'}", file=sys.stderr)
        return ExitCode.FAILED
    except KeyboardInterrupt:
        print("plimsoll: interrupted", file=sys.stderr)
        return INTERRUPTED
    except (ArithmeticError, AttributeError, ImportError, LookupError, TypeError, ValueError) as error:
        # The agent logs the traceback.
        if os.environ.get(DEBUG) or getattr(args, "run", None) is agent:
            raise
        cause = f"{type(error).__name__}: {error}"
        print(
            f"plimsoll: failed in an unexpected way ({cause}); {DEBUG}=1 shows where",
            file=sys.stderr,
        )
        return ExitCode.FAILED


def _prepare_streams() -> None:
    """Make both streams usable: a hook may start the command with descriptors closed, and in any encoding."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, io.StringIO())
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _drop_output() -> None:
    """Discard the buffered output, else the interpreter fails once more when it flushes at its end."""
    with contextlib.suppress(io.UnsupportedOperation):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _run(args: Namespace) -> int:
    if args.version:
        print(f"plimsoll {__version__}")
        return ExitCode.DONE
    if args.run is None:
        args.missing.error("a command is missing")
    if args.output == "csv" and not args.has_table:
        # Before the command runs: one that writes would have written.
        raise UsageError(
            "the answer of this command is not one table, so it cannot be csv: take json or yaml"
        )
    code: ExitCode = args.run(args)
    return code


if __name__ == "__main__":
    sys.exit(main())
