// Compiled once for each instruction set: CATNAT_SET is its name, CATNAT_BYTES the width of its vectors.
//
// A block of W rows is computed at a time, one row in each lane of a vector. So the sums along the paths of any tree are
// plain additions of vectors, and no operation crosses lanes but the transposition of tiles of W x W numbers on the way
// in and out. Nothing is inline outside of this namespace: the linker must not mix code of two instruction sets.

#include <cmath>
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

template <class T>
inline Vec<T> at_least(Vec<T> x, T limit) {
  return x < limit ? fill<T>(limit) : x;
}

template <class T>
inline Vec<T> at_most(Vec<T> x, T limit) {
  return x > limit ? fill<T>(limit) : x;
}

template <class T>
inline Vec<T> abs(Vec<T> x) {
  return (Vec<T>)((Ints<T>)x & std::numeric_limits<Int<T>>::max());
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
  Vec<T> value = (exp_rest(f) * (f * f) + f) + T(1);
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
inline Vec<float> log_near_one(Vec<float> f) {
  Vec<float> square = f * f;
  return (square * f * polynomial<float>(f, LOG_FLOAT) - 0.5f * square) + f;
}

inline Vec<double> log_near_one(Vec<double> f) {
  Vec<double> s = f / (f + 2), q = s * s;
  return s * (q * polynomial<double>(q, ATANH_SMALL_DOUBLE)) + 2 * s;
}

// log(x) for normal x > 0.
template <class T>
inline Vec<T> log(Vec<T> x) {
  constexpr int mantissa = Lanes<T>::mantissa;
  constexpr Int<T> root = sizeof(T) == 4 ? Int<T>(0x3f3504f3) : Int<T>(0x3fe6a09e667f3bcd);  // sqrt(1/2)
  Ints<T> bits = (Ints<T>)x - root;
  Ints<T> exponent = bits >> mantissa;
  Vec<T> m = (Vec<T>)((bits & ((Int<T>(1) << mantissa) - 1)) + root);
  Vec<T> n = __builtin_convertvector(exponent, Vec<T>);
  constexpr bool single = sizeof(T) == 4;
  constexpr T high = single ? T(0.693359375) : T(6.93147180369123816490e-01);
  constexpr T low = single ? T(-2.12194440e-4) : T(1.90821492927058770002e-10);
  return (n * low + log_near_one(m - 1)) + n * high;
}

// ---- activations: what a node makes of its score ----

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

  void at(const Problem<T>& p, int64_t node, int lane) {
    for (int i = 0; i < kinds; ++i) of[i][lane] = p.constants[i * p.constants_stride + node * p.constants_step];
  }
};

template <class T>
struct Sigmoid {
  using Node = Constants<T, 2>;
  static constexpr T limit = LARGEST_LOGIT<T>;

  explicit Sigmoid(const Problem<T>&) {}

  static Vec<T> logit(Vec<T> score, const Node& node) {
    const auto& [scale, offset] = node.of;
    return at_most<T>(at_least<T>(score, -limit), limit) * scale + offset;
  }

  Branches<T> log_probs(Vec<T> score, const Node& node) const {
    Vec<T> x = logit(score, node), shared = log1p(exp<T>(-abs<T>(x)));
    Vec<T> up = at_most<T>(at_least<T>(x, T(0)), limit), down = at_least<T>(at_most<T>(x, T(0)), -limit);
    return {-(up + shared), down - shared};
  }

  Vec<T> backward(Vec<T> score, const Node& node, Vec<T> grad_no, Vec<T> grad_yes) const {
    Vec<T> x = logit(score, node), e = exp<T>(-abs<T>(x)), likely = T(1) / (e + 1), rare = e * likely;
    auto positive = x > 0;
    Vec<T> grad = grad_yes * (positive ? rare : likely) - grad_no * (positive ? likely : rare);
    auto flat = (abs<T>(score) > limit) | (abs<T>(x) > limit);
    return flat ? Vec<T>{} : grad * node.of[0];
  }

  Vec<T> yes(Vec<T> score, const Node& node) const {
    Vec<T> x = logit(score, node), e = exp<T>(-abs<T>(x)), likely = T(1) / (e + 1);
    return x > 0 ? likely : e * likely;
  }
};

