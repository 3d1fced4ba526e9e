// Python bindings of the CPU kernels. An operation takes the fields of its struct, in order, as a
// flat list. vllm_lite/kernels/cpu is the only caller; it has checked shapes and types.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <array>
#include <string>
#include <type_traits>
#include <utility>

#include "cpu/argmax.h"
#include "cpu/fields.h"
#include "cpu/isa.h"
#include "cpu/memory.h"
#include "cpu/ops.h"
#include "cpu/program.h"
#include "cpu/suffix.h"
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

// What Python passes for a field: a number; for a pointer, a tensor, an address, or None. A failed
// conversion leaves Python's error set.
struct Argument {
  PyObject* given = nullptr;

  template <class T>
    requires std::is_scalar_v<T>
  operator T() const {
    if constexpr (std::is_pointer_v<T>) {
      return reinterpret_cast<T>(address());
    } else if constexpr (std::is_same_v<T, bool>) {
      return PyObject_IsTrue(given) == 1;
    } else if constexpr (std::is_floating_point_v<T>) {
      return static_cast<T>(PyFloat_AsDouble(given));
    } else {
      return static_cast<T>(PyLong_AsLongLong(given));
    }
  }

  Address address() const {
    if (given == Py_None) return 0;
    if (PyLong_CheckExact(given)) return PyLong_AsUnsignedLongLong(given);
    static PyObject* const data_ptr = PyUnicode_InternFromString("data_ptr");
    const nb::object number = nb::steal(PyObject_CallMethodNoArgs(given, data_ptr));
    return number.is_valid() ? PyLong_AsUnsignedLongLong(number.ptr()) : 0;
  }
};

// The last kLeftOut fields keep their defaults.
template <class Struct, size_t kLeftOut>
Struct struct_of(const nb::args& given) {
  constexpr size_t kFields = num_fields<Struct, Argument>() - kLeftOut;
  if (given.size() != kFields) {
    throw nb::type_error(("takes " + std::to_string(kFields) + " fields").c_str());
  }
  std::array<Argument, kFields> arguments;
  for (size_t i = 0; i < kFields; ++i) arguments[i].given = PyTuple_GET_ITEM(given.ptr(), i);
  Struct made = make_struct<Struct>(arguments.data(), std::make_index_sequence<kFields>());
  if (PyErr_Occurred()) throw nb::python_error();
  return made;
}

// Defines a function that calls run() on a struct.
template <class Struct, size_t kLeftOut = 0>
void define(nb::module_& m, const char* name) {
  m.def(name, [](const nb::args& given) {
    const Struct call = struct_of<Struct, kLeftOut>(given);
    const nb::gil_scoped_release release;
    call.run();
  });
}

// Defines that, and a method that records the struct.
template <class Struct, size_t kLeftOut = 0>
void define(nb::module_& m, nb::class_<Program>& program, const char* name) {
  define<Struct, kLeftOut>(m, name);
  program.def(name, [](Program& self, const nb::args& given) {
    self.record(struct_of<Struct, kLeftOut>(given));
  });
}

// ---- structs with what an operation takes beside its own

template <class P>
struct Rows {
  int64_t num_tokens;
  P p;
  void run() const { vllm_lite::run(p, num_tokens); }
  operator Call() const { return RowCall{num_tokens, p}; }
};

template <class P, auto kRun>
struct Argmax {
  int64_t num_tokens;
  LargestOfRows found;
  P p;
  void run() const { kRun(p, num_tokens, found); }
};

// An operation on some of the rows of logits.
template <class P, auto kRun>
struct SomeRows {
  int64_t num_rows;
  int64_t num_entries;
  P p;
  void run() const { kRun(p, num_rows, num_entries); }
};

template <class P, auto kRun>
struct Pack {
  P p;
  void run() const { kRun(p); }
};

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

// [L] of numpy.
using TokenIds = nb::ndarray<const int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

std::span<const int32_t> span_of(const TokenIds& ids) { return {ids.data(), ids.size()}; }

