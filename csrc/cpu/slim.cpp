#include "cpu/slim.h"

#include <algorithm>

#include "cpu/isa.h"
#include "cpu/thread_pool.h"

namespace vllm_lite {
namespace {

// Weights of a range: some tens of microseconds.
constexpr int64_t kWeightsPerRange = 64 * 1024;

int64_t num_panels(const PackLinear& p) { return (p.num_outputs + kPanel - 1) / kPanel; }

int64_t panels_per_range(const PackLinear& p) {
  return std::max<int64_t>(1, kWeightsPerRange / (kPanel * p.num_inputs));
}

}  // namespace

int64_t slim_bytes(int64_t num_outputs, int64_t num_inputs, int64_t num_exceptions) {
  const int64_t num_panels = (num_outputs + kPanel - 1) / kPanel;
  // Every list has an end.
  const int64_t list_entries = num_exceptions + num_panels;
  return num_panels * slim_panel_bytes(num_inputs) +
         list_entries * static_cast<int64_t>(sizeof(SlimException));
}

int64_t plan_slim(const PackLinear& p, SlimPlan* plans) {
  const KernelTable& table = kernels();
  parallel_for(num_panels(p), panels_per_range(p), [&](int64_t begin, int64_t end) {
    table.plan_slim(p, plans, begin, end);
  });
  int64_t place = num_panels(p) * slim_panel_bytes(p.num_inputs), total = 0;
  for (int64_t panel = 0; panel < num_panels(p); ++panel) {
    plans[panel].exceptions = place;
    total += plans[panel].num_exceptions;
    place += (plans[panel].num_exceptions + 1) * static_cast<int64_t>(sizeof(SlimException));
  }
  return total;
}

void pack_slim(const PackLinear& p, const SlimPlan* plans) {
  const KernelTable& table = kernels();
  parallel_for(num_panels(p), panels_per_range(p), [&](int64_t begin, int64_t end) {
    table.pack_slim(p, plans, begin, end);
  });
}

}  // namespace vllm_lite
