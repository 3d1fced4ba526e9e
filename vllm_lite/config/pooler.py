"""PoolerConfig, and the facts of a pooling model: row, checkpoint and options put together."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Literal

from vllm_lite.config.checkpoints.architectures import ARCHITECTURES, converted_tasks
from vllm_lite.config.checkpoints.gguf_header import read_gguf
from vllm_lite.config.checkpoints.sentence_transformers import (
    read_inputs,
    read_modules,
    weighs_words,
)
from vllm_lite.config.facts import ModelFacts
from vllm_lite.config.families.architecture import Architecture, fallback
from vllm_lite.config.json_file import read_json
from vllm_lite.config.model import DTYPE_WORDS
from vllm_lite.config.options.option import JsonOption, Rules, config, option
from vllm_lite.config.pooling import TASKS, PoolingFacts, SeqPooling, TokPooling
from vllm_lite.config.values import Json, JsonView
from vllm_lite.errors import UsageError
from vllm_lite.log import init_logger

logger = init_logger(__name__)

_CONVERSIONS = {
    "embed": ("embed", "token_embed"),
    "classify": ("classify", "token_classify"),
    "reward": ("token_classify",),
}
_POOLING = {"avg": "MEAN", "cls": "CLS", "last": "LAST"}
# The ending of the names of models that score each word of the vocabulary.
_OF_WORDS = "ForMaskedLM"
# transformers' default.
_NUM_LABELS = 2
_OF_ACTIVATION: Rules = {
    "deprecated": "--pooler-config.use_activation",
    "becomes": lambda value: {"pooler_config.use_activation": value},
}


@config
class PoolerConfig:
    """The making of vectors, classes and scores from hidden states."""

    JSON_OPTION: ClassVar[JsonOption] = JsonOption(
        "pooler_config",
        "JSON: how hidden states become vectors, classes and scores.",
        group="ModelConfig",
    )

    task: str | None = option(
        None,
        "Task of requests that name none.",
        choices=(*TASKS, "plugin"),
        works=(None, *TASKS),
        remedy="what a plugin sends has a task of the model's",
    )
    pooling_type: Literal["CLS", "LAST", "MEAN", "ALL", "STEP"] | None = option(
        None, "seq_pooling_type or tok_pooling_type, whichever has such a value."
    )
    seq_pooling_type: SeqPooling | None = option(
        None,
        "What a prompt's vector or classes are made of: its first or last hidden state, or the "
        "mean.",
        auto="the checkpoint's",
    )
    tok_pooling_type: TokPooling | None = option(
        None,
        "Tokens that have a vector or classes: all, or those with step_tag_id.",
        auto="the model's",
    )
    use_activation: bool | None = option(
        None,
        "Divide vectors by their length, and turn logits into probabilities.",
        auto="the checkpoint's",
    )
    enable_flash_late_interaction: bool = option(
        True, "Score by a kernel of its own.", level="idle", why="scores are computed on the CPU"
    )
    dimensions: int | None = option(
        None, "Size of vectors for requests that ask for none; of Matryoshka models.", ge=1
    )
    enable_chunked_processing: bool = option(
        False,
        "Embed inputs longer than the context in parts; the vector is the mean of the parts', "
        "weighted by their tokens.",
    )
    max_embed_len: int | None = option(
        None, "Longest input with enable_chunked_processing, in tokens.", ge=1
    )
    logit_mean: float | None = option(None, "Subtract this from logits of classes.")
    logit_sigma: float | None = option(None, "Divide logits of classes by this, after that.")
    step_tag_id: int | None = option(None, "Id of the token that ends a step, with STEP.", ge=0)
    returned_token_ids: list[int] | None = option(None, "Classes that are answered, with STEP.")
    normalize: bool | None = option(None, "", **_OF_ACTIVATION)
    softmax: bool | None = option(None, "", **_OF_ACTIVATION)
    activation: bool | None = option(None, "", **_OF_ACTIVATION)
    logit_bias: float | None = option(
        None,
        "",
        deprecated="--pooler-config.logit_mean",
        becomes=lambda value: {"pooler_config.logit_mean": value},
    )
    logit_scale: float | None = option(
        None,
        "",
        gt=0,
        deprecated="--pooler-config.logit_sigma, of which it is the inverse",
        becomes=lambda value: {"pooler_config.logit_sigma": 1 / value},
    )

    def __post_init__(self) -> None:
        if self.logit_sigma == 0:
            raise UsageError("--pooler-config.logit_sigma is 0, and logits are divided by it")
        if self.pooling_type and (self.seq_pooling_type or self.tok_pooling_type):
            raise UsageError(
                "--pooler-config.pooling_type is seq_pooling_type or tok_pooling_type; drop it"
            )
        if self.max_embed_len is not None and not self.enable_chunked_processing:
            raise UsageError(
                "--pooler-config.max_embed_len needs --pooler-config.enable_chunked_processing"
            )

    def stated(self) -> Json:
        """The fields of PoolingFacts that the user set."""
        either = self.pooling_type
        is_of_tokens = either in ("ALL", "STEP")
        fields: Json = {
            "seq_pooling_type": self.seq_pooling_type or (None if is_of_tokens else either),
            "tok_pooling_type": self.tok_pooling_type or (either if is_of_tokens else None),
            "use_activation": self.use_activation,
            "dimensions": self.dimensions,
            "enable_chunked_processing": self.enable_chunked_processing,
            "max_embed_len": self.max_embed_len,
            "logit_mean": self.logit_mean,
            "logit_sigma": self.logit_sigma,
            "step_tag_id": self.step_tag_id,
            "returned_token_ids": self.returned_token_ids and tuple(self.returned_token_ids),
        }
        return {name: value for name, value in fields.items() if value is not None}


def with_pooling(facts: ModelFacts, values: JsonView) -> ModelFacts:
    """`facts` with those of pooling, if the options `values` run the model to pool.

    Raises UsageError for options that do not fit each other or the model.
    """
    runner, convert = values.get("runner", "auto"), values.get("convert", "auto")
    own, row, folder = _own_tasks(facts), ARCHITECTURES.get(facts.architecture), Path(facts.path)
    if facts.implementation == "transformers":
        row = fallback(facts.architecture)
    name, wanted = _stated_names(facts)[0], _CONVERSIONS.get(convert)
    pools = own is not None or wanted is not None or (folder / "modules.json").is_file()
    if not (pools if runner == "auto" else runner == "pooling"):
        _check_generates(facts, own, values)
        return facts
    if convert == "reward":
        logger.warning("--convert reward is deprecated; the task is token_classify")
    if own is None and convert == "none":
        raise UsageError(
            f"--convert none: {name} generates text, and with --runner pooling is made to embed "
            "it; leave --convert out"
        )
    if own is not None and wanted is not None and wanted[0] not in own:
        raise UsageError(
            f"--convert {convert}: {name} is made for {' and '.join(own)}; leave --convert out"
        )
    options = PoolerConfig(**(values.get("pooler_config") or {}))
    stated = options.stated()
    found: Json = {"tasks": own or wanted or _CONVERSIONS["embed"], "size": facts.hidden_size}
    found["is_causal"] = _is_causal(facts, row)
    found["num_token_types"] = facts.hf_config.get("type_vocab_size") or 0
    if row is not None:
        found |= {"seq_pooling_type": row.seq_pooling, "tok_pooling_type": row.tok_pooling}
    found["head_dtype"] = _head_dtype(facts)
    word = facts.hf_config.get("pooling")  # of NVIDIA's bidirectional Llamas
    if isinstance(word, str) and word in _POOLING:
        found["seq_pooling_type"] = _POOLING[word]
    # Of GGUF files' headers.
    if pooling_type := facts.hf_config.get("seq_pooling"):
        found["seq_pooling_type"] = pooling_type
    if "embed" in found["tasks"]:
        found |= _vectors(facts, has_pooling="seq_pooling_type" in stated)
    else:
        found |= _classes(facts, values.get("tokenizer") or facts.path)
    found |= {} if row is None else row.pooling
    if found.get("seq_pooling_type") == "MAX":
        found["size"] = facts.vocab_size
    pooling = PoolingFacts(**(found | stated))
    if options.task is not None:
        if options.task not in pooling.tasks:
            raise UsageError(
                f"--pooler-config.task {options.task}: {name} answers {', '.join(pooling.tasks)}"
            )
        tasks = tuple(dict.fromkeys((options.task, *pooling.tasks)))
        pooling = replace(pooling, tasks=tasks)
    _check_fits(name, pooling, facts.vocab_size)
    return replace(facts, pooling=pooling)


def _stated_names(facts: ModelFacts) -> list[str]:
    named = facts.hf_config.get("architectures")
    return [str(name) for name in named] if isinstance(named, list) and named else ["the model"]


def _own_tasks(facts: ModelFacts) -> tuple[str, ...] | None:
    """The tasks that the checkpoint is made for; None where it generates text."""
    for name in _stated_names(facts):
        if name in ARCHITECTURES:
            row, tasks = ARCHITECTURES[name], ARCHITECTURES[name].tasks
            if weighs_words(Path(facts.path)):
                scores_words = name.endswith(_OF_WORDS) and tasks == _CONVERSIONS["reward"]
                if not (scores_words or row.seq_pooling == "MAX"):
                    raise UsageError(
                        f"{facts.path}: modules.json lists SpladePooling, and {name} gives no "
                        f"scores of words here; use one of BertForMaskedLM or DistilBertForMaskedLM"
                    )
                return _CONVERSIONS["embed"]
            return None if tasks[0] == "generate" else tasks
        if (converted := converted_tasks(name)) is not None:
            return converted
    return None


def _is_causal(facts: ModelFacts, row: Architecture | None) -> bool:
    hf = facts.hf_config
    sees_later = hf.get("is_causal") is False or hf.get("use_bidirectional_attention") is True
    return not sees_later and (row is None or row.is_causal)


def _check_generates(facts: ModelFacts, own: tuple[str, ...] | None, values: JsonView) -> None:
    name = _stated_names(facts)[0]
    if own is not None:
        raise UsageError(
            f"--runner generate: {name} is made for {' and '.join(own)} and generates no text; "
            "leave --runner out"
        )
    if not _is_causal(facts, None):
        raise UsageError(
            f"{name}'s tokens see later ones, so that it generates no text; use --runner pooling"
        )
    if values.get("convert") in _CONVERSIONS:
        raise UsageError(f"--convert {values['convert']} needs --runner pooling")
    if values.get("pooler_config"):
        raise UsageError("--pooler-config needs --runner pooling")
    if _head_dtype(facts) not in (None, "model"):
        raise UsageError(
            f"--hf-overrides.head_dtype {facts.hf_config['head_dtype']} is for models that pool; "
            "the head of text has the model's type: set it to model"
        )


def _head_dtype(facts: ModelFacts) -> str | None:
    kind = facts.hf_config.get("head_dtype")
    kind = DTYPE_WORDS.get(kind, kind) if isinstance(kind, str) else kind
    if kind not in (None, "model", "float32", "bfloat16"):
        raise UsageError(f"--hf-overrides.head_dtype {kind} is none of model, float32 and bfloat16")
    return kind


def _vectors(facts: ModelFacts, *, has_pooling: bool) -> Json:
    """Fields of PoolingFacts for the task embed."""
    hf, folder = facts.hf_config, Path(facts.path)
    found = read_modules(folder, has_pooling=has_pooling) or {}
    if found.get("dense"):
        found["size"] = found["dense"][-1].out_size
    sizes = hf.get("matryoshka_dimensions") or []
    if not isinstance(sizes, list) or not all(type(size) is int and size > 0 for size in sizes):
        raise facts.error("matryoshka_dimensions is not a list of sizes")
    found |= {
        "matryoshka_dimensions": tuple(sizes),
        "is_matryoshka": bool(sizes or hf.get("is_matryoshka")),
        **read_inputs(folder),
    }
    return found


def _classes(facts: ModelFacts, tokenizer: str) -> Json:
    """Fields of PoolingFacts for the task classify."""
    hf = facts.hf_config
    words, method = hf.get("classifier_from_token") or [], hf.get("method") or ""
    if words and not method:
        method = "from_2_way_softmax" if len(words) == 2 else "no_post_processing"
    if method not in ("", "from_2_way_softmax", "no_post_processing"):
        raise UsageError(
            f"--hf-overrides.method {method} is none of from_2_way_softmax and no_post_processing"
        )
    if bool(words) != bool(method) or (method == "from_2_way_softmax" and len(words) != 2):
        raise UsageError(
            f"--hf-overrides.method {method} needs classifier_from_token: the words for no and yes"
        )
    names, count = hf.get("id2label") or {}, hf.get("num_labels")
    if method:
        count = 1 if method == "from_2_way_softmax" else len(words)
    if count is None:
        count = len(names) or _NUM_LABELS
    if type(count) is not int or count < 1:
        raise facts.error(f"num_labels is {count!r}, not a positive number")
    own_pooling = {"cls": "CLS", "mean": "MEAN"}.get(hf.get("classifier_pooling", ""))
    return {
        **({"seq_pooling_type": own_pooling} if own_pooling else {}),
        "num_labels": count,
        "id2label": tuple(str(names.get(str(i), f"LABEL_{i}")) for i in range(count)),
        "classifier_from_token": _token_ids(Path(tokenizer), words),
        "method": method,
        "activation": _activation(facts),
    }


def _activation(facts: ModelFacts) -> str:
    """The function from logits to answers: of the loss in transformers, or the cross-encoder's."""
    hf = facts.hf_config
    by_problem = {
        "regression": "identity",
        "single_label_classification": "softmax",
        "multi_label_classification": "sigmoid",
    }
    if hf.get("problem_type") in by_problem:
        return by_problem[hf["problem_type"]]
    own = hf.get("sentence_transformers")
    name = own.get("activation_fn") if isinstance(own, dict) else None
    name = name or hf.get("sbert_ce_default_activation_function") or "Softmax"
    # A logistic function counts as what fits the number of classes, as in vLLM.
    kinds = {"Identity": "identity", "Sigmoid": "softmax", "Softmax": "softmax"}
    kind = kinds.get(str(name).rpartition(".")[2])
    if kind is None:
        raise facts.error(f"the activation {name} of its classes is none of {', '.join(kinds)}")
    return kind


