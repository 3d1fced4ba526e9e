"""Every load format gives the model that its safetensors give; damage is one line."""

from __future__ import annotations

import ctypes
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from tests.models.checkpoints import make_model, save
from tests.models.runner import PagedRunner, load
from vllm_lite import LLM, SamplingParams
from vllm_lite.errors import CheckpointError, RequestError, UsageError
from vllm_lite.loader import prefetch, safetensors

IDS = [5, 9, 2, 77, 130, 0, 31]


def logits(path: Path, **options: object) -> torch.Tensor:
    return PagedRunner(load(path, **options)).step({"a": IDS})["a"]


def refusal(path: Path, **options: object) -> str:
    with pytest.raises((CheckpointError, UsageError)) as caught:
        load(path, **options)
    message = str(caught.value)
    assert "\n" not in message
    return message


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(make_model("llama"), tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def expected(tiny: Path) -> torch.Tensor:
    return logits(tiny)


def pickle_weights(tiny: Path, path: Path, num_files: int = 1) -> Path:
    """A copy of the checkpoint in torch's format."""
    path.mkdir(exist_ok=True)
    (path / "config.json").write_bytes((tiny / "config.json").read_bytes())
    tensors = load_file(tiny / "model.safetensors")
    if num_files == 1:
        torch.save(tensors, path / "pytorch_model.bin")
        return path
    weight_map = {}
    for i in range(num_files):
        names = sorted(tensors)[i::num_files]
        torch.save({name: tensors[name] for name in names}, path / f"part-{i}.bin")
        weight_map |= dict.fromkeys(names, f"part-{i}.bin")
    index = path / "pytorch_model.bin.index.json"
    index.write_text(json.dumps({"weight_map": weight_map}))
    return path


@pytest.mark.parametrize("strategy", ["lazy", "eager", "prefetch", "torchao"])
def test_strategies_change_no_weight(tiny: Path, expected: torch.Tensor, strategy: str) -> None:
    found = logits(tiny, load_format="safetensors", safetensors_load_strategy=strategy)
    assert torch.equal(found, expected)


@pytest.mark.parametrize("load_format", ["auto", "hf", "pt", "npcache"])
@pytest.mark.parametrize("num_files", [1, 3])
def test_pickled_weights_are_read_with_a_warning(
    tiny: Path,
    tmp_path: Path,
    expected: torch.Tensor,
    caplog: pytest.LogCaptureFixture,
    load_format: str,
    num_files: int,
) -> None:
    pickle_weights(tiny, tmp_path, num_files)
    torch.save({"lr": torch.ones(1)}, tmp_path / "optimizer.bin")
    assert torch.equal(logits(tmp_path, load_format=load_format), expected)
    assert "is a pickle" in caplog.text


def test_numpys_copies_are_read_until_the_weights_change(
    tiny: Path, tmp_path: Path, expected: torch.Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    pickle_weights(tiny, tmp_path)
    tensors = torch.load(tmp_path / "pytorch_model.bin", weights_only=True)
    torch.save({name: t.bfloat16() for name, t in tensors.items()}, tmp_path / "pytorch_model.bin")
    rounded = logits(tmp_path, load_format="pt")
    assert torch.equal(logits(tmp_path, load_format="npcache"), rounded)
    with monkeypatch.context() as patch:
        patch.delattr(torch, "load")
        assert torch.equal(logits(tmp_path, load_format="npcache"), rounded)
    pickle_weights(tiny, tmp_path)
    assert torch.equal(logits(tmp_path, load_format="npcache"), expected)
    (tmp_path / "np" / "pytorch_model.bin" / "weight_names.json").write_text("[")
    assert "delete it" in refusal(tmp_path, load_format="npcache")


class Hostile:
    """Runs a command where it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Callable[..., object], tuple[str]]:
        return os.mkdir, (str(self.path),)


def test_a_pickle_runs_no_code(tiny: Path, tmp_path: Path) -> None:
    pickle_weights(tiny, tmp_path)
    tensors = load_file(tiny / "model.safetensors")
    torch.save({**tensors, "more": Hostile(tmp_path / "harm")}, tmp_path / "pytorch_model.bin")
    for load_format in ("auto", "pt", "npcache"):
        message = refusal(tmp_path, load_format=load_format)
        assert "pytorch_model.bin" in message and "mkdir" in message
        assert "weights_only" not in message
    assert not (tmp_path / "harm").exists()


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data[: len(data) // 2],
        lambda data: data[:-100],
        lambda data: b"",
        lambda data: b"\xff" * len(data),
        lambda data: data[:30] + b"\xff" * 400 + data[430:],
    ],
)
@pytest.mark.parametrize("load_format", ["pt", "npcache"])
def test_a_damaged_pickle_is_refused(
    tiny: Path, tmp_path: Path, damage: Callable[[bytes], bytes], load_format: str
) -> None:
    file = pickle_weights(tiny, tmp_path) / "pytorch_model.bin"
    file.write_bytes(damage(file.read_bytes()))
    assert "pytorch_model.bin" in refusal(tmp_path, load_format=load_format)


@pytest.mark.parametrize("content", [[torch.ones(2)], {"a": 1}, {1: torch.ones(2)}])
def test_a_pickle_of_something_else_is_refused(tiny: Path, tmp_path: Path, content: object) -> None:
    pickle_weights(tiny, tmp_path)
    torch.save(content, tmp_path / "pytorch_model.bin")
    assert "pytorch_model.bin" in refusal(tmp_path, load_format="pt")


def test_a_missing_part_and_a_name_that_leads_out(tiny: Path, tmp_path: Path) -> None:
    pickle_weights(tiny, tmp_path, num_files=3)
    (tmp_path / "part-1.bin").unlink()
    assert "part-1.bin" in refusal(tmp_path)
    index = tmp_path / "pytorch_model.bin.index.json"
    index.write_text(index.read_text().replace("part-1.bin", "../part-1.bin"))
    assert "../part-1.bin" in refusal(tmp_path)


def test_a_format_without_files_says_so(tiny: Path, tmp_path: Path) -> None:
    assert "*.bin" in refusal(tiny, load_format="pt")
    assert "*.safetensors" in refusal(pickle_weights(tiny, tmp_path), load_format="safetensors")


def test_a_device_that_is_not_there_is_named(tiny: Path, tmp_path: Path) -> None:
    pickle_weights(tiny, tmp_path)
    message = refusal(tmp_path, pt_load_map_location="nowhere")
    assert "--pt-load-map-location nowhere" in message
    assert logits(tmp_path, pt_load_map_location={"cuda:1": "cpu"}).isfinite().all()


def test_threads_prefetch_in_blocks(
    tiny: Path, expected: torch.Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls, asked = [], []

    def record(files: list[Path], num_threads: int, block_size: int) -> None:
        calls.append((num_threads, block_size))
        for thread in prefetch.prefetch(files, num_threads, block_size):
            thread.join()

    monkeypatch.setattr("vllm_lite.loader.formats.prefetch", record)
    monkeypatch.setattr(prefetch, "_ASKED_AT_ONCE", 600)
    monkeypatch.setattr(os, "posix_fadvise", lambda file, *place: asked.append(place[:2]))
    options = {"safetensors_prefetch_num_threads": 3, "safetensors_prefetch_block_size": 1000}
    assert torch.equal(logits(tiny, safetensors_load_strategy="prefetch", **options), expected)
    size = (tiny / "model.safetensors").stat().st_size
    whole = [piece for at in range(0, size, 1000) for piece in ((at, 600), (at + 600, 400))]
    assert sorted(asked) == whole
    # Other files are asked for in order.
    asked.clear()
    logits(tiny, safetensors_load_strategy=None, **options)
    assert asked == whole
    logits(tiny, safetensors_load_strategy="eager", **options)
    # What does not fit would be read twice.
    monkeypatch.setattr("vllm_lite.loader.formats.free_memory", lambda: size)
    logits(tiny, **options)
    assert calls == [(3, 1000), (1, 1000), (1, 1000), (0, 1000)]
    # Nothing depends on it.
    monkeypatch.delattr(os, "posix_fadvise")
    assert torch.equal(logits(tiny, safetensors_load_strategy="prefetch"), expected)


def test_files_of_a_network_are_prefetched(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mounts = tmp_path / "mounts"
    mounts.write_text(f"disk / ext4 rw 0 0\nserver:/ {tiny} nfs4 rw 0 0\n")
    monkeypatch.setattr(prefetch, "_MOUNTS", mounts)
    files = [tiny / "model.safetensors"]
    assert prefetch.is_worth_it(files, 1 << 30)
    assert not prefetch.is_worth_it(files, 1)
    mounts.write_text("disk / ext4 rw 0 0\n")
    assert not prefetch.is_worth_it(files, 1 << 30)


def test_threads_that_load_are_as_many_as_said(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from vllm_lite.loader import load as loading

    made = []

    class Pool(loading.ThreadPoolExecutor):
        def __init__(self, count: int, *rest: object) -> None:
            made.append(count)
            super().__init__(count, *rest)

    monkeypatch.setattr(loading, "ThreadPoolExecutor", Pool)
    load(tiny, model_loader_extra_config={"enable_multithread_load": True, "num_threads": 5})
    load(tiny, model_loader_extra_config={"enable_multithread_load": False})
    assert made == [5, 1]
    assert "num_threads" in refusal(tiny, model_loader_extra_config={"num_threads": 0})
    assert "concurrency" in refusal(tiny, model_loader_extra_config={"concurrency": 4})
    given = {"load_format": "dummy", "model_loader_extra_config": {"num_threads": 1}}
    assert "dummy" in refusal(tiny, **given)


# Packages that tests do without, and the files that each reads.
PACKAGES = {
    "runai_streamer": "runai_model_streamer",
    "fastsafetensors": "fastsafetensors",
    "tensorizer": "tensorizer",
}


@pytest.fixture(params=PACKAGES)
def packaged(request: pytest.FixtureRequest, tiny: Path, tmp_path: Path) -> tuple[str, Path]:
    """A format, and a directory with weights that its package reads."""
    load_format: str = request.param
    package = pytest.importorskip(PACKAGES[load_format])
    path = describe_like(tiny, tmp_path / "packaged")
    if load_format != "tensorizer":
        (path / "model.safetensors").write_bytes((tiny / "model.safetensors").read_bytes())
        return load_format, path
    writer = package.TensorSerializer(path / "model.tensors")
    for i, (name, tensor) in enumerate(load_file(tiny / "model.safetensors").items()):
        writer.write_tensor(i, name, package.TensorType.PARAM, tensor)
    writer.close()
    return load_format, path


def test_packages_read_the_same_weights(packaged: tuple[str, Path], expected: torch.Tensor) -> None:
    load_format, path = packaged
    assert torch.equal(logits(path, load_format=load_format), expected)
    (file,) = (*path.glob("*.safetensors"), *path.glob("*.tensors"))
    data = file.read_bytes()
    for size in (3, 300, len(data) - 2000):
        file.write_bytes(data[:size])
        assert file.name in refusal(path, load_format=load_format)


def test_tensorizer_takes_addresses_as_they_are(
    tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package, asked = pytest.importorskip("tensorizer"), []

    def open_address(source: Any, **options: Any) -> None:
        asked.append(source)
        raise OSError("no such bucket")

    monkeypatch.setattr(package, "TensorDeserializer", open_address)
    given = {"tensorizer_uri": "s3://weights/model.tensors"}
    message = refusal(tiny, load_format="tensorizer", model_loader_extra_config=given)
    assert asked == ["s3://weights/model.tensors"]
    assert "s3://weights/model.tensors cannot be read" in message


def test_the_streamers_settings_reach_it(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("runai_model_streamer")
    for name in ("RUNAI_STREAMER_CONCURRENCY", "RUNAI_STREAMER_MEMORY_LIMIT"):
        monkeypatch.setenv(name, "1")  # and back at the end
    extra = {"concurrency": 3, "memory_limit": 1 << 20}
    load(tiny, load_format="runai_streamer", model_loader_extra_config=extra)
    find = ctypes.CDLL(None).getenv
    find.restype = ctypes.c_char_p
    assert find(b"RUNAI_STREAMER_CONCURRENCY") == b"3"
    assert find(b"RUNAI_STREAMER_MEMORY_LIMIT") == b"1048576"


@pytest.mark.parametrize("is_turned", [False, True])
def test_streamed_tensors_are_let_go(
    tiny: Path, monkeypatch: pytest.MonkeyPatch, is_turned: bool
) -> None:
    """Whatever the order, no more are kept than allowed, and all can be read, also again."""
    tensors = load_file(tiny / "model.safetensors")
    names = sorted(tensors, reverse=is_turned)
    most = sum(tensor.nbytes for tensor in tensors.values()) // 4
    monkeypatch.setattr(safetensors, "_MOST_KEPT", most)
    stream = ((name, tensors[name].clone()) for name in names)
    file = safetensors.StreamedFile(tiny / "model.safetensors", lambda _: stream)
    for name in [*sorted(tensors), *sorted(tensors)]:
        whole = tuple(slice(0, size) for size in tensors[name].shape)
        assert torch.equal(file.read(name, whole), tensors[name])
        assert sum(tensor.nbytes for tensor in file._kept.values()) <= most


@pytest.mark.parametrize("load_format", PACKAGES)
def test_a_missing_package_is_named_with_its_extra(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, load_format: str
) -> None:
    monkeypatch.setitem(sys.modules, PACKAGES[load_format], None)
    path = describe_like(tiny, tmp_path / "other")
    (path / "model.tensors").write_bytes((tiny / "model.safetensors").read_bytes())
    (path / "model.safetensors").write_bytes((tiny / "model.safetensors").read_bytes())
    assert "pip install 'vllm-lite[" in refusal(path, load_format=load_format)


def describe_like(tiny: Path, path: Path) -> Path:
    """A directory with the checkpoint's configuration alone."""
    path.mkdir(parents=True)
    (path / "config.json").write_bytes((tiny / "config.json").read_bytes())
    return path


OPTIONS = {"skip_tokenizer_init": True, "max_model_len": 64, "num_gpu_blocks_override": 20}
IN_PROCESS = {"disable_frontend_multiprocessing": True}


@pytest.mark.parametrize(
    "options",
    [
        {"dtype": "float32"},
        {"dtype": "bfloat16", "quantization": "int8", **IN_PROCESS},
        {"dtype": "float32", "tensor_parallel_size": 2, **IN_PROCESS},
    ],
    ids=["a process", "int8", "ranks"],
)
def test_a_sharded_state_gives_the_same_tokens(
    tiny: Path, tmp_path: Path, options: dict[str, Any]
) -> None:
    prompt, params = {"prompt_token_ids": IDS}, SamplingParams(max_tokens=8, temperature=0)
    if "quantization" in options:
        wide = make_model("llama", hidden_size=64, intermediate_size=96)
        tiny = save(wide, tmp_path / "wide")
    path = describe_like(tiny, tmp_path / "sharded")
    with LLM(str(tiny), **OPTIONS, **options) as llm:
        llm.save_sharded_state(str(path), max_size=20_000)
        before = llm.generate(prompt, params)[0].outputs[0].token_ids
        with pytest.raises(RequestError, match="nowhere"):
            llm.save_sharded_state(str(tmp_path / "nowhere"))
        with pytest.raises(RequestError, match="pattern"):
            llm.save_sharded_state(str(path), pattern="../{rank}-{part}")
    ranks = options.get("tensor_parallel_size", 1)
    for rank in range(ranks):
        assert len(list(path.glob(f"model-rank-{rank}-part-*.safetensors"))) > 1
    with LLM(str(path), load_format="sharded_state", **OPTIONS, **options) as llm:
        assert llm.generate(prompt, params)[0].outputs[0].token_ids == before


def test_a_sharded_state_may_be_streamed(
    tiny: Path, tmp_path: Path, expected: torch.Tensor
) -> None:
    pytest.importorskip(PACKAGES["runai_streamer"])
    path = describe_like(tiny, tmp_path / "sharded")
    with LLM(str(tiny), dtype="float32", **OPTIONS, **IN_PROCESS) as llm:
        llm.save_sharded_state(str(path), max_size=20_000)
    assert torch.equal(logits(path, load_format="runai_streamer_sharded"), expected)
    (path / "model-rank-0-part-1.safetensors").unlink()
    assert "lack" in refusal(path, load_format="runai_streamer_sharded")


def test_a_sharded_state_that_does_not_fit_is_refused(tiny: Path, tmp_path: Path) -> None:
    path = describe_like(tiny, tmp_path / "sharded")
    extra = {"pattern": "own-{rank}-{part}.safetensors"}
    with LLM(str(tiny), dtype="float32", **OPTIONS, **IN_PROCESS) as llm:
        llm.save_sharded_state(str(path), pattern=extra["pattern"], max_size=20_000)
    given: dict[str, Any] = {"load_format": "sharded_state", "model_loader_extra_config": extra}
    load(path, **given)
    assert "--dtype" in refusal(path, **given | {"dtype": "bfloat16"})
    assert "model-rank-0" in refusal(path, load_format="sharded_state")
    (path / "own-0-1.safetensors").unlink()
    assert "lack" in refusal(path, **given)
    (path / "own-0-0.safetensors").write_bytes(b"1234")
    assert "own-0-0.safetensors" in refusal(path, **given)
