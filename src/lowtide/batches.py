"""The noun Batches: what fits a budget by batch size, and the search for the largest and the fastest."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from lowtide.budget import show
from lowtide.errors import BudgetTooSmall, InvalidPlan
from lowtide.plan import Plan
from lowtide.progress import Progress

FORMAT = "lowtide batches 1"


@dataclass(frozen=True, slots=True)
class BatchSize:
    """A batch size and the plan of its step.

    size    samples
    plan    the step within the budget
    plain   nanoseconds of the step with nothing run again
    """

    size: int
    plan: Plan
    plain: int

    @property
    def speed(self) -> float:
        """Samples a second in forward and backward."""
        return 1e9 * self.size / self.plan.time if self.plan.time else 0.0


@dataclass(frozen=True, slots=True)
class Batches:
    """Steps of one model by rising batch size, all within one budget.

    budget   bytes
    tried    the sizes that were planned and fit
    needed   least bytes that one sample more than the largest takes; None where none larger was tried
    """

    budget: int
    tried: tuple[BatchSize, ...]
    needed: int | None

    @property
    def largest(self) -> int:
        """The largest batch that fits."""
        return self.tried[-1].size

    @property
    def best(self) -> int:
        """The batch with the most samples a second among those tried; of equal ones the smallest."""
        return max(self.tried, key=lambda batch: (batch.speed, -batch.size)).size

    def plan(self, size: int) -> Plan:
        """The plan of a size that was tried."""
        return next(batch.plan for batch in self.tried if batch.size == size)

    def __str__(self) -> str:
        lines = [f"{'batch':>8} {'peak':>12} {'extra time':>11} {'samples/s':>12}"]
        for batch in self.tried:
            extra = 100 * (batch.plan.time / batch.plain - 1) if batch.plain else 0.0
            names = " ".join(
                name for name, size in (("best", self.best), ("largest", self.largest)) if size == batch.size
            )
            line = f"{batch.size:>8} {show(batch.plan.total):>12} {extra:>9.2f} % {batch.speed:>12.1f} {names}"
            lines.append(line.rstrip())
        if self.needed is None:
            lines.append(f"None larger was tried within {show(self.budget)}.")
        else:
            lines.append(f"{self.largest + 1} need {show(self.needed)}; there are {show(self.budget)}.")
        costs = self.tried[-1].plan.costs
        return "\n".join([*lines, f"Times are of forward and backward, {costs}."] if costs else lines)

    def to_json(self) -> dict[str, Any]:
        """The same as a JSON object."""
        tried = [{"size": each.size, "plain": each.plain, "plan": each.plan.to_json()} for each in self.tried]
        return {"format": FORMAT, "budget": self.budget, "needed": self.needed, "tried": tried}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Batches:
        """What `to_json` wrote."""
        if not isinstance(data, Mapping) or data.get("format") != FORMAT:
            found = data.get("format") if isinstance(data, Mapping) else data
            raise InvalidPlan(f"not batches: the format is {found!r}, not {FORMAT!r}")
        tried = tuple(BatchSize(each["size"], Plan.from_json(each["plan"]), each["plain"]) for each in data["tried"])
        return cls(data["budget"], tried, data["needed"])

    def save(self, path: str | Path) -> None:
        """Write to a file, to be read by `Batches.load`.

        >>> import tempfile
        >>> from lowtide.plan import Bound
        >>> found = Batches(9, (BatchSize(1, Plan((), 9, 5, 8, "best", "", "", Bound(8, "")), 8),), 10)
        >>> with tempfile.NamedTemporaryFile() as file:
        ...     found.save(file.name)
        ...     Batches.load(file.name) == found
        True
        """
        Path(path).write_text(json.dumps(self.to_json()))

    @classmethod
    def load(cls, path: str | Path) -> Batches:
        """What `save` wrote to `path`.

        >>> Batches.load("/dev/null")
        Traceback (most recent call last):
        ...
        lowtide.errors.InvalidPlan: ...
        """
        try:
            return cls.from_json(json.loads(Path(path).read_text()))
        except json.JSONDecodeError as error:
            raise InvalidPlan(f"not batches: {error}") from error


def search(attempt: Callable[[int, int], BatchSize], budget: int, *, points: int, most: int) -> Batches:
    """The largest batch within the budget and the fastest of about `points` sizes up to it.

    `attempt(size, budget)` gives the plan of a size within a budget, or raises BudgetTooSmall with what is needed. The
    largest is exact: it fits, and one sample more does not (where it is not `most`). What a step needs is nearly
    linear in its size, so the edge is found in a few attempts, each where a line through what is known puts it. Where
    at most `points` sizes fit, all are tried and the fastest is exact too.
    """
    fitting: dict[int, BatchSize] = {}
    too_large: dict[int, int] = {}
    progress = Progress("trying batch sizes", points + 8)

    def fits(size: int) -> bool:
        if size not in fitting and size not in too_large:
            progress.at(len(fitting) + len(too_large))
            try:
                fitting[size] = attempt(size, budget)
            except BudgetTooSmall as error:
                too_large[size] = error.needed
        return size in fitting

    if not fits(1):
        attempt(1, budget)
    _find_edge(fits, fitting, too_large, _line(attempt, most), budget, most)
    largest = max(fitting)
    if largest <= points:
        sizes = list(range(1, largest + 1))
    else:
        sizes = sorted({round(largest ** (i / (points - 1))) for i in range(points)} | {largest})
    for size in sizes:
        fits(size)
    _climb(fits, fitting, points // 2)
    return Batches(budget, tuple(fitting[size] for size in sorted(fitting)), too_large.get(largest + 1))


def _line(attempt: Callable[[int, int], BatchSize], most: int) -> tuple[int, int]:
    """What the steps of one sample and of two need at the least."""
    first = _least(attempt, 1)
    return first, _least(attempt, min(2, most))


def _least(attempt: Callable[[int, int], BatchSize], size: int) -> int:
    try:
        return attempt(size, 0).plan.total
    except BudgetTooSmall as error:
        return error.needed


def _find_edge(
    fits: Callable[[int], bool],
    fitting: Mapping[int, BatchSize],
    too_large: Mapping[int, int],
    line: tuple[int, int],
    budget: int,
    most: int,
) -> None:
    """Try sizes until the largest that fits and the smallest that does not are neighbours."""
    first, second = line
    guess = 1 + (budget - first) // max(1, second - first)
    stride = 1
    while max(fitting) < most and max(fitting) + 1 not in too_large:
        low = max(fitting)
        high = min((size for size in too_large if size > low), default=None)
        if high is None:
            # A batch is made for each attempt, so none is many times as large as one that is known to fit.
            size = min(most, 8 * low, max(low + 1, guess))
            if fits(size) and size >= guess:
                guess, stride = size + stride, 2 * stride
        else:
            line_says = 1 + (budget - first) * (high - 1) // max(1, too_large[high] - first)
            fits(min(max(low + 1, line_says), high - 1) if line_says >= low else (low + high) // 2)


def _climb(fits: Callable[[int], bool], fitting: Mapping[int, BatchSize], attempts: int) -> None:
    """Try sizes between the fastest and its neighbours, while there are any."""
    for _ in range(attempts):
        sizes = sorted(fitting)
        place = max(range(len(sizes)), key=lambda i: fitting[sizes[i]].speed)
        gaps = [(a, b) for a, b in pairwise(sizes) if sizes[place] in (a, b) and b - a > 1]
        if not gaps:
            return
        low, high = max(gaps, key=lambda gap: gap[1] - gap[0])
        fits((low + high) // 2)
