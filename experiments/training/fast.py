"""Train one of the paper's networks quickly, or several at once: by a shorter schedule, or by the authors' own.

The authors' recipe takes 100 or 200 epochs of 256 images at a falling learning rate; the shorter one takes a one-cycle
learning rate and batches of 512. Data and augmentation are the same; the images of an epoch that fill no batch are
left out, 80 of 50,000 with the authors' batches. What is random is drawn before the first step: which images are in
which batch, and how each is cropped and mirrored. On a GPU the whole step (gathering the batch, bfloat16 forward,
backward, update, next learning rate) is captured once as a CUDA graph and replayed, so that the host has nothing else
to do, and several networks share the GPU, each on a stream of its own. Forward and backward are compiled where Triton
is there: batch norm, ReLU and their gradients are limited by memory, and fused they go through it less often.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from experiments.datasets.images import Labelled
from experiments.training.augmentation import as_they_are, draw_crops
from experiments.training.dropout import dropout_drawn_from
from experiments.training.halfway import Diary, Halfway
from experiments.training.optimisers import buffers_of, forget_steps, optimiser_of, put_back
from experiments.training.recipes import RECIPES, Recipe, recipe_of
from unweave.arithmetic.fused import has_triton
from unweave.errors import ConfigError, DataError, MismatchError
from unweave.reading.rest import only_moving

__all__ = ["RECIPES", "Learning", "Recipe", "one_cycle", "train_end", "train_fast", "train_many", "train_recipe"]

Loss = Callable[[nn.Module, Tensor, Tensor], Tensor]
"""From a network, a batch's images and its labels to a number."""

WARM_UP = 3
"""Steps before the capture, taken back: they choose every kernel and make every buffer."""


def train_recipe(recipe: Recipe | str, data: Labelled, seed: int) -> nn.Module:
    """A trained network in eval mode; the same seed gives the same first weights, batches, augmentation and dropout.

    Raises:
        ConfigError: there is no recipe of that name.
        DataError: the data do not fill one batch.
    """
    return train_many(recipe, data, [seed])[0]


def train_many(
    recipe: Recipe | str,
    data: Labelled | Sequence[Labelled],
    seeds: Sequence[int],
    halfway: Sequence[Halfway] = (),
) -> list[nn.Module]:
    """A network for each seed, all on the same data or each on its own: the networks that :func:`train_recipe` makes.

    They take turns step by step, on a GPU at the same time.

    Args:
        recipe: how they are trained.
        data: one set for all of them, or one for each.
        seeds: one for each network.
        halfway: where each keeps its progress, to go on from there after an interruption; none: nowhere.

    Raises:
        ConfigError: there is no recipe of that name, or not one data set, or place for progress, for each seed.
        DataError: the data do not fill one batch.
    """
    recipe = recipe_of(recipe)
    sets = [data] * len(seeds) if isinstance(data, Labelled) else list(data)
    if len(sets) != len(seeds):
        raise ConfigError(f"Invalid data: {len(sets)} sets for {len(seeds)} seeds. Supported: one, or one for each.")
    if len(halfway) not in (0, len(seeds)):
        raise ConfigError(f"Invalid halfway: {len(halfway)} places for {len(seeds)} seeds. Supported: one for each.")
    padded = {id(own): _Padded.of(own, recipe.padding) for own in sets}
    with ExitStack() as stack:
        runs = [
            _Run(recipe, padded[id(own)], seed, stack, _whole(recipe, seed, own.x.device))
            for own, seed in zip(sets, seeds, strict=True)
        ]
        diary = Diary(runs, halfway)
        diary.read()
        try:
            _take_turns(runs, diary)
        except KeyboardInterrupt:
            if halfway and runs[0].cuda:  # a step is replayed whole or not at all; on a CPU it may be half done
                diary.write()
            raise
        return [run.finished() for run in runs]


def _take_turns(runs: Sequence[_Run], diary: Diary) -> None:
    """Step by step, each from where it is."""
    for i in range(min((run.begun for run in runs), default=0), max((run.steps for run in runs), default=0)):
        for run in runs:
            if run.begun <= i < run.steps:
                run.step(i)
        diary.write_if_due()


def train_end(recipe: Recipe | str, end: Learning, data: Labelled, seed: int) -> nn.Module:
    """Train a part of a network that is there, in place, by the recipe's schedule; the rest keeps every bit.

    Raises:
        ConfigError: there is no recipe of that name.
        DataError: the data do not fill one batch.
    """
    recipe = recipe_of(recipe)
    with only_moving(end.net, end.weights), ExitStack() as stack:
        run = _Run(recipe, _Padded.of(data, recipe.padding), seed, stack, end)
        for i in range(run.steps):
            run.step(i)
        return run.finished()


