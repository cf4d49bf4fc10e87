from __future__ import annotations

import ast
import errno
import json
import os
import struct
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import gap, grams_from, images, in_batches, sentences, small_cnn, spectrum_gram, token_classifier
from safetensors.torch import load as parse
from safetensors.torch import save as serialise
from torch import Tensor

import unweave
from unweave import LayerGrams, files, store
from unweave.behaviour.outcomes import ClassProfile
from unweave.errors import ConfigError, StoreError

SOURCE = Path(unweave.__file__).parent


@pytest.fixture
def grams() -> LayerGrams:
    x, labels = images(8, seed=3)
    labels[labels == 2] = 0  # a class without samples: NaN in its profile
    return unweave.fit(small_cnn(), in_batches(*images(8), 4), val=in_batches(x, labels, 4), transform="plain")


@pytest.fixture
def saved(grams: LayerGrams, tmp_path: Path) -> Path:
    path = tmp_path / "grams.safetensors"
    grams.save(path)
    return path


def same_bits(here: ClassProfile, there: ClassProfile) -> bool:
    return all(
        a.numpy().tobytes() == b.numpy().tobytes()
        for a, b in zip(vars(here).values(), vars(there).values(), strict=True)
    )


# ----------------------------------------------------------------------------------------------------------- round trip


def test_float64_comes_back_bit_for_bit(grams: LayerGrams, saved: Path) -> None:
    loaded = LayerGrams.load(saved)
    assert loaded == grams
    assert same_bits(loaded.held_out, grams.held_out)


def test_embeddings_attention_and_requests_come_back(tmp_path: Path) -> None:
    fitted = unweave.fit(token_classifier(), in_batches(*sentences(5), 2))
    grams = fitted.belonging_to("f" * 64, forgotten=("a sample",), held_out=None)
    grams.save(tmp_path / "g")
    loaded = LayerGrams.load(tmp_path / "g")
    assert loaded == grams
    assert loaded.origin.forgotten == ("a sample",)
    assert loaded.held_out is None


def test_float32_comes_back_to_its_rounding_and_says_so(grams: LayerGrams, saved: Path, tmp_path: Path) -> None:
    small = tmp_path / "small.safetensors"
    grams.save(small, dtype=torch.float32)
    loaded = LayerGrams.load(small)
    assert all(gap(loaded[name], grams[name]) < 1e-7 for name in grams)
    assert all(loaded[name].dtype == torch.float64 for name in grams)
    assert loaded.origin.stored == "float32"  # so that a subtraction forgives what the file rounded
    x, labels = images(8)
    assert (loaded - unweave.fit(small_cnn(), [(x[:3], labels[:3])], transform="plain")).samples == 5
    assert same_bits(loaded.held_out, grams.held_out)
    assert small.stat().st_size < 0.65 * saved.stat().st_size


def test_another_dtype_is_refused(grams: LayerGrams, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"bfloat16.*float64, torch\.float32"):
        grams.save(tmp_path / "g", dtype=torch.bfloat16)
    assert list(tmp_path.iterdir()) == []


