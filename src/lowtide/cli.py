"""The command line. Nothing here imports torch unless the command asked for needs it."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TextIO

import lowtide


def main(argv: Sequence[str] | None = None) -> int:
    """Carry out one command; the exit code."""
    parser = argparse.ArgumentParser(prog="lowtide", description=lowtide.__doc__)
    parser.add_argument("--version", action="version", version=f"lowtide {lowtide.__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    _add_solve(commands)
    arguments = parser.parse_args(argv)
    try:
        code: int = arguments.carry_out(arguments)
    except BrokenPipeError:
        # The reader has gone, as `head` does. Python would complain once more when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except KeyboardInterrupt:
        return 130
    return code


def _add_solve(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    command = commands.add_parser(
        "solve",
        help="answer bare problems, one JSON object a line",
        description='Read {"problem": {...}, "budget": bytes or null, ...options} a line on standard input; '
        'write {"feasible": true, ...}, {"feasible": false, "needed": bytes} or {"error": "..."} a line, in order. '
        "The exit code is 1 if any line was malformed, or there was none.",
    )
    command.add_argument("method", metavar="METHOD", help="rotor, min_peak, ...; a wrong one lists them all")
    command.set_defaults(carry_out=_solve)


def _solve(arguments: argparse.Namespace) -> int:
    from lowtide import solve

    with _stdout_for_answers() as answers:
        return solve.run(arguments.method, sys.stdin.buffer, answers, sys.stderr)


@contextmanager
def _stdout_for_answers() -> Iterator[TextIO]:
    """Standard output for nobody but us, to the end of the process: HiGHS, which SciPy calls, now and then prints a
    line of its own, which goes to standard error instead.
    """
    with os.fdopen(os.dup(sys.stdout.fileno()), "w") as answers:
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
        yield answers
