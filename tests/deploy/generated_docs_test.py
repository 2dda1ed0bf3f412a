#!/usr/bin/env python3
"""docs/client-fields.md, docs/configuration.md, docs/metrics.md and docs/tensorrt-llm.md are what `foredraft check-config --docs` writes from the tables in code.

usage: tests/deploy/generated_docs_test.py FOREDRAFT
"""

import difflib
import pathlib
import subprocess
import sys
import tempfile

DOCS = pathlib.Path(__file__).parent.parent.parent / "docs"


def main() -> int:
    stale = 0
    with tempfile.TemporaryDirectory() as written:
        subprocess.run([sys.argv[1], "check-config", "--docs", written], check=True)
        for path in sorted(pathlib.Path(written).iterdir()):
            committed = DOCS / path.name
            old = committed.read_text().splitlines() if committed.exists() else []
            new = path.read_text().splitlines()
            if old != new:
                stale += 1
                print("\n".join(difflib.unified_diff(old, new, f"docs/{path.name}", "written now", lineterm="", n=0)))
    if stale:
        print(f"{stale} documents differ from the tables in code; run: {sys.argv[1]} check-config --docs {DOCS}")
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
