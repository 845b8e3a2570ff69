"""Measured costs on disk: shared, versioned, and never in the way."""

from __future__ import annotations

import logging
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from lowtide.measure.cache import VERSION, Cache

COSTS = {"aten.mm": (5, 0), "aten.add 'quoted'": (7, 2**40)}


def test_costs_are_read_back_for_the_machine_they_were_measured_on(tmp_path: Path) -> None:
    cache = Cache(tmp_path / "new folder" / "costs.sqlite")
    assert cache.read("a", COSTS) == {}
    cache.write("a", COSTS)
    cache.write("b", {"aten.mm": (6, 1)})
    cache.write("a", {"aten.mm": (9, 9)})
    assert Cache(cache.path).read("a", [*COSTS, "aten.sub"]) == {**COSTS, "aten.mm": (9, 9)}
    assert cache.read("b", COSTS) == {"aten.mm": (6, 1)}
    cache.clear()
    assert cache.read("a", COSTS) == {}


def test_clearing_what_was_never_made_makes_nothing(tmp_path: Path) -> None:
    Cache(tmp_path / "costs.sqlite").clear()
    assert list(tmp_path.iterdir()) == []


def damaged(path: Path) -> None:
    path.write_bytes(b"this is no database, and long enough to be seen for what it is" * 40)


def torn(path: Path) -> None:
    """A database of which the end is missing, and whose beginning looks right."""
    Cache(path).write("a", {f"call {i}": (i, i) for i in range(2000)})
    with sqlite3.connect(path) as base:
        base.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    base.close()
    whole = path.read_bytes()
    path.write_bytes(whole[:4096] + b"\xff" * (len(whole) - 4096))


def of_another_version(path: Path) -> None:
    with sqlite3.connect(path) as base:
        base.execute(f"PRAGMA user_version = {VERSION + 1}")
        base.execute("CREATE TABLE cost (something TEXT)")
    base.close()


@pytest.mark.parametrize("spoil", [damaged, torn, of_another_version])
def test_a_file_that_cannot_be_read_is_begun_anew(
    spoil: object, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert callable(spoil)
    cache = Cache(tmp_path / "costs.sqlite")
    spoil(cache.path)
    with caplog.at_level(logging.WARNING, "lowtide"):
        cache.write("a", COSTS)
    assert "beginning anew" in caplog.text
    assert cache.read("a", COSTS) == COSTS


def test_a_place_that_cannot_be_written_to_is_done_without(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("")
    cache = Cache(tmp_path / "file" / "costs.sqlite")
    cache.write("a", COSTS)
    assert cache.read("a", COSTS) == {}
    assert "cannot be kept" in caplog.text


WRITER = """
import sys
from pathlib import Path
from lowtide.measure.cache import Cache
cache = Cache(Path(sys.argv[1]))
for i in range(40):
    cache.write("shared", {f"{sys.argv[2]} {i}": (i, 0)})
    assert cache.read("shared", [f"{sys.argv[2]} {i}"])
"""


def test_several_processes_write_at_once(tmp_path: Path) -> None:
    """They begin on a damaged file, so that only one of them may replace it."""
    path = tmp_path / "costs.sqlite"
    damaged(path)
    writers = [subprocess.Popen([sys.executable, "-c", WRITER, str(path), name]) for name in "abc"]
    assert [writer.wait(60) for writer in writers] == [0, 0, 0]
    calls = [f"{name} {i}" for name in "abc" for i in range(40)]
    assert set(Cache(path).read("shared", calls)) == set(calls)


def test_clearing_needs_no_torch(tmp_path: Path) -> None:
    code = "import lowtide, sys; lowtide.measure.clear(); sys.exit('torch' in sys.modules)"
    variables = {"XDG_CACHE_HOME": str(tmp_path), "PYTHONPATH": ":".join(sys.path)}
    subprocess.run([sys.executable, "-c", code], env=variables, check=True)
