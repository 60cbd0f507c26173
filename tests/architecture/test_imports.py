"""Who may import whom: the contracts hold, they bite, and nothing light imports torch."""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterable
from fnmatch import fnmatch
from pathlib import Path

import pytest

from architecture.sources import ROOT, SRC, Source, package

HEAVY = ("torch", "transformers", "peft", "trl", "datasets", "accelerate")

# Imports inside functions have one good reason: whoever reads a plan or prints a help text need not
# wait for torch. Where commands and the public API are put together they are free.
LAZY_LAYERS = ("cli/", "api.py", "__init__.py")


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


def imports(source: Source, nodes: Iterable[ast.AST]) -> set[str]:
    """Dotted names of the modules that these statements import, as far as they can be told."""
    found = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found


def heavy_modules(sources: list[Source]) -> set[str]:
    """Modules of the package that importing them loads torch for, directly or by another one."""
    above = {s.module: imports(s, s.tree.body) for s in sources}
    heavy: set[str] = set()
    while True:
        more = {
            name
            for name, used in above.items()
            if used & heavy or any(u.split(".")[0] in HEAVY for u in used)
        }
        if more <= heavy:
            return heavy
        heavy |= more


def test_own_modules_are_imported_at_the_top_but_for_torch() -> None:
    sources = package()
    heavy = heavy_modules(sources)
    assert {"iterpo.policy_improvement._trl", "iterpo.models.backbone"} <= heavy
    assert not {"iterpo.experiments.plan", "iterpo.methods.base", "iterpo.domain"} & heavy
    needless = [
        f"{s.name}:{inner.lineno}"
        for s in sources
        if not s.name.startswith(LAZY_LAYERS)
        for _, node in s.functions()
        for inner in ast.walk(node)
        if isinstance(inner, ast.ImportFrom) and (inner.module or "").startswith("iterpo")
        if s.module in heavy or not imports(s, [inner]) & heavy
    ]
    assert not needless, sorted(set(needless))


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
        "iterpo.report.build",
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
