"""One thread for torch in every test: steps this small only wait for each other's threads on a shared machine."""

from __future__ import annotations

import os

os.environ["OMP_NUM_THREADS"] = "1"
