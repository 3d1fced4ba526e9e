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

// How an operation uses a field of its arguments: as the address of a tensor, or as what each step
// sets.
enum class Use { kRead, kWrite, kChange, kTokens, kRequests, kInput, kTable, kStride, kWidth };

struct Field {
  void* at;           // 64 bits
  Use use;
  int64_t value;      // now
  int64_t table = 0;  // of kStride and kWidth: the address of the table
};

// An operation on the tokens or requests of a step.
template <class P, auto kRun>
struct TokensCall {
  int64_t num_tokens;
  P p;
  void run() const { kRun(p, num_tokens); }
};
template <class P, class Batch, auto kRun>
struct BatchCall {
  Batch batch;
  P p;
  void run() const { kRun(p, batch); }
};
// Operations to fuse with a linear layer are found when the recording ends. Its rows may be parts of
// the tokens' rows.
template <class P, auto kRun>
struct ProductCall {
  int64_t num_tokens;
  P p;
  BesideProduct beside = {};
  int64_t rows_of_token = 1;
  void run() const { kRun(p, num_tokens * rows_of_token, beside); }
};

using EmbeddingCall = TokensCall<Embedding, embedding>;
using RowCall = TokensCall<RowOperation, run>;
using AttentionCall = BatchCall<Attention, AttentionBatch, paged_attention>;
using EncoderAttentionCall = BatchCall<Attention, EncoderBatch, encoder_attention>;
using EncoderEmbeddingCall = TokensCall<EncoderEmbedding, encoder_embedding>;
using LinearCall = ProductCall<Linear, linear>;
using GatedLinearCall = ProductCall<Linear, gated_linear>;
using QuantizedLinearCall = ProductCall<QuantizedLinear, quantized_linear>;
using GroupedLinearCall = ProductCall<GroupedLinear, grouped_linear>;
using HeadLinearCall = TokensCall<HeadLinear, head_linear>;
using ExpertsCall = TokensCall<Experts, experts>;
using CausalConvCall = BatchCall<CausalConv, StateBatch, causal_conv>;
using SelectiveScanCall = BatchCall<SelectiveScan, StateBatch, selective_scan>;
using ChannelScanCall = BatchCall<ChannelScan, StateBatch, channel_scan>;
using GatedRecurrenceCall = BatchCall<GatedRecurrence, StateBatch, gated_recurrence>;
using DeltaRuleCall = BatchCall<DeltaRule, StateBatch, delta_rule>;
using QuantizedLookupCall = TokensCall<QuantizedLookup, quantized_lookup>;
using GroupedLookupCall = TokensCall<GroupedLookup, grouped_lookup>;
using AllReduceCall = TokensCall<AllReduce, all_reduce>;
using Call = std::variant<EmbeddingCall, RowCall, AttentionCall, EncoderAttentionCall,
                          EncoderEmbeddingCall, LinearCall, GatedLinearCall, QuantizedLinearCall,
                          HeadLinearCall, ExpertsCall, CausalConvCall, SelectiveScanCall,
                          ChannelScanCall, GatedRecurrenceCall, DeltaRuleCall,
                          QuantizedLookupCall, GroupedLinearCall, GroupedLookupCall, AllReduceCall>;

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
    int64_t first_stage = -1;  // the first stage that writes it; -1: none
    int64_t last_stage = -1;
  };
  // Calls [begin, end), which are one, or a chain (row_chains.h).
  struct Stage {
    size_t begin;
    size_t end;
  };
  // A field that a step sets to one of its numbers, plus an offset.
  struct Link {
    void* at;
    int64_t place;
    int64_t offset;
  };

  // `seconds` is null, or has an entry for each operation.
  void run_timed(std::span<const int64_t> step, double* seconds);
  Buffer& buffer_of(uintptr_t address);
  void divide(bool in_chains);
  void note_uses();
  void note_uses(Call& call, int64_t stage);
  int64_t assign_offsets(int64_t max_tokens);

  static int64_t place_of(int64_t input) { return 2 + 3 * input; }
  int64_t num_tokens() const { return example_[0]; }
  const int64_t* numbers_of(int64_t input) const { return &example_[place_of(input)]; }
  // The input at this address; -1: none.
  int64_t find_input(uintptr_t address) const;
  // The step's number that sets the field; -1: none.
  int64_t place_of(const Field& field) const;

  std::vector<int64_t> example_;
  std::vector<int64_t> input_bytes_;
  int64_t max_tokens_ = 0;
  std::vector<uintptr_t> results_;
  std::vector<Call> calls_;
  std::vector<Stage> stages_;
  std::vector<Buffer> buffers_;  // by address
  std::vector<Link> links_;
};

}  // namespace vllm_lite
