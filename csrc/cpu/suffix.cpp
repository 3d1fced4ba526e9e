#include "cpu/suffix.h"

#include <algorithm>
#include <utility>

namespace vllm_lite {
namespace {

// Places, the newest first, that are compared with a request's last tokens.
constexpr size_t kMostPlaces = 64;
// Between two texts of a store; no token has this id.
constexpr int32_t kEnd = -1;

using Places = std::vector<int64_t>;

// Tokens that may follow, and how many of them are expected to come true.
struct Guess {
  std::vector<int32_t> tokens;
  double score = 0.0;
};

Places places_in(std::span<const int32_t> text, int32_t first, int32_t second) {
  Places found;
  for (int64_t place = static_cast<int64_t>(text.size()) - 1;
       place >= kPair && found.size() < kMostPlaces; --place) {
    if (text[place - 2] == first && text[place - 1] == second) found.push_back(place);
  }
  return found;
}

// The token that follows most of the places, of equally frequent ones that of the newest place, and
// how many it follows.
std::pair<int32_t, int64_t> most_frequent(std::span<const int32_t> text, const Places& places) {
  std::pair<int32_t, int64_t> best{kEnd, 0};
  for (const int64_t place : places) {
    const int32_t token = text[place];
    if (token == best.first) continue;
    const int64_t count = std::count_if(places.begin(), places.end(),
                                        [&](int64_t other) { return text[other] == token; });
    if (count > best.second) best = {token, count};
  }
  return best;
}

// The likeliest continuation of `tokens` in `text`; `places` lie behind occurrences of the last pair.
Guess follow(std::span<const int32_t> text, Places places, std::span<const int32_t> tokens,
             int64_t most, const DraftRule& rule) {
  const auto has_end = [&](int64_t place) {
    return place >= static_cast<int64_t>(text.size()) || text[place] == kEnd;
  };
  // Where a text ended, nothing follows: a longer match there is no reason to give up.
  std::erase_if(places, has_end);
  if (places.empty()) return {};
  int64_t size = kPair;
  const int64_t longest = std::min<int64_t>(rule.longest_match, tokens.size());
  for (; size < longest; ++size) {
    const int32_t before = tokens[tokens.size() - size - 1];
    const auto differs = [&](int64_t place) {
      return place <= size || text[place - size - 1] != before;
    };
    if (std::all_of(places.begin(), places.end(), differs)) break;
    std::erase_if(places, differs);
  }
  most = std::min(most, static_cast<int64_t>(rule.drafts_per_match * size));
  Guess guess;
  double probability = 1.0;
  while (static_cast<int64_t>(guess.tokens.size()) < most) {
    const double num_places = places.size();
    std::erase_if(places, has_end);
    if (places.empty()) break;
    const auto [token, count] = most_frequent(text, places);
    probability *= count / num_places;
    if (probability < rule.least_probability) break;
    guess.tokens.push_back(token);
    guess.score += probability;
    std::erase_if(places, [&](int64_t place) { return text[place] != token; });
    for (int64_t& place : places) ++place;
  }
  return guess;
}

}  // namespace

TextStore::TextStore(int64_t num_texts, int64_t capacity)
    : tokens_(capacity, kEnd), newest_(capacity, -1), before_(capacity, -1), num_texts_(num_texts) {}

int64_t TextStore::hash(int32_t first, int32_t second) const {
  // Knuth's multiplier spreads ids, which are small.
  const uint64_t mixed = uint64_t(first) * 2654435761u + uint64_t(second) * 40503u;
  return (mixed ^ (mixed >> 17)) & (newest_.size() - 1);
}

void TextStore::add(std::span<const int32_t> tokens) {
  tokens = tokens.last(std::min(tokens.size(), tokens_.size() / 2));
  const size_t mask = tokens_.size() - 1;
  starts_.push_back(num_stored_);
  if (static_cast<int64_t>(starts_.size()) > num_texts_) starts_.pop_front();
  for (size_t i = 0; i < tokens.size(); ++i) {
    tokens_[num_stored_++ & mask] = tokens[i];
    if (i == 0) continue;
    int64_t& newest = newest_[hash(tokens[i - 1], tokens[i])];
    before_[num_stored_ & mask] = std::exchange(newest, num_stored_);
  }
  tokens_[num_stored_++ & mask] = kEnd;
}

Places TextStore::places(int32_t first, int32_t second) const {
  const int64_t capacity = tokens_.size();
  const int64_t oldest =
      std::max(starts_.empty() ? int64_t{0} : starts_.front(), num_stored_ - capacity);
  Places found;
  int64_t place = newest_[hash(first, second)];
  for (size_t i = 0; i < kMostPlaces && place >= oldest + kPair; ++i) {
    const int64_t index = place & (capacity - 1);
    if (tokens_[(place - 2) & (capacity - 1)] == first &&
        tokens_[(place - 1) & (capacity - 1)] == second) {
      found.push_back(index);
    }
    // A place that was overwritten leads to a newer one.
    place = before_[index] < place ? before_[index] : -1;
  }
  return found;
}

std::vector<int32_t> suffix_drafts(const TextStore* store, std::span<const int32_t> tokens,
                                   int64_t most, const DraftRule& rule) {
  if (tokens.size() < kPair) return {};
  const int32_t first = tokens[tokens.size() - 2], second = tokens[tokens.size() - 1];
  Guess guess = follow(tokens, places_in(tokens, first, second), tokens, most, rule);
  if (store) {
    Guess other = follow(store->tokens(), store->places(first, second), tokens, most, rule);
    if (other.score > guess.score) guess = std::move(other);
  }
  return guess.tokens;
}

}  // namespace vllm_lite