// All from r, the angle to the nearer edge of the band, and t = r^2: the rarer branch has probability sin(r)^2, the other
// one cos(r)^2. Both logarithms are to full relative precision without cancellation: log(cos(r)^2) is t times a
// polynomial, and log(sin(r)^2) is log(t), never near 0, plus one.
template <class T, bool reflects>
struct Natural {
  using Node = Constants<T, 7>;
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
    Ints<T> turned;  // where the fold has changed the sign of the derivative
  };

  static Place place(Vec<T> score, const Node& node) {
    const auto& [lower, lower_rest, upper, upper_rest, centre, rate, period] = node.of;
    Ints<T> turned{};
    if constexpr (reflects) {
      const Vec<T> limit = period * T(1 << 18);  // further out a float no longer resolves the band
      score = score < -limit ? -limit : score > limit ? limit : score;
      Vec<T> turns = ((score - centre) / period + ROUNDER<T>) - ROUNDER<T>;
      score = score - turns * period;
      auto above = score > upper, under = score < lower;
      score = above ? 2 * upper - score : under ? 2 * lower - score : score;
      turned = above | under;
    }
    Vec<T> from_upper = (upper - score) + upper_rest, from_lower = (score - lower) - lower_rest;
    Ints<T> upper_half = from_upper <= from_lower;
    return {(upper_half ? from_upper : from_lower) * rate, upper_half, turned};
  }

  Branches<T> log_probs(Vec<T> score, const Node& node) const {
    Place at = place(score, node);
    Vec<T> r = at_least<T>(at.angle, smallest), t = r * r;
    Vec<T> likely = t * log_cos_over_t(t), rare = log<T>(t) + t * log_sinc_over_t(t);
    rare = at.angle <= smallest ? rare - saturated : rare;
    return {at.upper_half ? rare : likely, at.upper_half ? likely : rare};
  }

  Vec<T> backward(Vec<T> score, const Node& node, Vec<T> grad_no, Vec<T> grad_yes) const {
    Place at = place(score, node);
    Vec<T> r = at_least<T>(at.angle, smallest), tan = r * tan_over_r(r * r), cot = T(1) / tan;
    // Of the branches: -2 rate tan z and 2 rate cot z, with z the angle from the lower edge.
    Vec<T> grad = at.upper_half ? grad_yes * tan - grad_no * cot : grad_yes * cot - grad_no * tan;
    grad = grad * (2 * node.of[5]);
    if constexpr (reflects) grad = at.turned ? -grad : grad;
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

  Rows(Pointer first, int64_t block, int64_t rows, int64_t width) {
    for (int lane = 0; lane < W<T>; ++lane) {
      int64_t index = block * W<T> + lane;
      row[lane] = first + (index < rows ? index : rows - 1) * width;
    }
  }

  void load(Vec<T> (&tile)[W<T>], int64_t column) const {
#pragma GCC unroll 16
    for (int lane = 0; lane < W<T>; ++lane) __builtin_memcpy(&tile[lane], row[lane] + column, CATNAT_BYTES);
    transpose<T>(tile);
  }

  void load(Vec<T> (&tile)[W<T>], int64_t column, int64_t count) const {
    if (count == W<T>) return load(tile, column);
    for (int64_t i = 0; i < count; ++i)
      for (int lane = 0; lane < W<T>; ++lane) tile[i][lane] = row[lane][column + i];
  }

  void store(Vec<T> (&tile)[W<T>], int64_t column) const {
    transpose<T>(tile);
#pragma GCC unroll 16
    for (int lane = 0; lane < W<T>; ++lane) __builtin_memcpy(row[lane] + column, &tile[lane], CATNAT_BYTES);
  }

  void store(Vec<T> (&tile)[W<T>], int64_t column, int64_t count) const {
    if (count == W<T>) return store(tile, column);
    for (int64_t i = 0; i < count; ++i)
      for (int lane = 0; lane < W<T>; ++lane) row[lane][column + i] = tile[i][lane];
  }
};

// A range in tiles of W: where it does not divide, the last tile overlaps the one before. What is done twice must not
// mind it. `count` is less than W only if the whole range is.
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

// ---- sums down and up the tree ----

template <class T, class A>
void log_probs_with(const Problem<T>& p, const Schedule& plan, T* leaves, int64_t first_block, int64_t end_block,
                    T* buffer) {
  auto* sums = reinterpret_cast<Vec<T>*>(buffer);
  const A activation(p);
  typename A::Node node;
  node.at(p, 0);
  for (int32_t i = 0; i < plan.num_roots; ++i) sums[plan.roots[i]] = Vec<T>{};
  for (int64_t block = first_block; block < end_block; ++block) {
    Rows<T, const T*> scores(p.scores, block, p.rows, p.nodes);
    Rows<T, T*> out(leaves, block, p.rows, p.classes);
    for (int32_t i = 0; i < plan.num_runs; ++i) {
      const Run& run = plan.runs[i];
      for_tiles<T>(run.first_node, run.end_node, false, [&](int64_t first, int64_t count) {
        Vec<T> tile[W<T>];
        scores.load(tile, first, count);
        for (int64_t j = 0; j < count; ++j) {
          const Slots& slots = plan.slots[first + j];
          if (p.constants_step) node.at(p, first + j);
          Branches<T> branches = activation.log_probs(tile[j], node);
          Vec<T> above = sums[slots.above];
          sums[slots.no] = above + branches.no;
          sums[slots.yes] = above + branches.yes;
        }
      });
      const Vec<T>* reached = sums + run.first_slot - run.first_class;
      for_tiles<T>(run.first_class, run.end_class, false, [&](int64_t first, int64_t count) {
        Vec<T> tile[W<T>];
        for (int64_t j = 0; j < count; ++j) tile[j] = reached[first + j];
        out.store(tile, first, count);
      });
    }
  }
}

