// What handlers share: XLA's buffers in the words of programs.

#ifndef COOP_JAX_XLA_FFI_BUFFERS_H_
#define COOP_JAX_XLA_FFI_BUFFERS_H_

#include <string>
#include <utility>
#include <vector>

#include "program.h"
#include "xla/ffi/api/ffi.h"

namespace coop_jax {

inline Buffer BufferOf(const xla::ffi::AnyBuffer& buffer) {
  using xla::ffi::DataType;
  constexpr std::pair<DataType, Storage> kKnown[] = {
      {DataType::F32, Storage::kF32},   {DataType::F64, Storage::kF64},
      {DataType::BF16, Storage::kBF16}, {DataType::F16, Storage::kF16},
      {DataType::S32, Storage::kS32},   {DataType::U32, Storage::kU32},
      {DataType::PRED, Storage::kPred},
  };
  auto dimensions = buffer.dimensions();
  Buffer made{buffer.untyped_data(), Storage::kF32, false, dimensions.begin(),
              dimensions.size()};
  for (const auto& [type, storage] : kKnown) {
    if (type != buffer.element_type()) continue;
    made.storage = storage;
    made.known = true;
  }
  return made;
}

// Decodes the program and checks the buffers against it.
inline xla::ffi::Error Prepare(xla::ffi::Span<const int64_t> words,
                               xla::ffi::RemainingArgs operands,
                               xla::ffi::RemainingRets results,
                               Program* program) {
  using xla::ffi::Error;
  std::string error = Decode(words.begin(), words.size(), program);
  if (!error.empty()) {
    return Error::InvalidArgument("coop_jax_inplace, program: " + error);
  }
  if (results.size() != 1) {
    return Error::InvalidArgument("coop_jax_inplace has one result, not " +
                                  std::to_string(results.size()));
  }
  std::vector<Buffer> buffers;
  for (size_t k = 0; k < operands.size(); ++k) {
    auto operand = operands.get<xla::ffi::AnyBuffer>(k);
    if (operand.has_error()) return operand.error();
    buffers.push_back(BufferOf(operand.value()));
  }
  auto result = results.get<xla::ffi::AnyBuffer>(0);
  if (result.has_error()) return result.error();
  error = CheckBuffers(*program, buffers, BufferOf(*result.value()));
  if (!error.empty()) return Error::InvalidArgument("coop_jax_inplace: " + error);
  return Error::Success();
}

}  // namespace coop_jax

#endif  // COOP_JAX_XLA_FFI_BUFFERS_H_
