// The operators, through PyTorch's stable ABI: one binary for every release from 2.10 on.

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <algorithm>

#include "memory.h"
#include "tree.h"

namespace {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

// Directly, because the dispatcher would look an allocation up by its name.
Tensor empty(const Tensor& like, int64_t rows, int64_t columns) {
  const int64_t sizes[] = {rows, columns}, strides[] = {columns, 1};
  int32_t dtype = 0;
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_dtype(like.get(), &dtype));
  AtenTensorHandle made = nullptr;
  TORCH_ERROR_CODE_CHECK(
      aoti_torch_empty_strided(2, sizes, strides, dtype, aoti_torch_device_type_cpu(), 0, &made));
  return Tensor(made);
}

using catnat::buffer;
using catnat::GRAIN;

void check(const Tensor& scores, const Tensor& constants, const Tensor& table, int64_t activation) {
  STD_TORCH_CHECK(scores.dim() == 2 && scores.is_contiguous(), "scores must be a contiguous matrix");
  STD_TORCH_CHECK(
      constants.dim() == 2 && constants.is_contiguous() && constants.scalar_type() == scores.scalar_type() &&
          (constants.size(1) == 1 || constants.size(1) == scores.size(1)) &&
          constants.size(0) == (activation == catnat::SIGMOID ? 1 : 5),
      "constants must be a contiguous matrix in the dtype of the scores, one column for all nodes or one for each");
  STD_TORCH_CHECK(table.scalar_type() == ScalarType::Int && table.is_contiguous(), "tables must be contiguous int32");
  STD_TORCH_CHECK(0 <= activation && activation <= catnat::NATURAL, "there is no such activation");
}

template <class T>
catnat::Problem<T> problem(const Tensor& scores, const Tensor& constants, int64_t classes, int64_t activation,
                           bool floored) {
  const auto columns = int32_t(constants.size(1));
  return {
      static_cast<const T*>(scores.const_data_ptr()),
      scores.size(0),
      int32_t(scores.size(1)),
      int32_t(classes),
      static_cast<const T*>(constants.const_data_ptr()),
      columns,
      columns == 1 ? 0 : 1,
      catnat::Activation(activation),
      floored,
  };
}

template <class F>
void for_dtype(const Tensor& scores, const F& body) {
  switch (scores.scalar_type()) {
    case ScalarType::Float: return body(float());
    case ScalarType::Double: return body(double());
    default: STD_TORCH_CHECK(false, "scores must be float32 or float64");
  }
}

catnat::Tree tree_of(const Tensor& table, int64_t depth) {
  return catnat::Tree::from(static_cast<const int32_t*>(table.const_data_ptr()), table.numel(), depth);
}

// Rows in parallel, each thread with its own buffer.
template <class T, class F>
void for_rows(const catnat::Problem<T>& p, const F& body) {
  const int64_t lanes = catnat::functions<T>().lanes;
  auto run = [&](int64_t first, int64_t end) { body(first, end, buffer<T>(2 * int64_t(p.classes) * lanes)); };
  const int64_t grain = catnat::grain_of(lanes, p.classes);
  if (p.rows <= grain) return p.rows > 0 ? run(0, p.rows) : void();
  torch::stable::parallel_for(0, p.rows, grain, run);
}

Tensor log_probs(const Tensor& scores, const Tensor& constants, const Tensor& table, int64_t classes, int64_t depth,
                 int64_t activation, bool floored) {
  check(scores, constants, table, activation);
  Tensor leaves = empty(scores, scores.size(0), classes);
  const auto tree = tree_of(table, depth);
  for_dtype(scores, [&](auto zero) {
    using T = decltype(zero);
    const auto p = problem<T>(scores, constants, classes, activation, floored);
    auto* out = static_cast<T*>(leaves.mutable_data_ptr());
    for_rows(p, [&](int64_t first, int64_t end, T* memory) {
      catnat::functions<T>().log_probs(p, tree, out, first, end, memory);
    });
  });
  return leaves;
}

