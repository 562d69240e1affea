// What both frameworks need around the kernels.
#pragma once

#include <cstdint>
#include <memory>
#include <new>

namespace catnat {

// Rows are computed in cache, so a thread is worth its start from this many numbers on.
constexpr int64_t GRAIN = 1 << 14;

struct Free {
  void operator()(void* memory) const { ::operator delete(memory, std::align_val_t(64)); }
};

// Of one thread, kept from call to call.
template <class T>
T* buffer(int64_t size) {
  static thread_local std::unique_ptr<void, Free> memory;
  static thread_local int64_t bytes = 0;
  if (const auto wanted = size * int64_t(sizeof(T)); bytes < wanted) {
    memory.reset();
    bytes = 0;  // before `new`, which may throw: the next call must not take memory that is not there
    memory.reset(::operator new(wanted, std::align_val_t(64)));
    bytes = wanted;
  }
  return static_cast<T*>(memory.get());
}

// How many rows a thread takes at least: a multiple of the lanes.
inline int64_t grain_of(int64_t lanes, int64_t classes) { return (GRAIN / (lanes * classes) + 1) * lanes; }

}  // namespace catnat
