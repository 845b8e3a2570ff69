"""The noun Frontier: what a step takes at every budget, from the least that works to none at all."""

from __future__ import annotations

from dataclasses import dataclass

from lowtide.budget import parse, show
from lowtide.errors import BudgetTooSmall, InvalidBudget
from lowtide.plan import Plan


@dataclass(frozen=True)
class Frontier:
    """Plans of one step, by rising peak and falling time; the last is the plain step.

    plans        the plans; a plan's `total` is the least budget that it needs
    working_set  bytes that no plan can do without, backward ops being in the program's order, and what is static
    widest       the op that needs them
    """

    plans: tuple[Plan, ...]
    working_set: int
    widest: str

    @property
    def least(self) -> int:
        """The least budget at which there is a plan, in bytes."""
        return self.plans[0].total

    @property
    def plain(self) -> int:
        """The budget at which nothing is run again, in bytes."""
        return self.plans[-1].total

    def fastest(self, memory_budget: int | str) -> Plan:
        """The fastest of the plans within a budget: bytes, "8GB" or "8GiB".

        >>> from lowtide.plan import Bound
        >>> plans = [Plan((), 9, peak, time, "best", "", "", Bound(4, "")) for peak, time in ((5, 8), (9, 4))]
        >>> Frontier(tuple(plans), 3, "mm").fastest(8).time
        8
        """
        allowed = parse(memory_budget, capacity=_no_device)
        if allowed < self.least:
            raise BudgetTooSmall(
                f"no plan fits in {show(allowed)}: this step needs at least {show(self.least)} ({self.least} bytes).\n"
                f"The narrowest place is {self.plans[0].narrowest}.\nRaise memory_budget to {self.least}.",
                budget=allowed,
                needed=self.least,
                narrowest=self.plans[0].narrowest,
            )
        return next(plan for plan in reversed(self.plans) if plan.total <= allowed)

    def __str__(self) -> str:
        plain = self.plans[-1].time
        lines = [f"{'budget':>12} {'extra time':>11} {'unproven':>9} {'reruns':>7}"]
        for plan in self.plans:
            extra, gap = (100 * time / plain if plain else 0 for time in (plan.time - plain, plan.gap))
            lines.append(f"{show(plan.total):>12} {extra:>9.2f} % {gap:>7.2f} % {plan.reruns:>7}")
        lines.append(f"No plan needs less than {show(self.working_set)}, at {self.widest}.")
        return "\n".join(lines)


def _no_device() -> int:
    raise InvalidBudget('a frontier knows no device: give bytes, "8GB" or "8GiB"')
