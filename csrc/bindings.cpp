// Python bindings of the CPU kernels: addresses and sizes as integers, so that a call takes under
// a microsecond. vllm_lite/kernels/cpu is the only caller; it has checked shapes and types.
#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "cpu/argmax.h"
#include "cpu/isa.h"
#include "cpu/memory.h"
#include "cpu/ops.h"
#include "cpu/program.h"
#include "cpu/thread_pool.h"

namespace nb = nanobind;

namespace vllm_lite {
namespace {

// A tensor's data_ptr().
using Address = uintptr_t;

template <class T>
T* pointer(Address address) {
  return reinterpret_cast<T*>(address);
}

// ---- operations of a model's step, as data

EmbeddingCall embedding_call(Address ids, Address rows, Address out, int64_t num_tokens,
                             int64_t num_rows, int64_t row_bytes, int64_t first_row) {
  return {{pointer<int64_t>(ids), pointer<void>(rows), pointer<void>(out), num_rows, row_bytes,
           first_row},
          num_tokens};
}

RowCall norm_call(Address x, Address residual, Address weight, Address bias, Address out, int dtype,
                  int weight_dtype, int64_t num_tokens, int64_t num_heads, int64_t size,
                  int64_t x_stride, int64_t x_head_stride, int64_t residual_stride,
                  int64_t out_stride, int64_t out_head_stride, int64_t weight_head_stride,
                  float eps, bool is_centered) {
  return {Norm{static_cast<DType>(dtype), static_cast<DType>(weight_dtype), pointer<void>(x),
               pointer<void>(residual), pointer<void>(weight), pointer<void>(bias),
               pointer<void>(out), num_heads, size, x_stride, x_head_stride, residual_stride,
               out_stride, out_head_stride, weight_head_stride, eps, is_centered},
          num_tokens};
}

RowCall rotary_call(Address positions, Address query, Address key, Address cos_sin_cache,
                    int dtype, int64_t num_tokens, int64_t num_heads, int64_t num_kv_heads,
                       int64_t query_token_stride, int64_t query_head_stride,
                       int64_t key_token_stride, int64_t key_head_stride, int64_t num_positions,
                       int64_t rot_dim, bool is_neox) {
  const Rotary p = {static_cast<DType>(dtype),
                    pointer<int64_t>(positions),
                    {pointer<void>(query), pointer<void>(key)},
                    {num_heads, num_kv_heads},
                    {query_token_stride, key_token_stride},
                    {query_head_stride, key_head_stride},
                    pointer<float>(cos_sin_cache),
                    rot_dim,
                    is_neox};
  return {RotaryRows{p, num_positions}, num_tokens};
}

RowCall activation_call(Address x, Address out, int dtype, int kind, bool is_gated,
                        int64_t num_tokens, int64_t size, int64_t x_stride, int64_t out_stride,
                        float alpha_p, float alpha_n, float beta, float eps) {
  return {Activation{static_cast<DType>(dtype), static_cast<ActivationKind>(kind), is_gated,
                     pointer<void>(x), pointer<void>(out), size, x_stride, out_stride,
                     {alpha_p, alpha_n, beta, eps}},
          num_tokens};
}

RowCall scaled_add_call(Address x, Address y, Address gates, Address out, int dtype,
                        int64_t num_tokens, int64_t size, int64_t x_stride, int64_t y_stride,
                        int64_t out_stride, int64_t gates_stride, float x_scale, float y_scale,
                        float limit) {
  return {ScaledAdd{static_cast<DType>(dtype), pointer<void>(x), pointer<void>(y),
                    pointer<float>(gates), pointer<void>(out), size, x_stride, y_stride,
                    out_stride, gates_stride, x_scale, y_scale, limit},
          num_tokens};
}

RowCall cache_write_call(Address key, Address value, Address key_cache, Address value_cache,
                         Address slots, int dtype, int cache_dtype, int64_t num_tokens,
                         int64_t key_token_stride, int64_t key_head_stride, int64_t key_size,
                         int64_t value_token_stride, int64_t value_head_stride, int64_t value_size,
                         int64_t num_blocks, int64_t key_block_stride, int64_t key_row_stride,
                         int64_t value_block_stride, int64_t value_row_stride,
                         int64_t num_kv_heads, int64_t block_size, bool has_row_scales) {
  const auto write = [&](Address source, int64_t token_stride, int64_t head_stride, int64_t size,
                         Address cache, int64_t block_stride, int64_t row_stride) {
    return CacheWrite{static_cast<DType>(dtype),
                      static_cast<DType>(cache_dtype),
                      pointer<void>(source),
                      token_stride,
                      head_stride,
                      pointer<void>(cache),
                      block_stride,
                      row_stride,
                      pointer<int64_t>(slots),
                      num_kv_heads,
                      block_size,
                      size,
                      has_row_scales};
  };
  return {CacheRows{write(key, key_token_stride, key_head_stride, key_size, key_cache,
                          key_block_stride, key_row_stride),
                    write(value, value_token_stride, value_head_stride, value_size, value_cache,
                          value_block_stride, value_row_stride),
                    num_blocks},
          num_tokens};
}

AttentionCall attention_call(Address query, Address output, Address key_cache, Address value_cache,
                             Address block_table, Address query_start_loc, Address seq_lens,
                             Address alibi_slopes, Address sinks, Address lse, int dtype,
                             int cache_dtype, int64_t num_tokens, int64_t num_heads,
                             int64_t query_token_stride, int64_t query_head_stride,
                             int64_t num_blocks, int64_t num_kv_heads, int64_t block_size,
                             int64_t key_size, int64_t key_block_stride, int64_t key_row_stride,
                             int64_t value_size, int64_t value_block_stride,
                             int64_t value_row_stride, int64_t num_requests,
                             int64_t blocks_per_request, int64_t block_table_stride, float scale,
                             int64_t sliding_window, float soft_cap, bool has_row_scales,
                             bool is_chunked) {
  return {{static_cast<DType>(dtype),
           static_cast<DType>(cache_dtype),
           pointer<void>(query),
           query_token_stride,
           query_head_stride,
           pointer<void>(output),
           pointer<float>(alibi_slopes),
           pointer<float>(sinks),
           pointer<float>(lse),
           {pointer<void>(key_cache), key_block_stride, key_row_stride, key_size},
           {pointer<void>(value_cache), value_block_stride, value_row_stride, value_size},
           num_heads,
           num_kv_heads,
           block_size,
           sliding_window,
           scale,
           soft_cap,
           has_row_scales,
           is_chunked},
          {pointer<int32_t>(block_table), block_table_stride, blocks_per_request,
           pointer<int32_t>(query_start_loc), pointer<int32_t>(seq_lens), num_requests, num_tokens,
           num_blocks}};
}

LinearCall linear_call(Address x, Address packed, Address bias, Address out, int dtype,
                       int out_dtype, int64_t num_tokens, int64_t num_outputs, int64_t num_inputs,
                       int64_t x_stride, int64_t out_stride) {
  return {{static_cast<DType>(dtype), static_cast<DType>(out_dtype), pointer<void>(x), x_stride,
           pointer<void>(packed), pointer<float>(bias), pointer<void>(out), out_stride, num_outputs,
           num_inputs, false},
          num_tokens};
}

GatedLinearCall gated_linear_call(Address x, Address packed, Address bias, Address out, int dtype,
                                  int64_t num_tokens, int64_t num_outputs, int64_t num_inputs,
                                  int64_t x_stride, int64_t out_stride) {
  const LinearCall call = linear_call(x, packed, bias, out, dtype, dtype, num_tokens, num_outputs,
                                      num_inputs, x_stride, out_stride);
  return {call.p, call.num_tokens};
}

QuantizedLinearCall quantized_linear_call(Address x, Address parts, Address bias, Address out,
                                          int dtype, int out_dtype, int64_t num_tokens,
                                          int64_t num_parts, int64_t num_inputs, int64_t x_stride,
                                          int64_t out_stride) {
  return {{static_cast<DType>(dtype), static_cast<DType>(out_dtype), pointer<void>(x), x_stride,
           pointer<QuantizedPart>(parts), num_parts, pointer<float>(bias), pointer<void>(out),
           out_stride, num_inputs},
          num_tokens};
}

HeadLinearCall head_linear_call(Address x, Address weights, Address out, int dtype,
                                int64_t num_tokens, int64_t num_heads, int64_t num_outputs,
                                int64_t num_inputs, int64_t num_copied, int64_t x_token_stride,
                                int64_t x_head_stride) {
  return {{static_cast<DType>(dtype), pointer<void>(x), x_token_stride, x_head_stride,
           pointer<void>(weights), pointer<void>(out), num_heads, num_outputs, num_inputs, num_copied},
          num_tokens};
}

RowCall route_call(Address logits, Address bias, Address weights, Address ids, int64_t num_tokens,
                   int64_t num_experts, int64_t logits_stride, int64_t top_k, int64_t num_groups,
                   int64_t top_groups, int64_t best_of_group, int scores, bool is_renormalized,
                   float epsilon, float scale, float tolerance) {
  return {Route{pointer<float>(logits), pointer<float>(bias), logits_stride, num_experts, top_k,
                num_groups, top_groups, best_of_group, static_cast<ExpertScores>(scores),
                is_renormalized, epsilon, scale, tolerance, pointer<float>(weights),
                pointer<int32_t>(ids)},
          num_tokens};
}

ExpertsCall experts_call(Address x, Address ids, Address weights, Address gate_up, Address down,
                         Address places, Address rows, Address hidden, Address out, int dtype,
                         int out_dtype, int act, float limit, float shift, bool is_quantized,
                         bool has_gates, bool scales_inputs, int64_t num_tokens, int64_t top_k,
                         int64_t first_expert, int64_t num_experts, int64_t size,
                         int64_t intermediate_size, int64_t x_stride) {
  return {{static_cast<DType>(dtype), static_cast<DType>(out_dtype),
           static_cast<ActivationKind>(act), limit, shift, is_quantized, has_gates, scales_inputs,
           pointer<void>(x), x_stride, pointer<int32_t>(ids), pointer<float>(weights),
           pointer<ExpertWeight>(gate_up), pointer<ExpertWeight>(down), pointer<int32_t>(places),
           pointer<void>(rows), pointer<void>(hidden), pointer<void>(out), top_k, first_expert,
           num_experts, size, intermediate_size},
          num_tokens};
}

RowCall gated_norm_call(Address x, Address gate, Address weight, Address out, int dtype, int act,
                        bool norm_first, int64_t num_tokens, int64_t size, int64_t group_size,
                        int64_t x_stride, int64_t gate_stride, float eps) {
  return {GatedNorm{static_cast<DType>(dtype), static_cast<ActivationKind>(act), norm_first,
                    pointer<void>(x), pointer<void>(gate), pointer<void>(weight),
                    pointer<void>(out), size, group_size, x_stride, gate_stride, eps},
          num_tokens};
}

CausalConvCall causal_conv_call(Address x, Address before, Address after, Address weight,
                                Address bias, Address states, Address query_start_loc,
                                Address state_in, Address state_out, Address out, int dtype,
                                int act, int64_t num_tokens, int64_t num_requests,
                                int64_t num_slots, int64_t num_channels, int64_t kernel_size,
                                int64_t x_stride, int64_t before_stride, int64_t after_stride,
                                int64_t slot_stride) {
  return {{static_cast<DType>(dtype), static_cast<ActivationKind>(act < 0 ? 0 : act), act >= 0,
           pointer<void>(x), pointer<void>(before), pointer<void>(after), pointer<float>(weight),
           pointer<float>(bias), pointer<float>(states), pointer<int32_t>(state_out),
           pointer<void>(out), num_channels, kernel_size, x_stride, before_stride, after_stride,
           slot_stride},
          {pointer<int32_t>(query_start_loc), pointer<int32_t>(state_in), num_requests, num_tokens,
           num_slots}};
}

SelectiveScanCall selective_scan_call(Address x, Address dt, Address b, Address c, Address a,
                                      Address d, Address dt_bias, Address states,
                                      Address query_start_loc, Address state_in, Address state_out,
                                      Address out, int dtype, int64_t num_tokens,
                                      int64_t num_requests, int64_t num_slots, int64_t num_heads,
                                      int64_t head_size, int64_t num_groups, int64_t state_size,
                                      int64_t x_stride, int64_t dt_stride, int64_t b_stride,
                                      int64_t c_stride, int64_t slot_stride, float least_step,
                                      float most_step) {
  return {{static_cast<DType>(dtype), pointer<void>(x), pointer<void>(dt), pointer<void>(b),
           pointer<void>(c), pointer<float>(a), pointer<float>(d), pointer<float>(dt_bias),
           pointer<float>(states), pointer<int32_t>(state_out), pointer<void>(out), num_heads,
           head_size, num_groups, state_size, x_stride, dt_stride, b_stride, c_stride, slot_stride,
           least_step, most_step},
          {pointer<int32_t>(query_start_loc), pointer<int32_t>(state_in), num_requests, num_tokens,
           num_slots}};
}

ChannelScanCall channel_scan_call(Address x, Address dt, Address gate, Address b, Address c,
                                  Address a, Address d, Address states, Address query_start_loc,
                                  Address state_in, Address state_out, Address out, int dtype,
                                  int64_t num_tokens, int64_t num_requests, int64_t num_slots,
                                  int64_t num_channels, int64_t state_size, int64_t x_stride,
                                  int64_t dt_stride, int64_t gate_stride, int64_t b_stride,
                                  int64_t c_stride, int64_t slot_stride) {
  return {{static_cast<DType>(dtype), pointer<void>(x), pointer<void>(dt), pointer<void>(gate),
           pointer<void>(b), pointer<void>(c), pointer<float>(a), pointer<float>(d),
           pointer<float>(states), pointer<int32_t>(state_out), pointer<void>(out), num_channels,
           state_size, x_stride, dt_stride, gate_stride, b_stride, c_stride, slot_stride},
          {pointer<int32_t>(query_start_loc), pointer<int32_t>(state_in), num_requests, num_tokens,
           num_slots}};
}

GatedRecurrenceCall gated_recurrence_call(Address x, Address gate, Address decay, Address rate,
                                          Address gate_bias, Address decay_bias, Address states,
                                          Address query_start_loc, Address state_in,
                                          Address state_out, Address out, int dtype,
                                          int64_t num_tokens, int64_t num_requests,
                                          int64_t num_slots, int64_t num_channels,
                                          int64_t x_stride, int64_t gate_stride,
                                          int64_t decay_stride, int64_t slot_stride) {
  return {{static_cast<DType>(dtype), pointer<void>(x), pointer<void>(gate), pointer<void>(decay),
           pointer<float>(rate), pointer<float>(gate_bias), pointer<float>(decay_bias),
           pointer<float>(states), pointer<int32_t>(state_out), pointer<void>(out), num_channels,
           x_stride, gate_stride, decay_stride, slot_stride},
          {pointer<int32_t>(query_start_loc), pointer<int32_t>(state_in), num_requests, num_tokens,
           num_slots}};
}

DeltaRuleCall delta_rule_call(Address q, Address k, Address v, Address decay, Address beta,
                              Address a, Address dt_bias, Address states,
                              Address query_start_loc, Address state_in, Address state_out,
                              Address out, int dtype, int64_t num_tokens, int64_t num_requests,
                              int64_t num_slots, int64_t num_heads, int64_t num_key_heads,
                              int64_t key_size, int64_t value_size, int64_t decays_of_head,
                              int64_t q_stride, int64_t k_stride, int64_t v_stride,
                              int64_t decay_stride, int64_t beta_stride, int64_t slot_stride,
                              float beta_scale) {
  return {{static_cast<DType>(dtype), pointer<void>(q), pointer<void>(k), pointer<void>(v),
           pointer<void>(decay), pointer<void>(beta), pointer<float>(a), pointer<float>(dt_bias),
           pointer<float>(states), pointer<int32_t>(state_out), pointer<void>(out), num_heads,
           num_key_heads, key_size, value_size, decays_of_head, q_stride, k_stride, v_stride,
           decay_stride, beta_stride, slot_stride, beta_scale},
          {pointer<int32_t>(query_start_loc), pointer<int32_t>(state_in), num_requests, num_tokens,
           num_slots}};
}

QuantizedLookupCall quantized_lookup_call(Address part, Address ids, Address out, int out_dtype,
                                          int64_t num_tokens, int64_t num_inputs,
                                          int64_t first_row) {
  return {{*pointer<QuantizedPart>(part), num_inputs, pointer<int64_t>(ids), first_row,
           static_cast<DType>(out_dtype), pointer<void>(out), num_inputs},
          num_tokens};
}

AllReduceCall all_reduce_call(Address group, Address x, Address out, int dtype, int out_dtype,
                              int64_t num_tokens, int64_t size) {
  return {{pointer<RankGroup>(group), static_cast<DType>(dtype), static_cast<DType>(out_dtype),
           pointer<void>(x), pointer<void>(out), size},
          num_tokens};
}

// Defines an operation twice: as a function that runs it and as a method that records it.
template <class CallType, class... Arguments>
void define(nb::module_& m, nb::class_<Program>& program, const char* name,
            CallType (*make)(Arguments...)) {
  m.def(
      name, [make](Arguments... arguments) { make(arguments...).run(); },
      nb::call_guard<nb::gil_scoped_release>());
  program.def(name, [make](Program& self, Arguments... arguments) {
    self.record(make(arguments...));
  });
}

void define_program(nb::class_<Program>& program) {
  using Numbers = std::vector<int64_t>;
  program.def(nb::init<Numbers, Numbers>())
      .def("run", [](Program& self, const Numbers& step) { self.run(step); },
           nb::call_guard<nb::gil_scoped_release>())
      .def("profile", [](Program& self, const Numbers& step) { return self.profile(step); })
      .def("finish",
           [](Program& self, const std::vector<std::pair<Address, int64_t>>& temporaries,
              std::vector<Address> results, int64_t max_tokens) {
             std::vector<Program::Temporary> list;
             for (const auto& [address, bytes] : temporaries) list.push_back({address, bytes});
             return self.finish(list, std::move(results), max_tokens);
           })
      .def("place", &Program::place);
}

void define_group(nb::module_& m) {
  nb::class_<RankGroup>(m, "RankGroup")
      .def(nb::init<int, int, int>())
      .def_prop_ro("address", [](RankGroup& self) { return reinterpret_cast<Address>(&self); })
      .def("all_gather",
           [](RankGroup& self, Address x, Address out, int64_t num_rows, int64_t width,
              int64_t out_width) {
             self.all_gather(pointer<float>(x), pointer<float>(out), num_rows, width, out_width);
           },
           nb::call_guard<nb::gil_scoped_release>())
      .def("fail", &RankGroup::fail)
      .def("failed_rank", &RankGroup::failed_rank)
      .def("slowest_rank", &RankGroup::slowest_rank);
}

// ---- others

void call_apply_token_mask(Address logits, Address rows, Address bits, int64_t num_rows,
                           int64_t num_masks, int64_t logits_stride, int64_t bits_stride,
                           int64_t vocab_size) {
  // A part is some ten thousand logits, a few microseconds.
  constexpr int64_t kWordsPerPart = 512;
  apply_token_mask({pointer<float>(logits), logits_stride, pointer<int64_t>(rows),
                    pointer<uint32_t>(bits), bits_stride, vocab_size, kWordsPerPart},
                   num_rows, num_masks);
}

void call_sample(Address logits, Address inverse_temperature, Address min_p, Address top_k,
                 Address top_p, Address chances, Address tokens, Address largest, int64_t num_rows,
                 int64_t vocab_size, int64_t logits_stride) {
  sample({pointer<float>(logits), logits_stride, vocab_size, pointer<float>(inverse_temperature),
          pointer<float>(min_p), pointer<int64_t>(top_k), pointer<float>(top_p),
          pointer<double>(chances), pointer<int64_t>(tokens), pointer<float>(largest)},
         num_rows);
}

void call_linear_argmax(Address x, Address packed, Address bias, Address tokens, Address largest,
                        int dtype, int64_t num_tokens, int64_t num_outputs, int64_t num_inputs,
                        int64_t x_stride) {
  const LinearCall call = linear_call(x, packed, bias, 0, dtype, dtype, num_tokens, num_outputs,
                                      num_inputs, x_stride, 0);
  linear_argmax(call.p, num_tokens, {pointer<float>(largest), pointer<int64_t>(tokens)});
}

void call_quantized_linear_argmax(Address x, Address parts, Address bias, Address tokens,
                                  Address largest, int dtype, int64_t num_tokens,
                                  int64_t num_parts, int64_t num_inputs, int64_t x_stride) {
  const QuantizedLinearCall call = quantized_linear_call(
      x, parts, bias, 0, dtype, dtype, num_tokens, num_parts, num_inputs, x_stride, 0);
  quantized_linear_argmax(call.p, num_tokens, {pointer<float>(largest), pointer<int64_t>(tokens)});
}

void call_token_logprobs(Address logits, Address rows, Address tokens, Address values, Address ids,
                         Address ranks, int64_t num_rows, int64_t num_entries, int64_t vocab_size,
                         int64_t num_top, int64_t logits_stride, bool is_normalized) {
  token_logprobs({pointer<float>(logits), logits_stride, vocab_size, is_normalized,
                  pointer<int64_t>(rows), pointer<int64_t>(tokens), num_top,
                  pointer<float>(values), pointer<int64_t>(ids), pointer<int64_t>(ranks)},
                 num_rows, num_entries);
}

void call_pack_linear(Address weight, Address packed, int dtype, int64_t num_outputs,
                      int64_t num_inputs, int64_t weight_stride) {
  pack_linear({static_cast<DType>(dtype), pointer<void>(weight), weight_stride,
               pointer<void>(packed), num_outputs, num_inputs});
}

void call_pack_quantized(Address blocks, Address packed, int ggml_type, int64_t num_outputs,
                         int64_t num_inputs, int64_t block_stride) {
  pack_quantized({ggml_type, pointer<uint8_t>(blocks), block_stride, pointer<uint8_t>(packed),
                  num_outputs, num_inputs});
}

void call_dequantize(Address blocks, Address out, int ggml_type, int dtype, int64_t size) {
  dequantize(pointer<uint8_t>(blocks), ggml_type, pointer<void>(out), static_cast<DType>(dtype),
             size);
}

}  // namespace
}  // namespace vllm_lite