def _token_ids(tokenizer: Path, words: Any) -> tuple[int, ...]:
    """The ids of tokens by their text, of a tokenizer.json or a GGUF file."""
    if not words:
        return ()
    file = tokenizer
    if tokenizer.suffix == ".gguf":
        tokens = read_gguf(str(tokenizer)).metadata.get("tokenizer.ggml.tokens", ())
        known = {token: i for i, token in enumerate(tokens)}
    else:
        file = tokenizer / "tokenizer.json"
        known = _vocabulary(file)
    missing = [word for word in words if word not in known]
    if missing:
        raise UsageError(
            f"--hf-overrides.classifier_from_token: {', '.join(map(str, missing))} is no token of "
            f"{file}"
        )
    return tuple(known[word] for word in words)


def _vocabulary(file: Path) -> dict[str, int]:
    if not file.is_file():
        raise UsageError(
            f"--hf-overrides.classifier_from_token needs {file}, which has the tokens' ids"
        )
    stored = read_json(file)
    vocabulary: Any = (stored.get("model") or {}).get("vocab") or {}
    if isinstance(vocabulary, list):  # of [token, score]
        vocabulary = {entry[0]: i for i, entry in enumerate(vocabulary)}
    added = {entry["content"]: entry["id"] for entry in stored.get("added_tokens") or []}
    return {**vocabulary, **added}


