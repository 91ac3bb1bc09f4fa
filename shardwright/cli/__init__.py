"""The command line: one module per command, and the one place where errors become exit codes."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Sequence

OUR_FAULT = 1


def main() -> None:
    """Entry point of ``shardwright``."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a terminal may lack some characters
    code = execute(sys.argv[1:])
    try:
        sys.stdout.flush()
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python flushes once more
        if not isinstance(error, BrokenPipeError):  # who reads has seen enough
            code = _report(error, debug=False)
    sys.exit(code)


def execute(arguments: Sequence[str]) -> int:
    """Run one command and return its exit code.

    0 done, 2 wrong input, 3 no feasible plan, 4 a run failed, 1 our own fault, 130 interrupted.
    Errors are one message on stderr; ``--debug``, anywhere on the line, adds the traceback.
    """
    debug = "--debug" in arguments
    try:
        _check_text(arguments)
        from shardwright.cli.app import app

        app([word for word in arguments if word != "--debug"], prog_name="shardwright")
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else 0 if stop.code is None else OUR_FAULT
    except Exception as error:  # the boundary: whatever escapes a command ends here
        return _report(error, debug=debug)
    return 0


def _check_text(arguments: Sequence[str]) -> None:
    """Refuse what no file and no answer of ours could repeat."""
    for word in arguments:
        try:
            word.encode()
        except UnicodeEncodeError:
            from shardwright.specs.errors import InputError

            raise InputError(
                f"{word!a} is not UTF-8 text",
                fix="rename the file or folder, or write a valid name",
            ) from None


def _report(error: Exception, *, debug: bool) -> int:
    """Print one message for any error, and say by its exit code whose hands it is in."""
    from shardwright.specs.errors import InputError, ShardwrightError

    if debug:
        import traceback

        traceback.print_exception(error)
    if isinstance(error, OSError):
        error = InputError(
            f"{error.filename}: {error.strerror}" if error.filename else f"{error.strerror}",
            fix="check the path, its permissions and the space that is left",
        )
    if isinstance(error, ShardwrightError):
        sys.stderr.write(f"error: {error}\n")
        return error.exit_code
    sys.stderr.write(
        f"error: this is a fault of shardwright, not yours: {type(error).__name__}: {error}."
        " To fix: run the same command with --debug and report what it prints\n"
    )
    return OUR_FAULT
