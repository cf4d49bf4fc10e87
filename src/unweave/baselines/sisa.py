"""SISA (Bourtoule et al., IEEE S&P 2021): train so that a deletion costs the retraining of one shard, and is exact.

The training set is dealt out into S shards of R slices. Each shard has a model of its own, trained on its slices one
after the other, cumulatively, with a checkpoint after each; the shards' models vote. A deletion restarts the shards it
concerns from the checkpoint before the first slice it concerns. With a trainer that depends on nothing but its
arguments, every shard then is, bit for bit, what it would be had the deleted samples never been dealt to it.

This is a way to train, not a way to repair a model: it has to be there before the first request.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from unweave.baselines.checks import integer, one_of
from unweave.baselines.contract import BaselineResult, Method
from unweave.baselines.kept import keep, read
from unweave.baselines.one_step import look
from unweave.baselines.preparation import again, settings
from unweave.baselines.shards import Shards, Slice, slice_epochs
from unweave.errors import ConfigError, DataError, MismatchError, ModelError, StoreError
from unweave.fit import Progress
from unweave.reading.batches import Inputs, Loader, run
from unweave.reading.rest import at_rest, duplicate

Trainer = Callable[[nn.Module | None, list[int], int, int], nn.Module]
"""``train(model, ids, epochs, seed)``: the model trained on for so many epochs on these samples; None: a new one.

Its result may depend on the four arguments only. No state of an optimiser is carried from slice to slice."""

RULES = ("vote", "mean")
MANIFEST = "sisa.json"
KIND = "checkpoint"


@dataclass(frozen=True)
class SisaConfig:
    """Epochs, one slice and the vote are the defaults of Bourtoule et al.'s code, which has none for the shards."""

    shards: int = 5
    slices: int = 1
    epochs: int = 20
    """What the work on a shard amounts to, in epochs over all of it."""
    rule: str = "vote"
    """"vote" (one a shard, ties to the lower class) or "mean" (of the probabilities)."""
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("shards", "slices", "epochs", "seed"):
            integer(self, name, 0 if name == "seed" else 1)
        one_of(self, "rule", RULES)
        if min(slice_epochs(self.slices, self.epochs)) < 1:
            least = (self.slices + 2) // 2
            raise ConfigError(f"{self.epochs} epochs leave a slice of {self.slices} with none. Use {least} or more.")


@dataclass(frozen=True)
class Work:
    """What was trained."""

    slices: dict[int, list[int]] = field(default_factory=dict)
    """Per shard that was touched, its slices that were trained."""
    epochs: int = 0
    sample_epochs: int = 0
    """Samples times epochs, the measure of cost."""


class Ensemble(nn.Module):
    """The shards' models as one. Its outputs, [N, C], are the number of votes, or the log of the mean probability."""

    def __init__(self, models: Sequence[nn.Module], rule: str) -> None:
        super().__init__()
        self.models = nn.ModuleList(models)
        self.rule = rule

    def forward(self, *inputs: Any, **named: Any) -> Tensor:
        given = named or (inputs[0] if len(inputs) == 1 else inputs)
        logits = torch.stack([run(model, given) for model in self.models])  # [S, N, C]
        if self.rule == "vote":
            return nn.functional.one_hot(logits.argmax(2), logits.shape[2]).sum(0).to(logits.dtype)
        return logits.softmax(2).mean(0).clamp_min(torch.finfo(logits.dtype).tiny).log()


