"""Two and four gloo ranks against one process: the same sums, the same spaces, the same request, the same errors."""

from __future__ import annotations

import os
import signal
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import problems
import pytest
import torch
import torch.distributed as dist
from helpers import Batches, gap, images, in_batches, sentences, small_cnn, token_classifier
from processes import Failed, Gone, Job, job_of, one_thread
from torch import Tensor, nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import unweave
from unweave import distributed
from unweave.fitting.twins import Twins, marks
from unweave.reading.rest import fingerprint
from unweave.walking.descent import Descent

EXACT = 1e-10


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Job]:
    with job_of(2, tmp_path_factory.mktemp("two")) as job:
        yield job


@pytest.fixture(scope="module")
def four(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Job]:
    with job_of(4, tmp_path_factory.mktemp("four")) as job:
        yield job


@pytest.fixture(params=[2, 4])
def job(request: pytest.FixtureRequest) -> Job:
    return request.getfixturevalue({2: "two", 4: "four"}[request.param])


def words_of(answers: list[Any], kind: str) -> str:
    """The message of an error that every rank has raised."""
    assert [answer.kind for answer in answers if isinstance(answer, Failed)] == [kind] * len(answers), answers
    assert len({answer.words for answer in answers}) == 1
    return answers[0].words


# ------------------------------------------------------------------------------------------------------------ the sums


def batches_of(kind: str) -> tuple[nn.Module, Batches, Batches]:
    if kind == "cnn":
        return small_cnn(), in_batches(*images(29), 3), in_batches(*images(13, seed=5), 2)
    return token_classifier(), in_batches(*sentences(29), 3), in_batches(*sentences(13, seed=5), 2)


def told_of_val(extra: int) -> list[str]:
    """What fit says where the first samples to be trained on are among the validation samples."""
    net, train, val = batches_of("cnn")
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        unweave.fit(net, unweave.shard(train), val=unweave.shard([*val, *train[:extra]]))
    return [str(warning.message) for warning in said]


def test_validation_samples_that_any_rank_trains_on_are_told_of_once(job: Job) -> None:
    (said,), *others = job.run(told_of_val, 3)
    assert said.startswith("9 of the 22 validation samples are among the training samples")
    assert others == [[]] * len(others)
    assert job.run(told_of_val, 0) == [[]] * (1 + len(others))


def met_by_all(shown: list[int]) -> int:
    """How many of four samples come by once, where each rank is shown these and those after them."""
    x = torch.arange(8.0).view(4, 2)
    some = Twins(marks(x))
    for i in shown:
        some.show(x[dist.get_rank() + i :][:1])
    return some.met_once()


def test_samples_that_come_by_on_two_ranks_are_not_met_once(two: Job) -> None:
    assert two.run(met_by_all, [0]) == [2, 2], "the first and the second, once each"
    assert two.run(met_by_all, [0, 1]) == [2, 2], "the second on both ranks"
    assert two.run(met_by_all, []) == [0, 0]


def fit_share(kind: str, count: int | None = None) -> unweave.LayerGrams:
    net, train, val = batches_of(kind)
    return unweave.fit(net, unweave.shard(train[:count]), val=unweave.shard(val))


@pytest.mark.parametrize("kind", ["cnn", "tokens"])
def test_ranks_find_what_one_process_finds(job: Job, kind: str) -> None:
    found = job.run(fit_share, kind)
    alone = fit_share(kind)
    assert found[0].layers == alone.layers, "rows are counted over all ranks"
    assert found[0].origin == alone.origin
    for name in alone:
        assert gap(found[0][name], alone[name]) < EXACT
        assert torch.equal(found[0].grouped(name), found[0].grouped(name).mT)
    for key, value in vars(alone.held_out).items():
        assert gap(getattr(found[0].held_out, key), value) < EXACT
    assert all(other == found[0] for other in found)
    assert all(other.margins == alone.margins for other in found)


@pytest.mark.parametrize("batches", [1, 2, 3, 5])
def test_a_rank_may_have_less_or_nothing_to_do(four: Job, batches: int) -> None:
    found = four.run(fit_share, "cnn", batches)
    alone = fit_share("cnn", batches)
    assert found[3].origin == alone.origin
    assert found[3].margins == alone.margins
    assert all(gap(found[3][name], alone[name]) < EXACT for name in alone)


