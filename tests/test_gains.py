"""What rejectors gain over never rejecting, as results/FINDINGS.md says it, is that of the published scores."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from findings_rows import at, findings, gain, gain_draws, gain_of, joint, own_gain, text
from published import rows, scores, victims_at
from rrbench.metrics.deployment import CleanScores, accepted_by, joint_where_kept
from rrbench.rows.paired import all_but_note
from rrbench.rows.row import ResultRow
from rrbench.rows.scores import Scores


def test_cpr_is_ahead_of_margin_on_the_same_images() -> None:
    (cpr,) = [row for row in rows("cifar10-looks") if (row.rejector, row.attack) == ("cpr", "worst-case")]
    looks = scores("cifar10-looks")[all_but_note(cpr)].scores()
    margin = scores()[all_but_note(at("margin"))].scores()
    assert looks.ids.tolist() == margin.ids[:1000].tolist()
    is_joint = [_is_joint(found)[:1000].astype(float) for found in (looks, margin)]
    assert is_joint[0].mean() == pytest.approx((cpr.deploy_joint or 0) / 100)
    chosen = np.random.default_rng(0).integers(1000, size=(2000, 1000))
    low, high = np.percentile(100 * (is_joint[0] - is_joint[1])[chosen].mean(1), (2.5, 97.5))
    assert f"On these images margin has {100 * is_joint[1].mean():.2f}, so CPR is" in findings()
    assert f"{100 * (is_joint[0] - is_joint[1]).mean():+.2f} ahead [{low:+.2f}, {high:+.2f}]" in findings()


def _is_joint(found: Scores) -> Any:
    """Tell which inputs are answered right when clean and not answered wrong when attacked."""
    accepted, stays = (accepted_by(found.clean, each) for each in (found.certainty, found.clean_certainty))
    assert accepted is not None
    assert stays is not None
    return stays & found.clean_correct & (~accepted | found.correct)


@pytest.mark.parametrize("name", ["margin", "confidence", "RR", "EBD", "ATRO", "SNet", "CARL"])
def test_the_table_of_what_survives(name: str) -> None:
    elsewhere = (at(name).deploy_joint or 0) - (at("never-reject").deploy_joint or 0)
    line = f"| {name} | {joint(name, 'pgd100')} | {joint(name)} | {gain(name)} | {elsewhere:+.2f} |"
    assert line in findings()
    assert gain_of(at(name)).value == pytest.approx(own_gain(at(name)))
    assert f"| never-reject | {joint('never-reject', 'pgd100')} | {joint('never-reject')} | | |" in findings()


def under_gama_fw() -> dict[tuple[str, str], ResultRow]:
    """Return the rows of GAMA-FW at 8/255 whose victim has a worst case, by victim."""
    worst = victims_at("worst-case")
    found = [row for row in rows() if (row.attack, row.eps) == ("gama-fw", "8/255")]
    # The one without became not robust and was not kept.
    assert {row.trained_as for row in found if _victim(row) not in worst} == {"ccat(attack_mode=train,scale=1)"}
    return {_victim(row): row for row in found if _victim(row) in worst}


def _victim(row: ResultRow) -> tuple[str, str]:
    return row.trained_as, row.rejector


def share_of_the_fall(victim: tuple[str, str], of: Callable[[ResultRow], Any]) -> Any:
    """Return which part of the fall of the gain from PGD-100 to the worst case GAMA-FW takes, in percent."""
    high, middle, low = (
        of(each) for each in (victims_at("pgd100")[victim], under_gama_fw()[victim], victims_at("worst-case")[victim])
    )
    return 100 * (high - middle) / (high - low)


def test_how_much_of_the_fall_to_the_worst_case_needs_no_knowledge_of_the_rejector() -> None:
    lows = []
    for victim, row in under_gama_fw().items():
        falls = (own_gain(each) for each in (victims_at("pgd100")[victim], row, victims_at("worst-case")[victim]))
        line = "".join(f" | {each:+.2f}" for each in falls) + f" | {share_of_the_fall(victim, own_gain):.0f} ["
        _, found, rest = text("results/README.md").partition(line)
        assert found, line
        lows.append(float(rest.partition(",")[0]))
    assert len(lows) == 11
    assert sum(low > 50 for low in lows) == 7
    assert "For seven of the eleven victims that met GAMA-FW most of the fall" in findings()
    middle = own_gain(under_gama_fw()["pgd-at+rr", "rr"])
    assert f"GAMA-FW, which is blind too, RR gains {middle:.2f}." in text("README.md")
    assert f"Under it RR gains {middle:.2f} (" in findings()
    assert f"Margin's {share_of_the_fall(('pgd-at', 'margin'), own_gain):.0f} % is a special case" in findings()


@pytest.mark.parametrize(
    ("victim", "said"), [(("pgd-at+rr", "rr"), "Of RR's fall it takes"), (("carl", "carl"), "of CARL's")]
)
def test_the_share_of_the_fall_has_the_interval_of_its_draws(victim: tuple[str, str], said: str) -> None:
    low, high = np.percentile(share_of_the_fall(victim, gain_draws), (2.5, 97.5))
    shown = f"{share_of_the_fall(victim, own_gain):.0f}"
    assert f"{said} {shown} % [{low:.0f}, {high:.0f}]" in findings()
    assert f" | {shown} [{low:.0f}, {high:.0f}] | " in text("results/README.md")


def test_gama_fw_gets_past_a_few_more_than_the_worst_case() -> None:
    taken, joint_with, gain_with = {}, {}, {}
    for victim, row in under_gama_fw().items():
        one, other = (scores()[all_but_note(each)].scores() for each in (row, victims_at("worst-case")[victim]))
        assert one.ids.tolist() == other.ids.tolist()
        withstood, both = _is_joint(other), _is_joint(one) & _is_joint(other)
        right = one.clean_correct & one.correct & other.correct
        taken[victim] = int((withstood & ~both).sum())
        joint_with[victim], gain_with[victim] = 100 * both.mean(), 100 * (both.mean() - right.mean())
        assert f"] | {taken[victim]} |" in text("results/README.md")
    first = [("pgd-at", "margin"), ("pgd-at", "confidence"), ("pgd-at+rr", "rr")]
    margin, confidence, rr = (f"{joint_with[victim]:.2f}" for victim in first)
    assert f"With it joint is {margin} for margin, {confidence} for confidence and {rr} for RR: " in findings()
    counts = [taken.pop(victim) for victim in first]
    assert f"{counts[0]}, {counts[1]} and {counts[2]} images of 10,000 less." in findings()
    margin, confidence, rr = (f"{gain_with[victim]:+.2f}" for victim in first)
    assert f"Margin gains {margin} then, confidence {confidence} and RR {rr}." in findings()
    assert f"it takes {min(taken.values())} to {max(taken.values())}. The order stays." in findings()
    assert f"takes {counts[0]} of 10,000 more from margin and {counts[1]} from confidence." in text("README.md")
    before = sorted(joint_with, key=lambda victim: victims_at("worst-case")[victim].deploy_joint or 0)
    assert sorted(joint_with, key=lambda victim: joint_with[victim]) == before


def test_what_is_below_never_rejecting_on_its_own_network_is_so_clearly_or_perhaps() -> None:
    below = sorted((row for row in victims_at("worst-case").values() if own_gain(row) < 0), key=own_gain)
    clearly, perhaps = below[:4], below[4:]
    assert [row.rejector for row in clearly] == ["kd", "gda", "coupled", "vim"]
    assert [row.rejector for row in perhaps] == ["gda*", "lid"]
    assert all((gain_of(row).high or 0) < -0.5 for row in clearly)
    ends = " and ".join(f"{gain_of(row).high:+.2f}" for row in perhaps)
    compared = len(victims_at("worst-case")) - 1  # all but never rejecting itself
    assert f"their intervals end at {ends}, and {compared} rejectors were compared." in findings()
    assert own_gain(at("GDA")) < -3 < own_gain(at("coupled"))


def test_refusing_at_random() -> None:
    """5 % of all inputs are refused; an attacked copy has its own draw, or the attacker tries until it is accepted."""
    right, both = (at("never-reject", "clean", "").acc_all or 0), (at("never-reject").deploy_joint or 0)
    fresh, tried = 0.95 * (both + 0.05 * (right - both)), 0.95 * both
    said = f"at random, clean and attacked ones independently, and joint is {fresh:.2f}. If the attacker may try until"
    assert f"{said} an image is accepted, it is {tried:.2f}. KD and GDA are below both." in findings()
    assert (at("GDA").deploy_joint or 0) < tried


def test_on_rrs_network_confidence_is_ahead_at_a_strict_threshold() -> None:
    own, plain = (scores()[all_but_note(at(name))].scores() for name in ("RR", "rr(score=con)"))
    kept = np.array([0.9, 0.8])

    def apart(chosen: Any) -> Any:
        one, other = (
            joint_where_kept(_drawn(found.clean, chosen), found.certainty[chosen], found.correct[chosen], kept)
            for found in (own, plain)
        )
        return one - other

    rng = np.random.default_rng(0)
    draws = np.array([apart(rng.integers(10_000, size=10_000)) for _ in range(1000)])
    (low, lowest), (high, highest) = np.percentile(draws, (2.5, 97.5), axis=0)
    assert low < 0 < high, "level"
    value = apart(np.arange(10_000))[1]
    assert f"R-Con less confidence is {value:+.2f} [{lowest:+.2f}, {highest:+.2f}]" in findings()


def _drawn(clean: CleanScores, chosen: Any) -> CleanScores:
    return clean._replace(certainty=clean.certainty[chosen], correct=clean.correct[chosen], folds=clean.folds[chosen])


def test_carl_and_snet_on_their_own_networks() -> None:
    plain = [f"{at(name).acc_all:.2f}" for name in ("CARL", "SNet", "never-reject")]
    blind = at("CARL", "pgd100")
    gains, seems = [own_gain(at(name)) for name in ("CARL", "SNet")], own_gain(blind)
    for said in (
        f"on their own networks, {gains[0]:.2f} and {gains[1]:.2f}, but these are weaker than PGD-AT's",
        f"they have {plain[0]} and {plain[1]} at the worst case, PGD-AT {plain[2]}.",
        f"CARL seems to gain {seems:.2f} ({blind.deploy_joint:.2f}; without rejection {blind.acc_all:.2f})",
    ):
        assert said in text("results/README.md"), said
    assert f"without any rejection these have {plain[1]}, {plain[0]} and {at('ATRO').acc_all:.2f}." in findings()
