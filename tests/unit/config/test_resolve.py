"""A user's settings, the model and the machine make one checked VllmConfig."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.checkpoints import write_gguf, write_hf
from vllm_lite.config import engine_args
from vllm_lite.config.engine_args import EngineArgs, UsageContext
from vllm_lite.config.vllm import VllmConfig
from vllm_lite.errors import CheckpointError, UsageError


def set_gpu(
    monkeypatch: pytest.MonkeyPatch, *, obstacle: str | None = None, is_there: bool = True
) -> None:
    """A machine with a GPU, which an `obstacle` may keep from being used."""
    monkeypatch.setattr(engine_args, "has_cuda_device", lambda: is_there)
    monkeypatch.setattr(engine_args, "cuda_obstacle", lambda: obstacle)


@pytest.fixture(autouse=True)
def plain_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """No GPU, native bfloat16, none of the user's variables."""
    set_gpu(monkeypatch, obstacle="no NVIDIA driver is loaded", is_there=False)
    monkeypatch.setattr(engine_args, "has_native_bfloat16", lambda: True)
    monkeypatch.delenv("VLLM_CPU_KVCACHE_SPACE", raising=False)
    monkeypatch.delenv("VLLM_ALLOW_LONG_MAX_MODEL_LEN", raising=False)


@pytest.fixture
def model(tmp_path: Path) -> str:
    return str(write_hf(tmp_path / "model", max_position_embeddings=4096))


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> Any:
    """The package's log records, as `caplog`."""
    monkeypatch.setattr(logging.getLogger("vllm_lite"), "propagate", True)
    return caplog


def resolved(model: str, usage: UsageContext = "server", **options: Any) -> VllmConfig:
    return EngineArgs(model=model, **options).create_engine_config(usage)


def test_defaults_of_a_server_and_of_the_llm_class(model: str) -> None:
    server, llm = resolved(model), resolved(model, "llm")
    assert (server.scheduler.max_num_batched_tokens, server.scheduler.max_num_seqs) == (256, 128)
    assert (llm.scheduler.max_num_batched_tokens, llm.scheduler.max_num_seqs) == (4096, 256)
    assert (server.observability.disable_log_stats, llm.observability.disable_log_stats) == (
        False,
        True,
    )
    assert server.scheduler.max_num_queued_reqs == 2048
    assert llm.scheduler.max_num_queued_reqs is None
    assert server.model.max_model_len == 4096
    assert server.model.served_model_name == [model]
    assert server.model.tokenizer == server.facts.path == model
    assert server.cache.gpu_memory_utilization == 0.5
    assert server.device == "cpu"


def test_a_config_travels_as_msgpack_unchanged(model: str) -> None:
    config = resolved(model, hf_overrides={"id2label": {"b": [1, None]}}, seed=7)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(config), type=VllmConfig) == config


def test_a_token_goes_no_further_than_the_download(model: str) -> None:
    args = EngineArgs(model=model, hf_token="secret-token")
    assert "secret-token" not in repr(args)
    assert b"secret-token" not in msgspec.msgpack.encode(args.create_engine_config())


@pytest.mark.parametrize(
    ("asked", "native", "got"),
    [
        ("auto", True, "bfloat16"),
        ("auto", False, "float32"),
        ("float", True, "float32"),
        ("bfloat16", False, "bfloat16"),
        (None, True, "bfloat16"),
    ],
)
def test_dtype(
    model: str, monkeypatch: pytest.MonkeyPatch, asked: str | None, native: bool, got: str
) -> None:
    monkeypatch.setattr(engine_args, "has_native_bfloat16", lambda: native)
    assert resolved(model, dtype=asked).model.dtype == got


@pytest.mark.parametrize("asked", [-1, "auto", None])
def test_an_automatic_length_is_the_checkpoint_s(model: str, asked: Any) -> None:
    assert resolved(model, max_model_len=asked).model.max_model_len == 4096


def test_a_longer_context_needs_the_user_s_word(
    model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UsageError, match="--max-model-len 5000 is more than the 4096"):
        resolved(model, max_model_len=5000)
    monkeypatch.setenv("VLLM_ALLOW_LONG_MAX_MODEL_LEN", "1")
    assert resolved(model, max_model_len=5000).model.max_model_len == 5000


def test_step_sizes_follow_what_is_set(model: str) -> None:
    few = resolved(model, max_num_batched_tokens=64).scheduler
    assert (few.max_num_seqs, few.max_num_batched_tokens) == (64, 64)
    many = resolved(model, max_num_seqs=5000).scheduler
    assert many.max_num_batched_tokens == 5000
    short = resolved(model, max_num_seqs=2, max_model_len=100).scheduler
    assert short.max_num_batched_tokens == 200
    whole = resolved(model, enable_chunked_prefill=False).scheduler
    assert whole.max_num_batched_tokens == 4096


def test_cache_space_in_gib_becomes_bytes(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "1.5")
    assert resolved(model).cache.kv_cache_memory_bytes == 3 << 29
    assert resolved(model, kv_cache_memory_bytes=1000).cache.kv_cache_memory_bytes == 1000
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "-1")
    with pytest.raises(UsageError, match="VLLM_CPU_KVCACHE_SPACE"):
        resolved(model)