Tensor log_probs_backward(const Tensor& grad, const Tensor& scores, const Tensor& constants, const Tensor& table,
                          int64_t depth, int64_t activation, bool floored) {
  check(scores, constants, table, activation);
  STD_TORCH_CHECK(
      grad.dim() == 2 && grad.is_contiguous() && grad.size(0) == scores.size(0) &&
          grad.scalar_type() == scores.scalar_type(),
      "grad must be a contiguous matrix with the rows and the dtype of the scores");
  Tensor grad_scores = empty(scores, scores.size(0), scores.size(1));
  const auto tree = tree_of(table, depth);
  for_dtype(scores, [&](auto zero) {
    using T = decltype(zero);
    const auto p = problem<T>(scores, constants, grad.size(1), activation, floored);
    const auto* in = static_cast<const T*>(grad.const_data_ptr());
    auto* out = static_cast<T*>(grad_scores.mutable_data_ptr());
    for_rows(p, [&](int64_t first, int64_t end, T* memory) {
      catnat::functions<T>().backward(p, tree, in, out, first, end, memory);
    });
  });
  return grad_scores;
}

// One draw for each row of `uniforms`, which has a column for every level: draw i is from row i % rows of the scores.
void draw(const Tensor& scores, const Tensor& constants, const Tensor& table, const Tensor& uniforms,
          int64_t activation, Tensor drawn) {
  check(scores, constants, table, activation);
  STD_TORCH_CHECK(uniforms.dim() == 2 && uniforms.is_contiguous() && uniforms.scalar_type() == scores.scalar_type() &&
                      drawn.is_contiguous() && drawn.scalar_type() == ScalarType::Long &&
                      drawn.numel() == uniforms.size(0),
                  "uniforms must be a contiguous matrix in the dtype of the scores, drawn one int64 for each row of it");
  const auto tree = tree_of(table, uniforms.size(1));
  for_dtype(scores, [&](auto zero) {
    using T = decltype(zero);
    const auto p = problem<T>(scores, constants, scores.size(1) + 1, activation, false);
    const auto* in = static_cast<const T*>(uniforms.const_data_ptr());
    auto* out = static_cast<int64_t*>(drawn.mutable_data_ptr());
    auto run = [&](int64_t first, int64_t end) { catnat::functions<T>().draw(p, tree, in, out, first, end); };
    const int64_t grain = GRAIN / 4 / (tree.depth + 1) + 1;
    if (drawn.numel() <= grain) return run(0, drawn.numel());
    torch::stable::parallel_for(0, drawn.numel(), grain, run);
  });
}

// Of scores (rows, nodes) and classes (rows, paths a row).
catnat::Paths paths_of(const Tensor& scores, const Tensor& above, const Tensor& classes, int64_t depth) {
  STD_TORCH_CHECK(above.scalar_type() == ScalarType::Int && above.is_contiguous(), "tables must be contiguous int32");
  STD_TORCH_CHECK(classes.dim() == 2 && classes.is_contiguous() && classes.scalar_type() == ScalarType::Long &&
                      classes.size(0) == scores.size(0),
                  "classes must be a contiguous int64 matrix with the rows of the scores");
  const int64_t count = above.numel() ? above.numel() - scores.size(1) : scores.size(1) + 1;
  const auto* of = static_cast<const int64_t*>(classes.const_data_ptr());
  bool inside = true;
  for (int64_t i = 0; i < classes.numel(); ++i) inside &= 0 <= of[i] && of[i] < count;
  STD_TORCH_CHECK(inside, "a class is not one of the tree's 0 .. ", count - 1);
  const auto* table = above.numel() ? static_cast<const int32_t*>(above.const_data_ptr()) : nullptr;
  return {classes.size(1), table, catnat::first_leaf_at(depth)};
}

// Rows in parallel; one costs about so many numbers.
template <class F>
void for_paths(int64_t rows, int64_t cost, const F& body) {
  const int64_t grain = GRAIN / cost + 1;
  if (rows <= grain) return body(0, rows);
  torch::stable::parallel_for(0, rows, grain, body);
}

