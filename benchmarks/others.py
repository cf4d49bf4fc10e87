"""Other methods of :mod:`unweave.baselines`, given what they ask for by the names of their arguments."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from torch import nn

from benchmarks.cases import Case
from unweave.baselines import Method

BATCH = 128


def supplies(case: Case, net: nn.Module) -> dict[str, Any]:
    """What a case can hand out, by the names under which a method may ask for it."""
    forget, retain, val = case.forget.batches(BATCH), case.retain.batches(BATCH), case.val.batches()
    train = case.train.batches(BATCH)
    return {
        **dict.fromkeys(("model", "net"), net),
        **dict.fromkeys(("forget", "forget_loader"), forget),
        **dict.fromkeys(("retain", "retain_loader"), retain),
        **dict.fromkeys(("training", "training_loader", "train", "train_loader"), train),
        **dict.fromkeys(("val", "val_loader"), val),
    }


def call_of(method: Method, supply: dict[str, Any]) -> Callable[[], Any] | str:
    """The method with its arguments in place, or why it cannot be run here.

    An argument that has a default and that nobody supplies keeps its default: NTK then goes without its scaling by the
    first weights, Warnecke's methods remove samples instead of relabelling them. Validation samples are handed to those
    that need them alone: others would only look at them, which takes time.
    """
    positional, named, missing = [], {}, []
    for name, parameter in inspect.signature(method.run).parameters.items():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        if name == "config":
            named[name] = method.config()
        elif name in ("val", "val_loader") and "val" not in method.needs and parameter.default is not parameter.empty:
            continue
        elif name in supply and parameter.kind is parameter.POSITIONAL_ONLY:
            positional.append(supply[name])
        elif name in supply:
            named[name] = supply[name]
        elif parameter.default is parameter.empty:
            missing.append(name)
    if missing:
        return f"not run: nothing here to give it as {', '.join(missing)}"
    hard = sorted(method.needs & {"checkpoints", "trainer"})
    if hard:
        return f"not run: it needs {', '.join(hard)}"
    return lambda: method.run(*positional, **named)
