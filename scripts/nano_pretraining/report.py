"""The quality table of a model folder, for people."""

from __future__ import annotations

from pathlib import Path

from rich.table import Table

from iterpo.domain import Sampling
from iterpo.models import backbone, hub
from nano_pretraining.corpus import GAMES
from nano_pretraining.quality import Quality, converse, measure

__all__ = ["quality_table"]

_SETTINGS = (Sampling(1.0, 1.0), Sampling(0.7, 0.9))
_COLUMNS = (
    "game", "T / top-p", "agreement", "J", "J*", "valid boxes", "right sums", "first offer",
    "tokens 5/50/95%", "cut",
)  # fmt: skip


def quality_table(folder: Path, n: int, seed: int) -> Table:
    """Play ``n`` conversations per game and sampling setting, and lay out the facts."""
    model = backbone.load(hub.base_policy(str(folder)), device="cpu")
    table = Table(*_COLUMNS, title=f"{folder.name}: {n} conversations per row, gamma 0.9")
    for name in GAMES:
        for sampling in _SETTINGS:
            facts = measure(*converse(model, name, n, sampling, seed))
            table.add_row(name, f"{sampling.temperature} / {sampling.top_p}", *_cells(facts))
    return table


def _cells(q: Quality) -> tuple[str, ...]:
    return (
        f"{q.agreement:.1%}",
        f"{q.j:.3f}",
        f"{q.j_star:.3f}",
        f"{q.valid_boxes:.1%}",
        f"{q.right_sums:.1%}",
        f"{q.first_offer:.2f} ± {q.spread:.2f}",
        "/".join(f"{n:.0f}" for n in q.tokens),
        f"{q.truncated:.1%}",
    )
