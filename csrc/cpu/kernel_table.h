// The interface between code compiled once and kernels compiled per instruction set.
//
// A kernel works on a range of rows on the calling thread, trusts its arguments, never throws and
// gives every row the same result whatever the range. Strides count elements.
// Only plain data may cross or be defined here: no templates or inline functions of the standard
// library, since the linker would merge an AVX-512 copy into code that must run everywhere.
#pragma once

#include <math.h>
#include <stdint.h>

namespace vllm_lite {

// The last three are types of KV caches only.
enum class DType : int {
  kFloat32 = 0,
  kBFloat16 = 1,
  kFloat8E4M3 = 2,
  kFloat8E5M2 = 3,
  kInt8 = 4
};

struct BFloat16 {
  uint16_t bits;
};

static inline int64_t bytes_of(DType dtype) {
  return dtype == DType::kFloat32 ? 4 : dtype == DType::kBFloat16 ? 2 : 1;
}
static inline int64_t ceil_divide(int64_t n, int64_t by) { return (n + by - 1) / by; }

// RMS normalisation, or layer normalisation if centred.
struct Norm {
  DType dtype;
  DType weight_dtype;  // of the weight and the bias: dtype or float32
  const void* x;       // [T, N], or [T, H, N], each head normalised by itself
  void* residual;      // null, or [T, N], where x + residual is left
  const void* weight;  // [N], or [H, N]
  const void* bias;    // null, or as the weight, of centred norms only
  void* out;
  int64_t num_heads;  // H
  int64_t size;       // N
  int64_t x_stride;
  int64_t x_head_stride;
  int64_t residual_stride;
  int64_t out_stride;
  int64_t out_head_stride;
  int64_t weight_head_stride;  // 0: all heads have the same
  float eps;
  bool is_centered;
};

struct Rotary {
  DType dtype;
  const int64_t* positions;
  void* heads[2];  // query and key
  int64_t num_heads[2];
  int64_t token_strides[2];
  int64_t head_strides[2];
  const float* cos_sin_cache;  // [P, rot_dim]
  int64_t num_positions;       // P
  int64_t rot_dim;
  bool is_neox;
};

enum class ActivationKind : int {
  kSilu,
  kGelu,
  kGeluTanh,
  kGeluQuick,
  kRelu,
  kRelu2,
  kTanh,
  kSigmoid,
  kXielu
};

// The numbers of xIELU.
struct XieluCurve {
  float alpha_p, alpha_n, beta, eps;
};

struct Activation {
  DType dtype;
  ActivationKind kind;
  bool is_gated;  // whether rows of x are I gates, then I factors of the activated gates
  const void* x;
  void* out;
  int64_t size;  // I, of a row of out
  int64_t x_stride;
  int64_t out_stride;
  XieluCurve curve;  // of kXielu
  // Where it is gated: gates are at most the limit, factors no further from 0, and `shift` is added
  // to them.
  float limit = INFINITY;
  float shift = 0.0f;
};

struct ScaledAdd {
  DType dtype;
  const void* x;
  const void* y;       // or null
  const float* gates;  // null, or [T]: the logistic function of each scales the row of y too
  void* out;
  int64_t size;
  int64_t x_stride;
  int64_t y_stride;
  int64_t out_stride;
  int64_t gates_stride;
  float x_scale;
  float y_scale;
  float limit;  // what is beyond it, or below -limit, becomes that
};

// Sums of some rows of each token by factors of their own.
struct RowMix {
  DType dtype;
  const void* x;        // [T, I, N]
  const void* factors;  // null: zeros, or [T, J, I], a token's dense; `offset` is added to them
  const void* base;     // null, or [T, J, N], which the sums are added to
  const void* weight;   // null, or [N], of the results
  void* out;            // [T, J, N]: the base, or apart from all
  int64_t num_inputs;   // I
  int64_t num_outputs;  // J
  int64_t size;         // N
  int64_t x_stride;
  int64_t x_row_stride;
  int64_t factors_stride;
  int64_t base_stride;
  int64_t base_row_stride;
  int64_t out_stride;
  int64_t out_row_stride;
  float offset;
};

// A row changed by its own statistics. With `like`: scaled to the root mean square of that row,
// its own mean square being at least `bound`. Else: what is more than `bound` standard deviations
// above the mean is what it is above that, and the rest becomes 0.
struct RowLevel {
  DType dtype;
  const void* x;     // [T, N]
  const void* like;  // null, or [T, N]
  void* out;         // [T, N]
  int64_t size;      // N
  int64_t x_stride;
  int64_t like_stride;
  int64_t out_stride;
  float bound;
};

// x times the activation of gate, each group of a row scaled to unit root mean square; the gate is
// the last factor if norm_first. Without a weight, the product alone.
struct GatedNorm {
  DType dtype;
  ActivationKind act;
  bool norm_first;
  const void* x;       // [T, N]
  const void* gate;    // [T, N]
  const void* weight;  // [N]
  void* out;           // [T, N], dense
  int64_t size;        // N
  int64_t group_size;
  int64_t x_stride;
  int64_t gate_stride;
  float eps;
};

// Tokens of one request in a step, and the slot of the state before them; -1: zeros.
struct StateRun {
  int64_t first_token;
  int64_t num_tokens;
  int64_t state_in;
};

// Channels that a thread processes at a time, and the longest kernel.
constexpr int64_t kConvChannels = 128;
constexpr int64_t kMaxConvKernel = 16;

// A causal depthwise convolution over a request's inputs.
struct CausalConv {
  DType dtype;
  ActivationKind act;
  bool has_act;
  const void* x;        // [T, C]
  const void* before;   // null, or [T, C]: factors of the inputs
  const void* after;    // null, or [T, C]: factors of the results
  const float* weight;  // [K, C]
  const float* bias;    // null, or [C]
  float* states;        // [S, K - 1, C]: the last inputs
  const int32_t* state_out;  // [T]: the slot that a token's state is written to; -1: none
  void* out;                 // [T, C], dense
  int64_t num_channels;      // C
  int64_t kernel_size;       // K
  int64_t x_stride;
  int64_t before_stride;
  int64_t after_stride;
  int64_t slot_stride;
};

// The recurrence of a state-space layer: each head has a state [N, P].
struct SelectiveScan {
  DType dtype;
  const void* x;   // [T, H, P], a token's dense
  const void* dt;  // [T, H]
  const void* b;   // [T, G, N], a token's dense
  const void* c;   // the same
  const float* a;  // [H]
  const float* d;
  const float* dt_bias;
  float* states;  // [S, H, N, P]
  const int32_t* state_out;
  void* out;  // [T, H, P], dense
  int64_t num_heads;   // H
  int64_t head_size;   // P
  int64_t num_groups;  // G
  int64_t state_size;  // N
  int64_t x_stride;
  int64_t dt_stride;
  int64_t b_stride;
  int64_t c_stride;
  int64_t slot_stride;
  float least_step;
  float most_step;
};

// Floats of scratch memory for the scan of a head.
static inline int64_t scan_scratch_floats(const SelectiveScan& p) {
  return p.state_size * (p.head_size + 2);
}

// A recurrence in which each channel has a state [N], kept as [N, C].
struct ChannelScan {
  DType dtype;
  const void* x;     // [T, C]
  const void* dt;    // [T, C]
  const void* gate;  // [T, C]
  const void* b;     // [T, N]
  const void* c;     // [T, N]
  const float* a;    // [N, C]
  const float* d;    // [C]
  float* states;     // [S, N, C]
  const int32_t* state_out;
  void* out;             // [T, C], dense
  int64_t num_channels;  // C
  int64_t state_size;    // N
  int64_t x_stride;
  int64_t dt_stride;
  int64_t gate_stride;
  int64_t b_stride;
  int64_t c_stride;
  int64_t slot_stride;
};

// Floats of scratch memory for kConvChannels channels.
static inline int64_t scan_scratch_floats(const ChannelScan& p) {
  return p.state_size * (kConvChannels + 2);
}

// A recurrence with one number for each channel, between gates.
struct GatedRecurrence {
  DType dtype;
  const void* x;            // [T, C]
  const void* gate;         // [T, C]
  const void* decay;        // [T, C]
  const float* rate;        // [C]
  const float* gate_bias;   // [C]
  const float* decay_bias;  // [C]
  float* states;            // [S, C]
  const int32_t* state_out;
  void* out;             // [T, C], dense
  int64_t num_channels;  // C
  int64_t x_stride;
  int64_t gate_stride;
  int64_t decay_stride;
  int64_t slot_stride;
};

// Floats of scratch memory for kConvChannels channels.
static inline int64_t scan_scratch_floats(const GatedRecurrence&) { return kConvChannels; }

// The gated delta rule: each head has a state [K, V] of values by keys.
struct DeltaRule {
  DType dtype;
  const void* q;        // [T, G, K], a token's dense
  const void* k;        // the same
  const void* v;        // [T, H, V], a token's dense
  const void* decay;    // [T, H], or [T, H, K], a token's dense
  const void* beta;     // [T, H]
  const float* a;       // [H]
  const float* dt_bias; // [H], or [H, K]
  float* states;        // [S, H, K, V]
  const int32_t* state_out;
  void* out;               // [T, H, V], dense
  int64_t num_heads;       // H
  int64_t num_key_heads;   // G
  int64_t key_size;        // K
  int64_t value_size;      // V
  int64_t decays_of_head;  // 1, or K
  int64_t q_stride;
  int64_t k_stride;
  int64_t v_stride;
  int64_t decay_stride;
  int64_t beta_stride;
  int64_t slot_stride;
  float beta_scale;
};

// Floats of scratch memory for a head.
static inline int64_t scan_scratch_floats(const DeltaRule& p) {
  return p.key_size * (p.value_size + 3);
}

// Experts that a router may choose among.
constexpr int64_t kMaxExperts = 1024;

// What experts' scores are, in the order of reference/experts.py.
enum class ExpertScores : int { kSoftmax, kSigmoid, kSparsemixer };

struct Route {
  const float* logits;   // [T, E]
  const float* bias;     // null, or [E]: added to scores to choose by
  const float* factors;  // null, or [E]: of the weights
  int64_t logits_stride;
  int64_t num_experts;  // E, at most kMaxExperts
  int64_t top_k;        // K
  // The experts are in so many groups of equal size; only the best top_groups are chosen from. A
  // group is as good as the sum of its best one or two experts' scores.
  int64_t num_groups;
  int64_t top_groups;
  int64_t best_of_group;
  ExpertScores scores;
  bool is_renormalized;
  float epsilon;    // added to the sum that weights are divided by
  float scale;      // of the weights
  float tolerance;  // of the sparsemixer
  float* weights;   // [T, K], dense
  int32_t* ids;     // [T, K], dense
};

// Weighted sum of the outputs of a token's experts, in the order of its choices.
struct ExpertSum {
  DType dtype;            // of out
  const float* rows;      // [P, N], one for each place
  const int32_t* places;  // [T, K]: of each choice; -1: made elsewhere
  const float* weights;   // [T, K]; null: ones
  int64_t top_k;          // K
  int64_t size;           // N
  void* out;              // [T, N], dense
};

// Keys or values to write to a cache.
struct RowsToCache {
  const void* source;  // [T, K, D]
  int64_t token_stride;
  int64_t head_stride;
  int64_t size;  // D
  void* cache;   // [B, K, S, row]
  int64_t block_stride;
  int64_t cached_head_stride;
  int64_t row_stride;
};

// Writes keys and values. A cached row is D numbers and, with `has_row_scales` (int8 and fp8
// only), their float32 scale.
struct CacheWrite {
  DType dtype;
  DType cache_dtype;
  const int64_t* slots;
  int64_t num_blocks;    // B
  int64_t num_kv_heads;  // K
  int64_t block_size;    // S
  bool has_row_scales;
  RowsToCache keys;
  RowsToCache values;
};

// Cached keys or values: [B, K, S, row]. Those of an encoder's step are rows of one block after the
// other, and a request is one long block that begins at its first row.
struct CachedRows {
  const void* rows;
  int64_t block_stride;
  int64_t head_stride;
  int64_t row_stride;
  int64_t size;  // numbers of a row
};

struct Attention {
  DType dtype;
  DType cache_dtype;
  const void* query;  // [T, H, D], D that of keys
  int64_t query_token_stride;
  int64_t query_head_stride;
  void* output;  // [T, H, D], D that of values, dense
  // Null, or [H]: ALiBi's slopes, and the scores of sinks, extra keys without values
  // that all queries see.
  const float* alibi_slopes;
  const float* sinks;
  float* lse;  // null, or [T, H], the logarithm of the sum of e^score
  CachedRows keys;
  CachedRows values;  // they may lie in the keys
  int64_t num_heads;
  int64_t num_kv_heads;
  int64_t block_size;
  int64_t sliding_window;  // 0: none
  float scale;
  float soft_cap;  // 0: none
  bool has_row_scales;
  bool is_chunked;  // whether queries see keys of their own chunk of sliding_window positions
  int64_t num_ahead = 0;  // positions after its own that a query sees
  // Null, or [H, num_distances]: numbers added to scores by how far a key stands behind its query,
  // that of the query's own position in the middle.
  const float* distance_terms = nullptr;
  int64_t num_distances = 0;
};

// The first position that a query sees; negative if it could see further back.
static inline int64_t first_seen(const Attention& p, int64_t position) {
  if (p.sliding_window <= 0) return 0;
  if (p.is_chunked) return position / p.sliding_window * p.sliding_window;
  return position - p.sliding_window + 1;
}

// Consecutive queries of one request, for all query heads of one kv-head. Row r of a tile is
// query head (kv_head * group + r % group) of token (first_token + r / group).
struct AttentionTile {
  const int32_t* blocks;  // the request's row of the block table
  int64_t first_token;
  int64_t first_position;
  int64_t num_tokens;
  int64_t kv_head;
  int64_t end;  // of the positions that its queries see
};

// Context is processed in spans of fixed positions, whose results are merged in order. So a
// query's result depends on its position and context alone: not on its tile, nor on
// how tiles and spans are divided among threads.
constexpr int64_t kSpan = 512;

// Positions [span, span + 1) * kSpan of a tile's context.
struct AttentionSpan {
  const AttentionTile* tile;
  int64_t span;
};

// Softmax state of a tile's rows over some context: `rows` maxima, `rows` sums, then `rows`
// weighted sums of values of padded_size floats each.
struct AttentionKernels {
  int64_t (*padded_size)(int64_t size);
  int64_t (*scratch_floats)(const Attention&, int64_t rows);
  // Overwrites `state` with the attention of a tile to a span of its context. Meanwhile prefetches
  // the span that this thread processes `after` it.
  void (*attend_span)(const Attention&, const AttentionSpan&, const AttentionSpan& after,
                      float* state, float* scratch);
  void (*merge)(int64_t rows, int64_t value_size, float* state, const float* later);
  void (*write_output)(const Attention&, const AttentionTile&, const float* state);
};

// Outputs of a panel of packed weights; see kernels/linear.cpp for the layout.
constexpr int64_t kPanel = 32;

// A panel's inputs come one by one in float32 and in pairs in bfloat16: 4 bytes an output each.
static inline int64_t packed_panel_bytes(DType dtype, int64_t num_inputs) {
  return (dtype == DType::kBFloat16 ? (num_inputs + 1) / 2 : num_inputs) * kPanel * 4;
}

struct PackLinear {
  DType dtype;
  const void* weight;  // [M, N], at any address
  int64_t weight_stride;
  void* packed_weight;   // panels of kPanel outputs; others than M are left as they are
  int64_t first_output;  // the place of the weight's first
  int64_t num_outputs;   // M
  int64_t num_inputs;    // N
  float* largest;        // null, or the largest magnitude, NaN if there is one
};

struct Linear {
  DType dtype;    // of x and the weights
  const void* x;  // [T, N]
  int64_t x_stride;
  const void* packed_weight;
  const float* bias;    // null, or [M]
  int64_t num_outputs;  // M
  int64_t num_inputs;   // N
  DType out_dtype;
  void* out;  // [T, M]
  int64_t out_stride;
  // Whether `out` holds gates whose silu multiplies the result. Then out_dtype
  // is dtype, and the result is rounded to it first.
  bool is_gated = false;
};

// Inputs that share a scale in quantised activations.
constexpr int64_t kQuantizedGroup = 32;

// 32 inputs of a row: values scale * codes. The sums of codes, of each half and of all, are
// stored negated, to subtract offsets and minima of weights.
struct QuantizedGroup {
  int8_t codes[kQuantizedGroup];
  float scale;
  int32_t negated_half_sums[2];
  int32_t negated_sum;
};

// Quantises rows of x independently: codes are nearest to x * 127 / largest magnitude of the group.
// The scale is 0 if a group's largest magnitude is tiny, NaN if it is not finite.
struct QuantizeRows {
  DType dtype;
  const void* x;  // [T, N]
  int64_t x_stride;
  QuantizedGroup* groups;  // [N / 32, T]
  int64_t num_rows;        // T
  int64_t num_inputs;      // N
};

struct PackQuantized {
  int ggml_type;
  const uint8_t* blocks;  // [M, block_stride]
  int64_t block_stride;   // bytes
  uint8_t* packed;        // panels of kPanel outputs; see kernels/packed_blocks.h for the layout
  int64_t num_outputs;    // M
  int64_t num_inputs;     // N, whole blocks
};

// Outputs of one storage format, in columns [first_output, first_output + num_outputs) of a result.
// Four 64-bit numbers, so that Python can write a table of them.
struct QuantizedPart {
  int64_t ggml_type;
  const uint8_t* packed;
  int64_t first_output;
  int64_t num_outputs;
};

// Rows of x that go through a panel together.
constexpr int64_t kQuantizedRows = 96;

struct QuantizedProduct {
  const QuantizedGroup* x;  // [N / 32, T]
  int64_t num_rows;         // T, at most kQuantizedRows
  int64_t num_inputs;       // N
  const QuantizedPart* parts;
  int64_t num_parts;
  const float* bias;  // null, or [M]
  DType out_dtype;
  void* out;  // [T, M]
  int64_t out_stride;
};

// Dequantised rows of a packed weight, for embeddings.
struct QuantizedLookup {
  const QuantizedPart* weight;
  int64_t num_inputs;
  const int64_t* ids;  // [T]
  int64_t first_row;   // the id of the weight's first row; -1: 0, and all ids have rows here
  DType out_dtype;
  void* out;  // [T, N]
  int64_t out_stride;
};

// How the codes of a grouped weight become numbers, and its scales float32. In the order of
// kernels/cpu/grouped.py.
enum class CodeKind : int64_t {
  kTable, kInt8, kFloat8E4M3, kFloat8E5M2, kBook, kTwoBooks, kBriefBook, kTwoBriefBooks
};
enum class ScaleKind : int64_t { kFloat32, kBFloat16, kFloat16, kFloat8E4M3, kPowerOf2 };

// A weight [M, N]: scale * (number of code - zero) - minimum, by groups of inputs. Panels of kPanel
// outputs, see kernels/grouped_codes.h. 64-bit fields, so that Python can write a table of them.
struct GroupedWeight {
  const uint8_t* codes;
  const uint8_t* scales;       // [panels, G, kPanel]
  const float* super_scales;   // null, or [panels, kPanel]: factors of the scales
  const uint8_t* zeros;        // null, or [panels, G, kPanel]
  const float* minimums;       // null, or [panels, G, kPanel]
  // Numbers of codes: 256, or 64, repeated. Of books half floats, of
  // brief ones bfloat16: vectors of eight inputs.
  const float* table;
  const int64_t* permutation;  // null, or [N]: which input a column multiplies
  CodeKind code_kind;
  int64_t bits;
  ScaleKind scale_kind;
  int64_t zero;        // added to the zeros
  int64_t group_size;  // a multiple of 16
  int64_t num_outputs;  // M
  int64_t num_inputs;   // N
};

// A group's products are added up by segments: a group, or what of it lies within kSegment inputs.
// Rows of x are float32, padded with zeros to whole units of inputs; the sum of each segment and what
// its products are multiplied by follow. Behind them is the room of padded_inputs bfloat16.
constexpr int64_t kSegment = 128;
constexpr int64_t kCodesOfUnit = 32;
// The end of a segment, by the first input, which is in `group`.
static inline int64_t segment_end(const GroupedWeight& w, int64_t first, int64_t group) {
  const int64_t in_group = (group + 1) * w.group_size;
  const int64_t in_span = (first / kSegment + 1) * kSegment;
  const int64_t end = in_group < in_span ? in_group : in_span;
  const int64_t last = ceil_divide(w.num_inputs, 16) * 16;
  return end < last ? end : last;
}
static inline int64_t segment_end(const GroupedWeight& w, int64_t first) {
  return segment_end(w, first, first / w.group_size);
}
static inline int64_t num_groups(const GroupedWeight& w) {
  return ceil_divide(w.num_inputs, w.group_size);
}
static inline int64_t padded_inputs(const GroupedWeight& w) {
  return ceil_divide(w.num_inputs, kCodesOfUnit) * kCodesOfUnit;
}
static inline int64_t room_of_segments(const GroupedWeight& w) {
  const int64_t segments =
      ceil_divide(w.num_inputs, w.group_size) + ceil_divide(w.num_inputs, kSegment);
  return ceil_divide(segments, 16) * 16;
}
static inline int64_t wide_row_floats(const GroupedWeight& w) {
  return padded_inputs(w) + 2 * room_of_segments(w) + padded_inputs(w) / 2;
}

// The scale of a group: its largest magnitude over the largest number that there is a code of; the
// power of two of their exponents' difference, or the next above the quotient; the quotient as an
// 8-bit float; or the power below what the group's spread asks for. In the order of
// kernels/cpu/grouped.py.
enum class RowScales : int { kQuotient, kPowerBelow, kPowerAbove, kFloat8, kPowerOfSpread };
static inline bool are_powers(RowScales scales) {
  return scales != RowScales::kQuotient && scales != RowScales::kFloat8;
}

// Rows become codes of a type times a scale: that given, or each group's. Where no group ends within
// a segment, they are codes, of which each segment has a scale; else the products of both, which are
// as short as codes by powers of two.
struct RowRounding {
  int64_t row_size;    // of x, whose columns a weight may permute and pad
  int64_t group_size;  // 0: rows stay as they are
  DType number;        // kInt8, kFloat8E4M3 or kFloat8E5M2
  RowScales scales;
  const float* scale;  // null, or [1]: that of all codes; a factor of scales that are 8-bit floats
  // Codes of int8 from a group's least value to its greatest, or by `scale` and `zero`.
  bool is_shifted;
  const float* zero;    // null, or [1]: the code of zero
  const float* values;  // null, or [num_values]: codes >= 0, in order, in place of those of `number`
  int64_t num_values;
  float largest;  // magnitudes beyond it are cut off first; 0: none are
};
static inline bool has_codes(const RowRounding& by, const GroupedWeight& w) {
  const bool is_whole = by.group_size % kSegment == 0 || by.group_size == w.group_size;
  const bool has_segments = is_whole && w.permutation == nullptr;
  const bool are_short = are_powers(by.scales) && by.scales != RowScales::kPowerAbove;
  return by.group_size > 0 && !are_short &&
         (has_segments || by.group_size >= by.row_size);
}

// Makes such rows, with inputs in the weight's order.
struct WidenRows {
  DType dtype;
  const void* x;  // [T, N]
  int64_t x_stride;
  const GroupedWeight* weight;
  float* rows;  // [T, wide_row_floats]
  RowRounding rounding;
};

// Rows of x that go through a panel together.
constexpr int64_t kGroupedRows = 192;

struct GroupedProduct {
  const float* x;    // [T, wide_row_floats]
  bool are_brief;    // the rows' numbers are bfloat16's
  RowRounding rounding;  // of rows of codes alone
  int64_t num_rows;  // T, at most kGroupedRows
  const GroupedWeight* weight;
  const float* bias;  // null, or [M]
  DType out_dtype;
  void* out;  // [T, M]
  int64_t out_stride;
};

// Dequantised rows, for embeddings; fields as of QuantizedLookup.
struct GroupedLookup {
  const GroupedWeight* weight;
  const int64_t* ids;
  int64_t first_row;
  DType out_dtype;
  void* out;
  int64_t out_stride;
};

// Tokens in a word of a mask, and words of a part: some ten thousand logits, a few microseconds.
constexpr int64_t kMaskWord = 32;
constexpr int64_t kWordsPerPart = 512;

struct TokenMask {
  float* logits;  // [R, V]
  int64_t logits_stride;
  const int64_t* rows;  // [M]: which of the R rows a mask is for
  const uint32_t* bits;  // [M, W]: 1 allows a token
  int64_t bits_stride;
  int64_t vocab_size;  // V, at most 32 * W
};

// Repetition, frequency and presence penalties of lists of tokens, each of one row.
struct TokenPenalties {
  float* logits;  // [R, V]
  int64_t logits_stride;
  int64_t vocab_size;     // V
  const int64_t* rows;    // [M]: the row of each list
  const int64_t* starts;  // [M + 1]: where each list begins, the last where all end
  const int64_t* tokens;  // [N], distinct in a list
  const float* times;     // [N]: how often each was generated
  const float* factors;   // [M, 3]: repetition, frequency, presence
};

// Tokens that share a maximum, by which later passes skip blocks.
constexpr int64_t kSampleBlock = 64;

// Samples a token for each row. All but `logits` are arrays with an entry a row.
struct Sampling {
  const float* logits;  // [R, V]
  int64_t logits_stride;
  int64_t vocab_size;                // V
  const float* inverse_temperature;  // 0: the largest logit; null: that for all rows
  const float* min_p;                // 0: off
  const int64_t* top_k;              // 0, or V and more: off
  const float* top_p;                // 1: off
  const double* chances;             // in [0, 1)
  int64_t* tokens;
  float* largest;  // the largest logit; not finite if the row admits no token
};

// A strip of logits, and the largest of each row so far.
struct LargestOutputs {
  const float* outputs;  // [R, C]
  int64_t stride;
  int64_t count;         // C
  int64_t first_output;  // the number of the first of them
  float* largest;        // [R]; NaN from the first NaN on
  int64_t* tokens;       // [R]: where it was first
};

// Log-probabilities of M entries: of the entry's token, then of the row's likeliest tokens.
struct TokenLogprobs {
  const float* logits;  // [R, V]
  int64_t logits_stride;
  int64_t vocab_size;     // V
  bool is_normalized;     // whether to report log-probabilities instead of logits
  const int64_t* rows;    // [M]: which of the R rows an entry is about
  const int64_t* tokens;  // [M]
  int64_t num_top;        // at most V
  float* values;          // [M, 1 + num_top]
  int64_t* ids;           // [M, 1 + num_top]
  int64_t* ranks;         // [M]: tokens that are at least as likely
};

// Sums of embeddings, normalised where there is a norm.
struct EncoderEmbedding {
  DType dtype;
  DType norm_dtype;          // dtype or float32
  const int64_t* ids;        // [T]: word + type * V
  const int64_t* positions;  // [T]
  const void* words;         // [V, N], dense
  const void* places;        // null, or [P, N], dense
  const void* types;         // null, or [Y, N], dense
  const void* norm_weight;   // null, or [N]
  const void* norm_bias;     // null, or [N]
  void* out;                 // [T, N], dense
  int64_t num_words;         // V
  int64_t num_places;        // P
  int64_t num_types;         // Y; 1 where there are none
  int64_t size;              // N
  float eps;
};

// Rows [starts[r], starts[r + 1]) of x, added one after the other to row r of the sums.
struct SegmentSum {
  DType dtype;
  const void* x;  // [T, N]
  int64_t x_stride;
  const int32_t* starts;  // [R + 1]
  float* sums;            // [R, N]
  int64_t sums_stride;
  int64_t size;  // N
};

// Floats of scratch memory for a row of logits, for `sample` and `token_logprobs`.
static inline int64_t sampling_scratch_floats(int64_t vocab_size) {
  const int64_t num_blocks = (vocab_size + kSampleBlock - 1) / kSampleBlock;
  return 2 * num_blocks * kSampleBlock + 3 * (num_blocks + 16) + 16;
}

struct Dequantize {
  int ggml_type;
  DType dtype;
  const uint8_t* blocks;
  int64_t block_elements;
  int64_t block_bytes;
  void* out;
  int64_t size;  // elements; the last block may be short only in formats without blocks
};

// Every kernel but attention's: KERNEL(result, name, parameters...).
#define VLLM_LITE_KERNELS(KERNEL)                                                                \
  KERNEL(void, norm, const Norm&, int64_t begin, int64_t end)                                    \
  KERNEL(void, rotary, const Rotary&, int64_t begin, int64_t end)                                \
  KERNEL(void, activate, const Activation&, int64_t begin, int64_t end)                          \
  KERNEL(void, scaled_add, const ScaledAdd&, int64_t begin, int64_t end)                         \
  KERNEL(void, mix_rows, const RowMix&, int64_t begin, int64_t end)                              \
  KERNEL(void, level_rows, const RowLevel&, int64_t begin, int64_t end)                          \
  KERNEL(void, write_cache, const CacheWrite&, int64_t begin, int64_t end)                       \
  KERNEL(void, route, const Route&, int64_t begin, int64_t end)                                  \
  KERNEL(void, sum_experts, const ExpertSum&, int64_t begin, int64_t end)                        \
  KERNEL(void, gated_norm, const GatedNorm&, int64_t begin, int64_t end)                         \
  KERNEL(void, encoder_embedding, const EncoderEmbedding&, int64_t begin, int64_t end)           \
  KERNEL(void, segment_sum, const SegmentSum&, int64_t begin, int64_t end)                       \
  /* Blocks of kConvChannels. */                                                                 \
  KERNEL(void, causal_conv, const CausalConv&, const StateRun&, int64_t begin_block,             \
         int64_t end_block)                                                                      \
  KERNEL(void, selective_scan, const SelectiveScan&, const StateRun&, int64_t head,              \
         float* scratch)                                                                         \
  /* One block of kConvChannels. */                                                              \
  KERNEL(void, channel_scan, const ChannelScan&, const StateRun&, int64_t block, float* scratch) \
  KERNEL(void, gated_recurrence, const GatedRecurrence&, const StateRun&, int64_t block,         \
         float* scratch)                                                                         \
  KERNEL(void, delta_rule, const DeltaRule&, const StateRun&, int64_t head, float* scratch)      \
  /* Part p of mask m is number m * parts + p. */                                                \
  KERNEL(void, apply_token_mask, const TokenMask&, int64_t begin_part, int64_t end_part)         \
  KERNEL(void, sample, const Sampling&, int64_t begin, int64_t end, float* scratch)              \
  KERNEL(void, find_largest, const LargestOutputs&, int64_t begin, int64_t end)                  \
  KERNEL(void, token_logprobs, const TokenLogprobs&, int64_t begin, int64_t end, float* scratch) \
  KERNEL(void, dequantize, const Dequantize&, int64_t begin_block, int64_t end_block)            \
  /* Returns the largest magnitude, as bits. */                                                  \
  KERNEL(uint32_t, pack_linear, const PackLinear&, int64_t begin_panel, int64_t end_panel)       \
  KERNEL(void, linear, const Linear&, int64_t first_row, int64_t end_row, int64_t begin_panel,   \
         int64_t end_panel)                                                                      \
  /* Bytes of a packed panel; -1 unless the type is a quantised one of whole blocks. */          \
  KERNEL(int64_t, quantized_panel_bytes, int ggml_type, int64_t num_inputs)                      \
  KERNEL(void, pack_quantized, const PackQuantized&, int64_t begin_panel, int64_t end_panel)     \
  KERNEL(void, quantize_rows, const QuantizeRows&, int64_t begin_row, int64_t end_row)           \
  /* Panels are numbered through all parts. */                                                   \
  KERNEL(void, quantized_product, const QuantizedProduct&, int64_t begin_panel,                  \
         int64_t end_panel)                                                                      \
  KERNEL(void, quantized_lookup, const QuantizedLookup&, int64_t begin, int64_t end)             \
  KERNEL(void, widen_rows, const WidenRows&, int64_t begin_row, int64_t end_row)                 \
  KERNEL(void, grouped_product, const GroupedProduct&, int64_t begin_panel, int64_t end_panel)   \
  KERNEL(void, grouped_lookup, const GroupedLookup&, int64_t begin, int64_t end)

struct KernelTable {
#define VLLM_LITE_ENTRY(result, name, ...) result (*name)(__VA_ARGS__);
  VLLM_LITE_KERNELS(VLLM_LITE_ENTRY)
#undef VLLM_LITE_ENTRY
  const AttentionKernels* attention;
};

}  // namespace vllm_lite
