// Paged attention of single tokens: one thread block for the query heads of a kv-head, up to 16,
// over some units of a token's context.
//
// The heads are the rows of a 16-row tile, so that each key and value is read once and multiplied
// by tensor cores: at 8 heads a kv-head, plain arithmetic would need 13 multiply-adds for each byte
// that memory delivers, about what the GPU has. Keys and values stream through two slots each in
// shared memory. Of a tile's keys a warp scores its share; the weights meet in shared memory, and
// a warp sums the values of its share of the columns over all keys. So no sum is split over warps,
// and results are merged in registers.
//
// Bytes in flight: memory needs bandwidth x latency, 3.35 TB/s x 0.7 us / 132 processors = 18 kB a
// processor on an H100, 2.0 TB/s x 0.6 us / 108 = 11 kB on an A100. Three slots are always under
// way: at head size 128, 64 keys of 256 bytes each make 3 x 16 kB = 48 kB a thread block.
#pragma once

#include "cuda/context.h"
#include "cuda/widening.h"

namespace vllm_lite::cuda {

constexpr int kWarps = 4;
constexpr int kDecodeThreads = 32 * kWarps;
constexpr int kRows = 16;

template <class Query, class Cached, int kHeadSize>
struct DecodeTiling {
  static constexpr bool kIsNarrow = sizeof(Cached) == 1;
  static constexpr int kRowBytes = kHeadSize * static_cast<int>(sizeof(Cached));
  static constexpr int kChunks = kRowBytes / 16;
  // An odd number of chunks: eight rows then lie in different banks.
  static constexpr int kPitch = (kChunks | 1) * 16;
  static constexpr int kKeys = kRowBytes > 256 ? 32 : 64;
  static constexpr int kKeyGroups = kKeys / (8 * kWarps);  // of eight keys, for each warp
  static constexpr int kSteps = kHeadSize / 16;
  static constexpr int kColumnGroups = kHeadSize / 16;
  static constexpr int kGroupsPerWarp = (kColumnGroups + kWarps - 1) / kWarps;
  static constexpr int kWeightPitch = kKeys * 2 + 16;
  static constexpr int kMinBlocks = kHeadSize > 128 ? 2 : 3;

  // Offsets into shared memory.
  static constexpr int kSlot = kKeys * kPitch;
  static constexpr int kKeySlots = 0;
  static constexpr int kValueSlots = 2 * kSlot;
  static constexpr int kWeights = 4 * kSlot;
  static constexpr int kLargest = kWeights + kRows * kWeightPitch;
  static constexpr int kPlaces = kLargest + kWarps * kRows * static_cast<int>(sizeof(float));
  static constexpr int kPlaceSets = 4;
  static constexpr int kSharedBytes = kPlaces + kPlaceSets * kKeys * 16;
};

// Where a cached row lies, in bytes from the caches' beginnings; negative: nowhere, zeros.
struct Place {
  int64_t key;
  int64_t value;
};

// Partial results of a token's query head, aligned to 32 bytes: the sums of all units, then each
// one's largest score, then each one's total.
template <int kHeadSize>
__device__ float* partials_of(const DecodeAttention& p, int64_t row) {
  static_assert(kMaxUnits % 8 == 0);
  return p.partials + row * kMaxUnits * (kHeadSize + 2);
}

template <class Query, class Cached, int kHeadSize>
class Decoder {
  using Tiling = DecodeTiling<Query, Cached, kHeadSize>;

 public:
  __device__ Decoder(const DecodeAttention& p, int token, int first_row, int kv_head,
                     const Context& context)
      : p_(p),
        context_(context),
        memory_(shared_memory()),
        table_(p.block_table + context.request * p.block_table_stride),
        group_(p.num_heads / p.num_kv_heads),
        kv_head_(kv_head),
        first_head_(kv_head * group_ + first_row),
        num_rows_(min(group_ - first_row, kRows)),
        token_(token),
        thread_(threadIdx.x),
        warp_(threadIdx.x / 32),
        lane_(threadIdx.x % 32) {}

