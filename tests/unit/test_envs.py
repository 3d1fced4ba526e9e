"""Environment variables: typed, read at each access, and a bad one is a usage error."""

from __future__ import annotations

import pytest

from vllm_lite import envs
from vllm_lite.errors import UsageError


def test_every_declared_variable_can_be_read_without_being_set(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in dir(envs):
        monkeypatch.delenv(name, raising=False)
    for name in dir(envs):
        getattr(envs, name)


def test_values_are_read_at_each_access(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_LOG_STATS_INTERVAL", "2.5")
    assert envs.VLLM_LOG_STATS_INTERVAL == 2.5
    monkeypatch.setenv("VLLM_LOG_STATS_INTERVAL", "soon")
    with pytest.raises(UsageError, match="VLLM_LOG_STATS_INTERVAL='soon'"):
        envs.VLLM_LOG_STATS_INTERVAL  # noqa: B018


@pytest.mark.parametrize(("raw", "value"), [("0", False), ("off", False), ("1", True), ("", False)])
def test_flags(monkeypatch: pytest.MonkeyPatch, raw: str, value: bool) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", raw)
    assert envs.HF_HUB_OFFLINE is value


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError):
        envs.VLLM_NOTHING  # noqa: B018


def test_what_changes_nothing_is_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in envs.reported():
        monkeypatch.delenv(name)
    monkeypatch.setenv("VLLM_LOGGING_LEVEL", "DEBUG")
    monkeypatch.setenv("VLLM_NO_USAGE_STATS", "1")
    monkeypatch.setenv("VLLM_USE_MODELSCOPE", "0")
    assert envs.complaints() == []
    monkeypatch.setenv("VLLM_USE_MODELSCOPE", "1")
    monkeypatch.setenv("VLLM_NOTHING", "a-secret")
    monkeypatch.setenv("VLLM_LITE_NOTHING", "1")
    idle, unknown = envs.complaints()
    assert idle.startswith("VLLM_USE_MODELSCOPE changes nothing here: ")
    assert unknown.endswith(": VLLM_LITE_NOTHING, VLLM_NOTHING")


# Those that vLLM's documents list.
DOCUMENTED = """
API_KEY LOGGING_LEVEL CONFIGURE_LOGGING LOGGING_CONFIG_PATH LOG_STATS_INTERVAL HOST_IP PORT
CACHE_ROOT USE_MODELSCOPE ENGINE_READY_TIMEOUT_S HTTP_TIMEOUT_KEEP_ALIVE ALLOW_LONG_MAX_MODEL_LEN
ALLOW_RUNTIME_LORA_UPDATING SERVER_DEV_MODE ENABLE_V1_MULTIPROCESSING WORKER_MULTIPROC_METHOD
CPU_KVCACHE_SPACE CPU_OMP_THREADS_BIND PLUGINS NO_USAGE_STATS DO_NOT_TRACK DISABLE_COMPILE_CACHE
EXECUTE_MODEL_TIMEOUT_SECONDS KEEP_ALIVE_ON_ENGINE_DEATH MAX_N_SEQUENCES
DEBUG_LOG_API_SERVER_RESPONSE ATTENTION_BACKEND USE_V1
"""


def test_every_documented_variable_is_answered_once() -> None:
    answers = [*envs.VARIABLES, *envs.IDLE, *envs.GRANTED]
    assert len(answers) == len(set(answers))
    assert {f"VLLM_{name}" for name in DOCUMENTED.split()} <= set(answers)
