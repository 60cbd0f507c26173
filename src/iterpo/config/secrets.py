"""Keys of servers: read from a named environment variable, and shown nowhere."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import NoReturn, Self

from iterpo.errors import ConfigError

__all__ = ["Secret", "read_secret"]


class Secret:
    """Text that neither prints nor pickles; ``reveal`` gives it to the one place that needs it.

    >>> str(Secret("sk-0123456789")), f"{[Secret('sk-0123456789')]}"
    ('(hidden)', '[(hidden)]')
    """

    __slots__ = ("_text",)

    def __init__(self, text: str, name: str = "the secret") -> None:
        """Keep a key.

        Args:
            text: The key; blanks and line ends around it are removed.
            name: Where it comes from, for messages.

        Raises:
            ConfigError: if no key can look like this, without showing it.
        """
        stripped = text.strip()
        # What can't be sent as a header would be printed by whoever refuses to send it.
        if not stripped or not all("!" <= c <= "~" for c in stripped):
            what = "is empty" if not stripped else "holds a blank or a character outside ASCII"
            raise ConfigError(f"{name} {what}; a key is visible ASCII characters without blanks")
        self._text = stripped

    def reveal(self) -> str:
        """The text itself; for a request's header, never for a message."""
        return self._text

    def __repr__(self) -> str:
        return "(hidden)"

    def __format__(self, spec: str) -> str:
        return format("(hidden)", spec)

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: object) -> Self:
        return self

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a secret is not stored or sent to another process; give that process the environment "
            "variable"
        )


def read_secret(name: str, environ: Mapping[str, str] | None = None) -> Secret | None:
    """The key in an environment variable; None where it is unset or blank (a local server).

    Args:
        name: Name of the variable, such as ``OPENAI_API_KEY``.
        environ: Where to look; None is the process's environment.

    Raises:
        ConfigError: if the value can't be a key; it is not shown.
    """
    value = (os.environ if environ is None else environ).get(name, "")
    return Secret(value, f"environment variable {name}") if value.strip() else None
