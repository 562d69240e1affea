// Compiled once for each instruction set: CATNAT_SET is its name, CATNAT_BYTES the width of its vectors.
//
// There are two ways through a tree. For a table of children, a block of W rows is computed at a time, one row in each
// lane of a vector: sums along paths are then additions of vectors, whatever the tree, and only the tiles of W x W numbers
// that come and go are transposed. A large balanced tree is computed row by row, W nodes of a level at a time: the sums of
// their branches alternate in the level below, so that rows are read and written as they are.
//
// Nothing is inline outside of this namespace: the linker must not mix code of two instruction sets.

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include <limits>
#include <utility>

#include "coefficients.h"
#include "tree.h"

namespace catnat {
namespace CATNAT_SET {
namespace {

template <class T>
struct Lanes;
template <>
struct Lanes<float> {
  using Int = int32_t;
  static constexpr int count = CATNAT_BYTES / 4, mantissa = 23, bias = 127;
};
template <>
struct Lanes<double> {
  using Int = int64_t;
  static constexpr int count = CATNAT_BYTES / 8, mantissa = 52, bias = 1023;
};

template <class T>
constexpr int W = Lanes<T>::count;
template <class T>
using Int = typename Lanes<T>::Int;
template <class T>
using Vec __attribute__((vector_size(CATNAT_BYTES))) = T;
template <class T>
using Ints __attribute__((vector_size(CATNAT_BYTES))) = Int<T>;

// ---- elementary functions ----
//
// Of arguments that occur here only. Comparisons are written so that NaN passes through.

template <class T>
inline Vec<T> fill(T value) {
  return value - Vec<T>{};
}

// The first `count` numbers, and 0 for the others. Masks where there are any: a short copy waits for its own stores.
template <class T>
inline Vec<T> load(const T* from, int64_t count = W<T>) {
  Vec<T> values{};
  if (count == W<T>) {
    __builtin_memcpy(&values, from, CATNAT_BYTES);
    return values;
  }
#if CATNAT_BYTES == 64
  const auto mask = (1u << count) - 1;
  if constexpr (sizeof(T) == 4) return _mm512_maskz_loadu_ps(mask, from);
  else return _mm512_maskz_loadu_pd(mask, from);
#else
  __builtin_memcpy(&values, from, count * sizeof(T));
  return values;
#endif
}

template <class T>
inline void store(T* to, Vec<T> values, int64_t count = W<T>) {
  if (count == W<T>) {
    __builtin_memcpy(to, &values, CATNAT_BYTES);
    return;
  }
#if CATNAT_BYTES == 64
  const auto mask = (1u << count) - 1;
  if constexpr (sizeof(T) == 4) _mm512_mask_storeu_ps(to, mask, values);
  else _mm512_mask_storeu_pd(to, mask, values);
#else
  __builtin_memcpy(to, &values, count * sizeof(T));
#endif
}

// One number of a vector, in memory: the compiler would rebuild a vector in a register for each.
template <class V, class T>
inline void put(V& vector, int lane, T value) {
  __builtin_memcpy(reinterpret_cast<char*>(&vector) + lane * sizeof(T), &value, sizeof(T));
}

// A product that the compiler must not contract with a sum: far out, plain operations round it too, and so do exported ones.
template <class T>
inline Vec<T> rounded(Vec<T> product) {
#if defined(__x86_64__)
  asm("" : "+v"(product));
#elif defined(__aarch64__)
  asm("" : "+w"(product));
#endif
  return product;
}

// The larger and the smaller of two, and `x` where one of them is NaN: one instruction on x86, which the compiler does not
// find.
#if defined(__x86_64__)
#define CATNAT_LIMIT(name, operation)                                                          \
  inline Vec<float> name(Vec<float> limit, Vec<float> x) { return CATNAT_X86(operation##_ps)(limit, x); }   \
  inline Vec<double> name(Vec<double> limit, Vec<double> x) { return CATNAT_X86(operation##_pd)(limit, x); }
#if CATNAT_BYTES == 64
#define CATNAT_X86(name) _mm512_##name
#elif CATNAT_BYTES == 32
#define CATNAT_X86(name) _mm256_##name
#else
#define CATNAT_X86(name) _mm_##name
#endif
CATNAT_LIMIT(larger, max)
CATNAT_LIMIT(smaller, min)
#undef CATNAT_LIMIT
#undef CATNAT_X86
#else
template <class V>
inline V larger(V limit, V x) {
  return limit > x ? limit : x;
}
template <class V>
inline V smaller(V limit, V x) {
  return limit < x ? limit : x;
}
#endif

template <class T>
inline Vec<T> at_least(Vec<T> x, T limit) {
  return larger(fill<T>(limit), x);
}

template <class T>
inline Vec<T> at_most(Vec<T> x, T limit) {
  return smaller(fill<T>(limit), x);
}

template <class T>
inline Vec<T> minus_abs(Vec<T> x) {
  return (Vec<T>)((Ints<T>)x | std::numeric_limits<Int<T>>::min());
}

template <class T, int N>
inline Vec<T> polynomial(Vec<T> x, const T (&coefficients)[N]) {
  Vec<T> sum = fill<T>(coefficients[N - 1]);
#pragma GCC unroll 32
  for (int i = N - 2; i >= 0; --i) sum = sum * x + coefficients[i];
  return sum;
}

#define CATNAT_POLYNOMIAL(function, NAME)                                     \
  inline Vec<float> function(Vec<float> x) { return polynomial<float>(x, NAME##_FLOAT); } \
  inline Vec<double> function(Vec<double> x) { return polynomial<double>(x, NAME##_DOUBLE); }
CATNAT_POLYNOMIAL(log_cos_over_t, LOG_COS)
CATNAT_POLYNOMIAL(log_sinc_over_t, LOG_SINC)
CATNAT_POLYNOMIAL(tan_over_r, TAN)
CATNAT_POLYNOMIAL(sin_over_t, SIN)
CATNAT_POLYNOMIAL(exp_rest, EXP)
#undef CATNAT_POLYNOMIAL

// Adding and subtracting it rounds to an integer, which then stands in the lowest bits of the mantissa.
template <class T>
constexpr T ROUNDER = T(3) * (Int<T>(1) << (Lanes<T>::mantissa - 1));

// exp(x) for x <= 0, subnormal numbers included.
template <class T>
inline Vec<T> exp(Vec<T> x) {
  constexpr bool single = sizeof(T) == 4;
  // ln 2 as a sum, whose first part times any exponent is exact.
  constexpr T high = single ? T(0.693359375) : T(6.93147180369123816490e-01);
  constexpr T low = single ? T(-2.12194440e-4) : T(1.90821492927058770002e-10);
  constexpr T lowest = single ? T(-104) : T(-746);  // below, the result is 0
  constexpr int up = single ? 64 : 128;             // the exponent is kept normal, until the very end
  x = at_least<T>(x, lowest);
  Vec<T> shifted = x * T(1.4426950408889634) + ROUNDER<T>;
  Vec<T> n = shifted - ROUNDER<T>;
  Vec<T> f = (x - n * high) - n * low;
  Vec<T> value = (exp_rest(f) * f + T(1)) * f + T(1);
  Ints<T> exponent = (Ints<T>)shifted - (Ints<T>)fill<T>(ROUNDER<T>) + (Lanes<T>::bias + up);
  return value * (Vec<T>)(exponent << Lanes<T>::mantissa) * (single ? T(0x1p-64) : T(0x1p-128));
}

// log(1 + e) for e in 0 .. 1, to full relative precision.
inline Vec<float> log1p(Vec<float> e) { return e * polynomial<float>(e, LOG1P_FLOAT); }

inline Vec<double> log1p(Vec<double> e) {
  Vec<double> s = e / (e + 2), q = s * s;
  return s * (q * polynomial<double>(q, ATANH_DOUBLE)) + 2 * s;
}

// log(1 + f) for 1 + f in sqrt(1/2) .. sqrt(2).
inline Vec<float> log_near_one(Vec<float> f) { return f * polynomial<float>(f, LOG_FLOAT); }

inline Vec<double> log_near_one(Vec<double> f) {
  Vec<double> s = f / (f + 2), q = s * s;
  return s * (q * polynomial<double>(q, ATANH_SMALL_DOUBLE)) + 2 * s;
}

// log(x) for normal x > 0 that is not near 1: the error is relative to log 2.
template <class T>
inline Vec<T> log(Vec<T> x) {
  constexpr int mantissa = Lanes<T>::mantissa;
  constexpr Int<T> root = sizeof(T) == 4 ? Int<T>(0x3f3504f3) : Int<T>(0x3fe6a09e667f3bcd);  // sqrt(1/2)
  Ints<T> bits = (Ints<T>)x - root;
  Ints<T> exponent = bits >> mantissa;
  Vec<T> m = (Vec<T>)((bits & ((Int<T>(1) << mantissa) - 1)) + root);
  Vec<T> n = __builtin_convertvector(exponent, Vec<T>);
  return n * T(0.6931471805599453) + log_near_one(m - 1);
}

// ---- activations: what a node makes of its score ----

// The sums along the paths to both branches.
template <class T>
struct Branches {
  Vec<T> no, yes;
};

// Where a logit saturates, the cube root of the largest number.
template <class T>
constexpr T LARGEST_LOGIT = sizeof(T) == 4 ? T(6981463658331.559) : T(5.643803094122362e+102);

// The constants of one node, the same in every lane, or of a node of its own in each.
template <class T, int kinds>
struct Constants {
  Vec<T> of[kinds];

  void at(const Problem<T>& p, int64_t node) {
    for (int i = 0; i < kinds; ++i) of[i] = fill<T>(p.constants[i * p.constants_stride + node * p.constants_step]);
  }

  void from(const Problem<T>& p, int64_t node, int64_t count) {  // one node in each lane
    for (int i = 0; i < kinds; ++i) of[i] = load<T>(p.constants + i * p.constants_stride + node, count);
  }

  void at(const Problem<T>& p, int64_t node, int lane) {
    for (int i = 0; i < kinds; ++i) put(of[i], lane, p.constants[i * p.constants_stride + node * p.constants_step]);
  }
};

template <class T>
struct Sigmoid {
  using Node = Constants<T, 1>;
  static constexpr T limit = LARGEST_LOGIT<T>;

  explicit Sigmoid(const Problem<T>&) {}

  static Vec<T> logit(Vec<T> score, const Node& node) { return score + node.of[0]; }

  Branches<T> log_probs(Vec<T> above, Vec<T> score, const Node& node) const {
    Vec<T> x = at_most<T>(at_least<T>(logit(score, node), -limit), limit);
    Vec<T> shared = above - log1p(exp<T>(minus_abs<T>(x)));
    return {shared - at_least<T>(x, T(0)), shared + at_most<T>(x, T(0))};
  }

  Vec<T> backward(Vec<T> score, const Node& node, Vec<T> grad_no, Vec<T> grad_yes) const {
    Vec<T> x = logit(score, node), e = exp<T>(minus_abs<T>(x)), one = fill<T>(1);
    auto positive = x > 0;
    Vec<T> grad = grad_yes * (positive ? e : one) - grad_no * (positive ? one : e);
    grad = grad / (e + 1);
    return minus_abs<T>(x) < -limit ? Vec<T>{} : grad;
  }

  Vec<T> yes(Vec<T> score, const Node& node) const {
    Vec<T> x = logit(score, node), e = exp<T>(minus_abs<T>(x));
    return (x > 0 ? fill<T>(1) : e) / (e + 1);
  }
};

// All from r, the angle to the nearer edge of the band, and t = r^2: the rarer branch has probability sin(r)^2, the other
// one cos(r)^2. Both logarithms are to full relative precision without cancellation: log(cos(r)^2) is t times a
// polynomial, and log(sin(r)^2) is log(t), never near 0, plus one.
template <class T>
struct Natural {
  using Node = Constants<T, 5>;
  T smallest;   // the angle below which a node is flat
  T saturated;  // what the rarer branch loses there

  explicit Natural(const Problem<T>& p) {
    // atan(sqrt(eps)), where the rarer branch has probability eps; or where a second derivative would overflow.
    constexpr bool single = sizeof(T) == 4;
    constexpr T floor = single ? T(3.452669770922512e-4) : T(1.4901161193847655e-8);
    smallest = p.floored ? floor : single ? T(1e-18) : T(1e-150);
    saturated = p.floored ? T(0) : T(1e4);
  }

  struct Place {
    Vec<T> angle;
    Ints<T> upper_half;
  };

  static Place place(Vec<T> score, const Node& node) {
    const auto& [lower, lower_rest, upper, upper_rest, rate] = node.of;
    Vec<T> from_upper = (upper - score) + upper_rest, from_lower = (score - lower) - lower_rest;
    return {smaller(from_upper, from_lower) * rate, from_upper <= from_lower};
  }

  Branches<T> log_probs(Vec<T> above, Vec<T> score, const Node& node) const {
    Place at = place(score, node);
    Vec<T> r = at_least<T>(at.angle, smallest), t = r * r;
    Vec<T> likely = above + t * log_cos_over_t(t), rare = above + (log<T>(t) + t * log_sinc_over_t(t));
    if (saturated != 0) rare = at.angle <= smallest ? rare - saturated : rare;
    return {at.upper_half ? rare : likely, at.upper_half ? likely : rare};
  }

  Vec<T> backward(Vec<T> score, const Node& node, Vec<T> grad_no, Vec<T> grad_yes) const {
    Place at = place(score, node);
    Vec<T> r = at_least<T>(at.angle, smallest), tan = r * tan_over_r(r * r), cot = T(1) / tan;
    // Of the branches: -2 rate tan z and 2 rate cot z, with z the angle from the lower edge.
    Vec<T> grad = grad_yes * (at.upper_half ? tan : cot) - grad_no * (at.upper_half ? cot : tan);
    grad = grad * (2 * node.of[4]);
    return at.angle <= smallest ? Vec<T>{} : grad;
  }

  Vec<T> yes(Vec<T> score, const Node& node) const {
    Place at = place(score, node);
    Vec<T> r = at_least<T>(at.angle, T(0)), t = r * r, rare = t * sin_over_t(t);
    return at.upper_half ? 1 - rare : rare;
  }
};

// ---- tiles: W columns of W rows, from and to memory ----

template <class T, int half, int... lane>
inline void exchange(Vec<T>& a, Vec<T>& b, std::integer_sequence<int, lane...>) {
  constexpr int w = W<T>;
  Vec<T> low = __builtin_shufflevector(a, b, (lane & half ? w + lane - half : lane)...);
  b = __builtin_shufflevector(a, b, (lane & half ? w + lane : lane + half)...);
  a = low;
}

template <class T, int half = 1>
inline void transpose(Vec<T> (&tile)[W<T>]) {
  if constexpr (half < W<T>) {
#pragma GCC unroll 16
    for (int i = 0; i < W<T>; ++i)
      if (!(i & half)) exchange<T, half>(tile[i], tile[i + half], std::make_integer_sequence<int, W<T>>());
    transpose<T, 2 * half>(tile);
  }
}

// The rows of a block. Missing ones are copies of the last: they compute and write the same numbers once more.
template <class T, class Pointer>
struct Rows {
  Pointer row[W<T>];

  Rows(Pointer matrix, int64_t first, int64_t end, int64_t width) {
    for (int lane = 0; lane < W<T>; ++lane) row[lane] = matrix + (first + lane < end ? first + lane : end - 1) * width;
  }

  void load(Vec<T> (&tile)[W<T>], int64_t column, int64_t count) const {
    if (count == W<T>) {
#pragma GCC unroll 16
      for (int lane = 0; lane < W<T>; ++lane) __builtin_memcpy(&tile[lane], row[lane] + column, CATNAT_BYTES);
      return transpose<T>(tile);
    }
    for (int64_t i = 0; i < count; ++i)
      for (int lane = 0; lane < W<T>; ++lane) tile[i][lane] = row[lane][column + i];
  }

  void store(Vec<T> (&tile)[W<T>], int64_t column, int64_t count) const {
    if (count == W<T>) {
      transpose<T>(tile);
#pragma GCC unroll 16
      for (int lane = 0; lane < W<T>; ++lane) __builtin_memcpy(row[lane] + column, &tile[lane], CATNAT_BYTES);
      return;
    }
    for (int64_t i = 0; i < count; ++i)
      for (int lane = 0; lane < W<T>; ++lane) row[lane][column + i] = tile[i][lane];
  }
};

// A range in tiles of W, the last first if `backwards`. Where W does not divide it, the last tile overlaps the one before:
// nothing may depend on what it itself has written. `count` is less than W only if the whole range is.
template <class T, class F>
inline void for_tiles(int64_t first, int64_t end, bool backwards, const F& body) {
  const int64_t size = end - first;
  if (size < W<T>) {
    if (size > 0) body(first, size);
    return;
  }
  const int64_t tiles = (size + W<T> - 1) / W<T>;
  for (int64_t i = 0; i < tiles; ++i) {
    int64_t at = first + (backwards ? tiles - 1 - i : i) * W<T>;
    body(at + W<T> <= end ? at : end - W<T>, int64_t(W<T>));
  }
}

// ---- any tree, by its table of children: W rows at a time, with one vector of sums for every id ----

template <class T, class A>
void log_probs_by_table(const Problem<T>& p, const Tree& tree, T* leaves, int64_t first_row, int64_t end_row,
                        T* buffer) {
  auto* sums = reinterpret_cast<Vec<T>*>(buffer);
  const A activation(p);
  typename A::Node node;
  node.at(p, 0);
  for (int32_t i = 0; i < tree.num_roots; ++i) sums[tree.roots[i]] = Vec<T>{};
  for (int64_t row = first_row; row < end_row; row += W<T>) {
    Rows<T, const T*> scores(p.scores, row, end_row, p.nodes);
    Rows<T, T*> out(leaves, row, end_row, p.classes);
    for_tiles<T>(0, p.nodes, false, [&](int64_t first, int64_t count) {
      Vec<T> tile[W<T>];
      scores.load(tile, first, count);
      for (int64_t j = 0; j < count; ++j) {
        if (p.constants_step) node.at(p, first + j);
        Branches<T> branches = activation.log_probs(sums[first + j], tile[j], node);
        sums[tree.children[2 * (first + j)]] = branches.no;
        sums[tree.children[2 * (first + j) + 1]] = branches.yes;
      }
    });
    for_tiles<T>(0, p.classes, false, [&](int64_t first, int64_t count) {
      Vec<T> tile[W<T>];
      for (int64_t j = 0; j < count; ++j) tile[j] = sums[p.nodes + first + j];
      out.store(tile, first, count);
    });
  }
}

template <class T, class A>
void backward_by_table(const Problem<T>& p, const Tree& tree, const T* grad_leaves, T* grad_scores, int64_t first_row,
                       int64_t end_row, T* buffer) {
  auto* sums = reinterpret_cast<Vec<T>*>(buffer);
  const A activation(p);
  typename A::Node node;
  node.at(p, 0);
  for (int64_t row = first_row; row < end_row; row += W<T>) {
    Rows<T, const T*> scores(p.scores, row, end_row, p.nodes), in(grad_leaves, row, end_row, p.classes);
    Rows<T, T*> out(grad_scores, row, end_row, p.nodes);
    for_tiles<T>(0, p.classes, false, [&](int64_t first, int64_t count) {
      Vec<T> tile[W<T>];
      in.load(tile, first, count);
      for (int64_t j = 0; j < count; ++j) sums[p.nodes + first + j] = tile[j];
    });
    for_tiles<T>(0, p.nodes, true, [&](int64_t first, int64_t count) {
      Vec<T> tile[W<T>];
      scores.load(tile, first, count);
      for (int64_t j = count - 1; j >= 0; --j) {
        Vec<T> no = sums[tree.children[2 * (first + j)]], yes = sums[tree.children[2 * (first + j) + 1]];
        sums[first + j] = no + yes;
        if (p.constants_step) node.at(p, first + j);
        tile[j] = activation.backward(tile[j], node, no, yes);
      }
      out.store(tile, first, count);
    });
  }
}

// ---- a balanced tree of more than W classes, level by level: row by row, with one sum for every heap number ----
//
// The root is 1, the children of i are 2 i and 2 i + 1, and a level is a range. The deepest leaves, from `first_leaf` on,
// are the first classes in their order, those of the level above, from K on, the others.
//
// The nodes above level W, 1 .. W - 1, are one vector, node i in lane i - 1.

// The sums along the paths to the W numbers of level W. The number W + i comes through the ancestor (W + i) / 2^up, and
// leaves it by the branch that the next bit says.
template <class T, int up, int... lane>
inline Vec<T> sums_of_top(const Branches<T>& top, std::integer_sequence<int, lane...> lanes) {
  constexpr int w = W<T>;
  Vec<T> added = __builtin_shufflevector(
      top.no, top.yes, (((w + lane) >> up) - 1 + (((w + lane) >> (up - 1)) & 1) * w)...);
  if constexpr ((w >> up) == 1) return added;
  else return sums_of_top<T, up + 1>(top, lanes) + added;
}

// The sums at both children of every node, from those at level W, which lane i has for W + i: each step is right one level
// further up.
template <class T, int... lane>
inline Branches<T> children_of_top(Vec<T> sums, std::integer_sequence<int, lane...>) {
  constexpr int w = W<T>;
  Vec<T> at{};  // of node i in lane i - 1
  Branches<T> children;
  for (int level = w / 2; level >= 1; level /= 2) {
    children.no = __builtin_shufflevector(at, sums, (2 * lane + 1 < w - 1 ? 2 * lane + 1 : (2 * lane + 2 - w) % w + w)...);
    children.yes = __builtin_shufflevector(at, sums, (2 * lane + 2 < w - 1 ? 2 * lane + 2 : (2 * lane + 3 - w) % w + w)...);
    at = children.no + children.yes;
  }
  return children;
}

template <class T, int... lane>
inline void store_alternating(T* to, Vec<T> even, Vec<T> odd, int64_t count, std::integer_sequence<int, lane...>) {
  constexpr int w = W<T>;
  Vec<T> first = __builtin_shufflevector(even, odd, (lane / 2 + (lane & 1) * w)...);
  Vec<T> second = __builtin_shufflevector(even, odd, (w / 2 + lane / 2 + (lane & 1) * w)...);
  store<T>(to, first, 2 * count < w ? 2 * count : w);
  if (2 * count > w) store<T>(to + w, second, 2 * count - w);
}

template <class T, int... lane>
inline Branches<T> load_alternating(const T* from, int64_t count, std::integer_sequence<int, lane...>) {
  constexpr int w = W<T>;
  Vec<T> first = load<T>(from, 2 * count < w ? 2 * count : w), second{};
  if (2 * count > w) second = load<T>(from + w, 2 * count - w);
  return {__builtin_shufflevector(first, second, (2 * lane)...),
          __builtin_shufflevector(first, second, (2 * lane + 1)...)};
}

template <class T, class A>
void log_probs_by_level(const Problem<T>& p, const Tree& tree, T* leaves, int64_t first_row, int64_t end_row,
                        T* sums) {
  constexpr int w = W<T>;
  constexpr auto lanes = std::make_integer_sequence<int, w>();
  const A activation(p);
  typename A::Node node;
  node.at(p, 0);
  for (int64_t row = first_row; row < end_row; ++row) {
    const T* scores = p.scores + row * p.nodes;
    T* out = leaves + row * p.classes;
    if (p.constants_step) node.from(p, 0, w);
    store<T>(sums + w, sums_of_top<T, 1>(activation.log_probs(Vec<T>{}, load<T>(scores), node), lanes));
    for (int64_t level = w; level < p.classes; level *= 2) {
      const int64_t end = 2 * level < p.classes ? 2 * level : p.classes;
      T* below = 2 * level == tree.first_leaf ? out : sums + 2 * level;
      for_tiles<T>(level, end, false, [&](int64_t heap, int64_t count) {
        if (p.constants_step) node.from(p, heap - 1, count);
        const Branches<T> branches =
            activation.log_probs(load<T>(sums + heap), load<T>(scores + heap - 1, count), node);
        store_alternating<T>(below + 2 * (heap - level), branches.no, branches.yes, count, lanes);
      });
    }
    const int64_t deepest = 2 * int64_t(p.classes) - tree.first_leaf;
    __builtin_memcpy(out + deepest, sums + p.classes, (p.classes - deepest) * sizeof(T));
  }
}

template <class T, class A>
void backward_by_level(const Problem<T>& p, const Tree& tree, const T* grad_leaves, T* grad_scores, int64_t first_row,
                       int64_t end_row, T* sums) {
  constexpr int w = W<T>;
  constexpr auto lanes = std::make_integer_sequence<int, w>();
  const A activation(p);
  typename A::Node node;
  node.at(p, 0);
  for (int64_t row = first_row; row < end_row; ++row) {
    const T *scores = p.scores + row * p.nodes, *in = grad_leaves + row * p.classes;
    T* out = grad_scores + row * p.nodes;
    const int64_t deepest = 2 * int64_t(p.classes) - tree.first_leaf;
    __builtin_memcpy(sums + p.classes, in + deepest, (p.classes - deepest) * sizeof(T));
    for (int64_t level = tree.first_leaf / 2; level >= w; level /= 2) {
      const int64_t end = 2 * level < p.classes ? 2 * level : p.classes;
      const T* below = 2 * level == tree.first_leaf ? in : sums + 2 * level;
      for_tiles<T>(level, end, false, [&](int64_t heap, int64_t count) {
        if (p.constants_step) node.from(p, heap - 1, count);
        const Branches<T> grad = load_alternating<T>(below + 2 * (heap - level), count, lanes);
        store<T>(sums + heap, grad.no + grad.yes, count);
        store<T>(out + heap - 1, activation.backward(load<T>(scores + heap - 1, count), node, grad.no, grad.yes), count);
      });
    }
    const Branches<T> top = children_of_top<T>(load<T>(sums + w), lanes);
    if (p.constants_step) node.from(p, 0, w);
    store<T>(out, activation.backward(load<T>(scores), node, top.no, top.yes), w - 1);
  }
}

template <class T, class A>
void log_probs_with(const Problem<T>& p, const Tree& tree, T* leaves, int64_t first, int64_t end, T* buffer) {
  const auto by = tree.children ? log_probs_by_table<T, A> : log_probs_by_level<T, A>;
  by(p, tree, leaves, first, end, buffer);
}

template <class T, class A>
void backward_with(const Problem<T>& p, const Tree& tree, const T* grad_leaves, T* grad_scores, int64_t first,
                   int64_t end, T* buffer) {
  const auto by = tree.children ? backward_by_table<T, A> : backward_by_level<T, A>;
  by(p, tree, grad_leaves, grad_scores, first, end, buffer);
}

// ---- walks ----

// W draws at a time, each at its own node: by ids, from 0, where there is a table, otherwise by heap numbers, from 1.
template <class T, class A>
void draw_with(const Problem<T>& p, const Tree& tree, const T* uniforms, int64_t* drawn, int64_t first_draw,
               int64_t end_draw) {
  const A activation(p);
  const bool heap = tree.children == nullptr;
  const int64_t start = heap ? 1 : 0, first_leaf = heap ? p.classes : p.nodes;
  typename A::Node node;
  node.at(p, 0);
  for (int64_t draw = first_draw; draw < end_draw; draw += W<T>) {
    const int lanes = end_draw - draw < W<T> ? int(end_draw - draw) : W<T>;
    int64_t at[W<T>];
    const T* row[W<T>];
    for (int lane = 0; lane < lanes; ++lane) {
      at[lane] = start;
      row[lane] = p.scores + (draw + lane) % p.rows * p.nodes - start;
    }
    for (int32_t level = 0; level < tree.depth; ++level) {
      Vec<T> score{}, uniform{};
      for (int lane = 0; lane < lanes; ++lane) {
        if (at[lane] >= first_leaf) continue;
        put(score, lane, row[lane][at[lane]]);
        put(uniform, lane, uniforms[(draw + lane) * tree.depth + level]);
        if (p.constants_step) node.at(p, at[lane] - start, lane);
      }
      // Not `uniform < yes`: uniform numbers can be 0, which would draw the rarest branch. NaN takes the branch no.
      const Ints<T> yes = uniform >= T(1) - activation.yes(score, node);
      for (int lane = 0; lane < lanes; ++lane) {
        if (at[lane] >= first_leaf) continue;
        at[lane] = heap ? 2 * at[lane] - yes[lane] : tree.children[2 * at[lane] - yes[lane]];
      }
    }
    for (int lane = 0; lane < lanes; ++lane) {
      int64_t leaf = at[lane] - (heap ? tree.first_leaf : p.nodes);
      drawn[draw + lane] = leaf < 0 ? leaf + p.classes : leaf;
    }
  }
}

// W paths at a time, each at its own node, from their leaves up: by ids where there is a table, otherwise by heap numbers.
// `body` gets what stands at the nodes, which lanes are still on their way, and which of them take the branch yes. Missing
// paths are copies of the last.
template <class T, class A, bool by_table, class F>
inline void climb(const Problem<T>& p, const Paths& paths, const int64_t* classes, int64_t first, int64_t end,
                  const F& body) {
  typename A::Node node;
  node.at(p, 0);
  int64_t at[W<T>], row[W<T>], place[W<T>];
  for (int lane = 0; lane < W<T>; ++lane) {
    const int64_t path = first + lane < end ? first + lane : end - 1;
    const int64_t leaf = classes[path] + (by_table ? p.nodes : paths.first_leaf);
    at[lane] = by_table || leaf < 2 * int64_t(p.classes) ? leaf : leaf - p.classes;
    row[lane] = path / paths.a_row * p.nodes;
  }
  for (;;) {
    Vec<T> score;
    Ints<T> on, yes;
    bool any = false;
    for (int lane = 0; lane < W<T>; ++lane) {  // without branches, which nobody could predict
      const int64_t edge = by_table ? paths.above[at[lane]] : at[lane];
      const bool going = edge > (by_table ? -1 : 1);
      at[lane] = going ? edge >> 1 : at[lane];
      const int64_t index = going ? at[lane] - !by_table : 0;
      place[lane] = row[lane] + index;
      put(score, lane, p.scores[place[lane]]);
      put(on, lane, -Int<T>(going));
      put(yes, lane, -Int<T>(edge & 1));
      if (p.constants_step) node.at(p, index, lane);
      any |= going;
    }
    if (!any) return;
    body(score, node, place, on, yes);
  }
}

template <class T, class A>
void path_log_probs_with(const Problem<T>& p, const Paths& paths, const int64_t* classes, T* found, int64_t first_path,
                         int64_t end_path) {
  const A activation(p);
  for (int64_t path = first_path; path < end_path; path += W<T>) {
    Vec<T> sum{};
    const auto add = [&](Vec<T> score, const auto& node, const int64_t*, Ints<T> on, Ints<T> yes) {
      const Branches<T> branches = activation.log_probs(sum, score, node);
      sum = on ? (yes ? branches.yes : branches.no) : sum;
    };
    if (paths.above) climb<T, A, true>(p, paths, classes, path, end_path, add);
    else climb<T, A, false>(p, paths, classes, path, end_path, add);
    store<T>(found + path, sum, end_path - path < W<T> ? end_path - path : W<T>);
  }
}

template <class T, class A>
void path_backward_with(const Problem<T>& p, const Paths& paths, const int64_t* classes, const T* grad_found,
                        T* grad_scores, int64_t first_path, int64_t end_path) {
  const A activation(p);
  for (int64_t path = first_path; path < end_path; path += W<T>) {
    const int64_t lanes = end_path - path < W<T> ? end_path - path : W<T>;
    const Vec<T> grad = load<T>(grad_found + path, lanes), zero{};
    const auto add = [&](Vec<T> score, const auto& node, const int64_t* place, Ints<T> on, Ints<T> yes) {
      const Vec<T> added = activation.backward(score, node, yes ? zero : grad, yes ? grad : zero);
      T kept[W<T>];
      store<T>(kept, on ? added : zero);  // where a path has ended, or is a copy, nothing is added to a node
      for (int lane = 0; lane < lanes; ++lane) grad_scores[place[lane]] += kept[lane];
    };
    if (paths.above) climb<T, A, true>(p, paths, classes, path, end_path, add);
    else climb<T, A, false>(p, paths, classes, path, end_path, add);
  }
}

// ---- one function for each activation ----

#define CATNAT_CHOOSE(function, ...)                                                              \
  switch (p.activation) {                                                                         \
    case SIGMOID: return function<T, Sigmoid<T>>(__VA_ARGS__);                                    \
    case NATURAL: return function<T, Natural<T>>(__VA_ARGS__);                                    \
  }

template <class T>
void log_probs(const Problem<T>& p, const Tree& tree, T* leaves, int64_t first, int64_t end, T* buffer) {
  CATNAT_CHOOSE(log_probs_with, p, tree, leaves, first, end, buffer)
}

template <class T>
void backward(const Problem<T>& p, const Tree& tree, const T* grad_leaves, T* grad_scores, int64_t first,
              int64_t end, T* buffer) {
  CATNAT_CHOOSE(backward_with, p, tree, grad_leaves, grad_scores, first, end, buffer)
}

template <class T>
void draw(const Problem<T>& p, const Tree& tree, const T* uniforms, int64_t* drawn, int64_t first, int64_t end) {
  CATNAT_CHOOSE(draw_with, p, tree, uniforms, drawn, first, end)
}

template <class T>
void path_log_probs(const Problem<T>& p, const Paths& paths, const int64_t* classes, T* found, int64_t first,
                    int64_t end) {
  CATNAT_CHOOSE(path_log_probs_with, p, paths, classes, found, first, end)
}

template <class T>
void path_backward(const Problem<T>& p, const Paths& paths, const int64_t* classes, const T* grad_found,
                   T* grad_scores, int64_t first, int64_t end) {
  CATNAT_CHOOSE(path_backward_with, p, paths, classes, grad_found, grad_scores, first, end)
}

#define CATNAT_NAME_(set) #set
#define CATNAT_NAME(set) CATNAT_NAME_(set)

}  // namespace

extern const Library compiled;
const Library compiled = {
    CATNAT_NAME(CATNAT_SET),
    {W<float>, log_probs<float>, backward<float>, draw<float>, path_log_probs<float>, path_backward<float>},
    {W<double>, log_probs<double>, backward<double>, draw<double>, path_log_probs<double>, path_backward<double>},
};

}  // namespace CATNAT_SET
}  // namespace catnat
