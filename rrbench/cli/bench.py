"""`rrbench bench`: measures how fast rrbench and other packages attack and train on this device."""

from pathlib import Path
from typing import Annotated

import typer

from rrbench.cli import options
from rrbench.errors import UseError


def bench(
    parts: Annotated[str, typer.Option(help="Of pgd, training, autoattack, cw, curve.")] = "pgd,training,autoattack",
    peers: Annotated[
        str | None, typer.Option(help="Of foolbox, torchattacks, autoattack; by default all that are installed.")
    ] = None,
    dataset: options.Dataset = None,
    network: options.Network = None,
    rejector: Annotated[str, typer.Option(help="Whose network is attacked and trained, by PGD-AT.")] = "rr",
    preset: options.Preset = "quick",
    out: options.Out = Path("runs"),
    data_dir: options.DataDir = None,
    device: options.Device = "auto",
    precision: options.Precision = "auto",
    zoo: Annotated[bool, typer.Option("--zoo", help="Use checkpoints of $RRBENCH_ZOO or results/zoo.")] = False,
    limit: options.Limit = None,
    count: Annotated[
        int | None, typer.Option(help="Test inputs of cw (by default 200) and of AutoAttack's own package (500).")
    ] = None,
    csv: Annotated[Path | None, typer.Option(help="Write the table here too, as CSV.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Draw gradients a second here: .png, .svg or .pdf.")] = None,
) -> None:
    """Compare speeds on the device at hand; the network is trained first where there is no checkpoint.

    Example: rrbench bench --parts pgd --peers foolbox
    """
    from rrbench.api import RunOptions, prepare
    from rrbench.bench.attacks import PEERS, installed
    from rrbench.bench.compare import PARTS, compare
    from rrbench.bench.measurement import Measurement, to_csv, to_text, with_ratios
    from rrbench.files.disk import write_bytes
    from rrbench.progress import reporter

    wanted = options.some_of("--parts", parts, PARTS)
    rivals = (
        installed() if peers is None else frozenset(options.some_of("--peers", peers, PEERS)) if peers else frozenset()
    )
    missing = sorted(rivals - installed())
    if missing:
        raise UseError(f"not installed: {', '.join(PEERS[name] for name in missing)}")
    if count is not None and count < 1:
        raise UseError(f"--count must be at least 1, not {count}")
    if plot is not None:
        from rrbench.figures.style import check_suffix

        check_suffix(plot)
    report = reporter()
    job = prepare(
        RunOptions(
            rejector,
            "pgd20",
            dataset=dataset,
            network=network,
            frameworks="pgd-at",
            preset=preset,
            out=out,
            data_dir=data_dir,
            device=device,
            precision=precision,
            zoo=zoo,
            limit=limit,
            report=report,
        )
    )
    measured, remarks = [], []
    for found in compare(job, wanted, rivals, count):
        if isinstance(found, Measurement):
            measured.append(found)
            report.line(f"measured {found.what}, {found.implementation}")
        else:
            remarks.append(found)
            report.line(found)
        if csv is not None:
            write_bytes(csv, to_csv(with_ratios(measured)).encode())
    print("\n".join([to_text(with_ratios(measured)), *remarks]))
    if plot is not None:
        from rrbench.bench.plot import draw

        draw(with_ratios(measured), plot)
