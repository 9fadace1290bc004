"""The rejectors of rrbench: one rejector, one small file; this table is the whole list."""

from rrbench.protocols import RejectorTable
from rrbench_baselines.confidence import Confidence
from rrbench_baselines.coupled import Coupled
from rrbench_baselines.ebd import Ebd
from rrbench_baselines.rr import RR
from rrbench_baselines.t_con import TCon

REJECTORS: RejectorTable = {
    "confidence": Confidence,
    "t-con": TCon,
    "rr": RR,
    "ebd": Ebd,
    "coupled": Coupled,
    "r-con-sub": "rr(form=difference)",
    "rr-nosg": "rr(stop_gradient=false)",
}
