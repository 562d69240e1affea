// Which of the compiled instruction sets is used.

#include <cstdlib>
#include <cstring>

#include "tree.h"

namespace catnat {

#define CATNAT_DECLARE(set)       \
  namespace set {                 \
  extern const Library compiled;  \
  }

CATNAT_DECLARE(baseline)
#ifdef CATNAT_X86
CATNAT_DECLARE(avx2)
CATNAT_DECLARE(avx512)
#endif

static const Library& choose() {
  const char* wanted = std::getenv("CATNAT_KERNELS");
  const Library* best = &baseline::compiled;
  [[maybe_unused]] const auto offer = [&](const Library& better) {  // from the plainest up
    if (!wanted || std::strcmp(wanted, best->instruction_set) != 0) best = &better;
  };
#ifdef CATNAT_X86
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) offer(avx2::compiled);
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
      __builtin_cpu_supports("avx512bw"))
    offer(avx512::compiled);
#endif
  return *best;
}

const Library& library() {
  static const Library& chosen = choose();
  return chosen;
}

template <>
const Functions<float>& functions<float>() {
  return library().single;
}

template <>
const Functions<double>& functions<double>() {
  return library().twice;
}

}  // namespace catnat
