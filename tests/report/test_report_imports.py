"""A report needs neither PyTorch nor the rest of the package."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest
import sample_audit

from unweave import report

FOLDER = Path(report.__file__).parent
FILES = sorted(FOLDER.rglob("*.py"))

LIGHT = ("unweave.report", "unweave.errors", "unweave.files")

ALONE = """
import importlib.util, json, sys, types
package = types.ModuleType("unweave")  # as if unweave/__init__.py had imported nothing
package.__path__ = list(importlib.util.find_spec("unweave").submodule_search_locations)
sys.modules["unweave"] = package
from unweave import report
light = {"torch", "numpy", "safetensors", "jsonschema", "vl_convert"} & set(sys.modules)
assert not light, light
assert "<!doctype html>" in report.render(json.load(sys.stdin))
heavy = {"torch", "safetensors"} & set(sys.modules)
assert not heavy, heavy
"""


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(FOLDER)))
def test_a_file_imports_only_the_report_and_what_needs_no_pytorch(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0
            names = [str(node.module)]
        for name in names:
            assert name.split(".")[0] != "torch"
            assert name.split(".")[0] != "unweave" or name.startswith(
                ("unweave.report", "unweave.errors", "unweave.files")
            )


def test_a_page_is_made_without_pytorch() -> None:
    done = subprocess.run(
        [sys.executable, "-c", ALONE], input=json.dumps(sample_audit.full()), capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
