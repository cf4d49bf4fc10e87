from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from small import data, flat, loader
from torch import nn
from torch.nn import functional as F

from unweave.baselines.shards import Shards, checked_ids, slice_epochs
from unweave.baselines.sisa import SISA, Ensemble, SisaConfig, sisa
from unweave.errors import ConfigError, DataError, MismatchError, StoreError

X, Y = data(60)
CONFIG = SisaConfig(shards=3, slices=4, epochs=5)


def network(seed: int = 0) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, 3)).double()


class Trainer:
    """SGD in an order of its own; depends on its arguments only, and notes them."""

    def __init__(self, fail_at: int | None = None) -> None:
        self.calls: list[tuple[bool, tuple[int, ...], int, int]] = []
        self.fail_at = fail_at

    def __call__(self, net: nn.Module | None, ids: list[int], epochs: int, seed: int) -> nn.Module:
        self.calls.append((net is None, tuple(ids), epochs, seed))
        if len(self.calls) == self.fail_at:
            raise RuntimeError("the power is out")
        net = network(seed) if net is None else net
        net.train()
        order = torch.Generator().manual_seed(seed)
        optimiser = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
        for _ in range(epochs):
            mixed = torch.tensor(ids)[torch.randperm(len(ids), generator=order)]
            optimiser.zero_grad()
            F.cross_entropy(net(X[mixed]), Y[mixed]).backward()
            optimiser.step()
        return net


def states(shards: SISA) -> list[bytes]:
    return [b"".join(v.numpy().tobytes() for v in net.state_dict().values()) for net in shards.models()]


def from_scratch(shards: Shards, number: int, seed: Any) -> bytes:
    """A shard's model trained straight through on the samples that it has now."""
    net, train = None, Trainer()
    for r, epochs in enumerate(slice_epochs(CONFIG.slices, CONFIG.epochs)):
        net = train(net, shards.seen(number, r), epochs, seed(number, r))
    assert net is not None
    return b"".join(v.numpy().tobytes() for v in net.state_dict().values())


def fitted(folder: Path, config: SisaConfig = CONFIG) -> SISA:
    shards = SISA(folder, network(), config)
    shards.fit(range(60), Trainer())
    return shards


def test_epochs_per_slice() -> None:
    assert slice_epochs(5, 20) == [6, 7, 7, 6, 7]
    assert slice_epochs(1, 20) == [20]
    for slices in range(1, 9):
        for epochs in (10, 17, 40):
            each = slice_epochs(slices, epochs)
            assert abs(sum((r + 1) / slices * e for r, e in enumerate(each)) - epochs) < slices / 2 + 1
            assert sum(each) == 2 * epochs * slices // (slices + 1)


def test_samples_are_dealt_evenly_once_and_mixed() -> None:
    dealt = Shards.deal(range(50), 4, 3, 0)
    everyone = [i for n in range(4) for i in dealt.seen(n, 2)]
    assert sorted(everyone) == list(range(50))
    sizes = [len(part.ids) for shard in dealt.shards for part in shard]
    assert max(sizes) - min(sizes) <= 1
    assert everyone != sorted(everyone)
    assert Shards.deal(range(50), 4, 3, 0) == dealt
    assert Shards.deal(range(50), 4, 3, 1) != dealt


def test_after_forgetting_every_shard_is_bit_equal_to_one_that_never_saw_the_samples(tmp_path: Path) -> None:
    shards = fitted(tmp_path)
    before = states(shards)
    slices = shards.shards.shards
    gone = [slices[0][2].ids[0], slices[2][1].ids[1], slices[2][3].ids[0]]
    trainer = Trainer()
    work = shards.forget(gone, trainer)
    after = states(shards)
    assert after == [from_scratch(shards.shards, n, shards.seed) for n in range(3)]
    assert after[1] == before[1]
    assert after[0] != before[0]
    assert after[2] != before[2]
    assert work.slices == {0: [2, 3], 2: [1, 2, 3]}
    assert len(trainer.calls) == 5
    assert not any(new for new, *_ in trainer.calls)
    assert not any(set(gone) & set(ids) for _, ids, *_ in trainer.calls)
    epochs = slice_epochs(4, 5)
    assert work.epochs == sum(epochs[2:]) + sum(epochs[1:])
    assert work.sample_epochs == sum(len(ids) * e for _, ids, e, _ in trainer.calls)


def test_a_sample_of_the_first_slice_costs_the_whole_shard_and_starts_anew(tmp_path: Path) -> None:
    shards = fitted(tmp_path)
    trainer = Trainer()
    assert shards.forget([shards.shards.shards[1][0].ids[0]], trainer).slices == {1: [0, 1, 2, 3]}
    assert [new for new, *_ in trainer.calls] == [True, False, False, False]
    assert states(shards)[1] == from_scratch(shards.shards, 1, shards.seed)


def test_requests_add_up_and_survive_the_process(tmp_path: Path) -> None:
    shards = fitted(tmp_path)
    for slice_number in (3, 1, 2):
        shards = SISA.open(tmp_path, network(9))
        assert shards.config == CONFIG
        shards.forget([shards.shards.shards[0][slice_number].ids[0]], Trainer())
    assert len(shards.shards) == 57
    assert states(shards) == [from_scratch(shards.shards, n, shards.seed) for n in range(3)]
    assert {p.name for p in tmp_path.glob("*.safetensors")} == shards.shards.files


