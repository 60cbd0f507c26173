"""Public checks and toy parts for people who extend iterpo."""

from iterpo.testing.conformance import check_environment
from iterpo.testing.report import Report

__all__ = ["Report", "check_environment"]
