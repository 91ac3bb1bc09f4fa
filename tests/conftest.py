"""What every test relies on: one thread per process, and no run that leaves processes behind."""

from __future__ import annotations

import os

# Before torch is imported anywhere: ranks of several processes share two cores.
os.environ.setdefault("OMP_NUM_THREADS", "1")
