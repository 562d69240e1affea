// Which of the compiled instruction sets this processor has.

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

const Library& library() {
#ifdef CATNAT_X86
  static const Library& best = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
                                       __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512bw")
                                   ? avx512::compiled
                               : __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") ? avx2::compiled
                                                                                                 : baseline::compiled;
  return best;
#else
  return baseline::compiled;
#endif
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
