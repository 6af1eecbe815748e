// What the shared library exports, and nothing else: the build hides the rest.

#ifndef COOP_JAX_XLA_FFI_HANDLERS_H_
#define COOP_JAX_XLA_FFI_HANDLERS_H_

#include <cstddef>
#include <cstdint>

#include "xla/ffi/api/c_api.h"

#pragma GCC visibility push(default)
extern "C" {

// Runs a program; XLA calls it. The same name in the CPU and CUDA libraries.
XLA_FFI_Error* coop_jax_inplace(XLA_FFI_CallFrame* call_frame);

// Compiles the program's kernel, before the call is executed or captured. CUDA
// library only.
XLA_FFI_Error* coop_jax_inplace_initialize(XLA_FFI_CallFrame* call_frame);

// The minor version of the FFI interface that the library was built against. A
// runtime older than it must not be given the handler.
int coop_jax_ffi_api_minor();

// The rest is in the CPU library only.

// Decodes a program. Returns 0, or writes what is wrong with it, cut to `size`
// bytes with the final zero, to `error` and returns 1.
int coop_jax_check(const int64_t* words, size_t count, char* error, size_t size);

// Checks and runs a program on buffers of `bytes` each, on this thread,
// without XLA. The result is the last buffer. Errors as above.
int coop_jax_run(const int64_t* words, size_t count, void* const* buffers,
                 const size_t* bytes, size_t buffer_count, char* error,
                 size_t size);

// Writes the CUDA source of a program, cut to `size` bytes with the final zero;
// returns its length, or -1 for a program that does not decode.
int64_t coop_jax_cuda_source(const int64_t* words, size_t count, char* source,
                             size_t size);
}
#pragma GCC visibility pop

#endif  // COOP_JAX_XLA_FFI_HANDLERS_H_
