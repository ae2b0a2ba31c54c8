"""Why is it slow, what makes it faster, and did it work: answered with evidence.

Public names are imported on first use, so that ``import tinytorch`` stays light.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tinytorch.comparison.compare import compare
    from tinytorch.comparison.comparison import Comparison
    from tinytorch.comparison.processes import Isolated
    from tinytorch.core.autograd import no_grad
    from tinytorch.core.dispatch import set_backend, use_backend
    from tinytorch.core.tensor import Tensor
    from tinytorch.models.inputs import Batches
    from tinytorch.models.targets import load_workload
    from tinytorch.models.workload import Workload
    from tinytorch.monitoring.monitor import Monitor
    from tinytorch.profiling.model_profile import profile_model, profile_workload
    from tinytorch.profiling.profile import Profile
    from tinytorch.scale.compare_torch import compare_ranks
    from tinytorch.scale.ranks_torch import profile_ranks
    from tinytorch.tuning.export import export
    from tinytorch.tuning.loading import load_optimized
    from tinytorch.tuning.optimization import Optimization
    from tinytorch.tuning.optimize import optimize
    from tinytorch.tuning.saving import save_optimized

__version__ = "0.2.0"

__all__ = [
    "Batches",
    "Comparison",
    "Isolated",
    "Monitor",
    "Optimization",
    "Profile",
    "Tensor",
    "Workload",
    "__version__",
    "compare",
    "compare_ranks",
    "export",
    "load_optimized",
    "load_workload",
    "no_grad",
    "optimize",
    "profile_model",
    "profile_ranks",
    "profile_workload",
    "save_optimized",
    "set_backend",
    "use_backend",
]

# Public name -> the module that holds it.
_HOMES = {
    "Batches": "tinytorch.models.inputs",
    "Comparison": "tinytorch.comparison.comparison",
    "Isolated": "tinytorch.comparison.processes",
    "Monitor": "tinytorch.monitoring.monitor",
    "Optimization": "tinytorch.tuning.optimization",
    "Profile": "tinytorch.profiling.profile",
    "Tensor": "tinytorch.core.tensor",
    "Workload": "tinytorch.models.workload",
    "compare": "tinytorch.comparison.compare",
    "compare_ranks": "tinytorch.scale.compare_torch",
    "export": "tinytorch.tuning.export",
    "load_optimized": "tinytorch.tuning.loading",
    "load_workload": "tinytorch.models.targets",
    "no_grad": "tinytorch.core.autograd",
    "optimize": "tinytorch.tuning.optimize",
    "profile_model": "tinytorch.profiling.model_profile",
    "profile_ranks": "tinytorch.scale.ranks_torch",
    "profile_workload": "tinytorch.profiling.model_profile",
    "save_optimized": "tinytorch.tuning.saving",
    "set_backend": "tinytorch.core.dispatch",
    "use_backend": "tinytorch.core.dispatch",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found: object = getattr(import_module(_HOMES[name]), name)
    globals()[name] = found  # The next access does not come here again.
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
