"""From what a training call came to, to a plan of the whole step that keeps to the budget.

A step has three times at which it may hold too much: the timeline that a planner plans; the optimizer's step, when the
outputs and all gradients are still there; and, of a model of several graphs, the first call, which runs before all of
them are known. The narrowest of them decides what budget is needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from lowtide import referee
from lowtide.budget import show
from lowtide.capture import step
from lowtide.captured import Captured
from lowtide.compiled.partitioned import Partitioned
from lowtide.errors import BudgetTooSmall, PlanMismatch
from lowtide.frontier import Frontier
from lowtide.measure.held import Held
from lowtide.plan import Plan
from lowtide.planners import best
from lowtide.planners.registry import Planner
from lowtide.planners.step import Step
from lowtide.planners.working_set import WorkingSet
from lowtide.program import Program

Runs = tuple[int, ...]


@dataclass(frozen=True)
class Reached:
    """What one training call came to.

    graphs   its graphs, in the order in which it reached them
    held     what the step holds besides their timeline
    ran      what each graph ran in this call, where it had to run before all of them were known; else nothing
    added    whether its gradients are added to those that are there, and go
    """

    graphs: tuple[Captured | Partitioned, ...]
    held: Held
    ran: tuple[Runs, ...] = ()
    added: bool = False

    @cached_property
    def joined(self) -> Program:
        """The Program of the whole step."""
        return step.join(self.programs)

    @property
    def costs(self) -> str:
        """Where the Programs' times come from, in words."""
        parts = [part for graph in self.graphs for part in graph.costs.split("; ") if part]
        return "; ".join(dict.fromkeys(parts))

    @cached_property
    def programs(self) -> list[Program]:
        """The graphs' Programs."""
        return [graph.accumulating if self.added else graph.program for graph in self.graphs]


@dataclass(frozen=True, slots=True)
class Need:
    """A time at which a step holds much.

    total    bytes at once, what is static among them
    place    where it is
    remedy   what would make it smaller
    """

    total: int
    place: str
    remedy: str


def least(program: Program, planner: Planner) -> Plan:
    """The plan of this planner that needs the least memory."""
    try:
        return planner(program, 0)
    except BudgetTooSmall as error:
        return planner(program, error.needed)


def plan_step(reached: Reached, budget: int, planner: Planner) -> Plan:
    """The plan of the step within `budget` bytes, refereed, with what the step holds besides its timeline."""
    program, static = reached.joined, reached.held.static
    others = [_optimizer(reached), *_first_call(reached)]
    try:
        plan, outcome = _in_turn(reached.programs, program, budget - static, planner)
    except BudgetTooSmall as error:
        raise _too_small([*others, _op(static + error.needed, error.narrowest)], budget, static) from error
    place = _place(program, plan.runs[outcome.at]) if plan.runs else ""
    timeline = _op(static + outcome.peak, place)
    if max(need.total for need in others) > budget:
        raise _too_small([*others, timeline], budget, static)
    narrowest = max(timeline, others[0], key=lambda need: need.total)
    return replace(
        plan,
        budget=budget - static,
        peak=narrowest.total - static,
        time=outcome.time,
        static=static,
        narrowest=narrowest.place,
        costs=reached.costs,
    )


def plan_curve(reached: Reached, points: int) -> Frontier:
    """Plans of the step from the least budget that works to the plain step, each refereed; at most `points`."""
    program, static = reached.joined, reached.held.static
    plans = best.curve(program, points)

    def on_the_curve(program: Program, budget: int) -> Plan:
        if plans[0].peak > budget:
            place = plans[0].narrowest
            raise BudgetTooSmall(f"{plans[0].peak} bytes", budget=budget, needed=plans[0].peak, narrowest=place)
        return next(plan for plan in reversed(plans) if plan.peak <= budget)

    found: dict[tuple[int, ...], Plan] = {}
    refusal: BudgetTooSmall | None = None
    for plan in plans:
        try:
            fitting = plan_step(reached, static + plan.peak, on_the_curve)
        except BudgetTooSmall as error:
            refusal = error
            continue
        found.setdefault(fitting.runs, replace(fitting, budget=fitting.peak))
    if refusal is not None:
        # Something besides the timeline binds: where it does is where the curve begins.
        fitting = plan_step(reached, refusal.needed, on_the_curve)
        found.setdefault(fitting.runs, replace(fitting, budget=fitting.peak))
    rising: list[Plan] = []
    for plan in sorted(found.values(), key=lambda plan: (plan.peak, plan.time)):
        if not rising or plan.time < rising[-1].time:
            rising.append(plan)
    working_set = WorkingSet.of(Step.of(program))
    return Frontier(tuple(rising), static + working_set.bytes, _place(program, working_set.at) if program.ops else "")


