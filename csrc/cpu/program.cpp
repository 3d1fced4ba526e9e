#include "cpu/program.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <stdexcept>
#include <string>
#include <utility>

#include "cpu/fusion.h"
#include "cpu/row_chains.h"

namespace vllm_lite {
namespace {

using Clock = std::chrono::steady_clock;

// ---- each operation: its name, and the fields that change, tensors in the order of their use

struct Description {
  std::string name;
  std::vector<Field> fields;
};

template <class T>
Field field(T& at, Use use, int64_t table = 0) {
  static_assert(sizeof at == sizeof(int64_t));
  int64_t value;
  std::memcpy(&value, &at, sizeof value);
  return {const_cast<std::remove_const_t<T>*>(&at), use, value, table};
}
template <class T>
Field read(T*& tensor) {
  return field(tensor, Use::kRead);
}
template <class T>
Field write(T*& tensor) {
  return field(tensor, Use::kWrite);
}
template <class T>
Field change(T*& tensor) {
  return field(tensor, Use::kChange);
}
template <class T>
Field input(T*& tensor) {
  return field(tensor, Use::kInput);
}
Field tokens(int64_t& count) { return field(count, Use::kTokens); }
Field requests(int64_t& count) { return field(count, Use::kRequests); }

Description describe(Norm& p) {
  return {p.is_centered ? "layer_norm" : "rms_norm", {read(p.x), change(p.residual), write(p.out)}};
}
Description describe(Activation& p) {
  return {p.is_gated ? "act_and_mul" : "activation", {read(p.x), write(p.out)}};
}
Description describe(ScaledAdd& p) {
  return {"scaled_add", {read(p.x), read(p.y), read(p.gates), write(p.out)}};
}
Description describe(RowMix& p) {
  return {"mix_rows", {read(p.x), read(p.factors), read(p.base), write(p.out)}};
}
Description describe(RowLevel& p) {
  return {p.like == nullptr ? "keep_outliers" : "match_rms",
          {read(p.x), read(p.like), write(p.out)}};
}
Description describe(Rotary& p) {
  return {"rotary_embedding", {change(p.heads[0]), change(p.heads[1]), input(p.positions)}};
}
Description describe(CacheWrite& p) {
  return {"reshape_and_cache", {read(p.keys.source), read(p.values.source), input(p.slots)}};
}
Description describe(Route& p) {
  return {"route_topk", {read(p.logits), write(p.weights), write(p.ids)}};
}
Description describe(GatedNorm& p) {
  return {p.weight == nullptr ? "gated_product" : "gated_rms_norm",
          {read(p.x), read(p.gate), write(p.out)}};
}
Description describe(RowOperation& operation) {
  return std::visit([](auto& p) { return describe(p); }, operation);
}
Description describe(RowCall& call) {
  Description all = describe(call.p);
  all.fields.push_back(tokens(call.num_tokens));
  return all;
}
Description describe(EmbeddingCall& call) {
  return {"embedding", {tokens(call.num_tokens), input(call.p.ids), write(call.p.out)}};
}
Description describe(AttentionCall& call) {
  AttentionBatch& batch = call.batch;
  Attention& p = call.p;
  const int64_t table = reinterpret_cast<int64_t>(batch.block_table);
  return {"paged_attention",
          {tokens(batch.num_tokens), requests(batch.num_requests),
           field(batch.block_table, Use::kTable),
           field(batch.block_table_stride, Use::kStride, table),
           field(batch.blocks_per_request, Use::kWidth, table), input(batch.query_start_loc),
           input(batch.seq_lens), read(p.query), write(p.output), write(p.lse)}};
}
Description describe(EncoderAttentionCall& call) {
  EncoderBatch& batch = call.batch;
  Attention& p = call.p;
  return {"encoder_attention",
          {tokens(batch.num_tokens), requests(batch.num_requests), input(batch.query_start_loc),
           read(p.query), read(p.keys.rows), read(p.values.rows), write(p.output)}};
}
Description describe(EncoderEmbeddingCall& call) {
  EncoderEmbedding& p = call.p;
  return {"encoder_embedding",
          {tokens(call.num_tokens), input(p.ids), input(p.positions), write(p.out)}};
}

// A linear layer with the operations fused with it, in order.
template <class Product>
Description describe_product(const char* name, Product& call) {
  Description all = {name, {read(call.p.x), write(call.p.out)}};
  const auto add = [&](auto where, Description other, std::string text) {
    all.name = std::move(text);
    all.fields.insert(where, other.fields.begin(), other.fields.end());
  };
  if (auto& before = call.beside.before) {
    Description other = describe(*before);
    add(all.fields.begin(), other, other.name + " + " + all.name);
  }
  for (RowOperation& after : call.beside.after) {
    Description other = describe(after);
    add(all.fields.end(), other, all.name + " + " + other.name);
  }
  all.fields.push_back(tokens(call.num_tokens));
  return all;
}
Description describe(LinearCall& call) { return describe_product("linear", call); }
Description describe(GatedLinearCall& call) { return describe_product("gated_linear", call); }
Description describe(QuantizedLinearCall& call) {
  return describe_product("quantized_linear", call);
}
Description describe(GroupedLinearCall& call) { return describe_product("grouped_linear", call); }
Description describe(HeadLinearCall& call) {
  return {"head_linear", {tokens(call.num_tokens), read(call.p.x), write(call.p.out)}};
}
Description describe(ExpertsCall& call) {
  Experts& p = call.p;
  return {"experts_mlp",
          {tokens(call.num_tokens), read(p.x), read(p.ids), read(p.weights), write(p.places),
           write(p.rows), write(p.hidden), write(p.out)}};
}

// An operation with states.
template <class Stateful>
Description describe_stateful(const char* name, Stateful& call, std::vector<Field> fields) {
  StateBatch& batch = call.batch;
  for (const Field& field :
       {write(call.p.out), tokens(batch.num_tokens), requests(batch.num_requests),
        input(batch.query_start_loc), input(batch.state_in), input(call.p.state_out)}) {
    fields.push_back(field);
  }
  return {name, std::move(fields)};
}
Description describe(CausalConvCall& call) {
  CausalConv& p = call.p;
  return describe_stateful("causal_conv1d", call, {read(p.x), read(p.before), read(p.after)});
}
Description describe(SelectiveScanCall& call) {
  SelectiveScan& p = call.p;
  return describe_stateful("selective_scan", call, {read(p.x), read(p.dt), read(p.b), read(p.c)});
}
Description describe(ChannelScanCall& call) {
  ChannelScan& p = call.p;
  return describe_stateful("channel_scan", call,
                           {read(p.x), read(p.dt), read(p.gate), read(p.b), read(p.c)});
}
Description describe(GatedRecurrenceCall& call) {
  GatedRecurrence& p = call.p;
  return describe_stateful("gated_recurrence", call, {read(p.x), read(p.gate), read(p.decay)});
}
Description describe(DeltaRuleCall& call) {
  DeltaRule& p = call.p;
  return describe_stateful("delta_rule", call,
                           {read(p.q), read(p.k), read(p.v), read(p.decay), read(p.beta)});
}
Description describe(QuantizedLookupCall& call) {
  return {"quantized_lookup", {tokens(call.num_tokens), input(call.p.ids), write(call.p.out)}};
}
Description describe(GroupedLookupCall& call) {
  return {"grouped_lookup", {tokens(call.num_tokens), input(call.p.ids), write(call.p.out)}};
}
Description describe(AllReduceCall& call) {
  return {"all_reduce", {tokens(call.num_tokens), read(call.p.x), write(call.p.out)}};
}

Description describe(Call& call) {
  return std::visit([](auto& operation) { return describe(operation); }, call);
}

bool is_tensor(const Field& field) {
  return field.value != 0 &&
         (field.use == Use::kRead || field.use == Use::kWrite || field.use == Use::kChange);
}

// ---- memory

constexpr int64_t kAlignment = 64;

[[noreturn]] void refuse(const char* reason) { throw std::invalid_argument(reason); }

}  // namespace

Program::Program(std::vector<int64_t> example, std::vector<int64_t> input_bytes)
    : example_(std::move(example)), input_bytes_(std::move(input_bytes)) {
  if (example_.size() != size_t(place_of(input_bytes_.size())) || example_[0] <= 0) {
    refuse("a step has tokens, requests and three numbers for each input");
  }
}

int64_t Program::find_input(uintptr_t address) const {
  for (size_t i = 0; i < input_bytes_.size(); ++i) {
    if (address - numbers_of(i)[0] < uintptr_t(input_bytes_[i])) return i;
  }
  return -1;
}

int64_t Program::place_of(const Field& field) const {
  if (field.use == Use::kTokens) return 0;
  if (field.use == Use::kRequests) return 1;
  const int64_t input = find_input(field.table != 0 ? field.table : field.value);
  if (input < 0) return -1;
  return place_of(input) + (field.use == Use::kStride ? 1 : field.use == Use::kWidth ? 2 : 0);
}

void Program::record(Call call) {
  std::visit(
      [&](auto& product) {
        if constexpr (requires { product.rows_of_token; }) {
          if (product.num_tokens % num_tokens() != 0) return;
          product.rows_of_token = product.num_tokens / num_tokens();
          product.num_tokens = num_tokens();
        }
      },
      call);
  for (const Field& field : describe(call).fields) {
    if (field.use <= Use::kChange) continue;
    const int64_t place = place_of(field);
    if (place < 0 || (field.use != Use::kInput && field.value != example_[place])) {
      refuse("an operation takes other inputs than the step's");
    }
  }
  calls_.push_back(std::move(call));
}

int64_t Program::finish(std::span<const Temporary> temporaries, std::vector<uintptr_t> results,
                        int64_t max_tokens) {
  for (const Temporary& temporary : temporaries) {
    if (temporary.bytes == 0) continue;
    if (temporary.bytes % num_tokens() != 0) {
      refuse("a temporary does not hold one row for each token");
    }
    buffers_.push_back({temporary.address, temporary.bytes});
  }
  std::sort(buffers_.begin(), buffers_.end(),
            [](const Buffer& a, const Buffer& b) { return a.address < b.address; });
  results_ = std::move(results);
  max_tokens_ = max_tokens;
  divide(false);
  note_uses();
  const auto owner_of = [&](const void* pointer) -> const void* {
    const auto address = reinterpret_cast<uintptr_t>(pointer);
    const int64_t input = find_input(address);
    return input >= 0 ? static_cast<const void*>(numbers_of(input)) : &buffer_of(address);
  };
  calls_ = fuse(calls_, [&](const void* a, const void* b) { return owner_of(a) != owner_of(b); });
  divide(true);
  note_uses();
  return assign_offsets(max_tokens);
}

void Program::divide(bool in_chains) {
  const auto has_rows = [&](const void* tensor, int64_t row_bytes) {
    const auto address = reinterpret_cast<uintptr_t>(tensor);
    if (find_input(address) >= 0) return true;  // never written
    const Buffer& buffer = buffer_of(address);
    return row_bytes == buffer.bytes / num_tokens() &&
           address - buffer.address < uintptr_t(row_bytes);
  };
  stages_.clear();
  for (size_t begin = 0; begin < calls_.size(); begin = stages_.back().end) {
    stages_.push_back({begin, in_chains ? end_of_chain(calls_, begin, has_rows) : begin + 1});
  }
}

Program::Buffer& Program::buffer_of(uintptr_t address) {
  auto after = std::upper_bound(buffers_.begin(), buffers_.end(), address,
                                [](uintptr_t a, const Buffer& b) { return a < b.address; });
  if (after == buffers_.begin() || address - after[-1].address >= uintptr_t(after[-1].bytes)) {
    refuse("an operation uses a tensor that was not made in the step");
  }
  return after[-1];
}

void Program::note_uses() {
  for (Buffer& buffer : buffers_) buffer.first_stage = buffer.last_stage = -1;
  for (size_t stage = 0; stage < stages_.size(); ++stage) {
    for (size_t i = stages_[stage].begin; i < stages_[stage].end; ++i) note_uses(calls_[i], stage);
  }
  for (uintptr_t result : results_) {
    Buffer& buffer = buffer_of(result);
    if (buffer.first_stage < 0) refuse("no operation writes the result");
    buffer.last_stage = stages_.size();
  }
}

void Program::note_uses(Call& call, int64_t stage) {
  for (const Field& field : describe(call).fields) {
    if (!is_tensor(field)) continue;
    if (find_input(field.value) >= 0) {
      if (field.use != Use::kRead) refuse("an operation writes to an input of the step");
      continue;
    }
    Buffer& buffer = buffer_of(field.value);
    if (buffer.first_stage < 0) {
      if (field.use != Use::kWrite) refuse("an operation reads what no operation has written");
      buffer.first_stage = stage;
    }
    buffer.last_stage = stage;
  }
}

// Each buffer, in order of first use, goes to the lowest offset where it overlaps no live buffer.
int64_t Program::assign_offsets(int64_t max_tokens) {
  const auto size_of = [&](const Buffer& buffer) {
    const int64_t bytes = buffer.bytes / num_tokens() * max_tokens;
    return (bytes + kAlignment - 1) / kAlignment * kAlignment;
  };
  std::vector<Buffer*> needed;
  for (Buffer& buffer : buffers_) {
    if (buffer.first_stage >= 0) needed.push_back(&buffer);
  }
  std::stable_sort(needed.begin(), needed.end(), [](const Buffer* a, const Buffer* b) {
    return a->first_stage < b->first_stage;
  });
  std::vector<Buffer*> placed;  // by offset
  int64_t total = 0;
  for (Buffer* added : needed) {
    Buffer& buffer = *added;
    for (const Buffer* other : placed) {
      const bool meet =
          buffer.first_stage <= other->last_stage && other->first_stage <= buffer.last_stage;
      if (!meet) continue;
      if (buffer.offset + size_of(buffer) <= other->offset) break;
      buffer.offset = std::max(buffer.offset, other->offset + size_of(*other));
    }
    total = std::max(total, buffer.offset + size_of(buffer));
    placed.insert(std::upper_bound(placed.begin(), placed.end(), &buffer,
                                   [](const Buffer* a, const Buffer* b) {
                                     return a->offset < b->offset;
                                   }),
                  &buffer);
  }
  return total;
}

std::vector<uintptr_t> Program::place(uintptr_t memory) {
  const auto moved = [&](uintptr_t address) {
    const Buffer& buffer = buffer_of(address);
    return memory + buffer.offset + (address - buffer.address);
  };
  for (Call& call : calls_) {
    for (const Field& field : describe(call).fields) {
      if (const int64_t place = place_of(field); place >= 0) {
        links_.push_back({field.at, place, field.value - example_[place]});
      } else if (is_tensor(field)) {
        const uintptr_t address = moved(field.value);
        std::memcpy(field.at, &address, sizeof address);
      }
    }
  }
  for (uintptr_t& result : results_) result = moved(result);
  buffers_.clear();
  return results_;
}

std::vector<std::pair<std::string, double>> Program::profile(std::span<const int64_t> step) {
  std::vector<double> seconds(calls_.size());
  run_timed(step, seconds.data());
  std::vector<std::pair<std::string, double>> named;
  for (size_t i = 0; i < calls_.size(); ++i) {
    named.emplace_back(describe(calls_[i]).name, seconds[i]);
  }
  return named;
}

void Program::run_timed(std::span<const int64_t> step, double* seconds) {
  if (step.size() != example_.size()) refuse("a step has other inputs than the recorded one");
  if (step[0] > max_tokens_) {
    throw std::out_of_range("a step of " + std::to_string(step[0]) +
                            " tokens is larger than the " + std::to_string(max_tokens_) +
                            " that the program has room for");
  }
  for (const Link& link : links_) {
    const int64_t value = step[link.place] + link.offset;
    std::memcpy(link.at, &value, sizeof value);
  }
  for (const Stage& stage : stages_) {
    const std::span calls(&calls_[stage.begin], stage.end - stage.begin);
    // To be timed, the calls of a chain run one after another.
    if (seconds == nullptr && calls.size() > 1 && run_chain(calls, step[0])) continue;
    for (const Call& call : calls) {
      const auto start = seconds == nullptr ? Clock::time_point() : Clock::now();
      std::visit([](const auto& operation) { operation.run(); }, call);
      if (seconds != nullptr) {
        *seconds++ = std::chrono::duration<double>(Clock::now() - start).count();
      }
    }
  }
}

}  // namespace vllm_lite
