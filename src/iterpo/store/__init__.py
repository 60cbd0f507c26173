"""The conversation log: append, query, verify."""

from iterpo.store.conversations import CONVERSATIONS, read_conversations, write_conversations
from iterpo.store.metrics import METRICS, MetricsTable, read_metrics
from iterpo.store.records import from_line, to_line

__all__ = [
    "CONVERSATIONS",
    "METRICS",
    "MetricsTable",
    "from_line",
    "read_conversations",
    "read_metrics",
    "to_line",
    "write_conversations",
]
