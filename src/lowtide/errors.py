"""Every error a user of Lowtide can meet. The numbers a message names are fields of the exception too."""

from __future__ import annotations


class LowtideError(Exception):
    """What every error of Lowtide's own is; catch this to catch them all."""


class InvalidProgram(LowtideError, ValueError):
    """A Program whose parts contradict each other, or a file that does not hold one."""


class InvalidPlan(LowtideError, ValueError):
    """A sequence of runs that cannot be carried out.

    position   place in the sequence of the run that fails, or None when the sequence as a whole is at fault
    """

    def __init__(self, message: str, position: int | None = None) -> None:
        super().__init__(message)
        self.position = position


class InvalidProblem(LowtideError, ValueError):
    """A problem for `lowtide solve` whose fields are missing, unknown or out of range.

    field   the field at fault
    """

    def __init__(self, message: str, field: str) -> None:
        super().__init__(message)
        self.field = field


class InvalidBudget(LowtideError, ValueError):
    """A memory budget in a form that is not understood."""


class BudgetTooSmall(LowtideError):
    """No plan fits the budget.

    budget      bytes that were allowed
    needed      the least number of bytes that works (with the planner asked)
    narrowest   the op that needs them and where it comes from; empty where it is not known
    """

    def __init__(self, message: str, *, budget: int, needed: int, narrowest: str = "") -> None:
        super().__init__(message)
        self.budget = budget
        self.needed = needed
        self.narrowest = narrowest


class UnsupportedModel(LowtideError):
    """The model does something that Lowtide cannot plan or carry out exactly; the message names it."""


class PlanMismatch(LowtideError):
    """A plan was made for another model, batch or version than the one it is applied to."""
