"""The attacks of rrbench, one small file each; this table lists all of them."""

from rrbench.protocols import AttackTable
from rrbench_attacks.ace import Ace
from rrbench_attacks.adaptive import Adaptive
from rrbench_attacks.apgd_reject import ApgdReject
from rrbench_attacks.autoattack import AutoAttack
from rrbench_attacks.clean import Clean
from rrbench_attacks.cw import CwL2, CwLinf
from rrbench_attacks.foolbox_attack import Foolbox
from rrbench_attacks.gama import GamaFw, GamaPgd
from rrbench_attacks.multi_target import MultiTarget
from rrbench_attacks.orthogonal_pgd import OrthogonalPgd, SelectivePgd
from rrbench_attacks.over_reject import OverReject
from rrbench_attacks.pgd import Pgd
from rrbench_attacks.rejection_loss import RejectionLoss
from rrbench_attacks.square_reject import SquareReject
from rrbench_attacks.transfer import Transfer
from rrbench_attacks.worst_case import WorstCase

ATTACKS: AttackTable = {
    "clean": Clean,
    "pgd": Pgd,
    "multi-target": MultiTarget,
    "gama-pgd": GamaPgd,
    "gama-fw": GamaFw,
    "cw-l2": CwL2,
    "cw-linf": CwLinf,
    "autoattack": AutoAttack,
    "foolbox": Foolbox,
    "adaptive": Adaptive,
    "orthogonal-pgd": OrthogonalPgd,
    "selective-pgd": SelectivePgd,
    "rejection-loss": RejectionLoss,
    "apgd-reject": ApgdReject,
    "square-reject": SquareReject,
    "ace": Ace,
    "over-reject": OverReject,
    "transfer": Transfer,
    "worst-case": WorstCase,
}