class SISA:
    """Shards, slices and their checkpoints in a folder.

    The folder holds one safetensors file a slice and ``sisa.json``, which says who is where and which files count. The
    latter is written last, so a call that fails leaves the state of before; files that no longer count are deleted, as
    they know the samples that were taken out.
    """

    def __init__(self, folder: str | PathLike[str], template: nn.Module, config: SisaConfig | None = None) -> None:
        """Nothing is read or written yet.

        Args:
            folder: for the checkpoints; made by :meth:`fit`.
            template: a model of the architecture that the trainer returns; its weights are not used.
            config: see :class:`SisaConfig`.
        """
        self.folder = Path(folder)
        self.config = settings(config, SisaConfig)
        self._template = duplicate(template)
        self._shards: Shards | None = None

    @staticmethod
    def open(folder: str | PathLike[str], template: nn.Module) -> SISA:
        """What an earlier process has fitted.

        Raises:
            StoreError: there is nothing, or it is damaged.
        """
        shards, stored = Shards.load(Path(folder) / MANIFEST)
        try:
            config = SisaConfig(**stored)
        except (TypeError, ConfigError) as error:
            raise StoreError(f"{folder}: the settings in {MANIFEST} are damaged ({error}). Restore it.") from error
        found = SISA(folder, template, config)
        found._shards = shards
        return found

    @property
    def shards(self) -> Shards:
        """Who is where.

        Raises:
            DataError: nothing was fitted yet.
        """
        if self._shards is None:
            raise DataError("Nothing was fitted in this folder yet. Call fit(), or SISA.open() for one that was.")
        return self._shards

    def fit(self, ids: Iterable[int], train: Trainer, progress: Progress | None = None) -> Work:
        """Train all shards on these samples.

        Raises:
            DataError: ids that are not integers, there twice, or too few.
            StoreError: the folder holds shards already, or cannot be written.
        """
        if (self.folder / MANIFEST).exists():
            raise StoreError(f"{self.folder} holds shards already. Use SISA.open() for them, or choose another folder.")
        dealt = Shards.deal(ids, self.config.shards, self.config.slices, self.config.seed)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StoreError(f"Cannot make {self.folder}: {error.strerror or error}. Choose another place.") from error
        return self._train(dealt, dict.fromkeys(range(self.config.shards), 0), train, progress)

    def forget(self, ids: Iterable[int], train: Trainer, progress: Progress | None = None) -> Work:
        """Take samples out, and train again what knows them.

        Raises:
            DataError: ids that are in no shard, or nothing was fitted.
            StoreError: another process has changed the folder since, or it cannot be read or written.
        """
        known = self.shards
        if Shards.load(self.folder / MANIFEST)[0] != known:
            raise StoreError(f"{self.folder} has changed since it was opened. Call SISA.open() and forget with that.")
        left, void = known.without(ids)
        return self._train(left, void, train, progress)

    def models(self) -> list[nn.Module]:
        """The shards' models in eval mode, those of shards that have become empty left out."""
        last = [shard[-1].file for shard in self.shards.shards]
        return [self._load(file).eval() for file in last if file is not None]

    def model(self) -> Ensemble:
        """The models as one, in eval mode.

        Raises:
            DataError: no shard has a sample left.
        """
        models = self.models()
        if not models:
            raise DataError("Every sample was taken out, so no model is left.")
        ensemble = Ensemble(models, self.config.rule)
        return ensemble.eval()

    def predict(self, inputs: Inputs) -> Tensor:
        """The class of each sample, [N]."""
        ensemble = self.model()
        with at_rest(ensemble):
            return run(ensemble, inputs).argmax(1)

    def _train(self, shards: Shards, void: dict[int, int], train: Trainer, progress: Progress | None) -> Work:
        generation = shards.generation + 1
        done = [list(shard) for shard in shards.shards]
        work = Work()
        total = sum(self.config.slices - first for first in void.values())
        try:
            for number, first in void.items():
                work = self._train_shard(shards, number, first, train, generation, done[number], work)
                if progress is not None:
                    progress("sisa", sum(map(len, work.slices.values())), total)
            shards = Shards(tuple(map(tuple, done)), generation)
            shards.save(self.folder / MANIFEST, asdict(self.config))
            self._shards = shards
        finally:
            self._sweep()
        return work

    def _train_shard(
        self, shards: Shards, number: int, first: int, train: Trainer, generation: int, done: list[Slice], work: Work
    ) -> Work:
        """Train slices ``first`` … R − 1 of one shard, from the checkpoint before them; fills in ``done``."""
        before = done[first - 1].file if first else None
        net = None if before is None else self._load(before)
        epochs = slice_epochs(self.config.slices, self.config.epochs)
        for r in range(first, self.config.slices):
            ids = shards.seen(number, r)
            if not ids:
                done[r] = replace(done[r], file=None)
                continue
            net = train(net, ids, epochs[r], self.seed(number, r))
            if not isinstance(net, nn.Module):
                raise ModelError(f"The trainer returned a {type(net).__name__}. Supported: torch.nn.Module.")
            file = f"shard-{number}-slice-{r}-{generation}.safetensors"
            self._keep(file, net, number, r)
            # From its file, as after a deletion: what is in no checkpoint (mode, flags, attributes) is not handed on.
            net = self._load(file)
            done[r] = replace(done[r], file=file)
            work = Work(
                work.slices | {number: [*work.slices.get(number, []), r]},
                work.epochs + epochs[r],
                work.sample_epochs + epochs[r] * len(ids),
            )
        return work

    def seed(self, shard: int, slice_number: int) -> int:
        """The seed that the trainer is given for a slice: always the same one."""
        return self.config.seed * 1_000_003 + shard * 1_009 + slice_number

    def _keep(self, file: str, net: nn.Module, shard: int, slice_number: int) -> None:
        state = net.state_dict()
        odd = [name for name, value in state.items() if not isinstance(value, Tensor)]
        if odd:
            raise ModelError(f"{odd[0]!r} of the model's state is no tensor, so it cannot be kept.")
        keep(self.folder / file, KIND, {"shard": shard, "slice": slice_number}, state)

    def _load(self, file: str) -> nn.Module:
        _, state = read(self.folder / file, KIND)
        net = duplicate(self._template)
        try:
            net.load_state_dict(state)
        except RuntimeError as error:
            raise MismatchError(f"The template is not what the trainer returns ({error}). Pass that model.") from error
        return net

    def _sweep(self) -> None:
        """Delete checkpoints that do not count."""
        counts = set() if self._shards is None else self._shards.files
        for path in self.folder.glob("shard-*-slice-*.safetensors"):
            if path.name not in counts:
                path.unlink()


