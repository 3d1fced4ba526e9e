// Attention: divides a batch into tiles and spans of context for the threads.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <stdexcept>
#include <string>
#include <vector>

#include "cpu/isa.h"
#include "cpu/ops.h"
#include "cpu/thread_pool.h"

namespace vllm_lite {
namespace {

// Query rows that share one pass over the keys: enough to make transposing them cheap, few enough
// for the tile to stay in the second-level cache. Small batches are cut finer, for all threads.
constexpr int64_t kMostTileRows = 192;
constexpr int64_t kFewestTileRows = 48;
// Pieces of work per thread: the last one to finish is then a small part of the whole.
constexpr int64_t kPiecesPerThread = 6;
constexpr int64_t kCacheLineFloats = 16;

// Grow-only scratch memory of a calling thread.
class Arena {
 public:
  ~Arena() { std::free(memory_); }

  float* reserve(int64_t floats) {
    if (floats > capacity_) {
      std::free(memory_);
      capacity_ = 0;
      const int64_t rounded = ceil_divide(floats, kCacheLineFloats) * kCacheLineFloats;
      memory_ = static_cast<float*>(std::aligned_alloc(64, rounded * sizeof(float)));
      if (memory_ == nullptr) throw std::bad_alloc();
      capacity_ = rounded;
    }
    return memory_;
  }

 private:
  float* memory_ = nullptr;
  int64_t capacity_ = 0;
};

// A tile and the spans visible to its queries.
struct TileWork {
  AttentionTile tile;
  int64_t first_span;
  int64_t end_span;
  int64_t partials = -1;  // offset of its spans' states, where several pieces share the tile
  int64_t counter = -1;   // index of the count of pieces still to come
};

// The unit of work of a thread: some spans of one tile.
struct Piece {
  int64_t tile;
  int64_t first_span;
  int64_t end_span;
};

void check_starts(const int32_t* starts, int64_t num_requests, int64_t num_tokens) {
  if (starts[0] != 0) throw std::out_of_range("query_start_loc does not start at 0");
  for (int64_t r = 0; r < num_requests; ++r) {
    if (starts[r + 1] < starts[r] || starts[r + 1] > num_tokens) {
      throw std::out_of_range("query_start_loc is not an ascending list of token indices");
    }
  }
}

void check_batch(const Attention& p, const AttentionBatch& batch) {
  check_starts(batch.query_start_loc, batch.num_requests, batch.num_tokens);
  for (int64_t r = 0; r < batch.num_requests; ++r) {
    const int64_t num_queries = batch.query_start_loc[r + 1] - batch.query_start_loc[r];
    const int64_t seq_len = batch.seq_lens[r];
    if (num_queries == 0) continue;
    if (seq_len < num_queries || seq_len > batch.blocks_per_request * p.block_size) {
      throw std::out_of_range("seq_lens[" + std::to_string(r) + "] = " + std::to_string(seq_len) +
                              " does not fit its queries or its row of the block table");
    }
    const int32_t* row = batch.block_table + r * batch.block_table_stride;
    uint32_t largest = 0;  // as unsigned: a negative id is a huge one
    for (int64_t i = 0; i < ceil_divide(seq_len, p.block_size); ++i) {
      largest = std::max(largest, static_cast<uint32_t>(row[i]));
    }
    if (largest >= static_cast<uint64_t>(batch.num_blocks)) {
      throw std::out_of_range("the block table of request " + std::to_string(r) +
                              " names a block beyond the cache of " +
                              std::to_string(batch.num_blocks));
    }
  }
}

// The tokens of a request in the step, and where its keys and values are.
struct RequestTokens {
  int64_t begin;
  int64_t end;
  int64_t seq_len;
  const int32_t* blocks;
};

RequestTokens tokens_of(const AttentionBatch& batch, int64_t r) {
  return {batch.query_start_loc[r], batch.query_start_loc[r + 1], batch.seq_lens[r],
          batch.block_table + r * batch.block_table_stride};
}
// All of a request is one block, whose number is that of its first row.
RequestTokens tokens_of(const EncoderBatch& batch, int64_t r) {
  const int32_t* at = batch.query_start_loc + r;
  return {at[0], at[1], at[1] - at[0], at};
}

class AttentionPlan {
 public:
  template <class Batch>
  AttentionPlan(const Attention& p, const Batch& batch)
      : p_(p),
        kernels_(*kernels().attention),
        group_(p.num_heads / p.num_kv_heads),
        tile_tokens_(std::max<int64_t>(1, tile_rows(batch.num_tokens * p.num_heads) / group_)),
        row_floats_(kernels_.padded_size(p.values.size) + 2) {
    for (int64_t r = 0; r < batch.num_requests; ++r) add_request(tokens_of(batch, r));
    cut();
  }

