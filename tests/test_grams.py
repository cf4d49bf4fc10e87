from __future__ import annotations

import pytest
import torch
from helpers import gap, grams_from, images, in_batches, sentences, small_cnn, spectrum_gram, token_classifier
from torch import Tensor, nn

import unweave
from unweave.errors import MismatchError


def rows(count: int, d: int = 4, seed: int = 0) -> Tensor:
    return torch.randn(count, d, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def grams_of(data: Tensor, **about: object) -> unweave.LayerGrams:
    return grams_from({"layer": data.mT @ data}, samples=len(data), rows=len(data), **about)


# ---------------------------------------------------------------------------------------------------------- the algebra


def test_adding_and_subtracting_undo_each_other() -> None:
    here, there = grams_of(rows(6)), grams_of(rows(3, seed=1))
    both = here + there
    assert (both.samples, both.layers["layer"].rows) == (9, 9)
    back = both - there
    assert (back.samples, back.layers["layer"].rows) == (6, 6)
    assert gap(back["layer"], here["layer"]) < 1e-12


def test_labels_are_counted_and_taken_out_with_their_samples() -> None:
    here, there = grams_of(rows(6), labels=(4, 0, 2)), grams_of(rows(3, seed=1), labels=(1, 2, 0))
    assert (here + there).origin.labels == (5, 2, 2)
    assert (here + there - there).origin.labels == (4, 0, 2)
    assert (here + grams_of(rows(3, seed=1))).origin.labels == (), "not counted on one side"


def test_more_samples_of_a_class_than_were_fitted_cannot_be_taken_out() -> None:
    fitted, asked = grams_of(rows(6), labels=(4, 0, 2)), grams_of(rows(6)[:3], labels=(2, 1, 0))
    with pytest.raises(MismatchError, match=r"1 samples of class 1 from Grams of 0\. Pass samples with the labels"):
        fitted - asked


def test_addition_does_not_care_about_order() -> None:
    a, b, c = (grams_of(rows(5, seed=i)) for i in range(3))
    assert gap(((a + b) + c)["layer"], (c + (b + a))["layer"]) < 1e-12


def test_taking_everything_out_leaves_nothing() -> None:
    grams = grams_of(rows(6))
    nothing = grams - grams
    assert nothing.samples == 0
    assert nothing["layer"].abs().max() == 0


def test_operands_are_not_changed() -> None:
    here, there = grams_of(rows(6)), grams_of(rows(6)[:2])
    before = [(g["layer"].clone(), g.origin, dict(g.layers)) for g in (here, there)]
    _ = here + there, here - there, here.restricted(["layer"]), here.belonging_to("x", forgotten=("y",), held_out=None)
    for grams, (gram, origin, layers) in zip((here, there), before, strict=True):
        assert torch.equal(grams["layer"], gram)
        assert (grams.origin, grams.layers) == (origin, layers)


def test_grams_are_equal_when_sums_and_record_are() -> None:
    assert grams_of(rows(6)) == grams_of(rows(6))
    assert grams_of(rows(6)) != grams_of(rows(6, seed=1))
    assert grams_of(rows(6)) != grams_of(rows(6), transform="other")
    assert grams_of(rows(6)) != "grams"


def test_grams_do_not_mix_with_numbers() -> None:
    with pytest.raises(TypeError, match="unsupported operand"):
        grams_of(rows(6)) + 1
    with pytest.raises(TypeError, match="unsupported operand"):
        grams_of(rows(6)) - 1


def test_a_label_that_one_side_lacks_is_kept() -> None:
    assert (grams_of(rows(4)) + grams_of(rows(2), transform="plain")).origin.transform == "plain"
    assert (grams_of(rows(4), transform="plain") - grams_of(rows(4)[:1])).origin.transform == "plain"


# ----------------------------------------------------------------------------------------------------------- the shapes


def test_an_embedding_has_one_number_an_id_and_a_grouped_convolution_one_gram_a_group() -> None:
    text = unweave.fit(token_classifier(), in_batches(*sentences(4), 2))
    pictures = unweave.fit(small_cnn(), in_batches(*images(4), 2))
    assert text["embed"].shape == (11, 1, 1)
    assert text["encoder.layers.0.self_attn"].shape == (3, 16, 16)
    assert pictures["3"].shape == (2, 27, 27)
    assert pictures["7"].shape == (72, 72)
    assert pictures.grouped("7").shape == (1, 72, 72)


def test_grams_read_like_a_mapping() -> None:
    grams = unweave.fit(small_cnn(), in_batches(*images(4), 2))
    assert grams.names == list(grams) == ["0", "3", "7"]
    assert len(grams) == 3
    assert "7" in grams
    assert grams.restricted(["7"]).names == ["7"]
    assert "3 layers, 4 samples" in repr(grams)
    with pytest.raises(KeyError):
        grams["nobody"]


def test_grams_of_a_later_model_remember_the_requests() -> None:
    grams = grams_of(rows(6))
    later = grams.belonging_to("a" * 64, forgotten=("first",), held_out=None)
    latest = later.belonging_to("b" * 64, forgotten=("second",), held_out=None)
    assert latest.origin.model == "b" * 64
    assert latest.origin.forgotten == ("first", "second")
    assert latest.samples == 6


# ---------------------------------------------------------------------------------------------- what does not belong


def fitted(net: nn.Module, count: int = 6, **options: object) -> unweave.LayerGrams:
    return unweave.fit(net, in_batches(*images(count), 3), **options)


@pytest.mark.parametrize("combine", [unweave.LayerGrams.__add__, unweave.LayerGrams.__sub__])
class TestMismatch:
    """Every refusal shows both sides."""

    def test_other_layers(self, combine) -> None:
        with pytest.raises(MismatchError, match=r"different layers: 3 against 2, differing in 3\. .*layers="):
            combine(fitted(small_cnn()), fitted(small_cnn(), layers=["0", "7"]))

    def test_another_order_of_layers(self, combine) -> None:
        a, b = spectrum_gram([3, 2, 1]), spectrum_gram([4, 2, 1])
        with pytest.raises(MismatchError, match="2 against 2, differing in their order"):
            combine(grams_from({"a": a, "b": b}), grams_from({"b": b, "a": a}))

    def test_another_shape(self, combine) -> None:
        with pytest.raises(MismatchError, match=r"'layer' is .*d=4.* here and .*d=3.* there"):
            combine(grams_of(rows(6, d=4)), grams_of(rows(6, d=3)))

    def test_another_model(self, combine) -> None:
        here, there = fitted(small_cnn(seed=0)), fitted(small_cnn(seed=1))
        both = f"{here.origin.model[:12]!r} against {there.origin.model[:12]!r}"
        with pytest.raises(MismatchError, match=rf"model {both}\. Fit both with the same weights"):
            combine(here, there)

    def test_another_transform(self, combine) -> None:
        with pytest.raises(MismatchError, match=r"'crop' against 'plain'\. Fit both under the same transform"):
            combine(fitted(small_cnn(), transform="crop"), fitted(small_cnn(), transform="plain"))

    def test_another_stride(self, combine) -> None:
        with pytest.raises(MismatchError, match=r"'layer' against 'one'\. Fit both with the same stride="):
            combine(fitted(small_cnn()), fitted(small_cnn(), stride="one"))


def test_one_changed_buffer_makes_another_model() -> None:
    net = small_cnn()
    before = fitted(net)
    net[1].running_mean[0] += 1
    with pytest.raises(MismatchError, match="Cannot subtract: model"):
        _ = before - fitted(net, 3)


def test_more_samples_than_were_fitted_cannot_be_taken_out() -> None:
    with pytest.raises(MismatchError, match=r"subtract 7 samples from Grams of 6.*part of what was fitted"):
        _ = fitted(small_cnn(), 6) - fitted(small_cnn(), 7)


def test_more_rows_than_were_fitted_cannot_be_taken_out() -> None:
    here, there = grams_of(rows(6)), grams_from({"layer": torch.zeros(4, 4).double()}, samples=1, rows=7)
    with pytest.raises(MismatchError, match="'layer': cannot subtract 7 rows from 6"):
        _ = here - there


def test_rows_that_were_never_added_cannot_be_taken_out() -> None:
    net, (x, labels) = small_cnn(), images(6)
    strangers = unweave.fit(net, in_batches(x[:2] + 1, labels[:2], 2))
    with pytest.raises(MismatchError, match=r"'0'.*eigenvalue is -.*not part of what was fitted.*Grams of 6 samples"):
        _ = fitted(net) - strangers


def test_the_same_rows_cannot_be_taken_out_twice() -> None:
    few, rest = grams_of(rows(2)), grams_of(rows(3, seed=1))
    once = (few + rest) - few
    with pytest.raises(MismatchError, match="subtracted before"):
        _ = once - few


def test_one_stranger_in_an_embedding_is_noticed() -> None:
    net = token_classifier()
    ids, labels = torch.tensor([[0, 1], [1, 2], [2, 2]]), torch.tensor([0, 1, 2])
    full = unweave.fit(net, [(ids, labels)], layers=["embed"])
    with pytest.raises(MismatchError, match="'embed'"):
        _ = full - unweave.fit(net, [(torch.tensor([[0, 1], [0, 2]]), labels[:2])], layers=["embed"])


def test_rounding_is_forgiven_by_the_dtype_of_the_model_and_more_where_a_network_has_changed() -> None:
    data = rows(20)
    off = {size: data[:5] * (1 + size) for size in (1e-7, 1e-4)}
    for dtype, size, forgiven in [("float64", 1e-7, False), ("float32", 1e-7, True), ("float32", 1e-4, False)]:
        # Nothing but the forgotten rows in the sums, so that every excess is below zero.
        full, given = grams_of(data[:5], dtype=dtype), grams_of(off[size], dtype=dtype)
        if forgiven:
            assert (full - given).samples == 0
        else:
            with pytest.raises(MismatchError):
                _ = full - given
    off_a_little = grams_of(off[1e-4], dtype="float32")
    for changed in ({"drifted": True}, {"key": "the first model"}):
        left = grams_of(data[:5], dtype="float32", forgotten=("a request",), **changed) - off_a_little
        assert left.samples == 0
        assert left.origin.drifted
    with pytest.raises(MismatchError):
        _ = grams_of(data[:5], dtype="float32", forgotten=("an exact request",)) - off_a_little


def test_a_layer_that_saw_only_zeros_can_be_subtracted() -> None:
    nothing = torch.zeros(3, 3, dtype=torch.float64)
    assert (grams_from({"dead": nothing}) - grams_from({"dead": nothing}))["dead"].abs().max() == 0
