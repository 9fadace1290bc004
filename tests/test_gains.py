"""What rejectors gain over never rejecting, as results/FINDINGS.md says it, is that of the published scores."""

from typing import Any

import numpy as np
import pytest

from findings_rows import at, findings, gain, gain_of, joint, own_gain, text
from published import rows, scores, victims_at
from rrbench.metrics.deployment import CleanScores, accepted_by, joint_where_kept
from rrbench.rows.paired import all_but_note
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


def test_most_of_the_fall_to_the_worst_case_needs_no_knowledge_of_the_rejector() -> None:
    worst, usual = victims_at("worst-case"), victims_at("pgd100")
    shares = {}
    for row in (row for row in rows() if (row.attack, row.eps) == ("gama-fw", "8/255")):
        victim = row.trained_as, row.rejector
        if victim not in worst:
            assert row.trained_as == "ccat(attack_mode=train,scale=1)"  # it did not become robust, nor was it kept
            continue
        high, middle, low = (own_gain(each) for each in (usual[victim], row, worst[victim]))
        shares[victim] = 100 * (high - middle) / (high - low)
        line = f" | {high:+.2f} | {middle:+.2f} | {low:+.2f} | {shares[victim]:.0f} % |"
        assert line in text("results/README.md"), line
        if row.rejector == "rr" and row.trained_as == "pgd-at+rr":
            assert f"GAMA-FW, which is blind too, RR gains {middle:.2f}." in text("README.md")
            assert f"Under it RR gains {middle:.2f} (" in findings()
    assert len(shares) == 11
    assert all(100 < shares.pop(victim) < 105 for victim in (("ccat", "confidence"), ("ccat+rr", "rr")))
    least, most = min(shares, key=lambda each: shares[each]), max(shares, key=lambda each: shares[each])
    assert (least, most) == (("carl", "carl"), ("pgd-at", "margin"))
    second = sorted(shares.values())[-2]
    assert shares["trades", "confidence"] == second
    said = f"takes {shares[least]:.0f} % (CARL) to {second:.0f} % (TRADES with confidence) of that fall; of margin's, "
    assert (
        f"{said}whose score is near to GAMA's own loss, {shares[most]:.0f} %; of CCAT's and CCAT+RR's all."
        in findings()
    )
    assert sum(share > 50 for share in shares.values()) == 8


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
    said = f"at random, clean and attacked ones independently, has {fresh:.2f}. If the attacker may try until an image"
    assert f"{said} is accepted, it is {tried:.2f}. KD and GDA are below both." in findings()
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
