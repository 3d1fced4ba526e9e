"""Names of --quantization as a checkpoint's quant_method: read, or refused with what they are."""

from __future__ import annotations

import pytest

from vllm_lite.config.facts import method_of
from vllm_lite.config.quantized.in_flight import EXPERTS, IN_FLIGHT
from vllm_lite.config.quantized.registry import HARDWARE, OTHER_NAMES, READABLE, read_scheme
from vllm_lite.errors import CheckpointError

NAMES = sorted({*READABLE, *OTHER_NAMES, *IN_FLIGHT, *EXPERTS, *HARDWARE})


@pytest.mark.parametrize("name", NAMES)
def test_a_name_is_a_format_or_says_what_it_is(name: str) -> None:
    try:
        read_scheme("there", {"quantization_config": {"quant_method": name}})
    except CheckpointError as error:
        assert str(error).startswith(f"there is quantised by {name}")
        assert "which this build cannot run" not in str(error)


@pytest.mark.parametrize(
    ("name", "method"),
    [
        ("deepseek_v4_fp8", "fp8"),
        ("petit_nvfp4", "modelopt"),
        ("modelopt_mxfp8", "modelopt"),
        ("gpt_oss_mxfp4", "mxfp4"),
        ("inc", "auto-round"),
        ("spqr", "spqr"),
        (7, None),
    ],
)
def test_tools_and_kernels_have_names_for_one_method(name: object, method: str | None) -> None:
    assert method_of({"quantization_config": {"quant_method": name}}) == method