NB_MODULE(_cpu, m) {
  using namespace vllm_lite;
  // What lives until the process ends is no leak.
  nb::set_leak_warnings(false);
  const auto no_gil = nb::call_guard<nb::gil_scoped_release>();
  nb::class_<Program> program(m, "Program");
  define_program(program);
  define(m, program, "embedding", embedding_call);
  define(m, program, "norm", norm_call);
  define(m, program, "rotary_embedding", rotary_call);
  define(m, program, "activation", activation_call);
  define(m, program, "scaled_add", scaled_add_call);
  define(m, program, "reshape_and_cache", cache_write_call);
  define(m, program, "paged_attention", attention_call);
  define(m, program, "linear", linear_call);
  define(m, program, "gated_linear", gated_linear_call);
  define(m, program, "quantized_linear", quantized_linear_call);
  define(m, program, "head_linear", head_linear_call);
  define(m, program, "route_topk", route_call);
  define(m, program, "experts_mlp", experts_call);
  define(m, program, "gated_rms_norm", gated_norm_call);
  define(m, program, "causal_conv1d", causal_conv_call);
  define(m, program, "selective_scan", selective_scan_call);
  define(m, program, "channel_scan", channel_scan_call);
  define(m, program, "gated_recurrence", gated_recurrence_call);
  define(m, program, "delta_rule", delta_rule_call);
  define(m, program, "quantized_lookup", quantized_lookup_call);
  define(m, program, "all_reduce", all_reduce_call);
  define_group(m);
  m.def("apply_token_mask", call_apply_token_mask, no_gil);
  m.def("sample", call_sample, no_gil);
  m.def("linear_argmax", call_linear_argmax, no_gil);
  m.def("quantized_linear_argmax", call_quantized_linear_argmax, no_gil);
  m.def("token_logprobs", call_token_logprobs, no_gil);
  m.attr("PANEL") = kPanel;
  m.attr("MAX_EXPERTS") = kMaxExperts;
  m.attr("MAX_CONV_KERNEL") = kMaxConvKernel;
  m.def("packed_bytes", [](int dtype, int64_t num_outputs, int64_t num_inputs) {
    return packed_bytes(static_cast<DType>(dtype), num_outputs, num_inputs);
  });
  m.def("pack_linear", call_pack_linear, no_gil);
  m.def("packed_quantized_bytes", packed_quantized_bytes);
  m.def("pack_quantized", call_pack_quantized, no_gil);
  m.def("dequantize", call_dequantize, no_gil);
  m.def("ggml_block", [](int ggml_type) {
    const GgmlBlock block = ggml_block(ggml_type);
    return nb::make_tuple(block.elements, block.bytes);
  });
  m.def("supported_isas", supported_isas);
  m.def("select_isa", select_isa);
  m.def("selected_isa", selected_isa);
  m.def(
      "read_seconds",
      [](Address data, int64_t num_bytes) { return read_seconds(pointer<void>(data), num_bytes); },
      no_gil);
  m.def("num_threads", num_threads);
  m.def("set_num_threads", set_num_threads, no_gil);
}
