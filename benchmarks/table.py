"""Print the full table of a result file, with intervals: ``python -m benchmarks.table NAME``."""

import argparse

from benchmarks.pages import tables
from benchmarks.record import RESULTS, read
from treeagent.types import UserError


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", help="a file in results/, without .json")
    parser.add_argument("--control", default="", help="the arm from which paired differences are computed")
    options = parser.parse_args()
    found = read(RESULTS / f"{options.name}.json")
    if found is None:
        known = ", ".join(sorted(path.stem for path in RESULTS.glob("*.json")))
        raise UserError(f"results hold no {options.name!r}: use one of {known}")
    if options.control and options.control not in found.arms:
        raise UserError(f"{options.name} has no arm {options.control!r}: use one of {', '.join(found.arms)}")
    print(found.question, end="\n\n")
    if tables.played_arms(found):
        print(tables.success_table(found, options.control), end="\n\n")
    if any(row.figures for row in found.rows):
        print(tables.figures_table(found), end="\n\n")
    print(tables.caption(found))


if __name__ == "__main__":
    try:
        main()
    except UserError as error:
        raise SystemExit(str(error)) from None
