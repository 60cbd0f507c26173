"""The conversation log: append, query, verify."""
