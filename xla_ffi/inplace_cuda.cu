// The handlers for XLA:GPU. A program becomes one kernel, compiled by NVRTC for
// the device at hand when XLA initializes the call, before anything is captured
// into a CUDA graph, and kept for the rest of the process. Execution launches
// it on XLA's stream: no allocation, no synchronization.
//
// The driver and NVRTC are loaded when they are first needed, so the library
// links with neither and loads on a machine without a GPU.

#include <cuda.h>
#include <dlfcn.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "buffers.h"
#include "cuda_source.h"
#include "handlers.h"
#include "program.h"

namespace ffi = xla::ffi;

namespace coop_jax {
namespace {

// A function of a library that is loaded at run time.
template <class F>
bool Find(void* library, const char* name, F* function) {
  *function = reinterpret_cast<F>(dlsym(library, name));
  return *function != nullptr;
}

void* Open(const std::vector<const char*>& names) {
  for (const char* name : names) {
    if (void* library = dlopen(name, RTLD_NOW | RTLD_GLOBAL)) return library;
  }
  return nullptr;
}

// The part of the driver that is used; `error` says why it is not there.
struct Driver {
  CUresult (*device_get)(CUdevice*, int);
  CUresult (*attribute)(int*, CUdevice_attribute, CUdevice);
  CUresult (*retain)(CUcontext*, CUdevice);
  CUresult (*push)(CUcontext);
  CUresult (*pop)(CUcontext*);
  CUresult (*load)(CUmodule*, const void*);
  CUresult (*function)(CUfunction*, CUmodule, const char*);
  CUresult (*launch)(CUfunction, unsigned, unsigned, unsigned, unsigned,
                     unsigned, unsigned, unsigned, CUstream, void**, void**);
  CUresult (*name)(CUresult, const char**);
  std::string error;

  static const Driver& Get() {
    static const Driver* driver = new Driver();
    return *driver;
  }

  std::string Describe(const char* what, CUresult result) const {
    const char* text = nullptr;
    name(result, &text);
    return std::string(what) + " failed: " + (text ? text : "unknown error");
  }

 private:
  Driver() {
    void* library = Open({"libcuda.so.1", "libcuda.so"});
    if (library == nullptr) {
      error = "the CUDA driver, libcuda.so.1, is not there";
      return;
    }
    bool is_whole = Find(library, "cuDeviceGet", &device_get) &&
                    Find(library, "cuDeviceGetAttribute", &attribute) &&
                    Find(library, "cuDevicePrimaryCtxRetain", &retain) &&
                    Find(library, "cuCtxPushCurrent_v2", &push) &&
                    Find(library, "cuCtxPopCurrent_v2", &pop) &&
                    Find(library, "cuModuleLoadData", &load) &&
                    Find(library, "cuModuleGetFunction", &function) &&
                    Find(library, "cuLaunchKernel", &launch) &&
                    Find(library, "cuGetErrorName", &name);
    if (!is_whole) error = "libcuda.so.1 lacks functions of CUDA 12";
  }
};

// The part of NVRTC that is used. JAX's CUDA packages bring the library.
struct Compiler {
  using Handle = void*;
  int (*create)(Handle*, const char*, const char*, int, const char* const*,
                const char* const*);
  int (*compile)(Handle, int, const char* const*);
  int (*log_size)(Handle, size_t*);
  int (*log)(Handle, char*);
  int (*cubin_size)(Handle, size_t*);
  int (*cubin)(Handle, char*);
  int (*ptx_size)(Handle, size_t*);
  int (*ptx)(Handle, char*);
  int (*architecture_count)(int*);
  int (*architectures)(int*);
  int (*destroy)(Handle*);
  std::string error;

  static const Compiler& Get() {
    static const Compiler* compiler = new Compiler();
    return *compiler;
  }

  // Compiles for `capability` (90 for 9.0), or, where NVRTC is older than the
  // device, to PTX for the newest it knows. Returns an error, or "".
  std::string Run(const std::string& source, int capability,
                  std::string* binary) const {
    int count = 0, newest = 0;
    architecture_count(&count);
    std::vector<int> known(count);
    architectures(known.data());
    bool is_known = false;
    for (int each : known) {
      is_known |= each == capability;
      if (each <= capability) newest = std::max(newest, each);
    }
    std::string option = is_known ? "-arch=sm_" + std::to_string(capability)
                                  : "-arch=compute_" + std::to_string(newest);
    const char* options[] = {option.c_str(), "-std=c++17", "--fmad=true"};
    Handle program = nullptr;
    if (create(&program, source.c_str(), "coop_jax_inplace.cu", 0, nullptr,
               nullptr) != 0) {
      return "NVRTC takes no program";
    }
    std::string message;
    if (compile(program, 3, options) != 0) {
      size_t size = 0;
      log_size(program, &size);
      message.resize(size);
      log(program, message.data());
      message = "NVRTC, " + option + ": " + message;
    } else {
      size_t size = 0;
      (is_known ? cubin_size : ptx_size)(program, &size);
      binary->resize(size);
      (is_known ? cubin : ptx)(program, binary->data());
    }
    destroy(&program);
    return message;
  }

