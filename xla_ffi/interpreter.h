// Runs programs on the CPU, a block of a row at a time.

#ifndef COOP_JAX_XLA_FFI_INTERPRETER_H_
#define COOP_JAX_XLA_FFI_INTERPRETER_H_

#include <cstdint>

#include "program.h"

namespace coop_jax {

// Elements that an instruction is run on at once: all registers of a program
// stay in the first or second level cache.
inline constexpr int64_t kBlock = 512;

// Pieces of work that may run in any order and at the same time: rows of a
// program with reductions, else blocks.
int64_t Pieces(const Program& program);

// Elements per piece, about.
int64_t PieceSize(const Program& program);

// Runs pieces [begin, end) on buffers that passed `CheckBuffers`. Allocates
// nothing; uses up to 256 KiB of stack, which rows of a few thousand elements fit
// into with all their values.
void Run(const Program& program, const void* const* operands, void* result,
         int64_t begin, int64_t end);

}  // namespace coop_jax

#endif  // COOP_JAX_XLA_FFI_INTERPRETER_H_
