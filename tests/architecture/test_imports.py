"""Who may import whom: the contracts hold, they bite, and nothing light imports torch."""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
import tomllib
from fnmatch import fnmatch
from pathlib import Path

import pytest

from architecture.sources import ROOT, SRC, package

HEAVY = ("torch", "transformers", "peft", "trl", "datasets", "accelerate")

# Imports inside functions keep start-up light; of the package's own modules they may also hide a
# cycle, so their number is capped. The caps may only shrink.
LAZY_LAYERS = ("cli/", "api.py", "__init__.py")
MAX_LAZY_OWN_IMPORTS = 5


def lint(folder: Path) -> subprocess.CompletedProcess[str]:
    code = (
        "from importlinter.cli import lint_imports; raise SystemExit(lint_imports(no_cache=True))"
    )
    env = {**os.environ, "PYTHONPATH": str(folder / "src"), "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(
        [sys.executable, "-c", code],
        cwd=folder,
        env=env,
        capture_output=True,
        text=True,
        timeout=120,
    )


def contracts() -> list[dict[str, object]]:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    found: list[dict[str, object]] = settings["tool"]["importlinter"]["contracts"]
    return found


def test_contracts_hold() -> None:
    done = lint(ROOT)
    assert done.returncode == 0, done.stdout[-3000:]


@pytest.mark.parametrize(
    ("victim", "line", "contract"),
    [
        ("methods/__init__.py", "import iterpo.environments.base", "No simulator inside"),
        ("collect/__init__.py", "import torch", "run without torch"),
        ("domain/__init__.py", "import iterpo.artifacts", "Layers point down"),
    ],
)
def test_contracts_bite(tmp_path: Path, victim: str, line: str, contract: str) -> None:
    shutil.copytree(
        SRC, tmp_path / "src" / "iterpo", ignore=shutil.ignore_patterns("*.safetensors")
    )
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    with (tmp_path / "src" / "iterpo" / victim).open("a") as stream:
        stream.write(f"\n{line}\n")
    done = lint(tmp_path)
    assert done.returncode == 1
    broken = [x for x in done.stdout.splitlines() if x.rstrip().endswith("BROKEN")]
    assert any(contract in x for x in broken), done.stdout[-3000:]


def test_every_layer_is_in_the_contract() -> None:
    layers = next(c for c in contracts() if c["type"] == "layers")
    listed = layers["layers"]
    assert isinstance(listed, list)
    names = {n.strip(" ()") for row in listed for n in row.split("|")}
    children = {p.stem for p in SRC.glob("*.py")} | {
        p.parent.name for p in SRC.glob("*/__init__.py")
    }
    assert children - {"__init__", "__main__"} <= names
    assert layers["exhaustive"] is True


@pytest.mark.parametrize(
    ("package_name", "places"),
    [("trl", "policy_improvement/_trl*.py"), ("vllm", "models/vllm_sampler.py")],
)
def test_an_engine_of_others_is_imported_where_its_name_says_so(
    package_name: str, places: str
) -> None:
    def named(node: ast.AST) -> list[str]:
        if isinstance(node, ast.Import):
            return [alias.name for alias in node.names]
        return [node.module or ""] if isinstance(node, ast.ImportFrom) else []

    users = {
        s.name
        for s in package()
        for node in ast.walk(s.tree)
        for name in named(node)
        if name.split(".")[0] == package_name
    }
    assert users
    assert not [name for name in users if not fnmatch(name, places)]


def test_own_modules_are_imported_at_the_top() -> None:
    lazy = [
        f"{s.name}:{inner.lineno}"
        for s in package()
        if not s.name.startswith(LAZY_LAYERS)
        for _, node in s.functions()
        for inner in ast.walk(node)
        if isinstance(inner, ast.ImportFrom) and (inner.module or "").startswith("iterpo")
    ]
    assert len(set(lazy)) <= MAX_LAZY_OWN_IMPORTS, sorted(set(lazy))


LIGHT = [
    name
    for name in (
        "iterpo",
        "iterpo.config",
        "iterpo.domain",
        "iterpo.environments",
        "iterpo.store",
        "iterpo.measure",
        "iterpo.collect",
        "iterpo.methods",
        "iterpo.cli.main",
    )
    if (SRC.parent / (name.replace(".", "/") + ".py")).exists()
    or (SRC.parent / name.replace(".", "/") / "__init__.py").exists()
]


def test_light_modules_leave_torch_alone() -> None:
    """Static contracts don't see what an ``__init__`` runs, so each is imported for real."""
    code = (
        "import importlib, sys\n"
        f"for name in {LIGHT!r}:\n"
        "    importlib.import_module(name)\n"
        f"    bad = set({HEAVY!r}) & set(sys.modules)\n"
        "    assert not bad, (name, bad)\n"
        "import torch; assert set(['torch']) & set(sys.modules)\n"
    )
    env = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr[-2000:]


def test_training_reaches_no_simulator() -> None:
    """Static contracts don't see the package's own ``__init__``: here games can't be imported."""
    code = (
        "import sys\n"
        "class Wall:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.split('.')[:2] == ['iterpo', 'environments']:\n"
        "            raise ImportError('training reached ' + name)\n"
        "sys.meta_path.insert(0, Wall())\n"
        "import iterpo\n"
        "iterpo.read, iterpo.fit_q, iterpo.improve, iterpo.load_policy\n"
        "import iterpo.methods.workspace, iterpo.experiments.learn\n"
        "try:\n"
        "    import iterpo.environments\n"
        "except ImportError:\n"
        "    sys.exit(0)\n"
        "sys.exit('the wall does not hold')\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]
