"""In-place calls: chains of equations as programs of the native library."""
