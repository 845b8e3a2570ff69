"""The driver of `lowtide solve METHOD`: problems in, answers out, one JSON object a line.

A line is `{"problem": {...}, "budget": N or null, ...options}`; the kind of problem shows in its fields. The answer is
`{"feasible": true, ...}`, or `{"feasible": false, "needed": least budget}`, or `{"error": "line 3: budget: ..."}`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, TextIO

from lowtide.errors import BudgetTooSmall, InvalidProblem
from lowtide.planners.fields import shown
from lowtide.solve import chain, dag, program, sizes
from lowtide.solve.solver import Answer, Solver

SOLVED, MALFORMED = 0, 1  # exit codes


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of problem.

    name      its name, as messages give it
    marks     the fields of such a problem
    solvers   the methods for it, by name
    """

    name: str
    marks: tuple[str, ...]
    solvers: Mapping[str, Solver]


KINDS = (
    Kind("chain", chain.MARKS, chain.SOLVERS),
    Kind("sizes", sizes.MARKS, sizes.SOLVERS),
    Kind("dag", dag.MARKS, dag.SOLVERS),
    Kind("program", program.MARKS, program.SOLVERS),
)


def methods() -> dict[str, list[str]]:
    """The methods there are, each with the kinds of problem that it solves."""
    found: dict[str, list[str]] = {}
    for kind in KINDS:
        for method in kind.solvers:
            found.setdefault(method, []).append(kind.name)
    return dict(sorted(found.items()))


def run(method: str, lines: Iterable[bytes], answers: TextIO, complaints: TextIO) -> int:
    """Answer every line as soon as it is read; the exit code. Blank lines are passed over."""
    if method not in methods():
        complaints.write(f"lowtide solve: there is no method {method!r} (known: {', '.join(methods())})\n")
        return MALFORMED
    read, malformed = 0, 0
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        read += 1
        answer = answer_line(method, line, number)
        malformed += "error" in answer
        answers.write(json.dumps(answer) + "\n")
        answers.flush()
    if not read:
        complaints.write('lowtide solve: no problem on standard input; give {"problem": {...}, "budget": N} a line\n')
    return SOLVED if read and not malformed else MALFORMED


def answer_line(method: str, line: bytes, number: int) -> Answer:
    """The answer to one line."""
    try:
        fields = _fields(line)
        budget = _budget(fields)
        problem = fields["problem"]
        solver = _solver(method, problem)
        options = _options(method, solver, fields)
    except InvalidProblem as error:
        return {"error": f"line {number}: {error}"}
    try:
        return {"feasible": True, **solver.solve(solver.parse(problem), budget, options)}
    except BudgetTooSmall as error:
        return {"feasible": False, "needed": error.needed}
    except InvalidProblem as error:
        message = str(error)
        if not message.startswith(error.field):
            message = f"{error.field}: {message}"
        beside = error.field == "problem" or error.field in solver.options
        return {"error": f"line {number}: {message if beside else f'problem.{message}'}"}


def _fields(line: bytes) -> dict[str, Any]:
    try:
        fields = json.loads(line.decode(), object_pairs_hook=_once, parse_constant=_no_constant)
    except RecursionError:
        raise InvalidProblem("not JSON that can be read: nested too deeply", "line") from None
    except InvalidProblem:
        raise
    except ValueError as error:  # not UTF-8, not JSON, or a number of more digits than Python reads
        raise InvalidProblem(f"not JSON: {error}", "line") from error
    if not isinstance(fields, dict):
        raise InvalidProblem(f"{shown(fields)} is not an object with the fields problem and budget", "line")
    for name in ("problem", "budget"):
        if name not in fields:
            hint = " (null for no limit)" if name == "budget" else ""
            raise InvalidProblem(f"{name}: missing{hint}", name)
    return fields


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise InvalidProblem(f"{twice}: given twice", twice)
    return fields


def _no_constant(word: str) -> None:
    raise ValueError(f"{word} is no number")


def _budget(fields: Mapping[str, Any]) -> int | None:
    budget = fields["budget"]
    if budget is not None and (type(budget) is not int or budget < 0):
        raise InvalidProblem(f"budget: {shown(budget)} is not a whole number of bytes >= 0, nor null", "budget")
    return budget


def _solver(method: str, problem: object) -> Solver:
    """The method's solver for the kind of problem that this is: of the kinds that the method solves, the one of which
    it has most fields, so that the parser names what is missing and what is too much.
    """
    suited = [kind for kind in KINDS if method in kind.solvers]
    kind = max(suited, key=partial(_likeness, problem))
    likest = max(KINDS, key=partial(_likeness, problem))
    if _likeness(problem, kind) == 0 < _likeness(problem, likest):
        wanted = " and ".join(f"{one.name} problems ({one.marks[0]}, ...)" for one in suited)
        raise InvalidProblem(f"problem: {method} solves {wanted}, and this is a {likest.name} problem", "problem")
    return kind.solvers[method]


def _likeness(problem: object, kind: Kind) -> int:
    """How many fields of such a problem there are. Text can only be a Program's."""
    if isinstance(problem, str):
        return kind.marks is program.MARKS
    return sum(mark in problem for mark in kind.marks) if isinstance(problem, Mapping) else 0


def _options(method: str, solver: Solver, fields: Mapping[str, Any]) -> dict[str, Any]:
    options = {name: value for name, value in fields.items() if name not in ("problem", "budget")}
    for name in options:
        if name not in solver.options:
            known = ", ".join(solver.options) or "none"
            raise InvalidProblem(f"{name}: {method} has no such option for this problem (known: {known})", name)
    return {name: solver.options[name](value, name) for name, value in options.items()}
