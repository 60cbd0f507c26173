"""Keys are read where they are named, and shown nowhere."""

from __future__ import annotations

import copy
import json
import pickle

import pytest

from iterpo.config import Secret, dump, read_secret
from iterpo.errors import ConfigError

CANARY = "sk-canary-0123456789"


def test_a_secret_reads_back_and_never_prints() -> None:
    secret = Secret(f" {CANARY}\n")
    assert secret.reveal() == CANARY
    shown = [
        str(secret),
        repr(secret),
        f"{secret}",
        f"{secret!r:>30}",
        f"{secret:>30}",
    ]
    shown += [str([secret]), str({"key": secret}), str(dump({"key": secret}))]
    assert not [s for s in shown if CANARY in s]


def test_a_secret_is_copied_but_not_stored() -> None:
    secret = Secret(CANARY)
    assert copy.deepcopy({"a": [secret]})["a"][0] is secret
    assert copy.copy(secret) is secret
    with pytest.raises(TypeError, match="environment variable"):
        pickle.dumps(secret)
    with pytest.raises(TypeError) as caught:
        json.dumps(secret)
    assert CANARY not in str(caught.value)


def test_the_named_variable_is_read() -> None:
    environ = {"MY_KEY": CANARY, "BLANK": "  "}
    found = read_secret("MY_KEY", environ)
    assert found is not None
    assert found.reveal() == CANARY
    assert read_secret("OTHER", environ) is None
    assert read_secret("BLANK", environ) is None


def test_the_process_environment_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ITERPO_TEST_KEY", CANARY)
    found = read_secret("ITERPO_TEST_KEY")
    assert found is not None
    assert found.reveal() == CANARY


@pytest.mark.parametrize("value", [f"{CANARY}\nX: 1", f"{CANARY} x", f"{CANARY}é", f"\x00{CANARY}"])
def test_what_can_t_be_a_header_is_refused_unseen(value: str) -> None:
    """An HTTP client that refuses such a header would print it."""
    with pytest.raises(ConfigError, match="environment variable MY_KEY") as caught:
        read_secret("MY_KEY", {"MY_KEY": value})
    assert CANARY not in str(caught.value)
