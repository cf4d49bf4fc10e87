from __future__ import annotations

import subprocess
import sys
import warnings
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy
import problems
import pytest
import torch
from helpers import (
    fit_module,
    gap,
    images,
    in_batches,
    sentences,
    small_cnn,
    state_of,
    token_classifier,
)
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

import unweave
from unweave.behaviour.outcomes import LEVELS
from unweave.errors import ConfigError, DataError, LayerError, MismatchError, ModelError
from unweave.fitting import twins
from unweave.fitting.steady import require_same_outputs
from unweave.fitting.sums import GramSum
from unweave.reading.batches import Doubts

EXACT = 1e-10


# -------------------------------------------------------------------------------------------- the model stays as it was


def lived_in_cnn() -> nn.Module:
    """A CNN in the middle of its life: mixed train flags, a gradient, a frozen weight, a hook of the user's."""
    net = small_cnn().train()
    net[1].eval()
    net(images(4)[0]).sum().backward()
    net[0].weight.requires_grad_(False)
    net[3].register_forward_hook(lambda module, args, output: None)
    return net


@pytest.mark.parametrize("val", [None, in_batches(*images(5, seed=9), 2)])
def test_fit_leaves_the_model_bit_for_bit_as_it_was(val: Any) -> None:
    net = lived_in_cnn()
    before = state_of(net)
    unweave.fit(net, in_batches(*images(7), 3), val=val)
    assert state_of(net) == before
    assert torch.is_grad_enabled()


def test_an_error_in_the_middle_of_the_data_leaves_the_model_as_it_was() -> None:
    def breaks_off() -> Iterator[Any]:
        yield from in_batches(*images(6), 3)
        raise RuntimeError("the disk is gone")

    net = lived_in_cnn()
    before = state_of(net)
    with pytest.raises(RuntimeError, match="the disk is gone"):
        unweave.fit(net, breaks_off())
    assert state_of(net) == before
    assert torch.is_grad_enabled()
    assert torch.backends.mha.get_fastpath_enabled()


class Counting(nn.Module):
    """Keeps a buffer that it replaces, an attribute, and an embedding that renormalises itself."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 4, max_norm=0.1)
        self.head = nn.Linear(4, 3)
        self.register_buffer("calls", torch.zeros(1))
        self.longest = 0

    def forward(self, ids: Tensor) -> Tensor:
        self.calls = self.calls + 1
        self.longest = max(self.longest, ids.shape[1])
        self.last = self.embed(ids)
        return self.head(self.last.mean(1))


def test_what_a_forward_pass_changes_about_the_model_is_put_back() -> None:
    net = Counting()
    before = state_of(net)
    unweave.fit(net, in_batches(*sentences(6), 2), layers=["head"])
    assert state_of(net) == before
    assert net.longest == 0


def test_the_random_state_is_left_alone() -> None:
    before = torch.get_rng_state()
    unweave.fit(small_cnn(), in_batches(*images(6), 3))
    after_building = torch.get_rng_state()
    torch.set_rng_state(before)
    small_cnn()
    assert torch.equal(torch.get_rng_state(), after_building)


PRECISION_PROGRAM = """
import os, sys, torch
from unweave.reading.rest import at_rest

backends = torch.backends
switches = [backends.cuda.matmul, backends.cudnn.conv, backends.cudnn.rnn, backends.mkldnn.matmul, backends.mkldnn.conv]

def readable(read):
    try:
        return read()
    except RuntimeError:
        return "unreadable"

def old_switches():
    reads = (lambda: backends.cuda.matmul.allow_tf32, lambda: backends.cudnn.allow_tf32)
    return [readable(read) for read in (*reads, torch.get_float32_matmul_precision)]

torch.compiler.set_stance("default")  # imports what every child needs
for setting in sys.argv[1:]:
    if os.fork() == 0:
        exec(setting)
        before = [switch.fp32_precision for switch in switches], old_switches()
        with at_rest(torch.nn.Linear(2, 2)):
            assert {switch.fp32_precision for switch in switches} == {"ieee"}, setting
            assert True not in old_switches(), setting
        assert ([switch.fp32_precision for switch in switches], old_switches()) == before, setting
        print("right", flush=True)
        os._exit(0)
    os.wait()
