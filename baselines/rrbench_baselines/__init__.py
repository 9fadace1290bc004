"""The rejectors of rrbench, one small file each; these tables list all of them."""

from rrbench.protocols import FrameworkTable, RejectorTable
from rrbench_baselines.atro import Atro, AtroTraining
from rrbench_baselines.carl import Carl, CarlTraining
from rrbench_baselines.confidence import Confidence
from rrbench_baselines.coupled import Coupled
from rrbench_baselines.cpr import Cpr
from rrbench_baselines.doctor import Doctor
from rrbench_baselines.ebd import Ebd
from rrbench_baselines.energy import Energy
from rrbench_baselines.entropy import Entropy
from rrbench_baselines.gda import Gda, GdaStar, Gmm
from rrbench_baselines.kd import Kd
from rrbench_baselines.knn import Knn
from rrbench_baselines.lid import Lid
from rrbench_baselines.margin import Margin
from rrbench_baselines.max_logit import MaxLogit
from rrbench_baselines.max_logit_pnorm import MaxLogitPnorm
from rrbench_baselines.never_reject import NeverReject
from rrbench_baselines.pro import Pro
from rrbench_baselines.rel_u import RelU
from rrbench_baselines.rr import RR
from rrbench_baselines.snet import Snet
from rrbench_baselines.t_con import TCon
from rrbench_baselines.vim import Vim

REJECTORS: RejectorTable = {
    "confidence": Confidence,
    "t-con": TCon,
    "kd": Kd,
    "lid": Lid,
    "gda": Gda,
    "gda*": GdaStar,
    "gmm": Gmm,
    "snet": Snet,
    "ebd": Ebd,
    "carl": Carl,
    "atro": Atro,
    "ccat": "confidence@ccat",
    "rr": RR,
    "coupled": Coupled,
    "a-phi-only": "rr(form=head)",
    "confidence-in-lrr": "rr(form=confidence)",
    "r-con-sub": "rr(form=difference)",
    "rr-nosg": "rr(stop_gradient=false)",
    "never-reject": NeverReject,
    # Not in the paper: they use any trained network, and need no training.
    "energy": Energy,
    "max-logit": MaxLogit,
    "max-logit-pnorm": MaxLogitPnorm,
    "entropy": Entropy,
    "margin": Margin,
    "doctor": Doctor,
    "rel-u": RelU,
    "knn": Knn,
    "vim": Vim,
    # These ask the network again.
    "cpr": Cpr,
    "pro": Pro,
}

# CARL and ATRO bring their own training.
FRAMEWORKS: FrameworkTable = {
    "carl": CarlTraining,
    "atro": AtroTraining,
}
