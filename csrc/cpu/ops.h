// The operations: checked once, then run on the thread pool.
// Out-of-range ids throw std::out_of_range before anything is written.
#pragma once

#include "cpu/ggml_types.h"
#include "cpu/kernel_table.h"
#include "cpu/row_operations.h"

namespace vllm_lite {

struct Embedding {
  const int64_t* ids;  // [T]
  const void* rows;    // [V, N], dense
  void* out;           // [T, N], dense
  int64_t num_rows;    // V
  int64_t row_bytes;
  // The id of the first row; ids without a row give zeros. -1: all ids have rows here.
  int64_t first_row;
};

void embedding(const Embedding& p, int64_t num_tokens);

struct AttentionBatch {
  const int32_t* block_table;  // [R, M]
  int64_t block_table_stride;
  int64_t blocks_per_request;      // M
  const int32_t* query_start_loc;  // [R + 1]
  const int32_t* seq_lens;         // [R]
  int64_t num_requests;
  int64_t num_tokens;
  int64_t num_blocks;  // of the caches
};

void paged_attention(const Attention& p, const AttentionBatch& batch);

// Whole requests, whose keys and values are rows of the step.
struct EncoderBatch {
  const int32_t* query_start_loc;  // [R + 1]
  int64_t num_requests;
  int64_t num_tokens;
};

void encoder_attention(const Attention& p, const EncoderBatch& batch);

void encoder_embedding(const EncoderEmbedding& p, int64_t num_tokens);

void segment_sum(const SegmentSum& p, int64_t num_segments, int64_t num_rows);

// Sets logits that the num_masks masks ban to -inf, in num_rows rows.
void apply_token_mask(const TokenMask& p, int64_t num_rows, int64_t num_masks);

// Penalises the tokens of num_entries lists in num_rows rows.
void penalize_tokens(const TokenPenalties& p, int64_t num_rows, int64_t num_entries);

// Samples a token for each of num_rows rows.
void sample(const Sampling& p, int64_t num_rows);

// Reports log-probabilities for `num_entries` entries of num_rows rows of logits.
void token_logprobs(const TokenLogprobs& p, int64_t num_rows, int64_t num_entries);

// Bytes of a packed weight [num_outputs, num_inputs].
int64_t packed_bytes(DType dtype, int64_t num_outputs, int64_t num_inputs);

void pack_linear(const PackLinear& p);

// Rows multiplied by a panel together: x and the panel stay in a core's cache.
constexpr int64_t kRowsPerBlock = 192;
// Multiply-adds of a range of panels: some tens of microseconds.
constexpr int64_t kProductsOfPanels = 2 * 1024 * 1024;

void linear(const Linear& p, int64_t num_tokens, const BesideProduct& beside = {});

// Rows [begin, end) of a linear layer, by the calling thread.
void linear_rows(const Linear& p, int64_t begin, int64_t end);

// silu(gate) * up [T, M] for a weight [2 M, N] whose halves, whole panels each, are gate and up:
// bit for bit the result of linear() and a gated silu.
void gated_linear(const Linear& p, int64_t num_tokens, const BesideProduct& beside = {});

void gated_linear_rows(const Linear& p, int64_t begin, int64_t end);

// Bytes of a packed quantised weight. Throws std::invalid_argument unless the type is quantised
// and rows are whole blocks.
int64_t packed_quantized_bytes(int ggml_type, int64_t num_outputs, int64_t num_inputs);

void pack_quantized(const PackQuantized& p);

// A linear layer by quantised weights. x is quantised once for all parts.
struct QuantizedLinear {
  DType dtype;
  const void* x;  // [T, N]
  int64_t x_stride;
  const QuantizedPart* parts;
  int64_t num_parts;
  const float* bias;   // null, or [M]
  int64_t num_inputs;  // N, a multiple of kQuantizedGroup
  DType out_dtype;
  void* out;  // [T, M]
  int64_t out_stride;
};

void quantized_linear(const QuantizedLinear& p, int64_t num_rows,
                      const BesideProduct& beside = {});

void linear_rows(const QuantizedLinear& p, int64_t begin, int64_t end);

// Rows [row, row + count) of x quantised, [N / 32, count], valid until this thread's next call.
// At most kQuantizedRows of them, made before by what stands beside the product.
const QuantizedGroup* rounded_rows(const QuantizedLinear& p, int64_t row, int64_t count,
                                   const BesideProduct& beside = {});

// This thread's memory for quantised rows, valid until its next call; grows to the largest need.
QuantizedGroup* group_buffer(int64_t count);

// Panels of all parts.
int64_t count_panels(const QuantizedPart* parts, int64_t num_parts);

// Panels that a thread takes at a time to multiply num_rows rows by: some tens of microseconds.
int64_t panels_of_range(int64_t num_rows, int64_t num_inputs);

void quantized_lookup(const QuantizedLookup& p, int64_t num_ids);

// Codes [M, N] of a byte each, of words that hold them side by side, lowest bits first. With
// `are_outputs` a word has those of eight outputs, in AWQ's order, and output_stride is 1.
struct UnpackWords {
  const uint32_t* words;
  int64_t output_stride;  // in words, of outputs or of eight
  int64_t input_stride;   // of words with following inputs
  int64_t bits;
  bool are_outputs;
  uint8_t* codes;
  int64_t codes_stride;
  int64_t num_outputs;  // M
  int64_t num_inputs;   // N
};

// Throws std::invalid_argument for bits other than 2, 3, 4 and 8.
void unpack_words(const UnpackWords& p);

// The planes of a weight's codes (kernels/grouped_weight.py) as panels.
struct PackGrouped {
  const uint8_t* low;   // [C, M, 8 * low bits]
  const uint8_t* high;  // null, or [C, M, 8 * bits above those]
  int64_t num_outputs;  // M
  int64_t num_inputs;   // N: C is N / 64, rounded up
  int64_t bits;
  CodeKind kind;
  uint8_t* packed;  // all panels
};

// Throws std::invalid_argument for bits that there is no layout for.
void pack_grouped(const PackGrouped& p);

// A linear layer by a grouped weight.
struct GroupedLinear {
  DType dtype;
  const void* x;  // [T, N]
  int64_t x_stride;
  const GroupedWeight* weight;
  const float* bias;  // null, or [M]
  DType out_dtype;
  void* out;  // [T, M]
  int64_t out_stride;
  RowRounding rounding;
};

void grouped_linear(const GroupedLinear& p, int64_t num_rows, const BesideProduct& beside = {});

void linear_rows(const GroupedLinear& p, int64_t begin, int64_t end);

// Rows [row, row + count), which `x` has as wide ones, by the weight.
GroupedProduct product_of(const GroupedLinear& p, int64_t row, int64_t count, const float* x);

// This thread's memory for wide rows, valid until its next call; grows to the largest need.
float* row_buffer(int64_t count);

void grouped_lookup(const GroupedLookup& p, int64_t num_ids);

// Throws std::invalid_argument for a type that cannot be expanded.
GgmlBlock ggml_block(int ggml_type);

void dequantize(const uint8_t* blocks, int ggml_type, void* out, DType dtype, int64_t size);

}  // namespace vllm_lite
