"""Critics for implicit Q-learning: twin Q and V on frozen features, or on a trained encoder."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import compress
from pathlib import Path
from typing import Generic, TypeVar

import torch
from safetensors.torch import load_file, save
from torch import Tensor, nn

from iterpo import artifacts
from iterpo.domain import Response, State, derive
from iterpo.errors import ArtifactError
from iterpo.models.backbone import Backbone
from iterpo.models.chains import TokenRow
from iterpo.models.encoders import Encoder, read
from iterpo.policy_evaluation.base import Pooling, QConfig
from iterpo.policy_evaluation.features import extract_rows
from iterpo.policy_evaluation.iql import Backups, Reader
from iterpo.policy_evaluation.numbers import beside
from iterpo.policy_evaluation.qfunction import ValueHead
from iterpo.policy_evaluation.regression import seeded
from iterpo.policy_evaluation.transitions import Transition

__all__ = [
    "EncoderCritic",
    "Features",
    "HeadCritic",
    "HeadShape",
    "Prepared",
    "Texts",
    "backups",
    "load_critics",
    "on_encoder",
    "on_features",
    "save_critics",
]

_FILE = "critic.safetensors"
_SILENCE = Response("")
"""What a state is read with."""


@dataclass(frozen=True, slots=True)
class HeadShape:
    """Heads on frozen features."""

    hidden: int
    """Width of the hidden layer."""
    dropout: float
    """Dropout probability after the ReLU."""
    pooling: Pooling
    """Which hidden states of a response are read; of a state it is that of its last token."""
    standardise: bool
    """Whether features are brought to mean 0 and spread 1 over the first round's sample."""
    numbers: int = 0
    """How many figures of each message are read beside the hidden states; see ``QConfig``."""


class HeadCritic(nn.Module):
    """Twin heads d -> hidden -> 1 on frozen features: Q on those of (s, a), V on those of s."""

    def __init__(self, width: int, hidden: int, dropout: float) -> None:
        super().__init__()
        self.q = ValueHead(width, hidden, 2, dropout)
        self.v = ValueHead(width, hidden, 2, dropout)

    def take_scales(self, features: Features, numbers: int) -> None:
        """Bring each feature to mean 0 and spread 1 over these rows, or as numbers are."""
        for head, rows in ((self.q, features.actions), (self.v, features.states)):
            head.standardise(rows.mean(dim=0), rows.std(dim=0, correction=0), numbers)


class EncoderCritic(nn.Module):
    """An encoder, and twin MLPs on what it makes of s and of a: (2d -> d -> d -> 1), (d -> …)."""

    def __init__(self, encoder: Encoder) -> None:
        super().__init__()
        self.encoder: nn.Module = encoder.model
        self.q = nn.ModuleList(_mlp(2 * encoder.width, encoder.width) for _ in range(2))
        self.v = nn.ModuleList(_mlp(encoder.width, encoder.width) for _ in range(2))
        self.to(encoder.device)


C = TypeVar("C", HeadCritic, EncoderCritic)


@dataclass(frozen=True, slots=True)
class Prepared(Generic[C]):
    """A critic that is ready to be fitted."""

    critic: C
    """Fresh weights; those of an earlier round may be put in their place."""
    target: C
    """Its target network, equal at first."""
    reader: Reader[C]
    """Reads the transitions ``rows``."""
    rows: tuple[Transition, ...]
    """Those that can be read."""
    facts: Mapping[str, int]
    """What is worth telling of the reading."""


