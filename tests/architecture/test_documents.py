"""What the documents say about the code is true."""

from __future__ import annotations

import dataclasses
import importlib.util
import re
import sys
import tomllib
from pathlib import Path
from types import ModuleType

import pytest

from architecture.sources import ROOT, SRC, package, read, registry
from iterpo.errors import ConfigError
from iterpo.experiments.plan import load_plan
from iterpo.experiments.study import Study, load_study

DOCS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
README = (ROOT / "README.md").read_text(encoding="utf-8")
PAPER_MAP = ROOT / "docs" / "paper-map.md"
MAX_DECISION_LINES = 40
STUDY_KEYS = {f.name for f in dataclasses.fields(Study)}


@pytest.fixture(scope="module")
def reference() -> ModuleType:
    path = ROOT / "scripts" / "make_reference.py"
    spec = importlib.util.spec_from_file_location("make_reference", path)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules["make_reference"] = module
    spec.loader.exec_module(module)
    return module


def resolves(target: str) -> bool:
    """Whether ``package.module:Name.attribute`` names something that the source defines."""
    module, _, name = target.partition(":")
    base = SRC.parent / module.replace(".", "/")
    path = base.with_suffix(".py") if base.with_suffix(".py").exists() else base / "__init__.py"
    if not path.exists():
        return False
    source = read(path)
    if not name:
        return True
    functions = {n for n, _ in source.functions()}
    return name in source.defined | functions | (source.imported & set(source.exported or ()))


def test_generated_pages_are_fresh(reference: ModuleType) -> None:
    old = [str(p.relative_to(ROOT)) for p in reference.stale()]
    assert not old, "run `make reference` and commit what it writes"


def test_the_readme_tree_names_every_file() -> None:
    """Independent of the generator: the paths read back from the README are the real ones."""
    block = re.search(r"```\nsrc/iterpo/\n(.*?)```", README, re.S)
    assert block
    stack: list[str] = []
    listed = set()
    for line in block.group(1).splitlines():
        depth = (len(line) - len(line.lstrip())) // 2
        name = line.split()[0]
        stack[depth - 1 :] = [name.rstrip("/")]
        if name.endswith(".py"):
            listed.add("/".join(stack))
        assert len(line.split()) > 1, f"{name} has no comment"
    assert listed == {s.name for s in package() if not s.path.name.startswith("__")}


def test_paper_map_points_at_code_that_exists() -> None:
    rows = re.findall(r"^\|.*\|$", PAPER_MAP.read_text(encoding="utf-8"), re.M)
    targets = [t for row in rows for t in re.findall(r"`(iterpo[\w.]*(?::[\w.]+)?)`", row)]
    assert len(targets) >= 15
    assert [t for t in targets if not resolves(t)] == []


def test_the_paper_map_check_can_fail() -> None:
    assert resolves("iterpo.domain.decision:returns_to_go")
    assert resolves("iterpo.domain.conversation:Conversation.agent_view")
    assert not resolves("iterpo.domain.decision:returns_to_come")
    assert not resolves("iterpo.domain.indecision:returns_to_go")


def test_every_plugin_is_documented() -> None:
    for page, home in (
        ("environments.md", SRC / "environments"),
        ("methods.md", SRC / "methods"),
    ):
        text = (ROOT / "docs" / "reference" / page).read_text(encoding="utf-8")
        names = [n for p in sorted(home.glob("*.py")) for n in _registered(p)]
        assert names
        assert [n for n in names if f"## {n}\n" not in text] == []


def _registered(path: Path) -> list[str]:
    return list(registry(path, "REGISTRY")) if "REGISTRY" in read(path).defined else []


def test_ci_runs_the_test_command_of_the_readme() -> None:
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    assert re.search(r"^make test$", README, re.M), "the README's test command"
    assert re.search(r"^make test\b", script, re.M)
    assert re.search(r"^make check\b", script, re.M)
    assert "set -euo pipefail" in script


def test_make_targets_in_the_documents_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M))
    named = {
        t for p in DOCS for t in re.findall(r"^make ([a-z-]+)$|`make ([a-z-]+)`", p.read_text())
        for t in t if t
    }  # fmt: skip
    assert named >= {"demo", "test"}
    assert named <= targets, named - targets


@pytest.mark.parametrize("page", DOCS, ids=lambda p: str(p.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        if not link.startswith(("http", "#", "mailto:")):
            target = (page.parent / link.split("#")[0]).resolve()
            assert target.exists(), f"{page.name} links to {link}"
            assert target.is_relative_to(ROOT), f"{link} leaves the repository"


def test_decisions_stay_on_one_page() -> None:
    found = sorted((ROOT / "docs" / "decisions").glob("[0-9]*.md"))
    assert found
    for page in found:
        text = page.read_text(encoding="utf-8")
        assert len(text.splitlines()) <= MAX_DECISION_LINES, page.name
        for part in ("context", "decision", "consequences", "(how to )?undo"):
            said = re.search(rf"^(## |\*\*){part}", text, re.M | re.I)
            assert said, f"{page.name} lacks {part}"


def test_versions_agree() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert f'__version__ = "{project["version"]}"' in (SRC / "__init__.py").read_text()
    assert f"## {project['version']}" in (ROOT / "CHANGELOG.md").read_text()
    makefile = (ROOT / "Makefile").read_text()
    torch = re.search(r"^TORCH \?= (torch==\S+)$", makefile, re.M)
    assert torch
    assert torch.group(1) in (ROOT / "constraints.txt").read_text().splitlines()


def test_constraints_are_plain_pins() -> None:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = [line for line in lines if not line.startswith("#")]
    assert all(re.fullmatch(r"[A-Za-z0-9_.-]+==[A-Za-z0-9.]+", p) for p in pins)
    pinned = {re.sub(r"[-_.]+", "-", p.split("==")[0]).lower() for p in pins}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    direct = [*project["dependencies"], *extras["train"], *extras["dev"]]
    names = {re.split(r"[<>=;\[ ]", d)[0].lower().replace("_", "-") for d in direct}
    assert names <= pinned, names - pinned


def test_plans_in_the_documents_are_plans(tmp_path: Path) -> None:
    blocks = [
        b for p in DOCS for b in re.findall(r"^```yaml\n(.*?)^```", p.read_text(), re.M | re.S)
    ]
    assert blocks
    blocks = [b for b in blocks if "reward_weighted" not in b]  # run by test_how_to_method
    for block in blocks:
        plan = tmp_path / "plan.yaml"
        plan.write_text(block)
        (load_study if re.search(r"^methods:", block, re.M) else load_plan)(plan)


def test_settings_in_the_documents_are_accepted() -> None:
    text = "\n".join(p.read_text() for p in DOCS if p.parent.name != "reference")
    settings = set(re.findall(r"--set (\w[\w.]*=\w\S*)", text)) - {"a.b=c", "q.gama=0.5"}
    of_q = set(re.findall(r"iterpo fit-q .*--set (\S+)", text))
    assert of_q
    settings = settings - of_q | {f"q.{s}" for s in of_q}
    of_studies = {s for s in settings if s.split("=")[0].split(".")[0] in STUDY_KEYS}
    assert of_studies
    load_study("smoke", sorted(of_studies))
    load_plan("demo", sorted(settings - of_studies))
    with pytest.raises(ConfigError, match="gama"):
        load_plan("demo", ["q.gama=0.5"])
