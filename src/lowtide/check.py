"""The noun Check: a plan's promise beside what its first steps were measured to take."""

from __future__ import annotations

from dataclasses import dataclass

from lowtide.budget import show
from lowtide.plan import Plan


@dataclass(frozen=True, slots=True)
class Measurement:
    """What one training step took.

    peak      bytes alive on the device at most, until the next step began
    within    bytes alive at most in the forward and the backward pass
    absent    bytes that the promise counts and that were not there yet: an optimizer's state before its first step
    reserved  bytes that the allocator had taken from the device at most; 0 where there is no such allocator
    ns        nanoseconds from the beginning of forward to the end of backward
    """

    peak: int
    within: int
    absent: int
    reserved: int
    ns: int

    @property
    def total(self) -> int:
        """The peak as it would be if all that the promise counts were there."""
        return max(self.peak, self.within + self.absent)


@dataclass(frozen=True, slots=True)
class Check:
    """A plan, and the steps in which it was carried out first.

    plan    the plan
    steps   as they were measured, in order
    """

    plan: Plan
    steps: tuple[Measurement, ...]

    @property
    def allowed(self) -> int:
        """The memory budget, bytes."""
        return self.plan.static + self.plan.budget

    @property
    def excess(self) -> int:
        """Bytes by which a step took more than was promised; 0 where none did."""
        return max((max(0, step.total - self.plan.total) for step in self.steps), default=0)

    @property
    def kept(self) -> bool:
        """Whether every step stayed within the budget, with all there that the promise counts."""
        return all(step.total <= self.allowed for step in self.steps)

    def __str__(self) -> str:
        plan = self.plan
        words = "kept" if self.kept else "exceeded"
        lines = [
            f"{'':>9} {'peak':>12} {'off':>11} {'reserved':>12} {'fragmented':>11} {'time':>12} {'off':>11}",
            f"{'promised':>9} {show(plan.total):>12} {'':>11} {'':>12} {'':>11} {plan.time / 1e6:>9.3f} ms {'':>11}",
        ]
        for number, step in enumerate(self.steps, start=1):
            unused = f"{100 * (1 - step.peak / step.reserved):.2f} %" if step.reserved else ""
            lines.append(
                f"{f'step {number}':>9} {show(step.total):>12} {_share(step.total, plan.total):>11} "
                f"{show(step.reserved) if step.reserved else '':>12} {unused:>11} "
                f"{step.ns / 1e6:>9.3f} ms {_share(step.ns, plan.time):>11}"
            )
        lines.append(f"The budget of {show(self.allowed)} was {words}. Promised times are {plan.costs or 'not known'}.")
        return "\n".join(line.rstrip() for line in lines)


def _share(found: int, promised: int) -> str:
    return f"{100 * (found / promised - 1):+.2f} %" if promised else ""
