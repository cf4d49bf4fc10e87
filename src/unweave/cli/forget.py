"""``unweave forget``: carry one request out, and write the new model, its Grams and the record of it."""

from __future__ import annotations

import argparse
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unweave.cli.configfile import Values, add_flags, read_values
from unweave.cli.fit import grams_dtype

if TYPE_CHECKING:
    from unweave.cli.outputs import Places, Staged
    from unweave.cli.screen import Report
    from unweave.cli.selection import Selection
    from unweave.config import ForgetConfig
    from unweave.grams import LayerGrams
    from unweave.result import ForgetResult

NAMED = 3
"""How many other requests a warning names."""

HELP = "Take samples out of the model: writes new weights, new Grams and a record; the old files stay."

USAGE = """\
unweave forget (--ids FILE | --poisoned FILE | --classes 0,3 [--drop] | --all) [--first FILE]
                      [--config PATH] [--json] [--quiet] [--keep-anyway] [--force] [--SETTING VALUE ...]"""

EXAMPLE = """\
examples:
  unweave forget --ids requests.txt          the samples on the lines of a file: positions in the data, or file names
  unweave forget --classes 3 --drop          every sample of class 3; also a smaller model without its logit
  unweave forget --poisoned bad_ids.npy      samples whose labels are wrong
  unweave forget --all --forget gone.npz     every sample of a source that holds nothing else
  unweave forget --ids more.txt --weights forgotten.safetensors --grams forgotten.grams.safetensors \\
                 --first model.safetensors --out forgotten2.safetensors
                                             the next request starts from what the one before has written; with the
                                             first weights, what is taken out is what was added, but for rounding

If the target is not reached, the exit code is 3 and nothing is written (see --keep-anyway)."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command to argparse."""
    parser.epilog = EXAMPLE
    parser.usage = USAGE
    chosen = parser.add_argument_group("which samples (one of these)").add_mutually_exclusive_group(required=True)
    chosen.add_argument("--ids", metavar="FILE", help="one id a line, '#' begins a comment; or a .npy of integers")
    chosen.add_argument("--poisoned", metavar="FILE", help="the same, and the labels are wrong: sets task = poison")
    chosen.add_argument(
        "--classes", metavar="0,3", type=_words, help="all samples of these classes: sets task = classes"
    )
    chosen.add_argument("--all", action="store_true", help="all samples of [data] forget")
    parser.add_argument("--drop", action="store_true", help="with --classes: also write the model without their logits")
    parser.add_argument(
        "--first",
        metavar="FILE",
        type=Path,
        help="after another request: the weights that the Grams were fitted with; what is taken out is what was added",
    )
    parser.add_argument("--keep-anyway", action="store_true", help="write the files even if the target was not reached")
    parser.add_argument("--force", action="store_true", help="overwrite what an earlier request wrote")
    add_flags(parser, "forget")


def _words(text: str) -> list[str]:
    words = [word.strip() for word in text.split(",") if word.strip()]
    if not words:
        raise argparse.ArgumentTypeError("no class. Supported: labels separated by commas, as in 0,3.")
    return words


def run(arguments: argparse.Namespace) -> int:
    """Forget, and write what came out.

    Raises:
        UnweaveError: see :func:`unweave.forget` and the modules of this package; nothing was written.
    """
    from unweave.cli.imports import own_modules
    from unweave.cli.outputs import Places, Staged, check_places, uninterrupted
    from unweave.cli.ranks import is_first
    from unweave.cli.record import record_of, rows_of
    from unweave.cli.screen import show, working
    from unweave.cli.selection import files_of_ids

    _check_usage(arguments)
    values = read_values(arguments)
    places = Places.of(values)
    inputs = {"[fit] grams": values.get("fit", "grams"), "--first": arguments.first, **files_of_ids(arguments)}
    check_places(places.used(arguments.drop), values, inputs, arguments.force, once=True)
    with (
        own_modules(),
        working("forget", quiet=arguments.quiet or not is_first(), clean_stdout=arguments.json) as report,
    ):
        before, selection, result = _carry_out(arguments, values, report)
    if not is_first():
        return 0 if result.ok else 3
    kept = result.ok or arguments.keep_anyway
    written = [str(path) for path in places.used(arguments.drop).values()] if kept else []
    record = record_of(values, before, selection.classes, result, written)
    with Staged() as staged:
        if kept:
            _stage(staged, places, values, record, result, selection.classes if arguments.drop else ())
        with uninterrupted():
            staged.place()
            title = "done" if result.ok else "NOT DONE"
            show(title, rows_of(result, written, selection.ids), record, as_json=arguments.json, quiet=arguments.quiet)
    return 0 if result.ok else _not_done(result, kept, told=not (arguments.quiet or arguments.json))


def _check_usage(arguments: argparse.Namespace) -> None:
    """Leave with exit code 2 where flags contradict each other."""
    if arguments.drop and arguments.classes is None:
        arguments.parser.error("--drop goes with --classes")
    task, implied = vars(arguments)["forget.task"], _implied_task(arguments)
    if isinstance(task, str) and implied not in (None, task):
        arguments.parser.error(
            f"--{'classes' if implied == 'classes' else 'poisoned'} sets --task {implied}, not {task}"
        )


def _implied_task(arguments: argparse.Namespace) -> str | None:
    if arguments.classes is not None:
        return "classes"
    return "poison" if arguments.poisoned is not None else None