  // Attends to units [begin, end) of the context, counted from its first.
  __device__ void run(int begin, int end) {
    const int tiles_per_unit = context_.unit / Tiling::kKeys;
    const int limit = (context_.end - 1) / Tiling::kKeys + 1;
    const int first = max((context_.first_unit + begin) * tiles_per_unit,
                          context_.begin / Tiling::kKeys);
    const int last = min((context_.first_unit + end) * tiles_per_unit, limit);
    const bool is_whole = begin == 0 && end >= context_.num_units;
    end_ = min(context_.end, last * Tiling::kKeys);
    load_query();
    start(first);
    forget_unit();
    forget_sum();
    for (int tile = first; tile < last; ++tile) {
      attend(tile);
      const bool is_end_of_unit = (tile + 1) % tiles_per_unit == 0 || tile + 1 == last;
      if (!is_end_of_unit) continue;
      if (is_whole) {
        add_unit();
      } else {
        write_partial(tile / tiles_per_unit - context_.first_unit);
      }
      forget_unit();
    }
    wait_copies<0>();
    if (is_whole) write_output();
  }

 private:
  static constexpr int kSums = Tiling::kGroupsPerWarp;

  // The column of the output that element e (0 or 1) of a lane's sum j of 16 columns belongs to.
  __device__ int column(int group, int j, int e) const {
    const int t = lane_ % 4;
    return group * 16 + (Tiling::kIsNarrow ? 4 * t + j + 2 * e : 8 * j + 2 * t + e);
  }

  __device__ void load_query() {
    const Query* token = static_cast<const Query*>(p_.query) + token_ * p_.query_token_stride;
    const int t = lane_ % 4;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int row = lane_ / 4 + i % 2 * 8;
      // In one-byte caches a lane finds four columns side by side, so it takes those of the query.
      const int offset = Tiling::kIsNarrow ? 4 * t + i / 2 * 2 : 2 * t + i / 2 * 8;
      const Query* head = token + (first_head_ + row) * p_.query_head_stride + offset;
#pragma unroll
      for (int step = 0; step < Tiling::kSteps; ++step) {
        query_[step][i] =
            row < num_rows_ ? *reinterpret_cast<const uint32_t*>(head + step * 16) : 0u;
      }
    }
  }

  // The block of this thread's key in a tile; -1 where it sees none, or where there is none.
  __device__ int find_block(int tile) const {
    const int position = tile * Tiling::kKeys + thread_;
    if (thread_ >= Tiling::kKeys || position < context_.begin || position >= end_) {
      return -1;
    }
    const int block = table_[position / p_.block_size];
    return static_cast<uint32_t>(block) < static_cast<uint32_t>(p_.num_blocks) ? block : -1;
  }

  __device__ Place* places(int tile) const {
    return reinterpret_cast<Place*>(memory_ + Tiling::kPlaces) +
           tile % Tiling::kPlaceSets * Tiling::kKeys;
  }

  __device__ void write_place(int tile, int block) const {
    if (thread_ >= Tiling::kKeys) return;
    const int offset = (tile * Tiling::kKeys + thread_) % p_.block_size;
    const int64_t inner = (static_cast<int64_t>(kv_head_) * p_.block_size + offset) * kHeadSize;
    constexpr int64_t kBytes = sizeof(Cached);
    places(tile)[thread_] =
        block < 0 ? Place{-1, -1}
                  : Place{(block * p_.key_block_stride + inner) * kBytes,
                          (block * p_.value_block_stride + inner) * kBytes};
  }

  __device__ unsigned char* key_slot(int tile) const {
    return memory_ + Tiling::kKeySlots + tile % 2 * Tiling::kSlot;
  }

  __device__ unsigned char* value_slot(int tile) const {
    return memory_ + Tiling::kValueSlots + tile % 2 * Tiling::kSlot;
  }

  template <bool kIsKey>
  __device__ void fetch(int tile) const {
    const void* cache = kIsKey ? p_.key_cache : p_.value_cache;
    unsigned char* slot = kIsKey ? key_slot(tile) : value_slot(tile);
    const Place* from = places(tile);
    constexpr int kCopies = Tiling::kKeys * Tiling::kChunks;
    constexpr int kRounds = (kCopies + kDecodeThreads - 1) / kDecodeThreads;
#pragma unroll 4
    for (int round = 0; round < kRounds; ++round) {
      const int i = round * kDecodeThreads + thread_;
      if (kCopies % kDecodeThreads != 0 && i >= kCopies) continue;
      const int row = i / Tiling::kChunks;
      const int byte = i % Tiling::kChunks * 16;
      const int64_t place = kIsKey ? from[row].key : from[row].value;
      const bool is_read = place >= 0;
      copy_async(slot + row * Tiling::kPitch + byte,
                 static_cast<const unsigned char*>(cache) + (is_read ? place + byte : 0), is_read);
    }
    commit_copies();
  }

  __device__ void start(int tile) {
    write_place(tile, find_block(tile));
    write_place(tile + 1, find_block(tile + 1));
    next_block_ = find_block(tile + 2);
    __syncthreads();
    fetch<true>(tile);
    fetch<false>(tile);
    fetch<true>(tile + 1);
  }

