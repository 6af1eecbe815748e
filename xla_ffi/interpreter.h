// Runs programs on the CPU, a block of a row at a time.

#ifndef COOP_JAX_XLA_FFI_INTERPRETER_H_
#define COOP_JAX_XLA_FFI_INTERPRETER_H_

#include <cstdint>

#include "schedule.h"

namespace coop_jax {

// Pieces of work that may run in any order and at the same time: rows, or the blocks
// of a single row without reductions.
int64_t Pieces(const Schedule& schedule);

// Elements per piece, about.
int64_t PieceSize(const Schedule& schedule);

// Runs pieces [begin, end) on buffers that passed `CheckBuffers`. Allocates
// nothing; uses up to 256 KiB of stack, which rows of a few thousand elements fit
// into with all their values.
void Run(const Schedule& schedule, const void* const* operands, void* result,
         int64_t begin, int64_t end);

}  // namespace coop_jax

#endif  // COOP_JAX_XLA_FFI_INTERPRETER_H_
