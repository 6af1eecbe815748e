// The handler for XLA:CPU, on XLA's own threads, and the entry points that
// need no XLA.

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "buffers.h"
#include "cuda_source.h"
#include "handlers.h"
#include "interpreter.h"
#include "program.h"
#include "schedule.h"

namespace ffi = xla::ffi;

namespace coop_jax {
namespace {

// Elements worth handing to another thread, and worth leaving to others altogether;
// and how often a thread comes back for more, which evens out their speeds. What all
// rows share is computed every time.
constexpr int64_t kShare = 1 << 15, kLarge = 1 << 20;
constexpr int64_t kTurns = 16;
// How long a caller waits for others to begin.
constexpr std::chrono::microseconds kPatience{100};

// Whether this thread is known to be one of XLA's pool.
thread_local bool is_of_pool = false;

// Work that several threads take chunks of. The last one to finish a chunk
// wakes the caller; a thread that comes too late finds nothing to do, so the
// caller need not wait for it, only keep this alive.
struct Shares {
  explicit Shares(ffi::ThreadPool threads) : threads(threads) {}

  ffi::ThreadPool threads;  // of no use once all is done
  std::thread::id caller = std::this_thread::get_id();
  Schedule schedule;
  std::vector<const void*> operands;
  void* result;
  int64_t pieces, chunk;
  std::atomic<int64_t> next{0}, begun{0};
  std::mutex mutex;
  std::condition_variable is_done;
  int64_t done = 0;

  // Takes chunks until there are none; calls `start` when it has the first.
  template <class F>
  void Work(F start) {
    bool is_first = true;
    for (;;) {
      int64_t begin = next.fetch_add(chunk);
      if (begin >= pieces) return;
      if (is_first) start();
      is_first = false;
      int64_t end = std::min(begin + chunk, pieces);
      Run(schedule, operands.data(), result, begin, end);
      std::lock_guard<std::mutex> lock(mutex);
      done += end - begin;
      if (done == pieces) is_done.notify_all();
    }
  }
  void Work() {
    Work([] {});
  }

  void Wait() {
    std::unique_lock<std::mutex> lock(mutex);
    is_done.wait(lock, [this] { return done == pieces; });
  }

  // Whether within a short time all was done, or so many threads were at it.
  bool Have(int64_t helpers) {
    std::unique_lock<std::mutex> lock(mutex);
    bool all = is_done.wait_for(lock, kPatience, [this] { return done == pieces; });
    return all || begun == helpers;
  }
};

// Has threads of the pool work, of which each calls up to two more: one that is woken
// while its waker goes on running is often put behind it, for milliseconds, though
// another processor is idle. A thread calls others while part of the work is its own, so
// the handler has not returned.
void CallHelpers(std::shared_ptr<Shares> shares, int64_t count) {
  if (count <= 0) return;
  shares->threads.Schedule([shares, count] {
    // With a full queue it is the caller that runs this.
    is_of_pool |= std::this_thread::get_id() != shares->caller;
    shares->Work([&] {
      ++shares->begun;
      CallHelpers(shares, count / 2);
      CallHelpers(shares, count - 1 - count / 2);
    });
  });
}

ffi::Error InplaceImpl(ffi::ThreadPool threads,
                       ffi::Span<const int64_t> words,
                       ffi::RemainingArgs operands,
                       ffi::RemainingRets results) {
  Program program;
  ffi::Error error = Prepare(words, operands, results, &program);
  if (error.failure()) return error;
  auto shares = std::make_shared<Shares>(threads);
  std::string wrong = MakeSchedule(std::move(program), &shares->schedule);
  if (!wrong.empty()) {
    return ffi::Error::InvalidArgument("coop_jax_inplace, program: " + wrong);
  }
  for (size_t k = 0; k < operands.size(); ++k) {
    shares->operands.push_back(operands.get<ffi::AnyBuffer>(k)->untyped_data());
  }
  shares->result = (*results.get<ffi::AnyBuffer>(0))->untyped_data();
  shares->pieces = Pieces(shares->schedule);
  if (shares->pieces == 0) return ffi::Error::Success();
  const int64_t piece = PieceSize(shares->schedule);
  const int64_t pool = std::max<int64_t>(1, threads.num_threads());
  shares->chunk = std::max({int64_t{1}, kShare / piece,
                            shares->pieces / (kTurns * pool)});
  int64_t chunks = (shares->pieces + shares->chunk - 1) / shares->chunk;
  int64_t workers = std::min(pool, chunks);
  // While one of the pool waits, there is one less to work.
  bool leaves_it = !is_of_pool && shares->pieces * piece >= kLarge && workers > 1;
  int64_t helpers = leaves_it ? workers : workers - 1;
  CallHelpers(shares, helpers);
  if (!leaves_it || !shares->Have(helpers)) shares->Work();
  shares->Wait();
  return ffi::Error::Success();
}

int Fail(const std::string& message, char* error, size_t size) {
  if (size > 0) {
    size_t length = std::min(message.size(), size - 1);
    std::memcpy(error, message.data(), length);
    error[length] = 0;
  }
  return 1;
}

}  // namespace
}  // namespace coop_jax

