"""Check that every gallery script drew at least one picture, and that no picture is blank.

Usage: ``python .ci/check_gallery.py examples docs/gallery``
"""

import pathlib
import sys

import matplotlib.image


def main(examples: pathlib.Path, gallery: pathlib.Path) -> int:
    scripts = sorted(path for path in examples.glob("*.py") if not path.name.startswith("_"))
    problems = [] if scripts else [f"{examples} holds no scripts"]
    pictures = 0
    for script in scripts:
        images = sorted((gallery / "images").glob(f"sphx_glr_{script.stem}_[0-9]*.png"))
        if not images:
            problems.append(f"{script} drew no picture")
        # Something must stand out from the background for the picture to be more than an empty page.
        problems += [f"{image} is blank" for image in images if matplotlib.image.imread(image).std() < 0.01]
        pictures += len(images)
    print("\n".join(problems) or f"{pictures} pictures from {len(scripts)} scripts, none blank")
    return bool(problems)


if __name__ == "__main__":
    sys.exit(main(*map(pathlib.Path, sys.argv[1:3])))
