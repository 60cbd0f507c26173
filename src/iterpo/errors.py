"""Every error that iterpo raises on purpose, as one tree.

::

    IterpoError
    ├── ConfigError            (ValueError)      a plan or option is wrong; lists all mistakes
    ├── UnknownNameError       (LookupError)     no such environment, method, model or policy
    ├── MissingExtraError      (ImportError)     an optional package is not installed
    ├── DataError              (ValueError)      a data set or log isn't what it claims to be
    │   └── MissingDataError   (FileNotFoundError)
    ├── ModelError             (ValueError)      a model folder can't be used
    │   ├── TemplateError                        chat template or agent-token mask is unusable
    │   └── ContextOverflowError                 a prompt does not fit the context
    ├── BatchError             (ValueError)      logged conversations can't be trained on
    ├── TrainingError          (RuntimeError)    training did not do what was planned
    ├── ArtifactError          (ValueError)      a stored file is corrupt, truncated or incomplete
    ├── ResumeError            (ValueError)      the run folder belongs to another plan
    ├── StorageFullError       (OSError)         the disk is full
    ├── EndpointError          (RuntimeError)    a model server did not give a usable reply
    ├── PhaseError             (RuntimeError)    a phase process ended without finishing
    ├── OutOfTurnError         (RuntimeError)    spoken before a conversation began, or after it
    └── ConformanceError       (AssertionError)  an environment breaks its protocol; lists how

A message says what was given, what is accepted and what to do.
"""

from __future__ import annotations

__all__ = [
    "ArtifactError",
    "BatchError",
    "ConfigError",
    "ConformanceError",
    "ContextOverflowError",
    "DataError",
    "EndpointError",
    "IterpoError",
    "MissingDataError",
    "MissingExtraError",
    "ModelError",
    "OutOfTurnError",
    "PhaseError",
    "ResumeError",
    "StorageFullError",
    "TemplateError",
    "TrainingError",
    "UnknownNameError",
    "missing_extra",
]


class IterpoError(Exception):
    """Base of all errors raised on purpose."""

    def __str__(self) -> str:
        # LookupError-derived classes would otherwise print their message in quotes.
        return str(self.args[0]) if self.args else ""


class ConfigError(IterpoError, ValueError):
    """A plan or an option is wrong; the message lists every mistake found."""


class UnknownNameError(IterpoError, LookupError):
    """A name is not in the registry that was asked."""


class MissingExtraError(IterpoError, ImportError):
    """An optional package is needed; the message holds the command that installs it."""


_TRAINING_STACK = {
    *("torch", "transformers", "trl", "peft", "datasets", "accelerate", "safetensors", "gguf"),
    "pyarrow",
}
_DRAWING = {"jinja2", "markupsafe", "matplotlib"}


def missing_extra(error: ImportError, what: str) -> MissingExtraError | None:
    """What to say where ``what`` needs an optional package; None if another module is missing."""
    name = str(error.name or "").partition(".")[0]
    if name in _DRAWING:
        return MissingExtraError(
            f"{what} needs {name}, which is not installed: pip install 'iterpo[report]'"
        )
    if name not in _TRAINING_STACK:
        return None
    return MissingExtraError(
        f"{what} needs {name}, which is not installed. "
        "Install the training stack: pip install 'iterpo[train]'"
    )


class DataError(IterpoError, ValueError):
    """A data set or a log does not have the layout that it claims to have."""


class MissingDataError(DataError, FileNotFoundError):
    """A data folder or file is absent."""


class ModelError(IterpoError, ValueError):
    """A model folder can't be used."""


class TemplateError(ModelError):
    """The chat template, or a mask derived from it, can't be trusted."""


class ContextOverflowError(ModelError):
    """A rendered prompt and its response do not fit the model's context."""


class BatchError(IterpoError, ValueError):
    """The logged conversations can't be trained on (empty, one outcome only, text only, …)."""


class TrainingError(IterpoError, RuntimeError):
    """Training did not do what was planned."""


class ArtifactError(IterpoError, ValueError):
    """A stored file is corrupt, truncated or incomplete."""


class ResumeError(IterpoError, ValueError):
    """A run folder belongs to another plan."""


class StorageFullError(IterpoError, OSError):
    """The disk is full; what was finished before is kept."""


class EndpointError(IterpoError, RuntimeError):
    """A model server did not give a usable reply."""


class PhaseError(IterpoError, RuntimeError):
    """A phase process ended without finishing its work."""


class OutOfTurnError(IterpoError, RuntimeError):
    """Something was said in a conversation that has not begun, is over or has failed."""


class ConformanceError(IterpoError, AssertionError):
    """An environment breaks what every environment promises; each breach with an example."""
