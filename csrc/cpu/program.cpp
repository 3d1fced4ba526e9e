#include "cpu/program.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <stdexcept>
#include <string>
#include <utility>

#include "cpu/fusion.h"

namespace vllm_lite {
namespace {

using Clock = std::chrono::steady_clock;

enum class Use { kRead, kWrite, kChange };

// ---- each operation: the tensors that it uses, in order, and what it takes of the step. It passes
// tensors to visit(pointer, use), the rest to visit.tokens(count), visit.requests(count),
// visit.input(pointer) and visit.table(pointer, stride, width).

template <class Visit>
void each_tensor(EmbeddingCall& call, Visit&& visit) {
  visit(call.p.out, Use::kWrite);
}
template <class Visit>
void each_input(EmbeddingCall& call, Visit&& visit) {
  visit.tokens(call.num_tokens);
  visit.input(call.p.ids);
}

template <class Visit>
void each_tensor(Norm& p, Visit&& visit) {
  visit(p.x, Use::kRead);
  if (p.residual != nullptr) visit(p.residual, Use::kChange);
  visit(p.out, Use::kWrite);
}
template <class Visit>
void each_input(Norm&, Visit&&) {}

template <class Visit>
void each_tensor(Activation& p, Visit&& visit) {
  visit(p.x, Use::kRead);
  visit(p.out, Use::kWrite);
}
template <class Visit>
void each_input(Activation&, Visit&&) {}

template <class Visit>
void each_tensor(ScaledAdd& p, Visit&& visit) {
  visit(p.x, Use::kRead);
  if (p.y != nullptr) visit(p.y, Use::kRead);
  if (p.gates != nullptr) visit(p.gates, Use::kRead);
  visit(p.out, Use::kWrite);
}
template <class Visit>
void each_input(ScaledAdd&, Visit&&) {}

template <class Visit>
void each_tensor(RotaryRows& rotary, Visit&& visit) {
  for (void*& heads : rotary.p.heads) visit(heads, Use::kChange);
}
template <class Visit>
void each_input(RotaryRows& rotary, Visit&& visit) {
  visit.input(rotary.p.positions);
}

template <class Visit>
void each_tensor(CacheRows& cache, Visit&& visit) {
  visit(cache.key.source, Use::kRead);
  visit(cache.value.source, Use::kRead);
}
template <class Visit>
void each_input(CacheRows& cache, Visit&& visit) {
  visit.input(cache.key.slots);
  visit.input(cache.value.slots);
}

template <class Visit>
void each_tensor(Route& p, Visit&& visit) {
  visit(p.logits, Use::kRead);
  visit(p.weights, Use::kWrite);
  visit(p.ids, Use::kWrite);
}
template <class Visit>
void each_input(Route&, Visit&&) {}

template <class Visit>
void each_tensor(GatedNorm& p, Visit&& visit) {
  visit(p.x, Use::kRead);
  visit(p.gate, Use::kRead);
  visit(p.out, Use::kWrite);
}
template <class Visit>
void each_input(GatedNorm&, Visit&&) {}

template <class Visit>
void each_tensor(RowOperation& operation, Visit&& visit) {
  std::visit([&](auto& p) { each_tensor(p, visit); }, operation);
}
template <class Visit>
void each_input(RowOperation& operation, Visit&& visit) {
  std::visit([&](auto& p) { each_input(p, visit); }, operation);
}

template <class Visit>
void each_tensor(RowCall& call, Visit&& visit) {
  each_tensor(call.p, visit);
}
template <class Visit>
void each_input(RowCall& call, Visit&& visit) {
  visit.tokens(call.num_tokens);
  each_input(call.p, visit);
}

template <class Visit>
void each_tensor(AttentionCall& call, Visit&& visit) {
  visit(call.p.query, Use::kRead);
  visit(call.p.output, Use::kWrite);
  if (call.p.lse != nullptr) visit(call.p.lse, Use::kWrite);
}
template <class Visit>
void each_input(AttentionCall& call, Visit&& visit) {
  AttentionBatch& batch = call.batch;
  visit.tokens(batch.num_tokens);
  visit.requests(batch.num_requests);
  visit.table(batch.block_table, batch.block_table_stride, batch.blocks_per_request);
  visit.input(batch.query_start_loc);
  visit.input(batch.seq_lens);
}

// A linear layer.
template <class Product, class Visit>
  requires requires(Product& call) { call.beside; }
void each_tensor(Product& call, Visit&& visit) {
  if (call.beside.before) each_tensor(*call.beside.before, visit);
  visit(call.p.x, Use::kRead);
  visit(call.p.out, Use::kWrite);
  for (RowOperation& operation : call.beside.after) each_tensor(operation, visit);
}
template <class Product, class Visit>
  requires requires(Product& call) { call.beside; }
void each_input(Product& call, Visit&& visit) {
  visit.tokens(call.num_tokens);
  if (call.beside.before) each_input(*call.beside.before, visit);
  for (RowOperation& operation : call.beside.after) each_input(operation, visit);
}

template <class Visit>
void each_tensor(HeadLinearCall& call, Visit&& visit) {
  visit(call.p.x, Use::kRead);
  visit(call.p.out, Use::kWrite);
}
template <class Visit>
void each_input(HeadLinearCall& call, Visit&& visit) {
  visit.tokens(call.num_tokens);
}

template <class Visit>
void each_tensor(ExpertsCall& call, Visit&& visit) {
  Experts& p = call.p;
  visit(p.x, Use::kRead);
  visit(p.ids, Use::kRead);
  visit(p.weights, Use::kRead);
  visit(p.places, Use::kWrite);
  visit(p.rows, Use::kWrite);
  visit(p.hidden, Use::kWrite);
  visit(p.out, Use::kWrite);
}
template <class Visit>
void each_input(ExpertsCall& call, Visit&& visit) {
  visit.tokens(call.num_tokens);
}

template <class Visit>
void each_tensor(CausalConvCall& call, Visit&& visit) {
  CausalConv& p = call.p;
  visit(p.x, Use::kRead);
  if (p.before != nullptr) visit(p.before, Use::kRead);
  if (p.after != nullptr) visit(p.after, Use::kRead);
  visit(p.out, Use::kWrite);
}
template <class Visit>
void each_tensor(ChannelScanCall& call, Visit&& visit) {
  ChannelScan& p = call.p;
  for (const void** read : {&p.x, &p.dt, &p.gate, &p.b, &p.c}) visit(*read, Use::kRead);
  visit(p.out, Use::kWrite);
}
template <class Visit>
void each_tensor(GatedRecurrenceCall& call, Visit&& visit) {
  GatedRecurrence& p = call.p;
  for (const void** read : {&p.x, &p.gate, &p.decay}) visit(*read, Use::kRead);
  visit(p.out, Use::kWrite);
}
template <class Visit>
void each_tensor(DeltaRuleCall& call, Visit&& visit) {
  DeltaRule& p = call.p;
  for (const void** read : {&p.q, &p.k, &p.v, &p.decay, &p.beta}) visit(*read, Use::kRead);
  visit(p.out, Use::kWrite);
}
template <class Visit>
void each_tensor(SelectiveScanCall& call, Visit&& visit) {
  SelectiveScan& p = call.p;
  for (const void** read : {&p.x, &p.dt, &p.b, &p.c}) visit(*read, Use::kRead);
  visit(p.out, Use::kWrite);
}
// A call with states.
template <class Stateful, class Visit>
  requires requires(Stateful& call) { call.p.state_out; }
void each_input(Stateful& call, Visit&& visit) {
  StateBatch& batch = call.batch;
  visit.tokens(batch.num_tokens);
  visit.requests(batch.num_requests);
  visit.input(batch.query_start_loc);
  visit.input(batch.state_in);
  visit.input(call.p.state_out);
}

template <class Visit>
void each_tensor(QuantizedLookupCall& call, Visit&& visit) {
  visit(call.p.out, Use::kWrite);
}
template <class Visit>
void each_input(QuantizedLookupCall& call, Visit&& visit) {
  visit.tokens(call.num_tokens);
  visit.input(call.p.ids);
}

template <class Visit>
void each_tensor(AllReduceCall& call, Visit&& visit) {
  visit(call.p.x, Use::kRead);
  visit(call.p.out, Use::kWrite);
}
template <class Visit>
void each_input(AllReduceCall& call, Visit&& visit) {
  visit.tokens(call.num_tokens);
}

// ---- names

const char* name_of(const Norm& p) { return p.is_centered ? "layer_norm" : "rms_norm"; }
const char* name_of(const Activation& p) { return p.is_gated ? "act_and_mul" : "activation"; }
const char* name_of(const ScaledAdd&) { return "scaled_add"; }
const char* name_of(const RotaryRows&) { return "rotary_embedding"; }
const char* name_of(const CacheRows&) { return "reshape_and_cache"; }
const char* name_of(const Route&) { return "route_topk"; }
const char* name_of(const GatedNorm& p) {
  return p.weight == nullptr ? "gated_product" : "gated_rms_norm";
}

std::string name_of(const RowOperation& operation) {
  return std::visit([](const auto& p) { return std::string(name_of(p)); }, operation);
}

std::string name_of(const RowCall& call) { return name_of(call.p); }

// Of a linear layer: with the operations fused with it, in order.
template <class Operation>
std::string name_of(const Operation& operation) {
  std::string name = Operation::kName;
  if constexpr (requires { operation.beside; }) {
    const BesideProduct& beside = operation.beside;
    if (beside.before) name = name_of(*beside.before) + (" + " + name);
    for (const RowOperation& after : beside.after) (name += " + ") += name_of(after);
  }
  return name;
}

// ---- memory

constexpr int64_t kAlignment = 64;

template <class T>
uintptr_t address_of(const T* pointer) {
  return reinterpret_cast<uintptr_t>(pointer);
}
template <class T>
void set_address(T*& pointer, uintptr_t address) {
  pointer = reinterpret_cast<T*>(address);
}

[[noreturn]] void refuse(const char* reason) { throw std::invalid_argument(reason); }

}  // namespace

// Indices of a step's numbers: tokens, requests, then three for each input.
struct Program::Check {
  const Program& program;

