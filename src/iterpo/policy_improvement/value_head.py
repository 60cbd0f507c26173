"""ValueHead: V of a state, read off the policy's own hidden state, in a file of its own."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from iterpo.errors import ArtifactError
from iterpo.policy_improvement.logged import Schedule

__all__ = ["ValueHead", "fit_head"]

_WEIGHTS = "head.safetensors"


class ValueHead(nn.Module):
    """A linear map of hidden states; 0 everywhere before any training, float32 throughout."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, 1)
        nn.init.zeros_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)

    def forward(self, states: Tensor) -> Tensor:
        """Values (n,) of hidden states (n, d) of any type."""
        with torch.autocast(states.device.type, enabled=False):
            return cast(Tensor, self.linear(states.float()).squeeze(-1))

    def save(self, folder: Path) -> None:
        """Write the weights into a folder."""
        save_file({n: w.detach().cpu() for n, w in self.state_dict().items()}, folder / _WEIGHTS)

    @classmethod
    def load(cls, folder: Path) -> ValueHead:
        """The head that ``save`` wrote.

        Raises:
            ArtifactError: if there is none; a fresh one would silently take its place otherwise.
        """
        path = folder / _WEIGHTS
        if not path.is_file():
            raise ArtifactError(f"{path} is missing: there is no value head here; make it again")
        weights = load_file(path)
        head = cls(weights["linear.weight"].shape[1])
        head.load_state_dict(weights)
        return head


def fit_head(
    head: ValueHead,
    states: list[Tensor],
    returns: list[Tensor],
    schedule: Schedule,
    learning_rate: float,
) -> None:
    """Least squares of the returns by the head alone, by AdamW over fixed hidden states.

    Args:
        head: Trained in place.
        states: (n_i, d) for each episode.
        returns: (n_i,) for each.
        schedule: Which episodes each step sees.
        learning_rate: Step size.
    """
    place = head.linear.weight.device
    optimizer = torch.optim.AdamW(head.parameters(), lr=learning_rate, weight_decay=0.0)
    for step in schedule.order:
        read = torch.cat([states[i] for i in step]).to(place)
        target = torch.cat([returns[i] for i in step]).to(place)
        loss = 0.5 * (head(read) - target).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
