"""The index of what bad input gets: an error of ours that names the thing and the remedy, and nothing changed."""

from __future__ import annotations

import copy
import errno
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import problems
import pytest
import safetensors.torch
import torch
from problems import Problem
from safetensors import safe_open
from torch import nn

import unweave
from unweave.errors import ConfigError, DataError, LayerError, MismatchError, ModelError, StoreError, UnweaveError
from unweave.reading.rest import fingerprint


@dataclass
class Desk:
    """What a user has on the table: a problem and its Grams in a file."""

    problem: Problem
    file: Path

    def fit(self, loader: Any = None, model: nn.Module | None = None, **settings: Any) -> Any:
        return unweave.fit(
            model or self.problem.model, self.problem.forgotten if loader is None else loader, **settings
        )

    def forget(self, loader: Any = None, model: nn.Module | None = None, grams: Any = None, **settings: Any) -> Any:
        p = self.problem
        config = unweave.ForgetConfig(**settings)
        loader = p.forgotten if loader is None else loader
        return unweave.forget(model or p.model, loader, grams or p.grams, p.val, config)

    def with_labels(self, change: Callable[[Any], Any]) -> Any:
        return [(x, change(y)) for x, y in self.problem.forgotten]

    def with_inputs(self, change: Callable[[Any], Any]) -> Any:
        return [(change(x.clone()), y) for x, y in self.problem.forgotten]


@pytest.fixture
def desk(points: Problem, tmp_path: Path) -> Desk:
    file = tmp_path / "grams.safetensors"
    points.grams.save(file)
    return Desk(points, file)


def spoilt(x: torch.Tensor) -> torch.Tensor:
    x[3, 2] = float("nan")
    return x


def altered(net: nn.Module, change: Callable[[Any], None]) -> nn.Module:
    net = copy.deepcopy(net)
    with torch.no_grad():
        change(net)
    return net


class Twice(nn.Module):
    def __init__(self, net: nn.Module, wrap: Callable[[Any], Any]) -> None:
        super().__init__()
        self.net, self.wrap = net, wrap

    def forward(self, x: torch.Tensor) -> Any:
        return self.wrap(self.net(x))


def rewrite(desk: Desk, change: Callable[[bytes], bytes]) -> unweave.LayerGrams:
    bad = desk.file.with_name("bad.safetensors")
    bad.write_bytes(change(desk.file.read_bytes()))
    return unweave.LayerGrams.load(bad)


def of_version(desk: Desk, version: str) -> unweave.LayerGrams:
    bad = desk.file.with_name("bad.safetensors")
    with safe_open(desk.file, framework="pt") as source:
        tensors = {name: source.get_tensor(name) for name in source.keys()}  # noqa: SIM118
        metadata = {**source.metadata(), "version": version}
    safetensors.torch.save_file(tensors, bad, metadata)
    return unweave.LayerGrams.load(bad)


def of_another_shape(desk: Desk) -> Any:
    return desk.problem.grams - unweave.fit(problems.mlp(hidden=32), desk.problem.forgotten)


def twice(desk: Desk) -> Any:
    result = desk.forget()
    return unweave.forget(result.model, desk.problem.forgotten, result.grams)


