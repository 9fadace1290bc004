"""The plugins that the contract tests ask: ours, and those of tests/plugin; strangers have `rrbench check`."""

from rrbench.plugins.contract import BASES
from rrbench.plugins.registry import table

OWNERS = {"rrbench", "outside-rrbench"}
TESTED = {kind: [name for name in table(kind) if table(kind).owners[name] in OWNERS] for kind in BASES}
