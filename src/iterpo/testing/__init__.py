"""Public checks and toy parts for people who extend iterpo."""
