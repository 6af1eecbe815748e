// What touches elements, compiled for the instruction set of the machine it runs on.

#ifndef COOP_JAX_XLA_FFI_KERNELS_H_
#define COOP_JAX_XLA_FFI_KERNELS_H_

#include <cstdint>

#include "blocks.h"
#include "schedule.h"

namespace coop_jax {

struct Kernels {
  // Runs a step on elements [at, at + n) of a row. With `is_last` it writes the
  // result itself where it can; returns whether it has.
  bool (*execute)(const Row& row, const Step& step, int64_t at, int64_t n,
                  bool is_last);
  // Continues a reduction with a block of `n` elements.
  double (*fold)(const Row& row, const Step& step, int64_t n, double total);
  // Puts a reduction's result into its register.
  void (*finish)(const Row& row, const Step& step, int64_t n, double total);
  // Writes a register to the result's elements [start, start + n) of a row.
  void (*store)(const Row& row, int64_t start, int64_t n, int source);
};

const Kernels& KernelsOfMachine();

}  // namespace coop_jax

#endif  // COOP_JAX_XLA_FFI_KERNELS_H_
