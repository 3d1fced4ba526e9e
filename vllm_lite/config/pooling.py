"""PoolingFacts: what a model answers beside text, and how its hidden states become that answer."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

# vLLM's pooling tasks: one answer for a prompt, one for each of its tokens, or both.
BOTH = "embed&token_classify"
TASKS = ("embed", "classify", "token_embed", "token_classify", BOTH)
# Those whose answers are of tokens alone.
TOKEN_TASKS = ("token_embed", "token_classify")
SeqPooling = Literal["CLS", "LAST", "MEAN"]
# Of a sparse model: the largest of the tokens' answers. Of sentence-transformers: the largest of
# each number of hidden states, their sum divided by the root of their count, and their mean, each
# weighted by its place.
AnySeqPooling = Literal[SeqPooling, "MAX", "MAX_STATE", "MEAN_SQRT", "WEIGHTED_MEAN"]
TokPooling = Literal["ALL", "STEP"]
# listwise: a query and all its documents are read as one prompt.
ScoreType = Literal["bi-encoder", "cross-encoder", "late-interaction", "listwise"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DenseFacts:
    """A dense layer of sentence-transformers behind the pooling, whose weights lie in `folder`."""

    folder: str
    in_size: int
    out_size: int
    has_bias: bool
    # tanh, relu, gelu, sigmoid or identity.
    activation: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolingFacts:
    """Read from the architecture's row, sentence-transformers' files, and the user's options."""

    # The tasks that requests may name, the first being theirs where they name none.
    tasks: tuple[str, ...] = ("embed", "token_embed")
    # Whether tokens see earlier ones alone; if not, layers cache nothing.
    is_causal: bool = True
    seq_pooling_type: AnySeqPooling = "LAST"
    tok_pooling_type: TokPooling = "ALL"
    # Whether vectors are divided by their length, and logits go through `activation`, unless a
    # request says otherwise. The softmax of one class is its logistic function.
    use_activation: bool = True
    activation: Literal["softmax", "sigmoid", "identity"] = "softmax"
    # Numbers of a vector, behind the dense layers.
    size: int = 0
    dense: tuple[DenseFacts, ...] = ()
    # Whether a vector may be cut, and the sizes it may be cut to; (): any.
    is_matryoshka: bool = False
    matryoshka_dimensions: tuple[int, ...] = ()
    # The size of vectors for requests that ask for none; None: the whole.
    dimensions: int | None = None
    # Classes, and their names by number.
    num_labels: int = 0
    id2label: tuple[str, ...] = ()
    # Ids of tokens whose logits are the classes', where a head is made of the language model's: as
    # they are, or, of two, the second's less the first's.
    classifier_from_token: tuple[int, ...] = ()
    method: Literal["", "from_2_way_softmax", "no_post_processing"] = ""
    # Of the numbers of heads and dense layers; None: float32, or the model's for a vocabulary.
    head_dtype: Literal["model", "float32", "bfloat16"] | None = None
    # Logits are shifted and divided by these before their activation.
    logit_mean: float = 0.0
    logit_sigma: float = 1.0
    # Of STEP: the token behind each step, and the classes that are answered; (): all.
    step_tag_id: int | None = None
    returned_token_ids: tuple[int, ...] = ()
    # Of tasks of tokens: ids without an answer at a prompt's beginning and at its end.
    omitted: dict[str, tuple[int, int]] = field(default_factory=dict)
    # Types that tokens may have; 0: they have none.
    num_token_types: int = 0
    # Tokens that alone have answers; (): all.
    answering_token_ids: tuple[int, ...] = ()
    # Of sentence-transformers: texts to put in front of inputs, by name.
    prompts: dict[str, str] = field(default_factory=dict)
    # Whether the tokens of such a text are pooled too.
    counts_prompts: bool = True
    similarity_fn_name: str = "cosine"
    # The tokens of an input that it keeps.
    max_seq_length: int | None = None
    # Whether texts are lowered before they become tokens, whatever the tokenizer does.
    lowers_texts: bool = False
    # Longer inputs are embedded in parts of the context's length, up to max_embed_len tokens.
    enable_chunked_processing: bool = False
    max_embed_len: int | None = None

    @property
    def default_task(self) -> str:
        return self.tasks[0]

    @property
    def score_type(self) -> ScoreType | None:
        """How pairs of texts are scored; None where they cannot be."""
        if "classify" in self.tasks and self.num_labels == 1:
            return "cross-encoder"
        if self.answering_token_ids:
            return "listwise"
        by_task: dict[str, ScoreType] = {"embed": "bi-encoder", "token_embed": "late-interaction"}
        return by_task.get(self.default_task)
