"""What the library says in words of Python, in words of the shell: the remedies of errors, and settings as flags."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from unweave.cli.configfile import Values
from unweave.cli.settings import FORGET_CONFIG
from unweave.errors import UnweaveError

FIT_FIRST = (
    "Run 'unweave fit' first, or name the file that it wrote with --grams; if that is damaged, restore it or fit again."
)
"""The remedy where there are no Grams to read."""

FLAGS = {setting.key: setting.flag for setting in FORGET_CONFIG}
NO_WORDS = [key for key in FLAGS if "_" in key or key in ("lr", "gamma")]
"""Settings that mean nothing else where they stand alone in a sentence, as "layers" or "protect" may."""
ASSIGNED = re.compile(rf"\b({'|'.join(FLAGS)})='([\w-]+)'")
ALONE = re.compile(rf"(?<![\w'\"./\\-])(?<!\] )({'|'.join(NO_WORDS)})(?![\w'\"=:/\\-]|\.\w)")


def as_flags(text: str) -> str:
    """Settings of a request as a shell wants them: ``protect='soft'`` → ``--protect soft``, ``lr`` → ``--lr``."""
    assigned = ASSIGNED.sub(lambda found: f"{FLAGS[found[1]]} {found[2]}", text)
    return ALONE.sub(lambda found: FLAGS[found[1]], assigned)


LISTED = re.compile(r"in the order of the loader, from 0: (\d+(?:, \d+)*)")
LIST = rf"{LISTED.pattern}(?:, …)?"
ASIDE = re.compile(rf" \({LIST}\)|, {LIST}")


def as_ids(text: str, ids: Sequence[str]) -> str:
    """Positions in a request as the ids that it was asked for by; as they are where there are no such."""

    def named(found: re.Match[str]) -> str:
        return "ids: " + ", ".join(ids[int(position)] for position in found[1].split(", "))

    return LISTED.sub(named, text) if ids else text


def without_positions(text: str) -> str:
    """The same without the lists of positions, for what must not say which samples they were."""
    return ASIDE.sub("", text)


@contextmanager
def for_the_shell(remedy: str = "", ids: Sequence[str] = ()) -> Iterator[None]:
    """Errors of the library from inside, with their remedy (if they have one in Python) replaced by this one.

    ``ids``: of the request's samples, in the order of its loader.

    Raises:
        UnweaveError: the same one, in other words.
    """
    try:
        yield
    except UnweaveError as error:
        if remedy:
            error.advise(remedy)
        error.args = (as_ids(as_flags(str(error)), ids), *error.args[1:])
        raise


def belong_together(values: Values) -> str:
    """The remedy where weights and Grams are not of one model: mostly, --grams was left out in a second request."""
    weights: Path | None = values.get("model", "weights")
    beside = None if weights is None else weights.with_name(f"{weights.stem}.grams.safetensors")
    given: Path = values.require("fit", "grams")
    if beside is not None and beside.is_file() and beside.resolve() != given.resolve():
        return f"Name the Grams that go with {weights}: pass --grams {beside}."
    return (
        "Name two that belong together: what one request wrote (--weights forgotten.safetensors goes with --grams "
        "forgotten.grams.safetensors), or the weights that 'unweave fit' read and the Grams that it wrote."
    )
