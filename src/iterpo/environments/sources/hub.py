"""Rows of a published data set from a data-set hub, for whoever asks for that source by name.

Nothing is downloaded unless a game's option ``source`` is ``hub``. Code that comes with a data set
is never run: where the published set is a script, its rows are read from the hub's Parquet copy.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from iterpo.errors import DataError, MissingDataError, MissingExtraError, missing_extra

__all__ = ["hub_rows"]

PARQUET = "refs/convert/parquet"
"""Revision at which a hub keeps its Parquet copy of a data set."""


def hub_rows(
    dataset_id: str,
    split: str,
    columns: Sequence[str],
    config: str | None = None,
    revision: str | None = None,
) -> list[dict[str, Any]]:
    """All rows of one split, with the asked columns only.

    Args:
        dataset_id: Published id, ``owner/name``.
        split: Name of the split on the hub.
        columns: Columns to hand over; the others stay unread.
        config: Configuration of the set, where it has several.
        revision: Branch, tag or commit; None is the newest, or its Parquet copy for a script.

    Raises:
        MissingExtraError: if the package ``datasets`` is not installed.
        MissingDataError: if the hub can't be reached, or has no such set or split.
        DataError: if the set lacks a column.
    """
    try:
        import datasets  # only for whoever asks for the hub
    except ImportError as error:
        raise _install(error, dataset_id) from error
    revisions = (revision,) if revision else (None, PARQUET)
    failures: list[str] = []
    for at in revisions:
        # The Parquet copy has a folder for each configuration.
        which = {"data_dir": config} if at == PARQUET else {"name": config}
        try:
            rows = datasets.load_dataset(dataset_id, split=split, revision=at, **which)
        except Exception as error:  # the client raises errors of a dozen unrelated kinds
            failures.append(f"{at or 'newest'}: {type(error).__name__}: {error}"[:300])
            if isinstance(error, ConnectionError):
                break
            continue
        lacking = [name for name in columns if name not in rows.column_names]
        if lacking:
            raise DataError(
                f"{dataset_id}, split {split!r}, revision {at or 'newest'} has no column "
                f"{', '.join(lacking)} (it has {', '.join(rows.column_names)}); "
                "use the option source: folder with the published files"
            )
        return [dict(row) for row in rows.select_columns(list(columns))]
    raise MissingDataError(
        f"{dataset_id}, split {split!r}, could not be read from the hub. Tried "
        f"{'; '.join(failures)}. Check the network, or put the files into a folder and use the "
        "options source: folder and data_dir"
    )


def _install(error: ImportError, dataset_id: str) -> MissingExtraError | ImportError:
    return missing_extra(error, f"reading {dataset_id} from the hub") or error
