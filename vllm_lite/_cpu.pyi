"""The compiled CPU kernels (csrc/bindings.cpp); tensors are passed as addresses."""

class Program:
    """A recorded step. Each function that takes part in one is also a method, which records it."""

    def __init__(self, example: list[int], input_bytes: list[int], /) -> None: ...
    def run(self, step: list[int], /) -> None: ...
    def profile(self, step: list[int], /) -> list[tuple[str, float]]: ...
    def finish(
        self, temporaries: list[tuple[int, int]], results: list[int], max_tokens: int, /
    ) -> int: ...
    def place(self, memory: int, /) -> list[int]: ...

class RankGroup:
    """The ranks of a tensor-parallel group; `all_reduce` takes its address."""

    def __init__(self, fd: int, rank: int, num_ranks: int, /) -> None: ...
    @property
    def address(self) -> int: ...
    def all_gather(
        self, x: int, out: int, num_rows: int, width: int, out_width: int, /
    ) -> None: ...
    def fail(self) -> None: ...
    def failed_rank(self) -> int: ...
    def slowest_rank(self) -> int: ...

def all_reduce(
    group: int, x: int, out: int, dtype: int, out_dtype: int, num_tokens: int, size: int, /
) -> None: ...
def embedding(
    ids: int,
    rows: int,
    out: int,
    num_tokens: int,
    num_rows: int,
    row_bytes: int,
    first_row: int,
    /,
) -> None: ...
def norm(
    x: int,
    residual: int,
    weight: int,
    bias: int,
    out: int,
    dtype: int,
    weight_dtype: int,
    num_tokens: int,
    num_heads: int,
    size: int,
    x_stride: int,
    x_head_stride: int,
    residual_stride: int,
    out_stride: int,
    out_head_stride: int,
    eps: float,
    is_centered: bool,
    /,
) -> None: ...
def rotary_embedding(
    positions: int,
    query: int,
    key: int,
    cos_sin_cache: int,
    dtype: int,
    num_tokens: int,
    num_heads: int,
    num_kv_heads: int,
    query_token_stride: int,
    query_head_stride: int,
    key_token_stride: int,
    key_head_stride: int,
    num_positions: int,
    rot_dim: int,
    is_neox: bool,
    /,
) -> None: ...
def activation(
    x: int,
    out: int,
    dtype: int,
    kind: int,
    is_gated: bool,
    num_tokens: int,
    size: int,
    x_stride: int,
    out_stride: int,
    /,
) -> None: ...
def scaled_add(
    x: int,
    y: int,
    out: int,
    dtype: int,
    num_tokens: int,
    size: int,
    x_stride: int,
    y_stride: int,
    out_stride: int,
    x_scale: float,
    y_scale: float,
    /,
) -> None: ...
def reshape_and_cache(
    key: int,
    value: int,
    key_cache: int,
    value_cache: int,
    slots: int,
    dtype: int,
    cache_dtype: int,
    num_tokens: int,
    key_token_stride: int,
    key_head_stride: int,
    key_size: int,
    value_token_stride: int,
    value_head_stride: int,
    value_size: int,
    num_blocks: int,
    key_block_stride: int,
    key_row_stride: int,
    value_block_stride: int,
    value_row_stride: int,
    num_kv_heads: int,
    block_size: int,
    has_row_scales: bool,
    /,
) -> None: ...
def paged_attention(
    query: int,
    output: int,
    key_cache: int,
    value_cache: int,
    block_table: int,
    query_start_loc: int,
    seq_lens: int,
    alibi_slopes: int,
    sinks: int,
    lse: int,
    dtype: int,
    cache_dtype: int,
    num_tokens: int,
    num_heads: int,
    query_token_stride: int,
    query_head_stride: int,
    num_blocks: int,
    num_kv_heads: int,
    block_size: int,
    key_size: int,
    key_block_stride: int,
    key_row_stride: int,
    value_size: int,
    value_block_stride: int,
    value_row_stride: int,
    num_requests: int,
    blocks_per_request: int,
    block_table_stride: int,
    scale: float,
    sliding_window: int,
    soft_cap: float,
    has_row_scales: bool,
    /,
) -> None: ...
def apply_token_mask(
    logits: int,
    rows: int,
    bits: int,
    num_rows: int,
    num_masks: int,
    logits_stride: int,
    bits_stride: int,
    vocab_size: int,
    /,
) -> None: ...
def sample(
    logits: int,
    inverse_temperature: int,
    min_p: int,
    top_k: int,
    top_p: int,
    chances: int,
    tokens: int,
    largest: int,
    num_rows: int,
    vocab_size: int,
    logits_stride: int,
    /,
) -> None: ...
def linear_argmax(
    x: int,
    packed: int,
    bias: int,
    tokens: int,
    largest: int,
    dtype: int,
    num_rows: int,
    num_outputs: int,
    num_inputs: int,
    x_stride: int,
    /,
) -> None: ...
def quantized_linear_argmax(
    x: int,
    parts: int,
    bias: int,
    tokens: int,
    largest: int,
    dtype: int,
    num_rows: int,
    num_parts: int,
    num_inputs: int,
    x_stride: int,
    /,
) -> None: ...
def token_logprobs(
    logits: int,
    rows: int,
    tokens: int,
    values: int,
    ids: int,
    ranks: int,
    num_rows: int,
    num_entries: int,
    vocab_size: int,
    num_top: int,
    logits_stride: int,
    is_normalized: bool,
    /,
) -> None: ...