@dataclass(frozen=True, slots=True)
class Features:
    """Frozen features of n transitions and their m states; a ``Reader`` for a ``HeadCritic``."""

    states: Tensor
    """Hidden state of a prompt's last token, (m, d)."""
    actions: Tensor
    """Features of (s, a), (n, d)."""
    now: Tensor
    """Index of s, (n,)."""
    then: Tensor
    """Index of s', (n,); that of s where the conversation ended."""

    def values(self, critic: HeadCritic, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Q(s, a) and V(s), (b, 2) each."""
        v = critic.v.normalised(self.states[self.now[rows]])
        return critic.q.normalised(self.actions[rows]), v

    def following(self, critic: HeadCritic, rows: Tensor) -> Tensor:
        """V(s'), (b, 2)."""
        return critic.v.normalised(self.states[self.then[rows]])


@dataclass(frozen=True, slots=True)
class Texts:
    """n transitions and their m states as token ids; a ``Reader`` for an ``EncoderCritic``."""

    encoder: Encoder
    """How they are read."""
    states: tuple[list[int], ...]
    """m states."""
    actions: tuple[list[int], ...]
    """n actions."""
    now: Tensor
    """Index of s, (n,)."""
    then: Tensor
    """Index of s', (n,); that of s where the conversation ended."""

    def values(self, critic: EncoderCritic, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Q(s, a) and V(s), (b, 2) each."""
        state = read(self.encoder, critic.encoder, [self.states[i] for i in self.now[rows]])
        action = read(self.encoder, critic.encoder, [self.actions[i] for i in rows])
        return _twins(critic.q, torch.cat([state, action], dim=1)), _twins(critic.v, state)

    def following(self, critic: EncoderCritic, rows: Tensor) -> Tensor:
        """V(s'), (b, 2)."""
        state = read(self.encoder, critic.encoder, [self.states[i] for i in self.then[rows]])
        return _twins(critic.v, state)


def on_features(
    backbone: Backbone,
    rows: Sequence[Transition],
    q: QConfig,
    heads: HeadShape,
    seed: int,
) -> Prepared[HeadCritic]:
    """A critic of heads on a frozen backbone, whose features are computed here, once.

    One pass reads a conversation's states and responses for as long as its prompts only grow.

    Args:
        backbone: Frozen weights that stay the same over the rounds.
        rows: Transitions.
        q: How the backbone is read (``max_batch_tokens``).
        heads: What reads the features.
        seed: Of the initial weights.
    """
    states, now, then = _states(rows)
    prompts = [backbone.chat.prompt_ids(s.messages) for s in states]
    asked = [
        TokenRow(s.conversation_id, s.t, p[:-1], p[-1:])
        for s, p in zip(states, prompts, strict=True)
    ]
    said = [
        TokenRow(
            r.state.conversation_id,
            r.state.t,
            prompts[i],
            backbone.chat.response_token_ids(r.response),
        )
        for r, i in zip(rows, now.tolist(), strict=True)
    ]
    # States first: a response then goes on from its own prompt's pass.
    extracted = extract_rows(
        backbone,
        [*asked, *said],
        pooling=heads.pooling,
        max_batch_tokens=q.max_batch_tokens,
    )
    features = beside(
        extracted.features,
        [*states, *(r.state for r in rows)],
        [_SILENCE] * len(states) + [r.response for r in rows],
        heads.numbers,
    )
    state, action = torch.split(features, [len(asked), len(said)])
    finite = torch.isfinite(state).all(dim=1)
    usable = torch.isfinite(action).all(dim=1) & finite[now] & finite[then]
    reader = Features(state, action[usable], now[usable], then[usable])
    with seeded(derive(seed, "critic")):
        critic = HeadCritic(state.shape[1], heads.hidden, heads.dropout)
    if heads.standardise:
        critic.take_scales(reader, heads.numbers)
    kept = tuple(compress(rows, usable.tolist()))
    facts = {"unreadable": len(rows) - len(kept), "forwards": extracted.forwards}
    return Prepared(critic, copy.deepcopy(critic), reader, kept, facts)


def on_encoder(encoder: Encoder, rows: Sequence[Transition], seed: int) -> Prepared[EncoderCritic]:
    """A critic with an encoder that is trained along.

    Args:
        encoder: The text model; it becomes the critic's own.
        rows: Transitions.
        seed: Of the initial weights of what reads the encoder.
    """
    states, now, then = _states(rows)
    reader = Texts(
        encoder,
        tuple(encoder.observation_ids(s.messages) for s in states),
        tuple(encoder.action_ids(r.response) for r in rows),
        now,
        then,
    )
    with seeded(derive(seed, "critic")):
        critic = EncoderCritic(encoder)
    lengths = [len(ids) for ids in (*reader.states, *reader.actions)]
    at_limit = sum(length >= encoder.longest for length in lengths)
    facts = {"longest_text": max(lengths, default=0), "texts_at_limit": at_limit}
    return Prepared(critic, copy.deepcopy(critic), reader, tuple(rows), facts)


def backups(rows: Sequence[Transition]) -> Backups:
    """Rewards and ends of transitions."""
    return Backups(
        torch.tensor([r.reward for r in rows], dtype=torch.float32),
        torch.tensor([r.discount for r in rows], dtype=torch.float32),
        torch.tensor([r.following is None for r in rows]),
    )


def save_critics(folder: Path, critic: nn.Module, target: nn.Module) -> None:
    """Write a critic and its target into a folder that is being filled."""
    weights = {
        f"{name}.{key}": value.detach().cpu().contiguous()
        for name, module in (("critic", critic), ("target", target))
        for key, value in module.state_dict().items()
    }
    artifacts.write_atomic(folder / _FILE, save(weights))


def load_critics(folder: Path, critic: nn.Module, target: nn.Module) -> None:
    """Read both back, into modules of the same shape.

    Raises:
        ArtifactError: if they are missing, or of another shape.
    """
    try:
        weights = load_file(folder / _FILE)
        for name, module in (("critic.", critic), ("target.", target)):
            own = {k.removeprefix(name): v for k, v in weights.items() if k.startswith(name)}
            module.load_state_dict(own, strict=True)
    except (OSError, ValueError, RuntimeError) as error:
        raise ArtifactError(
            f"{folder} holds no critic of this shape: {error}. It was fitted by other settings; "
            "use another run folder."
        ) from error


def _mlp(width: int, hidden: int) -> nn.Module:
    return nn.Sequential(
        nn.Linear(width, hidden),
        nn.ReLU(),
        nn.Linear(hidden, hidden),
        nn.ReLU(),
        nn.Linear(hidden, 1),
    )


def _twins(heads: nn.ModuleList, x: Tensor) -> Tensor:
    return torch.cat([head(x) for head in heads], dim=1)


def _states(rows: Sequence[Transition]) -> tuple[list[State], Tensor, Tensor]:
    """Each state once, and for each row the indices of s and of s'."""
    place: dict[State, int] = {}
    now = [place.setdefault(row.state, len(place)) for row in rows]
    then = [
        here if row.following is None else place.setdefault(row.following.state, len(place))
        for here, row in zip(now, rows, strict=True)
    ]
    return list(place), torch.tensor(now), torch.tensor(then)