def test_batch_invariance_is_the_users_word_or_vllms_variable(
    model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("VLLM_BATCH_INVARIANT", raising=False)
    assert not resolved(model).model.deterministic
    assert resolved(model, deterministic=True).model.deterministic
    monkeypatch.setenv("VLLM_BATCH_INVARIANT", "1")
    assert resolved(model).model.deterministic
    assert not resolved(model, deterministic=False).model.deterministic


def test_deprecated_rope_options_are_overrides(
    model: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(logging.getLogger("vllm_lite"), "propagate", True)
    config = resolved(model, rope_theta=5e5, rope_scaling={"rope_type": "linear", "factor": 2.0})
    assert config.facts.hf_config["rope_parameters"] == {
        "rope_type": "linear",
        "factor": 2.0,
        "rope_theta": 5e5,
    }
    assert config.model.max_model_len == 8192
    assert "--rope-theta is deprecated; use --hf-overrides.rope_theta" in caplog.text


def test_sampling_defaults_follow_the_generation_config(tmp_path: Path) -> None:
    generation = {"temperature": 0.6, "top_k": 20, "max_new_tokens": 50, "do_sample": True}
    model = str(write_hf(tmp_path / "m", generation=generation))
    assert resolved(model).sampling_defaults == {"temperature": 0.6, "top_k": 20, "max_tokens": 50}
    assert resolved(model, generation_config="vllm").sampling_defaults == {}
    other = str(write_hf(tmp_path / "other", generation={"top_p": 0.9}))
    assert resolved(model, generation_config=other).sampling_defaults == {"top_p": 0.9}
    limits = {"max_new_tokens": 9}
    Path(other, "generation_config.json").write_text('{"max_new_tokens": 9}')
    caps = [
        resolved(model, **options).max_tokens_cap
        for options in (
            {},
            {"generation_config": "vllm"},
            {"generation_config": other},
            {"override_generation_config": limits},
            {"generation_config": "vllm", "override_generation_config": limits},
        )
    ]
    assert caps == [None, None, 9, 9, 9]
    merged = resolved(model, override_generation_config={"top_k": 5}).sampling_defaults
    assert (merged["top_k"], merged["temperature"]) == (5, 0.6)


def test_end_tokens_follow_the_generation_config(tmp_path: Path) -> None:
    model = str(write_hf(tmp_path / "m", generation={"eos_token_id": [2, 7]}))
    other = str(write_hf(tmp_path / "other", generation={"eos_token_id": [5, 2]}))
    assert resolved(model).facts.eos_token_ids == (2, 7)
    assert resolved(model, generation_config=other).facts.eos_token_ids == (2, 5)
    # "vllm" leaves out sampling alone: without all its end tokens a chat model would not stop.
    Path(model, "generation_config.json").write_text('{"eos_token_id": [2, 7], "top_p": 0.5}')
    plain = resolved(model, generation_config="vllm")
    assert plain.facts.eos_token_ids == (2, 7) and plain.sampling_defaults == {}
    gguf = str(write_gguf(tmp_path / "m.gguf"))
    assert resolved(gguf, generation_config=other).facts.eos_token_ids == (1, 5, 2)


def test_tokenizer_of_its_own(model: str, tmp_path: Path) -> None:
    (tmp_path / "tok").mkdir()
    (tmp_path / "tok" / "tokenizer.json").write_text("{}")
    assert resolved(model, tokenizer=str(tmp_path / "tok")).model.tokenizer == str(tmp_path / "tok")
    gguf = write_gguf(tmp_path / "m.gguf")
    assert resolved(str(gguf)).model.tokenizer == str(gguf)
    assert resolved(str(gguf)).model.quantization == "gguf"
    with pytest.raises(UsageError, match=r"tpu_int8 needs TPUs; leave it out$"):
        resolved(str(gguf), quantization="tpu_int8")


@pytest.mark.parametrize(
    ("options", "cause"),
    [
        ({"tensor_parallel_size": 65}, "--tensor-parallel-size must be .* at most 64"),
        (
            {"tensor_parallel_size": 2, "distributed_executor_backend": "uni"},
            "--distributed-executor-backend uni runs one worker, not --tensor-parallel-size 2",
        ),
        ({"quantization": "hqq"}, "--quantization hqq needs a checkpoint"),
        ({"quantization": "neuron_quant"}, "needs AWS Inferentia or Trainium"),
        ({"quantization": "awq"}, "--quantization awq needs a checkpoint"),
        ({"kv_cache_dtype": "fp8_inc"}, "--kv-cache-dtype fp8_inc is not available"),
        (
            {"calculate_kv_scales": True},
            "--calculate-kv-scales is not available.*fp8_per_token_head",
        ),
        ({"device": "cuda"}, "--device cuda: no NVIDIA driver.*--device cpu"),
        ({"dtype": "float16"}, "--dtype float16"),
        ({"dtype": "int8"}, "--dtype must be one of auto, half"),
        ({"load_format": "ipc_cache"}, "--load-format ipc_cache is not available: it takes"),
        ({"load_format": "instanttensor"}, "--load-format instanttensor is not available: it"),
        (
            {"load_format": "modelexpress"},
            "--load-format modelexpress is not available: it receives",
        ),
        ({"load_format": "gguf"}, "--load-format gguf does not fit"),
        ({"quantization": "gguf"}, "--quantization gguf needs"),
        ({"gpu_memory_utilization": 0}, "--gpu-memory-utilization"),
        ({"gpu_memory_utilization": 1.1}, "--gpu-memory-utilization"),
        ({"block_size": 4}, "--block-size"),
        ({"max_num_seqs": 8, "max_num_batched_tokens": 4}, "--max-num-batched-tokens 4 is less"),
        (
            {"enable_chunked_prefill": False, "max_num_batched_tokens": 256},
            "--max-num-batched-tokens 256 is less than --max-model-len",
        ),
        ({"long_prefill_token_threshold": 5000}, "--long-prefill-token-threshold 5000"),
        ({"stream_interval": 0}, "--stream-interval"),
        ({"max_logprobs": -2}, "--max-logprobs"),
        ({"max_model_len": 0}, "--max-model-len"),
        ({"seed": "x"}, "--seed"),
    ],
)
def test_what_this_build_cannot_do_is_refused_by_option(
    model: str, options: dict[str, Any], cause: str
) -> None:
    with pytest.raises(UsageError, match=cause) as caught:
        resolved(model, **options)
    assert "\n" not in str(caught.value)


def test_a_gpu_is_used_where_nothing_is_in_the_way(
    model: str, monkeypatch: pytest.MonkeyPatch, log: pytest.LogCaptureFixture
) -> None:
    set_gpu(monkeypatch)
    config = resolved(model)
    assert config.device == resolved(model, device="cuda").device == "cuda"
    assert resolved(model, device="cpu").device == "cpu"
    assert config.cache.gpu_memory_utilization == 0.9
    assert config.scheduler.max_num_seqs == 256
    assert not log.messages
    with pytest.raises(UsageError, match="--tensor-parallel-size 2 is not available on a GPU"):
        resolved(model, tensor_parallel_size=2)
    set_gpu(monkeypatch, obstacle="the package triton is missing; run `pip install triton`")
    with pytest.raises(UsageError, match=r"^--device cuda: .*pip install triton.*--device cpu$"):
        resolved(model, device="cuda")
    assert resolved(model).device == "cpu"
    (line,) = log.messages
    assert "runs on the CPU" in line and "triton" in line


def test_steps_run_ahead_on_a_gpu_unless_they_may_not(
    model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not resolved(model).scheduler.async_scheduling
    set_gpu(monkeypatch)
    assert resolved(model).scheduler.async_scheduling
    assert not resolved(model, async_scheduling=False).scheduler.async_scheduling


@pytest.mark.parametrize(
    ("stored", "dtype"), [("float16", "float16"), ("bfloat16", "bfloat16"), ("float32", "bfloat16")]
)
def test_a_gpu_computes_in_the_checkpoints_type(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stored: str, dtype: str
) -> None:
    set_gpu(monkeypatch)
    model = str(write_hf(tmp_path / "model", torch_dtype=stored))
    assert resolved(model).model.dtype == dtype
    assert resolved(model, dtype="float32").model.dtype == "float32"


def test_graphs_are_told_of_as_idle_on_a_cpu_alone(
    model: str, monkeypatch: pytest.MonkeyPatch, log: pytest.LogCaptureFixture
) -> None:
    options = {
        "optimization_level": 0,
        "max_cudagraph_capture_size": 8,
        "compilation_config": {"cudagraph_mode": "NONE"},
    }
    resolved(model, **options)
    assert len(log.messages) == 3
    assert all("no graphs are captured on a CPU" in line for line in log.messages)
    log.clear()
    set_gpu(monkeypatch)
    resolved(model, **options)
    assert not log.messages


def test_an_unsupported_model_is_refused_before_its_weights(tmp_path: Path) -> None:
    model = str(write_hf(tmp_path, architectures=["T5EncoderModel"]))
    with pytest.raises(CheckpointError, match="T5EncoderModel"):
        resolved(model)


def test_gpt_oss_has_a_reasoning_parser_of_its_own(tmp_path: Path) -> None:
    names = ["GptOssForCausalLM"]
    sizes = {"num_local_experts": 4, "num_experts_per_tok": 2}
    model = str(write_hf(tmp_path / "oss", architectures=names, rope_theta=None, **sizes))
    assert resolved(model).structured_outputs.reasoning_parser == "openai_gptoss"
    named = resolved(model, reasoning_parser="qwen3").structured_outputs
    assert named.reasoning_parser == "qwen3"
    by_config = resolved(model, reasoning_config={"reasoning_parser": "qwen3"})
    assert by_config.structured_outputs.reasoning_parser == "qwen3"


def test_other_architectures_have_no_parser_unless_one_is_named(model: str) -> None:
    assert resolved(model).structured_outputs.reasoning_parser == ""