 private:
  Compiler() {
    void* library = Open({"libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"});
    if (library == nullptr) {
      error = "NVRTC, libnvrtc.so.12 or .13, is not there";
      return;
    }
    bool is_whole = Find(library, "nvrtcCreateProgram", &create) &&
                    Find(library, "nvrtcCompileProgram", &compile) &&
                    Find(library, "nvrtcGetProgramLogSize", &log_size) &&
                    Find(library, "nvrtcGetProgramLog", &log) &&
                    Find(library, "nvrtcGetCUBINSize", &cubin_size) &&
                    Find(library, "nvrtcGetCUBIN", &cubin) &&
                    Find(library, "nvrtcGetPTXSize", &ptx_size) &&
                    Find(library, "nvrtcGetPTX", &ptx) &&
                    Find(library, "nvrtcGetNumSupportedArchs", &architecture_count) &&
                    Find(library, "nvrtcGetSupportedArchs", &architectures) &&
                    Find(library, "nvrtcDestroyProgram", &destroy);
    if (!is_whole) error = "libnvrtc lacks functions of CUDA 12";
  }
};

struct Kernel {
  CUcontext context = nullptr;
  CUfunction function = nullptr;
};

// Compiles a program's kernel and loads it into the device's primary context,
// which is the one XLA works in.
std::string Build(const Program& program, int device, Kernel* kernel) {
  const Driver& driver = Driver::Get();
  if (!driver.error.empty()) return driver.error;
  const Compiler& compiler = Compiler::Get();
  if (!compiler.error.empty()) return compiler.error;
  CUdevice handle;
  int major = 0, minor = 0;
  CUresult result = driver.device_get(&handle, device);
  if (result != CUDA_SUCCESS) return driver.Describe("cuDeviceGet", result);
  driver.attribute(&major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, handle);
  driver.attribute(&minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, handle);
  std::string binary;
  std::string error =
      compiler.Run(CudaSource(program), 10 * major + minor, &binary);
  if (!error.empty()) return error;
  result = driver.retain(&kernel->context, handle);
  if (result != CUDA_SUCCESS) {
    return driver.Describe("cuDevicePrimaryCtxRetain", result);
  }
  CUmodule module;
  CUcontext popped;
  driver.push(kernel->context);
  result = driver.load(&module, binary.data());
  if (result == CUDA_SUCCESS) {
    result = driver.function(&kernel->function, module, kKernelName);
  }
  driver.pop(&popped);
  return result == CUDA_SUCCESS ? ""
                                : driver.Describe("cuModuleLoadData", result);
}

// The kernel of a program on a device, built the first time.
std::string Lookup(const Program& program, ffi::Span<const int64_t> words,
                   int device, Kernel* kernel) {
  static std::mutex* mutex = new std::mutex();
  static auto* kernels = new std::map<std::pair<int, std::vector<int64_t>>, Kernel>();
  std::lock_guard<std::mutex> lock(*mutex);
  auto key = std::make_pair(device, std::vector<int64_t>(words.begin(), words.end()));
  auto found = kernels->find(key);
  if (found == kernels->end()) {
    Kernel built;
    std::string error = Build(program, device, &built);
    if (!error.empty()) return error;
    found = kernels->emplace(std::move(key), built).first;
  }
  *kernel = found->second;
  return "";
}

ffi::Error InitializeImpl(int32_t device, ffi::Span<const int64_t> words,
                          ffi::RemainingArgs, ffi::RemainingRets) {
  Program program;
  Kernel kernel;
  std::string error = Decode(words.begin(), words.size(), &program);
  if (!error.empty()) {
    return ffi::Error::InvalidArgument("coop_jax_inplace, program: " + error);
  }
  error = Lookup(program, words, device, &kernel);
  return error.empty() ? ffi::Error::Success()
                       : ffi::Error::Internal("coop_jax_inplace: " + error);
}

ffi::Error InplaceImpl(CUstream stream, int32_t device,
                       ffi::Span<const int64_t> words,
                       ffi::RemainingArgs operands, ffi::RemainingRets results) {
  Program program;
  ffi::Error checked = Prepare(words, operands, results, &program);
  if (checked.failure()) return checked;
  if (program.rows * program.row_size == 0) return ffi::Error::Success();
  Kernel kernel;
  std::string error =
      Lookup(program, words, device, &kernel);
  if (!error.empty()) return ffi::Error::Internal("coop_jax_inplace: " + error);
  std::vector<void*> pointers;
  for (size_t k = 0; k < operands.size(); ++k) {
    pointers.push_back(operands.get<ffi::AnyBuffer>(k)->untyped_data());
  }
  pointers.push_back((*results.get<ffi::AnyBuffer>(0))->untyped_data());
  std::vector<void*> arguments;
  for (void*& pointer : pointers) arguments.push_back(&pointer);
  Launch launch = LaunchOf(program);
  const Driver& driver = Driver::Get();
  CUcontext popped;
  driver.push(kernel.context);
  CUresult result = driver.launch(
      kernel.function, static_cast<unsigned>(launch.grid), 1, 1,
      static_cast<unsigned>(launch.block), 1, 1, 0, stream, arguments.data(), nullptr);
  driver.pop(&popped);
  return result == CUDA_SUCCESS
             ? ffi::Error::Success()
             : ffi::Error::Internal("coop_jax_inplace: " +
                                    driver.Describe("cuLaunchKernel", result));
}

}  // namespace
}  // namespace coop_jax

XLA_FFI_DEFINE_HANDLER_SYMBOL(
    coop_jax_inplace_initialize, coop_jax::InitializeImpl,
    ffi::Ffi::Bind<ffi::ExecutionStage::kInitialize>()
        .Ctx<ffi::DeviceOrdinal>()
        .Attr<ffi::Span<const int64_t>>("program")
        .RemainingArgs()
        .RemainingRets());

XLA_FFI_DEFINE_HANDLER_SYMBOL(coop_jax_inplace, coop_jax::InplaceImpl,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::PlatformStream<CUstream>>()
                                  .Ctx<ffi::DeviceOrdinal>()
                                  .Attr<ffi::Span<const int64_t>>("program")
                                  .RemainingArgs()
                                  .RemainingRets(),
                              {ffi::Traits::kCmdBufferCompatible});

int coop_jax_ffi_api_minor() { return XLA_FFI_API_MINOR; }