def config_of(values: Values, implied_task: str | None = None) -> ForgetConfig:
    """The preset if there is one, the settings over it, and the task that the choice of samples implies.

    Raises:
        ConfigError: settings that cannot be.
    """
    from dataclasses import replace

    from unweave import ForgetConfig
    from unweave.cli.settings import FORGET_CONFIG
    from unweave.cli.words import for_the_shell

    given = values.given(FORGET_CONFIG)
    preset = given.pop("preset", None)
    given["task"] = implied_task or given.get("task", "samples" if preset is None else None)
    with for_the_shell():
        base = ForgetConfig() if preset is None else ForgetConfig.paper(preset)
        return replace(base, **{key: value for key, value in given.items() if value is not None})


def _carry_out(arguments: argparse.Namespace, values: Values, report: Report) -> tuple[str, Selection, ForgetResult]:
    """Load everything and forget; returns the fingerprint of the old weights, what was asked, and what came out."""
    import unweave
    from unweave.cli.data import open_source
    from unweave.cli.model import load_model
    from unweave.cli.selection import select
    from unweave.cli.words import FIT_FIRST, belong_together, for_the_shell
    from unweave.reading.rest import fingerprint

    config = config_of(values, _implied_task(arguments))
    model = load_model(values)
    first = None if arguments.first is None else load_model(values, arguments.first)
    with for_the_shell(FIT_FIRST):
        grams = unweave.LayerGrams.load(values.require("fit", "grams"))
    _require_transform(values, grams)
    belong = fingerprint(model) == grams.origin.model  # else the request is refused
    selection = _not_gone_yet(select(arguments, values, grams.origin.fitted if belong else None), grams)
    if belong:
        _tell_of_others(values, grams)
    if arguments.drop:  # refuses now, not after the work, a model whose classes cannot be dropped
        unweave.drop_classes(model, selection.classes)
    val = None if values.get("data", "val") is None else unweave.shard(open_source(values, "val").loader())
    with for_the_shell(belong_together(values), selection.ids):
        loader = unweave.shard(selection.loader)
        result = unweave.forget(model, loader, grams, val=val, config=config, first=first, progress=report)
    return grams.origin.model, selection, result


def _not_gone_yet(selection: Selection, grams: LayerGrams) -> Selection:
    """Of whole classes, what no earlier request has taken out: who says --classes cannot leave samples out."""
    from dataclasses import replace

    from unweave.cli.past import Past
    from unweave.cli.ranks import is_first
    from unweave.errors import UnweaveWarning

    if not selection.classes or not selection.positions or selection.source is None:
        return selection
    past = Past(grams.origin.key, frozenset(grams.origin.forgotten))
    left = past.kept(selection.source, selection.positions, len(selection.positions))
    if not left or len(left) == len(selection.positions):
        return selection
    if is_first():
        warnings.warn(
            f"{len(selection.positions) - len(left)} of the {len(selection.positions)} samples of these classes were "
            "forgotten before, and are left out of this request",
            UnweaveWarning,
            stacklevel=2,
        )
    return replace(selection, loader=selection.source.only(left), positions=tuple(left))


def _tell_of_others(values: Values, grams: LayerGrams) -> None:
    """Warn where another request began with the same weights: what that one took out, this one leaves in."""
    from unweave.cli.outputs import Places
    from unweave.cli.ranks import is_first
    from unweave.cli.record import began_with
    from unweave.errors import UnweaveWarning

    places = Places.of(values)
    others = [path for path in began_with(places.weights.parent, grams.origin.model) if path != places.result]
    if others and is_first():  # with --force the same request may be tried again
        warnings.warn(
            f"{_latest(others)}: another request began with these weights and Grams, and what it took out is still in "
            "what this one writes. To go on from it, name what it wrote with --weights and --grams, and the first "
            "weights with --first",
            UnweaveWarning,
            stacklevel=2,
        )


def _latest(records: Sequence[Path]) -> str:
    """The names of the records that were written last, and how many more there are."""
    newest = sorted(records, key=lambda path: path.stat().st_mtime_ns, reverse=True)
    more = len(newest) - NAMED
    return ", ".join(path.name for path in newest[:NAMED]) + (f" and {more} more" if more > 0 else "")


def _require_transform(values: Values, grams: LayerGrams) -> None:
    from unweave.errors import MismatchError

    label, fitted = values.get("fit", "transform"), grams.origin.transform
    if label and label != fitted:
        raise MismatchError(
            f"[fit] transform is {label!r}, the Grams were fitted with {fitted!r}. Use the preprocessing and the label "
            "they were fitted with, or fit again."
        )


def _stage(
    staged: Staged,
    places: Places,
    values: Values,
    record: dict[str, Any],
    result: ForgetResult,
    dropped: tuple[int, ...],
) -> None:
    """Write all files under temporary names, the Grams last: see :class:`unweave.cli.outputs.Staged`."""
    import unweave
    from unweave.cli.outputs import write_text, write_weights
    from unweave.cli.screen import as_text

    staged.add(places.weights, write_weights(result.model.state_dict()))
    if dropped:
        smaller, labels = unweave.drop_classes(result.model, dropped)
        staged.add(places.dropped, write_weights(smaller.state_dict()))
        staged.add(places.labels, write_text(as_text(labels)))
    staged.add(places.result, write_text(as_text(record)))
    dtype = grams_dtype(values)
    staged.add(places.grams, lambda path: result.grams.save(path, dtype))


def _not_done(result: ForgetResult, kept: bool, told: bool) -> int:
    """Say on stderr what became of the files, and why it ended unless the table above has said so."""
    from unweave.cli.words import as_flags

    fate = "The files were written all the same (--keep-anyway)" if kept else "Nothing was written; --keep-anyway would"
    why = "" if told else f"{as_flags(result.stopped)} "
    print(f"unweave: not done: {why}{fate}.", file=sys.stderr)
    return 3
