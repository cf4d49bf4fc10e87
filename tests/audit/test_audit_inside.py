"""Looking inside: what outputs do not show, where the networks are at hand."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from unweave.audit.inside import look_inside

Batch = list[tuple[Tensor, Tensor]]


def data(count: int, seed: int) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(count) % 3
    return [(torch.randn(count, 6, generator=generator) + 0.5 * labels[:, None], labels)]


def network(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))


def test_features_are_probed_and_the_samples_learnt_again() -> None:
    nets = {name: network(seed) for seed, name in enumerate(("original", "unlearned", "retrained"))}
    before = {name: [p.clone() for p in net.parameters()] for name, net in nets.items()}
    found = look_inside(nets, data(60, 0), data(90, 1))
    assert [attack.attack.name for attack in found.attacks] == ["probe"]
    assert not found.attacks[0].judged
    assert found.attacks[0].retrained is not None
    assert [distance.name for distance in found.distances] == ["relearn"]
    assert found.left_out == []
    for name, net in nets.items():
        assert all(torch.equal(a, b) for a, b in zip(before[name], net.parameters(), strict=True))


def test_what_cannot_be_looked_at_is_said() -> None:
    class Flat(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(6, 3))

        def forward(self, x: Tensor) -> Tensor:
            return x @ self.weight

    found = look_inside({"original": Flat(), "unlearned": Flat()}, data(60, 0), data(90, 1))
    assert found.attacks == found.distances == []
    assert len(found.left_out) == 2
    assert "probed" in found.left_out[0]
