"""Checkpoints that the formats' own packages write are worth here what they are to them.

`make peers` makes the environment that has them; without it nothing runs.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import torch

from tests.models.checkpoints import make_model, save
from tests.models.runner import load
from tests.models.test_quantized_checkpoints import SIZES, layers, logits
from vllm_lite import envs

PYTHON = Path(envs.VLLM_CACHE_ROOT) / "peers/formats/bin/python"
SCRIPT = Path(__file__).with_name("written_by_packages.py")
# The package itself rounds what these are worth to bfloat16.
ROUNDED = ("NVFP4", "MXFP")


@pytest.mark.skipif(not PYTHON.exists(), reason="`make peers` makes the packages' environment")
def test_packages_checkpoints_are_worth_what_they_say(tmp_path: Path) -> None:
    sizes = SIZES | {"hidden_size": 256, "intermediate_size": 512}
    sizes |= {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64}
    plain = save(make_model("llama", **sizes), tmp_path / "plain")
    words = [PYTHON, str(SCRIPT), str(plain), str(tmp_path / "out")]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    cases = sorted((tmp_path / "out").iterdir())
    assert len(cases) > 45
    for case in cases:
        exact = layers(load(case / "plain"))
        for layer, module in layers(load(case / "packed", quantization="dequantize")).items():
            every = torch.eye(sizes["intermediate_size" if "down" in layer else "hidden_size"])
            found, want = module.kernel(every), exact[layer].kernel(every)
            if case.name.startswith(ROUNDED):
                torch.testing.assert_close(found, want, rtol=2.0**-8, atol=0)
            elif case.name.startswith("bitsandbytes"):
                # Its kernels may fuse the two roundings of a nested scale.
                torch.testing.assert_close(found, want, rtol=2.0**-22, atol=1e-9)
            elif case.name.startswith("hqq"):
                # Which takes the zero point away before it multiplies.
                torch.testing.assert_close(found, want, rtol=0, atol=2.0**-20)
            else:
                assert torch.equal(found, want), (case.name, layer)
        assert logits(load(case / "packed")).isfinite().all(), case.name
