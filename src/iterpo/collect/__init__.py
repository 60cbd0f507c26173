"""Stage 1: deploy pi_i, log D_i. Also callable: see ``iterpo.api.collect``."""

from iterpo.collect.batch import Tally, collect, collect_into, seats
from iterpo.collect.play import Table, play

__all__ = ["Table", "Tally", "collect", "collect_into", "play", "seats"]
