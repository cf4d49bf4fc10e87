"""References: every training sample is OUT of one of two models, for ever after."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file
from torch import nn
from torch.utils.data import Subset, TensorDataset

from unweave.audit.outputs import collect
from unweave.audit.references import References, split_in_halves, train_references
from unweave.errors import ConfigError, DataError, ModelError, StoreError

X, Y = torch.randn(41, 6, generator=torch.Generator().manual_seed(0)), torch.arange(41) % 3
SAMPLES, HELD_OUT = TensorDataset(X, Y), TensorDataset(X[:9] + 1, Y[:9])


class Trainer:
    """Remembers what each model was trained on."""

    def __init__(self) -> None:
        self.seen: list[list[int]] = []
        self.models: list[nn.Module] = []

    def __call__(self, subset: Subset) -> nn.Module:
        self.seen.append(list(subset.indices))
        torch.manual_seed(len(self.seen))
        self.models.append(nn.Linear(6, 3).train())
        return self.models[-1]


@pytest.fixture
def references() -> References:
    return train_references(Trainer(), SAMPLES, held_out=HELD_OUT, labels=Y)


def test_two_models_on_complementary_halves() -> None:
    trainer = Trainer()
    found = train_references(trainer, SAMPLES, held_out=HELD_OUT, labels=Y, batch_size=10)
    assert len(found) == 2
    assert sorted(trainer.seen[0] + trainer.seen[1]) == list(range(41))
    assert (found.out.sum(0) == 1).all()
    for k, seen in enumerate(trainer.seen):
        assert (np.flatnonzero(~found.out[k]) == seen).all()
        outputs = collect(trainer.models[k], [(X, Y)])
        assert np.allclose(found.logits[k], outputs.logits, atol=1e-6)
        assert trainer.models[k].training
    assert found.held_out is not None
    assert found.held_out.shape == (2, 9, 3)
    assert found.logits.dtype == found.held_out.dtype == np.float32


def test_halves_are_balanced_in_each_class() -> None:
    out = split_in_halves(41, labels=Y.numpy(), count=4, seed=3)
    for mask in out:
        counts = np.bincount(Y[torch.from_numpy(mask)], minlength=3)
        assert (np.abs(counts - np.bincount(Y) / 2) <= 1).all()
    assert (out.sum(0) == 2).all()
    assert (out[1] == ~out[0]).all()
    assert (out[0] != out[2]).any()
    assert (split_in_halves(41, seed=3)[0] != split_in_halves(41, seed=4)[0]).any()


def test_a_request_gets_its_own_samples(references: References) -> None:
    ensemble, out = references.of([5, 0, 40])
    assert np.allclose(ensemble.logits, references.logits[:, [5, 0, 40]])
    assert (ensemble.labels == Y.numpy()[[5, 0, 40]]).all()
    assert (out.sum(0) == 1).all()
    held_out = references.on_held_out()
    assert held_out is not None
    assert held_out.samples == 9
    assert train_references(Trainer(), SAMPLES).on_held_out() is None


@pytest.mark.parametrize("indices", [[], [41], [-1], [0.5], [[1]]])
def test_positions_outside_the_training_set(references: References, indices: list) -> None:
    with pytest.raises(DataError, match="Invalid indices"):
        references.of(indices)


def test_the_round_trip(references: References, tmp_path: Path) -> None:
    for kept in (references, train_references(Trainer(), SAMPLES)):
        kept.save(tmp_path / "references.safetensors")
        again = References.load(tmp_path / "references.safetensors")
        for name, value in vars(kept).items():
            assert np.array_equal(getattr(again, name), value) if value is not None else getattr(again, name) is None
        assert [p.name for p in tmp_path.iterdir()] == ["references.safetensors"]


def test_an_altered_file_is_refused(references: References, tmp_path: Path) -> None:
    path = tmp_path / "references.safetensors"
    references.save(path)
    blob = path.read_bytes()
    for position in (len(blob) - 1, len(blob) // 2, len(blob) - 60):
        path.write_bytes(blob[:position] + bytes([blob[position] ^ 1]) + blob[position + 1 :])
        with pytest.raises(StoreError, match=r"altered|damaged"):
            References.load(path)
    path.write_bytes(blob[:-5])
    with pytest.raises(StoreError, match="damaged"):
        References.load(path)


def test_files_of_another_kind_are_refused(references: References, tmp_path: Path) -> None:
    path = tmp_path / "references.safetensors"
    with pytest.raises(StoreError, match="Cannot read"):
        References.load(path)
    path.write_bytes(b"")
    with pytest.raises(StoreError, match="damaged"):
        References.load(path)
    references.save(path)
    arrays = load_file(path)
    for header, words in (({}, "something else"), ({"format": "unweave.references", "version": "9"}, "version 9")):
        save_file(arrays, path, metadata=header)
        with pytest.raises(StoreError, match=words):
            References.load(path)
    with pytest.raises(StoreError, match="Cannot write"):
        references.save(tmp_path / "nowhere" / "references.safetensors")


def test_augmented_samples_are_shown_plain() -> None:
    plain = TensorDataset(X + 5, Y)
    trainer = Trainer()
    found = train_references(trainer, SAMPLES, plain=plain)
    assert np.allclose(found.logits[0], collect(trainer.models[0], [(X + 5, Y)]).logits, atol=1e-5)
    with pytest.raises(DataError, match="plain has 9"):
        train_references(trainer, SAMPLES, plain=HELD_OUT)


def test_bad_settings_are_refused() -> None:
    for count in (0, 1, 3):
        with pytest.raises(ConfigError, match="Invalid count"):
            train_references(Trainer(), SAMPLES, count=count)
    with pytest.raises(DataError, match="halve"):
        train_references(Trainer(), SAMPLES, labels=Y[:5])
    with pytest.raises(DataError, match="halve"):
        train_references(Trainer(), TensorDataset(X[:1], Y[:1]))
    with pytest.raises(DataError, match="order of the samples"):
        train_references(Trainer(), SAMPLES, labels=Y.flip(0))
    with pytest.raises(ModelError, match="NoneType"):
        train_references(lambda subset: None, SAMPLES)  # type: ignore[arg-type, return-value]


@pytest.mark.parametrize(
    "change, words",
    [
        ({"out": np.zeros((2, 41), dtype=bool)}, "every model was trained on"),
        ({"out": np.ones((2, 40), dtype=bool)}, "shapes"),
        ({"labels": np.zeros(40, dtype=np.int64)}, "shapes"),
        ({"held_out_labels": None}, "go together"),
        ({"held_out": np.zeros((3, 9, 3), dtype=np.float32)}, "other models or classes"),
    ],
)
def test_references_that_do_not_fit_together(references: References, change: dict, words: str) -> None:
    with pytest.raises(DataError, match=words):
        References(**(vars(references) | change))
