"""`python -m rrbench` is `rrbench`."""

from rrbench.cli import main

main()
