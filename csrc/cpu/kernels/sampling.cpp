#include "cpu/kernels/kernels.h"

// Sampling without a sort. A row is processed in blocks of kSampleBlock tokens: once the
// largest logit of each is known, later passes read only the blocks that can matter.
// Sums run over fixed pieces in vocabulary order, so that a row's result depends on nothing else.

namespace vllm_lite::VLLM_LITE_ISA {
namespace {

constexpr int64_t kVectors = kSampleBlock / kLanes;
constexpr int64_t kLineFloats = 16;  // in a line of a cache
// Smaller weights are zero: as floats they would be subnormal, or nearly.
constexpr float kLeastWeight = 2e-38f;
// Blocks that are summed in float before they are added to a double.
constexpr int64_t kBlocksPerSum = 16;
// A search copies what is left of a row once its thresholds lie within a factor of two, and each time
// that they are so many times closer.
constexpr int32_t kFactorOfTwo = 1 << 23;
constexpr int32_t kCloserPerCopy = 64;

// The logits of one row, its last block padded with -inf.
class Row {
 public:
  Row(const float* logits, int64_t size)
      : logits_(logits), num_blocks_(ceil_divide(size, kSampleBlock)) {
    const int64_t start = (num_blocks_ - 1) * kSampleBlock;
    for (int64_t i = 0; i < kSampleBlock; ++i) {
      last_[i] = start + i < size ? logits[start + i] : -INFINITY;
    }
  }

  int64_t num_blocks() const { return num_blocks_; }
  // Asks for the block of the row `distance` floats further on, in the second cache.
  void ask_ahead(int64_t index, int64_t distance) const {
    const float* ahead = logits_ + index * kSampleBlock + distance;
    for (int64_t i = 0; i < kSampleBlock; i += kLineFloats) __builtin_prefetch(ahead + i, 0, 2);
  }
  const float* block(int64_t index) const {
    return index + 1 < num_blocks_ ? logits_ + index * kSampleBlock : last_;
  }

