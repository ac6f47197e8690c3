"""Every public name, and the module that gives it."""

from __future__ import annotations

import hardgate
from hardgate import baselines, estimators, functional, noise

PUBLIC = [
    (module, name)
    for module in (hardgate, functional, noise, baselines, estimators)
    for name in module.__all__
]
