"""YAML, ``--set a.b=c`` and ``ITERPO__A__B`` to frozen typed values, all mistakes in one error.

Precedence: defaults < file < environment < ``--set``. Below the command line only this package
reads environment variables and knows pydantic; the classes that it fills are ordinary frozen
dataclasses. A class reports its own range and cross-field mistakes by raising ``ConfigError`` in
``__post_init__``, one ``field: what is wrong`` per line.
"""

from iterpo.config.paths import cache_folder, data_folder, environment_overrides
from iterpo.config.schema import json_schema
from iterpo.config.secrets import Secret, read_secret
from iterpo.config.text import override, read_yaml
from iterpo.config.typed import canonical_yaml, dump, parse

__all__ = [
    "Secret",
    "cache_folder",
    "canonical_yaml",
    "data_folder",
    "dump",
    "environment_overrides",
    "json_schema",
    "override",
    "parse",
    "read_secret",
    "read_yaml",
]
