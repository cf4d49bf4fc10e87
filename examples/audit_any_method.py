"""Audit a network that something else made forget: here the plainest method there is, gradient ascent.

The audit sees outputs only. It is given the network before and after, what was to be forgotten, and samples that nobody
was trained on, and says pass, fail or inconclusive.
"""

import copy
import tempfile
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F

from unweave.audit import Answers, Evidence, collect, document, examine, save

torch.manual_seed(0)
centres = torch.randn(5, 20)


def draw(count: int) -> tuple[torch.Tensor, torch.Tensor]:
    labels = torch.randint(5, (count,))
    return centres[labels] + 3.0 * torch.randn(count, 20), labels


def train(x: torch.Tensor, y: torch.Tensor) -> nn.Module:
    net = nn.Sequential(nn.Linear(20, 256), nn.ReLU(), nn.Linear(256, 5))
    optimiser = torch.optim.Adam(net.parameters(), lr=3e-3)
    for _ in range(200):
        optimiser.zero_grad()
        F.cross_entropy(net(x), y).backward()
        optimiser.step()
    return net.eval()


train_set, test_set = draw(1000), draw(2000)
forget_set = (train_set[0][:200], train_set[1][:200])
original = train(*train_set)

unlearned = copy.deepcopy(original)
optimiser = torch.optim.SGD(unlearned.parameters(), lr=0.05)
for _ in range(12):
    optimiser.zero_grad()
    (-F.cross_entropy(unlearned(forget_set[0]), forget_set[1])).backward()
    optimiser.step()


def answers(net: nn.Module) -> Answers:
    return Answers.of(collect(net, [forget_set]), collect(net, [test_set]))


audit = examine(Evidence(unlearned=answers(unlearned), original=answers(original)))
print(audit.summary())
for found in audit.attacks:
    after, before = found.unlearned.auc, found.original.auc
    print(f"  {found.attack.title}: AUC {before.value:.2f} -> {after.value:.2f} ({after.low:.2f} to {after.high:.2f})")

path = Path(tempfile.mkdtemp()) / "audit.json"
save(document(audit), path)
print(f"unweave report {path} -o audit.html    # makes a page of it")
