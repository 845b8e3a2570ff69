"""From a promise to what was compiled: a plan whose code, as Inductor wrote it, keeps to the budget."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from lowtide import referee
from lowtide.budget import show
from lowtide.compiled.expected import expected_peak
from lowtide.compiled.partitioned import Partitioned
from lowtide.compiled.peaks import Peaks
from lowtide.errors import BudgetTooSmall
from lowtide.measure.held import Held
from lowtide.plan import Plan
from lowtide.planners.registry import Planner
from lowtide.planning import Reached, least, plan_step

ROUNDS = 5  # plans that are compiled until one fits, at most, and the one of least memory besides
ENOUGH = 3  # of them, where one fits
LOOKS = 2  # plans that are looked at for each of them, by what their code is expected to hold
CLOSE = 0.02  # share of the budget that may stay unused before a faster plan is looked for


@dataclass(frozen=True, slots=True)
class Planning:
    """How steps are planned: within how many bytes, and by whom."""

    budget: int
    planner: Planner

    def __call__(self, reached: Reached, correction: int = 0) -> Plan:
        """The plan of several graphs, whose code holds `correction` bytes more than a plan promises."""
        try:
            plan = plan_step(reached, self.budget - correction, self.planner)
        except BudgetTooSmall as error:
            if not correction:
                raise
            needed = error.needed + correction
            raise _too_small(self.budget, needed, reached.held.static, error.narrowest) from error
        return replace(plan, budget=plan.budget + correction, peak=plan.peak + correction)


@dataclass(frozen=True)
class Whole:
    """A step that is one graph, to be held to a budget.

    parts     the graph
    held      what the step holds besides its timeline
    planning  how to plan
    """

    parts: Partitioned
    held: Held
    planning: Planning

    @property
    def allowed(self) -> int:
        """Bytes that the timeline may take."""
        return self.planning.budget - self.held.static

    def guess(self, above: int = 0) -> Plan:
        """The fastest plan found that is expected to fit where code holds `above` bytes more than expected; the plan of
        least memory where none is.
        """
        program, allowed = self.parts.program, self.allowed - above
        best: Plan | None = None
        asked = allowed
        for _ in range(LOOKS):
            try:
                plan = self.planning.planner(program, asked)
            except BudgetTooSmall:
                break
            expected = expected_peak(self.parts, plan.runs)
            if expected <= allowed and (best is None or plan.time < best.time):
                best = plan
            if not plan.reruns or 0 <= allowed - expected <= CLOSE * allowed:
                break
            asked += allowed - expected  # What is written in place leaves room for more.
        return best if best is not None else least(program, self.planning.planner)

    def settle(self, compiled: Callable[[Plan], Peaks]) -> Plan:
        """The fastest plan found whose code keeps to the budget; its peak is the code's own.

        Plans are compiled in turn, each for the budget less what the code of the one before held above what was
        expected of it, until one keeps to the budget and leaves little of it, or `ROUNDS` are over. Where none keeps to
        it, the plan of least memory is compiled; if that does not either, the error says what it needs, and a budget
        of that many bytes works.
        """
        tried: set[tuple[int, ...]] = set()
        best: Plan | None = None
        above, too_little, enough = 0, None, None
        for count in range(ROUNDS):
            plan = self.guess(above)
            if plan.runs in tried or (best is not None and count >= ENOUGH):
                break
            tried.add(plan.runs)
            holds = compiled(plan)
            seen = holds.peak - expected_peak(self.parts, plan.runs)
            plan = self._as_compiled(plan, holds)
            fits = plan.total <= self.planning.budget
            if fits and (best is None or (plan.time, plan.peak) < (best.time, best.peak)):
                best = plan
            unused = self.planning.budget - plan.total
            if fits and (not plan.reruns or unused <= CLOSE * self.planning.budget):
                break
            too_little, enough = (too_little, above) if fits else (above, enough)
            above = _next(seen, -unused, too_little, enough)
        if best is not None:
            return best
        plan = least(self.parts.program, self.planning.planner)
        plan = self._as_compiled(plan, compiled(plan))
        if plan.total > self.planning.budget:
            raise _too_small(self.planning.budget, plan.total, self.held.static, plan.narrowest)
        return plan

    def _as_compiled(self, plan: Plan, holds: Peaks) -> Plan:
        outcome = referee.run(self.parts.program, plan.runs)
        peak, narrowest = holds.peak, holds.where
        optimizer = self.held.after(self.parts.program) - self.held.static
        if optimizer > peak:
            peak, narrowest = optimizer, "the optimizer's step"
        return replace(
            plan, budget=self.allowed, static=self.held.static, peak=peak, narrowest=narrowest, time=outcome.time
        )


def _next(seen: int, missing: int, too_little: int | None, enough: int | None) -> int:
    """What to allow for next: what was seen last, unless that was tried already."""
    if too_little is not None and enough is not None:
        return seen if too_little < seen < enough else (too_little + enough) // 2
    if too_little is not None:
        return max(seen, too_little + missing)
    return seen


def _too_small(budget: int, needed: int, static: int, place: str) -> BudgetTooSmall:
    return BudgetTooSmall(
        f"no plan that Inductor was seen to keep fits in {show(budget)}: this step needs at least {show(needed)} "
        f"({needed} bytes: static {show(static)} + step {show(needed - static)}).\n"
        f"The narrowest place is {place}: {show(needed - static)} at once.\n"
        f"Raise memory_budget to {needed}, or make that smaller (shorter sequences, smaller batch).",
        budget=budget,
        needed=needed,
        narrowest=place,
    )
