"""The work folder: networks, outcomes and what is computed once for several of them.

    FOLDER/weights/SETTING/TRAINING/SEED.safetensors     networks: large, can be trained again
    FOLDER/weights/SETTING/TRAINING/.SEED.halfway        a training that was interrupted (``training.halfway``)
    FOLDER/rows/SETTING/CASE/METHOD/SEED.json, .npz      outcomes: small, what must survive
    FOLDER/set-aside/…                                   outcomes of baselines that were tuned in another way
    FOLDER/claims/…                                      empty files: what processes are at (``shares``)

Outcomes are those of jobs (see ``jobs``): one network, one method, one seed. An interrupted run goes on
where it was, also on another machine that has the rows alone: a network whose weights are not there is trained again
when it is needed. The same seed gives the same first weights and batches, and on one machine nearly the same network.
Several processes may share a folder: every file is written whole or not at all, and what is there is not made again.
"""

from __future__ import annotations

import json
import os
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save
from torch import nn

import unweave
from experiments.data import Cifar10, Labelled, without
from experiments.running.alone import one_at_a_time
from experiments.running.sources import load, recipe_of, train
from experiments.running.training_sets import FULL, Training
from experiments.settings import Case, Scale, Setting
from experiments.training.halfway import Halfway
from experiments.trials import KNOBS, SCHEME
from unweave.baselines.ntk import Linearised
from unweave.errors import MismatchError
from unweave.files import write_atomically

T = TypeVar("T")
NETWORKS_KEPT = 3
"""In memory: the ones that neighbouring jobs share."""


@dataclass(frozen=True)
class Parts:
    """The sets that a request and its outcome are about."""

    forget: Labelled
    retain: Labelled
    val: Labelled
    test: Labelled


