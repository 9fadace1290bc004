"""The contract of plugins, as checks: `rrbench check` prints them, and pytest runs them one by one.

@pytest.mark.parametrize("check", rejector_checks(MyIdea()), ids=str)
def test_it_keeps_the_contract(check: Check) -> None:
    check()
"""

from rrbench.testing.attacks import attack_checks as attack_checks
from rrbench.testing.check import BrokenContractError as BrokenContractError
from rrbench.testing.check import Check as Check
from rrbench.testing.frameworks import framework_checks as framework_checks
from rrbench.testing.installed import installed_checks as installed_checks
from rrbench.testing.rejectors import rejector_checks as rejector_checks
from rrbench.testing.sources import dataset_checks as dataset_checks
from rrbench.testing.sources import network_checks as network_checks
