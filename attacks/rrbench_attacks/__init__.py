"""The attacks of rrbench: one attack, one small file; this table is the whole list."""

from rrbench.protocols import AttackTable
from rrbench_attacks.adaptive import Adaptive
from rrbench_attacks.clean import Clean
from rrbench_attacks.pgd import Pgd

ATTACKS: AttackTable = {
    "clean": Clean,
    "pgd": Pgd,
    "adaptive": Adaptive,
}
