"""ModelConfig and LoadConfig: the model, its data type, its files and defaults of its requests."""

from __future__ import annotations

from typing import Literal

from vllm_lite.config.options.option import config, option
from vllm_lite.config.quantized.in_flight import EXPERTS, IN_FLIGHT
from vllm_lite.config.quantized.registry import READABLE
from vllm_lite.config.values import Json
from vllm_lite.errors import UsageError

# No vocabulary in use has longer tokens, so that a longer text cannot fit into the context.
MAX_CHARACTERS_PER_TOKEN = 256
DTYPE_WORDS = {"half": "float16", "float": "float32"}
# Our own: a quantised checkpoint expanded to --dtype, and a plain one quantised as it is loaded.
_OWN_QUANTIZATIONS = ("dequantize", *IN_FLIGHT, *EXPERTS)
# Every method that a release of vLLM has known; which of them work is said at the option.
_QUANTIZATIONS = (
    *("aqlm", "auto_awq", "auto_gptq", "awq", "awq_marlin", "bitsandbytes", "compressed-tensors"),
    *("deepspeedfp", "experts_int8", "fbgemm_fp8", "fp8", "fp_quant", "gguf", "gptq"),
    *("gptq_marlin", "gptq_marlin_24", "hqq", "inc", "ipex", "marlin", "modelopt"),
    *("modelopt_fp4", "modelopt_mixed", "modelopt_mxfp8", "moe_wna16", "mxfp4", "neuron_quant"),
    *("qqq", "quark", "torchao", "tpu_int8", "auto-round", "bitblas", "gptq_bitblas", "humming"),
    "intel/auto-round",
)

# Values of options that parse, and what they would need.
_TOKENIZER_MODES = {
    "slow": "Python tokenizers, which transformers 5 no longer has; auto gives the same ids",
    "custom": "a class that a vLLM plugin registers; auto runs a repository's own tokenizer with "
    "--trust-remote-code",
}
_LOAD_FORMATS = {
    "instanttensor": "reads with the package InstantTensor straight into GPU memory",
    "ipc_cache": "takes weights that another vLLM process holds in GPU memory",
    "modelexpress": "receives weights from a ModelExpress server, GPU to GPU",
}

# Settings of --model-loader-extra-config, by load format; those of others are _THREADS.
_THREADS: dict[str, type] = {"enable_multithread_load": bool, "num_threads": int}
_STREAMER: dict[str, type] = {"concurrency": int, "memory_limit": int}
EXTRA_SETTINGS: dict[str, dict[str, type]] = {
    "dummy": {},
    "sharded_state": {"pattern": str},
    "runai_streamer": _STREAMER,
    "runai_streamer_sharded": {"pattern": str, **_STREAMER},
    "tensorizer": {
        "tensorizer_uri": str,
        "verify_hash": bool,
        "num_readers": int,
        "encryption_keyfile": str,
    },
}