class Work:
    """Where experiments keep what they did, and get networks, data and Grams from."""

    def __init__(
        self, folder: Path, scale: Scale, device: torch.device, data: Path | None = None, together: int = 1
    ) -> None:
        self.folder, self.scale, self.device, self.source, self.together = folder, scale, device, data, together
        self.download = False
        self.crowded = False  # whether other work runs on the device at the same time, so that seconds say nothing
        self._expected: dict[tuple[str, str], list[int]] = {}
        self._data: dict[tuple[str, int | None], Cifar10] = {}
        self._networks: OrderedDict[tuple[str, str, int], nn.Module] = OrderedDict()
        self._grams: tuple[tuple[str, str, int, str], unweave.LayerGrams, float | None] | None = None
        self._linearised: tuple[tuple[str, str, int], Linearised, float | None] | None = None
        self._parts: tuple[tuple[str, str], Parts] | None = None
        self._begun = set[str]()

    def first_time(self, what: str) -> bool:
        """Whether this has not been asked in this process before."""
        known = what in self._begun
        self._begun.add(what)
        return not known

    # ------------------------------------------------------------------------------------------------ outcomes

    @property
    def rows(self) -> Path:
        """Where the outcomes of jobs are."""
        return self.folder / "rows"

    def has(self, name: str) -> bool:
        """Whether this outcome is there."""
        return (self.rows / f"{name}.json").exists()

    def row(self, name: str) -> dict[str, Any]:
        """The numbers of an outcome."""
        result: dict[str, Any] = json.loads((self.rows / f"{name}.json").read_text())["result"]
        return result

    def arrays(self, name: str) -> dict[str, np.ndarray]:
        """Its arrays; empty where it has none."""
        path = self.rows / f"{name}.npz"
        if not path.exists():
            return {}
        with np.load(path) as found:
            return dict(found)

    def has_arrays(self, name: str) -> bool:
        """Whether they are there: they are large, and not kept everywhere that numbers are."""
        return (self.rows / f"{name}.npz").exists()

    def seeds_of(self, prefix: str) -> list[int]:
        """The seeds for which there is an outcome PREFIX/SEED, in order, but for those of another tuning."""
        seeds = [int(path.stem) for path in (self.rows / prefix).glob("*.json") if path.stem.isdigit()]
        return sorted(seed for seed in seeds if self.document(f"{prefix}/{seed}") is not None)

    def document(self, name: str) -> dict[str, Any] | None:
        """All that is kept of an outcome beside its arrays; None where there is none or it is of another tuning."""
        found = self._document(name)
        return None if found is None or _of_another_tuning(name, found) else found

    def of_another_tuning(self, name: str) -> bool:
        """Whether there is an outcome of this name whose settings were chosen in another way than today's."""
        found = self._document(name)
        return found is not None and _of_another_tuning(name, found)

    def _document(self, name: str) -> dict[str, Any] | None:
        try:
            found: dict[str, Any] = json.loads((self.rows / f"{name}.json").read_text())
        except FileNotFoundError:  # not asked beforehand: another process may set it aside in between
            return None
        return found

    def names(self, prefix: str = "") -> list[str]:
        """Of all outcomes below a folder."""
        paths = sorted((self.rows / prefix).rglob("*.json"))
        return [path.relative_to(self.rows).with_suffix("").as_posix() for path in paths]

    def set_aside(self, name: str) -> bool:
        """Move an outcome of another tuning into FOLDER/set-aside: it can be made anew, and is not lost.

        Whether this process moved it: another one may have, and may have made it anew since. The result goes last, so
        that nobody takes the outcome for open, and writes it, while its old arrays are still to be moved.
        """
        kept = self.folder / "set-aside"
        with one_at_a_time(kept / ".lock"):
            if not self.of_another_tuning(name):
                return False
            for suffix in (".npz", ".json"):
                path, aside = self.rows / f"{name}{suffix}", kept / f"{name}{suffix}"
                if path.exists():
                    aside.parent.mkdir(parents=True, exist_ok=True)
                    os.replace(path, aside)
        return True

    # ------------------------------------------------------------------------------------------------ data

    def data(self, setting: Setting) -> Cifar10:
        """The data set of a setting, on the device."""
        key = setting.data, setting.limit
        if key not in self._data:
            with one_at_a_time(self.folder / ".data.lock"):  # one makes the cache, the others then read it
                self._data[key] = load(setting, self.source, self.device, self.download)
        return self._data[key]

    def parts(self, case: Case) -> Parts:
        """The sets of a request; those of the last one are kept."""
        key = case.setting.name, case.name
        if self._parts is None or self._parts[0] != key:
            data = self.data(case.setting)
            chosen = case.chosen(data.train.y)
            retain = data.train.where(without(len(data.train), chosen))
            self._parts = key, Parts(data.train.where(chosen), retain, data.val, data.test)
        return self._parts[1]

    # ------------------------------------------------------------------------------------------------ networks

    def network(self, setting: Setting, training: Training, seed: int) -> nn.Module:
        """A trained network in eval mode: from memory, from its file, or trained now and kept."""
        key = setting.name, training.name, seed
        if key not in self._networks:
            self._networks[key] = self._stored(setting, training, seed) or self._trained(setting, training, seed)
            while len(self._networks) > NETWORKS_KEPT:
                self._networks.popitem(last=False)
        self._networks.move_to_end(key)
        return self._networks[key]

    def seconds_to_train(self, setting: Setting, training: Training, seed: int) -> float | None:
        """How long that training took, when it was done; None where other work ran on the device at the same time."""
        self.network(setting, training, seed)
        with safe_open(self._weights(setting, training, seed), "pt") as stored:
            seconds = stored.metadata()["seconds"]  # trained alone, or an equal share of a group's time
        return float(seconds) if seconds else None

    def _stored(self, setting: Setting, training: Training, seed: int) -> nn.Module | None:
        path = self._weights(setting, training, seed)
        if not path.exists():
            return None
        with safe_open(path, "pt") as stored:
            made = stored.metadata()["recipe"]
        if made != _recipe(setting):
            raise MismatchError(
                f"{path} was trained by another recipe ({made} then, {_recipe(setting)} now). Choose another folder, "
                "or delete the file to train it again."
            )
        net = setting.build(setting.classes)
        net.load_state_dict(load_file(path))
        net.to(self.device, memory_format=torch.channels_last)  # type: ignore[call-overload]
        return net.eval()

    def _trained(self, setting: Setting, training: Training, seed: int) -> nn.Module:
        """Train this one, and with it some others that were announced and are not there.

        Another process that wants one of them waits until it is kept: to train it twice would take both twice as long.
        """
        announced = self._expected.get((setting.name, training.name), [])
        others = [s for s in announced if s != seed and not self._weights(setting, training, s).exists()]
        seeds = [seed, *dict.fromkeys(others[: self.together - 1])] if seed in announced else [seed]
        paths = {one: self._weights(setting, training, one) for one in seeds}
        with ExitStack() as stack:
            for one in sorted(seeds):  # in one order for everybody, or two might wait for each other
                stack.enter_context(one_at_a_time(paths[one].with_name(f".{one}.lock")))
            missing = [one for one in seeds if not paths[one].exists()]
            if missing:
                nets, seconds = self._timed_training(setting, training, missing)
                share = "" if seconds is None else str(seconds / len(missing))
                about = {"seconds": share, "together": str(len(missing)), "recipe": _recipe(setting)}
                for one, net in zip(missing, nets, strict=True):
                    weights = {k: v.detach().cpu().contiguous() for k, v in net.state_dict().items()}
                    if not paths[one].exists():  # there may be no locks: then what is there may be in use
                        write_atomically(paths[one], save(weights, about))
                    self._halfway(setting, training, one).drop()
        kept = self._stored(setting, training, seed)
        assert kept is not None
        return kept

    def _timed_training(
        self, setting: Setting, training: Training, seeds: Sequence[int]
    ) -> tuple[list[nn.Module], float | None]:
        """Networks and the seconds they took; on a GPU, a first epoch loads and compiles kernels before the clock."""
        data = training.select(self.data(setting))
        if self.device.type == "cuda" and not self.crowded and self.first_time(f"training of {setting.name}"):
            train(replace(setting, epochs=1), data, seeds[:1])
        halfway = [self._halfway(setting, training, seed) for seed in seeds]
        goes_on = any(one.there() for one in halfway)  # then a part of the time is not known
        nets, seconds = self.timed(lambda: train(setting, data, seeds, halfway))
        return nets, None if goes_on else seconds

    def _halfway(self, setting: Setting, training: Training, seed: int) -> Halfway:
        """Where an interrupted training is kept; it goes on by the same recipe and on the same kind of device."""
        path = self._weights(setting, training, seed).with_name(f".{seed}.halfway")
        return Halfway(path, {"recipe": _recipe(setting), "device": self.device.type})

    def half_trained(self) -> int:
        """How many networks there is progress of that their training can go on from."""
        begun = self.folder.glob("weights/*/*/.*.halfway")
        return sum(not path.with_name(f"{path.stem[1:]}.safetensors").exists() for path in begun)

    def expect(self, setting: Setting, training: Training, seeds: Iterable[int]) -> None:
        """Announce networks that jobs will ask for, so that several are trained at once; their time is then shared."""
        known = self._expected.setdefault((setting.name, training.name), [])
        known += [seed for seed in dict.fromkeys(seeds) if seed not in known]  # experiments share networks

    def _weights(self, setting: Setting, training: Training, seed: int) -> Path:
        return self.folder / "weights" / setting.name / training.name / f"{seed}.safetensors"

    def grams(
        self, setting: Setting, seed: int, training: Training = FULL, stride: str = "layer"
    ) -> tuple[unweave.LayerGrams, float | None]:
        """The Grams of a network over its training set, and the seconds that took (see :meth:`timed`).

        The last ones are kept.
        """
        key = setting.name, training.name, seed, stride
        if self._grams is None or self._grams[0] != key:
            self._grams = None  # the old ones may be large
            net = self.network(setting, training, seed)
            data = self.data(setting)
            loaders = training.select(data).batches(500), data.val.batches(500)
            made, seconds = self.timed(lambda: unweave.fit(net, *loaders, stride=stride))
            self._grams = key, made, seconds
        return self._grams[1], self._grams[2]

    def linearised(self, key: tuple[str, str, int], make: Callable[[], Linearised]) -> tuple[Linearised, float | None]:
        """What NTK's trials of one request (setting, case, seed) share, and the seconds it took; the last is kept."""
        if self._linearised is None or self._linearised[0] != key:
            self._linearised = None  # the old one is large
            self._linearised = key, *self.timed(make)
        return self._linearised[1], self._linearised[2]

    def timed(self, work: Callable[[], T]) -> tuple[T, float | None]:
        """What some work gives, and the seconds it took by the wall clock; None where the device is crowded."""
        self._wait()
        began = time.perf_counter()
        made = work()
        self._wait()
        return made, None if self.crowded else time.perf_counter() - began

    def __getstate__(self) -> dict[str, Any]:
        """Without what is in memory: another process has its own."""
        return {
            **self.__dict__,
            "_data": {},
            "_networks": OrderedDict(),
            "_grams": None,
            "_linearised": None,
            "_parts": None,
            "_begun": set(),
        }

    def _wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


def in_all(seconds: Sequence[float | None]) -> float | None:
    """Of all parts together; None where one of them was not timed."""
    timed = [one for one in seconds if one is not None]
    return sum(timed) if len(timed) == len(seconds) else None


def _of_another_tuning(name: str, document: dict[str, Any]) -> bool:
    """Chosen in another way, or by turning another knob."""
    settings = document["settings"]
    if "/tuning/" in name or settings.get("method") not in KNOBS:
        return "/tuning/" in name
    chosen = document["result"].get("config")  # a trial has none: it names its knob among its settings
    other = chosen is not None and KNOBS[settings["method"]].name not in chosen
    return other or settings.get("tuning") != SCHEME


def _recipe(setting: Setting) -> str:
    return json.dumps(recipe_of(setting).settings(), sort_keys=True)
