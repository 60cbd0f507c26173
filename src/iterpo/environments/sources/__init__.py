"""Raw data sets: found in a folder that the caller names, checked, parsed, and reported on."""

from iterpo.environments.sources.campsites import (
    Camper,
    Campsite,
    campsite_split,
    hub_campsites,
    read_campsites,
)
from iterpo.environments.sources.divisions import (
    Division,
    hub_divisions,
    read_divisions,
    unordered,
    without_shared,
)
from iterpo.environments.sources.files import LoadReport, locate
from iterpo.environments.sources.kernels import first_kernels
from iterpo.environments.sources.listings import Listing, craigslist, hub_listings, read_listings

__all__ = [
    "Camper",
    "Campsite",
    "Division",
    "Listing",
    "LoadReport",
    "campsite_split",
    "craigslist",
    "first_kernels",
    "hub_campsites",
    "hub_divisions",
    "hub_listings",
    "locate",
    "read_campsites",
    "read_divisions",
    "read_listings",
    "unordered",
    "without_shared",
]
