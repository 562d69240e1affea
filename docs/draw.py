"""Draw the pictures that are not plots: ``python docs/draw.py`` writes them to ``docs/_static``.

A tree in place of softmax stands on the README and the first page, once for light pages and once for dark ones. Its
bars and matrices are computed, for eight classes that have the same probabilities on both sides. The flow chart is part
of a page's HTML, and takes the page's colours.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

import catnat
import catnat.torch as ct

STATIC = Path(__file__).parent / "_static"
THEMES = {
    "light": {"ink": "#1f2328", "faint": "#8c959f", "paper": "#ffffff", "softmax": "#D55E00", "tree": "#0072B2"},
    "dark": {"ink": "#e6edf3", "faint": "#7d8590", "paper": "#131416", "softmax": "#FF8A3D", "tree": "#4DB2F0"},
}
TREE = catnat.balanced(8)
PROBS = torch.tensor([0.06, 0.10, 0.05, 0.27, 0.20, 0.12, 0.04, 0.16], dtype=torch.float64)
CLASS = 3  # whose path is drawn
WIDTH, RIGHT = 880, 455  # the right half begins at RIGHT
STEP, TOP, GAP, LEAVES = 34, 88, 52, 262  # between classes; first row of nodes; between levels; where bars stand


def line(start, end, colour, width, opacity=1.0):
    (x, y), (u, v) = start, end
    return (
        f'<line x1="{x:g}" y1="{y:g}" x2="{u:g}" y2="{v:g}" stroke="{colour}" '
        f'stroke-width="{width}" opacity="{opacity}"/>'
    )


def circle(place, fill, edge):
    return f'<circle cx="{place[0]:g}" cy="{place[1]:g}" r="9" fill="{fill}" stroke="{edge}" stroke-width="2"/>'


def text(x, y, words, colour, size=15, weight="normal", anchor="start"):
    font = f'font-size="{size}" font-weight="{weight}" text-anchor="{anchor}"'
    return f'<text x="{x:g}" y="{y:g}" fill="{colour}" {font}>{words}</text>'


def leaf(left, k):
    return left + 14 + STEP * k, LEAVES - 72


def bars(left, colour, theme):
    """The probabilities as bars, and the classes' numbers below them."""
    drawn = []
    for k, p in enumerate(PROBS.tolist()):
        (x, _), height = leaf(left, k), 240 * p
        drawn.append(
            f'<rect x="{x - 9:g}" y="{LEAVES + 14 - height:.1f}" width="18" height="{height:.1f}" fill="{colour}"/>'
        )
        drawn.append(text(x, LEAVES + 31, str(k), theme["faint"], 13, anchor="middle"))
    return drawn


def matrix(left, fisher, colour, theme):
    """A square of squares, as dark as an entry is large."""
    side = 104 / len(fisher)
    largest = np.abs(fisher).max()
    frame = f'<rect x="{left}" y="{TOP + 8}" width="104" height="104" fill="none" stroke="{theme["faint"]}"/>'
    return [frame] + [
        f'<rect x="{left + side * j:.2f}" y="{TOP + 8 + side * i:.2f}" width="{side:.2f}" height="{side:.2f}" '
        f'fill="{colour}" opacity="{max(0.12, abs(entry) / largest):.2f}"/>'
        for (i, j), entry in np.ndenumerate(fisher)
        if entry != 0
    ]


def softmax_half(theme):
    colour = theme["softmax"]
    logits = [(14 + STEP * k, TOP) for k in range(8)]
    drawn = [line(start, leaf(0, k), colour, 1, 0.75 if k == CLASS else 0.22) for start in logits for k in range(8)]
    drawn += [circle(place, theme["paper"], colour) for place in logits]
    probs = PROBS.numpy()
    return (
        drawn
        + bars(0, colour, theme)
        + matrix(300, np.diag(probs) - np.outer(probs, probs), colour, theme)
        + [
            text(0, 26, "softmax", colour, 22, "bold"),
            text(0, 50, "8 logits, and each moves every class", theme["ink"]),
            text(352, LEAVES - 40, "Fisher matrix", theme["ink"], 14, anchor="middle"),
            text(352, LEAVES - 21, "dense", theme["ink"], 14, "bold", "middle"),
        ]
    )


