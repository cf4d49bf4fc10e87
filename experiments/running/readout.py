"""What is read off a network after a request: the paper's errors, one that it does not show, and the outputs.

Errors in percent:

    retained      on the training samples that stay
    forgotten     on those to be forgotten
    test          on the test half
    own           on test samples of the forgotten samples' own classes (the paper's averages hide that it rises)
    retained test on test samples of the classes that stay, where classes are removed
    val, val own  the same two on the validation half: what tuning may look at

Where classes are removed, "retained", "retained test" and "val" are judged among the classes that stay, as the paper
does by taking the others' rows out of the last layer; "forgotten" is judged among all.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from experiments.data import Labelled
from experiments.running.work import Parts
from experiments.settings import Case

KEPT = 2000
"""Samples whose outputs are kept, at most, every n-th of them; held-out ones are those of the forgotten classes. Errors
are about all of them either way."""
MANY_CLASSES, FEWER = 20, 500
"""With more classes than this, so many of the forgotten ones: 200 KB a network for TinyImageNet."""


@torch.no_grad()
def logits_of(net: nn.Module, data: Labelled) -> Tensor:
    """Logits [N, C] in float32."""
    return torch.cat([net(x) for x, _ in data.batches()]).float()


def percent_wrong(logits: Tensor, labels: Tensor, among: Tensor | None = None) -> float:
    """Of logits [N, C]; ``among`` some classes only."""
    said = logits.argmax(1) if among is None else among[logits[:, among].argmax(1)]
    return 100.0 * float((said != labels).double().mean())


def read_out(net: nn.Module, case: Case, parts: Parts) -> tuple[dict[str, float], dict[str, np.ndarray]]:
    """Errors, and the outputs that attacks look at: ``forget`` and ``held_out`` [n, C] with their labels."""
    forget = logits_of(net, parts.forget)
    test = logits_of(net, parts.test)
    val = logits_of(net, parts.val)
    gone = torch.tensor(case.classes, device=forget.device, dtype=torch.long)
    own = parts.forget.y.unique()
    stays = None
    if case.task == "classes":
        stays = torch.tensor([c for c in range(forget.shape[1]) if c not in case.classes], device=forget.device)
    errors = {
        "retained": _error_on(net, parts.retain, stays),
        "forgotten": percent_wrong(forget, parts.forget.y),
        "test": percent_wrong(test, parts.test.y),
        "own": _error_of(test, parts.test.y, torch.isin(parts.test.y, own)),
        "val": _error_of(val, parts.val.y, ~torch.isin(parts.val.y, gone), stays),
        "val own": _error_of(val, parts.val.y, torch.isin(parts.val.y, own)),
    }
    if case.task == "classes":
        errors["retained test"] = _error_of(test, parts.test.y, ~torch.isin(parts.test.y, gone), stays)
    held_out = every_nth(torch.isin(parts.test.y, own).nonzero().squeeze(1), KEPT)
    most = FEWER if forget.shape[1] > MANY_CLASSES else KEPT
    arrays = {
        "forget": compact(every_nth(forget, most)),
        "forget_labels": small_labels(every_nth(parts.forget.y, most)),
        "held_out": compact(test[held_out]),
        "held_out_labels": small_labels(parts.test.y[held_out]),
    }
    return errors, arrays


def glance(net: nn.Module, case: Case, parts: Parts) -> dict[str, float]:
    """What tuning looks at: the errors on the forget set and on the validation half; as in :func:`read_out`."""
    val, labels = logits_of(net, parts.val), parts.val.y
    stays = torch.tensor([c for c in range(val.shape[1]) if c not in case.classes], device=val.device)
    return {
        "forgotten": percent_wrong(logits_of(net, parts.forget), parts.forget.y),
        "val": _error_of(val, labels, torch.isin(labels, stays), stays),
        "val own": _error_of(val, labels, torch.isin(labels, parts.forget.y.unique())),
    }


def _error_of(logits: Tensor, labels: Tensor, chosen: Tensor, among: Tensor | None = None) -> float:
    return percent_wrong(logits[chosen], labels[chosen], among)


@torch.no_grad()
def _error_on(net: nn.Module, data: Labelled, among: Tensor | None) -> float:
    """Without keeping the logits of a whole training set."""
    wrong = [percent_wrong(net(x), y, among) * len(y) for x, y in data.batches()]
    return sum(wrong) / len(data)


def every_nth(values: Tensor, most: int) -> Tensor:
    """At most so many of them (of rows, where there are several dimensions), evenly spread."""
    return values[:: max(1, -(-len(values) // most))]


def compact(logits: Tensor) -> np.ndarray:
    """float16, in which the outputs of some hundred networks are a few megabytes; nothing that is left is infinite."""
    most = float(np.finfo(np.float16).max)
    return logits.clamp(-most, most).cpu().numpy().astype(np.float16)


def small_labels(labels: Tensor | Sequence[int]) -> np.ndarray:
    """int16, which holds any class here."""
    return np.asarray(torch.as_tensor(labels).cpu().numpy(), dtype=np.int16)
