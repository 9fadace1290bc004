"""The training frameworks: one framework, one small file; this table is the whole list."""

from rrbench.frameworks.pgd_at import PgdAt
from rrbench.frameworks.standard import Standard
from rrbench.protocols import FrameworkTable

FRAMEWORKS: FrameworkTable = {
    "standard": Standard,
    "pgd-at": PgdAt,
}
