"""The command line: parse, call, print; the composition root."""
