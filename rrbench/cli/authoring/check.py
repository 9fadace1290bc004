"""`rrbench check`: checks an installed plugin against the contract."""

from typing import Annotated

import typer


def check(
    name: Annotated[str, typer.Argument(help="An installed plugin, such as my-idea or 'my-idea(tau=2)'.")],
) -> None:
    """Run the contract over an installed plugin of any kind, one line a check; exit 1 where one fails.

    Example: rrbench check my-idea
    """
    from rrbench.errors import first_line, no_exit, reason
    from rrbench.testing import BrokenContractError, installed_checks

    count = failures = 0
    for what, checks in installed_checks(name):
        print(what)
        for each in checks:
            count += 1
            try:
                with no_exit():
                    each()
            except Exception as error:  # a plugin may raise anything; go on with the other checks
                failures += 1
                why = first_line(error) if isinstance(error, BrokenContractError) else reason(error)
                print(f"  FAILED  {each}: {why}")
            else:
                print(f"  ok      {each}")
    print(f"{count} checks, {failures} failed" if failures else f"{count} checks, all kept")
    if failures:
        raise typer.Exit(1)
