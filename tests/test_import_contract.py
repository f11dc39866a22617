"""Which room may import what: docs/architecture.md, checked in the source of every module."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
HEAVY = {"torch", "transformers", "datasets", "nvidia_resiliency_ext", "numpy", "structlog"}
BASE = {"pydantic", "pydantic_core", "yaml", "annotated_types", "typing_extensions"}

# room -> rooms of the product that it may import (itself is understood; what is open to all stands in the test below)
MAY_IMPORT: dict[str, set[str]] = {
    "system": set(),
    "control": set(),
    "recipe": set(),
    "emit": {"recipe"},
    "ledger": {"recipe"},
    "report": {"ledger", "recipe"},
    "launch": {
        "emit",
        "recipe",
        "ledger",
        "report",
        "control",
        "checkpoint.contradiction",
        "checkpoint.record",
        "checkpoint.shm",
        "faults.records",
        "train.worker",
    },
    "bench": {"ledger", "recipe", "report", "launch.signals"},
    "checkpoint": {"recipe", "ledger", "control", "train.ports"},
    "recovery": {"recipe", "ledger", "faults", "control", "launch.budget", "train.ports"},
    "faults": {"recipe", "ledger", "train.ports"},
}
LIGHT = ("system", "control", "recipe", "emit", "ledger", "report", "launch", "bench")


def modules(room: str) -> list[Path]:
    return sorted((ROOT / "runner" / room).rglob("*.py"))


def imports(path: Path) -> list[tuple[str, bool, int]]:
    """(dotted name, only for types or inside a function, line) of every import of a module."""
    tree = ast.parse(path.read_text())
    found: list[tuple[str, bool, int]] = []

    def visit(node: ast.AST, late: bool) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.Import):
                found.extend((alias.name, late, child.lineno) for alias in child.names)
            elif isinstance(child, ast.ImportFrom) and child.module and not child.level:
                found.extend((f"{child.module}.{alias.name}", late, child.lineno) for alias in child.names)
            else:
                types_only = isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test)
                visit(child, late or types_only or isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef))

    visit(tree, False)
    return found


@pytest.mark.parametrize("room", sorted(MAY_IMPORT))
def test_a_room_imports_only_the_rooms_below_it(room: str) -> None:
    allowed = {room, "errors", "arguments", "streams", "strictjson", "system", "__version__"} | MAY_IMPORT[
        room
    ]
    wrong = [
        f"{path.relative_to(ROOT)}:{line}: {name}"
        for path in modules(room)
        for name, _, line in imports(path)
        if name.startswith("runner.")
        and not any(name == f"runner.{ok}" or name.startswith(f"runner.{ok}.") for ok in allowed)
    ]
    assert wrong == []


@pytest.mark.parametrize("room", sorted(MAY_IMPORT))
def test_the_documentation_says_what_a_room_may_import(room: str) -> None:
    page = (ROOT / "docs" / "architecture.md").read_text()
    (row,) = [line for line in page.splitlines() if line.startswith(f"| `runner/{room}/`")]
    said = {word.strip() for word in row.strip("| ").split("|")[-1].split(",")}
    assert said - {"pydantic", "pyyaml", "standard library"} == MAY_IMPORT[room]


@pytest.mark.parametrize("room", LIGHT)
def test_rooms_of_the_base_install_import_nothing_heavy(room: str) -> None:
    wrong = [
        f"{path.relative_to(ROOT)}:{line}: {name}"
        for path in modules(room)
        for name, late, line in imports(path)
        if not late and name.split(".")[0] in HEAVY
    ]
    assert wrong == []


@pytest.mark.parametrize("room", ["system", "control", "recipe", "emit", "ledger", "launch"])
def test_what_validation_emission_and_start_need_is_in_the_base_install(room: str) -> None:
    known = BASE | set(sys.stdlib_module_names) | {"runner"}
    wrong = [
        f"{path.relative_to(ROOT)}:{line}: {name}"
        for path in modules(room)
        for name, late, line in imports(path)
        if not late and name.split(".")[0] not in known
    ]
    assert wrong == []


@pytest.mark.parametrize("room", ["system", "control"])
def test_what_a_worker_reads_before_its_imports_is_in_the_standard_library(room: str) -> None:
    known = set(sys.stdlib_module_names) | {"runner"}
    assert {
        name for path in modules(room) for name, _, _ in imports(path) if name.split(".")[0] not in known
    } == set()


def test_the_contract_names_every_room() -> None:
    rooms = {path.parent.name for path in (ROOT / "runner").glob("*/__init__.py")}
    assert rooms == set(MAY_IMPORT) | {"train"}
