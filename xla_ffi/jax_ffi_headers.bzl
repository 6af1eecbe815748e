"""The headers of XLA's FFI, which come with jaxlib."""

_BUILD = """
cc_library(
    name = "headers",
    hdrs = glob(["include/xla/ffi/api/*.h"]),
    includes = ["include"],
    visibility = ["//visibility:public"],
)
"""

_FIND = "import pathlib, jaxlib; print(pathlib.Path(jaxlib.__file__).parent / 'include')"

def _jax_ffi_headers_impl(repository_ctx):
    found = repository_ctx.execute(["python3", "-c", _FIND])
    if found.return_code != 0:
        fail("The python3 of the PATH has no jaxlib: " + found.stderr)
    repository_ctx.symlink(found.stdout.strip(), "include")
    repository_ctx.file("BUILD", _BUILD)

jax_ffi_headers = repository_rule(
    implementation = _jax_ffi_headers_impl,
    environ = ["PATH"],
    local = True,
)
