"""Which samples a request is about: by id, by class, or all of a source."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from unweave.cli.configfile import Values, nearest
from unweave.cli.data import open_source
from unweave.cli.ids import read_ids
from unweave.cli.sources import Source
from unweave.errors import ConfigError
from unweave.reading.batches import Loader


@dataclass(frozen=True)
class Selection:
    """The samples to forget, in batches; their classes, where whole classes are to go; where they stand, if known."""

    loader: Loader
    classes: tuple[int, ...] = ()
    positions: tuple[int, ...] | None = None
    """In the source that they were picked from, as the loader yields them; None for all of it."""
    source: Source | None = None

    @property
    def ids(self) -> list[str]:
        """The id of each sample; empty where they are all of a source."""
        names = None if self.source is None else self.source.names
        return [str(position) if names is None else names[position] for position in self.positions or ()]


def select(arguments: argparse.Namespace, values: Values, fitted: int | None = None) -> Selection:
    """The samples that ``--ids``, ``--poisoned``, ``--classes`` or ``--all`` names.

    Args:
        arguments: of the command.
        values: the settings.
        fitted: how many samples of ``[data] train`` were fitted, if that is known: ids are positions among these.

    Raises:
        ConfigError: ``--all`` without ``[data] forget``, classes that are not there, every class at once, or positions
            in another training set than was fitted.
        DataError: ids that are not there.
    """
    key = "forget" if values.get("data", "forget") is not None else "train"
    if arguments.all and key == "train":
        raise ConfigError(
            "--all takes every sample of [data] forget, which is not set. Set it (or pass --forget), or name the "
            "samples with --ids or --classes."
        )
    source = open_source(values, key)
    if arguments.all:
        return Selection(source.loader(), source=source)
    if arguments.classes is not None:
        return _whole_classes(source, arguments.classes, all_there=key == "train")
    if key == "train" and fitted is not None:
        _require_as_fitted(source, fitted)
    ids = Path(arguments.ids if arguments.ids is not None else arguments.poisoned)
    positions = read_ids(ids, source)
    if source.size is None:  # a stream yields them as they come
        positions = sorted(positions)
    return Selection(source.only(positions), positions=tuple(positions), source=source)


def files_of_ids(arguments: argparse.Namespace) -> dict[str, Path]:
    """The files with ids that a command names, by their flags."""
    given = {f"--{name}": getattr(arguments, name) for name in ("ids", "poisoned")}
    return {flag: Path(path) for flag, path in given.items() if path is not None}


def _require_as_fitted(source: Source, fitted: int) -> None:
    """Refuse positions in a source that has lost or gained samples: they may be those of others. Names stay."""
    if source.names is None and source.rows not in (None, fitted):
        raise ConfigError(
            f"{source.what} has {source.rows} samples, {fitted} were fitted: positions may name other samples now. Use "
            "the data that was fitted, whatever was forgotten since; or put the samples themselves in a file of their "
            "own, and forget all of it: --all --forget FILE."
        )


def _whole_classes(source: Source, words: Sequence[str], all_there: bool) -> Selection:
    """Every sample of some classes; ``all_there``: the source has samples of every class the model knows."""
    labels = source.labels()
    present = sorted(set(labels.tolist()))
    chosen = tuple(sorted({_class(word, source, present) for word in words}))
    if all_there and len(chosen) == len(present):
        raise ConfigError(
            f"--classes names all {len(present)} classes of {source.what}; forgetting every class leaves no model. "
            "Name fewer."
        )
    positions = [position for position, label in enumerate(labels.tolist()) if label in chosen]
    return Selection(source.only(positions), chosen, tuple(positions), source)


def _class(word: str, source: Source, present: list[int]) -> int:
    names = list(source.class_names or ())
    if word in names:
        label = names.index(word)
    elif word.lstrip("-").isdigit():
        label = int(word)
    else:
        known = names or [str(label) for label in present]
        raise ConfigError(f"Unknown class {word!r} in {source.what}.{nearest(word, known)}")
    if label not in present:
        there = ", ".join(map(str, present[:30])) + (", …" if len(present) > 30 else "")
        raise ConfigError(f"Class {word} has no sample in {source.what}. Supported: {there}.")
    return label
