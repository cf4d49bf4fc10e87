"""The method written down plainly: what somebody who reads the paper would write in an afternoon, and no worse.

Per layer, the rows R [n, d] that the weight sees are unfolded a few samples at a time, and G += RᵀR in float64. Then a
full float64 SVD of G − G_forget, σ = √s, k the smallest number with Σ_{i≤k} σ_i ≥ γ Σ σ_i, P = U_k U_kᵀ in float32,
and projected SGD on the paper's loss: W ← W − lr · (g − g P), one kernel at a time, PyTorch's defaults for TF32. After
every epoch it looks at the forget set and at the validation set, and stops as the authors do: once the forget error
exceeds the validation error, with the nearer of the last two looks.

It takes convolutions in one group and linear layers, which is what the paper's networks are made of.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import unweave

ROW_ELEMENTS = 1 << 26
"""How many float64 numbers of rows are held at once: 512 MiB."""
Batches = Iterable[tuple[Tensor, Tensor]]


def layers_of(net: nn.Module) -> dict[str, nn.Conv2d | nn.Linear]:
    """The layers with a weight that moves, by their path."""
    return {name: module for name, module in net.named_modules() if isinstance(module, (nn.Conv2d, nn.Linear))}


def rows_of(module: Any, x: Tensor) -> Iterator[Tensor]:
    """What the weight [out, d] sees of the input, as float64 rows [n, d], a few samples at a time."""
    if isinstance(module, nn.Linear):
        yield x.reshape(-1, x.shape[-1]).double()
        return
    if module.groups != 1:
        raise ValueError(f"Invalid layer: a convolution in {module.groups} groups. Supported: one group.")
    d = module.weight[0].numel()
    places = x.shape[2] * x.shape[3]  # at most; a stride makes them fewer
    for part in x.split(max(1, ROW_ELEMENTS // (d * places))):
        columns = F.unfold(part, module.kernel_size, module.dilation, module.padding, module.stride)
        yield columns.transpose(1, 2).reshape(-1, d).double()


@contextmanager
def watched(net: nn.Module, grams: dict[str, Tensor]) -> Iterator[None]:
    """While the body runs the network, every layer's input goes into its Gram."""

    def adding(name: str) -> Any:
        def add(module: nn.Module, args: tuple[Tensor, ...]) -> None:
            for rows in rows_of(module, args[0]):
                grams[name].addmm_(rows.mT, rows)

        return add

    hooks = [module.register_forward_pre_hook(adding(name)) for name, module in layers_of(net).items()]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


@torch.no_grad()
def plain_grams(net: nn.Module, batches: Batches) -> dict[str, Tensor]:
    """G [d, d] in float64 for each layer, on the network's device; the network is in eval mode."""
    grams = {
        name: torch.zeros(2 * (module.weight[0].numel(),), dtype=torch.float64, device=module.weight.device)
        for name, module in layers_of(net).items()
    }
    net.eval()
    with watched(net, grams):
        for x, _ in batches:
            net(x)
    return grams


def plain_projector(gram: Tensor, gamma: float) -> Tensor:
    """P = U_k U_kᵀ, [d, d] in float64, by a full SVD; to be removed from gradients [out, d]."""
    vectors, values, _ = torch.linalg.svd(gram)
    sigma = values.sqrt()
    k = int((sigma.cumsum(0) < gamma * sigma.sum()).sum()) + 1
    core: Tensor = vectors[:, :k]
    return core @ core.mT


@dataclass(frozen=True)
class PlainResult:
    """The network, the Grams for the next request, and how it went; errors in percent, one entry an epoch."""

    model: nn.Module
    grams: dict[str, Tensor]
    history: list[dict[str, float]]
    stopped: str


def plain_forget(
    net: nn.Module,
    forget: Batches,
    grams: dict[str, Tensor],
    val: Batches,
    config: unweave.ForgetConfig,
) -> PlainResult:
    """One request: γ, λ, ε, the learning rates and the number of epochs are those of ``config``."""
    forget, val = list(forget), list(val)
    given = plain_grams(net, forget)
    retained = {name: grams[name].to(given[name].device) - given[name] for name in grams}
    projectors = {name: plain_projector(gram, _gamma(config, name)).float() for name, gram in retained.items()}
    model = copy.deepcopy(net).eval()
    weights = {name: module.weight for name, module in layers_of(model).items()}
    x, y = torch.cat([x for x, _ in forget]), torch.cat([y for _, y in forget])
    batches = list(zip(x.split(config.batch_size), y.split(config.batch_size), strict=True))
    lr, decay = config.lr or 0.05, ((config.lr_end or config.lr or 0.05) / (config.lr or 0.05)) ** (1 / config.epochs)
    history = [{"forget_error": _error(model, forget), "val_error": _error(model, val)}]
    before = copy.deepcopy(model.state_dict())
    stopped = f"all {config.epochs} epochs were run"
    for _ in range(config.epochs):
        _epoch(model, weights, batches, projectors, lr, config)
        lr *= decay
        history.append({"forget_error": _error(model, forget), "val_error": _error(model, val)})
        if _gap(history[-1]) > 0 and config.stop != "epochs":
            stopped = f"the forget error passed the validation error at epoch {len(history) - 1}"
            if abs(_gap(history[-2])) < abs(_gap(history[-1])):
                model.load_state_dict(before)
            break
        before = copy.deepcopy(model.state_dict())
    return PlainResult(model, retained, history, stopped)


def _gamma(config: unweave.ForgetConfig, name: str) -> float:
    gamma = config.gamma
    return float(gamma) if isinstance(gamma, (int, float)) else gamma.get(name, gamma.get("default", 0.9))


def _epoch(
    model: nn.Module,
    weights: Mapping[str, Tensor],
    batches: list[tuple[Tensor, Tensor]],
    projectors: dict[str, Tensor],
    lr: float,
    config: unweave.ForgetConfig,
) -> None:
    for x, y in batches:
        p = model(x).softmax(1)
        away = -torch.log(1 - p.gather(1, y[:, None]).squeeze(1) + config.eps).mean()
        spread = -(p * torch.log(p + 1e-15)).sum(1).mean()
        gradients = torch.autograd.grad(away - config.lam * spread, list(weights.values()))
        with torch.no_grad():
            for (name, weight), gradient in zip(weights.items(), gradients, strict=True):
                matrix = gradient.flatten(1)
                weight -= lr * (matrix - matrix @ projectors[name]).view_as(weight)


@torch.no_grad()
def _error(model: nn.Module, batches: list[tuple[Tensor, Tensor]]) -> float:
    wrong = torch.stack([(model(x).argmax(1) != y).sum() for x, y in batches]).sum()
    return 100 * float(wrong) / sum(len(y) for _, y in batches)


def _gap(look: dict[str, float]) -> float:
    return look["forget_error"] - look["val_error"]
