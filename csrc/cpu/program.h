// A model's step: its operations, recorded once and replayed for any number of tokens.
//
// Recording computes nothing: it stores each operation's arguments. Every
// operation must work on all tokens of the step, and read only the step's inputs,
// weights, the cache, or results of earlier operations. Temporaries are placed in
// one block of memory by their lifetimes; several programs may share one block.
//
// A step is passed as numbers: its tokens, its requests, then each input's address, row stride
// and row size. The address that an operation has while recording tells which input it reads;
// the offset within the input stays as recorded.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "cpu/experts.h"
#include "cpu/head_linear.h"
#include "cpu/ops.h"
#include "cpu/rank_group.h"
#include "cpu/state.h"

namespace vllm_lite {

// An operation with its arguments. Operations to fuse with a linear layer are found when the
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
struct HeadLinearCall {
  static constexpr const char* kName = "head_linear";
  HeadLinear p;
  int64_t num_tokens;
  void run() const { head_linear(p, num_tokens); }
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
struct ChannelScanCall {
  static constexpr const char* kName = "channel_scan";
  ChannelScan p;
  StateBatch batch;
  void run() const { channel_scan(p, batch); }
};
struct GatedRecurrenceCall {
  static constexpr const char* kName = "gated_recurrence";
  GatedRecurrence p;
  StateBatch batch;
  void run() const { gated_recurrence(p, batch); }
};
struct DeltaRuleCall {
  static constexpr const char* kName = "delta_rule";
  DeltaRule p;
  StateBatch batch;
  void run() const { delta_rule(p, batch); }
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
                          QuantizedLinearCall, HeadLinearCall, ExpertsCall, CausalConvCall,
                          SelectiveScanCall, ChannelScanCall, GatedRecurrenceCall, DeltaRuleCall,
                          QuantizedLookupCall, AllReduceCall>;

class Program {
 public:
  // Begins to record calls of an example step, whose inputs have `input_bytes` bytes.
  Program(std::vector<int64_t> example, std::vector<int64_t> input_bytes);
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  // Throws std::invalid_argument unless the call works on all of the step's tokens.
  void record(Call call);

  // Ends the recording and fuses operations (fusion.h). `temporaries` are the tensors allocated
  // meanwhile, which contain the results. Returns the bytes of memory for steps of up to max_tokens
  // tokens; throws std::invalid_argument if an operation uses other memory.
  struct Temporary {
    uintptr_t address;
    int64_t bytes;
  };
  int64_t finish(std::span<const Temporary> temporaries, std::vector<uintptr_t> results,
                 int64_t max_tokens);

  // Gives the program its memory, of as many bytes as finish() returned, aligned to 64; returns the
  // addresses of every step's results.
  std::vector<uintptr_t> place(uintptr_t memory);

  // Runs a step. Throws std::out_of_range, as the operations do, before they write; one thread at
  // a time.
  void run(std::span<const int64_t> step) { run_timed(step, nullptr); }

  // Runs a step as run() does; returns each operation's name and seconds, in order.
  std::vector<std::pair<std::string, double>> profile(std::span<const int64_t> step);

 private:
  struct Buffer {
    uintptr_t address;
    int64_t bytes;
    int64_t offset = 0;
    int64_t first_call = -1;  // the first call that writes it; -1: none
    int64_t last_call = -1;
  };
  // A field of a call that is set to one of the step's numbers, plus an offset.
  struct Field {
    void* at;
    int64_t place;
    int64_t offset;
  };
  // Compares an operation's use of the step with the example and lists its fields to set.
  struct Check;
  struct Link;

  // `seconds` is null, or has an entry for each operation.
  void run_timed(std::span<const int64_t> step, double* seconds);
  Buffer& buffer_of(uintptr_t address);
  void note_uses();
  int64_t assign_offsets(int64_t max_tokens);

  static int64_t place_of(int64_t input) { return 2 + 3 * input; }
  int64_t num_tokens() const { return example_[0]; }
  const int64_t* numbers_of(int64_t input) const { return &example_[place_of(input)]; }
  // The input at this address; -1: none.
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
