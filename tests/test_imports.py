"""Dependencies point one way. A module may import what is on its own line of its tree or above, at module level.

Imports inside functions do not count: that is how ``grams.save`` calls ``store``.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import unweave

ORDER = [
    {"starting"},
    {"errors", "transfer", "protection", "label_shift", "memory"},
    {"files"},
    {"fused_kernel"},
    {"fused"},
    {"split"},
    {"patches", "correlate", "products"},
    {"structured", "small_maps"},
    {"pixels"},
    {"routes"},
    {"batches", "rows", "rest", "distributed"},
    {"shard", "fsdp", "samples", "conv_products", "twins"},
    {"per_sample"},
    {"jacobian"},
    {"layers"},
    {"borrowed", "taps", "meetings"},
    {"outer", "singles"},
    {"outcomes"},
    {"spread"},
    {"grams", "strangers", "ranking"},
    {"pool", "store"},
    {"resume", "steady", "sums"},
    {"fit", "space"},
    {"losses", "config", "presets", "trust", "prices"},
    {"stopping"},
    {"captured"},
    {"descent"},
    {"result", "solving"},
    {"walk"},
    {"landing"},
    {"loop"},
    {"classes", "gone", "asked"},
    {"remarks"},
    {"forget"},
    {""},  # the package itself, whose __init__ collects the public names
    {"baselines", "audit"},
    {"desk", "report"},
    {"cli", "demo"},
    {"__main__"},
]
EXPERIMENTS = [
    {""},
    {"datasets"},
    {"data"},
    {"training"},
    {"settings", "search"},
    {"trials"},
    {"running"},
    {"ways"},
    {"documents"},
    {"table1", "table2", "table3", "class_smallvgg", "incremental_long", "gamma", "layers", "epochs", "poisoning"},
    {"table4", "table4_tiny", "attacks", "ensemble"},
    {"reproduce", "pages"},
]

PACKAGE = Path(unweave.__file__).parent
ROOTS = {"unweave": PACKAGE, "experiments": Path(__file__).parents[1] / "experiments"}
LEVELS = {
    tree: {name: level for level, names in enumerate(order) for name in names}
    for tree, order in (("unweave", ORDER), ("experiments", EXPERIMENTS))
}
FILES = [
    (tree, path.relative_to(root))
    for tree, root in ROOTS.items()
    for path in sorted(root.rglob("*.py"))
    if path != root / "__init__.py"
]
OUTSIDE = {"experiments", "benchmarks", "tests", "examples", "helpers", "oracles", "problems", "conftest"}


def part_of(module: list[str]) -> str:
    """The first name below the package, "" for the package itself."""
    return module[1] if len(module) > 1 else ""


def run_at_import(node: ast.AST) -> Iterator[ast.AST]:
    """All nodes outside of functions, and of what only a program runs."""
    for child in ast.iter_child_nodes(node):
        program = isinstance(child, ast.If) and ast.unparse(child.test) == "__name__ == '__main__'"
        if not program and not isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
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
            if len(module) == 1 and module[0] in LEVELS:
                known = LEVELS[module[0]]
                yield from ([*module, alias.name] if alias.name in known else module for alias in node.names)
            else:
                yield module


def parts_imported(source: str, package: list[str]) -> set[str]:
    """The parts of the package's own tree that are imported when it is."""
    modules = imported(run_at_import(ast.parse(source)), package)
    return {part_of(module) for module in modules if module[0] == package[0]}


def named(tree: str, path: Path) -> list[str]:
    """The dotted name of a file's package."""
    return [tree, *path.parent.parts]


def own_part(path: Path) -> str:
    return path.parts[0].removesuffix(".py")


@pytest.mark.parametrize("tree", LEVELS)
def test_every_module_has_its_place(tree: str) -> None:
    there = {own_part(path) for own, path in FILES if own == tree}
    assert there <= set(LEVELS[tree]), "give the new module a line in the order of its tree"


@pytest.mark.parametrize(("tree", "path"), FILES, ids=lambda one: str(one))
def test_a_module_imports_nothing_that_comes_after_it(tree: str, path: Path) -> None:
    level, source = LEVELS[tree], (ROOTS[tree] / path).read_text("utf-8")
    after = {part for part in parts_imported(source, named(tree, path)) if level[part] > level[own_part(path)]}
    assert after == set()


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_nothing_in_the_package_imports_what_is_around_it(path: Path) -> None:
    everywhere = ast.walk(ast.parse(path.read_text("utf-8")))
    assert {
        module[0] for module in imported(everywhere, named("unweave", path.relative_to(PACKAGE)))
    } & OUTSIDE == set()


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
        ("if __name__ == '__main__':\n    import unweave.forget", set()),
        ("import torch", set()),
    ],
)
def test_the_reader_of_imports_sees_them(source: str, found: set[str]) -> None:
    assert parts_imported(source, ["unweave"]) == found
