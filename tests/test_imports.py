"""Dependencies point one way. A module may import what is on its own line of ORDER or above, at module level.

Imports inside functions do not count: that is how ``grams.save`` calls ``store``.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import unweave

ORDER = [
    {"errors", "transfer", "protection"},
    {"files"},
    {"fused_kernel"},
    {"fused"},
    {"split"},
    {"patches", "correlate", "products"},
    {"structured", "small_maps"},
    {"pixels"},
    {"routes"},
    {"batches", "rows", "rest", "distributed"},
    {"shard", "fsdp", "samples"},
    {"layers"},
    {"borrowed", "taps"},
    {"outcomes"},
    {"grams"},
    {"pool", "store"},
    {"resume", "steady", "sums"},
    {"fit", "space"},
    {"losses", "config", "presets", "trust"},
    {"stopping"},
    {"captured"},
    {"descent"},
    {"result"},
    {"walk"},
    {"loop"},
    {"classes", "gone"},
    {"forget"},
    {""},  # the package itself, whose __init__ collects the public names
    {"baselines", "audit"},
    {"desk", "report"},
    {"cli", "demo"},
    {"__main__"},
]
LEVEL = {name: level for level, names in enumerate(ORDER) for name in names}

PACKAGE = Path(unweave.__file__).parent
FILES = sorted(path for path in PACKAGE.rglob("*.py") if path != PACKAGE / "__init__.py")
OUTSIDE = {"experiments", "benchmarks", "tests", "examples", "helpers", "oracles", "problems", "conftest"}


def part_of(module: list[str]) -> str:
    """The first name below the package, "" for the package itself."""
    return module[1] if len(module) > 1 else ""


def run_at_import(node: ast.AST) -> Iterator[ast.AST]:
    """All nodes outside of functions."""
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            yield child
            yield from run_at_import(child)


def imported(nodes: Iterator[ast.AST], package: list[str]) -> Iterator[list[str]]:
    """Every module that import statements name, as a list of names; ``from unweave import grams`` names grams."""
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".") for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = base + (node.module.split(".") if node.module else [])
            if module == ["unweave"]:
                yield from ([*module, alias.name] if alias.name in LEVEL else module for alias in node.names)
            else:
                yield module


def parts_imported(source: str, package: list[str]) -> set[str]:
    modules = imported(run_at_import(ast.parse(source)), package)
    return {part_of(module) for module in modules if module[0] == "unweave"}


def named(path: Path) -> list[str]:
    """The dotted name of a file's package."""
    return ["unweave", *path.relative_to(PACKAGE).parent.parts]


def own_part(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def test_every_module_has_its_place() -> None:
    assert {own_part(path) for path in FILES} <= set(LEVEL), "give the new module a line in ORDER"


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_a_module_imports_nothing_that_comes_after_it(path: Path) -> None:
    here = LEVEL[own_part(path)]
    after = {part for part in parts_imported(path.read_text("utf-8"), named(path)) if LEVEL[part] > here}
    assert after == set()


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_nothing_in_the_package_imports_what_is_around_it(path: Path) -> None:
    everywhere = ast.walk(ast.parse(path.read_text("utf-8")))
    assert {module[0] for module in imported(everywhere, named(path))} & OUTSIDE == set()


@pytest.mark.parametrize(
    "source, found",
    [
        ("import unweave.forget", {"forget"}),
        ("from unweave.loop import Request", {"loop"}),
        ("from unweave import store, grams", {"store", "grams"}),
        ("import unweave", {""}),
        ("from unweave import __version__", {""}),
        ("from .descent import Descent", {"descent"}),
        ("from . import loop", {"loop"}),
        ("if True:\n    from unweave import trust", {"trust"}),
        ("class A:\n    import unweave.trust", {"trust"}),
        ("def f():\n    import unweave.forget", set()),
        ("import torch", set()),
    ],
)
def test_the_reader_of_imports_sees_them(source: str, found: set[str]) -> None:
    assert parts_imported(source, ["unweave"]) == found
