// Sampling and log-probabilities: divides the rows of a batch among the threads.
#include <algorithm>
#include <stdexcept>
#include <string>
#include <vector>

#include "cpu/isa.h"
#include "cpu/ops.h"
#include "cpu/thread_pool.h"

namespace vllm_lite {
namespace {

// Logits of a range: fewer are not worth waking a helper.
constexpr int64_t kLogitsPerRange = 16 * 1024;

// Lists of tokens of a range, of some hundreds each.
constexpr int64_t kListsPerRange = 8;

float* scratch_of_thread(int64_t vocab_size) {
  thread_local std::vector<float> scratch;
  const size_t floats = sampling_scratch_floats(vocab_size);
  if (scratch.size() < floats) scratch.resize(floats);
  return scratch.data();
}

int64_t rows_per_range(int64_t vocab_size) {
  return std::max<int64_t>(1, kLogitsPerRange / vocab_size);
}

void check_index(const char* name, const int64_t* values, int64_t count, int64_t limit) {
  for (int64_t i = 0; i < count; ++i) {
    if (values[i] < 0 || values[i] >= limit) {
      throw std::out_of_range(std::string(name) + " " + std::to_string(values[i]) +
                              " is not below " + std::to_string(limit));
    }
  }
}

}  // namespace

void penalize_tokens(const TokenPenalties& p, int64_t num_rows, int64_t num_entries) {
  check_index("row", p.rows, num_entries, num_rows);
  if (!std::is_sorted(p.starts, p.starts + num_entries + 1)) {
    throw std::out_of_range("lists of tokens overlap");
  }
  check_index("token", p.tokens, p.starts[num_entries], p.vocab_size);
  parallel_for(num_entries, kListsPerRange, [&](int64_t begin, int64_t end) {
    for (int64_t entry = begin; entry < end; ++entry) {
      float* logits = p.logits + p.rows[entry] * p.logits_stride;
      const float repetition = p.factors[3 * entry], frequency = p.factors[3 * entry + 1];
      const float presence = p.factors[3 * entry + 2];
      for (int64_t i = p.starts[entry]; i < p.starts[entry + 1]; ++i) {
        float value = logits[p.tokens[i]];
        value = value > 0 ? value / repetition : value * repetition;
        const float seen = p.times[i] > 0 ? 1.0f : 0.0f;
        logits[p.tokens[i]] = value - (frequency * p.times[i] + presence * seen);
      }
    }
  });
}

void sample(const Sampling& p, int64_t num_rows) {
  const KernelTable& table = kernels();
  // Spans: a row is asked for while the one before it is sampled.
  parallel_spans(num_rows, rows_per_range(p.vocab_size), [&](int64_t begin, int64_t end) {
    table.sample(p, begin, end, scratch_of_thread(p.vocab_size));
  });
}

void token_logprobs(const TokenLogprobs& p, int64_t num_rows, int64_t num_entries) {
  check_index("row", p.rows, num_entries, num_rows);
  check_index("token", p.tokens, num_entries, p.vocab_size);
  const KernelTable& table = kernels();
  parallel_for(num_entries, rows_per_range(p.vocab_size), [&](int64_t begin, int64_t end) {
    table.token_logprobs(p, begin, end, scratch_of_thread(p.vocab_size));
  });
}

}  // namespace vllm_lite
