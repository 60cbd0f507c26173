"""Configuration: every mistake at once, YAML 1.2 scalars, settings in their order of precedence."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Literal

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from iterpo import config
from iterpo.config.text import to_yaml
from iterpo.errors import ConfigError


class Colour(StrEnum):
    RED = "red"
    BLUE = "blue"


@dataclass(frozen=True, slots=True)
class Inner:
    """Inner settings.

    More about them.
    """

    lr: float = 1e-4
    """Learning rate."""
    steps: int = 3
    """Number of steps,
    counted from 1."""
    mode: Literal["fixed", "fresh"] = "fixed"
    """How."""

    def __post_init__(self) -> None:
        wrong = []
        if self.steps < 1:
            wrong.append(f"steps: given {self.steps}; accepted: 1 or more")
        if self.lr <= 0:
            wrong.append(f"lr: given {self.lr}; accepted: above 0")
        if wrong:
            raise ConfigError("\n".join(wrong))


@dataclass(frozen=True, slots=True)
class Outer:
    """Outer settings."""

    name: str
    """Name."""
    inner: Inner = field(default_factory=Inner)
    """Nested."""
    maybe: Inner | None = None
    """Optional nested."""
    names: tuple[str, ...] = ()
    """Several."""
    ratio: float | None = None
    """Number or nothing."""
    flag: bool = False
    """Yes or no."""
    place: Path | None = None
    """Where."""
    colour: Colour = Colour.RED
    """Which."""
    passthrough: Mapping[str, Any] = field(default_factory=dict)
    """Anything."""

    def __post_init__(self) -> None:
        if self.ratio is not None and self.ratio > self.inner.steps:
            raise ConfigError(f"ratio: given {self.ratio}; accepted: at most inner.steps")


def parse(values: dict[str, Any]) -> Outer:
    return config.parse(Outer, values, "plan.yaml")


def mistakes(values: dict[str, Any]) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        parse(values)
    head, *lines = str(caught.value).splitlines()
    assert head.startswith("plan.yaml: ")
    assert f"{len(lines)} mistake" in head
    return [line.strip() for line in lines]


def test_values_reach_nested_frozen_dataclasses() -> None:
    got = parse(
        {
            "name": "x",
            "inner": {"lr": 1, "mode": "fresh"},
            "maybe": {},
            "names": ["a", "b"],
            "ratio": 2,
            "place": "/tmp/x",
            "colour": "blue",
            "passthrough": {"deep": {"er": [1, None]}},
        }
    )
    assert got == Outer(
        "x",
        Inner(lr=1.0, mode="fresh"),
        Inner(),
        ("a", "b"),
        2.0,
        place=Path("/tmp/x"),
        colour=Colour.BLUE,
        passthrough={"deep": {"er": [1, None]}},
    )
    assert isinstance(got.inner.lr, float)


def test_all_mistakes_are_told_at_once() -> None:
    found = mistakes(
        {
            "nam": "x",
            "lr": 1e-3,
            "inner": {"stepz": 4, "steps": "four", "lr": -1.0, "mode": "frech"},
            "maybe": {"steps": 0},
            "names": "a",
            "flag": "yes",
            "colour": "green",
            "ratio": 7,
        }
    )
    text = "\n".join(found)
    for start, hint in {
        "nam: unknown key": "Did you mean name?",
        "lr: unknown key": "Did you mean inner.lr or maybe.lr?",
        "inner.stepz: unknown key": "Did you mean inner.steps?",
        'inner.steps: given "four" (text)': "accepted: a whole number",
        "inner.lr: given -1.0": "above 0",
        'inner.mode: given "frech"': "one of fixed, fresh. Did you mean fresh?",
        "maybe.steps: given 0": "1 or more",
        "names: given": "a list of text",
        "flag: given": "true or false",
        "colour: given": "one of red, blue",
        "name: required": "text",
    }.items():
        assert any(line.startswith(start) and hint in line for line in found), (start, text)
    # ratio > steps can't be judged while `name` is missing: that check runs on whole objects only
    assert len(found) == 11, text


def test_a_whole_object_check_is_made_even_beside_other_mistakes() -> None:
    found = mistakes({"name": "x", "ratio": 7, "inner": {"lr": "fast"}})
    assert [line.split(":")[0] for line in found] == ["inner.lr", "ratio"]


@dataclass(frozen=True, slots=True)
class Plugin:
    """Whose options depend on which it is."""

    name: str = "plain"
    """Which."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Its own."""

    def __post_init__(self) -> None:
        if self.name not in ("plain", "rich"):
            raise ConfigError(f"name: given {self.name!r}; accepted: plain, rich")
        if self.name == "plain" and self.options:
            raise ConfigError("options: given some; accepted with plain: none")


