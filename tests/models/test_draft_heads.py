"""Heads in the layouts that vLLM loads, against plain torch models of them."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaModel

from tests.models.checkpoints import TINY, make_model, save
from vllm_lite import LLM, SamplingParams
from vllm_lite.worker.drafting.heads import HeadDrafts, MedusaDrafts
from vllm_lite.worker.drafting.interface import DraftRows

SIZE, VOCAB, DRAFTS = TINY["hidden_size"], TINY["vocab_size"], 3
PROMPTS = [[5, 9, 77, 3, 41] * 5, [8, 100, 23], [17] * 16]
FULL = ["full_attention"] * 3
GREEDY = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)
Seen = list[tuple[list[int], list[int]]]
# Vectors and hidden states [L, N] -> inputs of the output head and of the next pass.
Head = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]


def random(*shape: int) -> Tensor:
    return torch.randn(*shape) * 0.25 if len(shape) > 1 else 1 + 0.25 * torch.randn(*shape)


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, str]:
    model = make_model("llama", num_hidden_layers=4)
    return model, str(save(model, tmp_path_factory.mktemp("target")))


def write(folder: Path, config: dict[str, Any], tensors: dict[str, Tensor]) -> str:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    save_file(
        {k: v.detach().contiguous().clone() for k, v in tensors.items()},
        folder / "model.safetensors",
    )
    return str(folder)


def drafted(
    monkeypatch: pytest.MonkeyPatch, path: str, drafts: dict[str, Any], **options: Any
) -> tuple[list[list[int]], Seen]:
    """The texts, and all drafts with the tokens that they follow."""
    seen: Seen = []
    for kind in (HeadDrafts, MedusaDrafts):
        propose = kind.propose

        def watched(self: Any, rows: DraftRows, propose: Any = propose) -> Any:
            found = propose(self, rows)
            columns = zip(rows.slots.tolist(), rows.ends.tolist(), found, strict=True)
            table = self._states.tokens.token_ids
            seen.extend(
                (table[slot, :end].tolist(), ids.tolist()) for slot, end, ids in columns if len(ids)
            )
            return found

        monkeypatch.setattr(kind, "propose", watched)
    settings = {"dtype": "float32", "block_size": 8, "max_num_batched_tokens": 11}
    settings |= {"skip_tokenizer_init": True, "disable_frontend_multiprocessing": True}
    settings |= {"max_num_seqs": 2}
    given = {"num_speculative_tokens": DRAFTS} | drafts
    given["num_speculative_tokens_per_batch_size"] = [[1, 64, given["num_speculative_tokens"]]]
    with LLM(path, **(settings | options), speculative_config=given) as llm:
        prompts = [{"prompt_token_ids": ids} for ids in PROMPTS]
        for _ in range(2):  # the second time from the prefix cache
            outputs = llm.generate(prompts, GREEDY, use_tqdm=False)
    return [list(output.outputs[0].token_ids) for output in outputs], seen


def test_weights_of_both_models_come_back(target: tuple[Any, str], tmp_path: Path) -> None:
    """A model that drafts for itself is right only with all of its weights."""
    _, path = target
    drafts = {"model": path, "num_speculative_tokens": 3}
    drafts["num_speculative_tokens_per_batch_size"] = [[1, 64, 3]]
    options: dict[str, Any] = {"dtype": "bfloat16", "skip_tokenizer_init": True}
    options |= {"disable_frontend_multiprocessing": True, "enable_sleep_mode": True}
    prompts = [{"prompt_token_ids": ids} for ids in PROMPTS]
    with LLM(path, **options, speculative_config=drafts, enable_prefix_caching=False) as llm:
        told, counts = [], [0]
        for _ in range(2):
            outputs = llm.generate(prompts, GREEDY, use_tqdm=False)
            told.append([list(output.outputs[0].token_ids) for output in outputs])
            drafting = llm.get_stats().spec_decoding
            assert drafting is not None
            counts.append(drafting.num_accepted_tokens - counts[-1])
            llm.sleep(level=2)
            llm.wake_up()
    assert told[0] == told[1] and 20 < counts[1] == counts[2]


@cache
def texts(path: str) -> list[list[int]]:
    options: dict[str, Any] = {"dtype": "float32", "skip_tokenizer_init": True}
    with LLM(path, **options, disable_frontend_multiprocessing=True) as llm:
        outputs = llm.generate([{"prompt_token_ids": ids} for ids in PROMPTS], GREEDY)
    return [list(output.outputs[0].token_ids) for output in outputs]


@torch.no_grad()
def expected(
    model: Any,
    tokens: list[int],
    count: int,
    head: Head,
    read: Callable[[Any], Tensor] = lambda out: out.hidden_states[-1][0],
    embedding: Tensor | None = None,
    output: Callable[[Tensor], Tensor] | None = None,
) -> list[int]:
    """Drafts after `tokens`: each pass over all of them, without a cache."""
    out = model.model(torch.tensor([tokens[:-1]]), output_hidden_states=True)
    hidden, tokens = read(out), list(tokens)
    drafts: list[int] = []
    rows = model.model.embed_tokens.weight if embedding is None else embedding
    for _ in range(count):
        normed, chained = head(rows[torch.tensor(tokens[1:])], hidden)
        logits = model.lm_head(normed[-1]) if output is None else output(normed[-1])
        drafts.append(int(logits.argmax()))
        tokens.append(drafts[-1])
        hidden = torch.cat([hidden, chained[-1:]])
    return drafts


def check(seen: Seen, *args: Any, **options: Any) -> None:
    assert len(seen) > 20 and max(len(ids) for _, ids in seen) == DRAFTS
    for tokens, ids in seen[::4]:  # without a cache it takes long
        model, head = args
        assert ids == expected(model, tokens, len(ids), head, **options)


def llama_layers(count: int) -> LlamaModel:
    torch.manual_seed(5)
    settings = {**TINY, "num_hidden_layers": count}
    layers = LlamaModel(LlamaConfig(**settings, attn_implementation="eager")).eval()
    with torch.no_grad():
        for name, parameter in layers.named_parameters():
            parameter.normal_(1.0 if "norm" in name else 0.0, 0.25)
    layers.norm = nn.Identity()
    return layers


def layer_tensors(layers: Any, prefix: str = "layers") -> dict[str, Tensor]:
    return {f"{prefix}.{name}": tensor for name, tensor in layers.layers.state_dict().items()}


@pytest.mark.parametrize("variant", ["plain", "tight", "bias", "norms", "own"])
def test_eagle(
    target: tuple[Any, str], variant: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, path = target
    layers = llama_layers(2)
    layers.layers[0].input_layernorm = nn.Identity()
    fc = {"fc.weight": random(SIZE, 2 * SIZE)}
    config = {**TINY, "architectures": ["LlamaForCausalLM"], "num_hidden_layers": 2}
    config |= {"model_type": "llama", "some_training_note": 3.5}
    tensors, norms = layer_tensors(layers) | fc, {}
    bias, options = torch.zeros(SIZE), {}
    if variant == "bias":
        tensors["fc.bias"] = bias = torch.randn(SIZE)
    if variant == "norms":
        config["add_para_norm"] = True
        norms = {name: random(SIZE) for name in ("embedding", "hidden_states")}
        tensors |= {f"{name}_layernorm.weight": weight for name, weight in norms.items()}
    if variant == "own":
        own, output = random(VOCAB, SIZE), random(VOCAB, SIZE)
        tensors |= {"embed_tokens.weight": own, "lm_head.weight": output}
        options = {"embedding": own, "output": lambda row: output @ row}

    def normed(rows: Tensor, name: str) -> Tensor:
        if not norms:
            return rows
        return rows / (rows.square().mean(-1, keepdim=True) + 1e-6).sqrt() * norms[name]

    def head(vectors: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
        both = torch.cat([normed(vectors, "embedding"), normed(hidden, "hidden_states")], 1)
        x = both @ fc["fc.weight"].T + bias
        out = layers(inputs_embeds=x[None]).last_hidden_state[0]
        return out, out

    draft = write(tmp_path / "eagle", config, tensors)
    room = {"num_gpu_blocks_override": 11, "max_model_len": 64} if variant == "tight" else {}
    told, seen = drafted(monkeypatch, path, {"method": "eagle", "model": draft}, **room)
    assert told == texts(path)
    check(seen, model, head, **options)


@pytest.mark.parametrize("variant", ["part", "renewed", "wide"])
def test_eagle3(
    target: tuple[Any, str], variant: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, path = target
    layers = llama_layers(1)
    block, size = layers.layers[0], SIZE
    for name in ("q_proj", "k_proj", "v_proj"):
        old = getattr(block.self_attn, name)
        new = nn.Linear(2 * size, old.out_features, bias=False)
        nn.init.normal_(new.weight, std=0.25)
        setattr(block.self_attn, name, new)
    weights = {"fc.weight": random(size, 3 * SIZE), "norm.weight": random(size)}
    hidden_norm = random(size)
    known = torch.randperm(VOCAB)[:70].sort().values if variant == "part" else torch.arange(VOCAB)
    output, taps = random(len(known), size), [1, 2, 3]
    tensors = {
        "lm_head.weight": output,
        "midlayer.hidden_norm.weight": hidden_norm,
        "t2d": torch.zeros(VOCAB, dtype=torch.bool),
        **weights,
        **{f"midlayer.{name}": tensor for name, tensor in block.state_dict().items()},
    }
    if variant == "part":
        tensors["d2t"] = known - torch.arange(70)
    config = {**TINY, "architectures": ["LlamaForCausalLMEagle3"], "num_hidden_layers": 1}
    config |= {"draft_vocab_size": len(known), "norm_before_residual": variant == "renewed"}
    config |= {"eagle_aux_hidden_state_layer_ids": taps, "model_type": "llama"}

    def norm(rows: Tensor, weight: Tensor) -> Tensor:
        return rows / (rows.square().mean(-1, keepdim=True) + 1e-6).sqrt() * weight

    def head(vectors: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
        at = torch.arange(len(hidden))
        normed = norm(hidden, hidden_norm)
        both = torch.cat([block.input_layernorm(vectors), normed], 1)[None]
        mask = torch.full((len(at), len(at)), float("-inf")).triu(1)[None, None]
        mixed = block.self_attn(
            hidden_states=both,
            position_embeddings=layers.rotary_emb(both, at[None]),
            attention_mask=mask,
        )[0][0]
        stream = mixed + (normed if variant == "renewed" else hidden)
        stream = stream + block.mlp(block.post_attention_layernorm(stream))
        return norm(stream, weights["norm.weight"]), stream

    def read(out: Any) -> Tensor:
        return torch.cat([out.hidden_states[i][0] for i in taps], 1) @ weights["fc.weight"].T

    def logits(row: Tensor) -> Tensor:
        return torch.full((VOCAB,), float("-inf")).index_copy(0, known, output @ row)

    draft = write(tmp_path / "eagle3", config, tensors)
    told, seen = drafted(monkeypatch, path, {"model": draft})
    assert told == texts(path)
    check(seen, model, head, read=read, output=logits)


@pytest.mark.parametrize("variant", ["plain", "shared", "map", "original"])
def test_medusa(
    target: tuple[Any, str], variant: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, path = target
    first = "medusa_heads." if variant == "original" else ""
    layers = {(i, j): random(SIZE, SIZE) for i in range(4) for j in range(2)}
    count = 1 if variant == "shared" else 4
    known = torch.randperm(VOCAB)[:50] if variant == "map" else torch.arange(VOCAB)
    heads = [random(len(known), SIZE) for _ in range(count)]
    tensors = {f"{first}blocks.{i}.layers.{j}.weight": w for (i, j), w in layers.items()}
    tensors |= {f"{first}lm_heads.{i}.weight": weight for i, weight in enumerate(heads)}
    config = {"model_type": "medusa", "architectures": ["MedusaModel"], "hidden_size": SIZE}
    config |= {"vocab_size": VOCAB, "medusa_num_heads": 4, "medusa_num_layers": 2}
    config |= {"original_lm_head": variant == "shared"}
    if variant == "map":
        tensors["token_map"] = known
        config["truncated_vocab_size"] = 50
    draft = write(tmp_path / "medusa", config, tensors)
    told, seen = drafted(monkeypatch, path, {"model": draft})
    assert told == texts(path) and len(seen) > 20
    for tokens, ids in seen:
        with torch.no_grad():
            row = model.model(torch.tensor([tokens[:-1]])).last_hidden_state[0, -1]
            for i, token in enumerate(ids):
                x = row
                for j in range(2):
                    x = x + nn.functional.silu(layers[i, j] @ x)
                assert known[(heads[i % count] @ x).argmax()] == token


def after_the_last(parts: dict[str, Tensor], block: dict[str, Tensor]) -> dict[str, Tensor]:
    names = {"enorm": "enorm", "hnorm": "hnorm", "fc": "eh_proj", "norm": "shared_head.norm"}
    named = {f"{names[name]}.weight": tensor for name, tensor in parts.items()}
    return {f"model.layers.2.{name}": tensor for name, tensor in (named | block).items()}


def beside(parts: dict[str, Tensor], block: dict[str, Tensor]) -> dict[str, Tensor]:
    names = {"enorm": "pre_fc_norm_embedding", "hnorm": "pre_fc_norm_hidden", "fc": "fc"}
    names["norm"] = "norm"
    named = {f"mtp.{names[name]}.weight": tensor for name, tensor in parts.items()}
    return named | {f"mtp.layers.0.{name}": tensor for name, tensor in block.items()}


def ernie(parts: dict[str, Tensor], block: dict[str, Tensor]) -> dict[str, Tensor]:
    names = {"enorm": "mtp_emb_norm", "hnorm": "mtp_hidden_norm", "fc": "mtp_linear_proj"}
    named = {f"model.{names[n]}.0.weight": tensor for n, tensor in parts.items() if n in names}
    return named | {f"model.mtp_block.0.{name}": tensor for name, tensor in block.items()}


@pytest.mark.parametrize(
    ("family", "method", "layout", "settings"),
    [
        ("deepseek_v3", "deepseek_mtp", after_the_last, {"first_k_dense_replace": 1}),
        ("glm4_moe", "glm4_moe_mtp", after_the_last, {"first_k_dense_replace": 1}),
        ("exaone_moe", "mtp", beside, {"layer_types": FULL}),
        ("ernie4_5_moe", "ernie_mtp", ernie, {"moe_layer_start_index": 1}),
    ],
)
def test_multi_token_prediction(
    family: str,
    method: str,
    layout: Any,
    settings: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The third layer of a model with three of them, two of which are the model's own."""
    model = make_model(family, num_hidden_layers=3, **settings)
    path = save(model, tmp_path / "model")
    stored, config = (
        load_file(path / "model.safetensors"),
        json.loads((path / "config.json").read_text()),
    )
    mine = 0 if layout is ernie else 2
    first = f"model.layers.{mine}."
    block = {n.removeprefix(first): t for n, t in stored.items() if n.startswith(first)}
    torch.manual_seed(3)
    if layout is ernie:
        block = {name: tensor + 0.1 * torch.randn(tensor.shape) for name, tensor in block.items()}
    parts = {name: random(SIZE) for name in ("enorm", "hnorm", "norm")}
    parts["fc"] = random(SIZE, 2 * SIZE)
    kept = {n: t for n, t in stored.items() if not n.startswith("model.layers.2.")}
    save_file(kept | layout(parts, block), path / "model.safetensors")
    config |= {"num_hidden_layers": 2, "num_nextn_predict_layers": 1}
    for name in ("layer_types", "mlp_layer_types", "is_moe_layer"):
        if name in config:
            config[name] = config[name][:2]
    (path / "config.json").write_text(json.dumps(config))
    layer = model.model.layers[mine]
    if layout is ernie:
        layer = make_model(family, num_hidden_layers=3, **settings).model.layers[0]
        layer.load_state_dict(block)
    model.model.layers = model.model.layers[:2]
    eps = model.config.rms_norm_eps

    def norm(rows: Tensor, name: str) -> Tensor:
        return rows / (rows.square().mean(-1, keepdim=True) + eps).sqrt() * parts[name]

    def head(vectors: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
        vectors = vectors.clone()
        if layout is not beside:
            vectors[0] = 0
        x = torch.cat([norm(vectors, "enorm"), norm(hidden, "hnorm")], 1) @ parts["fc"].T
        at = torch.arange(len(x))
        mask = torch.full((len(x), len(x)), float("-inf")).triu(1)[None, None]
        out = layer(
            x[None],
            position_embeddings=model.model.rotary_emb(x[None], at[None]),
            attention_mask=mask,
            position_ids=at[None],
        )
        total = (out[0] if isinstance(out, tuple) else out).view(-1, SIZE)
        if layout is ernie:
            return total, total
        normed = norm(total, "norm")
        return normed, normed if layout is beside else total

    told, seen = drafted(monkeypatch, str(path), {"method": method})
    assert told == texts(str(path))
    check(seen, model, head)
