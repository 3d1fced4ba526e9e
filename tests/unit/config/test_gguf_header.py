"""The GGUF header parser: exact on good files, one typed error on any damage."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.checkpoints import gguf_bytes, write_gguf
from vllm_lite.config.checkpoints.gguf_header import read_gguf
from vllm_lite.errors import CheckpointError

GOOD = gguf_bytes()


def test_metadata_and_tensors_are_read(tmp_path: Path) -> None:
    gguf = read_gguf(write_gguf(tmp_path / "m.gguf"))
    assert gguf.metadata["llama.block_count"] == 2
    assert gguf.metadata["tokenizer.ggml.add_bos_token"] is True
    assert gguf.metadata["tokenizer.ggml.tokens"].tolist() == ["<s>", "</s>", "é", "b"]
    assert list(gguf.metadata["tokenizer.ggml.scores"]) == [0.5, 1.5, 2.5, 3.5]
    tensor = gguf.tensors["token_embd.weight"]
    assert (tensor.shape, tensor.ggml_type, tensor.nbytes) == ((100, 64), 0, 25600)
    assert tensor.offset % 32 == 0
    assert bytes(gguf.tensor_data("output_norm.weight")) == bytes(256)


def test_the_gguf_package_reads_the_same(tmp_path: Path) -> None:
    from gguf import GGUFReader

    path = write_gguf(tmp_path / "m.gguf")
    ours, theirs = read_gguf(path), GGUFReader(path)
    for key, value in ours.metadata.items():
        plain = value.tolist() if hasattr(value, "tolist") else value
        assert theirs.fields[key].contents() == plain
    for tensor in theirs.tensors:
        mine = ours.tensors[tensor.name]
        assert (mine.offset, mine.nbytes) == (tensor.data_offset, tensor.n_bytes)
        assert mine.shape == tuple(reversed(tensor.shape.tolist()))


def test_quantised_sizes_follow_the_block_layout(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf", {}, {"w": (3, 64)}, ggml_type=3)  # Q4_1
    assert read_gguf(path).tensors["w"].nbytes == 3 * 2 * 20


@given(length=st.integers(0, len(GOOD) - 1))
@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_truncated_file_is_one_typed_error(tmp_path: Path, length: int) -> None:
    path = tmp_path / "short.gguf"
    path.write_bytes(GOOD[:length])
    with pytest.raises(CheckpointError):
        read_gguf(path)


@given(position=st.integers(0, 700), word=st.binary(min_size=1, max_size=8))
@settings(max_examples=400, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_damage_is_read_or_refused_but_never_crashes(
    tmp_path: Path, position: int, word: bytes
) -> None:
    path = tmp_path / "damaged.gguf"
    path.write_bytes(GOOD[:position] + word + GOOD[position + len(word) :])
    try:
        gguf = read_gguf(path)
    except CheckpointError as error:
        assert "\n" not in str(error)
        return
    for value in gguf.metadata.values():
        list(value) if hasattr(value, "tolist") else None
    for name in gguf.tensors:
        assert len(gguf.tensor_data(name)) == gguf.tensors[name].nbytes


@pytest.mark.parametrize(
    ("data", "cause"),
    [
        (b"", "Cannot read"),
        (b"safetensors, surely" * 4, "letters GGUF"),
        (gguf_bytes(version=1), "version 1"),
        (gguf_bytes(version=0x03000000), "big-endian"),
        (b"GGUF" + struct.pack("<IQQ", 3, 2**60, 2**60), "claims"),
        (gguf_bytes({"general.alignment": 3}), "alignment"),
        (gguf_bytes({"general.alignment": 4}), "alignment"),
        (gguf_bytes({"general.alignment": True}), "alignment"),
        (gguf_bytes({}, {"w": (2, 33)}, ggml_type=8), "whole Q8_0 blocks"),
        (gguf_bytes({}, {"w": (2, 32)}, ggml_type=77), "unknown type 77"),
    ],
)
def test_the_error_says_what_is_wrong(tmp_path: Path, data: bytes, cause: str) -> None:
    path = tmp_path / "bad.gguf"
    path.write_bytes(data)
    with pytest.raises(CheckpointError, match=cause):
        read_gguf(path)


def test_a_tensor_that_claims_more_than_the_file_is_refused(tmp_path: Path) -> None:
    dims = struct.pack("<QQ", 64, 100)
    data = GOOD.replace(dims, struct.pack("<QQ", 2**62, 2**62))
    (tmp_path / "m.gguf").write_bytes(data)
    with pytest.raises(CheckpointError, match=r"token_embd\.weight"):
        read_gguf(tmp_path / "m.gguf")


@pytest.mark.parametrize("offset", [0, 8, 32, 25600 - 32, 25600 + 1, 25600 + 32, 2**63])
def test_tensors_that_overlap_or_leave_gaps_are_refused(tmp_path: Path, offset: int) -> None:
    name = b"output_norm.weight"
    place = GOOD.index(name) + len(name) + 4 + 8 + 4
    assert struct.unpack_from("<Q", GOOD, place) == (25600,)
    data = GOOD[:place] + struct.pack("<Q", offset) + GOOD[place + 8 :]
    (tmp_path / "m.gguf").write_bytes(data + bytes(64))
    with pytest.raises(CheckpointError, match=r"'output_norm\.weight' begins at"):
        read_gguf(tmp_path / "m.gguf")


def test_a_missing_file_is_a_checkpoint_error(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="Cannot read"):
        read_gguf(tmp_path / "none.gguf")