def checked(plan: Plan, reached: Reached) -> Plan:
    """The plan, if it was made for this step, with what it comes to here."""
    program = reached.joined
    plain = step.join([graph.program for graph in reached.graphs])
    if plan.program not in (program.fingerprint, plain.fingerprint):
        raise PlanMismatch(
            f"the plan was made for the step {plan.program}, and this model with this batch makes the step "
            f"{program.fingerprint}: another model, shape, dtype, mode or version. Plan again with lowtide.plan."
        )
    runs = tuple(step.settle(reached.programs, plan.runs))
    outcome = referee.run(program, runs)
    static, costs = reached.held.static, reached.costs
    return replace(plan, runs=runs, peak=outcome.peak, time=outcome.time, static=static, costs=costs)


def _in_turn(
    programs: Sequence[Program], program: Program, budget: int, planner: Planner
) -> tuple[Plan, referee.Outcome]:
    """A plan that fits once every graph runs its part in its own turn, which a planner does not know of."""
    allowed = budget
    while True:
        try:
            plan = planner(program, allowed)
        except BudgetTooSmall as error:
            if len(programs) == 1:
                raise
            return _lowest(programs, program, budget, planner, error.needed)
        runs = step.settle(programs, plan.runs)
        outcome = referee.run(program, runs)
        if outcome.peak <= budget:
            return replace(plan, runs=tuple(runs)), outcome
        allowed -= max(outcome.peak - budget, budget // 64, 1)


def _lowest(
    programs: Sequence[Program], program: Program, budget: int, planner: Planner, needed: int
) -> tuple[Plan, referee.Outcome]:
    """The planner's plan of least peak, as it is once every graph runs its part in its own turn, if that fits: so that
    the budget named in the error is one that works.
    """
    plan = planner(program, needed)
    runs = step.settle(programs, plan.runs)
    outcome = referee.run(program, runs)
    if outcome.peak > budget:
        place = _place(program, runs[outcome.at])
        raise BudgetTooSmall(f"{place} needs {outcome.peak} bytes", budget=budget, needed=outcome.peak, narrowest=place)
    return replace(plan, runs=tuple(runs)), outcome


def _optimizer(reached: Reached) -> Need:
    return Need(
        reached.held.after(reached.joined),
        "the optimizer's step",
        "parameters, gradients and its state are there at once: use an optimizer that holds less",
    )


def _first_call(reached: Reached) -> list[Need]:
    if not reached.ran:
        return []
    outcome = referee.run(reached.joined, step.in_turn(reached.programs, reached.ran))
    return [
        Need(
            reached.held.static + outcome.peak,
            "the first call",
            f"the front end breaks this model into {len(reached.graphs)} graphs, and until all are known each runs "
            "on the least that it can by itself: remove graph breaks",
        )
    ]


def _op(total: int, place: str) -> Need:
    return Need(total, place, "make that op smaller (shorter sequences, smaller batch)")


def _place(program: Program, op: int) -> str:
    """An op and where in the user's code it comes from."""
    return program.ops[op].name + (f" in {program.ops[op].where}" if program.ops[op].where else "")


def _too_small(needs: Sequence[Need], budget: int, static: int) -> BudgetTooSmall:
    """What the user is told: the least budget, and where it binds."""
    need = max(needs, key=lambda need: need.total)
    return BudgetTooSmall(
        f"no plan fits in {show(budget)}: this step needs at least {show(need.total)} ({need.total} bytes: "
        f"static {show(static)} + step {show(need.total - static)}).\n"
        f"The narrowest place is {need.place}: {show(need.total - static)} at once.\n"
        f"Raise memory_budget to {need.total}, or {need.remedy}.",
        budget=budget,
        needed=need.total,
        narrowest=need.place,
    )
