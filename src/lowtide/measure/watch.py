"""Compares the first steps of every plan with its promise."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from lowtide.check import Check
from lowtide.measure.gauge import Gauge, state_there
from lowtide.measure.held import Held
from lowtide.plan import Plan

STEPS = 3  # The first lacks the optimizer's state; the second creates no tensor that later ones do not.


class Watch:
    """Looks on while a plan is carried out for the first few times.

    check    the latest plan with the steps measured of it; None before the first plan
    margin   bytes that steps were measured to take beyond their promise, to be left free by plans to come

    `expect` is called where a plan is made, `begin` where a call reaches its first graph, `settle` where the next call
    begins. `turn` names what a call does, so that only calls which the plan is for are held against it.
    """

    def __init__(self, gauge: Gauge | None, optimizer: torch.optim.Optimizer | None) -> None:
        self.check: Check | None = None
        self.margin = 0
        self._gauge = gauge
        self._optimizer = optimizer
        self._turn: Any = None
        self._open = self._returned = False
        self._state = 0
        self._held: Held | None = None

    def expect(self, plan: Plan, held: Held, turn: Any) -> None:
        """From the next call of this kind on, measure a few steps of this plan."""
        self.check = Check(plan, ())
        self._held, self._turn = held, turn
        self._open = False

    def begin(self, turn: Any) -> None:
        """A call has reached its first graph."""
        self._open = self._returned = False
        wanted = self.check is not None and len(self.check.steps) < STEPS and turn == self._turn
        if wanted and self._gauge is not None and self._held is not None:
            self._open = True
            self._state = state_there(self._optimizer, self._held.kind)
            self._gauge.begin()

    @contextmanager
    def forward(self, inputs: Any) -> Iterator[None]:
        """Around a graph's forward."""
        if not self._open or self._gauge is None:
            yield
            return
        with self._gauge.forward(inputs):
            yield

    @contextmanager
    def backward(self, saved: Any) -> Iterator[None]:
        """Around a graph's backward."""
        if not self._open or self._gauge is None:
            yield
            return
        with self._gauge.backward(saved):
            yield
        self._returned = True

    def settle(self) -> int:
        """The step before is over: bytes by which it exceeded its budget, where it was measured and did; else 0.

        What it took beyond its promise is then added to the margin.
        """
        if not (self._open and self._returned) or self._gauge is None or self.check is None or self._held is None:
            return 0
        self._open = False
        absent = max(0, self._held.optimizer.state - self._state)
        step = self._gauge.read(absent)
        self.check = Check(self.check.plan, (*self.check.steps, step))
        missed = step.total - self.check.allowed
        if missed > 0:
            self.margin += step.total - self.check.plan.total
        return max(0, missed)
