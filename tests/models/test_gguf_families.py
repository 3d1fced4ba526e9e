"""Files of every architecture that llama.cpp's converter writes give transformers' logits."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import gguf
import pytest
import torch

from tests.models import gguf_files
from tests.models.checkpoints import make_model
from tests.models.gguf_cases import GGUF_CASES
from tests.models.gguf_files import headers, ternary, write_case
from tests.models.runner import PagedRunner, load
from vllm_lite.config.checkpoints.architectures import GGUF_ARCHITECTURES
from vllm_lite.errors import CheckpointError

IDS = torch.randint(0, 131, (44,), generator=torch.Generator().manual_seed(1)).tolist()


@pytest.mark.parametrize("case", headers())
@torch.inference_mode()
def test_logits_equal_transformers(case: str, tmp_path: Path) -> None:
    family, changes = GGUF_CASES[case]
    reference = make_model(family, **changes)
    path = write_case(case, reference, tmp_path)
    if family == "bitnet":
        reference.load_state_dict(ternary({}, reference.state_dict()))
    want = reference(torch.tensor([IDS])).logits[0].float()
    got = PagedRunner(load(path)).step({"a": IDS})["a"]
    torch.testing.assert_close(got, want, atol=1e-4, rtol=0)


@torch.inference_mode()
def test_early_files_of_gemma_3n_say_less(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    case, unsaid = "gemma3n-published", ("final_logit_softcapping", "freq_base_swa")
    fields = {key: told for key, told in headers()[case].items() if not key.endswith(unsaid)}
    monkeypatch.setattr(gguf_files, "headers", lambda: {case: fields})
    family, changes = GGUF_CASES[case]
    reference = make_model(family, **changes)
    want = reference(torch.tensor([IDS])).logits[0].float()
    got = PagedRunner(load(write_case(case, reference, tmp_path))).step({"a": IDS})["a"]
    torch.testing.assert_close(got, want, atol=1e-4, rtol=0)


@pytest.mark.parametrize("kind", ["Q8_0", "MXFP4"])
@pytest.mark.parametrize("case", ["qwen3_5-wide", "gpt_oss-wide", "deepseek_v2-wide"])
@torch.inference_mode()
def test_blocks_are_computed_with_or_expanded(case: str, kind: str, tmp_path: Path) -> None:
    family, changes = GGUF_CASES[case]
    stored = gguf.GGMLQuantizationType[kind]
    logits = []
    for is_expanded in (False, True):
        folder = tmp_path / str(is_expanded)
        folder.mkdir()
        path = write_case(
            case, make_model(family, **changes), folder, stored, is_expanded=is_expanded
        )
        logits.append(PagedRunner(load(path)).step({"a": IDS})["a"])
    assert torch.nn.functional.cosine_similarity(*logits, dim=1).min() > 0.999


def split(path: Path, sizes: Sequence[int]) -> list[Path]:
    """The file `path` in parts of so many tensors, as llama-gguf-split names and marks them."""
    reader = gguf.GGUFReader(path)
    tensors = list(reader.tensors)
    parts = []
    for number, size in enumerate(sizes):
        part = path.with_name(f"part-{number + 1:05}-of-{len(sizes):05}.gguf")
        writer = gguf.GGUFWriter(part, reader.get_field("general.architecture").contents())
        writer.add_uint16("split.no", number)
        writer.add_uint16("split.count", len(sizes))
        writer.add_int32("split.tensors.count", len(tensors))
        for key, field in reader.fields.items():
            if number == 0 and not key.startswith(("GGUF.", "general.architecture")):
                inner = field.types[-1] if field.types[0].name == "ARRAY" else None
                writer.add_key_value(key, field.contents(), field.types[0], inner)
        first = sum(sizes[:number])
        for tensor in tensors[first : first + size]:
            writer.add_tensor(tensor.name, tensor.data)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        parts.append(part)
    path.unlink()
    return parts


@torch.inference_mode()
def test_a_file_in_parts_opens_by_any_of_them_or_by_its_folder(tmp_path: Path) -> None:
    whole = write_case("llama", make_model("llama"), tmp_path)
    want = PagedRunner(load(whole)).step({"a": IDS})["a"]
    parts = split(whole, (0, 5, 16))
    for path in (parts[0], parts[2], tmp_path):
        assert torch.equal(PagedRunner(load(path)).step({"a": IDS})["a"], want)
    parts[1].unlink()
    with pytest.raises(CheckpointError, match=r"lacks its part .*part-00002-of-00003\.gguf"):
        load(parts[0])
    parts[2].rename(tmp_path / "last.gguf")
    with pytest.raises(CheckpointError, match=r"last.gguf is one of several parts"):
        load(tmp_path / "last.gguf")


def test_every_name_has_a_case() -> None:
    names = {fields["general.architecture"][2] for fields in headers().values()}
    # The converter calls it llama.
    # Encoders are in tests/models/encoders.
    decoders = {name for name, row in GGUF_ARCHITECTURES.items() if row.is_causal}
    assert names == decoders - {"mistral"}
