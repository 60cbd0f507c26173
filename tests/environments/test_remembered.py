"""Long messages are read each time, short ones once."""

from __future__ import annotations

import pytest

from iterpo.environments.remembered import LONGEST, remembered


@pytest.mark.parametrize(("size", "reads"), [(1, 1), (LONGEST, 1), (LONGEST + 1, 3)])
def test_only_short_messages_are_kept(size: int, reads: int) -> None:
    seen: list[str] = []

    @remembered
    def length(text: str, unit: int) -> int:
        seen.append(text)
        return len(text) // unit

    assert [length("x" * size, 1) for _ in range(3)] == [size] * 3
    assert len(seen) == reads