def train_fast(
    build: Callable[[], nn.Module],
    data: Labelled,
    *,
    seed: int,
    epochs: int = 30,
    lr: float = 0.1,
    batch_size: int = 512,
    weight_decay: float = 5e-4,
    padding: int = 4,
) -> nn.Module:
    """As :func:`train_recipe`, with one cycle and the settings given one by one."""
    return train_recipe(Recipe(build.__name__, build, epochs, lr, batch_size, weight_decay, padding), data, seed)


def one_cycle(part: float, rise: float = 0.25) -> float:
    """A learning rate that rises in a straight line and then falls in one; ``part`` of the way is done."""
    return part / rise if part < rise else (1 - part) / (1 - rise)


def _build(recipe: Recipe, seed: int, device: torch.device) -> nn.Module:
    """The first weights depend on the seed alone, and the generators of the process stay as they were."""
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        net = recipe.build()
    net.to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]
    return net.train()


@dataclass(frozen=True)
class Learning:
    """A network, in train mode or not, and what of it learns."""

    net: nn.Module
    weights: Sequence[nn.Parameter]
    still: Collection[nn.Module] = ()
    """Modules that stay in eval mode, so that their running statistics do not move."""

    def in_train_mode(self) -> None:
        """All but those that stay still."""
        self.net.train()
        for module in self.still:
            module.eval()


def _whole(recipe: Recipe, seed: int, device: torch.device) -> Learning:
    net = _build(recipe, seed, device)
    return Learning(net, list(net.parameters()))


