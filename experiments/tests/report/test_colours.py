"""One colour for each parameterization: in the plots of records and in the gallery."""

import re
from pathlib import Path

import pytest

from catnat_experiments.report.colours import PALETTE, colour

EXAMPLES = Path(__file__).parents[3] / "examples"
STYLE = re.compile(r'"([a-z, -]+)": \("(#[0-9A-F]{6})"')


def test_no_two_parameterizations_have_one_colour():
    learned = {name: shade for name, shade in PALETTE.items() if name not in ("exact", "optimal")}
    assert len(set(learned.values())) == len(learned)


def test_a_variant_is_a_shade_of_its_own():
    assert len({colour("natural", ()), colour("natural+warm-up", ()), colour("softmax+warm-up", ())}) == 3
    names = ("softmax", "softmax, hard", "softmax, HL-Gauss")
    assert len({colour(name, names) for name in names}) == 3
    assert colour("softmax, hard", names[:2]) == colour("softmax+warm-up", ())
    assert colour("softmax", names) == PALETTE["softmax"]


def test_others_go_by_their_place():
    assert colour("adaptive", ("huffman", "adaptive")) != colour("huffman", ("huffman", "adaptive"))


@pytest.mark.parametrize("script", sorted(EXAMPLES.glob("plot_*.py")), ids=lambda path: path.name)
def test_gallery_has_the_same_colours(script):
    for name, shade in STYLE.findall(script.read_text(encoding="utf-8")):
        known = PALETTE.get(name)
        assert known in (None, shade), f"{name} is {shade} in {script.name}, and {known} elsewhere"
