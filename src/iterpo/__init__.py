"""Makes deployed conversational agents better from their own conversations."""

__version__ = "0.1.0"