# Outputs of a panel of packed weights.
PANEL: int
# The most that route_topk chooses among.
MAX_EXPERTS: int
MAX_CONV_KERNEL: int

def packed_bytes(dtype: int, num_outputs: int, num_inputs: int, /) -> int: ...
def pack_linear(
    weight: int, packed: int, dtype: int, num_outputs: int, num_inputs: int, weight_stride: int, /
) -> None: ...
def linear(
    x: int,
    packed: int,
    bias: int,
    out: int,
    dtype: int,
    out_dtype: int,
    num_rows: int,
    num_outputs: int,
    num_inputs: int,
    x_stride: int,
    out_stride: int,
    /,
) -> None: ...
def gated_linear(
    x: int,
    packed: int,
    bias: int,
    out: int,
    dtype: int,
    num_rows: int,
    num_outputs: int,
    num_inputs: int,
    x_stride: int,
    out_stride: int,
    /,
) -> None: ...
def packed_quantized_bytes(ggml_type: int, num_outputs: int, num_inputs: int, /) -> int: ...
def pack_quantized(
    blocks: int,
    packed: int,
    ggml_type: int,
    num_outputs: int,
    num_inputs: int,
    block_stride: int,
    /,
) -> None: ...
def quantized_linear(
    x: int,
    parts: int,
    bias: int,
    out: int,
    dtype: int,
    out_dtype: int,
    num_rows: int,
    num_parts: int,
    num_inputs: int,
    x_stride: int,
    out_stride: int,
    /,
) -> None: ...
def route_topk(
    logits: int,
    weights: int,
    ids: int,
    num_tokens: int,
    num_experts: int,
    top_k: int,
    logits_stride: int,
    is_renormalized: bool,
    /,
) -> None: ...
def experts_mlp(
    x: int,
    ids: int,
    weights: int,
    gate_up: int,
    down: int,
    places: int,
    rows: int,
    hidden: int,
    out: int,
    dtype: int,
    act: int,
    is_quantized: bool,
    num_tokens: int,
    top_k: int,
    first_expert: int,
    num_experts: int,
    size: int,
    intermediate_size: int,
    x_stride: int,
    /,
) -> None: ...
def gated_rms_norm(
    x: int,
    gate: int,
    weight: int,
    out: int,
    dtype: int,
    act: int,
    num_tokens: int,
    size: int,
    group_size: int,
    x_stride: int,
    gate_stride: int,
    eps: float,
    /,
) -> None: ...
def causal_conv1d(
    x: int,
    weight: int,
    bias: int,
    states: int,
    query_start_loc: int,
    state_in: int,
    state_out: int,
    out: int,
    dtype: int,
    act: int,
    num_tokens: int,
    num_requests: int,
    num_slots: int,
    num_channels: int,
    kernel_size: int,
    x_stride: int,
    slot_stride: int,
    /,
) -> None: ...
def selective_scan(
    x: int,
    dt: int,
    b: int,
    c: int,
    a: int,
    d: int,
    dt_bias: int,
    states: int,
    query_start_loc: int,
    state_in: int,
    state_out: int,
    out: int,
    dtype: int,
    num_tokens: int,
    num_requests: int,
    num_slots: int,
    num_heads: int,
    head_size: int,
    num_groups: int,
    state_size: int,
    x_stride: int,
    dt_stride: int,
    b_stride: int,
    c_stride: int,
    slot_stride: int,
    least_step: float,
    most_step: float,
    /,
) -> None: ...
def quantized_lookup(
    part: int, ids: int, out: int, out_dtype: int, num_ids: int, num_inputs: int, /
) -> None: ...
def dequantize(blocks: int, out: int, ggml_type: int, dtype: int, size: int, /) -> None: ...
def ggml_block(ggml_type: int, /) -> tuple[int, int]: ...
def supported_isas() -> list[str]: ...
def select_isa(name: str, /) -> None: ...
def selected_isa() -> str: ...
def read_seconds(data: int, num_bytes: int, /) -> float: ...
def num_threads() -> int: ...
def set_num_threads(count: int, /) -> None: ...