def tree_half(theme):
    colour = theme["tree"]
    levels = [[RIGHT + 14 + STEP * (2**h * (2 * i + 1) / 2 - 0.5) for i in range(8 // 2**h)] for h in (3, 2, 1)]
    nodes = [[(x, TOP + GAP / 1.5 * depth) for x in row] for depth, row in enumerate(levels)]
    rows = [*nodes, [leaf(RIGHT, k) for k in range(8)]]
    path = [(depth, CLASS >> (3 - depth)) for depth in range(4)]
    drawn = []
    for depth, row in enumerate(nodes):
        for i, place in enumerate(row):
            for child in (2 * i, 2 * i + 1):
                taken = (depth, i) in path and (depth + 1, child) in path
                drawn.append(line(place, rows[depth + 1][child], colour, 3.5 if taken else 1.2, 1 if taken else 0.5))
    for depth, row in enumerate(nodes):
        drawn += [circle(p, colour if (depth, i) in path else theme["paper"], colour) for i, p in enumerate(row)]
    scores = ct.scores_from_probs(PROBS, TREE)
    fisher = np.diag(ct.geometry.fisher_diagonal(scores, TREE).numpy())
    return (
        drawn
        + bars(RIGHT, colour, theme)
        + matrix(RIGHT + 300, fisher, colour, theme)
        + [
            text(RIGHT, 26, "catnat", colour, 22, "bold"),
            text(RIGHT, 50, "7 scores, and a class is a path of 3", theme["ink"]),
            text(RIGHT + 352, LEAVES - 40, "Fisher matrix", theme["ink"], 14, anchor="middle"),
            text(RIGHT + 352, LEAVES - 21, "diagonal", theme["ink"], 14, "bold", "middle"),
        ]
    )


def picture(theme):
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="-4 0 {WIDTH} {LEAVES + 40}" role="img" '
        'font-family="system-ui, -apple-system, Segoe UI, Roboto, Helvetica, Arial, sans-serif">'
    )
    title = "<title>Softmax and a tree of yes/no decisions give the same probabilities to eight classes</title>"
    return "\n".join([head, title, *softmax_half(theme), *tree_half(theme), "</svg>", ""])


CHOICES = [  # a question, what to take if the answer is yes, and where it is explained
    ("Do the labels form a taxonomy?", "sigmoid · tree: the taxonomy", "taxonomies"),
    ("More than 10,000 classes?", "CatnatHead, sigmoid · tree: ClassMeans or huffman", "heads"),
    ("A latent variable?", "sigmoid or natural · tree: balanced", "latents"),
    ("A latent graph?", "natural · EdgeSampler", "graphs"),
    ("A policy over many actions?", "sigmoid · tree: from_embeddings of action features", "policies"),
    ("A policy over few actions?", "keep what works: no difference measured", "games"),
    ("A classifier whose classes are alike?", "sigmoid · tree: ClassMeans; compare with softmax", "order"),
]


def flow_chart():
    """Questions from top to bottom; a yes leads to the right, where the answer is a link."""
    ink, paper = "var(--color-foreground-primary)", "var(--color-background-secondary)"
    height, asked, answer = 62, 300, 425

    def box(x, y, width, words, edge):
        frame = f'<rect x="{x}" y="{y}" width="{width}" height="38" rx="6" fill="{paper}" stroke="{edge}"/>'
        return frame + text(x + 12, y + 24, words, ink, 14)

    drawn = []
    for row, (question, take, page) in enumerate(CHOICES):
        y = 4 + height * row
        drawn += [
            box(4, y, asked, question, ink),
            line((asked + 4, y + 19), (answer, y + 19), ink, 1.2),
            text((asked + answer) / 2, y + 14, "yes", ink, 13, anchor="middle"),
            line((40, y + 38), (40, y + height), ink, 1.2),
            text(48, y + 55, "no", ink, 13),
            f'<a href="{page}.html">{box(answer, y, 400, take, "var(--color-brand-primary)")}</a>',
        ]
    drawn.append(box(4, 4 + height * len(CHOICES), asked, "Keep softmax.", ink))
    size = f'viewBox="0 0 {answer + 404} {height * len(CHOICES) + 48}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" style="width: 100%" font-family="inherit">'
    return "\n".join([head, "<title>Which tree and which activation</title>", *drawn, "</svg>", ""])


def pictures():
    """All of them, by the names of their files."""
    themed = {f"tree-in-place-of-softmax-{name}.svg": picture(theme) for name, theme in THEMES.items()}
    return {**themed, "choices.svg": flow_chart()}


def main():
    for name, svg in pictures().items():
        (STATIC / name).write_text(svg, encoding="utf-8")


if __name__ == "__main__":
    main()
