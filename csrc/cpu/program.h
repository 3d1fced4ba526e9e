// A step of a model: its operations, recorded once and run again for any number of tokens.
//
// While a program records, nothing is computed: it notes what each operation is called with. Every
// operation must work on all tokens of the step, and what it reads must be the step's inputs,
// weights, the cache, or what an earlier operation wrote. The temporaries in between get places in
// one block of memory, by when they are needed; several programs may take turns in one.
//
// A step is numbers: its tokens, its requests, then of each input the address, the elements from one
// row to the next, and those of a row. Which input an operation takes is seen by the address that it
// is given while recording; where in the input it begins stays as recorded.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "cpu/experts.h"
#include "cpu/ops.h"
#include "cpu/rank_group.h"
#include "cpu/state.h"

namespace vllm_lite {

// An operation with all that it is called with. What stands beside a product is found when the
// recording ends.
struct EmbeddingCall {
  static constexpr const char* kName = "embedding";
  Embedding p;
  int64_t num_tokens;
  void run() const { embedding(p, num_tokens); }
};
struct RowCall {
  RowOperation p;
  int64_t num_tokens;
  void run() const { vllm_lite::run(p, num_tokens); }
};
struct AttentionCall {
  static constexpr const char* kName = "paged_attention";
  Attention p;
  AttentionBatch batch;
  void run() const { paged_attention(p, batch); }
};
struct LinearCall {
  static constexpr const char* kName = "linear";
  Linear p;
  int64_t num_tokens;
  BesideProduct beside = {};
  void run() const { linear(p, num_tokens, beside); }
};
struct GatedLinearCall {
  static constexpr const char* kName = "gated_linear";
  Linear p;
  int64_t num_tokens;
  BesideProduct beside = {};
  void run() const { gated_linear(p, num_tokens, beside); }
};
struct QuantizedLinearCall {
  static constexpr const char* kName = "quantized_linear";
  QuantizedLinear p;
  int64_t num_tokens;
  BesideProduct beside = {};
  void run() const { quantized_linear(p, num_tokens, beside); }
};
struct ExpertsCall {
  static constexpr const char* kName = "experts_mlp";
  Experts p;
  int64_t num_tokens;
  void run() const { experts(p, num_tokens); }
};
struct CausalConvCall {
  static constexpr const char* kName = "causal_conv1d";
  CausalConv p;
  StateBatch batch;
  void run() const { causal_conv(p, batch); }
};
struct SelectiveScanCall {
  static constexpr const char* kName = "selective_scan";
  SelectiveScan p;
  StateBatch batch;
  void run() const { selective_scan(p, batch); }
};
struct QuantizedLookupCall {
  static constexpr const char* kName = "quantized_lookup";
  QuantizedLookup p;
  int64_t num_tokens;
  void run() const { quantized_lookup(p, num_tokens); }
};

struct AllReduceCall {
  static constexpr const char* kName = "all_reduce";
  AllReduce p;
  int64_t num_tokens;
  void run() const { p.group->all_reduce(p, num_tokens); }
};

using Call = std::variant<EmbeddingCall, RowCall, AttentionCall, LinearCall, GatedLinearCall,
                          QuantizedLinearCall, ExpertsCall, CausalConvCall, SelectiveScanCall,
                          QuantizedLookupCall, AllReduceCall>;

class Program {
 public:
  // Records from now on calls of this step, whose inputs have so many bytes.
  Program(std::vector<int64_t> example, std::vector<int64_t> input_bytes);
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  // Throws std::invalid_argument where the call is not one of all the step's tokens.
  void record(Call call);

  // Ends the recording and joins what can be (fusion.h). `temporaries` are the tensors that were made
  // meanwhile; the results lie in them. Returns the bytes of memory that steps of up to max_tokens
  // tokens need; throws std::invalid_argument where an operation uses what the program cannot follow.
  struct Temporary {
    uintptr_t address;
    int64_t bytes;
  };
  int64_t finish(std::span<const Temporary> temporaries, std::vector<uintptr_t> results,
                 int64_t max_tokens);

  // Gives the program its memory, of as many bytes as finish() said, aligned to 64; the addresses
  // where the results of every step will be.
  std::vector<uintptr_t> place(uintptr_t memory);

  // Runs a step. Throws std::out_of_range, as the operations do, before they write; one thread at
  // a time.
  void run(std::span<const int64_t> step) { run_timed(step, nullptr); }

  // Runs a step as run() does; seconds that each operation took, by its name, in order.
  std::vector<std::pair<std::string, double>> profile(std::span<const int64_t> step);

 private:
  struct Buffer {
    uintptr_t address;
    int64_t bytes;
    int64_t offset = 0;
    int64_t first_call = -1;  // the one that writes it first; -1: none does
    int64_t last_call = -1;
  };
  // A pointer or a number of a call that is set to one of the step's numbers, plus an offset.
  struct Field {
    void* at;
    int64_t place;
    int64_t offset;
  };
  // What an operation takes of the step: compared with the example, made fields of.
  struct Check;
  struct Link;

  // seconds: null, or one for each operation.
  void run_timed(std::span<const int64_t> step, double* seconds);
  Buffer& buffer_of(uintptr_t address);
  void note_uses();
  int64_t assign_offsets(int64_t max_tokens);

  static int64_t place_of(int64_t input) { return 2 + 3 * input; }
  int64_t num_tokens() const { return example_[0]; }
  const int64_t* numbers_of(int64_t input) const { return &example_[place_of(input)]; }
  // The input that has this address; -1: none.
  int64_t find_input(uintptr_t address) const;

  std::vector<int64_t> example_;
  std::vector<int64_t> input_bytes_;
  int64_t max_tokens_ = 0;
  std::vector<uintptr_t> results_;
  std::vector<Call> calls_;
  std::vector<Buffer> buffers_;  // by address
  std::vector<Field> links_;
};

}  // namespace vllm_lite
