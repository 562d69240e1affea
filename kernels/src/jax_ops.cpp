// The same kernels for XLA on the CPU, through its foreign function interface, whose ABI is stable.

#include <algorithm>
#include <atomic>
#include <exception>
#include <memory>
#include <thread>

#include "memory.h"
#include "tree.h"
#include "xla/ffi/api/ffi.h"

namespace {

namespace ffi = xla::ffi;
using ffi::AnyBuffer;

// Rows in parallel. The caller works too, and waits only for what others have begun: threads of the pool that are busy or
// wait themselves cannot hold it up. Those that come late find nothing left.
template <class F>
void parallel_for(ffi::ThreadPool& pool, int64_t size, int64_t grain, const F& body) {
  const int64_t chunks = (size + grain - 1) / grain, helpers = std::min(chunks, pool.num_threads()) - 1;
  if (helpers < 1) return size > 0 ? body(0, size) : void();
  struct Shared {
    std::atomic<int64_t> next{0}, done{0};
    std::atomic_flag failed = ATOMIC_FLAG_INIT;
    std::exception_ptr error;
  };
  auto shared = std::make_shared<Shared>();
  auto work = [shared, chunks, size, grain, &body] {
    for (int64_t i; (i = shared->next++) < chunks; ++shared->done) {
      try {
        body(i * grain, std::min(size, (i + 1) * grain));
      } catch (...) {
        if (!shared->failed.test_and_set()) shared->error = std::current_exception();
      }
    }
  };
  for (int64_t i = 0; i < helpers; ++i) pool.Schedule([work] { work(); });
  work();
  while (shared->done < chunks) std::this_thread::yield();
  if (shared->error) std::rethrow_exception(shared->error);
}

struct Attributes {
  int64_t depth, activation;
  bool floored;
};

template <class T>
catnat::Problem<T> problem(const AnyBuffer& scores, const AnyBuffer& constants, int64_t classes, Attributes with) {
  const int64_t nodes = scores.dimensions().back();
  const auto columns = int32_t(constants.dimensions().back());
  return {scores.reinterpret_data<T>(), int64_t(scores.element_count()) / nodes, int32_t(nodes), int32_t(classes),
          constants.reinterpret_data<T>(), columns, columns == 1 ? 0 : 1, catnat::Activation(with.activation),
          with.floored};
}

catnat::Tree tree_of(const AnyBuffer& table, int64_t depth) {
  return catnat::Tree::from(table.reinterpret_data<int32_t>(), table.element_count(), depth);
}

template <class T, class F>
ffi::Error for_rows(ffi::ThreadPool& pool, const catnat::Problem<T>& p, const F& body) {
  const int64_t lanes = catnat::functions<T>().lanes;
  parallel_for(pool, p.rows, catnat::grain_of(lanes, p.classes), [&](int64_t first, int64_t end) {
    body(first, end, catnat::buffer<T>(2 * int64_t(p.classes) * lanes));
  });
  return ffi::Error::Success();
}

template <class F>
ffi::Error for_dtype(const AnyBuffer& scores, const F& body) {
  switch (scores.element_type()) {
    case ffi::F32: return body(float());
    case ffi::F64: return body(double());
    default: return ffi::Error::InvalidArgument("scores must be float32 or float64");
  }
}

ffi::Error log_probs(ffi::ThreadPool pool, AnyBuffer scores, AnyBuffer constants, AnyBuffer table,
                     ffi::Result<AnyBuffer> leaves, int64_t depth, int64_t activation, bool floored) {
  return for_dtype(scores, [&](auto zero) {
    using T = decltype(zero);
    const auto p = problem<T>(scores, constants, leaves->dimensions().back(), {depth, activation, floored});
    const auto tree = tree_of(table, depth);
    return for_rows(pool, p, [&](int64_t first, int64_t end, T* memory) {
      catnat::functions<T>().log_probs(p, tree, leaves->template reinterpret_data<T>(), first, end, memory);
    });
  });
}

ffi::Error backward(ffi::ThreadPool pool, AnyBuffer grad, AnyBuffer scores, AnyBuffer constants, AnyBuffer table,
                    ffi::Result<AnyBuffer> grad_scores, int64_t depth, int64_t activation, bool floored) {
  return for_dtype(scores, [&](auto zero) {
    using T = decltype(zero);
    const auto p = problem<T>(scores, constants, grad.dimensions().back(), {depth, activation, floored});
    const auto tree = tree_of(table, depth);
    return for_rows(pool, p, [&](int64_t first, int64_t end, T* memory) {
      catnat::functions<T>().backward(p, tree, grad.reinterpret_data<T>(),
                                      grad_scores->template reinterpret_data<T>(), first, end, memory);
    });
  });
}

}  // namespace

#define CATNAT_VISIBLE extern "C" __attribute__((visibility("default")))

CATNAT_VISIBLE XLA_FFI_Error* catnat_log_probs(XLA_FFI_CallFrame* frame) {
  static const auto* handler = ffi::Ffi::Bind()
                                   .Ctx<ffi::ThreadPool>()
                                   .Arg<AnyBuffer>()
                                   .Arg<AnyBuffer>()
                                   .Arg<AnyBuffer>()
                                   .Ret<AnyBuffer>()
                                   .Attr<int64_t>("depth")
                                   .Attr<int64_t>("activation")
                                   .Attr<bool>("floored")
                                   .To(log_probs)
                                   .release();
  return handler->Call(frame);
}

CATNAT_VISIBLE XLA_FFI_Error* catnat_log_probs_backward(XLA_FFI_CallFrame* frame) {
  static const auto* handler = ffi::Ffi::Bind()
                                   .Ctx<ffi::ThreadPool>()
                                   .Arg<AnyBuffer>()
                                   .Arg<AnyBuffer>()
                                   .Arg<AnyBuffer>()
                                   .Arg<AnyBuffer>()
                                   .Ret<AnyBuffer>()
                                   .Attr<int64_t>("depth")
                                   .Attr<int64_t>("activation")
                                   .Attr<bool>("floored")
                                   .To(backward)
                                   .release();
  return handler->Call(frame);
}

CATNAT_VISIBLE const char* catnat_instruction_set() { return catnat::library().instruction_set; }
