"""Packages that a how-to builds, installed from the blocks of its page."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path


def install(folder: Path, blocks: Mapping[str, str], toml: str) -> None:
    """What ``pip install`` leaves of a package: its files and its metadata."""
    for name, text in blocks.items():
        if name.endswith((".py", ".yaml")):
            path = folder / name
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
    project = tomllib.loads(toml)["project"]
    info = folder / f"{project['name']}-{project['version']}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n"
    )
    lines = []
    for group, entries in project["entry-points"].items():
        lines += [f"[{group}]", *(f"{name} = {target}" for name, target in entries.items())]
    (info / "entry_points.txt").write_text("\n".join(lines) + "\n")


def run(folder: Path, *arguments: str) -> str:
    """What Python says when it is called with the package installed."""
    done = subprocess.run(
        [sys.executable, *arguments],
        env={**os.environ, "PYTHONPATH": str(folder), "COLUMNS": "100"},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
