"""The user's own code: ``package.module:function``, imported with the current directory on the path."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from unweave.cli.configfile import is_function, nearest
from unweave.errors import ConfigError


@contextmanager
def own_modules() -> Iterator[None]:
    """Put the current directory first on ``sys.path``; an installed script does not have it there by itself."""
    here = os.getcwd()
    sys.path.insert(0, here)
    try:
        yield
    finally:
        sys.path.remove(here)


def find_function(text: str, what: str) -> Callable[..., Any]:
    """The function that a setting names.

    Raises:
        ConfigError: not of the form ``package.module:function``, a module that cannot be imported, or a name in it
            that is not there or cannot be called.
    """
    if not is_function(text):
        raise ConfigError(f'Invalid {what}: {text!r}. Supported: "package.module:function".')
    path, _, name = text.partition(":")
    found: Any = _module(path, what)
    for part in name.split("."):
        if not hasattr(found, part):
            raise ConfigError(f"{what}: {path!r} has no {part!r}.{_alternatives(part, found, path)}")
        found = getattr(found, part)
    if not callable(found):
        raise ConfigError(f"{what}: {text!r} is a {type(found).__name__}, which cannot be called. Name a function.")
    return found  # type: ignore[no-any-return]


def _alternatives(word: str, holder: Any, path: str) -> str:
    """A hint: what could be called there and is the user's own, not what a module imports from other packages."""
    own = path.partition(".")[0]
    public = {name: value for name, value in getattr(holder, "__dict__", {}).items() if not name.startswith("_")}
    names = [
        name
        for name, value in public.items()
        if callable(value) and str(getattr(value, "__module__", "")).partition(".")[0] == own
    ]
    return nearest(word, names) if names else " It defines nothing that can be called. Name a function."


def _module(path: str, what: str) -> Any:
    try:
        return importlib.import_module(path)
    except ModuleNotFoundError as error:
        if error.name is not None and (path == error.name or path.startswith(f"{error.name}.")):
            raise ConfigError(
                f"{what}: there is no module {error.name!r}. Install it, or run from the folder that holds it "
                f"(now {os.getcwd()})."
            ) from error
        raise ConfigError(f"{what}: importing {path!r} failed: {error}. Install what it needs.") from error
    except Exception as error:
        raise ConfigError(
            f"{what}: importing {path!r} failed with {type(error).__name__}: {error}. Correct that module; "
            "--debug shows where."
        ) from error


def call(text: str, what: str, arguments: Mapping[str, Any] | None = None) -> Any:
    """Call the function that a setting names.

    Raises:
        ConfigError: it cannot be found, or raised an error of its own.
    """
    function = find_function(text, what)
    try:
        return function(**(arguments or {}))
    except Exception as error:
        raise ConfigError(
            f"{what}: {text!r} failed with {type(error).__name__}: {error}. Correct the function or its arguments; "
            "--debug shows where."
        ) from error
