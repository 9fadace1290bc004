"""The plugins in the contract tests: rrbench's own and those of tests/plugin; `rrbench check` is for all others."""

from rrbench.plugins.contract import BASES
from rrbench.plugins.registry import table

OWNERS = {"rrbench", "outside-rrbench"}
TESTED = {kind: [name for name in table(kind) if table(kind).owners[name] in OWNERS] for kind in BASES}
