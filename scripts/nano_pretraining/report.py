"""The quality table of a model folder, for people."""

from __future__ import annotations

from pathlib import Path

from iterpo.domain import Sampling, Split
from iterpo.models import backbone, hub
from nano_pretraining.kernels import GAMES, WITH_DATA
from nano_pretraining.quality import Quality, converse, measure

__all__ = ["quality_table"]

_COLUMNS = (
    "game", "kernels", "agreement", "J", "J*", "J/J*", "boxing", "valid boxes", "right boxes",
    "right words", "copied", "first offer", "tokens 5/50/95%", "cut",
)  # fmt: skip


def quality_table(folder: Path, n: int, seed: int, data_dir: str | None = None) -> str:
    """Play ``n`` conversations per game and kind of kernels; the facts as a Markdown table.

    Temperature 1, no nucleus, at most 64 tokens a reply. With ``data_dir``, the games that have a
    data set are played on its held-out kernels too.
    """
    model = backbone.load(hub.base_policy(str(folder)), device="cpu")
    sampling = Sampling(1.0, 1.0, max_new_tokens=64)
    rows = ["| " + " | ".join(_COLUMNS) + " |", "|---" * len(_COLUMNS) + "|"]
    for name in GAMES:
        kinds: list[tuple[str, Split, str | None]] = [
            ("train-like", Split.TRAIN, None),
            ("held-out", Split.HELDOUT, None),
        ]
        if data_dir is not None and name in WITH_DATA:
            kinds.append(("real held-out", Split.HELDOUT, data_dir))
        for label, split, place in kinds:
            played = converse(model, name, n, sampling, seed, split=split, data_dir=place)
            rows.append("| " + " | ".join((name, label, *_cells(measure(*played)))) + " |")
    return "\n".join(rows)


def _cells(q: Quality) -> tuple[str, ...]:
    return (
        f"{q.agreement:.1%}",
        f"{q.j:.3f}",
        f"{q.j_star:.3f}",
        f"{q.j / q.j_star:.2f}",
        f"{q.boxing:.1%}",
        f"{q.valid_boxes:.1%}",
        f"{q.right_boxes:.1%}",
        f"{q.right_words:.1%}",
        f"{q.copied:.1%}",
        f"{q.first_offer:.2f} ± {q.spread:.2f}",
        "/".join(f"{n:.0f}" for n in q.tokens),
        f"{q.truncated:.1%}",
    )
