"""How a plan is shown: text, pictures, pages, traces. Imports no JAX.

Everything here is computed from what a `Plan` holds, so that a plan read from a file
can be shown without the program it was made for.
"""
