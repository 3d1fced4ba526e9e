#include "cpu/program.h"

#include <algorithm>
#include <chrono>
#include <stdexcept>
#include <string>
#include <utility>

#include "cpu/fusion.h"

namespace vllm_lite {
namespace {

using Clock = std::chrono::steady_clock;

enum class Use { kRead, kWrite };

// ---- each operation: the temporaries that it uses, in order, and what it takes of the step

template <class Visit>
void each_temporary(EmbeddingCall& call, Visit&& visit) {
  visit(call.p.out, Use::kWrite);
}
template <class Visit>
void each_input(EmbeddingCall& call, const StepInputs& step, Visit&& visit) {
  visit(call.num_tokens, step.num_tokens);
  visit(call.p.ids, step.ids);
}

template <class Visit>
void each_temporary(Norm& p, Visit&& visit) {
  visit(p.x, Use::kRead);
  if (p.residual != nullptr) visit(p.residual, Use::kRead);
  visit(p.out, Use::kWrite);
}
template <class Visit>
void each_input(Norm&, const StepInputs&, Visit&&) {}

template <class Visit>
void each_temporary(Activation& p, Visit&& visit) {
  visit(p.x, Use::kRead);
  visit(p.out, Use::kWrite);
}
template <class Visit>
void each_input(Activation&, const StepInputs&, Visit&&) {}

template <class Visit>
void each_temporary(ScaledAdd& p, Visit&& visit) {
  visit(p.x, Use::kRead);
  if (p.y != nullptr) visit(p.y, Use::kRead);
  visit(p.out, Use::kWrite);
}
template <class Visit>
void each_input(ScaledAdd&, const StepInputs&, Visit&&) {}

template <class Visit>
void each_temporary(RotaryRows& rotary, Visit&& visit) {
  for (void*& heads : rotary.p.heads) visit(heads, Use::kRead);
}
template <class Visit>
void each_input(RotaryRows& rotary, const StepInputs& step, Visit&& visit) {
  visit(rotary.p.positions, step.positions);
}

template <class Visit>
void each_temporary(CacheRows& cache, Visit&& visit) {
  visit(cache.key.source, Use::kRead);
  visit(cache.value.source, Use::kRead);
}
template <class Visit>
void each_input(CacheRows& cache, const StepInputs& step, Visit&& visit) {
  visit(cache.key.slots, step.slots);
  visit(cache.value.slots, step.slots);
}

template <class Visit>
void each_temporary(RowOperation& operation, Visit&& visit) {
  std::visit([&](auto& p) { each_temporary(p, visit); }, operation);
}
template <class Visit>
void each_input(RowOperation& operation, const StepInputs& step, Visit&& visit) {
  std::visit([&](auto& p) { each_input(p, step, visit); }, operation);
}

template <class Visit>
void each_temporary(RowCall& call, Visit&& visit) {
  each_temporary(call.p, visit);
}
template <class Visit>
void each_input(RowCall& call, const StepInputs& step, Visit&& visit) {
  visit(call.num_tokens, step.num_tokens);
  each_input(call.p, step, visit);
}

template <class Visit>
void each_temporary(AttentionCall& call, Visit&& visit) {
  visit(call.p.query, Use::kRead);
  visit(call.p.output, Use::kWrite);
}
template <class Visit>
void each_input(AttentionCall& call, const StepInputs& step, Visit&& visit) {
  visit(call.batch.num_tokens, step.num_tokens);
  visit(call.batch.block_table, step.batch.block_table);
  visit(call.batch.block_table_stride, step.batch.block_table_stride);
  visit(call.batch.blocks_per_request, step.batch.blocks_per_request);
  visit(call.batch.query_start_loc, step.batch.query_start_loc);
  visit(call.batch.seq_lens, step.batch.seq_lens);
  visit(call.batch.num_requests, step.batch.num_requests);
}

// A product.
template <class Product, class Visit>
  requires requires(Product& call) { call.beside; }
void each_temporary(Product& call, Visit&& visit) {
  if (call.beside.before) each_temporary(*call.beside.before, visit);
  visit(call.p.x, Use::kRead);
  visit(call.p.out, Use::kWrite);
  for (RowOperation& operation : call.beside.after) each_temporary(operation, visit);
}
template <class Product, class Visit>
  requires requires(Product& call) { call.beside; }
void each_input(Product& call, const StepInputs& step, Visit&& visit) {
  visit(call.num_tokens, step.num_tokens);
  if (call.beside.before) each_input(*call.beside.before, step, visit);
  for (RowOperation& operation : call.beside.after) each_input(operation, step, visit);
}

template <class Visit>
void each_temporary(QuantizedLookupCall& call, Visit&& visit) {
  visit(call.p.out, Use::kWrite);
}
template <class Visit>
void each_input(QuantizedLookupCall& call, const StepInputs& step, Visit&& visit) {
  visit(call.num_tokens, step.num_tokens);
  visit(call.p.ids, step.ids);
}

// ---- names

const char* name_of(const Norm& p) { return p.is_centered ? "layer_norm" : "rms_norm"; }
const char* name_of(const Activation& p) { return p.is_gated ? "act_and_mul" : "activation"; }
const char* name_of(const ScaledAdd&) { return "scaled_add"; }
const char* name_of(const RotaryRows&) { return "rotary_embedding"; }
const char* name_of(const CacheRows&) { return "reshape_and_cache"; }

std::string name_of(const RowOperation& operation) {
  return std::visit([](const auto& p) { return std::string(name_of(p)); }, operation);
}

std::string name_of(const RowCall& call) { return name_of(call.p); }

// Of a product: with what stands beside it, in order.
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

// ---- places

constexpr int64_t kAlignment = 64;

template <class T>
uintptr_t address_of(const T* pointer) {
  return reinterpret_cast<uintptr_t>(pointer);
}
template <class T>
void set_address(T*& pointer, uintptr_t address) {
  pointer = reinterpret_cast<T*>(address);
}

}  // namespace

void Program::record(Call call) {
  std::visit(
      [&](auto& operation) {
        each_input(operation, inputs_, [](const auto& given, const auto& expected) {
          if (given != expected) {
            throw std::invalid_argument("an operation takes other inputs than the step's");
          }
        });
      },
      call);
  calls_.push_back(std::move(call));
}

int64_t Program::finish(std::span<const Temporary> temporaries, uintptr_t result,
                        int64_t max_tokens) {
  for (const Temporary& temporary : temporaries) {
    if (temporary.bytes == 0) continue;
    if (temporary.bytes % inputs_.num_tokens != 0) {
      throw std::invalid_argument("a temporary does not hold one row for each token");
    }
    buffers_.push_back({temporary.address, temporary.bytes});
  }
  std::sort(buffers_.begin(), buffers_.end(),
            [](const Buffer& a, const Buffer& b) { return a.address < b.address; });
  result_ = result;
  max_tokens_ = max_tokens;
  note_uses();
  calls_ = fuse(calls_, [&](const void* a, const void* b) {
    return &buffer_of(address_of(a)) != &buffer_of(address_of(b));
  });
  note_uses();
  return assign_offsets(max_tokens);
}

Program::Buffer& Program::buffer_of(uintptr_t address) {
  auto after = std::upper_bound(buffers_.begin(), buffers_.end(), address,
                                [](uintptr_t a, const Buffer& b) { return a < b.address; });
  if (after == buffers_.begin() || address - after[-1].address >= uintptr_t(after[-1].bytes)) {
    throw std::invalid_argument("an operation uses a tensor that was not made in the step");
  }
  return after[-1];
}

void Program::note_uses() {
  for (Buffer& buffer : buffers_) buffer.first_call = buffer.last_call = -1;
  for (size_t i = 0; i < calls_.size(); ++i) {
    const auto note = [&](const auto* pointer, Use use) {
      Buffer& buffer = buffer_of(address_of(pointer));
      if (buffer.first_call < 0) {
        if (use == Use::kRead) {
          throw std::invalid_argument("an operation reads what no operation has written");
        }
        buffer.first_call = i;
      }
      buffer.last_call = i;
    };
    std::visit([&](auto& operation) { each_temporary(operation, note); }, calls_[i]);
  }
  Buffer& result = buffer_of(result_);
  if (result.first_call < 0) throw std::invalid_argument("no operation writes the result");
  result.last_call = calls_.size();
}

// Each buffer, in the order of need, goes to the lowest offset where it meets no other.
int64_t Program::assign_offsets(int64_t max_tokens) {
  const auto size_of = [&](const Buffer& buffer) {
    const int64_t bytes = buffer.bytes / inputs_.num_tokens * max_tokens;
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

uintptr_t Program::place(uintptr_t memory) {
  const auto moved = [&](uintptr_t address) {
    const Buffer& buffer = buffer_of(address);
    return memory + buffer.offset + (address - buffer.address);
  };
  for (Call& call : calls_) {
    std::visit(
        [&](auto& operation) {
          each_temporary(operation, [&](auto*& pointer, Use) {
            set_address(pointer, moved(address_of(pointer)));
          });
        },
        call);
  }
  result_ = moved(result_);
  buffers_.clear();
  return result_;
}

std::vector<std::pair<std::string, double>> Program::profile(const StepInputs& inputs) {
  std::vector<double> seconds(calls_.size());
  run_timed(inputs, seconds.data());
  std::vector<std::pair<std::string, double>> named;
  for (size_t i = 0; i < calls_.size(); ++i) {
    named.emplace_back(std::visit([](auto& operation) { return name_of(operation); }, calls_[i]),
                       seconds[i]);
  }
  return named;
}

void Program::run_timed(const StepInputs& inputs, double* seconds) {
  if (inputs.num_tokens > max_tokens_) {
    throw std::out_of_range("a step of " + std::to_string(inputs.num_tokens) +
                            " tokens is larger than the " + std::to_string(max_tokens_) +
                            " that the program has room for");
  }
  for (Call& call : calls_) {
    const auto start = seconds == nullptr ? Clock::time_point() : Clock::now();
    std::visit(
        [&](auto& operation) {
          each_input(operation, inputs, [](auto& value, const auto& now) { value = now; });
          operation.run();
        },
        call);
    if (seconds != nullptr) {
      *seconds++ = std::chrono::duration<double>(Clock::now() - start).count();
    }
  }
}

}  // namespace vllm_lite
