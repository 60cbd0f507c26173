"""The wheel holds all that a user needs and works away from the repository."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

from architecture.sources import ROOT, SRC

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("dist")
    run = [sys.executable, "-m", "pip", "--disable-pip-version-check", "wheel", "--quiet"]
    subprocess.run(
        [*run, "--no-deps", "--no-build-isolation", "-w", str(out), str(ROOT)],
        check=True,
        timeout=240,
    )
    (built,) = out.glob("iterpo-*.whl")
    return built


def test_the_wheel_is_complete(wheel: Path) -> None:
    """Whatever lies in the package folder is shipped: code, presets, the embedded model."""
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    wanted = {
        p.relative_to(SRC.parent).as_posix()
        for p in SRC.rglob("*")
        if p.is_file() and "__pycache__" not in p.parts and not p.name.startswith(".")
    }
    assert wanted <= names, wanted - names
    assert "iterpo/py.typed" in wanted
    assert any(n.startswith("iterpo/experiments/presets/") and n.endswith(".yaml") for n in wanted)
    assert any(n.startswith("iterpo/models/nano/") and n.endswith(".safetensors") for n in wanted)
    assert not [n for n in names if n.startswith(("tests/", "scripts/", "docs/"))]
    assert [n for n in names if n.endswith("licenses/LICENSE")]


def test_the_wheel_runs_elsewhere(wheel: Path, tmp_path: Path) -> None:
    """Installed beside the dependencies of this environment, run from an empty folder."""
    place = tmp_path / "venv"
    venv.EnvBuilder(with_pip=False).create(place)
    python = place / "bin" / "python"
    install = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet"]
    subprocess.run([*install, "--no-deps", str(wheel)], check=True, timeout=120)
    site = next(place.glob("lib/python*/site-packages"))
    # The dependencies only: editable installs live in .pth files, which PYTHONPATH doesn't read.
    here = [p for p in sys.path if p.endswith("site-packages")]
    env = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    env["PYTHONPATH"] = os.pathsep.join([str(site), *here])
    away = tmp_path / "away"
    away.mkdir()

    def run(*command: str) -> str:
        done = subprocess.run(
            [*command], cwd=away, env=env, capture_output=True, text=True, timeout=120, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    home = run(str(python), "-c", "import iterpo; print(iterpo.__file__)").strip()
    assert Path(home).is_relative_to(place)
    assert "demo" in run(str(place / "bin" / "iterpo"), "--help")
    presets = run(
        str(python),
        "-c",
        "from iterpo.experiments.plan import load_plan; print(load_plan('demo', []))",
    )
    assert presets