@config
class ModelConfig:
    """The model and changes to its checkpoint's settings."""

    model: str = option(
        "Qwen/Qwen3-0.6B", "Model to run: demo, a directory, a .gguf file or a hub id."
    )
    runner: Literal["auto", "generate", "pooling", "draft"] = option(
        "auto",
        "What the model is run for; pooling: vectors, classes and scores; auto: what its "
        "checkpoint is made for, or --convert.",
        works=("auto", "generate", "pooling"),
        remedy="serve the model that it drafts for, with --speculative-config.model MODEL for the "
        "one that drafts",
    )
    convert: Literal["auto", "none", "embed", "classify", "reward"] = option(
        "auto",
        "Make a generating model pool; embed: hidden states become vectors, classify: classes, by "
        "its score layer or by the logits of tokens (classifier_from_token in --hf-overrides).",
    )
    model_impl: Literal["auto", "vllm", "transformers", "terratorch"] = option(
        "auto",
        "Implementation of the model; vllm: this package's own, transformers: its module with our "
        "cache and linear layers, auto: our own where there is one.",
        works=("auto", "vllm", "transformers"),
        remedy="use auto",
    )
    tokenizer: str = option(
        "",
        "Tokenizer to use: a directory, a .gguf file or a hub id.",
        auto="the model's own",
    )
    tokenizer_mode: Literal["auto", "hf", "slow", "mistral", "custom"] = option(
        "auto",
        "Which tokenizer implementation to load; mistral: tekken.json or tokenizer.model by the "
        "package mistral-common, which writes chats too; auto: that one where no other is there; "
        "slow, custom: refused.",
    )
    skip_tokenizer_init: bool = option(False, "Load no tokenizer: take and give token ids only.")
    trust_remote_code: bool = option(
        False, "Allow Python code that comes with a model or a tokenizer to run here."
    )
    dtype: Literal["float32", "bfloat16", "float16"] = option(
        "float32",
        "Data type of weights and activations.",
        auto="on a GPU the checkpoint's if that is bfloat16 or float16, else bfloat16; on a CPU "
        "bfloat16 if it computes in it natively, else float32",
        choices=("auto", "half", "float16", "bfloat16", "float", "float32"),
    )
    seed: int = option(0, "Seed of requests that have none of their own.", ge=0)
    deterministic: bool = option(
        False,
        "Give a request the same logits, bit for bit, alone, in any batch, in any chunks and from "
        "the prefix cache, or refuse to start. CPU kernels always do; on a GPU matrix products "
        "and attention are slower, and need unquantized weights and TRITON_ATTN.",
        auto="whether VLLM_BATCH_INVARIANT is 1",
    )
    revision: str | None = option(None, "Branch, tag or commit of a hub model.")
    tokenizer_revision: str | None = option(None, "Branch, tag or commit of a hub tokenizer.")
    hf_token: str | bool | None = option(
        None, "Hub access token; given bare, the stored login.", secret=True, bare=True
    )
    hf_config_path: str | None = option(
        None, "Directory, or config.json file, to read the model's configuration from."
    )
    config_format: Literal["auto", "hf", "mistral"] = option(
        "auto",
        "Layout of the model's configuration; hf: config.json, mistral: params.json; auto: the "
        "first of them that is there.",
    )
    hf_overrides: Json = option({}, "JSON whose keys replace those of the model's configuration.")
    max_model_len: int = option(
        2048,
        "Longest prompt plus output, in tokens.",
        auto="the checkpoint's own length",
        ge=1,
        human=True,
        words={"auto": -1},
    )
    disable_sliding_window: bool = option(
        False, "Attend to everything, with a context no longer than the window."
    )
    quantization: str | None = option(
        None,
        "Format of weights in memory. gguf, awq, gptq, compressed-tensors: as in the "
        "checkpoint; dequantize: a quantized checkpoint expanded to --dtype. Those of a plain one "
        "are rounded as they are loaded: int8, int4 and GGUF's types in groups, fp8 (and int8 on "
        "a GPU) with a scale for each output, nf4, bitsandbytes, mxfp4, nvfp4 as checkpoints of "
        "these. CPU kernels round activations to int8 in groups of 32 for GGUF's types; on a GPU "
        "int8, fp8 and compressed-tensors round them by token.",
        auto="the checkpoint's; the demo model is expanded",
        aliases=("-q",),
        choices=tuple(dict.fromkeys((*_QUANTIZATIONS, *READABLE, *_OWN_QUANTIZATIONS))),
    )
    quantization_config: Json | None = option(
        None,
        "JSON of how a plain checkpoint is rounded as it is loaded: linear and moe (names of "
        "--quantization for layers and for experts), ignore and targets (lists of names of "
        "layers, or re:PATTERN: those left plain, and those alone that are rounded).",
    )
    enforce_eager: bool = option(False, "Run layer by layer, without captured graphs.")
    max_logprobs: int = option(
        20, "Most log-probabilities a request may ask for; -1: no limit.", ge=-1
    )
    logprobs_mode: Literal[
        "raw_logprobs", "raw_logits", "processed_logprobs", "processed_logits"
    ] = option(
        "raw_logprobs",
        "Report logits or log-probabilities, before or after penalties and filters.",
    )
    served_model_name: list[str] = option(
        [], "Names that clients may use; the first is the one reported.", auto="the model's name"
    )
    generation_config: str = option(
        "auto",
        "Where sampling defaults come from: auto (the checkpoint), vllm (none) or a directory.",
    )
    override_generation_config: Json = option(
        {}, "JSON of sampling defaults, over those of --generation-config."
    )
    enable_sleep_mode: bool = option(
        False,
        "Let LLM.sleep(), or POST /sleep with VLLM_SERVER_DEV_MODE=1, give the KV cache's memory "
        "back until it wakes. At level 2 the weights' too, which are then read again. CPU only.",
    )

    io_processor_plugin: str | None = option(
        None,
        "Installed plugin that makes prompts of the data of /pooling, and replies of their "
        "answers.",
    )

    def __post_init__(self) -> None:
        if why := _TOKENIZER_MODES.get(self.tokenizer_mode):
            raise UsageError(
                f"--tokenizer-mode {self.tokenizer_mode} is not available: it needs {why}"
            )


