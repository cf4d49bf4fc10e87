"""Several networks trained at once on one GPU: each on a stream of its own, as one grouped network, or under vmap.

The experiments' way is streams (:func:`experiments.training.fast.train_many`). The other two make one module of all
networks, so that a step is one forward and one backward pass. Every network sees a batch of its own: images come as
[N·B, C, H, W], the first B for the first network, and logits go back as [N·B, classes]. Both are trained by the same
compiled and captured step as a single network. It takes the mean over all N·B, so that a step is an N-th as long, which
takes as many seconds; these networks are for timing alone.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state, vmap

from experiments.data import Labelled
from experiments.training.fast import Learning, train_end, train_many
from experiments.training.recipes import Recipe
from unweave.errors import ConfigError

TOGETHER = 4
"""Networks, as many as ``unweave reproduce`` trains at once by default."""


class Vmapped(nn.Module):
    """Networks of one kind as one, by ``torch.func.vmap`` over their stacked weights and buffers."""

    def __init__(self, nets: Sequence[nn.Module]) -> None:
        super().__init__()
        weights, buffers = stack_module_state(list(nets))
        self.names = list(weights), list(buffers)
        self.weights = nn.ParameterList(weights.values())
        for i, value in enumerate(buffers.values()):
            self.register_buffer(f"buffer{i}", value)
        self.count, self.kind = len(nets), (copy.deepcopy(nets[0]),)  # a tuple: its weights are none of ours

    def train(self, mode: bool = True) -> Vmapped:
        """The network that is called with all the weights is none of the modules here, and has to be told."""
        self.kind[0].train(mode)
        return super().train(mode)

    def forward(self, x: Tensor) -> Tensor:
        weights = dict(zip(self.names[0], self.weights, strict=True))
        buffers = {name: self.get_buffer(f"buffer{i}") for i, name in enumerate(self.names[1])}

        def one(weights: dict[str, Tensor], buffers: dict[str, Tensor], x: Tensor) -> Tensor:
            logits: Tensor = functional_call(self.kind[0], (weights, buffers), (x,))
            return logits

        logits: Tensor = vmap(one, randomness="different")(weights, buffers, x.unflatten(0, (self.count, -1)))
        return logits.flatten(0, 1)


class Linears(nn.Module):
    """Linear layers beside each other: [B, N·in] to [B, N·out]."""

    def __init__(self, layers: Sequence[nn.Linear]) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.stack([layer.weight.detach() for layer in layers]))
        self.bias = nn.Parameter(torch.cat([layer.bias.detach() for layer in layers]))

    def forward(self, x: Tensor) -> Tensor:
        products = torch.einsum("bni,noi->bno", x.unflatten(1, (len(self.weight), -1)), self.weight)
        out: Tensor = products.flatten(1) + self.bias
        return out


class Grouped(nn.Module):
    """Networks of one kind as one, with grouped convolutions; their channels stand beside each other."""

    def __init__(self, nets: Sequence[nn.Module]) -> None:
        super().__init__()
        self.count = len(nets)
        self.net = _beside(nets).to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def forward(self, x: Tensor) -> Tensor:
        beside = x.unflatten(0, (self.count, -1)).transpose(0, 1).flatten(1, 2)
        logits: Tensor = self.net(beside.contiguous(memory_format=torch.channels_last))
        apart: Tensor = logits.unflatten(1, (self.count, -1)).transpose(0, 1)
        return apart.flatten(0, 1)


def _beside(nets: Sequence[nn.Module]) -> nn.Module:
    """One module for several of the same kind.

    Raises:
        ConfigError: there is no grouped form of such a module.
    """
    first, n = nets[0], len(nets)
    if isinstance(first, nn.Sequential):
        return nn.Sequential(*(_beside(layers) for layers in zip(*map(nn.Module.children, nets), strict=True)))
    if isinstance(first, nn.Linear):
        return Linears(nets)  # type: ignore[arg-type]
    if not first.state_dict():
        return copy.deepcopy(first)
    made: nn.Module
    if isinstance(first, nn.Conv2d) and first.groups == 1:
        about = first.kernel_size, first.stride, first.padding, first.dilation, n, first.bias is not None
        made = nn.Conv2d(n * first.in_channels, n * first.out_channels, *about)  # type: ignore[arg-type]
    elif isinstance(first, (nn.BatchNorm1d, nn.BatchNorm2d)):
        made = type(first)(n * first.num_features, first.eps, first.momentum)
    else:
        raise ConfigError(
            f"Invalid network: {type(first).__name__} has no grouped form. Supported: AllCNN and the like."
        )
    states = [net.state_dict() for net in nets]
    joined = {k: torch.cat([s[k] for s in states]) if v.ndim else v for k, v in states[0].items()}
    made.load_state_dict(joined)
    return made.to(next(first.parameters())).train(first.training)


Train = Callable[[Recipe, Labelled, int], object]


def streamed(recipe: Recipe, data: Labelled, seed: int) -> None:
    """Each on a stream of its own, as the experiments do."""
    train_many(recipe, data, range(seed, seed + TOGETHER))


def as_one(kind: Callable[[Sequence[nn.Module]], nn.Module]) -> Train:
    """All in one module, through as many batches each; an epoch of the plan is an N-th of one of each network."""

    def train(recipe: Recipe, data: Labelled, seed: int) -> None:
        nets = [recipe.build() for _ in range(TOGETHER)]
        net = kind(nets).to(data.x.device)
        whole = replace(recipe.lasting(TOGETHER * recipe.epochs), batch_size=TOGETHER * recipe.batch_size)
        train_end(whole, Learning(net, list(net.parameters())), data, seed)

    return train


WAYS: dict[str, Train] = {"streams": streamed, "grouped": as_one(Grouped), "vmapped": as_one(Vmapped)}
