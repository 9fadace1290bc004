"""The rejectors of rrbench: one rejector, one small file; these tables are the whole list."""

from rrbench.protocols import FrameworkTable, RejectorTable
from rrbench_baselines.atro import Atro, AtroTraining
from rrbench_baselines.carl import Carl, CarlTraining
from rrbench_baselines.confidence import Confidence
from rrbench_baselines.coupled import Coupled
from rrbench_baselines.ebd import Ebd
from rrbench_baselines.gda import Gda, GdaStar, Gmm
from rrbench_baselines.kd import Kd
from rrbench_baselines.lid import Lid
from rrbench_baselines.rr import RR
from rrbench_baselines.snet import Snet
from rrbench_baselines.t_con import TCon

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
}

# CARL and ATRO bring a training of their own.
FRAMEWORKS: FrameworkTable = {
    "carl": CarlTraining,
    "atro": AtroTraining,
}
