"""Check what Sphinx has made of every gallery script: pictures, none of them blank, and a notebook with the same code.

Usage: ``python .ci/check_gallery.py examples docs/gallery``

Sphinx runs the scripts, block by block; a notebook whose code cells are those blocks runs too.
"""

import ast
import json
import pathlib
import sys

import matplotlib.image


def notebook_problems(script: pathlib.Path, gallery: pathlib.Path):
    """What keeps a reader from opening the script as a notebook."""
    path = gallery / f"{script.stem}.ipynb"
    try:
        notebook = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, json.JSONDecodeError) as error:
        yield f"{path} is no notebook: {error}"
        return
    if notebook.get("nbformat") != 4:
        yield f"{path} is in format {notebook.get('nbformat')}, not in format 4, which Jupyter reads"
    code = ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"]
    # The script begins with its text; comments between blocks are text cells in the notebook.
    if ast.dump(ast.parse("\n".join(code))) != ast.dump(ast.Module(ast.parse(script.read_text()).body[1:], [])):
        yield f"{path} does not have the code of {script}"
    if f"<{path.name}>`" not in (gallery / f"{script.stem}.rst").read_text(encoding="utf-8"):
        yield f"the page of {script} does not offer {path.name}"


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
        problems += notebook_problems(script, gallery)
    print("\n".join(problems) or f"{len(scripts)} scripts: {pictures} pictures, none blank, and a notebook each")
    return bool(problems)


if __name__ == "__main__":
    sys.exit(main(*map(pathlib.Path, sys.argv[1:3])))
