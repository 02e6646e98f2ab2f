"""Hides the package named in HIDDEN, as if its folder were not there; imported first, or as pytest's `-p hiding`."""

import os
import sys


class _Hidden:
    def find_spec(self, name, path=None, target=None):
        if f"{name}.".startswith(f"{os.environ['HIDDEN']}."):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


sys.meta_path.insert(0, _Hidden())
