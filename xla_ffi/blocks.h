// Registers, and how a block of a row gets into them and out of them.

#ifndef COOP_JAX_XLA_FFI_BLOCKS_H_
#define COOP_JAX_XLA_FFI_BLOCKS_H_

#include <algorithm>
#include <cstdint>

#include "elementwise_math.h"
#include "program.h"
#include "schedule.h"

namespace coop_jax {

// Where the elements of one walk over a row begin, and what reductions have
// gathered.
struct Row {
  const Program& program;
  const void* const* operands;
  void* result;
  int64_t number;
  // Of each register, the bytes that it is written to, and those that hold its
  // value: its home, or an operand's own.
  char** homes;
  char** places;
  // If two rows are done at once, how many elements the second lies behind; else 0.
  int64_t distance = 0;

  // A register's value.
  template <class T>
  const T* Value(int k) const {
    return reinterpret_cast<const T*>(places[k]);
  }

  // Where a register's next value goes. Fetch what is read before this.
  template <class T>
  T* Target(int k) const {
    places[k] = homes[k];
    return reinterpret_cast<T*>(homes[k]);
  }

  // The element that a map addresses at the row's start.
  int64_t Base(const Map& map) const {
    int64_t rest = number, base = 0;
    int outer = static_cast<int>(program.dimensions.size()) - program.row_rank;
    for (int d = outer - 1; d > 0; --d) {
      base += rest % program.dimensions[d] * map.strides[d];
      rest /= program.dimensions[d];
    }
    return outer == 0 ? 0 : base + rest * map.strides[0];
  }
};

// Calls `f(at, first, stride, count)` for each run of equally spaced elements
// among `[start, start + size)` of a row; `at` counts from `start`.
template <class F>
COOP_INLINE void ForRuns(const Map& map, int64_t base, int64_t start,
                         int64_t size, F f) {
  const auto& row = map.row;
  const Map::Dimension inner = row.back();
  if (row.size() == 1) return f(0, base + start * inner.stride, inner.stride, size);
  for (int64_t at = 0; at < size;) {
    int64_t rest = start + at, column = rest % inner.size;
    int64_t first = base + column * inner.stride;
    rest /= inner.size;
    for (size_t d = row.size() - 1; d-- > 0;) {
      first += rest % row[d].size * row[d].stride;
      rest /= row[d].size;
    }
    int64_t count = std::min(size - at, inner.size - column);
    f(at, first, inner.stride, count);
    at += count;
  }
}

template <class From, class To, class F>
COOP_INLINE void LoadRun(const From* from, int64_t stride, To* to, int64_t n,
                         F convert) {
  if (stride == 1) {
    for (int64_t i = 0; i < n; ++i) to[i] = convert(from[i]);
  } else if (stride == 0) {
    To value = convert(from[0]);
    for (int64_t i = 0; i < n; ++i) to[i] = value;
  } else {
    for (int64_t i = 0; i < n; ++i) to[i] = convert(from[i * stride]);
  }
}

template <class From, class To, class F>
COOP_INLINE void LoadAs(const Row& row, const Array& array, const void* data,
                        int64_t start, int64_t n, To* to, F convert) {
  const Map& map = row.program.maps[array.map];
  const From* from = static_cast<const From*>(data);
  ForRuns(map, row.Base(map), start, n,
          [&](int64_t at, int64_t first, int64_t stride, int64_t count)
              __attribute__((always_inline)) {
                LoadRun(from + first, stride, to + at, count, convert);
              });
}

template <class T>
COOP_INLINE T Same(T x) {
  return x;
}

// Elements `[start, start + n)` of a row where they lie, if that is side by side
// and as a register has them; else null.
template <class Data>
COOP_INLINE char* Direct(const Row& row, const Array& array, Data* data,
                         int64_t start, int64_t n) {
  bool is_wide = array.storage == Storage::kF64;
  const Map& map = row.program.maps[array.map];
  const Map::Dimension& inner = map.row.back();
  bool is_short = map.row.size() > 1 && inner.size < n;
  if (!IsAsInRegister(array.storage) || inner.stride != 1 || is_short) return nullptr;
  char* place = nullptr;
  char* bytes = static_cast<char*>(const_cast<void*>(static_cast<const void*>(data)));
  ForRuns(map, row.Base(map), start, n,
          [&](int64_t, int64_t first, int64_t, int64_t count) COOP_LAMBDA {
            if (count == n) place = bytes + first * (is_wide ? 8 : 4);
          });
  return place;
}

COOP_INLINE void Load(const Row& row, int64_t operand, int64_t start, int64_t n,
                      int target) {
  const Array& array = row.program.operands[operand];
  const void* data = row.operands[operand];
  switch (array.storage) {
    case Storage::kF32:
    case Storage::kS32:
    case Storage::kU32:
      return LoadAs<uint32_t>(row, array, data, start, n,
                              row.Target<uint32_t>(target), Same<uint32_t>);
    case Storage::kF64:
      return LoadAs<uint64_t>(row, array, data, start, n,
                              row.Target<uint64_t>(target), Same<uint64_t>);
    case Storage::kBF16:
      return LoadAs<uint16_t>(row, array, data, start, n,
                              row.Target<float>(target), FromBF16);
    case Storage::kF16:
      return LoadAs<uint16_t>(row, array, data, start, n,
                              row.Target<float>(target), FromF16);
    case Storage::kPred:
      return LoadAs<uint8_t>(row, array, data, start, n,
                             row.Target<uint32_t>(target),
                             [](uint8_t x) { return uint32_t{x != 0}; });
  }
}

template <class To, class From, class F>
COOP_INLINE void StoreAs(const Row& row, int64_t start, int64_t n,
                         const From* from, F convert) {
  const Map& map = row.program.maps[row.program.result.map];
  To* data = static_cast<To*>(row.result);
  ForRuns(map, row.Base(map), start, n,
          [&](int64_t at, int64_t first, int64_t stride, int64_t count)
              __attribute__((always_inline)) {
                To* to = data + first;
                if (stride == 1) {
                  for (int64_t i = 0; i < count; ++i) to[i] = convert(from[at + i]);
                } else {
                  for (int64_t i = 0; i < count; ++i) {
                    to[i * stride] = convert(from[at + i]);
                  }
                }
              });
}

COOP_INLINE void Store(const Row& row, int64_t start, int64_t n, int source) {
  switch (row.program.result.storage) {
    case Storage::kF32:
    case Storage::kS32:
    case Storage::kU32:
      return StoreAs<uint32_t>(row, start, n, row.Value<uint32_t>(source),
                               Same<uint32_t>);
    case Storage::kF64:
      return StoreAs<uint64_t>(row, start, n, row.Value<uint64_t>(source),
                               Same<uint64_t>);
    case Storage::kBF16:
      return StoreAs<uint16_t>(row, start, n, row.Value<float>(source), ToBF16);
    case Storage::kF16:
      return StoreAs<uint16_t>(row, start, n, row.Value<float>(source), ToF16);
    case Storage::kPred:
      return StoreAs<uint8_t>(
          row, start, n, row.Value<uint32_t>(source),
          [](uint32_t x) { return static_cast<uint8_t>(x); });
  }
}

}  // namespace coop_jax

#endif  // COOP_JAX_XLA_FFI_BLOCKS_H_