def test_what_is_refused_is_not_judged_again_with_the_default_in_its_place() -> None:
    def told(values: dict[str, Any]) -> list[str]:
        with pytest.raises(ConfigError) as caught:
            config.parse(Plugin, values, "plan.yaml")
        return [line.split(":")[0].strip() for line in str(caught.value).splitlines()[1:]]

    assert told({"name": "other", "options": {"a": 1}}) == ["name"]
    assert told({"name": "other", "options": {"a": 1}, "more": 1}) == ["more", "name"]
    assert told({"options": {"a": 1}}) == ["options"]


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("flag", 1),
        ("flag", "true"),
        ("name", 3),
        ("ratio", "0.5"),
        ("ratio", True),
        ("inner", {"steps": 2.0}),
        ("inner", {"steps": True}),
        ("inner", {"steps": None}),
        ("inner", []),
        ("inner", None),
        ("names", ["a", 3]),
        ("passthrough", [1]),
    ],
)
def test_nothing_is_coerced_silently(key: str, value: Any) -> None:
    (line,) = mistakes({"name": "x", key: value})
    assert line.startswith(key)
    assert "accepted" in line


def test_the_faulty_element_of_a_list_is_named() -> None:
    (line,) = mistakes({"name": "x", "names": ["a", 3]})
    assert line.startswith("names.1: given 3")


@dataclass(frozen=True)
class Several:
    """Parts that must not be empty."""

    numbers: tuple[int, ...]
    """Some."""
    parts: Mapping[str, Mapping[str, Any] | None]
    """By label."""

    def __post_init__(self) -> None:
        found = [f"{n}: given nothing" for n in ("numbers", "parts") if not getattr(self, n)]
        if found:
            raise ConfigError("\n".join(found))


def test_what_is_left_of_a_faulty_list_or_mapping_is_not_judged() -> None:
    """Without its faulty element the list is empty, which nobody has given."""
    with pytest.raises(ConfigError) as caught:
        config.parse(Several, {"numbers": ["0"], "parts": {"a": 3}}, "study.yaml")
    first, second = str(caught.value).splitlines()[1:]
    assert first.strip().startswith('numbers.0: given "0" (text)')
    assert second.strip().startswith("parts.a: given 3 (a whole number); accepted: a mapping")
    with pytest.raises(ConfigError, match="numbers: given nothing"):
        config.parse(Several, {"numbers": [], "parts": {"a": 3}}, "study.yaml")


def test_a_number_is_finite() -> None:
    """YAML knows .inf and .nan; rules like "above 0" let the first through to the training."""
    values = {"name": "x", "ratio": float("nan"), "passthrough": {"deep": [1.0, float("inf")]}}
    assert sorted(mistakes(values)) == [
        "passthrough.deep.1: given Infinity (a number); accepted: a finite number",
        "ratio: given NaN (a number); accepted: a finite number",
    ]


def test_1e_minus_4_is_a_number_in_files_and_settings(tmp_path: Path) -> None:
    path = tmp_path / "plan.yaml"
    path.write_text("name: x\ninner: {lr: 1e-4}\n")
    assert isinstance(yaml.safe_load("1e-4"), str), "PyYAML got better: the resolver may go"
    assert config.read_yaml(path)["inner"]["lr"] == 1e-4
    assert config.override({}, ["a.b=1E-4", "c=-2.5e+3", "d=1.", "e=.5"]) == {
        "a": {"b": 1e-4},
        "c": -2500.0,
        "d": 1.0,
        "e": 0.5,
    }


def test_settings_are_typed_as_yaml() -> None:
    got = config.override(
        {"a": {"keep": 1}},
        ["a.n=3", "a.t=true", "a.z=null", "a.s=no", "l=[1, x]", "e=", "u=a=b", "o=010", "w=1:30"],
    )
    assert got == {
        "a": {"keep": 1, "n": 3, "t": True, "z": None, "s": "no"},
        "l": [1, "x"],
        "e": None,
        "u": "a=b",
        "o": 10,
        "w": "1:30",
    }