def test_a_state_that_is_out_of_date_cannot_bring_samples_back(tmp_path: Path) -> None:
    stale = fitted(tmp_path)
    SISA.open(tmp_path, network()).forget([stale.shards.shards[0][2].ids[0]], Trainer())
    with pytest.raises(StoreError, match="changed since"):
        stale.forget([stale.shards.shards[1][2].ids[0]], Trainer())
    assert len(SISA.open(tmp_path, network()).models()) == 3


def test_a_failure_leaves_the_state_of_before(tmp_path: Path) -> None:
    shards = fitted(tmp_path)
    before, files = states(shards), sorted(p.name for p in tmp_path.iterdir())
    gone = [shards.shards.shards[0][2].ids[0], shards.shards.shards[1][2].ids[0]]
    with pytest.raises(RuntimeError, match="power"):
        shards.forget(gone, Trainer(fail_at=4))
    assert states(shards) == before
    assert sorted(p.name for p in tmp_path.iterdir()) == files
    assert states(SISA.open(tmp_path, network())) == before
    shards.forget(gone, Trainer())


def test_a_slice_and_a_shard_may_become_empty(tmp_path: Path) -> None:
    shards = fitted(tmp_path)
    slices = shards.shards.shards
    shards.forget(slices[0][0].ids, Trainer())
    assert states(shards)[0] == states(SISA.open(tmp_path, network()))[0]
    shards.forget([i for part in slices[1] for i in part.ids], Trainer())
    assert len(shards.models()) == 2
    shards.forget(shards.shards.seen(0, 3) + shards.shards.seen(2, 3), Trainer())
    with pytest.raises(DataError, match="no model"):
        shards.model()


class Fixed(nn.Module):
    def __init__(self, logits: list[list[float]]) -> None:
        super().__init__()
        self.logits = nn.Parameter(torch.tensor(logits))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.logits


def test_vote_and_mean_by_hand() -> None:
    models = [Fixed([[3.0, 0, 0]]), Fixed([[0, 0.1, 0]]), Fixed([[0, 0.1, 0]])]
    assert Ensemble(models, "vote")(torch.zeros(1)).tolist() == [[1, 2, 0]]
    mean = Ensemble(models, "mean")(torch.zeros(1))
    expected = sum(m.logits.softmax(1) for m in models) / 3
    assert torch.allclose(mean.exp(), expected)
    assert mean.argmax() == 0


def test_the_ensemble_predicts(tmp_path: Path) -> None:
    shards = fitted(tmp_path)
    votes = sum(F.one_hot(net(X).argmax(1), 3) for net in shards.models())
    assert torch.equal(shards.predict(X), votes.argmax(1))


def test_sisa_as_a_method(tmp_path: Path) -> None:
    shards = fitted(tmp_path)
    gone = [shards.shards.shards[1][3].ids[0]]
    result = sisa(
        None, loader(X[gone], Y[gone]), val=loader(X, Y), checkpoints=shards, ids=torch.tensor(gone), train=Trainer()
    )
    assert result.extras["retrained"] == {1: [3]}
    assert result.stopped == "1 of 3 shards trained again"
    assert torch.equal(flat(result.model.parameters()), flat(shards.model().parameters()))
    assert not any(module.training for module in result.model.modules())
    assert set(result.history[1]) == {"step", "forget_error", "val_error"}


def test_what_is_missing_or_wrong_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="checkpoints="):
        sisa(None, loader(X, Y))
    with pytest.raises(DataError, match="fit"):
        SISA(tmp_path, network()).forget([1], Trainer())
    with pytest.raises(StoreError, match="Cannot read"):
        SISA.open(tmp_path / "none", network())
    shards = fitted(tmp_path)
    with pytest.raises(StoreError, match="already"):
        SISA(tmp_path, network(), CONFIG).fit(range(60), Trainer())
    with pytest.raises(DataError, match="in no shard: 60"):
        shards.forget([0, 60], Trainer())
    with pytest.raises(ConfigError, match="Leave config out"):
        sisa(None, config=SisaConfig(), checkpoints=shards, ids=[1], train=Trainer())
    with pytest.raises(MismatchError, match="template"):
        SISA.open(tmp_path, nn.Linear(2, 2)).models()
    with pytest.raises(DataError, match="fewer"):
        SISA(tmp_path / "b", network(), CONFIG).fit(range(5), Trainer())
    for ids in ([], [1, 1], [1.5], [True], ["a"]):
        with pytest.raises(DataError):
            checked_ids(ids)  # type: ignore[arg-type]
    for wrong in ({"shards": 0}, {"rule": "loudest"}, {"slices": 9, "epochs": 4}):
        with pytest.raises(ConfigError):
            SisaConfig(**wrong)
    (tmp_path / "sisa.json").write_text("{}")
    with pytest.raises(StoreError, match="damaged"):
        SISA.open(tmp_path, network())
