"""The noun Plan: a sequence of op numbers, with repetitions, and what is promised of it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from lowtide.budget import show
from lowtide.errors import InvalidPlan

FORMAT = "lowtide plan 1"


@dataclass(frozen=True, slots=True)
class Bound:
    """The least time proven possible at the plan's budget.

    time   nanoseconds of the whole step; no plan within the budget is faster
    by     who proved it, and over which plans it holds
    """

    time: int
    by: str


@dataclass(frozen=True, slots=True)
class Reckoned:
    """What a method from a paper says of a plan by its own model of the step, before the referee has seen it.

    peak      bytes, as the model counts them
    time      nanoseconds, as the model counts them
    ignores   what the model leaves out, in words
    """

    peak: int
    time: int
    ignores: str


@dataclass(frozen=True, slots=True)
class Plan:
    """Which op runs when; an op that stands twice is recomputed, and dropping is implied.

    runs       op numbers in order
    budget     bytes the timeline was allowed (static bytes not among them)
    peak       promised peak of the timeline, bytes
    time       promised time of all runs, nanoseconds
    planner    who made it
    searched   the class of plans it is the best of, in words
    program    fingerprint of the Program it is for
    bound      see Bound
    static     bytes alive all along and not in the timeline: parameters, buffers, the batch, what the optimizer holds
    narrowest  the op at which the peak is reached, and where it comes from, for people
    reckoned   what the planner's own model promised; None where the planner reckons with the step itself
    costs      where the times come from, in words: measured on a device, or estimated for one
    """

    runs: tuple[int, ...]
    budget: int
    peak: int
    time: int
    planner: str
    searched: str
    program: str
    bound: Bound
    static: int = 0
    narrowest: str = ""
    reckoned: Reckoned | None = None
    costs: str = ""

    @property
    def gap(self) -> int:
        """Nanoseconds between this plan and the bound; 0 is proven optimal."""
        return self.time - self.bound.time

    @property
    def total(self) -> int:
        """Promised peak of all memory: the timeline's and what is static."""
        return self.static + self.peak

    @property
    def reruns(self) -> int:
        """How many runs are repetitions."""
        return len(self.runs) - len(set(self.runs))

    def summary(self) -> str:
        """What was chosen and what it promises, for people.

        >>> import lowtide, torch
        >>> found = lowtide.plan(torch.nn.Linear(4, 1), torch.ones(2, 4), memory_budget="1MiB")
        >>> print(found.summary())
        peak      ... static + ... in the step)
        narrowest ...
        budget    1.00 MiB
        time      ... ms of kernels, 0 of ... runs are reruns
        costs     estimated for cpu (roofline...)
        bound     ... the plan is 0.00 % above it
        planner   best: ...
        """
        least = self.bound.time
        share = f"{100 * self.gap / least:.2f} %" if least else "0 %"
        lines = [
            f"peak      {show(self.total)} ({show(self.static)} static + {show(self.peak)} in the step)",
            f"narrowest {self.narrowest}",
            f"budget    {show(self.static + self.budget)}",
            f"time      {self.time / 1e6:.3f} ms of kernels, {self.reruns} of {len(self.runs)} runs are reruns",
            *([f"costs     {self.costs}"] if self.costs else []),
            f"bound     {least / 1e6:.3f} ms: {self.bound.by}; the plan is {share} above it",
            f"planner   {self.planner}: {self.searched}",
        ]
        if self.reckoned is not None:
            own = self.reckoned
            lines += [
                f"promised  {show(own.peak)} in the step and {own.time / 1e6:.3f} ms by the method, whose model "
                f"leaves out {own.ignores}",
                f"refereed  {show(self.peak)} in the step and {self.time / 1e6:.3f} ms",
            ]
        return "\n".join(lines)

    def to_json(self) -> dict[str, Any]:
        """The plan as a JSON object; `reckoned` is left out where there is nothing."""
        facts = {"format": FORMAT, **asdict(self), "runs": list(self.runs)}
        if self.reckoned is None:
            del facts["reckoned"]
        return facts

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Plan:
        """The plan that `to_json` wrote."""
        if not isinstance(data, Mapping) or data.get("format") != FORMAT:
            found = data.get("format") if isinstance(data, Mapping) else data
            raise InvalidPlan(f"not a plan: its format is {found!r}, not {FORMAT!r}")
        bound = data.get("bound")
        _expect_fields({"reckoned": None, "costs": "", **data}, {"format", *cls.__slots__}, "a plan")
        if not isinstance(bound, Mapping):
            raise InvalidPlan(f"not a plan: bound is {bound!r}, not an object")
        _expect_fields(bound, set(Bound.__slots__), "a plan's bound")
        runs = data["runs"]
        if not isinstance(runs, (list, tuple)) or not all(map(_is_count, runs)):
            raise InvalidPlan(f"not a plan: runs is {runs!r}, not a list of whole numbers >= 0")
        numbers = {name: data[name] for name in ("peak", "time", "static")}
        for name, found in {**numbers, "bound's time": bound["time"]}.items():
            if not _is_count(found):
                raise InvalidPlan(f"not a plan: {name} is {found!r}, not a whole number >= 0")
        if type(data["budget"]) is not int:  # What is static may leave less than nothing.
            raise InvalidPlan(f"not a plan: budget is {data['budget']!r}, not a whole number")
        words = {name: data[name] for name in ("planner", "searched", "program", "narrowest")}
        words["costs"] = data.get("costs", "")
        for name, found in {**words, "bound's by": bound["by"]}.items():
            if not isinstance(found, str):
                raise InvalidPlan(f"not a plan: {name} is {found!r}, not a string")
        reckoned = _reckoned(data["reckoned"]) if "reckoned" in data else None
        return cls(runs=tuple(runs), budget=data["budget"], bound=Bound(**bound), reckoned=reckoned, **numbers, **words)

    def __str__(self) -> str:
        facts = self.to_json()
        lines = [FORMAT]
        lines += [f"{name} {json.dumps(facts[name])}" for name in self.__slots__ if name in facts]
        return "\n".join(lines) + "\n"

    @classmethod
    def parse(cls, text: str) -> Plan:
        """The plan that `str` printed as `text`."""
        first, _, rest = text.partition("\n")
        facts: dict[str, Any] = {"format": first}
        for number, line in enumerate(rest.splitlines(), start=2):
            name, _, word = line.partition(" ")
            if name in facts:
                raise InvalidPlan(f"line {number}: {name!r} is there twice")
            try:
                facts[name] = json.loads(word)
            except json.JSONDecodeError as error:
                raise InvalidPlan(f"line {number}: {name!r} is not followed by a value") from error
        return cls.from_json(facts)

    def save(self, path: str | Path) -> None:
        """Write the plan to a file, to be read by `Plan.load`.

        >>> import lowtide, tempfile, torch
        >>> found = lowtide.plan(torch.nn.Linear(4, 1), torch.ones(2, 4), memory_budget="1MiB")
        >>> with tempfile.NamedTemporaryFile() as file:
        ...     found.save(file.name)
        ...     lowtide.Plan.load(file.name) == found
        True
        """
        Path(path).write_text(str(self))

    @classmethod
    def load(cls, path: str | Path) -> Plan:
        """The plan that `save` wrote to `path`.

        >>> import lowtide
        >>> lowtide.Plan.load("/dev/null")
        Traceback (most recent call last):
        ...
        lowtide.errors.InvalidPlan: ...
        """
        return cls.parse(Path(path).read_text())


def _reckoned(found: object) -> Reckoned:
    if not isinstance(found, Mapping):
        raise InvalidPlan(f"not a plan: reckoned is {found!r}, not an object")
    _expect_fields(found, set(Reckoned.__slots__), "what a method reckons")
    if not (_is_count(found["peak"]) and _is_count(found["time"]) and isinstance(found["ignores"], str)):
        raise InvalidPlan(f"not a plan: reckoned is {found!r}, not a peak and a time >= 0 and words")
    return Reckoned(**found)


def _expect_fields(data: Mapping[str, Any], wanted: set[str], what: str) -> None:
    missing, extra = wanted - set(data), set(data) - wanted
    if missing:
        raise InvalidPlan(f"not a plan: {what} has a field {min(missing)!r}, which is missing")
    if extra:
        raise InvalidPlan(f"not a plan: {what} has no field {min(map(str, extra))!r}")


def _is_count(found: object) -> bool:
    return type(found) is int and found >= 0