 private:
  const float* logits_;
  int64_t num_blocks_;
  float last_[kSampleBlock];
};

// Writes each block's largest logit, padded with -inf to a whole vector of blocks. Returns the row's
// largest, or NaN if the row has one.
float find_maxima(const Row& row, float* maxima) {
  const int64_t num_blocks = row.num_blocks();
  Vec most = broadcast(-INFINITY), bad = {};
  for (int64_t b = 0; b < num_blocks; ++b) {
    const float* block = row.block(b);
    Vec largest = load(block);
    // The sum is NaN if a term is; scaled down so that it cannot overflow.
    Vec sum = largest * (1.0f / kSampleBlock);
    for (int64_t v = 1; v < kVectors; ++v) {
      const Vec x = load(block + v * kLanes);
      largest = max_lanes(largest, x);
      sum = multiply_add(x, broadcast(1.0f / kSampleBlock), sum);
    }
    maxima[b] = reduce_max(largest);
    most = max_lanes(most, largest);
    bad = sum == sum ? bad : sum;
  }
  for (int64_t b = num_blocks; b < round_up(num_blocks, kLanes); ++b) maxima[b] = -INFINITY;
  const float nan = reduce_add(bad);
  return nan == nan ? reduce_max(most) : nan;
}

// The first index of `wanted` in values [size]; 0 if it is not there.
int64_t find_first(const float* values, int64_t size, float wanted) {
  for (int64_t i = 0; i < size; ++i) {
    if (values[i] == wanted) return i;
  }
  return 0;
}

int64_t sum_of_lanes(IntVec counts) {
  int64_t sum = 0;
  for (int lane = 0; lane < kLanes; ++lane) sum += counts[lane];
  return sum;
}

// Of `num_vectors` vectors from `values` on: 1 in a lane for each value that reaches `least`.
IntVec count_at_least(const float* values, int64_t num_vectors, float least) {
  IntVec counts = {};
  for (int64_t v = 0; v < num_vectors; ++v) {
    counts -= load(values + v * kLanes) >= broadcast(least);
  }
  return counts;
}

// ---- sampling

// e^((logit - largest) / temperature): the likeliest token weighs 1.
Vec to_weight(Vec logits, float largest, float inverse_temperature) {
  const Vec weight = exponential((logits - largest) * inverse_temperature);
  return weight > broadcast(kLeastWeight) ? weight : Vec{};
}

// The blocks with candidate tokens, in vocabulary order.
struct Candidates {
  int64_t count;
  int32_t* blocks;  // [count]
  float* maxima;    // [count], of the weights
  float* weights;   // [count, kSampleBlock]
  float* sums;      // [count]
  float* inside;    // room for a copy of the weights, and a vector more
};

// Keeps the blocks whose largest weights, in `c.maxima`, reach `least`. Meanwhile asks for the next
// row, `to_next` floats further on.
void take_candidates(const Row& row, float largest, float inverse_temperature, float least,
                     int64_t to_next, Candidates& c) {
  c.count = 0;
  for (int64_t b = 0; b < row.num_blocks(); ++b) {
    row.ask_ahead(b, to_next);
    const float most = c.maxima[b];
    if (most < least) continue;
    const float* logits = row.block(b);
    float* weights = c.weights + c.count * kSampleBlock;
    for (int64_t i = 0; i < kSampleBlock; i += kLanes) {
      store(weights + i, to_weight(load(logits + i), largest, inverse_temperature));
    }
    c.blocks[c.count] = static_cast<int32_t>(b);
    c.maxima[c.count++] = most;
  }
}

// Lane-wise sums of a block's weights that reach `least`.
Vec sum_at_least(const float* weights, float least) {
  Vec sum = {};
  for (int64_t i = 0; i < kSampleBlock; i += kLanes) {
    const Vec w = load(weights + i);
    sum += w >= broadcast(least) ? w : Vec{};
  }
  return sum;
}

// How much of `values` [count] reaches each threshold, which is above 0: the sum of those values, or
// their number.
template <bool kIsCount, int kThresholds>
void add_up_reaching(const float* values, int64_t count, const float (&least)[kThresholds],
                     double (&found)[kThresholds]) {
  for (int t = 0; t < kThresholds; ++t) found[t] = 0;
  for (int64_t i = 0; i < count;) {
    Vec sums[kThresholds] = {};
    for (const int64_t end = min_of(i + kBlocksPerSum * kSampleBlock, count); i < end; i += kLanes) {
      const Vec value = load(values + i);
      const Vec worth = kIsCount ? broadcast(1.0f) : value;
      for (int t = 0; t < kThresholds; ++t) {
        sums[t] += value >= broadcast(least[t]) ? worth : Vec{};
      }
    }
    for (int t = 0; t < kThresholds; ++t) found[t] += reduce_add(sums[t]);
  }
}

// Writes those of `values` that lie from `low` to below `high`, in order, and zeros up to a whole
// vector; returns how many there are with the zeros. `kept` may be `values`.
int64_t keep_between(const float* values, int64_t count, float low, float high, float* kept) {
  int64_t size = 0;
  for (int64_t i = 0; i < count; i += kLanes) {
    size += store_between(load(values + i), low, high, kept + size);
  }
  store(kept + size, Vec{});
  return round_up(size, kLanes);
}

// The highest threshold in (low, 1] that `wanted` of `values` [count] reach, else low. Three are
// tried at a time: non-negative floats are ordered like their bits. Values that all thresholds in
// question divide alike are left out after a while; the others are copied to `inside`.
template <bool kIsCount>
float highest_reached(const float* values, int64_t count, float low, double wanted, float* inside) {
  int32_t from = bit_cast<int32_t>(low), to = bit_cast<int32_t>(1.0f) + 1;
  int32_t copied_at = kFactorOfTwo;
  double left_out = 0, at_to = 0;
  while (to - from > 1) {
    const int32_t step = max_of((to - from) / 4, 1);
    int32_t tried[3];
    float least[3];
    for (int t = 0; t < 3; ++t) least[t] = bit_cast<float>(tried[t] = min_of(from + (t + 1) * step, to));
    double found[3];
    add_up_reaching<kIsCount>(values, count, least, found);
    int reached = 0;
    while (reached < 3 && tried[reached] < to && left_out + found[reached] >= wanted) ++reached;
    if (reached < 3) {
      to = tried[reached];
      at_to = left_out + found[reached];
    }
    if (reached > 0) from = tried[reached - 1];
    if (to - from <= copied_at) {
      copied_at = (to - from) / kCloserPerCopy;
      count = keep_between(values, count, bit_cast<float>(from), bit_cast<float>(to), inside);
      values = inside;
      left_out = at_to;
    }
  }
  return bit_cast<float>(from);
}

// Samples a token in proportion to the weights that reach `least`, by inverting their running sum.
int64_t sample_candidate(const Candidates& c, float least, double chance) {
  double total = 0;
  for (int64_t b = 0; b < c.count; ++b) {
    const float* weights = c.weights + b * kSampleBlock;
    c.sums[b] = c.maxima[b] < least ? 0 : reduce_add(sum_at_least(weights, least));
    total += c.sums[b];
  }
  const double target = chance * total;
  // If rounding keeps the sum from passing the target, the last token with weight is chosen.
  double before = 0, reached = 0;
  int64_t chosen = 0;
  for (int64_t b = 0; b < c.count && reached <= target; ++b) {
    if (c.sums[b] == 0) continue;
    chosen = b;
    before = reached;
    reached += c.sums[b];
  }
  const float* weights = c.weights + chosen * kSampleBlock;
  int64_t place = 0;
  for (int64_t i = 0; i < kSampleBlock && before <= target; ++i) {
    if (weights[i] < least || weights[i] == 0) continue;
    place = i;
    before += weights[i];
  }
  return c.blocks[chosen] * kSampleBlock + place;
}

int64_t sample_token(const Sampling& p, int64_t r, const Row& row, float largest, Candidates& c) {
  const float inverse = p.inverse_temperature[r];
  const int64_t num_blocks = row.num_blocks(), padded = round_up(num_blocks, kLanes);
  const int64_t top_k = p.top_k[r] < p.vocab_size ? p.top_k[r] : 0;
  for (int64_t b = 0; b < num_blocks; b += kLanes) {
    store(c.maxima + b, to_weight(load(c.maxima + b), largest, inverse));
  }
  // No weight lies between: this keeps what 0 would.
  float least = max_of(p.min_p[r], kLeastWeight);
  if (top_k > 0 && top_k <= num_blocks) {
    // At least so many tokens reach what so many blocks' maxima do.
    least = highest_reached<true>(c.maxima, padded, least, top_k, c.inside);
  }
  take_candidates(row, largest, inverse, least, p.logits_stride, c);
  const int64_t count = c.count * kSampleBlock;
  if (top_k > 0) least = highest_reached<true>(c.weights, count, least, top_k, c.inside);
  if (p.top_p[r] < 1) {
    const float from[] = {least};
    double total[1];
    add_up_reaching<false>(c.weights, count, from, total);
    const double wanted = static_cast<double>(p.top_p[r]) * total[0];
    // Were all of them as small as this, they would be less than what may be left out.
    const float surely = static_cast<float>(0.99 * (total[0] - wanted) / count);
    least = highest_reached<false>(c.weights, count, max_of(least, surely), wanted, c.inside);
  }
  return sample_candidate(c, least, p.chances[r]);
}

// ---- log-probabilities

double sum_of_weights(const Row& row, float largest) {
  double total = 0;
  for (int64_t b = 0; b < row.num_blocks();) {
    Vec sum = {};
    for (const int64_t end = min_of(b + kBlocksPerSum, row.num_blocks()); b < end; ++b) {
      for (int64_t i = 0; i < kSampleBlock; i += kLanes) {
        sum += exponential(load(row.block(b) + i) - largest);
      }
    }
    total += reduce_add(sum);
  }
  return total;
}

int64_t rank_of(const Row& row, const float* maxima, float logit) {
  IntVec counts = {};
  for (int64_t b = 0; b < row.num_blocks(); ++b) {
    if (maxima[b] >= logit) counts += count_at_least(row.block(b), kVectors, logit);
  }
  return sum_of_lanes(counts);
}

// Takes the likeliest remaining token of the row, the first among ties. `taken` has a bit a token,
// and `maxima` are of the others. Returns its index, which is arbitrary if there are NaNs.
int64_t take_likeliest(const Row& row, float* maxima, uint64_t* taken) {
  static_assert(kSampleBlock == 64);
  Vec most = broadcast(-INFINITY);
  for (int64_t b = 0; b < row.num_blocks(); b += kLanes) most = max_lanes(most, load(maxima + b));
  const int64_t b = find_first(maxima, row.num_blocks(), reduce_max(most));
  const float* block = row.block(b);
  int64_t place = 0;
  while (place + 1 < kSampleBlock && ((taken[b] >> place & 1) || block[place] != maxima[b])) {
    ++place;
  }
  taken[b] |= uint64_t{1} << place;
  // The maximum of a used-up block must not equal another's.
  float next = taken[b] == UINT64_MAX ? NAN : -INFINITY;
  for (int64_t i = 0; i < kSampleBlock; ++i) {
    if (!(taken[b] >> i & 1)) next = max_of(next, block[i]);
  }
  maxima[b] = next;
  return b * kSampleBlock + place;
}

}  // namespace

void sample(const Sampling& p, int64_t begin, int64_t end, float* scratch) {
  const int64_t num_blocks = ceil_divide(p.vocab_size, kSampleBlock);
  const int64_t padded = round_up(num_blocks, kLanes);
  Candidates c = {0, reinterpret_cast<int32_t*>(scratch + 2 * padded), scratch,
                  scratch + 3 * padded, scratch + padded,
                  scratch + 3 * padded + num_blocks * kSampleBlock};
  for (int64_t r = begin; r < end; ++r) {
    const Row row(p.logits + r * p.logits_stride, p.vocab_size);
    const float largest = p.largest[r] = find_maxima(row, c.maxima);
    if (!(largest > -INFINITY && largest < INFINITY)) {
      p.tokens[r] = 0;
    } else if (p.inverse_temperature == nullptr || p.inverse_temperature[r] == 0) {
      const int64_t b = find_first(c.maxima, num_blocks, largest);
      p.tokens[r] = b * kSampleBlock + find_first(row.block(b), kSampleBlock, largest);
    } else {
      p.tokens[r] = sample_token(p, r, row, largest, c);
    }
  }
}

void find_largest(const LargestOutputs& p, int64_t begin, int64_t end) {
  const int64_t whole = p.count / kLanes * kLanes;
  for (int64_t r = begin; r < end; ++r) {
    const float* outputs = p.outputs + r * p.stride;
    Vec most = broadcast(-INFINITY);
    IntVec is_nan = {};
    for (int64_t i = 0; i < whole; i += kLanes) {
      const Vec x = load(outputs + i);
      most = max_lanes(most, x);
      is_nan |= x != x;
    }
    float largest = reduce_max(most);
    bool has_nan = reduce_max(bit_cast<Vec>(is_nan & bit_cast<int32_t>(1.0f))) != 0;
    for (int64_t i = whole; i < p.count; ++i) {
      largest = max_of(largest, outputs[i]);
      has_nan |= outputs[i] != outputs[i];
    }
    if (has_nan) p.largest[r] = bit_cast<float>(0x7fc00000);
    if (!(largest > p.largest[r])) continue;
    p.largest[r] = largest;
    p.tokens[r] = p.first_output + find_first(outputs, p.count, largest);
  }
}

void token_logprobs(const TokenLogprobs& p, int64_t begin, int64_t end, float* scratch) {
  const int64_t num_blocks = ceil_divide(p.vocab_size, kSampleBlock);
  float* maxima = scratch;
  uint64_t* taken = reinterpret_cast<uint64_t*>(scratch + round_up(num_blocks, kLanes));
  for (int64_t m = begin; m < end; ++m) {
    const float* logits = p.logits + p.rows[m] * p.logits_stride;
    const Row row(logits, p.vocab_size);
    const float largest = find_maxima(row, maxima);
    float log_sum = 0;
    if (p.is_normalized) log_sum = logf(static_cast<float>(sum_of_weights(row, largest)));
    const auto value = [&](float x) { return p.is_normalized ? (x - largest) - log_sum : x; };
    int64_t* ids = p.ids + m * (1 + p.num_top);
    float* values = p.values + m * (1 + p.num_top);
    ids[0] = p.tokens[m];
    values[0] = value(logits[ids[0]]);
    // Padding of the last block equals banned logits but must not count.
    p.ranks[m] = min_of(rank_of(row, maxima, logits[ids[0]]), p.vocab_size);
    for (int64_t b = 0; b < num_blocks; ++b) taken[b] = 0;
    for (int64_t i = 1; i <= p.num_top; ++i) {
      ids[i] = min_of(take_likeliest(row, maxima, taken), p.vocab_size - 1);
      values[i] = value(logits[ids[i]]);
    }
  }
}

}  // namespace vllm_lite::VLLM_LITE_ISA
