"""What KD, LID, KNN, GDA, GMM and ViM share: the training features they learn from, and scoring in bounded memory."""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from rrbench.errors import CellError
from rrbench.protocols import Outputs

CHUNK = 2**24  # numbers in one float64 intermediate: 128 MiB; a score needs a few at a time
RESOLUTION = torch.finfo(torch.float32).eps  # features are float32: points closer than this coincide


def features_of(outputs: Outputs) -> Tensor:
    """Return the features; without any, raise an error."""
    if outputs.features.shape[1] == 0:
        raise CellError("this rejector needs features, and this network gives none")
    return outputs.features


def correct_features(clean: Outputs, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Return features and labels of the correctly classified inputs, in the given order."""
    correct = clean.logits.argmax(1) == labels
    features = features_of(clean).detach()[correct]
    if not bool(features.isfinite().all()):
        raise CellError("NaN or infinite features on the training inputs")
    return features, labels[correct]


def correct_by_class(clean: Outputs, labels: Tensor, at_least: int = 1) -> list[Tensor]:
    """Return one tensor of correctly classified features for each class; every class needs `at_least` of them."""
    features, classes = correct_features(clean, labels)
    groups = [features[classes == index] for index in range(clean.logits.shape[1])]
    for index, group in enumerate(groups):
        if len(group) < at_least:
            found = f"{len(group)} of its training inputs classified correctly"
            raise CellError(f"class {index} has {found}, and this rejector needs {at_least} or more")
    return groups


def squared_distances(queries: Tensor, references: Tensor) -> Tensor:
    """Return (N, references), never below the resolution of the features, so that the logarithm is finite.

    In float64: |a|^2 + |b|^2 - 2ab of a close pair loses all digits in float32; TF32 and autocast do not touch float64.
    """
    queries, references = queries.double(), references.double()
    own, theirs = queries.square().sum(1, keepdim=True), references.square().sum(1)
    # Rounding leaves a coincident pair between below 0 and 1e-15 of its norms; the floor makes it one number.
    floor = (2 * RESOLUTION**2 * own.detach()).clamp_min(torch.finfo(torch.float64).tiny)
    return torch.maximum(torch.addmm(theirs, queries, references.T, alpha=-2) + own, floor)


def in_chunks(score: Callable[[Outputs], Tensor], outputs: Outputs, numbers_per_input: int) -> Tensor:
    """Score few enough inputs at a time that no intermediate exceeds CHUNK, also in the backward pass."""
    features, size = features_of(outputs), max(1, CHUNK // numbers_per_input)
    pieces = [outputs.at(slice(start, start + size)) for start in range(0, max(1, len(features)), size)]
    if len(pieces) > 1 and features.requires_grad and torch.is_grad_enabled():
        # Each piece is computed again for its gradient, instead of keeping the intermediates of all pieces.
        return torch.cat([checkpoint(score, piece, use_reentrant=False, preserve_rng_state=False) for piece in pieces])
    return torch.cat([score(piece) for piece in pieces])
