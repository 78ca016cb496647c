"""The entry point of `plimsoll`: parse, run, end with an exit code and never with a traceback."""

import contextlib
import io
import os
import sys
from argparse import Namespace
from collections.abc import Sequence

from agent import __version__
from agent.cli import commands
from agent.cli.output import show_error
from agent.cli.parser import DEBUG, INTERRUPTED, READER_GONE, build, defaults
from agent.errors import ExitCode, PlimsollError


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; the answer is the exit code, as `plimsoll --help` lists them."""
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
        # A daemon that ends like this leaves all there is to know in its log.
        if os.environ.get(DEBUG) or getattr(args, "run", None) is commands.agent:
            raise
        what = f"{type(error).__name__}: {error}"
        print(
            f"plimsoll: failed in a way that was not foreseen ({what}); {DEBUG}=1 shows where",
            file=sys.stderr,
        )
        return ExitCode.FAILED


def _prepare_streams() -> None:
    """Whatever a caller left of them: hooks start commands with descriptors closed, and in any encoding."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, io.StringIO())
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _drop_output() -> None:
    """Else the interpreter would fail once more, when it flushes at its end what nobody takes."""
    with contextlib.suppress(io.UnsupportedOperation):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _run(args: Namespace) -> int:
    if args.version:
        print(f"plimsoll {__version__}")
        return ExitCode.DONE
    if args.run is None:
        args.missing.error("a command is missing")
    code: ExitCode = args.run(args)
    return code


if __name__ == "__main__":
    sys.exit(main())
