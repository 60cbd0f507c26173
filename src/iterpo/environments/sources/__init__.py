"""Raw data sets: found in a folder that the caller names, checked, parsed, and reported on."""

from iterpo.environments.sources.divisions import (
    Division,
    hub_divisions,
    read_divisions,
    unordered,
    without_shared,
)
from iterpo.environments.sources.files import LoadReport, locate

__all__ = [
    "Division",
    "LoadReport",
    "hub_divisions",
    "locate",
    "read_divisions",
    "unordered",
    "without_shared",
]
