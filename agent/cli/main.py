"""The entry point of `plimsoll`: parse, run, and end with an exit code, never with a traceback.

The command line is imported by `main`, not before it, so that Ctrl-C ends it in the same way from the start.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Sequence
    from types import TracebackType


def say_interrupted(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """The hook for exceptions outside `main`: what Ctrl-C interrupts there is not worth a traceback.

    Python then ends by the signal, which a shell shows as 130, too.
    """
    if issubclass(kind, KeyboardInterrupt):
        print("plimsoll: interrupted", file=sys.stderr)
    else:
        sys.__excepthook__(kind, error, trace)


sys.excepthook = say_interrupted


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code, one of those that `plimsoll --help` lists."""
    try:
        import signal

        if "agent" in (sys.argv if argv is None else argv):
            # Before the slow imports: a reload while the agent starts stays pending until its service runs.
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})
        return _main(argv)
    except KeyboardInterrupt:
        # What the interrupt left half made, such as http.client's response, complains when it is taken down.
        sys.unraisablehook = lambda _: None
        print("plimsoll: interrupted", file=sys.stderr)
        return 130  # agent.cli.parser.INTERRUPTED, which may not be imported yet


def _main(argv: Sequence[str] | None) -> int:
    import os

    from agent.cli.daemon import agent
    from agent.cli.output import show_error
    from agent.cli.parser import DEBUG, READER_GONE, build, defaults
    from agent.errors import ExitCode, PlimsollError

    closed = _prepare_streams()
    args = defaults()
    try:
        try:
            words = sys.argv[1:] if argv is None else argv
            build(words).parse_args(words, args)
            return _run(args)
        finally:
            sys.stdout.flush()
            if closed:
                _say_what_was_done()
    except PlimsollError as error:
        show_error(args, error)
        return error.exit_code
    except BrokenPipeError:
        _drop_output()
        _say_what_was_done()
        return READER_GONE
    except OSError as error:
        _drop_output()
        print(f"plimsoll: {error.strerror or error}: {error.filename or 'standard output'}", file=sys.stderr)
        _say_what_was_done()
        return ExitCode.FAILED
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


def _prepare_streams() -> bool:
    """Make both streams usable: a hook may start the command with descriptors closed, and in any encoding.

    Returns whether standard output was closed.
    """
    import io

    closed = sys.stdout is None
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, io.StringIO())
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    return closed


def _drop_output() -> None:
    """Discard the buffered output, else the interpreter fails once more when it flushes at its end."""
    import contextlib
    import io
    import os

    with contextlib.suppress(io.UnsupportedOperation):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _say_what_was_done() -> None:
    """Name what the agent did for a command whose answer nothing shows: the caller must not do it again."""
    from agent.cli import client
    from agent.cli.output import what_was_done

    if client.written:
        print(f"plimsoll: the answer was not shown, and it is done: {what_was_done()}", file=sys.stderr)


def _run(args: Namespace) -> int:
    import signal

    from agent import __version__
    from agent.cli.daemon import agent
    from agent.errors import ExitCode, UsageError

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
    if args.run is not agent:  # the word was an argument of another command
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGHUP})
    code: int = args.run(args)
    return code


if __name__ == "__main__":
    sys.exit(main())
