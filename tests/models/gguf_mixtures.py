"""How llama.cpp's converter changes tensors of mixtures and of state-space models."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from vllm_lite.config.values import Json

State = dict[str, Tensor]


def _block(name: str) -> str:
    """The start of a layer's names in files."""
    return f"blk.{next(part for part in name.split('.') if part.isdigit())}"


def split_inputs(config: Json, state: State) -> State:
    """Granite's gates and factors one by one."""
    new: State = {}
    has_experts = bool(config.get("num_local_experts"))
    shared = "_shexp" if has_experts else ""
    for name, x in state.items():
        kind = "_exps" if "block_sparse_moe" in name else shared
        if name.endswith("input_linear.weight"):
            for part, values in zip(("gate", "up"), x.chunk(2, -2), strict=True):
                new[f"{_block(name)}.ffn_{part}{kind}.weight"] = values
        elif name.endswith("shared_mlp.output_linear.weight"):
            new[f"{_block(name)}.ffn_down{kind}.weight"] = x
        else:
            new[name] = x
    return new


def latents(config: Json, state: State) -> State:
    """The expansion of latents as two stacks, keys' inputs by outputs."""
    sizes = [config["qk_nope_head_dim"], config["v_head_dim"]]
    for name in [name for name in state if name.endswith("kv_b_proj.weight")]:
        x = state.pop(name)
        keys, values = x.view(-1, sum(sizes), x.shape[1]).split(sizes, 1)
        state[name.replace("kv_b", "k_b")] = keys.transpose(1, 2)
        state[name.replace("kv_b", "v_b")] = values
    return state


def key_delta(config: Json, state: State) -> State:
    """Kimi's latents, and the parts of its other layers as those of state-space models."""
    new: State = {}
    for name, x in latents(config, state).items():
        if name.endswith(".A_log"):
            x = -torch.exp(x)
        elif name.endswith("_conv1d.weight"):
            x = x.view(1, len(x), 1, -1)
        new[name.replace(".dt_bias", ".dt_proj.bias")] = x
    return new


def gemma4(config: Json, state: State) -> State:
    """Gemma 4's numbers of layers and experts, which are called weights, and of routers."""
    new: State = {}
    for name, x in state.items():
        if name.endswith(".router.scale"):
            new[f"{_block(name)}.ffn_gate_inp.scale"] = x
        elif name.endswith(".per_expert_scale"):
            new[f"{_block(name)}.ffn_down_exps.scale"] = x
        else:
            is_weight = name.endswith("layer_scalar") or ".experts." in name
            new[f"{name}.weight" if is_weight else name] = x
    return new


def dbrx_experts(config: Json, state: State) -> State:
    """Experts in a dimension of their own, all outputs by inputs."""
    count = config["ffn_config"]["moe_num_experts"]
    new: State = {}
    for name, x in state.items():
        if ".experts.mlp." in name:
            stack = x.view(count, -1, x.shape[1])
            new[f"{name}.weight"] = stack.transpose(1, 2) if name.endswith("w2") else stack
        else:
            new[name] = x
    return new


def gpt_oss(config: Json, state: State) -> State:
    """Gates and factors, which take turns, one by one; all outputs by inputs."""
    new: State = {}
    for name, x in state.items():
        base, _, last = name.rpartition(".")
        if last == "sinks":
            new[f"{name}.weight"] = x
            continue
        if not base.endswith("experts"):
            new[name] = x
            continue
        kind = "bias" if last.endswith("_bias") else "weight"
        x = x if kind == "bias" else x.transpose(1, 2)
        if last.startswith("down"):
            new[f"{base}.down_proj.{kind}"] = x
        else:
            new |= {f"{base}.gate_proj.{kind}": x[:, ::2], f"{base}.up_proj.{kind}": x[:, 1::2]}
    return new


def mamba(config: Json, state: State) -> State:
    new: State = {}
    for name, x in state.items():
        if name.endswith(".A_log"):
            x = -torch.exp(x)
        elif name.endswith("conv1d.weight"):
            x = x[:, 0]
        new[name.replace("feed_forward.experts", "mlp.experts")] = x
    return new


def mamba2(config: Json, state: State) -> State:
    """Numbers of heads as columns, norms by groups of heads."""
    groups = config.get("mamba_n_groups") or config["n_groups"]
    new: State = {}
    for name, x in mamba(config, state).items():
        _, mixer, part = name.partition(".mixer." if ".mixer." in name else ".mamba.")
        if part in ("A_log", "D"):
            x = x[:, None]
        elif part == "norm.weight":
            x = x.view(groups, -1)
        name = name.replace(".dt_bias", ".dt_proj.bias")
        if mixer == ".mixer.":
            name = name.replace("model.layers.", "backbone.layers.")
        new[name] = x
    return new


