// Writes a program as one CUDA kernel. Plain text: needs no CUDA to run.

#ifndef COOP_JAX_XLA_FFI_CUDA_SOURCE_H_
#define COOP_JAX_XLA_FFI_CUDA_SOURCE_H_

#include <cstdint>
#include <string>

#include "program.h"

namespace coop_jax {

inline constexpr char kKernelName[] = "coop_jax_inplace";

// The translation unit with the kernel, for NVRTC: no headers. The kernel takes
// the operands' pointers, then the result's.
//
// Without reductions each thread computes one pack of up to 16 bytes and goes
// on in strides of the grid; with them a block takes a row at a time, walks it
// once per depth of reductions, and writes on the last walk. A pack that is
// not aligned, or not whole, is moved by elements.
std::string CudaSource(const Program& program);

struct Launch {
  int64_t grid, block;
};
Launch LaunchOf(const Program& program);

}  // namespace coop_jax

#endif  // COOP_JAX_XLA_FFI_CUDA_SOURCE_H_
