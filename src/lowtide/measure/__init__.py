"""Measure gives a captured Program its costs, and says what a step holds besides.

`lowtide.measure.clear()` forgets the costs that were measured on this machine.
"""

from lowtide.measure.cache import clear

__all__ = ["clear"]