def _check_fits(name: str, pooling: PoolingFacts, vocab_size: int) -> None:
    """Raise UsageError for options that the model has no use for."""
    flag, size = "--pooler-config", pooling.dimensions
    sizes = pooling.matryoshka_dimensions
    if size is not None and not (
        pooling.is_matryoshka and size <= pooling.size and (not sizes or size in sizes)
    ):
        raise UsageError(
            f"{flag}.dimensions {size}: {name} has vectors of "
            f"{', '.join(map(str, (*sizes, pooling.size)))}"
        )
    if pooling.enable_chunked_processing and "embed" not in pooling.tasks:
        raise UsageError(f"{flag}.enable_chunked_processing: {name} makes no vectors of prompts")
    is_of_steps = pooling.step_tag_id is not None or bool(pooling.returned_token_ids)
    if is_of_steps and pooling.tok_pooling_type != "STEP":
        raise UsageError(f"{flag}.step_tag_id and returned_token_ids need tok_pooling_type STEP")
    if (pooling.step_tag_id or 0) >= vocab_size:
        raise UsageError(f"{flag}.step_tag_id is none of the model's {vocab_size} tokens")
    if any(not 0 <= i < pooling.num_labels for i in pooling.returned_token_ids):
        raise UsageError(f"{flag}.returned_token_ids: {name} has {pooling.num_labels} classes")
