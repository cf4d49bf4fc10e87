"""The demonstration, told in order: learn, fit, lose the training set, forget three times, retrain, audit."""

from __future__ import annotations

import gc
import json
import platform
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import unweave
from unweave.audit.evidence import Task
from unweave.behaviour.outcomes import Outcomes, observe
from unweave.demo import audits, data, network, requests
from unweave.demo.data import Images
from unweave.files import write_atomically

Say = Callable[[str], None]
Tick = Callable[[str, int, int], None]
"""Told (what, done, total) while a network is trained."""


@dataclass(frozen=True)
class Errors:
    """Percent wrong on the three sets that matter."""

    retained: float
    forgotten: float
    test: float


@dataclass
class Chapter:
    """One request and what it is compared with."""

    title: str
    original: Errors
    unlearned: Errors
    unlearn_seconds: float
    stopped: str
    ok: bool
    history: list[float]
    target: float
    retrained: Errors | None = None
    retrain_seconds: float = float("nan")
    margins: dict[str, list[float]] | None = None


@dataclass
class Network:
    """What is kept of a trained network once its training set is gone."""

    model: nn.Module
    grams: unweave.LayerGrams
    train_seconds: float
    fit_seconds: float


class Story:
    """Everything the demonstration holds, so that each step is one short method."""

    def __init__(self, out: Path, seed: int, say: Say, tick: Tick) -> None:
        self.out, self.seed, self.say, self.tick = out, seed, say, tick
        self.val, self.test = data.load("val"), data.load("test")
        self.chapters: list[Chapter] = []
        self.models: list[tuple[nn.Module, unweave.ForgetResult]] = []
        out.mkdir(parents=True, exist_ok=True)

    def tell(self) -> list[Chapter]:
        """The whole demonstration."""
        clean, poisoned, asked, judge = self.learn()
        self.forget_samples(clean, asked["samples"])
        self.forget_class(clean, asked["class"])
        self.depoison(poisoned, asked["poison"], judge)
        trials = self.compare()
        self.write()
        audits.hold(trials, self.out, self.seed, self.say)
        return self.chapters

    # ------------------------------------------------------------------------------ while the training set is there

    def learn(self) -> tuple[Network, Network, dict[str, Images], Images]:
        """Train, fit, keep the requests' own samples, and lose the training set."""
        working = self.out / "training-set.safetensors"
        embedded = data.load("train")
        save_file({"x": embedded.x, "y": embedded.y}, working)
        del embedded
        train = Images(**load_file(working))
        self.say(f"learn    a network learns {len(train)} images of {len(data.CLASSES)} classes")
        clean = self.train_and_fit(train, "learning")
        swapped, split, judge = requests.poison(train)
        self.say(f"learn    a second one learns them with {len(split.forget)} wrong labels")
        poisoned = self.train_and_fit(swapped, "learning with wrong labels")
        asked = {
            "samples": requests.samples(train).forget,
            "class": requests.one_class(train).forget,
            "poison": split.forget,
        }
        memory = train.x.untyped_storage().data_ptr()
        del train, swapped, split
        working.unlink()
        if _in_use(memory):
            raise RuntimeError("the training set is still in memory: the demonstration would prove nothing")
        self.say("lose     the training set is deleted from disk and from memory; what follows runs without it")
        return clean, poisoned, asked, judge

    def train_and_fit(self, train: Images, what: str) -> Network:
        began = time.perf_counter()
        model = network.train(train, self.seed, tick=lambda epoch: self.tick(what, epoch, network.EPOCHS))
        trained = time.perf_counter()
        grams = unweave.fit(model, train.batches(), val=self.val.batches())
        done = time.perf_counter()
        self.say(f"fit      one pass adds up what each layer sees: {done - trained:.1f} s")
        return Network(model, grams, trained - began, done - trained)

    # ----------------------------------------------------------------------------------------- when it is gone

    def forget_samples(self, net: Network, forgotten: Images) -> None:
        self.say(f"forget   {len(forgotten)} samples")
        config = unweave.ForgetConfig(watch="epochs")  # the walk is the same; the report shows how it went
        result = unweave.forget(net.model, forgotten.batches(), net.grams, val=self.val.batches(), config=config)
        chapter = self.chapter(f"{len(forgotten)} samples", net.model, result, forgotten, self.test)
        chapter.margins = {
            "original": self.margins(net.model, forgotten),
            "unlearned": self.margins(result.model, forgotten),
        }

    def forget_class(self, net: Network, forgotten: Images) -> None:
        name = data.CLASSES[requests.CLASS]
        self.say(f"forget   the class {name} ({len(forgotten)} samples)")
        config = unweave.ForgetConfig(task="classes", watch="epochs")
        result = unweave.forget(net.model, forgotten.batches(), net.grams, val=self.val.batches(), config=config)
        others = self.test.where((self.test.y != requests.CLASS).nonzero().squeeze(1))
        self.chapter(f"class {name}", net.model, result, forgotten, others)
        smaller, labels = unweave.drop_classes(result.model, [requests.CLASS])
        renamed = Images(others.x, torch.tensor([labels[int(y)] for y in others.y]))
        error = network.error(smaller, renamed)
        self.say(f"drop     its row is cut off: {len(labels)} classes left, test error {error:.1f} %")

    def depoison(self, net: Network, poisoned: Images, judge: Images) -> None:
        self.say(f"clean    {len(poisoned)} wrong labels; nobody says what the right ones are")
        config = unweave.ForgetConfig(task="poison")
        result = unweave.forget(net.model, poisoned.batches(), net.grams, val=self.val.batches(), config=config)
        self.chapter(f"{len(judge)} wrong labels", net.model, result, judge, self.test)

    def chapter(
        self, title: str, model: nn.Module, result: unweave.ForgetResult, forgotten: Images, test: Images
    ) -> Chapter:
        """Note the outcome; the retained errors follow in :meth:`compare`, for that set is gone now."""
        nan = float("nan")
        self.say("         " + result.stopped)
        chapter = Chapter(
            title=title,
            original=Errors(nan, network.error(model, forgotten), network.error(model, test)),
            unlearned=Errors(nan, network.error(result.model, forgotten), network.error(result.model, test)),
            unlearn_seconds=result.seconds,
            stopped=result.stopped,
            ok=result.ok,
            history=[look.forget_error for look in result.history],
            target=result.goal.error,
        )
        self.chapters.append(chapter)
        self.models.append((model, result))
        return chapter

    # -------------------------------------------------------------------------------------------- for comparison

    def compare(self) -> list[audits.Trial]:
        """Retrain without the forgotten samples, from the images inside the package."""
        self.say("compare  only now the training set is read again, from the package, to retrain without the samples")
        train = data.load("train")
        _, poison_split, judge = requests.poison(train)
        others = self.test.where((self.test.y != requests.CLASS).nonzero().squeeze(1))
        plans: list[tuple[Task, requests.Split, Images, Images]] = [
            ("samples", requests.samples(train), requests.samples(train).forget, self.test),
            ("classes", requests.one_class(train), requests.one_class(train).forget, others),
            ("poison", poison_split, judge, self.test),
        ]
        trials = []
        for chapter, models, (task, split, forgotten, test) in zip(self.chapters, self.models, plans, strict=True):
            original, result = models
            chapter.original = _with_retained(chapter.original, network.error(original, split.retain))
            chapter.unlearned = _with_retained(chapter.unlearned, network.error(result.model, split.retain))
            began = time.perf_counter()
            # The same seed, so the same first weights; the batches differ, for there are fewer samples to shuffle.
            net = network.train(split.retain, self.seed, tick=self.ticker(f"retraining for {chapter.title}"))
            chapter.retrain_seconds = time.perf_counter() - began
            chapter.retrained = Errors(*(network.error(net, images) for images in (split.retain, forgotten, test)))
            if chapter.margins is not None:
                chapter.margins["retrained"] = self.margins(net, forgotten)
            trials.append(self.trial(task, chapter, original, result, net, split))
        return trials

    def trial(
        self,
        task: Task,
        chapter: Chapter,
        original: nn.Module,
        result: unweave.ForgetResult,
        retrained: nn.Module,
        split: requests.Split,
    ) -> audits.Trial:
        """Everything that the audit of a request looks at; its held-out samples are the test set, never aimed at."""
        some = torch.randperm(len(split.retain), generator=torch.Generator().manual_seed(0))[: audits.RETAINED]
        return audits.Trial(
            name=task,
            title=chapter.title,
            task=task,
            networks={"original": original, "unlearned": result.model, "retrained": retrained},
            seconds={"unlearned": chapter.unlearn_seconds, "retrained": chapter.retrain_seconds},
            parts={"forget": split.forget, "held_out": self.test, "retained": split.retain.where(some)},
            result=result,
        )

    def ticker(self, what: str) -> Callable[[int], None]:
        return lambda epoch: self.tick(what, epoch, network.EPOCHS)

    @torch.no_grad()
    def margins(self, net: nn.Module, images: Images) -> list[float]:
        outcomes: Outcomes = observe(net, images.batches())
        values: list[float] = outcomes.margin.tolist()
        return values

    def write(self) -> None:
        """All numbers, with what they were made by."""
        made_by = {
            "unweave": unweave.__version__,
            "torch": str(torch.__version__),
            "python": platform.python_version(),
            "machine": platform.machine(),
            "threads": torch.get_num_threads(),
            "seed": self.seed,
        }
        document = {"made_by": made_by, "chapters": [asdict(chapter) for chapter in self.chapters]}
        write_atomically(self.out / "result.json", json.dumps(document, indent=1).encode())


def _in_use(memory: int) -> bool:
    """Whether any tensor, be it a view, still holds the memory at this address."""
    gc.collect()
    return any(_holds(thing, memory) for thing in gc.get_objects() if type(thing) is torch.Tensor)


def _holds(tensor: Tensor, memory: int) -> bool:
    try:
        return tensor.untyped_storage().data_ptr() == memory
    except NotImplementedError:  # one of torch.func's wrappers: what it wraps is a tensor of its own
        return False


def _with_retained(errors: Errors, retained: float) -> Errors:
    return Errors(retained, errors.forgotten, errors.test)
