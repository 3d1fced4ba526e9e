// The process's compute threads. The caller takes part in every job; helpers spin for some tens
// of microseconds after a job, then sleep, so an idle pool costs nothing.
#pragma once

#include <cstdint>

namespace vllm_lite {

// Threads that a job may use, the calling one among them.
int num_threads();

// Ends surplus helpers at once; starts missing ones with the next job.
// Throws std::invalid_argument unless 1 <= count <= 1024.
void set_num_threads(int count);

// The default: the processors that this process may run on.
int available_processors();

using RangeFunction = void (*)(void* context, int64_t begin, int64_t end);

// Calls function on disjoint ranges of at most `grain` that cover [0, count), from this thread
// and the helpers; returns when all are done. The function must not throw. Callers do not wait for
// one another: while one has the helpers, the others do their work on their own thread.
void parallel_ranges(int64_t count, int64_t grain, RangeFunction function, void* context);

template <class Body>
void parallel_for(int64_t count, int64_t grain, Body&& body) {
  parallel_ranges(
      count, grain,
      [](void* context, int64_t begin, int64_t end) { (*static_cast<Body*>(context))(begin, end); },
      &body);
}

}  // namespace vllm_lite
