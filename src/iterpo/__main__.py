"""``python -m iterpo``."""

from iterpo.cli.main import app

app()
