"""Measured costs on disk, shared by all processes of a user. No torch is needed for it."""

from __future__ import annotations

import fcntl
import logging
import os
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path

log = logging.getLogger("lowtide")
VERSION = 1
_LOOK = "SELECT ns, workspace FROM cost JOIN machine ON number = machine WHERE description = ? AND call = ?"
Work = Callable[[sqlite3.Connection], object]
_SCHEMA = """
CREATE TABLE IF NOT EXISTS machine (number INTEGER PRIMARY KEY, description TEXT UNIQUE NOT NULL);
CREATE TABLE IF NOT EXISTS cost (
    machine INTEGER NOT NULL, call TEXT NOT NULL, ns INTEGER NOT NULL, workspace INTEGER NOT NULL,
    PRIMARY KEY (machine, call)
) WITHOUT ROWID;
"""


def folder() -> Path:
    """Where costs are kept: as the XDG base directories say, in ~/.cache else."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "lowtide"


def clear() -> None:
    """Forget every measured cost, so that all are measured anew.

    >>> import lowtide
    >>> lowtide.measure.clear()
    """
    Cache(folder() / "costs.sqlite").clear()


class Cache:
    """Costs by machine and call, each a pair of nanoseconds and bytes of workspace.

    A file that cannot be opened or written to is done without; one that is damaged, or of another version of the
    schema, is begun anew. Either is said in the log, and neither stops anything.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self, machine: str, calls: Iterable[str]) -> dict[str, tuple[int, int]]:
        """What is known of these calls."""
        found: dict[str, tuple[int, int]] = {}

        def look(base: sqlite3.Connection) -> None:
            for call in calls:
                row = base.execute(_LOOK, (machine, call)).fetchone()
                if row is not None:
                    found[call] = (int(row[0]), int(row[1]))

        self._with_base(look)
        return found

    def write(self, machine: str, costs: Mapping[str, tuple[int, int]]) -> None:
        """Keep these; what was known of them is replaced."""

        def keep(base: sqlite3.Connection) -> None:
            base.execute("INSERT OR IGNORE INTO machine (description) VALUES (?)", (machine,))
            (number,) = base.execute("SELECT number FROM machine WHERE description = ?", (machine,)).fetchone()
            rows = [(number, call, ns, workspace) for call, (ns, workspace) in costs.items()]
            base.executemany("INSERT OR REPLACE INTO cost VALUES (?, ?, ?, ?)", rows)

        self._with_base(keep)

    def clear(self) -> None:
        """Keep nothing."""
        if self.path.exists():
            self._with_base(lambda base: base.execute("DELETE FROM cost"))

    def _with_base(self, work: Work) -> None:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            try:
                self._attempt(work)
            except sqlite3.OperationalError:
                raise
            except sqlite3.DatabaseError as error:
                self._begin_anew(str(error))
                self._attempt(work)
        except (OSError, sqlite3.Error) as error:
            log.warning(
                "lowtide: measured costs cannot be kept in %s (%s), so they are measured again", self.path, error
            )

    def _attempt(self, work: Work) -> None:
        with closing(sqlite3.connect(self.path, timeout=30, isolation_level=None)) as base:
            base.execute("PRAGMA journal_mode = WAL")
            with _transaction(base):
                (version,) = base.execute("PRAGMA user_version").fetchone()
                if version not in (0, VERSION):
                    raise sqlite3.DatabaseError(f"it is of version {version}, not {VERSION}")
                if version == 0:
                    for statement in _SCHEMA.split(";"):
                        base.execute(statement)
                    base.execute(f"PRAGMA user_version = {VERSION}")
                work(base)

    def _begin_anew(self, why: str) -> None:
        """Take the damaged file away, unless another process has done so in the meantime."""
        with open(self.path.with_suffix(".lock"), "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            try:
                self._attempt(lambda base: base.execute("SELECT COUNT(*) FROM cost"))
                return
            except sqlite3.OperationalError:
                raise
            except sqlite3.DatabaseError:
                pass
            log.warning("lowtide: the measured costs in %s cannot be read (%s); beginning anew", self.path, why)
            for suffix in ("", "-wal", "-shm"):
                Path(f"{self.path}{suffix}").unlink(missing_ok=True)


@contextmanager
def _transaction(base: sqlite3.Connection) -> Iterator[None]:
    """All or nothing; writers wait for each other from the beginning, since a later wait could end in a deadlock."""
    base.execute("BEGIN IMMEDIATE")
    try:
        yield
    except BaseException:
        base.execute("ROLLBACK")
        raise
    base.execute("COMMIT")
