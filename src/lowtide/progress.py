"""How far long work is, for people who wait."""

from __future__ import annotations

import logging
import sys
import time

log = logging.getLogger("lowtide")


class Progress:
    """Says every few seconds how far some work is and how long it may still take: in the log, and on a terminal."""

    def __init__(self, what: str, total: int, *, every: float = 2.0) -> None:
        self._what, self._total, self._every = what, total, every
        self._begun = self._said = time.perf_counter()

    def at(self, done: int) -> None:
        """So many are done."""
        now = time.perf_counter()
        if not done or now - self._said < self._every:
            return
        self._said = now
        left = (now - self._begun) / done * (self._total - done)
        words = f"lowtide: {self._what}: {done} of {self._total}, about {left:.0f} s left"
        log.info("%s", words)
        if sys.stderr.isatty():
            sys.stderr.write(words + "\n")