Tensor path_log_probs(const Tensor& scores, const Tensor& constants, const Tensor& above, const Tensor& classes,
                      int64_t depth, int64_t activation, bool floored) {
  check(scores, constants, above, activation);
  const auto paths = paths_of(scores, above, classes, depth);
  Tensor found = empty(scores, classes.size(0), classes.size(1));
  for_dtype(scores, [&](auto zero) {
    using T = decltype(zero);
    const auto p = problem<T>(scores, constants, scores.size(1) + 1, activation, floored);
    const auto* of = static_cast<const int64_t*>(classes.const_data_ptr());
    auto* out = static_cast<T*>(found.mutable_data_ptr());
    for_paths(p.rows, 4 * (depth + 1) * (paths.a_row + 1), [&](int64_t first, int64_t end) {
      catnat::functions<T>().path_log_probs(p, paths, of, out, first * paths.a_row, end * paths.a_row);
    });
  });
  return found;
}

Tensor path_log_probs_backward(const Tensor& grad, const Tensor& scores, const Tensor& constants, const Tensor& above,
                               const Tensor& classes, int64_t depth, int64_t activation, bool floored) {
  check(scores, constants, above, activation);
  const auto paths = paths_of(scores, above, classes, depth);
  STD_TORCH_CHECK(grad.is_contiguous() && grad.numel() == classes.numel() && grad.scalar_type() == scores.scalar_type(),
                  "grad must be contiguous, with a number in the dtype of the scores for every class");
  Tensor grad_scores = empty(scores, scores.size(0), scores.size(1));
  for_dtype(scores, [&](auto zero) {
    using T = decltype(zero);
    const auto p = problem<T>(scores, constants, scores.size(1) + 1, activation, floored);
    const auto* of = static_cast<const int64_t*>(classes.const_data_ptr());
    const auto* in = static_cast<const T*>(grad.const_data_ptr());
    auto* out = static_cast<T*>(grad_scores.mutable_data_ptr());
    for_paths(p.rows, p.nodes + 4 * (depth + 1) * (paths.a_row + 1), [&](int64_t first, int64_t end) {
      std::fill(out + first * p.nodes, out + end * p.nodes, T(0));
      catnat::functions<T>().path_backward(p, paths, of, in, out, first * paths.a_row, end * paths.a_row);
    });
  });
  return grad_scores;
}

}  // namespace

STABLE_TORCH_LIBRARY(catnat, m) {
  m.def(
      "log_probs(Tensor scores, Tensor constants, Tensor table, int classes, int depth, int activation, bool floored) "
      "-> Tensor");
  m.def(
      "log_probs_backward(Tensor grad, Tensor scores, Tensor constants, Tensor table, int depth, int activation, "
      "bool floored) -> Tensor");
  m.def(
      "draw(Tensor scores, Tensor constants, Tensor table, Tensor uniforms, int activation, Tensor(a!) drawn) -> ()");
  m.def(
      "path_log_probs(Tensor scores, Tensor constants, Tensor above, Tensor classes, int depth, int activation, "
      "bool floored) -> Tensor");
  m.def(
      "path_log_probs_backward(Tensor grad, Tensor scores, Tensor constants, Tensor above, Tensor classes, int depth, "
      "int activation, bool floored) -> Tensor");
}

STABLE_TORCH_LIBRARY_IMPL(catnat, CPU, m) {
  m.impl("log_probs", TORCH_BOX(&log_probs));
  m.impl("log_probs_backward", TORCH_BOX(&log_probs_backward));
  m.impl("draw", TORCH_BOX(&draw));
  m.impl("path_log_probs", TORCH_BOX(&path_log_probs));
  m.impl("path_log_probs_backward", TORCH_BOX(&path_log_probs_backward));
}

extern "C" __attribute__((visibility("default"))) const char* catnat_instruction_set() { return catnat::library().instruction_set; }