void define_suffixes(nb::module_& m) {
  m.attr("DRAFT_PAIR") = kPair;
  nb::class_<TextStore>(m, "TextStore")
      .def(nb::init<int64_t, int64_t>())
      .def("add", [](TextStore& self, const TokenIds& ids) { self.add(span_of(ids)); })
      .def("places", &TextStore::places);
  m.def(
      "suffix_drafts",
      [](const TextStore* store, const TokenIds& ids, int64_t most, int64_t longest_match,
         double drafts_per_match, double least_probability) {
        const DraftRule rule{longest_match, drafts_per_match, least_probability};
        return suffix_drafts(store, span_of(ids), most, rule);
      },
      nb::arg("store").none(), nb::arg("token_ids"), nb::arg("most"), nb::arg("longest_match"),
      nb::arg("drafts_per_match"), nb::arg("least_probability"));
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
  define<EmbeddingCall>(m, program, "embedding");
  define<Rows<Norm>>(m, program, "norm");
  define<Rows<Rotary>>(m, program, "rotary_embedding");
  define<Rows<Activation>, 2>(m, program, "activation");
  define<Rows<ScaledAdd>>(m, program, "scaled_add");
  define<Rows<RowMix>>(m, program, "mix_rows");
  define<Rows<RowLevel>>(m, program, "level_rows");
  define<Rows<CacheWrite>>(m, program, "reshape_and_cache");
  define<AttentionCall, 3>(m, program, "paged_attention");
  define<EncoderAttentionCall>(m, program, "encoder_attention");
  define<EncoderEmbeddingCall>(m, program, "encoder_embedding");
  define<LinearCall, 1>(m, program, "linear");
  define<GatedLinearCall, 1>(m, program, "gated_linear");
  define<QuantizedLinearCall>(m, program, "quantized_linear");
  define<GroupedLinearCall>(m, program, "grouped_linear");
  define<HeadLinearCall>(m, program, "head_linear");
  define<Rows<Route>>(m, program, "route_topk");
  define<ExpertsCall>(m, program, "experts_mlp");
  define<Rows<GatedNorm>>(m, program, "gated_rms_norm");
  define<CausalConvCall>(m, program, "causal_conv1d");
  define<SelectiveScanCall>(m, program, "selective_scan");
  define<ChannelScanCall>(m, program, "channel_scan");
  define<GatedRecurrenceCall>(m, program, "gated_recurrence");
  define<DeltaRuleCall>(m, program, "delta_rule");
  define<QuantizedLookupCall>(m, program, "quantized_lookup");
  define<GroupedLookupCall>(m, program, "grouped_lookup");
  define<AllReduceCall>(m, program, "all_reduce");
  define_group(m);
  define_suffixes(m);
  define<SomeRows<SegmentSum, segment_sum>>(m, "segment_sum");
  define<SomeRows<TokenMask, apply_token_mask>>(m, "apply_token_mask");
  define<SomeRows<TokenPenalties, penalize_tokens>>(m, "penalize_tokens");
  define<TokensCall<Sampling, sample>>(m, "sample");
  // Of a linear layer without a result.
  define<Argmax<Linear, linear_argmax>, 4>(m, "linear_argmax");
  define<Argmax<QuantizedLinear, quantized_linear_argmax>, 3>(m, "quantized_linear_argmax");
  define<SomeRows<TokenLogprobs, token_logprobs>>(m, "token_logprobs");
  m.attr("PANEL") = kPanel;
  m.attr("MAX_EXPERTS") = kMaxExperts;
  m.attr("MAX_CONV_KERNEL") = kMaxConvKernel;
  m.def("packed_bytes", [](int dtype, int64_t num_outputs, int64_t num_inputs) {
    return packed_bytes(static_cast<DType>(dtype), num_outputs, num_inputs);
  });
  define<Pack<PackLinear, pack_linear>>(m, "pack_linear");
  m.def("packed_quantized_bytes", packed_quantized_bytes);
  define<Pack<PackQuantized, pack_quantized>>(m, "pack_quantized");
  define<Pack<PackGrouped, pack_grouped>>(m, "pack_grouped");
  define<Pack<UnpackWords, unpack_words>>(m, "unpack_words");
  m.def(
      "dequantize",
      [](Address blocks, Address out, int ggml_type, int dtype, int64_t size) {
        dequantize(pointer<uint8_t>(blocks), ggml_type, pointer<void>(out),
                   static_cast<DType>(dtype), size);
      },
      no_gil);
  m.def("ggml_block", [](int ggml_type) {
    const GgmlBlock block = ggml_block(ggml_type);
    return nb::make_tuple(block.elements, block.bytes);
  });
  m.def("set_ggml_book", [](int ggml_type, Address words) {
    ggml_books[ggml_type] = pointer<const uint32_t>(words);
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