def test_later_settings_win_and_the_input_is_left_alone() -> None:
    original = {"a": {"b": 1}}
    assert config.override(original, ["a.b=2", "a.b=3"]) == {"a": {"b": 3}}
    assert original == {"a": {"b": 1}}


def test_bad_settings_are_told_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        config.override({"a": 1}, ["novalue", "=1", "a..b=1", "a.b=2", "x=[1"])
    text = str(caught.value)
    assert "5 mistakes" in text
    assert "a holds 1 (a whole number), which has no keys inside" in text


def test_environment_comes_before_set() -> None:
    environ = {"ITERPO__INNER__LR": "1e-3", "ITERPO__INNER__STEPS": "9", "ITERPO_CACHE": "/x"}
    settings = [*config.environment_overrides(environ), "inner.steps=5"]
    got = parse(config.override({"name": "x", "inner": {"lr": 0.5, "mode": "fresh"}}, settings))
    assert got.inner == Inner(lr=1e-3, steps=5, mode="fresh")


@pytest.mark.parametrize(
    ("text", "part"),
    [("- a\n", "mapping"), ("a: 1\na: 2\n", "twice"), ("a: [1\n", "line"), ("a: !!x 1\n", "YAML")],
)
def test_a_bad_file_is_explained(tmp_path: Path, text: str, part: str) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=part) as caught:
        config.read_yaml(path)
    assert "bad.yaml" in str(caught.value)


def test_a_missing_or_binary_file_is_explained(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.yaml: No such file"):
        config.read_yaml(tmp_path / "none.yaml")
    (tmp_path / "b.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match=r"b\.yaml"):
        config.read_yaml(tmp_path / "b.yaml")


def test_canonical_yaml_reads_back_and_is_stable(tmp_path: Path) -> None:
    value = Outer("1e-4", Inner(lr=1e-5), place=Path("/a"), passthrough={"k": (1, "no")})
    text = config.canonical_yaml(value)
    path = tmp_path / "c.yaml"
    path.write_text(text)
    again = parse(config.read_yaml(path))
    assert again.name == "1e-4"
    assert again.inner.lr == 1e-5
    assert config.canonical_yaml(again) == text
    assert list(config.read_yaml(path)) == list(config.dump(value))


@given(
    st.recursive(
        st.none()
        | st.booleans()
        | st.integers()
        | st.floats(allow_nan=False)
        | st.text(st.characters(blacklist_categories=("Cs",)), max_size=12)
        | st.sampled_from(["1e5", "010", "0x1f", "yes", "null", "1_000", "2026-11-30", "~", ".5"]),
        lambda inner: (
            st.lists(inner, max_size=3) | st.dictionaries(st.text("ab1.-", min_size=1), inner)
        ),
        max_leaves=6,
    )
)
def test_written_yaml_reads_back_as_the_same_value(value: Any) -> None:
    from iterpo.config.text import _load

    again = _load(to_yaml({"value": value}), "x")["value"]
    assert again == value
    assert type(again) is type(value)


def test_schema_describes_every_field() -> None:
    schema = config.json_schema(Outer)
    inner = schema["$defs"]["Inner"]
    assert schema["additionalProperties"] is False
    assert inner["additionalProperties"] is False
    assert inner["description"] == "Inner settings."
    assert inner["properties"]["lr"]["description"] == "Learning rate."
    assert inner["properties"]["steps"]["description"] == "Number of steps,\ncounted from 1."
    assert schema["properties"]["name"]["description"] == "Name."
    assert schema["required"] == ["name"]


def test_folders_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ITERPO_CACHE", "XDG_CACHE_HOME", "ITERPO_DATA"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", "/home/someone")
    assert config.cache_folder() == Path("/home/someone/.cache/iterpo")
    assert config.data_folder() is None
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    assert config.cache_folder() == Path("/xdg/iterpo")
    monkeypatch.setenv("ITERPO_CACHE", "/own")
    monkeypatch.setenv("ITERPO_DATA", "/data")
    assert config.cache_folder() == Path("/own")
    assert config.data_folder() == Path("/data")
