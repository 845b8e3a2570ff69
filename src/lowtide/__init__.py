"""Lowtide trains any PyTorch model inside a number of bytes.

import lowtide
model = lowtide.fit(model, memory_budget="8GiB", optimizer=optimizer)

Importing it does not import torch; calling it does.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

from lowtide import measure
from lowtide.batches import Batches
from lowtide.check import Check, Measurement
from lowtide.device import Device
from lowtide.errors import (
    BudgetTooSmall,
    InvalidBudget,
    InvalidPlan,
    InvalidProblem,
    InvalidProgram,
    LowtideError,
    PlanMismatch,
    UnsupportedModel,
)
from lowtide.plan import Bound, Plan
from lowtide.program import Op, Phase, Program, Role, Value

if TYPE_CHECKING:
    from lowtide.api import Batch, apply, check, fit, frontier, max_batch, plan, unfit

__version__ = "0.1.0"

__all__ = [
    "Batch",
    "Batches",
    "Bound",
    "BudgetTooSmall",
    "Check",
    "Device",
    "InvalidBudget",
    "InvalidPlan",
    "InvalidProblem",
    "InvalidProgram",
    "LowtideError",
    "Measurement",
    "Op",
    "Phase",
    "Plan",
    "PlanMismatch",
    "Program",
    "Role",
    "UnsupportedModel",
    "Value",
    "apply",
    "check",
    "fit",
    "frontier",
    "max_batch",
    "measure",
    "plan",
    "unfit",
]

_CALLS = ("Batch", "apply", "check", "fit", "frontier", "max_batch", "plan", "unfit")
for _name in ("check", "plan"):  # The modules of these names, which their import has put in place of the calls.
    globals().pop(_name)


class _Package(ModuleType):
    """The package: a room or module that has a call's name does not take the call's place when it is imported."""

    def __setattr__(self, name: str, value: Any) -> None:
        if not (name in _CALLS and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package


def __getattr__(name: str) -> Any:
    if name in _CALLS:
        from lowtide import api

        globals().update({call: getattr(api, call) for call in _CALLS})
        return globals()[name]
    raise AttributeError(f"module 'lowtide' has no attribute {name!r}")