def rates_of(recipe: Recipe, steps: int) -> list[float]:
    """The learning rate of each step; one that falls exponentially does so from epoch to epoch."""
    if recipe.schedule == "one cycle":
        return [recipe.lr * one_cycle(i / steps) for i in range(steps)]
    each = steps // recipe.epochs
    return [recipe.lr * (recipe.lr_end / recipe.lr) ** (i // each / recipe.epochs) for i in range(steps)]


@dataclass(frozen=True)
class _Padded:
    """Images as pixels [N·H'·W', C] with a border of zeros, so that a crop is a gather; labels [N].

    On a GPU in bfloat16, to which the first convolution would round them anyway.
    """

    pixels: Tensor
    y: Tensor
    size: tuple[int, int]
    padding: int

    @classmethod
    def of(cls, data: Labelled, padding: int) -> _Padded:
        kind = torch.bfloat16 if data.x.is_cuda else data.x.dtype
        n, channels, height, width = data.x.shape
        pixels = data.x.new_zeros(n, height + 2 * padding, width + 2 * padding, channels, dtype=kind)
        inner = pixels[:, padding : padding + height, padding : padding + width]
        inner.copy_(data.x.permute(0, 2, 3, 1))
        return cls(pixels.flatten(0, 2), data.y, (height, width), padding)

    def batch(self, chosen: Tensor, top: Tensor, left: Tensor, mirrored: Tensor) -> tuple[Tensor, Tensor]:
        """Crops [B, C, H, W], channels last, and labels [B]: what ``augment`` makes of the same draws."""
        height, width = self.size
        rows = torch.arange(height, device=chosen.device) + top[:, None]
        columns = torch.arange(width, device=chosen.device).expand(len(chosen), width)
        columns = torch.where(mirrored[:, None], width - 1 - columns, columns) + left[:, None]
        first = chosen[:, None] * (height + 2 * self.padding) + rows
        index = first[:, :, None] * (width + 2 * self.padding) + columns[:, None, :]
        picked = self.pixels.index_select(0, index.flatten())
        return picked.view(len(chosen), height, width, -1).permute(0, 3, 1, 2), self.y[chosen]


class _Run:
    """One network's way through its batches, as a CUDA graph on a stream of its own where there is a GPU."""

    def __init__(self, recipe: Recipe, data: _Padded, seed: int, stack: ExitStack, learning: Learning) -> None:
        device = data.y.device
        self.data, self.cuda, self.device = data, device.type == "cuda", device
        self.seed, self.dropout = seed, torch.Generator(device).manual_seed(seed)
        self.net, self.weights = learning.net, learning.weights
        self.loss = _loss_for(learning, device)
        learning.in_train_mode()
        self.plan = _plan(recipe, len(data.y), torch.Generator(device).manual_seed(seed))
        first, _ = data.batch(*(part[0] for part in self.plan))
        self.draw = stack.enter_context(dropout_drawn_from(self.dropout, self.net, first))
        self.steps = len(self.plan[0])
        self.rates = rates_of(recipe, self.steps)
        self.optimiser = optimiser_of(recipe, learning.weights, device)
        self.begun = 0
        self.done = torch.zeros(1, dtype=torch.long, device=device)
        self.rates_there = torch.tensor(self.rates, device=device)
        if self.cuda:
            self.stream = torch.cuda.Stream(device)
            self.graph = self._capture()

    def step(self, i: int) -> None:
        """The i-th step; on a GPU the graph itself counts, and this only starts it."""
        if self.cuda:
            with torch.cuda.stream(self.stream):
                self.graph.replay()
            return
        for group in self.optimiser.param_groups:
            group["lr"] = self.rates[i]
        self._learn(*self.data.batch(*(part[i] for part in self.plan)))
        self.done.fill_(i + 1)

    def state(self) -> dict[str, Tensor]:
        """All that the next step depends on; waits for those that are under way."""
        if self.cuda:
            self.stream.synchronize()
        return {
            **{f"net.{name}": value for name, value in self.net.state_dict().items()},
            **buffers_of(self.optimiser, self.weights),
            "steps done": self.done,
            "dropout": self.dropout.get_state(),
        }

    def go_on_from(self, state: Mapping[str, Tensor]) -> None:
        """Be where another run with the same settings was. In place: a captured step knows tensors by address.

        Raises:
            MismatchError: it had more steps than there are here.
        """
        self.net.load_state_dict({name[4:]: value for name, value in state.items() if name.startswith("net.")})
        put_back(self.optimiser, self.weights, state)
        if int(state["steps done"]) > self.steps:
            raise MismatchError(
                f"The progress kept of a training has {int(state['steps done'])} steps, the training {self.steps}: it "
                "is of other data. Choose another folder, or delete the file *.halfway to begin anew."
            )
        self.done.copy_(state["steps done"])
        self.dropout.set_state(state["dropout"])
        self.begun = int(self.done)
        if self.cuda:
            self.stream.wait_stream(torch.cuda.current_stream(self.device))

    def finished(self) -> nn.Module:
        """The network after its last step; its gradients would keep the graph's memory."""
        if self.cuda:
            self.stream.synchronize()
        self.net.zero_grad(set_to_none=True)
        return self.net.eval()

    def _counted_step(self) -> None:
        """The step that the counter on the device names; then the counter is raised. Nothing here waits for the GPU."""
        for group in self.optimiser.param_groups:
            group["lr"].copy_(self.rates_there.index_select(0, self.done).squeeze(0))
        self._learn(*self.data.batch(*(part.index_select(0, self.done).squeeze(0) for part in self.plan)))
        self.done += 1

    def _learn(self, x: Tensor, y: Tensor) -> None:
        self.optimiser.zero_grad(set_to_none=True)
        self.draw()
        self.loss(self.net, x, y).backward()
        self.optimiser.step()

    def _capture(self) -> torch.cuda.CUDAGraph:
        """Run a few steps so that every kernel is chosen and every buffer there, take them back, and record one.

        Warm-up, capture and replays are on the same stream: libraries keep a workspace for each, which networks that
        run at the same time must not share.
        """
        first = {name: value.clone() for name, value in self.net.state_dict().items()}
        self.stream.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(self.stream):
            for _ in range(WARM_UP):
                self._counted_step()
                self.done.zero_()  # a short run may have fewer steps than this
        torch.cuda.current_stream(self.device).wait_stream(self.stream)
        self.optimiser.zero_grad(set_to_none=True)
        graph = torch.cuda.CUDAGraph()
        graph.register_generator_state(self.dropout)
        with torch.cuda.graph(graph, stream=self.stream):
            self._counted_step()
        self.net.load_state_dict(first)
        forget_steps(self.optimiser)
        self.done.zero_()
        self.dropout.manual_seed(self.seed)
        self.stream.wait_stream(torch.cuda.current_stream(self.device))
        return graph


def _loss(net: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Of a batch; on a GPU with products in bfloat16."""
    with torch.autocast(x.device.type, torch.bfloat16, enabled=x.is_cuda, cache_enabled=False):
        return F.cross_entropy(net(x), y)


@functools.cache
def _compiled_loss() -> Loss:
    """Compiled once for a kind of network and shape of batch; networks of the same kind share it."""
    return torch.compile(_loss, dynamic=False)


def _loss_for(learning: Learning, device: torch.device) -> Loss:
    """Compiled where that is possible and pays: a part of a network (EU-k) is trained too seldom to make up for it."""
    whole = len(learning.weights) == len(list(learning.net.parameters()))
    return _compiled_loss() if whole and device.type == "cuda" and has_triton() else _loss


def _plan(recipe: Recipe, n: int, order: torch.Generator) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """For each step and place in its batch, all [steps, B]: the image, its crop's top and left, whether it is mirrored.

    The last images of an epoch that fill no batch are left out.

    Raises:
        DataError: that would be all of them.
    """
    batches = n // recipe.batch_size
    if not batches:
        raise DataError(
            f"{n} images do not fill a batch of recipe {recipe.name}: give {recipe.batch_size} or more, or change the "
            "recipe's batch_size."
        )
    epochs = []
    for epoch in range(recipe.epochs):
        chosen = torch.randperm(n, generator=order, device=order.device)[: batches * recipe.batch_size]
        plain = epoch >= recipe.epochs - recipe.plain_epochs
        crops = as_they_are if plain else draw_crops
        epochs.append((chosen, *crops(len(chosen), recipe.padding, order)))
    parts = (torch.cat(part).view(-1, recipe.batch_size) for part in zip(*epochs, strict=True))
    chosen, top, left, mirrored = parts
    return chosen, top, left, mirrored
