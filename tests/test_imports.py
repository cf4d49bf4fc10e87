"""Dependencies point one way. A module may import what is on its own line of its tree or above, at module level.

Imports inside functions do not count: that is how ``grams.save`` calls ``store``.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator
from pathlib import Path

import pytest

import unweave

ORDER = [
    {"starting"},
    {"errors", "transfer", "protection", "behaviour.label_shift", "memory"},
    {"files"},
    {"arithmetic.fused_kernel"},
    {"arithmetic.fused"},
    {"arithmetic.split"},
    {"arithmetic.patches", "arithmetic.correlate", "arithmetic.products"},
    {"arithmetic.structured", "arithmetic.small_maps"},
    {"arithmetic.pixels"},
    {"arithmetic.routes"},
    {"reading.batches", "rows", "reading.rest", "distributed"},
    {"ranks.shard", "ranks.fsdp", "reading.samples", "gradients.conv_products", "fitting.twins"},
    {"gradients.per_sample"},
    {"gradients.jacobian"},
    {"layers"},
    {"fitting.borrowed", "fitting.taps", "gradients.meetings"},
    {"gradients.outer", "gradients.singles"},
    {"behaviour.outcomes"},
    {"behaviour.spread"},
    {"grams", "behaviour.strangers", "behaviour.ranking"},
    {"ranks.pool", "store"},
    {"fitting.resume", "fitting.steady", "fitting.sums", "fitting.known"},
    {"fit", "space"},
    {"losses", "config", "presets", "trust", "walking.prices"},
    {"stopping"},
    {"walking.captured"},
    {"walking.descent"},
    {"result", "walking.solving"},
    {"walking.walk"},
    {"walking.landing"},
    {"walking.loop"},
    {"request.classes", "request.gone", "request.asked"},
    {"request.remarks"},
    {"forget"},
    {""},  # the package itself, whose __init__ collects the public names
    {"baselines", "audit"},
    {"report"},
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


def levels(order: list[set[str]]) -> dict[str, int]:
    """Of every part; a package whose modules have lines of their own has that of the first of them."""
    found = {name: level for level, names in enumerate(order) for name in names}
    for name in [*found]:
        found.setdefault(name.partition(".")[0], found[name])
    return found


LEVELS = {tree: levels(order) for tree, order in (("unweave", ORDER), ("experiments", EXPERIMENTS))}
FILES = [
    (tree, path.relative_to(root))
    for tree, root in ROOTS.items()
    for path in sorted(root.rglob("*.py"))
    if path != root / "__init__.py"
]
OUTSIDE = {"experiments", "benchmarks", "tests", "examples", "helpers", "oracles", "problems", "conftest"}


def part_of(module: list[str], known: Collection[str]) -> str:
    """The two first names below the tree where they are a part, else the first; "" for the tree itself."""
    both = ".".join(module[1:3])
    return both if both in known else ".".join(module[1:2])


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
            known = LEVELS.get(module[0], {})
            named = [[*module, alias.name] for alias in node.names]
            yield from (one if ".".join(one[1:]) in known else module for one in named)


def parts_imported(source: str, package: list[str]) -> set[str]:
    """The parts of the package's own tree that are imported when it is."""
    modules, known = imported(run_at_import(ast.parse(source)), package), LEVELS[package[0]]
    return {part_of(module, known) for module in modules if module[0] == package[0]}


def named(tree: str, path: Path) -> list[str]:
    """The dotted name of a file's package."""
    return [tree, *path.parent.parts]


def packages(tree: str) -> set[str]:
    """Those whose modules have lines of their own."""
    return {name.partition(".")[0] for name in LEVELS[tree] if "." in name}


def own_part(tree: str, path: Path) -> str:
    names = path.with_suffix("").parts
    return part_of([tree, *(name for name in names if name != "__init__")], LEVELS[tree])


@pytest.mark.parametrize("tree", LEVELS)
def test_every_module_has_its_place(tree: str) -> None:
    known, in_order = LEVELS[tree], packages(tree)
    parts = {path: own_part(own, path) for own, path in FILES if own == tree}
    lost = [path for path, part in parts.items() if part not in known or (part in in_order and len(path.parts) > 2)]
    lost += [path for path, part in parts.items() if part in in_order and path.stem != "__init__"]
    assert not lost, "give the new module a line in the order of its tree"
    assert set(known) - set(parts.values()) <= {""}, "a line names nothing"


@pytest.mark.parametrize(("tree", "path"), FILES, ids=lambda one: str(one))
def test_a_module_imports_nothing_that_comes_after_it(tree: str, path: Path) -> None:
    level, source = LEVELS[tree], (ROOTS[tree] / path).read_text("utf-8")
    found = parts_imported(source, named(tree, path))
    assert {part for part in found if level[part] > level[own_part(tree, path)]} == set()
    assert found & packages(tree) == set(), "import the module: of a whole package nobody knows what is used"


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
        ("from unweave.walking.loop import Request", {"walking.loop"}),
        ("from unweave.walking import loop, descent", {"walking.loop", "walking.descent"}),
        ("from unweave.audit.lira import attack", {"audit"}),
        ("import unweave.walking", {"walking"}),
        ("from unweave import walking", {"walking"}),
        ("from .reading import rest", {"reading.rest"}),
        ("from .reading.rest import at_rest", {"reading.rest"}),
        ("from unweave import store, grams", {"store", "grams"}),
        ("import unweave", {""}),
        ("from unweave import __version__", {""}),
        ("from .space import CoreSpace", {"space"}),
        ("from . import space", {"space"}),
        ("if True:\n    from unweave import trust", {"trust"}),
        ("class A:\n    import unweave.trust", {"trust"}),
        ("def f():\n    import unweave.forget", set()),
        ("if __name__ == '__main__':\n    import unweave.forget", set()),
        ("import torch", set()),
    ],
)
def test_the_reader_of_imports_sees_them(source: str, found: set[str]) -> None:
    assert parts_imported(source, ["unweave"]) == found
