"""What all tests share."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

import pytest
from hypothesis import settings

# No time limit: it would fail on a busy machine. CI draws the same examples every time; a run by
# hand keeps looking for new ones.
settings.register_profile("iterpo", deadline=None, derandomize=bool(os.environ.get("CI")))
settings.load_profile("iterpo")

# Of tests that are the first to import torch, and of the processes that tests start; torch reads it
# when it is imported.
os.environ.setdefault("OMP_NUM_THREADS", "1")


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Models this small only lose time to a second thread; nothing is done where torch is not."""
    torch = sys.modules.get("torch")
    if torch is None:
        yield
        return
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
