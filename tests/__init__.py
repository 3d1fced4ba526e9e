"""The tests. The package comes first, so that its settings of OpenMP precede torch."""

import vllm_lite  # noqa: F401