  void run() {
    const int64_t max_rows = max_tile_tokens_ * group_;
    const int64_t state = ceil_divide(max_rows * row_floats_, kCacheLineFloats) * kCacheLineFloats;
    const int64_t scratch = kernels_.scratch_floats(p_, max_rows);
    thread_local Arena partials;
    partials_ = partials.reserve(partial_floats_);
    const int64_t num_runs = std::min<int64_t>(num_threads(), pieces_.size());
    parallel_for(num_runs, 1, [&](int64_t, int64_t) {
      thread_local Arena arena;
      float* memory = arena.reserve(2 * state + scratch);
      run_pieces(memory, memory + state, memory + 2 * state);
    });
  }

 private:
  static int64_t tile_rows(int64_t num_rows) {
    const int64_t fair = num_rows / (num_threads() * kPiecesPerThread);
    int64_t rows = kMostTileRows;
    while (rows > std::max(fair, kFewestTileRows)) rows /= 2;
    return rows;
  }

  void add_request(const RequestTokens& request) {
    const auto [begin, end, seq_len, blocks] = request;
    const int64_t first_position = seq_len - (end - begin);
    // The last tiles have the longest contexts: they go first, so that the last pieces are short.
    const int64_t last = end > begin ? (end - begin - 1) / tile_tokens_ * tile_tokens_ : -1;
    for (int64_t token = begin + last; token >= begin; token -= tile_tokens_) {
      TileWork work;
      work.tile.blocks = blocks;
      work.tile.first_token = token;
      work.tile.first_position = first_position + token - begin;
      work.tile.num_tokens = std::min(tile_tokens_, end - token);
      work.first_span = std::max<int64_t>(first_seen(p_, work.tile.first_position), 0) / kSpan;
      work.tile.end = std::min(
          work.tile.first_position + work.tile.num_tokens + p_.num_ahead, seq_len);
      work.end_span = ceil_divide(work.tile.end, kSpan);
      for (work.tile.kv_head = 0; work.tile.kv_head < p_.num_kv_heads; ++work.tile.kv_head) {
        tiles_.push_back(work);
      }
      max_tile_tokens_ = std::max(max_tile_tokens_, work.tile.num_tokens);
      total_cost_ += cost_of_span(work) * (work.end_span - work.first_span) * p_.num_kv_heads;
    }
  }

  // In rows; reading and transposing the keys costs about as much as eight of them.
  int64_t cost_of_span(const TileWork& work) const { return work.tile.num_tokens * group_ + 8; }

  // Tiles too long for one thread are divided into pieces, without changing any result.
  void cut() {
    const int64_t threads = num_threads();
    const int64_t target = std::max<int64_t>(1, total_cost_ / (threads * kPiecesPerThread));
    int64_t num_counters = 0;
    for (size_t t = 0; t < tiles_.size(); ++t) {
      TileWork& work = tiles_[t];
      const int64_t num_spans = work.end_span - work.first_span;
      const int64_t spans_per_piece =
          threads == 1 ? num_spans : std::max<int64_t>(1, target / cost_of_span(work));
      for (int64_t s = work.first_span; s < work.end_span; s += spans_per_piece) {
        pieces_.push_back(
            {static_cast<int64_t>(t), s, std::min(s + spans_per_piece, work.end_span)});
      }
      if (spans_per_piece < num_spans) {
        work.partials = partial_floats_;
        work.counter = num_counters++;
        partial_floats_ += num_spans * state_floats(work);
      }
    }
    counters_ = std::make_unique<std::atomic<int64_t>[]>(num_counters);
    for (const Piece& piece : pieces_) {
      const TileWork& work = tiles_[piece.tile];
      if (work.counter >= 0) counters_[work.counter].fetch_add(1, std::memory_order_relaxed);
    }
  }

