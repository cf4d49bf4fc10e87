"""What several test files need: small models, small data, and a way to compare."""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from unweave.fitting.sums import GramSum
from unweave.fitting.taps import Sink, tapped
from unweave.grams import LayerGrams, LayerInfo, Origin
from unweave.layers import find_layers
from unweave.reading.rest import at_rest

# unweave.fit is the function; the module of that name is only to be had like this.
fit_module = importlib.import_module("unweave.fit")

Batches = list[tuple[Any, Tensor]]


def gap(here: Tensor, there: Tensor) -> float:
    """The largest difference, relative to the largest value."""
    assert here.shape == there.shape, (here.shape, there.shape)
    scale = there.abs().max().item() if there.numel() else 0.0
    return (here - there).abs().max().item() / max(scale, 1e-300) if there.numel() else 0.0


def gram_of_rows(rows: Tensor) -> Tensor:
    """Σ r rᵀ by an explicit loop, [groups, d, d] from rows [groups, n, d]."""
    gram = torch.zeros(rows.shape[0], rows.shape[2], rows.shape[2], dtype=torch.float64)
    for group, own in enumerate(rows.double()):
        for row in own:
            gram[group] += torch.outer(row, row)
    return gram


def sums_of(module: nn.Module, *calls: Any, layers: Any = None) -> dict[str, Any]:
    """The GramSums of a bare module after some calls, each a tuple of arguments or a dict of keyword arguments."""
    found = find_layers(module, layers)
    sums = {name: GramSum(layer) for name, layer in found.items()}
    sinks = {owner: Sink(sums[layer.name]) for layer in found.values() for owner in layer.owners}
    with at_rest(module), tapped(module, sinks):
        for call in calls:
            module(**call) if isinstance(call, dict) else module(*call)
    return sums


def layer_grams(module: nn.Module, *calls: Any, layers: Any = None) -> dict[str, Tensor]:
    """Per layer the Gram [groups, d, d] of a bare module after some calls."""
    return {name: total.result() for name, total in sums_of(module, *calls, layers=layers).items()}


def in_batches(inputs: Any, labels: Tensor, size: int) -> Batches:
    """Split samples into a list of batches."""
    pieces = range(0, len(labels), size)
    return [(_cut(inputs, slice(i, i + size)), labels[i : i + size]) for i in pieces]


def _cut(inputs: Any, where: slice) -> Any:
    if isinstance(inputs, Tensor):
        return inputs[where]
    if isinstance(inputs, dict):
        return {key: _cut(value, where) for key, value in inputs.items()}
    return tuple(_cut(value, where) for value in inputs)


def images(count: int, classes: int = 3, side: int = 5, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Random images [count, 2, side, side] in float64, and labels that go through all classes."""
    noise = torch.randn(count, 2, side, side, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    return noise, torch.arange(count) % classes


def small_cnn(seed: int = 0) -> nn.Module:
    """Two convolutions with batch norm and dropout, and a linear head; float64, in train mode."""
    torch.manual_seed(seed)
    net = nn.Sequential(
        nn.Conv2d(2, 6, 3, padding=1, bias=False),
        nn.BatchNorm2d(6),
        nn.ReLU(),
        nn.Conv2d(6, 8, 3, stride=2, padding=1, groups=2),
        nn.ReLU(),
        nn.Dropout(0.5),
        nn.Flatten(),
        nn.Linear(72, 3),
    ).double()
    with torch.no_grad():
        net[1].running_mean.uniform_(-0.5, 0.5)
        net[1].running_var.uniform_(0.5, 2.0)
    return net


class TokenClassifier(nn.Module):
    """Embedding, transformer encoder, mean over tokens, linear head."""

    def __init__(self, width: int = 16, layers: int = 1, tokens: int = 11, classes: int = 3) -> None:
        super().__init__()
        self.embed = nn.Embedding(tokens, width)
        block = nn.TransformerEncoderLayer(width, 2, dim_feedforward=2 * width, batch_first=True)
        self.encoder = nn.TransformerEncoder(block, layers)
        self.head = nn.Linear(width, classes)

    def forward(self, ids: Tensor, src_key_padding_mask: Tensor | None = None) -> Tensor:
        return self.head(self.encoder(self.embed(ids), src_key_padding_mask=src_key_padding_mask).mean(1))


def token_classifier(seed: int = 0, **sizes: int) -> TokenClassifier:
    torch.manual_seed(seed)
    return TokenClassifier(**sizes).double()


def sentences(count: int, length: int = 4, tokens: int = 11, classes: int = 3, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Random token ids [count, length], and labels that go through all classes."""
    ids = torch.randint(tokens, (count, length), generator=torch.Generator().manual_seed(seed))
    return ids, torch.arange(count) % classes


def grams_from(named: dict[str, Tensor], *, samples: int = 10, rows: int = 10, **origin: Any) -> LayerGrams:
    """Grams made by hand: tensors [d, d] or [groups, d, d], each for a weight with two outputs a group."""
    grouped = {name: gram if gram.dim() == 3 else gram[None] for name, gram in named.items()}
    layers = {
        name: LayerInfo("Linear", "out-first", gram.shape[0], gram.shape[1], (2 * gram.shape[0], gram.shape[1]), rows)
        for name, gram in grouped.items()
    }
    about = {"model": "0" * 64, "dtype": "float64", "samples": samples} | origin
    return LayerGrams(grouped, layers, Origin(**about))


def spectrum_gram(sigma: Iterable[float], seed: int = 0) -> Tensor:
    """A symmetric [d, d] with eigenvalues σ², in a random orthonormal basis."""
    values = torch.tensor(list(sigma), dtype=torch.float64)
    generator = torch.Generator().manual_seed(seed)
    basis, _ = torch.linalg.qr(torch.randn(len(values), len(values), dtype=torch.float64, generator=generator))
    gram = (basis * values.sign() * values**2) @ basis.mT
    return (gram + gram.mT) / 2


def state_of(net: nn.Module) -> dict[str, Any]:
    """Everything about a model that a call could disturb, comparable with ==."""
    tensors = {**dict(net.named_parameters()), **dict(net.named_buffers())}
    return {
        "bytes": {name: value.detach().numpy().tobytes() for name, value in tensors.items()},
        "objects": {name: id(value) for name, value in tensors.items()},
        "training": {name: module.training for name, module in net.named_modules()},
        "hooks": {
            name: (len(m._forward_hooks), len(m._forward_pre_hooks), len(m._forward_pre_hooks_with_kwargs))
            for name, m in net.named_modules()
        },
        "gradients": {n: None if p.grad is None else p.grad.numpy().tobytes() for n, p in net.named_parameters()},
        "requires_grad": {n: p.requires_grad for n, p in net.named_parameters()},
        "attributes": {name: sorted(vars(module)) for name, module in net.named_modules()},
    }
