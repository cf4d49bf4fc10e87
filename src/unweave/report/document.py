"""Reading the result of an audit, and refusing what is not one."""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Iterator, Mapping
from importlib.resources import files
from os import PathLike
from pathlib import Path
from typing import Any

from unweave.errors import ConfigError, DataError, StoreError

FORMAT = "unweave.audit"
VERSION = 1
DEPTH = 30

Document = dict[str, Any]
"""What an audit found, as in ``schema.json``."""


def read(path: str | PathLike[str]) -> Document:
    """Read and check the JSON that an audit wrote.

    Raises:
        StoreError: the file is missing, no JSON, of another format or version, or not as ``schema.json`` says.
        ConfigError: the libraries for reports are not installed.
    """
    try:
        text = Path(path).read_text("utf-8")
    except OSError as error:
        raise StoreError(f"Cannot read {path}: {error.strerror or error}. Pass the JSON of an audit.") from error
    except UnicodeDecodeError as error:
        raise StoreError(f"{path} is no JSON: it is not even text. Pass the JSON of an audit.") from error
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise StoreError(f"{path} is no JSON ({error}). Pass the file that the audit wrote, unaltered.") from error
    wrong = problem(document)
    if wrong is not None:
        raise StoreError(f"{path}: {wrong}")
    return dict(document)


def require_valid(document: Any) -> None:
    """Refuse what :func:`read` would refuse.

    Raises:
        DataError: with the place in the document and what was expected there.
        ConfigError: the libraries for reports are not installed.
    """
    wrong = problem(document)
    if wrong is not None:
        raise DataError(f"Invalid result of an audit: {wrong}")


def problem(document: Any) -> str | None:
    """What is wrong with a document, with the remedy; None if nothing is."""
    if not isinstance(document, Mapping) or document.get("format") != FORMAT:
        found = document.get("format") if isinstance(document, Mapping) else type(document).__name__
        return f"this is no result of an audit (format {found!r:.60}, expected {FORMAT!r}). Pass what the audit wrote."
    version = document.get("version")
    if isinstance(version, bool) or version != VERSION:
        return (
            f"this is version {version!r:.60} of the format; this release reads version {VERSION}. Make the report "
            "with the release that made the audit, or run the audit again with this one."
        )
    wrong = next(_unreadable(document, "$"), None) or _against_schema(document) or next(_uneven(document), None)
    return None if wrong is None else f"{wrong} Run the audit again, or restore the file."


def _unreadable(value: Any, path: str, depth: int = 0) -> Iterator[str]:
    """NaN and infinities, which are no JSON but which Python reads and writes all the same; and nesting without end."""
    if depth > DEPTH:
        yield f"{path:.200} is nested too deeply. Expected: at most {DEPTH} levels."
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _unreadable(inner, f"{path}.{key}", depth + 1)
    elif isinstance(value, (list, tuple)):
        for i, inner in enumerate(value):
            yield from _unreadable(inner, f"{path}[{i}]", depth + 1)
    elif isinstance(value, (int, float)) and not _is_finite(value):
        yield f"{path:.200} is {value if isinstance(value, float) else 'too large'}. Expected: a finite number."


def _is_finite(value: float) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:  # an integer of hundreds of digits
        return False


def _against_schema(document: Any) -> str | None:
    from jsonschema.exceptions import best_match

    error = best_match(_validator().iter_errors(document))
    if error is None:
        return None
    message = error.message if len(error.message) <= 300 else f"{error.message[:140]} … {error.message[-140:]}"
    return f"{error.json_path:.200}: {message}."


@functools.cache
def _validator() -> Any:
    try:
        from jsonschema import Draft202012Validator
    except ImportError as error:
        raise ConfigError("Reports are checked with jsonschema. Install it: pip install 'unweave[report]'.") from error
    return Draft202012Validator(schema())


@functools.cache
def schema() -> Document:
    """The contract between the audit and the report."""
    return dict(json.loads(files("unweave.report").joinpath("schema.json").read_text("utf-8")))


def _uneven(document: Mapping[str, Any]) -> Iterator[str]:
    """Lists that belong together and have different lengths, which JSON Schema cannot say."""
    for i, attack in enumerate(document["attacks"]):
        for model in ("original", "unlearned", "retrained"):
            if model in attack:
                path, roc, scores = f"$.attacks[{i}].{model}", attack[model]["roc"], attack[model]["scores"]
                yield from _compare(f"{path}.roc.tpr", roc["tpr"], len(roc["fpr"]))
                for side in ("positives", "negatives"):
                    yield from _compare(f"{path}.scores.{side}", scores[side], max(len(scores["edges"]) - 1, 0))
    for i, entropy in enumerate(document["entropies"]):
        yield from _compare(f"$.entropies[{i}].shares", entropy["shares"], max(len(entropy["edges"]) - 1, 0))


def _compare(path: str, values: list[float], expected: int) -> Iterator[str]:
    if len(values) != expected:
        yield f"{path} has {len(values)} values. Expected: {expected}."