  // Adds one tile to the unit. At each point the copies still under way are those named.
  __device__ void attend(int tile) {
    wait_copies<2>();  // values, next keys
    __syncthreads();
    write_place(tile + 2, next_block_);
    next_block_ = find_block(tile + 3);
    fetch<false>(tile + 1);
    float scores[Tiling::kKeyGroups][4] = {};
    score(key_slot(tile), scores);
    bend_and_mask(tile, scores);
    share_largest(scores);
    __syncthreads();
    fetch<true>(tile + 2);
    weigh(scores);
    wait_copies<3>();  // next keys, next values, keys after them
    __syncthreads();
    add_values(value_slot(tile));
  }

  __device__ void score(const unsigned char* keys, float (&scores)[Tiling::kKeyGroups][4]) const {
    const int row = lane_ % 8;
    const int matrix = lane_ / 8;
    const int first = warp_ * 8 * Tiling::kKeyGroups;
    if constexpr (Tiling::kIsNarrow) {
      const unsigned char* from = keys + (first + matrix % 2 * 8 + row) * Tiling::kPitch;
#pragma unroll
      for (int step = 0; step < Tiling::kSteps; ++step) {
        uint32_t words[2];
        load_matrices(words, from + step * 16);
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          multiply_tiles<Query>(scores[j], query_[step], widen_bytes<Query, Cached, 0, 1>(words[j]),
                                widen_bytes<Query, Cached, 2, 3>(words[j]));
        }
      }
    } else if constexpr (Tiling::kKeyGroups == 2) {
      const unsigned char* from =
          keys + (first + matrix / 2 * 8 + row) * Tiling::kPitch + matrix % 2 * 16;
#pragma unroll
      for (int step = 0; step < Tiling::kSteps; ++step) {
        uint32_t pairs[4];
        load_matrices(pairs, from + step * 32);
        multiply_tiles<Query>(scores[0], query_[step], pairs[0], pairs[1]);
        multiply_tiles<Query>(scores[1], query_[step], pairs[2], pairs[3]);
      }
    } else {
      const unsigned char* from = keys + (first + row) * Tiling::kPitch + matrix * 16;
#pragma unroll
      for (int step = 0; step < Tiling::kSteps; step += 2) {
        uint32_t pairs[4];
        load_matrices(pairs, from + step * 32);
        multiply_tiles<Query>(scores[0], query_[step], pairs[0], pairs[1]);
        multiply_tiles<Query>(scores[0], query_[step + 1], pairs[2], pairs[3]);
      }
    }
  }

  __device__ void bend_and_mask(int tile, float (&scores)[Tiling::kKeyGroups][4]) const {
    const int first = tile * Tiling::kKeys + warp_ * 8 * Tiling::kKeyGroups + lane_ % 4 * 2;
    constexpr float kTwiceLog2E = 2.8853900817779268f;
#pragma unroll
    for (int j = 0; j < Tiling::kKeyGroups; ++j) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        float score = scores[j][i] * p_.scale_log2;
        if (p_.soft_cap_log2 > 0) {
          const float bent = power_of_two(-kTwiceLog2E * fabsf(score) / p_.soft_cap_log2);
          score = copysignf(p_.soft_cap_log2 * (1.0f - bent) / (1.0f + bent), score);
        }
        const int position = first + j * 8 + i % 2;
        const bool is_visible = position >= context_.begin && position < context_.end;
        scores[j][i] = is_visible ? score : kNothing;
      }
    }
  }

  __device__ float* largest(int warp) const {
    return reinterpret_cast<float*>(memory_ + Tiling::kLargest) + warp * kRows;
  }

  __device__ void share_largest(const float (&scores)[Tiling::kKeyGroups][4]) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float score = kNothing;
