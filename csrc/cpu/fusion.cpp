#include "cpu/fusion.h"

#include <utility>

namespace vllm_lite {
namespace {

// Location of a matrix of rows.
struct Rows {
  DType dtype;
  const void* start;
  int64_t stride;

  // Whether each row of another matrix lies in the row of the same index.
  bool hold(DType other_dtype, const void* other, int64_t other_stride) const {
    const int64_t offset = static_cast<const char*>(other) - static_cast<const char*>(start);
    const int64_t row_bytes = stride * bytes_of(dtype);
    return other_dtype == dtype && other_stride == stride && 0 <= offset && offset < row_bytes;
  }
};

struct Ends {
  Rows x;
  Rows out;
  AreApart are_apart;
};

// ---- whether an operation writes a linear layer's input, and can do so block by block

bool comes_before(const Norm& p, const Ends& product) {
  return product.x.hold(p.dtype, p.out, p.out_stride) && product.are_apart(p.x, product.out.start) &&
         (p.residual == nullptr || product.are_apart(p.residual, product.out.start));
}
bool comes_before(const Activation& p, const Ends& product) {
  return product.x.hold(p.dtype, p.out, p.out_stride) && product.are_apart(p.x, product.out.start);
}
bool comes_before(const ScaledAdd& p, const Ends& product) {
  return product.x.hold(p.dtype, p.out, p.out_stride) && product.are_apart(p.x, product.out.start) &&
         (p.y == nullptr || product.are_apart(p.y, product.out.start)) && p.gates == nullptr;
}
bool comes_before(const GatedNorm& p, const Ends& product) {
  return product.x.hold(p.dtype, p.out, p.size) && product.are_apart(p.x, product.out.start) &&
         product.are_apart(p.gate, product.out.start);
}
bool comes_before(const RowMix&, const Ends&) { return false; }
bool comes_before(const RowLevel&, const Ends&) { return false; }
bool comes_before(const Rotary&, const Ends&) { return false; }
bool comes_before(const CacheWrite&, const Ends&) { return false; }
bool comes_before(const Route&, const Ends&) { return false; }

// ---- whether an operation only changes, or copies, a linear layer's output

// Whether it works on them in place.
template <class Operation>
bool changes_rows(const Operation& p, const Ends& product) {
  return p.x == p.out && p.out_stride == p.x_stride &&
         product.out.hold(p.dtype, p.x, p.x_stride);
}

bool comes_after(const Norm& p, const Ends& product) {
  return p.residual == nullptr && changes_rows(p, product);
}
bool comes_after(const Activation& p, const Ends& product) { return changes_rows(p, product); }
bool comes_after(const ScaledAdd& p, const Ends& product) {
  return (p.y == nullptr || product.are_apart(p.y, p.out)) && p.gates == nullptr &&
         changes_rows(p, product);
}
bool comes_after(const Rotary& p, const Ends& product) {
  return product.out.hold(p.dtype, p.heads[0], p.token_strides[0]) &&
         product.out.hold(p.dtype, p.heads[1], p.token_strides[1]);
}
bool comes_after(const CacheWrite& p, const Ends& product) {
  return product.out.hold(p.dtype, p.keys.source, p.keys.token_stride) &&
         product.out.hold(p.dtype, p.values.source, p.values.token_stride);
}
bool comes_after(const Route& p, const Ends& product) {
  return product.out.hold(DType::kFloat32, p.logits, p.logits_stride);
}

bool comes_after(const GatedNorm&, const Ends&) { return false; }
bool comes_after(const RowMix&, const Ends&) { return false; }
bool comes_after(const RowLevel&, const Ends&) { return false; }

const RowOperation* row_operation(const Call& call) {
  const auto* rows = std::get_if<RowCall>(&call);
  return rows == nullptr ? nullptr : &rows->p;
}

bool comes_before(const Call& call, const Ends& product) {
  const RowOperation* operation = row_operation(call);
  return operation && std::visit([&](auto& p) { return comes_before(p, product); }, *operation);
}

bool comes_after(const Call& call, const Ends& product) {
  const RowOperation* operation = row_operation(call);
  return operation && std::visit([&](auto& p) { return comes_after(p, product); }, *operation);
}

// Moves what can be fused with `product` from the end of `before` and from calls from `next` on.
template <class Product>
void join(Product& product, std::vector<Call>& before, const std::vector<Call>& calls,
          size_t& next, const AreApart& are_apart) {
  const auto& p = product.p;
  const Ends ends = {{p.dtype, p.x, p.x_stride}, {p.out_dtype, p.out, p.out_stride}, are_apart};
  if (!are_apart(p.x, p.out)) return;
  if (!before.empty() && comes_before(before.back(), ends)) {
    product.beside.before = *row_operation(before.back());
    before.pop_back();
  }
  for (; next < calls.size() && comes_after(calls[next], ends); ++next) {
    product.beside.after.push_back(*row_operation(calls[next]));
  }
}

}  // namespace

std::vector<Call> fuse(const std::vector<Call>& calls, const AreApart& are_apart) {
  std::vector<Call> fused;
  for (size_t next = 0; next < calls.size();) {
    Call call = calls[next++];
    const auto join_to = [&](auto& operation) {
      if constexpr (requires { operation.beside; }) {
        join(operation, fused, calls, next, are_apart);
      }
    };
    std::visit(join_to, call);
    fused.push_back(std::move(call));
  }
  return fused;
}

}  // namespace vllm_lite
