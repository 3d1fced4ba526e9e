// Structs made of a flat list of arguments, which fill their fields, and those of their fields, in
// order. An argument is of a type that converts to any number or pointer.
#pragma once

#include <cstddef>
#include <utility>

namespace vllm_lite {

// The number of a struct's flat fields.
template <class Struct, class Argument, class... Given>
consteval size_t num_fields() {
  if constexpr (requires { Struct{Given{}..., Argument{}}; }) {
    return num_fields<Struct, Argument, Given..., Argument>();
  } else {
    return sizeof...(Given);
  }
}

template <class Struct, class Argument, size_t... I>
Struct make_struct(const Argument* arguments, std::index_sequence<I...>) {
  return Struct{arguments[I]...};
}

}  // namespace vllm_lite