#pragma unroll
      for (int j = 0; j < Tiling::kKeyGroups; ++j) {
        score = fmaxf(score, fmaxf(scores[j][2 * half], scores[j][2 * half + 1]));
      }
      score = fmaxf(score, exchange(score, 1));
      score = fmaxf(score, exchange(score, 2));
      if (lane_ % 4 == 0) largest(warp_)[lane_ / 4 + 8 * half] = score;
    }
  }

  // Leaves the weights of this warp's keys in shared memory, relative to the largest score yet.
  __device__ void weigh(const float (&scores)[Tiling::kKeyGroups][4]) {
    unsigned char* weights = memory_ + Tiling::kWeights;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = lane_ / 4 + 8 * half;
      float score = largest_[half];
#pragma unroll
      for (int warp = 0; warp < kWarps; ++warp) score = fmaxf(score, largest(warp)[row]);
      const float shift = score == kNothing ? 0.0f : score;
      const float kept = power_of_two(largest_[half] - shift);
      largest_[half] = score;
#pragma unroll
      for (int j = 0; j < Tiling::kKeyGroups; ++j) {
        const int key = (warp_ * Tiling::kKeyGroups + j) * 8 + lane_ % 4 * 2;
        *reinterpret_cast<uint32_t*>(weights + row * Tiling::kWeightPitch + key * 2) =
            pack<Query>(power_of_two(scores[j][2 * half] - shift),
                        power_of_two(scores[j][2 * half + 1] - shift));
      }
#pragma unroll
      for (int e = 2 * half; e < 2 * half + 2; ++e) {
        total_[e] *= kept;
#pragma unroll
        for (int i = 0; i < kSums; ++i) {
          values_[i][0][e] *= kept;
          values_[i][1][e] *= kept;
        }
      }
    }
  }

  __device__ void add_values(const unsigned char* slot) {
    const int row = lane_ % 8;
    const int matrix = lane_ / 8;
    const unsigned char* weights = memory_ + Tiling::kWeights +
                                   (matrix % 2 * 8 + row) * Tiling::kWeightPitch + matrix / 2 * 16;
    const uint32_t ones = pack<Query>(1.0f, 1.0f);
#pragma unroll
    for (int step = 0; step < Tiling::kKeys / 16; ++step) {
      uint32_t tile[4];
      load_matrices(tile, weights + step * 32);
      // The sum of weights as they were rounded, in every warp alike.
      multiply_tiles<Query>(total_, tile, ones, ones);
      const unsigned char* from = slot + (step * 16 + matrix % 2 * 8 + row) * Tiling::kPitch;
#pragma unroll
      for (int i = 0; i < kSums; ++i) {
        const int group = warp_ + i * kWarps;
        if (group >= Tiling::kColumnGroups) continue;
        if constexpr (Tiling::kIsNarrow) {
          // Pairs of bytes are transposed: a lane has two columns of two keys.
          uint32_t words[2];
          load_transposed(words, from + group * 16);
          multiply_tiles<Query>(values_[i][0], tile, widen_bytes<Query, Cached, 0, 2>(words[0]),
                                widen_bytes<Query, Cached, 0, 2>(words[1]));
          multiply_tiles<Query>(values_[i][1], tile, widen_bytes<Query, Cached, 1, 3>(words[0]),
                                widen_bytes<Query, Cached, 1, 3>(words[1]));
        } else {
          uint32_t pairs[4];
          load_transposed(pairs, from + group * 32 + matrix / 2 * 16);
          multiply_tiles<Query>(values_[i][0], tile, pairs[0], pairs[1]);
          multiply_tiles<Query>(values_[i][1], tile, pairs[2], pairs[3]);
        }
      }
    }
  }

  __device__ void forget_unit() {
    largest_[0] = largest_[1] = kNothing;
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      total_[e] = 0.0f;
#pragma unroll
      for (int i = 0; i < kSums; ++i) values_[i][0][e] = values_[i][1][e] = 0.0f;
    }
  }

  __device__ void forget_sum() {
    sum_[0] = sum_[1] = {kNothing, 0.0f};
#pragma unroll
    for (int e = 0; e < 4; ++e) {
#pragma unroll
      for (int i = 0; i < kSums; ++i) merged_[i][0][e] = merged_[i][1][e] = 0.0f;
    }
  }

  __device__ void add_unit() {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const Shares shares = merge(sum_[half], {largest_[half], total_[2 * half]});
#pragma unroll
      for (int i = 0; i < kSums; ++i) {
#pragma unroll
        for (int j = 0; j < 2; ++j) {
#pragma unroll
          for (int e = 0; e < 2; ++e) {
            float& sum = merged_[i][j][2 * half + e];
            sum = merge_values(sum, values_[i][j][2 * half + e], shares);
          }
        }
      }
    }
  }

  // Calls write(row, column, half, sum) for each of this lane's elements that are any.
  template <class Write>
  __device__ void for_each(const float (&sums)[kSums][2][4], Write write) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = lane_ / 4 + 8 * half;
      if (row >= num_rows_) continue;