def nemotron(config: Json, state: State) -> State:
    new: State = {}
    for name, x in mamba2(config, state).items():
        if ".mixer.experts." in name:
            name = name.replace("backbone.", "model.").replace(".mixer.", ".mlp.")
        new[name.replace(".dt_proj.bias", ".dt.bias")] = x
    return new


def falcon_h1(config: Json, state: State) -> State:
    """All factors multiplied into weights."""
    gate, down = config["mlp_multipliers"]
    attended = config["attention_in_multiplier"]
    factors = {
        "down_proj": down,
        "gate_proj": gate,
        "k_proj": config["key_multiplier"] * attended,
        "q_proj": attended,
        "v_proj": attended,
        "o_proj": config["attention_out_multiplier"],
        "out_proj": config["ssm_out_multiplier"],
        "lm_head": config["lm_head_multiplier"],
        "embed_tokens": config["embedding_multiplier"],
    }
    inner, vectors = config["mamba_d_ssm"], config["mamba_n_groups"] * config["mamba_d_state"]
    widths = [inner, inner, vectors, vectors, config["mamba_n_heads"]]
    rows = torch.tensor(config["ssm_multipliers"]).repeat_interleave(torch.tensor(widths))
    for name, x in state.items():
        layer = name.split(".")[-2]
        if layer == "in_proj":
            state[name] = x * config["ssm_in_multiplier"] * rows[:, None]
        elif layer == "k_proj":
            state[name] = x * config["key_multiplier"] * attended
        else:
            state[name] = x * factors.get(layer, 1.0)
    return mamba2(config, state)


def short_convolutions(config: Json, state: State) -> State:
    new: State = {}
    for name, x in state.items():
        x = x[:, 0] if name.endswith("conv.conv.weight") else x
        name = name.replace(".expert_bias", ".expert_bias.bias")
        new[name.removeprefix("model.") if ".experts." in name else name] = x
    return new


def gated_delta(config: Json, state: State) -> State:
    """Norms as they multiply; Qwen3.5's heads of values in turn for each head of keys."""
    keys, values = config["linear_num_key_heads"], config["linear_num_value_heads"]
    key_size, size = config["linear_key_head_dim"], config["linear_value_head_dim"]
    is_next = config["model_type"] == "qwen3_next"

    def in_turn(x: Tensor, size: int, dim: int = 0) -> Tensor:
        heads = torch.arange(values).view(keys, -1).t().reshape(-1, 1) * size
        return x if is_next else x.index_select(dim, (heads + torch.arange(size)).flatten())

    def behind_keys(x: Tensor) -> Tensor:
        first = 2 * keys * key_size
        return torch.cat((x[:first], in_turn(x[first:], size)))

    changes: dict[str, Any] = {
        "A_log": lambda x: -in_turn(x, 1).exp(),
        "dt_bias": lambda x: in_turn(x, 1),
        "conv1d.weight": lambda x: behind_keys(x[:, 0]),
        "in_proj_qkv.weight": behind_keys,
        "in_proj_z.weight": lambda x: in_turn(x, size),
        "in_proj_a.weight": lambda x: in_turn(x, 1),
        "in_proj_b.weight": lambda x: in_turn(x, 1),
        "out_proj.weight": lambda x: in_turn(x, size, 1),
    }
    new: State = {}
    for name, x in state.items():
        _, mixer, part = name.partition(".linear_attn.")
        if part == "in_proj_qkvz.weight":
            shared = values // keys * size
            parts = x.view(keys, -1, x.shape[1]).split([key_size, key_size, shared, shared], 1)
            flat = [part.reshape(-1, x.shape[1]) for part in parts]
            new[f"{_block(name)}.attn_qkv.weight"] = torch.cat(flat[:3])
            new[f"{_block(name)}.attn_gate.weight"] = flat[3]
            continue
        if part in changes:
            x = changes[part](x)
        elif name.endswith("norm.weight") and not mixer:
            x = x + 1
        if name.endswith("mlp.experts.gate_up_proj"):
            for half, own in zip(("gate_proj", "up_proj"), x.chunk(2, 1), strict=True):
                new[name.replace("gate_up_proj", f"{half}.weight")] = own
            continue
        name = name.replace(".dt_bias", ".dt_proj.bias")
        new[f"{name}.weight" if name.endswith("experts.down_proj") else name] = x
    return new