@config
class LoadConfig:
    """The place and format of weights."""

    load_format: Literal[
        "auto",
        "hf",
        "safetensors",
        "pt",
        "npcache",
        "dummy",
        "gguf",
        "sharded_state",
        "bitsandbytes",
        "mistral",
        "tensorizer",
        "runai_streamer",
        "runai_streamer_sharded",
        "fastsafetensors",
        "instanttensor",
        "ipc_cache",
        "modelexpress",
    ] = option(
        "auto",
        "Format of the weights; auto, hf: safetensors, else pickled ones (pt); npcache: pickled "
        "ones, copied to files for NumPy beside them; sharded_state: files that "
        "LLM.save_sharded_state wrote; mistral: consolidated.safetensors; dummy: random ones; "
        "bitsandbytes: as --quantization bitsandbytes. "
        "Those of packages need them: tensorizer, runai_streamer, fastsafetensors; instanttensor, "
        "ipc_cache and modelexpress are refused.",
    )
    safetensors_load_strategy: Literal["lazy", "eager", "prefetch", "torchao"] | None = option(
        "lazy",
        "Map weight files into memory, and have them read ahead: if they fit there (lazy), in any "
        "case (eager), or by many threads (prefetch); torchao: as lazy. None: prefetch files of a "
        "network file system that fit into memory, as lazy with others.",
    )
    safetensors_prefetch_num_threads: int = option(8, "Threads that prefetch weight files.", ge=1)
    safetensors_prefetch_block_size: int = option(
        16 << 20, "Bytes that each of them reads at once.", ge=1, human=True
    )
    model_loader_extra_config: Json = option(
        {},
        "JSON of settings of the load format; of files of weights: enable_multithread_load and "
        "num_threads.",
    )
    pt_load_map_location: str | Json = option(
        "cpu", "Device that pickled tensors are read to, or JSON of stored devices to such."
    )
    download_dir: str | None = option(
        None, "Directory that hub downloads are kept in; default: the hub cache under HF_HOME."
    )
    ignore_patterns: list[str] = option(
        ["original/**/*", "consolidated*"],
        "Files of a hub repository not to download, as glob patterns.",
    )
    use_tqdm_on_load: bool = option(
        True, "Show a progress bar on a terminal while weights are read."
    )

    def __post_init__(self) -> None:
        if why := _LOAD_FORMATS.get(self.load_format):
            raise UsageError(
                f"--load-format {self.load_format} is not available: it {why}; use auto, or "
                "runai_streamer or fastsafetensors to read faster"
            )
        kinds = EXTRA_SETTINGS.get(self.load_format, _THREADS)
        for name, value in self.model_loader_extra_config.items():
            kind = kinds.get(name)
            if kind is None or type(value) is not kind:
                known = ", ".join(f"{name} ({kind.__name__})" for name, kind in kinds.items())
                raise UsageError(
                    f"--model-loader-extra-config {name}: --load-format {self.load_format} has "
                    f"{known or 'no settings'}; leave it out"
                )
        if self.model_loader_extra_config.get("num_threads", 1) < 1:
            raise UsageError("--model-loader-extra-config num_threads must be at least 1")