#pragma unroll
      for (int i = 0; i < kSums; ++i) {
        const int group = warp_ + i * kWarps;
        if (group >= Tiling::kColumnGroups) continue;
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          write(row, column(group, j, 0), half, sums[i][j][2 * half]);
          write(row, column(group, j, 1), half, sums[i][j][2 * half + 1]);
        }
      }
    }
  }

  __device__ int64_t output_row(int row) const {
    return static_cast<int64_t>(token_) * p_.num_heads + first_head_ + row;
  }

  __device__ void write_partial(int unit) const {
    for_each(values_, [&](int row, int column, int, float sum) {
      partials_of<kHeadSize>(p_, output_row(row))[unit * kHeadSize + column] = sum;
    });
    if (warp_ > 0 || lane_ % 4 > 0) return;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = lane_ / 4 + 8 * half;
      if (row >= num_rows_) continue;
      float* behind = partials_of<kHeadSize>(p_, output_row(row)) + kMaxUnits * kHeadSize;
      behind[unit] = largest_[half];
      behind[kMaxUnits + unit] = total_[2 * half];
    }
  }

  __device__ void write_output() const {
    Query* output = static_cast<Query*>(p_.output);
    for_each(merged_, [&](int row, int column, int half, float sum) {
      const uint32_t rounded = pack<Query>(sum / sum_[half].total, 0.0f);
      output[output_row(row) * kHeadSize + column].bits = static_cast<uint16_t>(rounded);
    });
  }

  const DecodeAttention& p_;
  const Context& context_;
  unsigned char* const memory_;
  const int32_t* const table_;
  const int group_;
  const int kv_head_;
  const int first_head_;
  const int num_rows_;
  const int token_;
  const int thread_;
  const int warp_;
  const int lane_;
  int end_;  // of the positions that this thread block attends to
  int next_block_;
  uint32_t query_[Tiling::kSteps][4];
  // Of the unit, then of the units before it: rows lane / 4 and that plus 8.
  float largest_[2];
  float total_[4];
  float values_[kSums][2][4];
  Softmax sum_[2];
  float merged_[kSums][2][4];
};

// For a token that sees nothing.
template <class Query>
__device__ void write_zeros(const DecodeAttention& p, int token, int head, int num_heads,
                            int head_size) {
  Query* row =
      static_cast<Query*>(p.output) + (static_cast<int64_t>(token) * p.num_heads + head) * head_size;
  for (int i = threadIdx.x; i < num_heads * head_size; i += blockDim.x) row[i].bits = 0;
}

// Thread blocks: (token * row tiles of a kv-head, kv-head, split).
template <class Query, class Cached, int kHeadSize>
__global__ void __launch_bounds__(kDecodeThreads,
                                  DecodeTiling<Query, Cached, kHeadSize>::kMinBlocks)
    decode_attention_kernel(const DecodeAttention p) {
  const int group = p.num_heads / p.num_kv_heads;
  const int row_tiles = (group + kRows - 1) / kRows;
  const int token = blockIdx.x / row_tiles;
  const int first_row = blockIdx.x % row_tiles * kRows;
  const int kv_head = blockIdx.y;
  const Context context = find_context(p, token);
  if (context.num_units == 0) {
    if (blockIdx.z == 0) {
      write_zeros<Query>(p, token, kv_head * group + first_row, min(group - first_row, kRows),
                         kHeadSize);
    }
    return;
  }
  const int begin = blockIdx.z * context.units_per_block;
  const int end = min(begin + context.units_per_block, context.num_units);
  if (begin >= end) return;
  Decoder<Query, Cached, kHeadSize>(p, token, first_row, kv_head, context).run(begin, end);
}

// Merges the units of one query head of a token, where several thread blocks shared them. A
// thread has one column; thread blocks: (token, head).
template <class Query, int kHeadSize>
__global__ void __launch_bounds__(kHeadSize) merge_units_kernel(const DecodeAttention p) {
  const int token = blockIdx.x;
  const Context context = find_context(p, token);
  if (context.num_units <= context.units_per_block) return;
  const int64_t row = static_cast<int64_t>(token) * p.num_heads + blockIdx.y;
  const float* partial = partials_of<kHeadSize>(p, row);
  const float* behind = partial + kMaxUnits * kHeadSize;
  Softmax sum = {kNothing, 0.0f};
  float values = 0.0f;
  for (int unit = 0; unit < context.num_units; ++unit) {
    const Shares shares = merge(sum, {behind[unit], behind[kMaxUnits + unit]});
    values = merge_values(values, partial[unit * kHeadSize + threadIdx.x], shares);
  }
  const uint32_t rounded = pack<Query>(values / sum.total, 0.0f);
  static_cast<Query*>(p.output)[row * kHeadSize + threadIdx.x].bits =
      static_cast<uint16_t>(rounded);
}

}  // namespace vllm_lite::cuda
