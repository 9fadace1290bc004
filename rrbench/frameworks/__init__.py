"""The training frameworks, one small file each; this table lists all of them."""

from rrbench.frameworks.ccat import Ccat
from rrbench.frameworks.pgd_at import PgdAt
from rrbench.frameworks.standard import Standard
from rrbench.frameworks.trades import Trades
from rrbench.protocols import FrameworkTable

FRAMEWORKS: FrameworkTable = {
    "standard": Standard,
    "pgd-at": PgdAt,
    "trades": Trades,
    "ccat": Ccat,
}
