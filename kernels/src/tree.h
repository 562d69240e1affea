// What is computed, without a framework: a problem, its tree, and one table of functions for each instruction set.
#pragma once

#include <cstdint>

namespace catnat {

enum Activation : int64_t { SIGMOID = 0, NATURAL = 1 };

// The heap number of class 0 in a balanced tree; deeper trees have tables.
inline int64_t first_leaf_at(int64_t depth) { return int64_t(1) << (depth < 62 ? depth : 62); }

// Ids are 0 .. nodes - 1 for nodes, breadth first, then leaves in the order of their classes.
struct Tree {
  int32_t depth;
  const int32_t* children;  // the ids of no and yes of every node; null for a balanced tree that is known by its size
  const int32_t* roots;     // of the table: one for a tree, more for a forest
  int32_t num_roots;
  int64_t first_leaf;

  // From one array of integers: the number of roots, the roots, the children; or none of them.
  static Tree from(const int32_t* table, int64_t size, int64_t depth) {
    if (size == 0) return {int32_t(depth), nullptr, nullptr, 0, first_leaf_at(depth)};
    return {int32_t(depth), table + 1 + table[0], table + 1, table[0], first_leaf_at(depth)};
  }
};

// The rows of scores, and how their nodes turn them into probabilities.
template <class T>
struct Problem {
  const T* scores;  // rows x nodes
  int64_t rows;
  int32_t nodes, classes;
  // Constants, one row for each kind: the offset, or a band's lower, lower rest, upper, upper rest, and the rate.
  const T* constants;
  int32_t constants_stride;  // from one kind to the next
  int32_t constants_step;    // from one node to the next: 0 if all nodes are alike
  Activation activation;
  bool floored;
};

// Paths from leaves up to a root, as many for every row of the scores.
struct Paths {
  int64_t a_row;
  const int32_t* above;  // of every id: 2 x its parent, plus 1 if it is the yes of it; -1 at a root. Null for a balanced tree
  int64_t first_leaf;    // as in Tree
};

// A buffer holds 2 classes x lanes numbers, aligned to 64 bytes.
template <class T>
struct Functions {
  int64_t lanes;
  void (*log_probs)(const Problem<T>&, const Tree&, T* leaves, int64_t first_row, int64_t end_row, T* buffer);
  void (*backward)(const Problem<T>&, const Tree&, const T* grad_leaves, T* grad_scores, int64_t first_row,
                   int64_t end_row, T* buffer);
  // Draw i belongs to row i % rows and has `depth` uniform numbers.
  void (*draw)(const Problem<T>&, const Tree&, const T* uniforms, int64_t* drawn, int64_t first_draw,
               int64_t end_draw);
  // Path i starts at the class `classes[i]`. The gradients of the scores are added to what is there.
  void (*path_log_probs)(const Problem<T>&, const Paths&, const int64_t* classes, T* found, int64_t first_path,
                         int64_t end_path);
  void (*path_backward)(const Problem<T>&, const Paths&, const int64_t* classes, const T* grad_found, T* grad_scores,
                        int64_t first_path, int64_t end_path);
};

struct Library {
  const char* instruction_set;
  Functions<float> single;
  Functions<double> twice;
};

// The best of what was compiled and of what the processor has, or the one that CATNAT_KERNELS names, if that is among them.
const Library& library();

template <class T>
const Functions<T>& functions();

}  // namespace catnat
