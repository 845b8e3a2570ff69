"""Methods for a captured Program: every planner there is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lowtide import referee
from lowtide.errors import InvalidProblem, InvalidProgram
from lowtide.planners.fields import check_names
from lowtide.planners.promise import every_op_once
from lowtide.planners.registry import PLANNERS, Planner
from lowtide.program import Program
from lowtide.solve.solver import Answer, Solver

MARKS = ("values", "ops")
TOTAL = 2**53  # planners reckon in doubles, which are exact below


def _parse(problem: object) -> Program:
    """The Program in its text form or as a JSON object."""
    try:
        if isinstance(problem, str):
            program = Program.parse(problem)
        else:
            program = Program.from_json(check_names(problem, MARKS))
    except InvalidProgram as error:
        message = f"problem: {error}"
        raise InvalidProblem(message if len(message) <= 160 else message[:157] + "...", "problem") from error
    for name, numbers in (
        ("bytes", [value.bytes for value in program.values]),
        ("scratch", [op.scratch for op in program.ops]),
        ("ns", [op.ns for op in program.ops]),
    ):
        if sum(numbers) >= TOTAL:
            raise InvalidProblem(f"problem: {name} adds up to {sum(numbers)}, more than {TOTAL - 1}", "problem")
    return program


def _solver(planner: Planner) -> Solver:
    def solve(program: Program, budget: int | None, options: Mapping[str, Any]) -> Answer:
        """The plan as the referee sees it, and what the method's own model promised where it has one."""
        plan = planner(program, TOTAL if budget is None else min(budget, TOTAL))
        outcome = referee.run(program, plan.runs)
        assert budget is None or outcome.peak <= budget, f"{plan.planner} needs {outcome.peak} bytes, not {budget}"
        answer = {
            "time": outcome.time,
            "peak": outcome.peak,
            "overhead": outcome.time - every_op_once(program).time,
            "bound": plan.bound.time,
            "optimal": outcome.time == plan.bound.time,
            "runs": list(plan.runs),
        }
        if plan.reckoned is not None:
            answer["promised"] = {"time": plan.reckoned.time, "peak": plan.reckoned.peak}
        return answer

    return Solver(_parse, solve)


SOLVERS = {name: _solver(planner) for name, planner in PLANNERS.items()}
