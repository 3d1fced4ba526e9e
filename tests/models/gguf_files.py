"""GGUF files of the tests' tiny models, as llama.cpp's converter would write them.

Names are those of the gguf package's tables; headers are what the converter wrote of each case, in
tests/data/gguf_headers.json; how it changes tensors is said here. benchmarks/peers/gguf_oracle.py
records the headers and compares the tensors of both files.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import gguf
import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from tests.models import gguf_mixtures as mixtures
from tests.models.checkpoints import save
from vllm_lite.config.values import Json

HEADERS = Path(__file__).parents[1] / "data/gguf_headers.json"
State = dict[str, Tensor]
# The converter's own names for what others call otherwise.
_OTHER_NAMES = {
    "self_attn.attn_sub_norm": "self_attn.inner_attn_ln",
    "mlp.ffn_sub_norm": "mlp.ffn_layernorm",
    "e_score_correction_bias": "e_score_correction.bias",
}
_IN_FLOATS = re.compile(r"norm|ssm_conv1d|ssm_a|ffn_gate_inp|bias")
_EXPERT = re.compile(r"(.*\.experts)\.(\d+)\.(.*)")


@cache
def headers() -> dict[str, Json]:
    """Of each case: the keys, each with its type, its elements' type and its value."""
    recorded: dict[str, Json] = json.loads(HEADERS.read_text())
    return recorded


def other_name(name: str) -> str:
    """The name of a tensor as the converter knows it."""
    for own, theirs in _OTHER_NAMES.items():
        name = name.replace(own, theirs)
    return name


