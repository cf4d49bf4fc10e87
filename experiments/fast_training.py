"""Train one of the paper's networks quickly: the same data and augmentation, a shorter schedule, one captured step.

The authors' recipe takes 100 epochs of 256 images at a falling learning rate; this one takes a one-cycle learning rate
and batches of 512. On a GPU the whole step (bfloat16 forward, backward, update) is captured once as a CUDA graph and
replayed, and an epoch is augmented at once, so that the host has next to nothing to do.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from experiments.data import Labelled
from experiments.training import augment


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
    """A trained network in eval mode; the same seed gives the same first weights, batches and augmentation."""
    device = data.x.device
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        net = build().to(device, memory_format=torch.channels_last).train()  # type: ignore[call-overload]
    order = torch.Generator(device).manual_seed(seed)
    batches = len(data) // batch_size
    step = _Step(net, lr, weight_decay, data.x[:batch_size], data.y[:batch_size])
    done, total = 0, epochs * batches
    for _ in range(epochs):
        chosen = torch.randperm(len(data), generator=order, device=device)[: batches * batch_size]
        x, y = augment(data.x[chosen], padding, order), data.y[chosen]
        for i in range(0, len(chosen), batch_size):
            step(x[i : i + batch_size], y[i : i + batch_size], lr * one_cycle(done / total))
            done += 1
    return net.eval()


def one_cycle(part: float, rise: float = 0.25) -> float:
    """A learning rate that rises in a straight line and then falls in one; ``part`` of the way is done."""
    return part / rise if part < rise else (1 - part) / (1 - rise)


class _Step:
    """One step of SGD, as a CUDA graph where there is a GPU."""

    def __init__(self, net: nn.Module, lr: float, weight_decay: float, x: Tensor, y: Tensor) -> None:
        self.net, self.cuda = net, x.is_cuda
        self.x, self.y = x.clone(memory_format=torch.channels_last), y.clone()
        rate: float | Tensor = torch.tensor(lr, device=x.device) if self.cuda else lr
        self.optimiser = torch.optim.SGD(
            net.parameters(), rate, momentum=0.9, nesterov=True, weight_decay=weight_decay, fused=self.cuda
        )
        self.graph: torch.cuda.CUDAGraph | None = self._capture() if self.cuda else None

    def __call__(self, x: Tensor, y: Tensor, lr: float) -> None:
        self.x.copy_(x)
        self.y.copy_(y)
        for group in self.optimiser.param_groups:
            if self.cuda:
                group["lr"].fill_(lr)
            else:
                group["lr"] = lr
        if self.graph is None:
            self._run()
        else:
            self.graph.replay()

    def _run(self) -> None:
        self.optimiser.zero_grad(set_to_none=True)
        with torch.autocast(self.x.device.type, torch.bfloat16, enabled=self.cuda, cache_enabled=False):
            loss = F.cross_entropy(self.net(self.x), self.y)
        loss.backward()
        self.optimiser.step()

    def _capture(self) -> torch.cuda.CUDAGraph:
        """Run a few steps so that every kernel is chosen and every buffer there, take them back, and record one."""
        first = {name: value.clone() for name, value in self.net.state_dict().items()}
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):
                self._run()
        torch.cuda.current_stream().wait_stream(stream)
        self.optimiser.zero_grad(set_to_none=True)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self._run()
        self.net.load_state_dict(first)
        for state in self.optimiser.state.values():
            state["momentum_buffer"].zero_()
        return graph
