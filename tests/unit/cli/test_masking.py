"""Secrets are masked wherever they appear."""

from __future__ import annotations

import pytest

from vllm_lite.cli.collect_env import masked_text, masked_value


@pytest.mark.parametrize(
    "text",
    [
        "postgres://me:pa/ss@w0rd-hunter2@db.example/x",
        "https://hunter2@hub.example",
        "https://x.example/?X-Amz-Signature=hunter2&a=1",
        '{"api_key": "hunter2", "a": 1}',
        "{'password': 'hunter2'}",
        "--api-key=hunter2",
        "Authorization: Bearer hunter2",
        "Basic hunter2",
        "hf_hunter2hunter2",
        "sk-proj-hunter2hunter2",
        "ghp_hunter2hunter2",
        "eyJhunter2.eyJhunter2.hunter2",
    ],
)
def test_a_secret_is_seen_by_its_shape(text: str) -> None:
    shown = masked_text(f"before {text} after")
    assert "hunter2" not in shown and "***" in shown
    assert shown.startswith("before ")


@pytest.mark.parametrize(
    "name", ["HF_TOKEN", "VLLM_APIKEY", "NCCL_AUTH_COOKIE", "hf_pass", "VLLM_TOKENIZER_TOKEN"]
)
def test_a_secret_is_seen_by_its_name(name: str) -> None:
    assert masked_value(name, "hunter2") == "***"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("TOKENIZERS_PARALLELISM", "false"),
        ("VLLM_MAX_TOKENS_PER_STEP", "512"),
        ("HF_HOME", "/data/hf-home"),
        ("HF_ENDPOINT", "https://hub.example:8443/a"),
        ("LD_LIBRARY_PATH", "/usr/lib:/opt/x/lib"),
    ],
)
def test_what_is_no_secret_stays(name: str, value: str) -> None:
    assert masked_value(name, value) == value