  int64_t state_floats(const TileWork& work) const {
    return work.tile.num_tokens * group_ * row_floats_;
  }

  // Takes pieces one ahead, so that each can ask memory for the keys of the next; but not the last
  // ones, which other threads may be waiting for.
  void run_pieces(float* state, float* later, float* scratch) {
    const int64_t count = pieces_.size();
    for (int64_t piece = next_++; piece < count;) {
      const bool is_ahead = count - next_ >= num_threads();
      const int64_t next = is_ahead ? next_++ : count;
      run_piece(pieces_[piece], first_span(next < count ? next : piece), state, later, scratch);
      piece = is_ahead ? next : next_++;
    }
  }

  AttentionSpan first_span(int64_t piece) const {
    return {&tiles_[pieces_[piece].tile].tile, pieces_[piece].first_span};
  }

  void run_piece(const Piece& piece, const AttentionSpan& after, float* state, float* later,
                 float* scratch) {
    const TileWork& work = tiles_[piece.tile];
    const int64_t rows = work.tile.num_tokens * group_;
    const auto attend = [&](int64_t span, float* to) {
      const AttentionSpan next = {&work.tile, span + 1};
      kernels_.attend_span(p_, {&work.tile, span}, next.span < piece.end_span ? next : after, to,
                           scratch);
    };
    if (work.partials < 0) {
      attend(piece.first_span, state);
      for (int64_t span = piece.first_span + 1; span < piece.end_span; ++span) {
        attend(span, later);
        kernels_.merge(rows, p_.values.size, state, later);
      }
      kernels_.write_output(p_, work.tile, state);
      return;
    }
    float* states = partials_ + work.partials;
    const int64_t size = state_floats(work);
    for (int64_t span = piece.first_span; span < piece.end_span; ++span) {
      attend(span, states + (span - work.first_span) * size);
    }
    if (counters_[work.counter].fetch_sub(1, std::memory_order_acq_rel) > 1) return;
    for (int64_t span = work.first_span + 1; span < work.end_span; ++span) {
      kernels_.merge(rows, p_.values.size, states, states + (span - work.first_span) * size);
    }
    kernels_.write_output(p_, work.tile, states);
  }

  const Attention& p_;
  const AttentionKernels& kernels_;
  const int64_t group_;
  const int64_t tile_tokens_;
  const int64_t row_floats_;
  int64_t max_tile_tokens_ = 0;
  int64_t total_cost_ = 0;
  int64_t partial_floats_ = 0;
  float* partials_ = nullptr;
  std::vector<TileWork> tiles_;
  std::vector<Piece> pieces_;
  std::atomic<int64_t> next_{0};  // piece to take
  std::unique_ptr<std::atomic<int64_t>[]> counters_;
};

template <class Batch>
void attend(const Attention& p, const Batch& batch) {
  const int64_t num_used = batch.query_start_loc[batch.num_requests];
  const int64_t row_bytes = p.num_heads * p.values.size *
                            (p.dtype == DType::kBFloat16 ? sizeof(BFloat16) : sizeof(float));
  std::memset(static_cast<char*>(p.output) + num_used * row_bytes, 0,
              (batch.num_tokens - num_used) * row_bytes);
  if (p.lse != nullptr) {
    std::fill(p.lse + num_used * p.num_heads, p.lse + batch.num_tokens * p.num_heads, -INFINITY);
  }
  if (num_used > 0) AttentionPlan(p, batch).run();
}

}  // namespace

void paged_attention(const Attention& p, const AttentionBatch& batch) {
  check_batch(p, batch);
  attend(p, batch);
}

void encoder_attention(const Attention& p, const EncoderBatch& batch) {
  check_starts(batch.query_start_loc, batch.num_requests, batch.num_tokens);
  for (int64_t r = 0; p.distance_terms != nullptr && r < batch.num_requests; ++r) {
    if (batch.query_start_loc[r + 1] - batch.query_start_loc[r] > p.num_distances / 2 + 1) {
      throw std::out_of_range("a request is longer than the distances that have terms");
    }
  }
  attend(p, batch);
}

}  // namespace vllm_lite
