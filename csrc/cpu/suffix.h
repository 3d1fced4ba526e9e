// Drafts from texts: what most often followed a request's last tokens, in its own text and in
// earlier ones. Source: SuffixDecoding (Oliaro et al., 2024).
#pragma once

#include <cstdint>
#include <deque>
#include <span>
#include <vector>

namespace vllm_lite {

// Texts are found by their last so many tokens; what is no longer has nothing behind them.
inline constexpr int64_t kPair = 2;

// The newest texts of a scope, in a ring, found by any two tokens that follow each other. Instead
// of a suffix tree there are hash chains, as in DEFLATE (RFC 1951): a few bytes a token, and old
// texts are overwritten.
class TextStore {
 public:
  // Holds `num_texts` texts, and at most `capacity` tokens, a power of two.
  TextStore(int64_t num_texts, int64_t capacity);

  // Stores a text, of which the last tokens count if it is too long.
  void add(std::span<const int32_t> tokens);

  std::span<const int32_t> tokens() const { return tokens_; }
  // Indices in tokens() behind occurrences of a pair, the newest first, as far as they are compared.
  std::vector<int64_t> places(int32_t first, int32_t second) const;

 private:
  int64_t hash(int32_t first, int32_t second) const;

  std::vector<int32_t> tokens_;
  // By a pair's hash the newest place behind it, and from each place the one before; -1: none.
  std::vector<int64_t> newest_;
  std::vector<int64_t> before_;
  int64_t num_texts_;
  // Tokens ever stored; the ring holds the last of them.
  int64_t num_stored_ = 0;
  std::deque<int64_t> starts_;
};

struct DraftRule {
  int64_t longest_match;  // most last tokens that are compared
  double drafts_per_match;  // drafts for each token that matches
  double least_probability;  // of a draft, by the numbers of places
};

// Up to `most` tokens that may follow `tokens`; `store` may be null.
std::vector<int32_t> suffix_drafts(const TextStore* store, std::span<const int32_t> tokens,
                                   int64_t most, const DraftRule& rule);

}  // namespace vllm_lite
