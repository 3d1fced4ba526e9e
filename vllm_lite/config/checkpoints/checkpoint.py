"""From config.json, params.json or a GGUF header to ModelFacts; refuses what no model here can run.

Reads descriptions only, never weights. Every refusal is one line that names the file.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from vllm_lite.config.checkpoints.architectures import ARCHITECTURES, converted_tasks, find_row
from vllm_lite.config.checkpoints.family_config import LENGTHS, family_config, layer_windows
from vllm_lite.config.checkpoints.field_kinds import LARGEST_SIZE, MOST_LISTED
from vllm_lite.config.checkpoints.gguf_config import hf_config_of
from vllm_lite.config.checkpoints.gguf_header import GGML_TYPES, GGUFFile, read_gguf
from vllm_lite.config.checkpoints.mistral_config import hf_config_of_params, params_of
from vllm_lite.config.checkpoints.rope import main_rope, take_rope_parameters
from vllm_lite.config.facts import UNLIMITED_POSITIONS, ModelFacts
from vllm_lite.config.families.architecture import GENERATES, Architecture, fallback
from vllm_lite.config.json_file import check_sendable, read_json
from vllm_lite.config.quantized.registry import read_scheme, with_quantization
from vllm_lite.config.values import Json
from vllm_lite.errors import CheckpointError, UsageError

__all__ = ["LOADABLE_GGML_TYPES", "ModelFacts", "read_facts", "with_generation_config"]
# Tensor types that the loader can turn into numbers.
LOADABLE_GGML_TYPES = (
    *("F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"),
    *("Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "IQ4_XS", "MXFP4", "NVFP4"),
    *("IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S"),
    *("Q1_0", "Q2_0", "TQ1_0", "TQ2_0"),
)
# Other names of sizes, in configurations that only transformers reads.
_USUAL_NAMES = {
    **dict.fromkeys(("n_embd", "d_model", "dim", "emb_dim"), "hidden_size"),
    **dict.fromkeys(("n_layer", "n_layers", "num_layers", "decoder_layers"), "num_hidden_layers"),
    **dict.fromkeys(
        ("n_head", "n_heads", "num_heads", "decoder_attention_heads"), "num_attention_heads"
    ),
    **dict.fromkeys((*LENGTHS, "model_max_length"), "max_position_embeddings"),
}
# Architectures whose tokens attend to what an index chooses for them.
_SPARSE = {"DeepseekV32ForCausalLM", "DeepseekV4ForCausalLM", "GlmMoeDsaForCausalLM"}
# Encoders that add a number by distance to scores.
_RELATIVE = {
    "T5EncoderModel",
    "MT5EncoderModel",
    "UMT5EncoderModel",
}
_GENERATION_CONFIG = "generation_config.json"
# Scalings whose config states the unscaled length.
_SCALED_LENGTH = {"linear", "dynamic", "yarn"}
_WEIGHTS = ("*.safetensors", "*.bin", "*.pt", "*.tensors")
# No format in use stores a weight in less than two bits.
_MOST_WEIGHTS_PER_BYTE = 4


def read_facts(
    path: str,
    *,
    hf_overrides: Json | None = None,
    hf_config_path: str | None = None,
    config_format: str = "auto",
    disable_sliding_window: bool = False,
    model_impl: str = "auto",
    row: Architecture | None = None,
) -> ModelFacts:
    """The facts of the model at `path`, a directory or a .gguf file, with overrides applied.

    `hf_config_path` is another directory, or config.json, that describes the weights; of files of
    both layouts `config_format` chooses, and auto takes params.json where it stands alone. With
    disable_sliding_window, all layers attend to everything and max_position is the window. `row` is
    the architecture, if not the one that the description names.
    """
    gguf = read_gguf(path) if path.endswith(".gguf") else None
    if hf_config_path or gguf is None:
        raw = _raw_config(Path(hf_config_path or path), config_format)
    elif config_format == "mistral":
        raise UsageError(f"--config-format mistral: {path} is a GGUF file; leave it out")
    else:
        raw = _hf_config(gguf)
    overrides = hf_overrides or {}
    merged = with_quantization({**raw, **overrides}, Path(path))
    check_sendable(path, merged)
    row = row or _architecture(path, merged, model_impl)
    if row is None:
        return _of_transformers(path, merged, disable_sliding_window)
    hf = family_config(path, row, merged, has_class_defaults=gguf is None)
    read_scheme(path, hf)
    take_rope_parameters(path, hf, overrides)
    facts = _facts(path, row, hf)
    if disable_sliding_window:
        longest = min((window for window in facts.layer_windows if window), default=None)
        facts = replace(
            facts,
            layer_windows=(None,) * facts.num_layers,
            max_position=min(longest or facts.max_position, facts.max_position),
        )
    if gguf is not None:
        facts = _with_gguf(facts, gguf)
    elif (Path(path) / _GENERATION_CONFIG).is_file():
        facts = with_generation_config(facts, Path(path))
    return facts


def _raw_config(place: Path, config_format: str) -> Json:
    if params := params_of(place, config_format):
        return hf_config_of_params(params)
    return read_json(place if place.suffix == ".json" else place / "config.json")


def _hf_config(gguf: GGUFFile) -> Json:
    try:
        return hf_config_of(gguf)
    except (TypeError, AttributeError) as error:
        raise CheckpointError(
            f"{gguf.path} has metadata of the wrong type ({error}); fetch or convert it again"
        ) from None


def with_generation_config(facts: ModelFacts, directory: Path) -> ModelFacts:
    """`facts` with the sampling defaults and the further end tokens of a directory's file."""
    defaults = read_json(directory / _GENERATION_CONFIG)
    check_sendable(directory, defaults)
    stated = (facts.hf_config.get("eos_token_id"), defaults.get("eos_token_id"))
    eos = dict.fromkeys(token_id for value in stated for token_id in _ids(value))
    return replace(facts, generation_config=defaults, eos_token_ids=tuple(eos))