XLA_FFI_DEFINE_HANDLER_SYMBOL(coop_jax_inplace, coop_jax::InplaceImpl,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Attr<ffi::Span<const int64_t>>("program")
                                  .RemainingArgs()
                                  .RemainingRets());

int coop_jax_ffi_api_minor() { return XLA_FFI_API_MINOR; }

int coop_jax_check(const int64_t* words, size_t count, char* error, size_t size) {
  coop_jax::Program program;
  std::string wrong = coop_jax::Decode(words, count, &program);
  coop_jax::Schedule schedule;
  if (wrong.empty()) wrong = coop_jax::MakeSchedule(program, &schedule);
  return wrong.empty() ? 0 : coop_jax::Fail(wrong, error, size);
}

int coop_jax_run(const int64_t* words, size_t count, void* const* buffers,
                 const size_t* bytes, size_t buffer_count, char* error,
                 size_t size) {
  using namespace coop_jax;
  Program program;
  std::string wrong = Decode(words, count, &program);
  if (!wrong.empty()) return Fail(wrong, error, size);
  std::vector<Array> arrays = program.operands;
  arrays.push_back(program.result);
  if (buffer_count != arrays.size()) {
    return Fail(std::to_string(buffer_count) + " buffers; the program takes " +
                    std::to_string(arrays.size()), error, size);
  }
  std::vector<Buffer> made;
  for (size_t k = 0; k < buffer_count; ++k) {
    const Array& array = arrays[k];
    if (static_cast<int64_t>(bytes[k]) != array.size * Width(array.storage)) {
      return Fail("buffer " + std::to_string(k) + " has " +
                      std::to_string(bytes[k]) + " bytes", error, size);
    }
    made.push_back({buffers[k], array.storage, true, array.dimensions.data(),
                    array.dimensions.size()});
  }
  Buffer result = made.back();
  made.pop_back();
  wrong = CheckBuffers(program, made, result);
  if (!wrong.empty()) return Fail(wrong, error, size);
  Schedule schedule;
  wrong = MakeSchedule(program, &schedule);
  if (!wrong.empty()) return Fail(wrong, error, size);
  Run(schedule, buffers, buffers[buffer_count - 1], 0, Pieces(schedule));
  return 0;
}

int64_t coop_jax_cuda_source(const int64_t* words, size_t count, char* source,
                             size_t size) {
  coop_jax::Program program;
  if (!coop_jax::Decode(words, count, &program).empty()) return -1;
  std::string text = coop_jax::CudaSource(program);
  coop_jax::Fail(text, source, size);
  return static_cast<int64_t>(text.size());
}