  void tokens(int64_t count) const { expect(count == program.example_[0]); }
  void requests(int64_t count) const { expect(count == program.example_[1]); }
  template <class T>
  void input(const T* pointer) const {
    expect(program.find_input(address_of(pointer)) >= 0);
  }
  template <class T>
  void table(const T* pointer, int64_t stride, int64_t width) const {
    const int64_t input = program.find_input(address_of(pointer));
    expect(input >= 0);
    const int64_t* numbers = program.numbers_of(input);
    expect(address_of(pointer) == uintptr_t(numbers[0]) && stride == numbers[1] &&
           width == numbers[2]);
  }
  static void expect(bool is_so) {
    if (!is_so) refuse("an operation takes other inputs than the step's");
  }
};

struct Program::Link {
  Program& program;

  void tokens(int64_t& count) const { add(count, 0); }
  void requests(int64_t& count) const { add(count, 1); }
  template <class T>
  void input(T*& pointer) const {
    const int64_t input = program.find_input(address_of(pointer));
    add(pointer, place_of(input), address_of(pointer) - program.numbers_of(input)[0]);
  }
  template <class T>
  void table(T*& pointer, int64_t& stride, int64_t& width) const {
    const int64_t place = place_of(program.find_input(address_of(pointer)));
    add(pointer, place);
    add(stride, place + 1);
    add(width, place + 2);
  }
  template <class Field>
  void add(Field& field, int64_t place, int64_t offset = 0) const {
    static_assert(sizeof field == sizeof(int64_t));
    program.links_.push_back({&field, place, offset});
  }
};

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

void Program::record(Call call) {
  std::visit([&](auto& operation) { each_input(operation, Check{*this}); }, call);
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
  note_uses();
  const auto owner_of = [&](const void* pointer) -> const void* {
    const int64_t input = find_input(address_of(pointer));
    return input >= 0 ? static_cast<const void*>(numbers_of(input))
                      : &buffer_of(address_of(pointer));
  };
  calls_ = fuse(calls_, [&](const void* a, const void* b) { return owner_of(a) != owner_of(b); });
  note_uses();
  return assign_offsets(max_tokens);
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
  for (Buffer& buffer : buffers_) buffer.first_call = buffer.last_call = -1;
  for (size_t i = 0; i < calls_.size(); ++i) {
    const auto note = [&](const auto* pointer, Use use) {
      if (find_input(address_of(pointer)) >= 0) {
        if (use != Use::kRead) refuse("an operation writes to an input of the step");
        return;
      }
      Buffer& buffer = buffer_of(address_of(pointer));
      if (buffer.first_call < 0) {
        if (use != Use::kWrite) refuse("an operation reads what no operation has written");
        buffer.first_call = i;
      }
      buffer.last_call = i;
    };
    std::visit([&](auto& operation) { each_tensor(operation, note); }, calls_[i]);
  }
  for (uintptr_t result : results_) {
    Buffer& buffer = buffer_of(result);
    if (buffer.first_call < 0) refuse("no operation writes the result");
    buffer.last_call = calls_.size();
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
    if (buffer.first_call >= 0) needed.push_back(&buffer);
  }
  std::stable_sort(needed.begin(), needed.end(), [](const Buffer* a, const Buffer* b) {
    return a->first_call < b->first_call;
  });
  std::vector<Buffer*> placed;  // by offset
  int64_t total = 0;
  for (Buffer* added : needed) {
    Buffer& buffer = *added;
    for (const Buffer* other : placed) {
      const bool meet =
          buffer.first_call <= other->last_call && other->first_call <= buffer.last_call;
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
  const Link link{*this};
  for (Call& call : calls_) {
    std::visit(
        [&](auto& operation) {
          each_input(operation, link);
          each_tensor(operation, [&](auto*& pointer, Use) {
            if (find_input(address_of(pointer)) >= 0) {
              link.input(pointer);
            } else {
              set_address(pointer, moved(address_of(pointer)));
            }
          });
        },
        call);
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
    named.emplace_back(std::visit([](auto& operation) { return name_of(operation); }, calls_[i]),
                       seconds[i]);
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
  for (const Field& field : links_) {
    const int64_t value = step[field.place] + field.offset;
    std::memcpy(field.at, &value, sizeof value);
  }
  for (Call& call : calls_) {
    const auto start = seconds == nullptr ? Clock::time_point() : Clock::now();
    std::visit([](auto& operation) { operation.run(); }, call);
    if (seconds != nullptr) {
      *seconds++ = std::chrono::duration<double>(Clock::now() - start).count();
    }
  }
}

}  // namespace vllm_lite