def _with_gguf(facts: ModelFacts, gguf: GGUFFile) -> ModelFacts:
    for tensor in gguf.tensors.values():
        kind = GGML_TYPES[tensor.ggml_type].name
        if kind not in LOADABLE_GGML_TYPES:
            raise CheckpointError(
                f"{gguf.path}: the tensor {tensor.name!r} is stored as {kind}; "
                f"supported are {', '.join(LOADABLE_GGML_TYPES)}"
            )
    is_plain = main_rope(facts.hf_config)["rope_type"] == "default"
    has_rope_freqs = is_plain and "rope_freqs.weight" in gguf.tensors
    return replace(facts, format="gguf", has_rope_freqs=has_rope_freqs)


def _facts(path: str, row: Architecture, hf: Json) -> ModelFacts:
    count = partial(_count, path, hf)
    hidden_size = count("hidden_size")
    num_heads = count("num_attention_heads", 1 if row.mixer == "state" else None)
    num_kv_heads = count("num_key_value_heads", num_heads)
    head_size = count("head_dim", hidden_size // num_heads)
    num_layers = count("num_hidden_layers", most=MOST_LISTED)
    if num_heads % num_kv_heads:
        raise CheckpointError(
            f"{path}: num_attention_heads is {num_heads}, and so many heads cannot share "
            f"{num_kv_heads} key-value heads (num_key_value_heads)"
        )
    bos = _ids(hf.get("bos_token_id"))
    windows = layer_windows(path, row, hf, num_layers)
    return ModelFacts(
        path=path,
        format="hf",
        architecture=row.name,
        hf_config=hf,
        dtype=_stored_dtype(hf),
        max_position=_max_position(path, row, hf),
        num_layers=num_layers,
        hidden_size=hidden_size,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_size=head_size,
        vocab_size=count("vocab_size"),
        layer_windows=windows,
        local_layers=tuple(window is not None for window in windows),
        eos_token_ids=tuple(_ids(hf.get("eos_token_id"))),
        bos_token_id=bos[0] if bos else None,
    )


def _count(
    path: str, hf: Json, key: str, default: int | None = None, most: int = LARGEST_SIZE
) -> int:
    """A size of the configuration: a positive whole number."""
    value = hf.get(key)
    if value is None:
        value = default
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise CheckpointError(
            f"{path}: {key} is {value!r} in its configuration, not a positive number"
        )
    if value > most:
        raise CheckpointError(f"{path}: {key} is {value} in its configuration, more than {most}")
    return value


def _architecture(path: str, hf: Json, model_impl: str) -> Architecture | None:
    """The row of the native family; None for transformers' implementation."""
    named = hf.get("architectures")
    names = [str(name) for name in named] if isinstance(named, list) else []
    if model_impl == "transformers" and path.endswith(".gguf"):
        raise UsageError(f"--model-impl transformers: {path} is a GGUF file; leave it out")
    for name in names if model_impl != "transformers" else ():
        if row := find_row(name):
            return row
    if not _SPARSE.isdisjoint(names):
        raise CheckpointError(
            f"{path} holds {', '.join(names)}, whose sparse attention (an index chooses the tokens "
            "that each token sees) is not supported; serve a model with full attention"
        )
    if not _RELATIVE.isdisjoint(names):
        raise CheckpointError(
            f"{path} holds {', '.join(names)}, whose attention knows positions by numbers that are "
            "added to scores, which is not supported; use an encoder of BERT's kind"
        )
    if model_impl != "vllm" and any(_is_of_transformers(name) for name in names):
        return None
    found = f"the architecture {', '.join(names)}" if names else "a model without architectures"
    raise CheckpointError(f"{path} holds {found}; supported are {', '.join(ARCHITECTURES)}")


def _is_of_transformers(name: str) -> bool:
    return name.endswith(GENERATES) or converted_tasks(name) is not None


def _of_transformers(path: str, raw: Json, disable_sliding_window: bool) -> ModelFacts:
    """Facts that the engine needs; transformers reads the rest from `raw` itself."""
    if disable_sliding_window:
        raise UsageError(
            f"--disable-sliding-window: {path} runs by transformers' implementation, which has no "
            "such option; leave it out"
        )
    usual = {usual: raw[own] for own, usual in _USUAL_NAMES.items() if raw.get(own) is not None}
    read: Json = {**usual, **raw, "layer_types": None, "sliding_window": None}
    read["rope_parameters"] = {"rope_type": "default"}
    row = fallback(next(filter(_is_of_transformers, map(str, raw["architectures"]))))
    sizes = {*_USUAL_NAMES.values(), "vocab_size"}
    if lacking := sorted(name for name in sizes if read.get(name) is None):
        raise CheckpointError(
            f"{path}: transformers' module of {row.name} cannot run here: its configuration has "
            f"no {lacking[0]}"
        )
    facts = replace(_facts(path, row, read), hf_config=raw, implementation="transformers")
    if (Path(path) / _GENERATION_CONFIG).is_file():
        facts = with_generation_config(facts, Path(path))
    return facts


def _max_position(path: str, row: Architecture, hf: Json) -> int:
    if row.mixer == "state" and hf.get("max_position_embeddings") is None:
        return UNLIMITED_POSITIONS
    length = _count(path, hf, "max_position_embeddings")
    if row.pads_positions:
        left = length - hf["pad_token_id"] - 1
        return _count(path, {"max_position_embeddings": left}, "max_position_embeddings")
    rope = main_rope(hf)
    if rope["rope_type"] in _SCALED_LENGTH:
        length = rope.get("original_max_position_embeddings") or length
        return int(min(length * rope["factor"], LARGEST_SIZE))
    return length


def _stored_dtype(hf: Json) -> str:
    return str(hf.get("dtype") or hf.get("torch_dtype") or "float32").removeprefix("torch.")


def _ids(value: Any) -> list[int]:
    """Token ids written as nothing, a number or a list; a negative one says that there is none."""
    values = value if isinstance(value, list) else [value]
    return [item for item in values if type(item) is int and item >= 0]


def check_sizes(facts: ModelFacts) -> None:
    """Raise CheckpointError where the configuration describes more weights than the files hold.

    A model is built before names and shapes are compared one by one; this keeps it from being
    built in sizes that are made up.
    """
    path = Path(facts.path)
    parts = [Path(part) for part in read_gguf(path).data] if facts.format == "gguf" else []
    found = (sorted(path.glob(pattern)) for pattern in _WEIGHTS)
    files = parts or next(filter(None, found), [])
    held = sum(file.stat().st_size for file in files)
    # The embedding, the queries of every layer and one matrix of the MLP.
    width = facts.hf_config.get("intermediate_size")
    rows = facts.vocab_size + facts.num_layers * facts.num_heads * facts.head_size
    described = facts.hidden_size * (rows + (width if isinstance(width, int) else 0))
    if held and described > _MOST_WEIGHTS_PER_BYTE * held:
        raise facts.error(
            f"num_hidden_layers {facts.num_layers}, hidden_size {facts.hidden_size}, head_dim "
            f"{facts.head_size}, intermediate_size {width} and vocab_size {facts.vocab_size} are "
            f"{described:.3g} weights or more, but its files hold {held:,} bytes "
            f"({', '.join(map(str, files[:2]))}): they are cut off, or the configuration is "
            "another model's"
        )