def sisa(
    model: nn.Module | None = None,
    forget_loader: Loader | None = None,
    retain_loader: Loader | None = None,
    val: Loader | None = None,
    config: SisaConfig | None = None,
    *,
    checkpoints: SISA | None = None,
    ids: Iterable[int] | None = None,
    train: Trainer | None = None,
    progress: Progress | None = None,
) -> BaselineResult:
    """Carry out a deletion in a :class:`SISA` that was fitted before; its folder changes, that is the point.

    Args:
        model: not used: the model of before is what the checkpoints make.
        forget_loader: only to report an error before and after.
        retain_loader: not used: the trainer finds its samples by their ids.
        val: as ``forget_loader``.
        config: None, or the one that was fitted with.
        checkpoints: the shards.
        ids: of the samples to forget.
        train: the trainer that was fitted with.
        progress: called as ``progress("sisa", slices_done, slices)``.

    Raises:
        DataError: no checkpoints, ids or trainer, or ids that are in no shard.
        ConfigError: other settings than the shards were fitted with.
    """
    began = time.perf_counter()
    if not isinstance(checkpoints, SISA) or ids is None or train is None:
        raise DataError("sisa needs checkpoints=SISA(...), ids= of the samples to forget, and train=.")
    if config is not None and config != checkpoints.config:
        raise ConfigError(f"The shards were fitted with {checkpoints.config}. Leave config out.")
    watched = again(forget_loader), again(val)
    history = [look(checkpoints.model(), 0, *watched)]
    work = checkpoints.forget(ids, train, progress)
    after = checkpoints.model()
    history.append(look(after, 1, *watched))
    return BaselineResult(
        model=after,
        history=history,
        stopped=f"{len(work.slices)} of {checkpoints.config.shards} shards trained again",
        ok=True,
        config=checkpoints.config,
        seconds=time.perf_counter() - began,
        extras={"retrained": work.slices, "epochs": work.epochs, "sample_epochs": work.sample_epochs},
    )


SISA_METHOD = Method(
    "sisa", "SISA", sisa, SisaConfig, frozenset({"checkpoints", "trainer", "training"}), "Bourtoule et al., S&P 2021"
)
