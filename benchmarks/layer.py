"""The conditional layer against dense torch: the same as `hardgate bench`.

python benchmarks/layer.py --help
"""

from __future__ import annotations

import sys

from hardgate_lab.__main__ import main

if __name__ == "__main__":
    sys.argv.insert(1, "bench")
    main()
