"""``unweave fit``: stream the training set through the model once and keep its Grams."""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unweave.cli.configfile import Values, add_flags, read_values
from unweave.errors import ConfigError

if TYPE_CHECKING:
    from unweave.cli.sources import Source
    from unweave.grams import LayerGrams, Origin

FITTED = ("layers", "transform", "stride", "tf32", "resume", "save_every")

HELP = "Add up, once after training, what every layer sees of the training set: its Grams."

EXAMPLE = """\
example:
  unweave init                          write unweave.toml, then fill in [model] and [data]
  unweave fit                           write the Grams it names
  unweave fit --val held_out.npz --grams new.safetensors
                                        a flag wins over the file; --val= takes a setting of the file back
  unweave fit --resume sums/            after a crash, the same command goes on where the last one has saved
  torchrun --nproc-per-node 8 -m unweave fit
                                        eight processes, each on its share of the samples

Feed the training samples without random augmentation: a later request subtracts the very same inputs.
With [data] val the Grams also keep what a request aims at, so that it needs no data but its own."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command to argparse."""
    parser.epilog = EXAMPLE
    parser.usage = "unweave fit [--config PATH] [--json] [--quiet] [--force] [--SETTING VALUE ...]"
    parser.add_argument(
        "--force",
        action="store_true",
        help="overwrite Grams that a request wrote, of another number of samples or not readable, or something else",
    )
    add_flags(parser, "fit")


def run(arguments: argparse.Namespace) -> int:
    """Fit, and write the Grams.

    Raises:
        UnweaveError: see :func:`unweave.fit` and the modules of this package; nothing was written.
    """
    import unweave
    from unweave.cli.data import open_source
    from unweave.cli.forget import config_of
    from unweave.cli.imports import own_modules
    from unweave.cli.model import load_model
    from unweave.cli.outputs import Staged, check_places, uninterrupted
    from unweave.cli.ranks import is_first
    from unweave.cli.screen import show, working
    from unweave.store import holds_grams

    values = read_values(arguments)
    grams_path = values.require("fit", "grams")
    dtype = grams_dtype(values)
    config_of(values)  # a request may come when the training set is gone: what is wrong with its settings is said now
    check_places({"Grams": grams_path}, values, {}, arguments.force, once=not holds_grams(grams_path))
    there = None if arguments.force else _there(grams_path)
    _require_replaceable(grams_path, there)
    began = time.perf_counter()
    with own_modules(), working("fit", quiet=arguments.quiet or not is_first(), clean_stdout=arguments.json) as report:
        model = load_model(values)
        train = open_source(values, "train")
        _require_replaceable(grams_path, there, train.rows)
        val = None if values.get("data", "val") is None else unweave.shard(open_source(values, "val").loader())
        settings = {key: values.get("fit", key) for key in FITTED}
        with _sums_kept(settings["resume"]):
            grams = unweave.fit(model, unweave.shard(train.loader()), val, progress=report, **settings)
    if not is_first():
        return 0
    place = _place(grams_path, there, grams.samples)
    record = _record(values, grams, train, place, time.perf_counter() - began)
    with Staged() as staged:
        staged.add(place, lambda path: grams.save(path, dtype))
        with uninterrupted():
            staged.place()
            show("done", _rows(record, grams), record, as_json=arguments.json, quiet=arguments.quiet)
    return 0


def _there(path: Path) -> Origin | None:
    """What the Grams that are in the place of the new ones were made from; None where there are none.

    Raises:
        ConfigError: this release cannot read it: a later one's request may have written them, and nobody could again.
    """
    from unweave.errors import StoreError
    from unweave.store import origin_in

    try:
        return origin_in(path)
    except StoreError as error:
        raise ConfigError(
            f"The Grams would overwrite {path}, which holds Grams that this release cannot read, of another release or "
            "damaged. Choose another place with --grams, or pass --force."
        ) from error


def _require_replaceable(path: Path, there: Origin | None, samples: int | None = None) -> None:
    """Refuse to lose Grams that cannot be made again: those of a request, or of a training set that was another.

    Raises:
        ConfigError: they are there; ``samples`` are to be fitted, if that is known.
    """
    if there is None:
        return
    if there.forgotten:
        what = f"what a request wrote: {len(there.forgotten)} samples were taken out of these Grams"
    elif samples not in (None, there.samples):
        what = f"Grams of {there.samples} samples, and [data] train has {samples}"
    else:
        return
    raise ConfigError(
        f"The Grams would overwrite {path}, which holds {what}. Choose another place with --grams, or pass --force."
    )


def _place(path: Path, there: Origin | None, samples: int) -> Path:
    """Where new Grams go: where they were meant to, or, if a stream turned out to be of another length, beside it."""
    from unweave.errors import UnweaveWarning

    if there is None or there.samples == samples:
        return path
    beside = next(p for n in count(2) if not (p := path.with_name(f"{path.stem}.{n}{path.suffix}")).exists())
    warnings.warn(
        f"{path} holds Grams of {there.samples} samples, and stays as it is: these are of {samples}, and are written "
        f"to {beside}. Name them with --grams, or pass --force to overwrite the others",
        UnweaveWarning,
        stacklevel=2,
    )
    return beside


@contextmanager
def _sums_kept(folder: Path | None) -> Iterator[None]:
    """Let Ctrl-C inside say that what was added up so far is kept, where it is."""
    try:
        yield
    except KeyboardInterrupt:
        if folder is not None and any(folder.glob("fit-*.safetensors")):
            raise KeyboardInterrupt(f"the sums so far are in {folder}: the same command goes on from there") from None
        raise


def grams_dtype(values: Values) -> Any:
    """The type Grams are stored in.

    Raises:
        ConfigError: another than float64 and float32.
    """
    import torch

    name = values.get("fit", "dtype")
    if name not in ("float64", "float32"):
        raise ConfigError(f"Invalid [fit] dtype: {name!r}. Supported: float64, float32.")
    return getattr(torch, name)


def _record(values: Values, grams: LayerGrams, train: Source, place: Path, seconds: float) -> dict[str, Any]:
    import torch

    import unweave

    return {
        "command": "fit",
        "ok": True,
        "settings": values.as_dict(),
        "samples": grams.samples,
        "layers": {name: {"kind": info.kind, "d": info.d, "rows": info.rows} for name, info in grams.layers.items()},
        "held_out": grams.held_out is not None,
        "class_names": list(train.class_names) if train.class_names else None,
        "model": grams.origin.model,
        "seconds": seconds,
        "versions": {"unweave": unweave.__version__, "torch": torch.__version__},
        "written": [str(place)],
    }


def _rows(record: dict[str, Any], grams: LayerGrams) -> dict[str, str]:
    aim = "kept per class" if record["held_out"] else "none: a request will need [data] val"
    return {
        "samples": str(grams.samples),
        "layers": ", ".join(f"{name} ({info.d})" for name, info in grams.layers.items()),
        "held-out profile": aim,
        **({"classes": ", ".join(record["class_names"])} if record["class_names"] else {}),
        "model": grams.origin.model[:12],
        "seconds": f"{record['seconds']:.2f}",
        "written": ", ".join(record["written"]),
    }