def permuted(config: Json, state: State, suffixes: tuple[str, ...] = ("weight", "bias")) -> State:
    """Queries and keys with their rotated pairs beside each other."""
    blocks = config.get("block_configs")
    for name, values in state.items():
        *_, layer, suffix = name.split(".")
        if layer not in ("q_proj", "k_proj") or suffix not in suffixes:
            continue
        heads = config["num_attention_heads"]
        if layer == "k_proj":
            heads = config["num_key_value_heads"]
            if blocks:
                shared = blocks[int(name.split(".")[2])]["attention"]["n_heads_in_group"]
                heads = config["num_attention_heads"] // shared
        halves = values.view(heads, 2, len(values) // heads // 2, *values.shape[1:])
        state[name] = halves.swapaxes(1, 2).reshape(values.shape)
    return state


def with_streams(config: Json, state: State) -> State:
    """Gemma 3n's projections of streams as one tensor, and scales, which are called weights."""
    named = {f"{k}.weight" if k.endswith("_scale") else k: x for k, x in state.items()}
    new = {k: x for k, x in named.items() if ".altup_" not in k}
    for name in ("altup_projections", "altup_unembed_projections"):
        parts = [named[f"model.{name}.{i}.weight"] for i in range(config["altup_num_inputs"] - 1)]
        new[f"model.{name}.weight"] = torch.stack(parts)
    return new


def permuted_weights(config: Json, state: State) -> State:
    return permuted(config, state, ("weight",))


def norms_plus_one(config: Json, state: State) -> State:
    return {
        name: x + 1 if name.endswith("norm.weight") else x
        for name, x in state.items()
        if name != "lm_head.weight" or config["model_type"] == "nemotron"
    }


def turned(config: Json, state: State) -> State:
    """GPT-2's matrices, which are stored inputs by outputs."""
    matrices = ("c_attn.weight", "c_proj.weight", "c_fc.weight")
    return {name: x.t() if name.endswith(matrices) else x for name, x in state.items()}


def grouped(config: Json, state: State) -> State:
    """Queries, keys and values one after another that are stored head by head, or by groups."""
    heads = config.get("num_attention_heads") or config["n_head"]
    keys = heads
    if config["model_type"] == "falcon":
        keys = config["num_kv_heads"] if config["new_decoder_architecture"] else 1
    for name, x in state.items():
        if "query_key_value" in name:
            groups = x.view(keys, heads // keys + 2, -1, *x.shape[1:])
            parts = (groups[:, :-2], groups[:, -2], groups[:, -1])
            state[name] = torch.cat([part.reshape(-1, *x.shape[1:]) for part in parts])
    # The table has Bloom's names without the first word, and Falcon's with it.
    start = "transformer." if config["model_type"] == "bloom" else ""
    return {name.removeprefix(start): x for name, x in state.items()}


def split_groups(config: Json, state: State) -> State:
    """InternLM 2's fused projections one by one, permuted."""
    groups = config["num_key_value_heads"]
    head_size = config["hidden_size"] // config["num_attention_heads"]
    for name in [name for name in state if "wqkv" in name]:
        x = state.pop(name).view(groups, -1, head_size, config["hidden_size"])
        for part, values in {"q": x[:, :-2], "k": x[:, -2:-1], "v": x[:, -1:]}.items():
            own = name.replace("attention.wqkv", f"self_attn.{part}_proj")
            state[own] = values.reshape(-1, config["hidden_size"])
    return permuted(config, state)


def ternary(config: Json, state: State) -> State:
    """BitNet's matrices with one of three values in each place."""
    for name, x in state.items():
        if re.search(r"layers\.\d+\..*_proj\.weight", name):
            scale = 1 / x.abs().mean().clamp(min=1e-5)
            state[name] = (x * scale).round().clamp(-1, 1) / scale
    return state


def turned_experts(config: Json, state: State) -> State:
    """Llama 4's experts, whose gates and factors are stored as one, inputs by outputs."""
    new = {}
    for name, x in state.items():
        if name.endswith("experts.gate_up_proj"):
            halves = x.transpose(-1, -2).chunk(2, dim=-2)
            for part, values in zip(("gate_proj", "up_proj"), halves, strict=True):
                new[name.replace("gate_up_proj", f"{part}.weight")] = values
        elif name.endswith("experts.down_proj"):
            new[f"{name}.weight"] = x.transpose(-1, -2)
        else:
            new[name] = x
    return new


def without_activation(config: Json, state: State) -> State:
    """Apertus's numbers of the activation are in the header."""
    return {name: x for name, x in state.items() if ".act_fn." not in name}


def sinks_as_weights(config: Json, state: State) -> State:
    ends = (".sinks", ".attention_sink_bias")
    return {f"{name}.weight" if name.endswith(ends) else name: x for name, x in state.items()}


# How the converter changes the tensors of an architecture, by its name in files.
CHANGES: dict[str, Callable[[Json, State], State]] = {
    **dict.fromkeys(("llama", "mistral3", "arcee", "smollm3", "granite", "deci"), permuted),
    **dict.fromkeys(("olmo", "minicpm"), permuted_weights),
    **dict.fromkeys(("gemma", "gemma2", "gemma3", "nemotron"), norms_plus_one),
    **dict.fromkeys(("gptneox", "bloom", "falcon"), grouped),
    "gpt2": turned,
    "internlm2": split_groups,
    "bitnet": ternary,
    "llama4": turned_experts,
    "apertus": without_activation,
    "gemma3n": with_streams,
    "gemma4": mixtures.gemma4,
    "deepseek": permuted,
    "deepseek2": mixtures.latents,
    "kimi-linear": mixtures.key_delta,
    "granitemoe": lambda config, state: mixtures.split_inputs(config, permuted(config, state)),
    "granitehybrid": lambda config, state: mixtures.split_inputs(
        config, mixtures.mamba2(config, permuted(config, state))
    ),
    "mimo2": sinks_as_weights,
    "dbrx": mixtures.dbrx_experts,
    "gpt-oss": mixtures.gpt_oss,
    **dict.fromkeys(("mamba", "jamba"), mixtures.mamba),
    "mamba2": mixtures.mamba2,
    **dict.fromkeys(
        ("nemotron_h", "nemotron_h_moe"),
        lambda config, state: mixtures.nemotron(config, permuted(config, state)),
    ),
    "falcon-h1": mixtures.falcon_h1,
    **dict.fromkeys(("lfm2", "lfm2moe"), mixtures.short_convolutions),
    **dict.fromkeys(("qwen3next", "qwen35", "qwen35moe"), mixtures.gated_delta),
}


def stacked(state: State) -> Iterator[tuple[str, Tensor]]:
    """The tensors, with all experts of a layer in one."""
    stacks: dict[str, dict[int, Tensor]] = {}
    for name, x in state.items():
        if found := _EXPERT.fullmatch(name):
            stacks.setdefault(f"{found[1]}.{found[3]}", {})[int(found[2])] = x
        else:
            yield name, x
    for name, parts in stacks.items():
        yield name, torch.stack([parts[i] for i in range(len(parts))])


def file_tensors(architecture: str, config: Json, state: State) -> State:
    """The tensors of a file of `architecture`, from a checkpoint's configuration and tensors."""
    state = CHANGES.get(architecture, lambda _, tensors: tensors)(config, dict(state))
    arch = next(key for key, name in gguf.MODEL_ARCH_NAMES.items() if name == architecture)
    names = gguf.get_tensor_name_map(arch, 12)
    tensors = {}
    for name, x in stacked(state):
        known = names.get_name(other_name(name), (".weight", ".bias"))
        found = name if name.startswith("blk.") else known
        assert found is not None, name
        tensors[found] = x.contiguous()
    return tensors


def rotary_tensors(config: Any) -> State:
    """The factors of a rotation that the converter makes of the configuration."""
    rope = getattr(config, "rope_parameters", None) or {}
    rope = rope.get("full_attention", rope)
    if rope.get("rope_type") == "proportional":
        whole = next(iter(config.to_dict()["per_layer_config"].values()))["head_dim"]
        size, turned = whole // 2, int(whole * rope["partial_rotary_factor"] / 2)
        return {"rope_freqs.weight": torch.tensor([1.0] * turned + [1e30] * (size - turned))}
    if rope.get("rope_type") == "longrope":
        return {
            f"rope_factors_{length}.weight": torch.tensor(rope[f"{length}_factor"])
            for length in ("short", "long")
        }
    if rope.get("rope_type") != "llama3":
        return {}
    stretched = ROPE_INIT_FUNCTIONS["llama3"](config, torch.device("cpu"))[0]
    size = 2 * len(stretched)
    plain = rope["rope_theta"] ** -(torch.arange(0, size, 2) / size)
    return {"rope_freqs.weight": plain / stretched}


def checkpoint_of(model: Any, directory: Path) -> tuple[Json, State]:
    """The configuration and the tensors of `model` as it is saved."""
    save(model, directory)
    config: Json = json.loads((directory / "config.json").read_text())
    # A part may be said by layer alone.
    config.setdefault("num_attention_heads", getattr(model.config, "num_attention_heads", None))
    config["num_key_value_heads"] = config.get("num_key_value_heads") or getattr(
        model.config, "num_key_value_heads", None
    )
    return config, load_file(directory / "model.safetensors")


def write_case(
    case: str,
    model: Any,
    folder: Path,
    stored: gguf.GGMLQuantizationType | None = None,
    *,
    is_expanded: bool = False,
) -> Path:
    """The file of `model`, whose header is that of `case`.

    Matrices of whole blocks are of the type `stored`, or the numbers that such blocks hold.
    """
    fields = headers()[case]
    architecture = fields["general.architecture"][2]
    path = folder / "model.gguf"
    writer = gguf.GGUFWriter(path, architecture)
    for key, (kind, item, value) in fields.items():
        if key != "general.architecture":
            of = gguf.GGUFValueType
            writer.add_key_value(key, value, of[kind], of[item] if kind == "ARRAY" else None)
    tensors = file_tensors(architecture, *checkpoint_of(model, folder / "hf"))
    for name, x in (rotary_tensors(model.config) | tensors).items():
        values = x.float().numpy()
        if stored is None or x.dim() < 2 or x.shape[-1] % 32 or _IN_FLOATS.search(name):
            writer.add_tensor(name, values)
            continue
        data = gguf.quants.quantize(values, stored)
        if is_expanded:
            writer.add_tensor(name, gguf.quants.dequantize(data, stored))
        else:
            writer.add_tensor(name, data, raw_dtype=stored)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