template <class T, class A>
void backward_with(const Problem<T>& p, const Schedule& plan, const T* grad_leaves, T* grad_scores,
                   int64_t first_block, int64_t end_block, T* buffer) {
  auto* sums = reinterpret_cast<Vec<T>*>(buffer);
  const A activation(p);
  typename A::Node node;
  node.at(p, 0);
  for (int64_t block = first_block; block < end_block; ++block) {
    Rows<T, const T*> scores(p.scores, block, p.rows, p.nodes), in(grad_leaves, block, p.rows, p.classes);
    Rows<T, T*> out(grad_scores, block, p.rows, p.nodes);
    for (int32_t i = plan.num_runs - 1; i >= 0; --i) {
      const Run& run = plan.runs[i];
      Vec<T>* reached = sums + run.first_slot - run.first_class;
      for_tiles<T>(run.first_class, run.end_class, false, [&](int64_t first, int64_t count) {
        Vec<T> tile[W<T>];
        in.load(tile, first, count);
        for (int64_t j = 0; j < count; ++j) reached[first + j] = tile[j];
      });
      for_tiles<T>(run.first_node, run.end_node, true, [&](int64_t first, int64_t count) {
        Vec<T> tile[W<T>];
        scores.load(tile, first, count);
        for (int64_t j = count - 1; j >= 0; --j) {
          const Slots& slots = plan.slots[first + j];
          Vec<T> no = sums[slots.no], yes = sums[slots.yes];
          sums[slots.above] = no + yes;
          if (p.constants_step) node.at(p, first + j);
          tile[j] = activation.backward(tile[j], node, no, yes);
        }
        out.store(tile, first, count);
      });
    }
  }
}

// ---- walks ----

// W draws at a time, each at its own node. A balanced tree is walked by heap numbers, from 1; any other by ids, from 0.
template <class T, class A>
void draw_with(const Problem<T>& p, const Walk& walk, const T* uniforms, int64_t* drawn, int64_t first_draw,
               int64_t end_draw) {
  const A activation(p);
  const bool heap = walk.children == nullptr;
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
    for (int32_t level = 0; level < walk.depth; ++level) {
      Vec<T> score{}, uniform{};
      for (int lane = 0; lane < lanes; ++lane) {
        if (at[lane] >= first_leaf) continue;
        score[lane] = row[lane][at[lane]];
        uniform[lane] = uniforms[(draw + lane) * walk.depth + level];
        if (p.constants_step) node.at(p, at[lane] - start, lane);
      }
      const Ints<T> yes = uniform < activation.yes(score, node);  // NaN takes the branch no
      for (int lane = 0; lane < lanes; ++lane) {
        if (at[lane] >= first_leaf) continue;
        at[lane] = heap ? 2 * at[lane] - yes[lane] : walk.children[2 * at[lane] - yes[lane]];
      }
    }
    for (int lane = 0; lane < lanes; ++lane) {
      int64_t leaf = at[lane] - (heap ? walk.first_leaf : p.nodes);
      drawn[draw + lane] = leaf < 0 ? leaf + p.classes : leaf;
    }
  }
}

// ---- one function for each activation ----

#define CATNAT_CHOOSE(function, ...)                                                              \
  switch (p.activation) {                                                                         \
    case SIGMOID: return function<T, Sigmoid<T>>(__VA_ARGS__);                                    \
    case CLAMPED: return function<T, Natural<T, false>>(__VA_ARGS__);                             \
    case REFLECTED: return function<T, Natural<T, true>>(__VA_ARGS__);                            \
  }

template <class T>
void log_probs(const Problem<T>& p, const Schedule& plan, T* leaves, int64_t first, int64_t end, T* buffer) {
  CATNAT_CHOOSE(log_probs_with, p, plan, leaves, first, end, buffer)
}

template <class T>
void backward(const Problem<T>& p, const Schedule& plan, const T* grad_leaves, T* grad_scores, int64_t first,
              int64_t end, T* buffer) {
  CATNAT_CHOOSE(backward_with, p, plan, grad_leaves, grad_scores, first, end, buffer)
}

template <class T>
void draw(const Problem<T>& p, const Walk& walk, const T* uniforms, int64_t* drawn, int64_t first, int64_t end) {
  CATNAT_CHOOSE(draw_with, p, walk, uniforms, drawn, first, end)
}

#define CATNAT_NAME_(set) #set
#define CATNAT_NAME(set) CATNAT_NAME_(set)

}  // namespace

extern const Library compiled;
const Library compiled = {
    CATNAT_NAME(CATNAT_SET),
    {W<float>, log_probs<float>, backward<float>, draw<float>},
    {W<double>, log_probs<double>, backward<double>, draw<double>},
};

}  // namespace CATNAT_SET
}  // namespace catnat