def onto_a_full_disk(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> Any:
    def full(fd: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    desk.problem.grams.save(desk.file)


BAD: dict[str, tuple[Callable[[Desk], Any], type[UnweaveError], str]] = {
    "fit: an empty loader": (lambda d: d.fit([]), DataError, "training loader is empty.*at least one"),
    "fit: one sample": (lambda d: d.fit(d.problem.samples(torch.tensor([0]))), DataError, "one sample.*at least two"),
    "forget: an empty loader": (lambda d: d.forget([]), DataError, "forget loader is empty.*at least one"),
    "not a loader": (lambda d: d.forget(7), DataError, "forget loader is a int.*DataLoader"),
    "labels out of range": (
        lambda d: d.forget(d.with_labels(lambda y: y + 3)),
        DataError,
        "of the forget loader: Labels from 3 to 7 with 5 classes.*0 to",
    ),
    "labels below zero": (lambda d: d.fit(d.with_labels(lambda y: y - 1)), DataError, "from -1.*0 to C - 1"),
    "labels as floats": (
        lambda d: d.forget(d.with_labels(lambda y: y.float())),
        DataError,
        r"float32.*integer.*labels\.long\(\)",
    ),
    "labels in a column": (
        lambda d: d.forget(d.with_labels(lambda y: y[:, None])),
        DataError,
        r"shape \[40, 1\].*labels\.squeeze\(1\)",
    ),
    "several labels a sample": (
        lambda d: d.forget(d.with_labels(lambda y: nn.functional.one_hot(y, 5).cumsum(1))),
        DataError,
        r"shape \[40, 5\].*multi-label.*not supported",
    ),
    "one-hot labels": (
        lambda d: d.fit(d.with_labels(lambda y: nn.functional.one_hot(y, 5))),
        DataError,
        r"shape \[40, 5\].*argmax",
    ),
    "NaN in data": (lambda d: d.forget(d.with_inputs(spoilt)), DataError, "batch 0 of the forget loader: NaN.*drop"),
    "NaN in data for fit": (lambda d: d.fit(d.with_inputs(spoilt)), DataError, "training loader: NaN.*drop"),
    "NaN in weights": (
        lambda d: d.forget(model=altered(d.problem.model, lambda net: net[2].weight[0].fill_(float("nan")))),
        ModelError,
        r"'2\.weight'.*Load weights",
    ),
    "infinite weights for fit": (
        lambda d: d.fit(model=altered(d.problem.model, lambda net: net[4].bias.fill_(float("inf")))),
        ModelError,
        r"'4\.bias'.*Load weights",
    ),
    "a batch that is no pair": (lambda d: d.forget([torch.zeros(3, 20)]), DataError, r"batch 0 .*\(inputs, labels\)"),
    "a batch of three": (lambda d: d.fit([(1, 2, 3)]), DataError, r"tuple of 3.*\(inputs, labels\)"),
    "unequal lengths": (lambda d: d.forget([(torch.zeros(3, 20), torch.zeros(2).long())]), DataError, "2 labels.*axis"),
    "an output that is no tensor": (
        lambda d: d.fit(model=Twice(d.problem.model, lambda z: (z, z))),
        ModelError,
        "returned a tuple.*Wrap",
    ),
    "an output of another shape": (
        lambda d: d.fit(model=Twice(d.problem.model, lambda z: z[:, :1])),
        ModelError,
        r"shape \[40, 1\].*logits \[N, C\]",
    ),
    "no model": (lambda d: d.fit(model="net.pt"), ModelError, r"is a str.*nn\.Module"),
    "Grams of another model": (lambda d: d.forget(model=problems.mlp(seed=3)), MismatchError, "belong to model.*Load"),
    "Grams of another shape": (of_another_shape, MismatchError, "layer '0' is .* here and .* there"),
    "no Grams": (lambda d: d.forget(grams="grams.safetensors"), MismatchError, r"is a str.*LayerGrams\.load"),
    "an older version": (lambda d: of_version(d, "0"), StoreError, "version 0 .*reads 1.*fit again"),
    "a newer version": (lambda d: of_version(d, "99"), StoreError, "version 99 .*reads 1.*fit again"),
    "a truncated file": (lambda d: rewrite(d, lambda b: b[:-100]), StoreError, "bad.safetensors"),
    "an altered file": (
        lambda d: rewrite(d, lambda b: b[:-50] + bytes([b[-50] ^ 1]) + b[-49:]),
        StoreError,
        "bad.safetensors",
    ),
    "a foreign file": (lambda d: rewrite(d, lambda b: b"PK\x03\x04" + 100 * b"x"), StoreError, "bad.safetensors"),
    "a forget set larger than what was fitted": (
        lambda d: d.forget(2 * d.problem.samples(torch.arange(300))),
        MismatchError,
        "600 samples with Grams of 300.*smaller part",
    ),
    "the same request twice": (twice, MismatchError, "forgotten before.*start from"),
    "a class that does not exist": (
        lambda d: unweave.drop_classes(d.problem.model, [9]),
        ConfigError,
        r"\[9\].*classes 0 to 4",
    ),
    "all classes at once": (lambda d: d.forget(task="classes"), ConfigError, "all 5 classes.*task='samples'"),
    "all classes dropped": (lambda d: unweave.drop_classes(d.problem.model, range(5)), ConfigError, "At least two"),
    "gamma 0": (lambda d: d.forget(gamma=0), ConfigError, r"gamma: 0.*\(0, 1\]"),
    "gamma 1.5": (lambda d: d.forget(gamma=1.5), ConfigError, r"gamma: 1.5.*\(0, 1\]"),
    "gamma for an unknown layer": (
        lambda d: d.forget(gamma={"default": 0.9, "head": 0.5}),
        LayerError,
        "unknown layers: head.*Known: 0, 2, 4",
    ),
    "an unknown layer": (lambda d: d.forget(layers=["22"]), LayerError, r"'22'. Did you mean '2'\?"),
    "an unknown layer for fit": (lambda d: d.fit(layers=["44"]), LayerError, r"'44'. Did you mean '4'\?"),
    "samples that were never fitted": (
        lambda d: d.forget([(1e3 * torch.ones(2, 20), torch.tensor([0, 1]))]),
        MismatchError,
        "At least 2 of these 2 samples were not fitted.*Pass samples of the training set",
    ),
    "a config that is none": (
        lambda d: unweave.forget(d.problem.model, d.problem.forgotten, d.problem.grams, config={"task": "classes"}),
        ConfigError,
        "is a dict.*ForgetConfig",
    ),
}  # fmt: skip


def everything(desk: Desk) -> tuple[Any, ...]:
    p = desk.problem
    flags = [(m.training, len(m._forward_hooks), len(m._forward_pre_hooks)) for m in p.model.modules()]
    grams = {name: gram.numpy().tobytes() for name, gram in p.grams.items()}
    return fingerprint(p.model), flags, grams, p.grams.origin, desk.file.read_bytes()


@pytest.mark.parametrize("what", BAD)
def test_bad_input_gets_an_error_that_names_it_and_changes_nothing(desk: Desk, what: str) -> None:
    call, kind, words = BAD[what]
    before = everything(desk)
    with pytest.raises(kind, match=words):
        call(desk)
    assert everything(desk) == before


def test_a_full_disk_is_an_error_and_leaves_the_file(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    before = everything(desk)
    with pytest.raises(StoreError, match="No space left"):
        onto_a_full_disk(desk, monkeypatch)
    assert everything(desk) == before
    assert list(desk.file.parent.iterdir()) == [desk.file]


@pytest.mark.parametrize("stage", ["fit", "forget"])
def test_an_interruption_changes_nothing(desk: Desk, stage: str) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before, p = everything(desk), desk.problem
    data = {"fit": (), "forget": (p.grams,)}[stage]
    with pytest.raises(KeyboardInterrupt):
        getattr(unweave, stage)(p.model, p.forgotten, *data, progress=interrupt)
    assert everything(desk) == before


def test_one_sample_to_forget_is_no_mistake(desk: Desk) -> None:
    assert replace(desk.problem, forget=torch.tensor([3])).run().ok


def test_a_model_that_ends_in_a_softmax_is_noticed(points: Problem) -> None:
    certain = nn.Sequential(copy.deepcopy(points.model), nn.Softmax(1))
    with pytest.raises(ModelError, match=r"returns probabilities.*without its last softmax"):
        unweave.fit(certain, [(points.x[:50], points.y[:50])])
    logarithms = nn.Sequential(copy.deepcopy(points.model), nn.LogSoftmax(1))
    unweave.fit(logarithms, [(points.x[:50], points.y[:50])])  # as good as logits
