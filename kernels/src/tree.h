// What is computed, without a framework: a problem, its schedule, and one table of functions for each instruction set.
#pragma once

#include <cstdint>

namespace catnat {

enum Activation : int64_t { SIGMOID = 0, CLAMPED = 1, REFLECTED = 2 };

// A tree as a list of steps. Sums along paths live in slots, W rows side by side in each. A run takes consecutive nodes,
// reads the sum above every node from its slot and writes those of its two branches; then the classes that it has
// reached, consecutive ones in consecutive slots, leave. A slot may be used again, so that all of a large balanced tree
// fits in cache.
struct Run {
  int32_t first_node, end_node, first_class, end_class, first_slot;
};

struct Slots {
  int32_t above, no, yes;
};

struct Schedule {
  int32_t num_slots, num_roots, num_runs;
  const int32_t* roots;  // slots that are 0
  const Run* runs;
  const Slots* slots;  // of every node

  // From one array of integers: the three sizes, roots, runs, slots.
  static Schedule from(const int32_t* numbers) {
    const int32_t* roots = numbers + 3;
    const auto* runs = reinterpret_cast<const Run*>(roots + numbers[1]);
    return {numbers[0], numbers[1], numbers[2], roots, runs, reinterpret_cast<const Slots*>(runs + numbers[2])};
  }
};

// The rows of scores, and how their nodes turn them into probabilities.
template <class T>
struct Problem {
  const T* scores;  // rows x nodes
  int64_t rows;
  int32_t nodes, classes;
  // Constants, one row for each kind: scale and offset, or a band's lower, lower rest, upper, upper rest, centre and rate.
  const T* constants;
  int32_t constants_stride;  // from one kind to the next
  int32_t constants_step;    // from one node to the next: 0 if all nodes are alike
  Activation activation;
  bool floored;
};

// Walks from the root of a balanced tree, by heap numbers, or of any other, by its children.
struct Walk {
  const int32_t* children;  // nodes x 2 ids, or null for a balanced tree
  int32_t depth, first_leaf;
};

// Blocks are of `lanes` rows; the last one may be shorter. A buffer holds num_slots x lanes numbers, aligned to 64 bytes.
template <class T>
struct Functions {
  int64_t lanes;
  void (*log_probs)(const Problem<T>&, const Schedule&, T* leaves, int64_t first_block, int64_t end_block, T* buffer);
  void (*backward)(const Problem<T>&, const Schedule&, const T* grad_leaves, T* grad_scores, int64_t first_block,
                   int64_t end_block, T* buffer);
  // Draw i belongs to row i % rows and has `depth` uniform numbers.
  void (*draw)(const Problem<T>&, const Walk&, const T* uniforms, int64_t* drawn, int64_t first_draw,
               int64_t end_draw);
};

struct Library {
  const char* instruction_set;
  Functions<float> single;
  Functions<double> twice;
};

// The best of what was compiled and of what the processor has.
const Library& library();

template <class T>
const Functions<T>& functions();

}  // namespace catnat