def fit_nothing() -> Any:
    return unweave.fit(small_cnn(), [])


def test_all_ranks_without_data(two: Job) -> None:
    assert "empty" in words_of(two.run(fit_nothing), "DataError")


def sum_with_count(bucket: int) -> tuple[list[Tensor], int]:
    """Symmetric tensors of several sizes summed over the ranks, and how many numbers were sent for it."""
    sent = 0
    reduce = dist.all_reduce

    def counted(tensor: Tensor) -> None:
        nonlocal sent
        sent += tensor.numel()
        reduce(tensor)

    made = [torch.full((2, d, d), float(d), dtype=torch.float64) for d in (1, 3, 64, 65, 500)]
    made = [(gram * (1 + dist.get_rank())).cumsum(1).cumsum(2) for gram in made]
    with mock.patch.object(dist, "all_reduce", counted), mock.patch.object(distributed, "BUCKET_ELEMENTS", bucket):
        distributed.add_up([gram.add_(gram.mT.clone()) for gram in made])
    return made, sent


@pytest.mark.parametrize("bucket", [1, 10_000, 1 << 22])
def test_only_the_upper_triangle_travels(two: Job, bucket: int) -> None:
    (grams, sent), (others, _) = two.run(sum_with_count, bucket)
    for gram, other in zip(grams, others, strict=True):
        d = gram.shape[-1]
        expected = (3 * torch.full((2, d, d), float(d), dtype=torch.float64)).cumsum(1).cumsum(2)
        assert gap(gram, expected + expected.mT) < EXACT
        assert torch.equal(gram, other)
    triangles = sum(2 * d * (d + 1) // 2 for d in (1, 3, 64, 65, 500))
    assert triangles <= sent < 1.2 * triangles


def fit_sampled(samples: int) -> Any:
    data = TensorDataset(*images(samples))
    loader = DataLoader(data, 4, sampler=DistributedSampler(data, shuffle=True, seed=3))
    return unweave.fit(small_cnn(), loader)


def test_a_distributed_sampler_that_shares_evenly_is_right(two: Job) -> None:
    found = two.run(fit_sampled, 28)
    alone = unweave.fit(small_cnn(), in_batches(*images(28), 4))
    assert found[1].samples == 28
    assert found[1].origin == alone.origin, "counts of labels included"
    assert all(gap(found[1][name], alone[name]) < EXACT for name in alone)


def test_a_distributed_sampler_that_repeats_samples_is_refused(two: Job) -> None:
    assert "unweave.shard" in words_of(two.run(fit_sampled, 29), "DataError")


def fit_wrapped() -> Any:
    net = nn.parallel.DistributedDataParallel(small_cnn())
    return unweave.fit(net, unweave.shard(in_batches(*images(29), 3)))


def test_a_model_under_ddp(two: Job) -> None:
    assert two.run(fit_wrapped)[0].names == two.run(fit_share, "cnn")[0].names


def fit_on_gpu() -> Any:
    net, train, val = batches_of("cnn")
    grams = unweave.fit(net.cuda(), unweave.shard(train), val=unweave.shard(val))
    space = unweave.CoreSpace.from_grams(grams.to("cuda"))
    return grams, {name: layer.core.cpu() for name, layer in space.layers.items()}


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_gloo_ranks_with_models_on_a_gpu(two: Job) -> None:
    (grams, cores), (_, others) = two.run(fit_on_gpu)
    alone = fit_share("cnn")
    assert all(gap(grams[name], alone[name]) < EXACT for name in alone)
    assert all(torch.equal(core, others[name]) for name, core in cores.items())


def fit_by_itself() -> Any:
    if dist.get_rank() == 1:
        return None
    with distributed.alone():
        return unweave.fit(small_cnn(), in_batches(*images(29), 3))


def test_one_rank_may_work_alone(two: Job) -> None:
    assert two.run(fit_by_itself)[0] == unweave.fit(small_cnn(), in_batches(*images(29), 3))


# ----------------------------------------------------------------------------------------------------- what goes wrong


def fit_the_same() -> Any:
    return unweave.fit(small_cnn(), in_batches(*images(29), 3))


def test_ranks_with_the_same_data_are_refused(two: Job) -> None:
    words = words_of(two.run(fit_the_same), "DataError")
    assert "ranks 0 and 1" in words
    assert "unweave.shard" in words


def fit_bad_batch(bad: int) -> Any:
    x, y = images(29)
    batches = unweave.shard(in_batches(x, y, 3))
    if dist.get_rank() == 1:
        batches = list(batches)
        batches[bad] = (batches[bad][0] * float("nan"), batches[bad][1])
    return unweave.fit(small_cnn(), batches)


@pytest.mark.parametrize("bad", [0, 2, 4])
def test_a_bad_batch_on_one_rank_ends_all(two: Job, bad: int) -> None:
    here, there = two.run(fit_bad_batch, bad)
    assert there.kind == "DataError"
    assert f"batch {bad} of the training loader" in there.words
    assert here.kind == "RankError"
    assert "Rank 1 failed" in here.words
    assert there.words in here.words
    assert two.run(fit_share, "cnn")[0].samples == 29, "the group can be used again"


def fit_other(what: str) -> Any:
    net, settings = small_cnn(), {}
    if dist.get_rank() == 1:
        net = small_cnn(seed=1) if what == "model" else net
        settings = {"layers": {"layers": ["0"]}, "stride": {"stride": "one"}}.get(what, {})
    return unweave.fit(net, unweave.shard(in_batches(*images(29), 3)), **settings)


@pytest.mark.parametrize(
    "what, words", [("model", "set of Grams"), ("layers", "choice of layers"), ("stride", "stride")]
)
def test_ranks_that_do_not_mean_the_same_are_refused(two: Job, what: str, words: str) -> None:
    message = words_of(two.run(fit_other, what), "MismatchError")
    assert message.startswith(f"Rank 1 has another {words} than rank 0")


def fit_or_decompose() -> Any:
    if dist.get_rank() == 0:
        return unweave.fit(small_cnn(), unweave.shard(in_batches(*images(29), 3)))
    with distributed.alone():
        grams = unweave.fit(small_cnn(), in_batches(*images(29), 3))
    return unweave.CoreSpace.from_grams(grams)


def test_ranks_in_different_places_do_not_wait_for_each_other(two: Job) -> None:
    for answer in two.run(fit_or_decompose):
        assert answer.kind == "RankError"
        assert "same calls" in answer.words


def fit_until_killed(marker: str) -> Any:
    def killing() -> Iterator[Any]:
        for i, batch in enumerate(unweave.shard(in_batches(*images(29), 3))):
            if i == 2 and dist.get_rank() == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            yield batch

    unweave.fit(small_cnn(), killing()).save(marker)


def test_a_rank_that_is_killed_ends_the_others_with_a_word(tmp_path: Path) -> None:
    with job_of(2, tmp_path) as job:
        job.run(dist.get_rank)
        began = time.perf_counter()
        here, there = job.run(fit_until_killed, str(tmp_path / "grams.safetensors"))
        assert time.perf_counter() - began < 10
    assert isinstance(there, Gone)
    assert here.kind == "RankError"
    assert "ended without a word" in here.words
    assert not list(tmp_path.glob("*grams*"))


# ---------------------------------------------------------------------------------------------------------- the spaces


def decompose() -> tuple[list[Tensor], Any, int]:
    """Every projector with γ = 0.9, the ranks, and how many layers this rank has decomposed."""
    net, train, _ = batches_of("cnn")
    with distributed.alone():
        grams = unweave.fit(net, train)
    eigh = torch.linalg.eigh
    with mock.patch.object(torch.linalg, "eigh", side_effect=eigh) as called:
        space = unweave.CoreSpace.from_grams(grams)
    return [layer.core @ layer.core.mT for layer in space.layers.values()], space.ranks, called.call_count


def test_layers_are_divided_and_the_projectors_are_the_same(two: Job) -> None:
    (here, ranks, some), (there, _, others) = two.run(decompose)
    alone, expected, all_of_them = decompose()
    assert ranks == expected
    assert some + others == all_of_them
    assert min(some, others) > 0
    for one, other, own in zip(here, there, alone, strict=True):
        assert torch.equal(one, other)
        assert gap(one, own) < 1e-6


def test_the_dearest_layers_are_dealt_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(distributed, "ranks", lambda: 2)
    assert distributed.divided({"a": 3, "b": 8, "c": 5, "d": 1}) == {"b": 0, "c": 1, "a": 1, "d": 0}


# ----------------------------------------------------------------------------------------------------------- a request


def problem_in_double() -> tuple[nn.Module, Tensor, Tensor, Batches]:
    with distributed.alone():
        problem = problems.points()
    val = [(x.double(), y) for x, y in problem.val]
    return problem.model.double(), problem.x.double(), problem.y, val


def forget_share(settings: dict[str, Any]) -> Any:
    """What a request on this rank's shares comes to: the new weights, the Grams, the record."""
    net, x, y, val = problem_in_double()
    grams = unweave.fit(net, unweave.shard(in_batches(x, y, 32)), val=unweave.shard(val))
    config = unweave.ForgetConfig(**settings)
    chosen = y == 1 if config.task == "classes" else torch.arange(len(y)) < 40
    asked = unweave.shard(in_batches(x[chosen], y[chosen], 7))
    result = unweave.forget(net, asked, grams, val=unweave.shard(val), config=config)
    assert result.grams.origin.model == fingerprint(result.model)
    looks = [[look.forget_error, look.distance, look.val_error or -1.0, look.auc or -1.0] for look in result.history]
    return result.model.state_dict(), result.grams, looks, result.stopped


@pytest.mark.parametrize(
    "settings",
    [
        {"batch_size": 16},
        {"way": "solve", "batch_size": 16},
        {"objective": "paper", "batch_size": 3},
        {"task": "classes", "batch_size": 16},
        {"task": "poison", "batch_size": 16, "epochs": 4},
        {"task": "poison", "objective": "paper", "batch_size": 16, "epochs": 4},
    ],
)
def test_a_request_on_ranks_is_the_request_on_one_process(job: Job, settings: dict[str, Any]) -> None:
    found = job.run(forget_share, settings)
    assert not any(isinstance(answer, Failed) for answer in found), found
    with one_thread():
        state, grams, looks, stopped = forget_share(settings)
    for there, their_grams, their_looks, their_end in found:
        assert their_end == stopped
        assert all(gap(there[name], value) < 1e-6 for name, value in state.items())
        assert all(gap(their_grams[name], grams[name]) < 1e-6 for name in grams)
        assert their_grams.origin.forgotten == grams.origin.forgotten
        assert torch.tensor(their_looks).allclose(torch.tensor(looks), atol=1e-6)
        assert all(torch.equal(there[name], value) for name, value in found[0][0].items())


def forget_twice(firsts: tuple[str, ...]) -> Any:
    """Two requests; in the second each rank passes the right first model, another one or none."""
    net, x, y, val = problem_in_double()
    grams = unweave.fit(net, unweave.shard(in_batches(x, y, 32)), val=unweave.shard(val))
    now = unweave.forget(net, unweave.shard(in_batches(x[:20], y[:20], 7)), grams, val=unweave.shard(val))
    first = {"right": net, "wrong": now.model, "none": None}[firsts[distributed.rank()]]
    asked = unweave.shard(in_batches(x[20:50], y[20:50], 7))
    again = unweave.forget(now.model, asked, now.grams, val=unweave.shard(val), first=first)
    rest = unweave.fit(net, unweave.shard(in_batches(x[50:], y[50:], 32)))
    return max(gap(again.grams[name], rest[name]) for name in rest)


def test_ranks_with_the_first_model_take_out_what_was_added(two: Job) -> None:
    assert max(two.run(forget_twice, ("right", "right"))) < EXACT


def test_ranks_with_different_first_models_do_not_wait_for_each_other(two: Job) -> None:
    began = time.monotonic()
    answers = two.run(forget_twice, ("wrong", "right"))
    assert all(isinstance(answer, Failed) for answer in answers), answers
    assert "first= (--first) is" in answers[0].words
    assert "first= given" in words_of(two.run(forget_twice, ("right", "none")), "MismatchError")
    assert time.monotonic() - began < 40


def forget_adrift() -> Any:
    """The same where rank 1's steps are a little off, as those of another processor would be."""
    move = Descent._move

    def drifting(self: Descent, name: str, value: Tensor, step: Tensor) -> None:
        move(self, name, value, step * (1 + 1e-9 * dist.get_rank()))

    with mock.patch.object(Descent, "_move", drifting):
        return forget_share({"batch_size": 16})[0]


def test_ranks_end_with_one_model_though_their_steps_differ(two: Job) -> None:
    here, there = two.run(forget_adrift)
    assert not isinstance(here, Failed), here
    assert all(torch.equal(here[name], value) for name, value in there.items())


def forget_replicated() -> Any:
    net, x, y, val = problem_in_double()
    grams = unweave.fit(net, unweave.shard(in_batches(x, y, 32)))
    return unweave.forget(net, in_batches(x[:40], y[:40], 7), grams, val=unweave.shard(val))


def test_a_request_that_every_rank_makes_in_full_is_refused(two: Job) -> None:
    assert "forget loaders of ranks 0 and 1" in words_of(two.run(forget_replicated), "DataError")


# ---------------------------------------------------------------------------------------------------------------- FSDP2


def spread_cnn() -> nn.Module:
    """The small CNN with its weights spread over the ranks: one group for its second convolution, one for the rest."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    net, mesh = small_cnn(), init_device_mesh("cpu", (dist.get_world_size(),))
    fully_shard(net[3], mesh=mesh)
    return fully_shard(net, mesh=mesh)


def fit_spread(batches: int) -> Any:
    net = spread_cnn()
    before = {name: type(value) for name, value in net.named_parameters()}
    _, train, val = batches_of("cnn")
    grams = unweave.fit(net, unweave.shard(train[:batches]), val=unweave.shard(val))
    assert {name: type(value) for name, value in net.named_parameters()} == before, "spread again"
    assert net.training
    return grams


@pytest.mark.parametrize("batches", [4, 5, 10])
def test_a_model_under_fsdp2(job: Job, batches: int) -> None:
    found = job.run(fit_spread, batches)
    assert not any(isinstance(answer, Failed) for answer in found), found
    alone = fit_share("cnn", batches)
    for grams in found:
        assert grams.origin == alone.origin, "the fingerprint is that of the whole model"
        assert grams.layers == alone.layers
        assert all(gap(grams[name], alone[name]) < EXACT for name in alone)
    assert all(gap(getattr(found[0].held_out, key), value) < EXACT for key, value in vars(alone.held_out).items())


def test_under_fsdp2_every_rank_needs_a_batch(four: Job) -> None:
    assert "rank 3 is empty" in words_of(four.run(fit_spread, 3), "DataError")


def fit_spread_bad_batch() -> Any:
    batches = list(unweave.shard(in_batches(*images(29), 3)))
    if dist.get_rank() == 1:
        batches[2] = (batches[2][0] * float("nan"), batches[2][1])
    return unweave.fit(spread_cnn(), batches)


def test_a_bad_batch_under_fsdp2_ends_all(two: Job) -> None:
    here, there = two.run(fit_spread_bad_batch)
    assert (here.kind, there.kind) == ("RankError", "DataError")
    assert there.words in here.words


def forget_spread() -> Any:
    net, train, val = batches_of("cnn")
    with distributed.alone():
        grams = unweave.fit(net, train, val=val)
    return unweave.forget(spread_cnn(), unweave.shard(train[:2]), grams)


def test_a_request_under_fsdp2_is_refused_with_the_way_out(two: Job) -> None:
    words = words_of(two.run(forget_spread), "ModelError")
    assert "full_state_dict=True" in words


# -------------------------------------------------------------------------------------------------------------- resume


def fit_resumed(folder: str, deadly: bool) -> Any:
    def share() -> Iterator[Any]:
        for i, batch in enumerate(unweave.shard(in_batches(*images(40), 2))):
            if deadly and i == 7 and dist.get_rank() == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            yield batch

    return unweave.fit(small_cnn(), share(), resume=folder, save_every=3)


def test_a_job_that_died_goes_on_from_its_last_shards(tmp_path: Path, two: Job) -> None:
    folder = tmp_path / "sums"
    with job_of(2, tmp_path) as job:
        here, there = job.run(fit_resumed, str(folder), True)
    assert isinstance(there, Gone)
    assert here.kind == "RankError"
    assert sorted(path.name for path in folder.iterdir()) == ["fit-0-of-2.safetensors", "fit-1-of-2.safetensors"]
    found = two.run(fit_resumed, str(folder), False)
    expected = two.run(fit_resumed, str(tmp_path / "other"), False)
    assert found[0] == found[1] == expected[0]
    assert found[0].samples == 40
    assert list(folder.iterdir()) == []
