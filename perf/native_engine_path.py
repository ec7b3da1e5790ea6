"""Import this first: it puts the native engine's package on the path, where Triton's stub would put it."""

import sys

from uzu.resources import python_backends

sys.path.append(str(python_backends() / "uzu"))
