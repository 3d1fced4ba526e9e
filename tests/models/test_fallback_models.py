"""Every decoder of transformers without a family gives its logits here, or is refused by name."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.models.checkpoints import save
from tests.models.fallback_models import decoders, make_decoder
from tests.models.fallback_names import RUNS
from tests.models.runner import PagedRunner, load
from tests.models.test_families import expected, ids_of
from vllm_lite.errors import VLLMLiteError

_FEW = ("Jais2ForCausalLM", "LagunaForCausalLM", "DogeForCausalLM", "MBartForCausalLM")


@pytest.mark.parametrize(
    "name",
    [x if x in _FEW else pytest.param(x, marks=pytest.mark.families) for x in decoders()],
)
def test_a_decoder_runs_or_is_refused_by_name(name: str, tmp_path: Path) -> None:
    reference = make_decoder(name)
    if reference is None:
        assert name not in RUNS
        pytest.skip("its sizes cannot be told by their usual names")
    path = save(reference, tmp_path)
    if name not in RUNS:
        with pytest.raises(VLLMLiteError, match=name) as caught:
            load(path).kv_cache_spec()
        assert "\n" not in str(caught.value)
        return
    ids, other = ids_of(1), ids_of(2, 21)
    runner = PagedRunner(load(path))
    parts, others = [runner.step({"a": ids[:16]})["a"]], []
    for step in ({"b": other[:20], "a": ids[16:32]}, {"a": ids[32:], "b": other[20:]}):
        mixed = runner.step(step)
        parts, others = [*parts, mixed["a"]], [*others, mixed["b"]]
    torch.testing.assert_close(torch.cat(parts), expected(reference, ids), atol=1e-4, rtol=0)
    torch.testing.assert_close(torch.cat(others), expected(reference, other), atol=1e-4, rtol=0)
