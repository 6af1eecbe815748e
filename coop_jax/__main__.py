"""`python -m coop_jax`: the same as `coop-jax`."""

from ._cli import main

raise SystemExit(main())