"""


def test_precision_is_full_inside_and_as_before_outside() -> None:
    """In processes of their own: PyTorch has an old and a new set of switches, and mixing them raises for good."""
    settings = [
        "pass",
        "torch.backends.fp32_precision = 'tf32'",
        "torch.backends.cuda.matmul.fp32_precision = 'tf32'",
        "torch.backends.cudnn.fp32_precision = 'ieee'",
        "torch.set_float32_matmul_precision('medium')",
        "torch.backends.cuda.matmul.allow_tf32 = True",
    ]
    done = subprocess.run([sys.executable, "-c", PRECISION_PROGRAM, *settings], capture_output=True, text=True)
    assert done.stdout.split() == ["right"] * len(settings), done.stderr


# ------------------------------------------------------------------------------------------------------------- the sums


def assert_same_grams(here: unweave.LayerGrams, there: unweave.LayerGrams, tolerance: float = EXACT) -> None:
    assert here.names == there.names
    assert here.layers == there.layers
    assert here.samples == there.samples
    for name in here:
        assert gap(here[name], there[name]) < tolerance, name


@pytest.mark.parametrize("net, data", [(small_cnn(), images(12)), (token_classifier(), sentences(12))])
def test_full_minus_forget_is_retain(net: nn.Module, data: tuple[Tensor, Tensor]) -> None:
    inputs, labels = data
    full = unweave.fit(net, in_batches(inputs, labels, 12))
    forget = unweave.fit(net, in_batches(inputs[:5], labels[:5], 2))
    retain = unweave.fit(net, in_batches(inputs[5:], labels[5:], 3))
    assert_same_grams(full - forget, retain)
    assert_same_grams(retain + forget, full)


@pytest.mark.parametrize("net, data", [(small_cnn(), images(9)), (token_classifier(), sentences(9))])
@pytest.mark.parametrize("size", [1, 2, 4])
def test_the_batch_size_does_not_matter(net: nn.Module, data: tuple[Tensor, Tensor], size: int) -> None:
    assert_same_grams(unweave.fit(net, in_batches(*data, size)), unweave.fit(net, in_batches(*data, 9)))


def test_a_float32_model_can_subtract_a_forget_set_in_other_batches() -> None:
    """The tolerance of the subtraction has to swallow the rounding of a float32 forward pass."""
    net, (x, labels) = small_cnn().float(), images(40)
    full = unweave.fit(net, in_batches(x.float(), labels, 32))
    retain = full - unweave.fit(net, in_batches(x[:7].float(), labels[:7], 3))
    assert_same_grams(retain, unweave.fit(net, in_batches(x[7:].float(), labels[7:], 5)), 1e-5)


class Positional(nn.Module):
    """Embeds positions that no sample brings along, as most text models do; with or without an axis for the batch."""

    def __init__(self, leading: tuple[int, ...]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words, self.places, self.head = nn.Embedding(11, 8), nn.Embedding(4, 8), nn.Linear(8, 3)
        self.leading = leading
        self.double()

    def forward(self, ids: Tensor) -> Tensor:
        positions = torch.arange(ids.shape[1]).reshape(*self.leading, -1)
        return self.head((self.words(ids) + self.places(positions)).mean(1))


@pytest.mark.parametrize("leading", [(), (1,)])
@pytest.mark.parametrize("size", [1, 2, 4, 12])
def test_rows_that_no_sample_brings_along_count_once_for_every_sample(leading: tuple[int, ...], size: int) -> None:
    """Also where the batch happens to be as large as the number of positions, 4."""
    net, (ids, labels) = Positional(leading), sentences(12)
    grams = unweave.fit(net, in_batches(ids, labels, size))
    assert grams["places"].flatten().tolist() == pytest.approx([12.0] * 4)
    assert grams.layers["places"].rows == 12 * 4
    retained = grams - unweave.fit(net, in_batches(ids[:10], labels[:10], 3))
    assert retained["places"].flatten().tolist() == pytest.approx([2.0] * 4)


def test_a_layer_that_sees_rows_of_samples_and_of_batches_is_refused_by_name() -> None:
    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.table = nn.Linear(3, 3), torch.ones(1, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.inner(x) + self.inner(self.table)

    with pytest.raises(LayerError, match=r"'inner' sees 3 rows with two copies .* and 5 with four.*layers="):
        unweave.fit(Mixed(), in_batches(torch.randn(4, 3), torch.tensor([0, 1, 0, 1]), 2))


def test_a_batch_of_one_is_a_batch() -> None:
    grams = unweave.fit(small_cnn(), in_batches(*images(3), 2))  # the last batch holds one sample
    assert grams.samples == 3


def test_the_rows_held_at_once_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    net, data = small_cnn(), images(30)
    expected = unweave.fit(net, in_batches(*data, 30))
    sizes: list[int] = []

    class Recording(GramSum):
        def add(self, rows: Any, times: int = 1) -> None:
            rows = [rows] if isinstance(rows, Tensor) else rows
            super().add((self._noted(chunk) for chunk in rows), times)

        def _noted(self, chunk: Tensor) -> Tensor:
            sizes.append(chunk.numel())
            return chunk

    monkeypatch.setattr(fit_module, "GramSum", Recording)
    monkeypatch.setattr(unweave.arithmetic.patches, "PATCH_ELEMENTS", {"cpu": 2000})
    assert_same_grams(unweave.fit(net, in_batches(*data, 30)), expected)
    assert max(sizes) <= max(2000, 30 * 72)  # the head's own input is there anyway
    assert len(sizes) > 10


def test_the_float64_copies_held_at_once_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    net, x = nn.Linear(6, 3), torch.randn(50, 6)
    copies: list[int] = []
    convert = Tensor.to

    def noting(self: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        result = convert(self, *args, **kwargs)
        copies.append(result.numel() if result.dtype == torch.float64 and result.dim() == 3 else 0)
        return result

    monkeypatch.setattr("unweave.arithmetic.products.ROW_ELEMENTS", {"cpu": 60})
    monkeypatch.setattr(Tensor, "to", noting)
    unweave.fit(net, [(x, torch.arange(50) % 3)])
    assert max(copies) == 60


def test_a_gram_that_memory_cannot_hold_is_refused_by_name() -> None:
    net = nn.Sequential(nn.Linear(4, 2_000_000, bias=False), nn.Linear(2_000_000, 2, bias=False))
    with pytest.raises(LayerError, match=r"GiB.*'1' with d = 2000000.*layers="):
        unweave.fit(net, in_batches(torch.randn(4, 4), torch.tensor([0, 1, 0, 1]), 2))


def test_every_sample_is_counted_and_on_record() -> None:
    net = small_cnn()
    grams = unweave.fit(net, in_batches(*images(7), 3), transform="plain")
    assert (grams.samples, grams.origin.dtype, grams.origin.transform) == (7, "float64", "plain")
    assert [grams.layers[name].rows for name in grams] == [7 * 25, 7 * 9, 7]
    assert [grams[name].shape for name in grams] == [(18, 18), (2, 27, 27), (72, 72)]
    assert grams["0"].dtype == torch.float64
    assert grams.held_out is None


def test_grams_are_symmetric_to_the_last_bit() -> None:
    grams = unweave.fit(small_cnn().float(), in_batches(images(9)[0].float(), images(9)[1], 4))
    assert all(torch.equal(grams[name], grams[name].mT) for name in grams)


def test_progress_counts_batches() -> None:
    heard: list[tuple[str, int, int | None]] = []
    unweave.fit(small_cnn(), in_batches(*images(5), 2), progress=lambda *step: heard.append(step))
    assert heard == [("fit", 1, 3), ("fit", 2, 3), ("fit", 3, 3)]


def test_a_loader_over_a_stream_has_no_length() -> None:
    class Stream(IterableDataset):
        def __iter__(self) -> Iterator[Any]:
            x, labels = images(6)
            yield from ((x[i], labels[i]) for i in range(6))

    heard: list[int | None] = []
    grams = unweave.fit(small_cnn(), DataLoader(Stream(), 4), progress=lambda stage, done, total: heard.append(total))
    assert (grams.samples, heard) == (6, [None, None])


def test_a_generator_and_a_data_loader_are_loaders() -> None:
    x, labels = images(6)
    loader = DataLoader(TensorDataset(x, labels), 4)
    assert unweave.fit(small_cnn(), iter(in_batches(x, labels, 4))) == unweave.fit(small_cnn(), loader)


def test_one_training_sample_is_too_few() -> None:
    with pytest.raises(DataError, match=r"training loader holds one sample.*at least two"):
        unweave.fit(small_cnn(), in_batches(*images(1), 1))


def test_an_unknown_stride_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"'two'.*'layer', 'one'"):
        unweave.fit(small_cnn(), in_batches(*images(4), 2), stride="two")


def test_infinite_activations_behind_finite_logits_are_refused_by_name() -> None:
    class Saturating(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Linear(3, 3), nn.Linear(3, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.last(self.first(x)) + 0 * torch.nan_to_num(self.last(x / 0))

    with pytest.raises(ModelError, match=r"'last' was given NaN or infinite.*layers="):
        unweave.fit(Saturating(), in_batches(torch.randn(4, 3), torch.tensor([0, 1, 0, 1]), 2))


# --------------------------------------------------------------------------- what a GPU is asked only after the pass


def poisoned(position: str) -> list[Any]:
    """Four batches of two, the third of which is unsound."""
    x, labels = images(8)
    if position == "inputs":
        x[4, 0, 0, 0] = float("nan")
    else:
        labels[5] = 7
    return in_batches(x, labels, 2)


@pytest.mark.parametrize(
    "position, words",
    [
        ("inputs", r"Invalid inputs in batch 2 of the training loader: NaN or infinite values in its sample 0\."),
        (
            "labels",
            r"In batch 2 of the training loader: Labels from 1 to 7 with 3 classes, wrong ones in its sample 1\.",
        ),
    ],
)
@pytest.mark.parametrize("often, heard", [(64, 4), (2, 3)])
def test_a_doubt_that_waits_is_raised_with_its_batch_and_changes_nothing(
    position: str, words: str, often: int, heard: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fit_module, "Doubts", lambda later: Doubts(later=True))
    monkeypatch.setattr(fit_module, "DOUBTFUL_BATCHES", often)
    net, seen = lived_in_cnn(), []
    before = state_of(net)
    with pytest.raises(DataError, match=words):
        unweave.fit(net, poisoned(position), progress=lambda *step: seen.append(step))
    assert len(seen) == heard  # the batches after it ran, up to the next time anybody asks
    assert state_of(net) == before


def test_without_a_gpu_nothing_waits() -> None:
    heard: list[Any] = []
    with pytest.raises(DataError, match="batch 2 of the training loader"):
        unweave.fit(small_cnn(), poisoned("inputs"), progress=lambda *step: heard.append(step))
    assert len(heard) == 2


def test_waiting_doubts_that_are_unfounded_change_no_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = unweave.fit(small_cnn(), in_batches(*images(7), 3))
    monkeypatch.setattr(fit_module, "Doubts", lambda later: Doubts(later=True))
    assert unweave.fit(small_cnn(), in_batches(*images(7), 3)) == expected


# ------------------------------------------------------------------------------------------------ what is kept of val=


def test_val_is_kept_as_error_loss_and_quantiles_per_class() -> None:
    net, (x, labels) = small_cnn(), images(29, seed=5)
    labels[labels == 2] = 0  # one class without a sample
    held_out = unweave.fit(net, in_batches(*images(4), 2), val=in_batches(x, labels, 6)).held_out
    with torch.no_grad():
        p = net.eval()(x).softmax(1).numpy()
    for c in (0, 1):
        own, chosen = p[labels.numpy() == c], p[labels.numpy() == c, c]
        assert held_out.count[c] == len(own)
        assert held_out.error[c].item() == pytest.approx((own.argmax(1) != c).mean())
        assert held_out.loss[c].item() == pytest.approx(-numpy.log(chosen).mean())
        margins, entropies = numpy.log(chosen / (1 - chosen)), -(own * numpy.log(own)).sum(1)
        levels = numpy.linspace(0, 1, LEVELS)
        numpy.testing.assert_allclose(held_out.margin[c], numpy.quantile(margins, levels), rtol=1e-9, atol=1e-12)
        numpy.testing.assert_allclose(held_out.entropy[c], numpy.quantile(entropies, levels), rtol=1e-9, atol=1e-12)
    assert held_out.count[2] == 0
    assert held_out.error[2].isnan()
    assert held_out.margin[2].isnan().all()


def test_nothing_that_is_kept_is_as_long_as_the_data() -> None:
    """29 samples of 3 classes; 29 is no dimension of this model, nor the number of quantiles."""
    grams = unweave.fit(small_cnn(), in_batches(*images(31), 4), val=in_batches(*images(29, seed=5), 6))
    kept = [grams.grouped(name) for name in grams]
    kept += vars(grams.held_out).values()
    assert not {29, 31} & {size for tensor in kept for size in tensor.shape}
    assert {tensor.shape for tensor in vars(grams.held_out).values()} == {(), (3,), (3, LEVELS)}


def test_an_empty_val_is_refused_by_its_name() -> None:
    with pytest.raises(DataError, match="validation loader is empty"):
        unweave.fit(small_cnn(), in_batches(*images(4), 2), val=[])


# -------------------------------------------------------------------------------------- how inputs and outputs may look


class HuggingFaceLike(nn.Module):
    """Named inputs, and an object with logits."""

    def __init__(self) -> None:
        super().__init__()
        self.net = token_classifier()

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Any:
        return SimpleNamespace(logits=self.net(input_ids, src_key_padding_mask=attention_mask == 0))


class TwoInputs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = token_classifier()

    def forward(self, ids: Tensor, padding: Tensor) -> Tensor:
        return self.net(ids, src_key_padding_mask=padding)


def test_named_paired_and_plain_inputs_see_the_same() -> None:
    ids, labels = sentences(6)
    mask = torch.ones_like(ids)
    mask[::2, -1] = 0
    named = unweave.fit(HuggingFaceLike(), in_batches({"input_ids": ids, "attention_mask": mask}, labels, 4))
    paired = unweave.fit(TwoInputs(), in_batches((ids, mask == 0), labels, 4))
    assert named.names == paired.names
    assert all(torch.equal(named[name], paired[name]) for name in named)
    plain = unweave.fit(token_classifier(), in_batches(ids, labels, 4))
    assert torch.equal(named["net.embed"], plain["embed"])
    last = "encoder.layers.0.self_attn.out_proj"
    assert not torch.equal(named[f"net.{last}"], plain[last])  # the mask is not lost on the way


def test_tf32_is_refused_without_a_gpu() -> None:
    model, (x, y) = small_cnn(), images(8)
    with pytest.raises(ConfigError, match="this one is on the CPU"):
        unweave.fit(model, [(x, y)], tf32=True)


def test_tf32_is_refused_where_a_sample_depends_on_its_batch() -> None:
    class Wavering(nn.Module):
        """Rounds otherwise in small batches, as a GPU may."""

        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(3, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.inner(x) * (1 + 1e-3 * (len(x) < 4))

    net, x = Wavering(), torch.randn(8, 3)
    with pytest.raises(ConfigError, match=r"the outputs of 3 samples differ by \de-\d\d when"):
        require_same_outputs(net, x, net(x), 3)
    require_same_outputs(net, x, net(x), 4)


def test_grams_of_tf32_and_float32_do_not_mix() -> None:
    model, (x, y) = small_cnn(), images(8)
    grams = unweave.fit(model, [(x, y)])
    other = unweave.LayerGrams(
        {n: grams.grouped(n) for n in grams}, grams.layers, replace(grams.origin, convolutions="tf32"), None
    )
    with pytest.raises(MismatchError, match="convolutions 'float32' against 'tf32'"):
        grams - other


# -------------------------------------------------------------------------------------------- validation samples


def test_validation_samples_that_were_trained_on_are_told_of_at_fit() -> None:
    problem = problems.points()
    held_x, held_y = (torch.cat(part) for part in zip(*problem.val, strict=True))
    for count, told in ((200, True), (30, True), (20, False)):
        val = [(torch.cat([held_x, problem.x[:count]]), torch.cat([held_y, problem.y[:count]]))]
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            problem.fitted(val=val)
        words = [str(warning.message) for warning in said if "among the training samples" in str(warning.message)]
        assert bool(words) == told
        assert all(text.startswith(f"{count} of the {500 + count} validation samples") for text in words)
        assert [warning.filename for warning in said if told] == [problems.__file__] * told


def test_the_first_of_very_many_training_samples_are_marked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(twins, "MOST_MARKED", 100)
    marked = twins.Marked()
    parts = torch.randn(300, 4).split(64)
    for part in parts:
        marked.show(part)
    assert torch.equal(marked.marks(), twins.marks(torch.cat(parts[:2])))
    assert len(twins.Marked().marks()) == 0
    none = twins.Twins(twins.Marked().marks())
    none.show(parts[0])
    assert none.met_once() == 0
