"""Runs attacks, or reads their stored answers: single attacks, members of an ensemble, attacks behind a transfer."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from rrbench.measuring.answers import Answers, has_answers, kept_of, load_answers, save_answers, shrink
from rrbench.measuring.at_hand import AtHand, Opened
from rrbench.measuring.evaluation import Attacked, fresh_member, run_attack, take_over
from rrbench.measuring.materials import Materials
from rrbench.names import Choice
from rrbench.planning.cells import Cell, Plan, Training
from rrbench.plugins.registry import build
from rrbench.protocols import Attack, Batch, Member, Moved, Rejector, Victim


@dataclass(frozen=True)
class Attacks:
    """Returns the answers of attacks in a work folder; runs an attack whose answers are not there."""

    materials: Materials
    at_hand: AtHand
    keep: frozenset[str] = frozenset()  # of {"images", "features"}: stay after all rows are written

    def answers(self, opened: Opened, cells: Sequence[Cell], *, is_member: bool) -> Answers:
        """Return the answers of the attack that the cells share; `is_member`: other cells will need its images."""
        first = cells[0]
        key = self.materials.attack_key(first)
        needs_features = any("features" in build(Rejector, cell.rejector).needs for cell in cells)
        found = self._load(key, with_features=needs_features, with_images="images" in self.keep)
        if found is not None:
            return found
        attacked = self._attack(opened, first)
        is_shared = not first.is_adaptive
        return self._save(key, attacked, with_features=needs_features, with_images=is_member, is_shared=is_shared)

    def has_answers(self, cell: Cell) -> bool:
        """Tell whether a cell's attack need not be run again."""
        return has_answers(self.materials.store, self.materials.attack_key(cell))

    def shrink(self, cell: Cell) -> None:
        """Delete the features and images of a cell's attack that no run was asked to keep."""
        shrink(self.materials.store, self.materials.attack_key(cell), self.keep)

    def shrink_members(self, plan: Plan, training: Training) -> None:
        """Shrink the attacks on a network whose images were kept for ensembles or transfers, also by a stopped run."""
        cells = [cell for cell in plan.cells if training in cell.trainings]
        members = [cell.member(choice) for cell in cells for choice in cell.members]
        for member in dict.fromkeys(member for member in members if member.training == training):
            self.shrink(member)

    def _load(self, key: str, *, with_features: bool, with_images: bool) -> Answers | None:
        materials = self.materials
        return load_answers(
            materials.store, key, materials.device, with_features=with_features, with_images=with_images
        )

    def _save(
        self, key: str, attacked: Attacked, *, with_features: bool, with_images: bool, is_shared: bool = True
    ) -> Answers:
        """Store an attack's answers, and the arrays that this run or an earlier run was asked to keep.

        `shrink` deletes the rest later: a run that goes on after a kill needs features, ensembles and transfers images.
        """
        kept = kept_of(self.materials.store, key) | self.keep
        return save_answers(
            self.materials.store,
            key,
            attacked,
            with_features=with_features or "features" in kept,
            with_images=with_images or "images" in kept,
            kept=kept,
            is_shared=is_shared,
        )

    def _attack(self, opened: Opened, cell: Cell) -> Attacked:
        measured = opened.measured
        if cell.moved_on is not None:
            return take_over(measured, self._moved_elsewhere(cell), cell.area)
        attack = build(Attack, cell.attack)
        # An attack that ignores the rejector must not fail because a rejector cannot be fitted.
        blind = Victim(measured.network, build(Rejector, cell.rejector))
        victim = self.at_hand.victim(opened, cell) if attack.is_adaptive else blind
        stored = {choice: self._stored_member(cell, choice) for choice in cell.members}
        to_run = [attack, *(build(Attack, choice) for choice, member in stored.items() if member is None)]
        classes = measured.outputs("test").logits.shape[1]
        gradients = sum(each.gradients_per_image(classes) for each in to_run)
        members = [
            (str(choice), member or fresh_member(choice, cell.area, cell.seed)) for choice, member in stored.items()
        ]
        task = f"{cell.label} ({gradients} gradients an image)"
        with self.materials.report.task(task, measured.test().size) as advance:
            return run_attack(measured, victim, attack, cell.attack.name, cell.area, cell.seed, advance, members)

    def _moved_elsewhere(self, cell: Cell) -> Attacked:
        """Return the attack on a transfer's other network, the same as for its own row: from the store, or run now."""
        (choice,) = cell.members
        other = cell.member(choice)
        materials, key = self.materials, self.materials.attack_key(other)
        # Several transfers may need this attack at once: the first runs it for all.
        with materials.store.lock(f"attack-{key}", materials.report, materials.deadline):
            found = self._load(key, with_features=False, with_images=True)
            if found is None:
                attacked = self._attack(self.at_hand.open_apart(other), other)
                found = self._save(key, attacked, with_features=False, with_images=True)
        return found.attacked

    def _stored_member(self, cell: Cell, choice: Choice) -> Member | None:
        """Return a member of an ensemble that gives its stored answers; None if the attack itself must run."""
        materials = self.materials
        stored = self._load(materials.attack_key(cell.member(choice)), with_features=False, with_images=True)
        ids = materials.test(cell).ids.tolist()
        position = {identifier: index for index, identifier in enumerate(ids)}
        # If several inputs share an id, as corruptions of one image do, an id does not tell the answer.
        if stored is None or len(position) < len(ids):
            return None

        def found(victim: Victim, batch: Batch) -> Moved:
            rows = torch.tensor([position[identifier] for identifier in batch.ids.tolist()], device=materials.device)
            return Moved(stored.attacked.images[rows], stored.attacked.boldest_images[rows])

        return found
