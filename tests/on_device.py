"""Moves outputs to another device, which only tests need."""

import torch

from rrbench.protocols import Outputs


def on_device(outputs: Outputs, device: torch.device) -> Outputs:
    return Outputs(*(part.to(device) for part in outputs))