def test_only_the_upper_triangle_is_stored(grams: LayerGrams, saved: Path) -> None:
    stored = parse(saved.read_bytes())
    expected = {f"gram.{n}": (i.groups, i.d * (i.d + 1) // 2) for n, i in grams.layers.items()}
    assert {name: tuple(t.shape) for name, t in stored.items() if name.startswith("gram.")} == expected
    numbers = sum(t.numel() for t in stored.values())
    assert saved.stat().st_size < 8 * numbers + 4096


def test_a_diagonal_a_little_below_zero_is_no_damage(tmp_path: Path) -> None:
    """After a request, sums may fall below zero within a tolerance; what was saved must load."""
    gram = spectrum_gram([3, 2, 1])
    gram[0, 0] = -0.01
    grams_from({"layer": gram}, forgotten=("a request",)).save(tmp_path / "g")
    assert LayerGrams.load(tmp_path / "g")["layer"][0, 0] == -0.01


def test_a_bare_file_name_is_a_path(grams: LayerGrams, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    grams.save("g.safetensors")
    assert LayerGrams.load("g.safetensors") == grams


# ------------------------------------------------------------------------------------------- what is not a file of ours


@pytest.mark.parametrize("length", [0, 3, 8, 100, 0.5, -1])
def test_a_truncated_file_is_refused(saved: Path, length: float) -> None:
    blob = saved.read_bytes()
    saved.write_bytes(blob[: int(length * len(blob)) if length == 0.5 else int(length)])
    with pytest.raises(StoreError, match=r"grams.safetensors is damaged.*Restore it or fit again"):
        LayerGrams.load(saved)


@pytest.mark.parametrize("place", [0.3, 0.6, 0.999])
def test_an_altered_byte_among_the_tensors_is_noticed(saved: Path, place: float) -> None:
    blob = bytearray(saved.read_bytes())
    (header,) = struct.unpack("<Q", blob[:8])
    position = 8 + header + int(place * (len(blob) - 8 - header))
    blob[position] ^= 1
    saved.write_bytes(blob)
    with pytest.raises(StoreError, match=r"was altered: its SHA-256"):
        LayerGrams.load(saved)


@pytest.mark.parametrize("old, new", [(b'"samples\\": 8', b'"samples\\": 9'), (b'\\"plain\\"', b'\\"pLain\\"')])
def test_an_altered_record_is_noticed(saved: Path, old: bytes, new: bytes) -> None:
    blob = saved.read_bytes()
    altered = blob.replace(old.replace(b'"samples', b'\\"samples'), new.replace(b'"samples', b'\\"samples'))
    assert altered != blob
    saved.write_bytes(altered)
    with pytest.raises(StoreError, match=r"was altered: its SHA-256"):
        LayerGrams.load(saved)


@pytest.mark.parametrize("metadata", [None, {"format": "pt"}])
def test_a_foreign_safetensors_file_is_refused(tmp_path: Path, metadata: dict[str, str] | None) -> None:
    path = tmp_path / "weights.safetensors"
    path.write_bytes(serialise({"weight": torch.ones(2)}, metadata=metadata))
    with pytest.raises(StoreError, match=r"weights\.safetensors is a safetensors file of something else.*grams\.save"):
        LayerGrams.load(path)


@pytest.mark.parametrize(
    "content",
    [
        b"G = sum r r^T, written down by hand\n",
        bytes(1000),
        struct.pack("<Q", 2) + b"[]",
        struct.pack("<Q", 18) + b'{"__metadata__":5}',
        struct.pack("<Q", 2) + b"\xff\xfe",
    ],
)
def test_a_file_that_is_no_safetensors_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "notes.txt"
    path.write_bytes(content)
    with pytest.raises(StoreError, match=r"notes\.txt is damaged or not a safetensors file"):
        LayerGrams.load(path)


def test_a_pickle_is_refused_and_never_run(tmp_path: Path) -> None:
    class Trap:
        def __reduce__(self) -> Any:
            return (Path.touch, (tmp_path / "sprung",))

    torch.save({"gram": Trap()}, tmp_path / "grams.pt")
    with pytest.raises(StoreError, match="not a safetensors file"):
        LayerGrams.load(tmp_path / "grams.pt")
    assert not (tmp_path / "sprung").exists()


def forge(path: Path, change: Callable[[dict[str, str], dict[str, Tensor]], object]) -> None:
    """Rewrite a file with a change and a digest that fits it."""
    blob = path.read_bytes()
    header, tensors = store.metadata_of(blob), parse(blob)
    change(header, tensors)
    header["sha256"] = store.digest_of(tensors, header)
    path.write_bytes(serialise(tensors, metadata=header))


@pytest.mark.parametrize("version", ["0", "2", "99", "one"])
def test_another_version_is_refused_with_both_versions(saved: Path, version: str) -> None:
    forge(saved, lambda header, tensors: header.update(version=version))
    with pytest.raises(StoreError, match=rf"has version {version} .*this release reads 1\. Use the release"):
        LayerGrams.load(saved)


def test_a_wrong_shape_is_refused_by_the_layer_s_name(saved: Path) -> None:
    forge(saved, lambda header, tensors: tensors.update({"gram.3": tensors["gram.3"][:, 1:].contiguous()}))
    with pytest.raises(StoreError, match=r"layer '3' is of shape \[2, 377\], expected \[2, 378\]"):
        LayerGrams.load(saved)


def test_a_missing_gram_is_refused_by_the_layer_s_name(saved: Path) -> None:
    forge(saved, lambda header, tensors: tensors.pop("gram.3").sum())
    with pytest.raises(StoreError, match=r"layer '3' is missing, expected \[2, 378\]"):
        LayerGrams.load(saved)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_values_that_are_not_finite_are_refused_by_the_layer_s_name(saved: Path, value: float) -> None:
    forge(saved, lambda header, tensors: tensors["gram.7"][0].__setitem__(5, value))
    with pytest.raises(StoreError, match="layer '7' is not finite"):
        LayerGrams.load(saved)


def test_a_profile_of_the_wrong_shape_is_refused(saved: Path) -> None:
    forge(
        saved,
        lambda header, tensors: tensors.update({"held_out.margin": tensors["held_out.margin"][:, :7].contiguous()}),
    )
    with pytest.raises(StoreError, match=r"held_out\.margin is missing or has the wrong shape"):
        LayerGrams.load(saved)


def test_a_file_from_before_tf32_holds_grams_of_full_float32(grams: LayerGrams, saved: Path) -> None:
    def before(header: dict[str, str], tensors: dict[str, Tensor]) -> None:
        origin = json.loads(header["origin"])
        assert origin.pop("convolutions") == "float32"
        header["origin"] = json.dumps(origin)

    forge(saved, before)
    assert LayerGrams.load(saved) == grams


@pytest.mark.parametrize("forgotten", [(), ("a sample",)])
def test_files_that_do_not_say_whether_sums_are_exact(
    grams: LayerGrams, tmp_path: Path, forgotten: tuple[str, ...]
) -> None:
    """They are of releases without first=, whose later requests were not."""

    def before(header: dict[str, str], _: Any) -> None:
        origin = json.loads(header["origin"])
        assert origin.pop("drifted") is False
        assert origin.pop("unsteady") is False
        header["origin"] = json.dumps(origin)

    grams.belonging_to("f" * 64, forgotten=forgotten, held_out=None).save(tmp_path / "g")
    forge(tmp_path / "g", before)
    loaded = LayerGrams.load(tmp_path / "g").origin
    assert loaded.drifted == bool(forgotten)
    assert not loaded.unsteady, "nobody saw it"


@pytest.mark.parametrize(
    "change",
    [
        lambda header, tensors: header.pop("origin"),
        lambda header, tensors: header.update(origin="not JSON"),
        lambda header, tensors: header.update(origin=json.dumps({"forgotten": []})),
        lambda header, tensors: header.update(layers=json.dumps({"3": {"kind": "Linear"}})),
        lambda header, tensors: header.update(layers="[1, 2]"),
        lambda header, tensors: header.update(origin=header["origin"].replace('"float32"', '"fp8"')),
    ],
)
def test_metadata_that_makes_no_sense_is_refused(saved: Path, change: Any) -> None:
    forge(saved, change)
    with pytest.raises(StoreError, match="metadata cannot be read"):
        LayerGrams.load(saved)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"Cannot read .*nowhere: No such file.*grams\.save"):
        LayerGrams.load(tmp_path / "nowhere")


def test_a_folder_is_no_file(grams: LayerGrams, tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="Is a directory"):
        LayerGrams.load(tmp_path)
    with pytest.raises(StoreError, match="Is a directory"):
        grams.save(tmp_path)


@pytest.mark.parametrize("place", ["no/such/folder/g", "a file/g", "x" * 300])
def test_a_place_that_cannot_be_written_is_refused_with_the_reason(
    grams: LayerGrams, tmp_path: Path, place: str
) -> None:
    (tmp_path / "a file").write_text("not a folder")
    with pytest.raises(
        StoreError, match=r"Cannot write .*(No such file|Not a directory|too long).*Nothing was changed"
    ):
        grams.save(tmp_path / place)
    assert [p.name for p in tmp_path.iterdir()] == ["a file"]


# ------------------------------------------------------------------------------------------------------- all or nothing


def full_disk(*_: Any) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_full_disk_leaves_the_old_file_and_nothing_else(
    grams: LayerGrams, saved: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    before = saved.read_bytes()
    monkeypatch.setattr(files.os, call, full_disk)
    with pytest.raises(StoreError, match=r"No space left on device.*Nothing was changed; free space"):
        (grams + grams).save(saved)
    assert saved.read_bytes() == before
    assert list(saved.parent.iterdir()) == [saved]


def test_an_interruption_leaves_the_old_file_and_nothing_else(
    grams: LayerGrams, saved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    before = saved.read_bytes()
    monkeypatch.setattr(files.os, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        (grams + grams).save(saved)
    assert saved.read_bytes() == before
    assert list(saved.parent.iterdir()) == [saved]


def test_a_file_system_that_cannot_sync_folders_still_stores(
    grams: LayerGrams, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rename has happened by then: to say that nothing was changed would be false."""
    sync = os.fsync
    calls: list[int] = []

    def only_files(descriptor: int) -> None:
        calls.append(descriptor)
        if len(calls) > 1:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        sync(descriptor)

    monkeypatch.setattr(files.os, "fsync", only_files)
    grams.save(tmp_path / "g")
    assert len(calls) == 2
    assert LayerGrams.load(tmp_path / "g") == grams


def run_python(program: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)


def test_a_real_limit_on_the_file_size_leaves_the_old_file(grams: LayerGrams, saved: Path) -> None:
    before = saved.read_bytes()
    done = run_python(f"""
import resource, unweave
grams = unweave.LayerGrams.load({str(saved)!r})
resource.setrlimit(resource.RLIMIT_FSIZE, (5000, 5000))
try:
    (grams + grams).save({str(saved)!r})
except unweave.errors.StoreError as error:
    print(error)
""")
    assert "File too large. Nothing was changed" in done.stdout, done.stderr
    assert saved.read_bytes() == before
    assert list(saved.parent.iterdir()) == [saved]


def test_a_crash_before_the_rename_leaves_the_old_file_and_a_way_on(grams: LayerGrams, saved: Path) -> None:
    """The process id is made the same as ours, as it is for a container that starts again."""
    done = run_python(f"""
import os, unweave
from unweave import store
os.getpid = lambda: {os.getpid()}
os.replace = lambda *_: os._exit(9)
grams = unweave.LayerGrams.load({str(saved)!r})
(grams + grams).save({str(saved)!r})
""")
    assert done.returncode == 9, done.stderr
    assert len(list(saved.parent.iterdir())) == 2  # what the crash left
    assert LayerGrams.load(saved) == grams
    (grams + grams).save(saved)
    assert LayerGrams.load(saved).samples == 16


def test_savers_at_the_same_time_do_not_disturb_each_other(grams: LayerGrams, saved: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: grams.save(saved), range(24)))
    assert LayerGrams.load(saved) == grams
    assert list(saved.parent.iterdir()) == [saved]


# ------------------------------------------------------------------------------------------------------ no pickle, ever


UNPICKLERS = {"pickle", "cPickle", "_pickle", "dill", "cloudpickle", "joblib", "shelve", "marshal"}


def unsafe_lines(source: str) -> list[int]:
    """Where code calls something of an unpickler's, or loads with torch or numpy in a way that may unpickle."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in UNPICKLERS:
            found += [node.lineno for alias in node.names if not alias.name.endswith("Error")]
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            module = getattr(node.func.value, "id", "")
            settings = {k.arg: getattr(k.value, "value", None) for k in node.keywords}
            bare_torch = (module, node.func.attr) == ("torch", "load") and settings.get("weights_only") is not True
            if module in UNPICKLERS or bare_torch or settings.get("allow_pickle", False) is not False:
                found.append(node.lineno)
    return found


@pytest.mark.parametrize(
    "line",
    [
        "pickle.load(f)",
        "from dill import loads",
        "torch.load(p)",
        "torch.load(p, weights_only=False)",
        "numpy.load(p, allow_pickle=True)",
    ],
)
def test_the_search_for_pickle_finds_it(line: str) -> None:
    assert unsafe_lines(line) == [1]


def test_nothing_in_the_package_unpickles() -> None:
    assert unsafe_lines("torch.load(p, weights_only=True)") == []
    found = {path.name: unsafe_lines(path.read_text("utf-8")) for path in SOURCE.rglob("*.py")}
    assert {name: lines for name, lines in found.items() if lines} == {}


def test_a_device_is_not_replaced_by_a_file(grams: LayerGrams, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(StoreError, match="no ordinary file"):
        grams.save(pipe)
    assert pipe.is_fifo()


@pytest.mark.parametrize("change", [lambda origin: origin.update(samples=0), lambda origin: origin.update(samples=-5)])
def test_counts_that_cannot_be_are_refused(saved: Path, change: Any) -> None:
    def alter(header: dict[str, str], tensors: Any) -> None:
        origin = json.loads(header["origin"])
        change(origin)
        header["origin"] = json.dumps(origin)

    forge(saved, alter)
    with pytest.raises(StoreError, match=r"counts .* samples"):
        LayerGrams.load(saved)


def test_grams_of_low_rank_keep_their_null_space_through_a_float32_file(tmp_path: Path) -> None:
    """Rounding in the file must not pass for directions of the data."""
    x, labels = torch.randn(6, 40), torch.arange(6) % 3
    grams = unweave.fit(torch.nn.Linear(40, 3), [(x, labels)])
    grams.save(tmp_path / "g", dtype=torch.float32)
    assert unweave.CoreSpace.from_grams(LayerGrams.load(tmp_path / "g"), gamma=1).ranks == {"": 6}
