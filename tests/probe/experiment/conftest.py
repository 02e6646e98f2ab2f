"""A real Ray on this machine, one for all tests of a file."""

import gc
import warnings

import drawn
import pytest
import torch

from probe.experiment.ray import ray_at


@pytest.fixture(scope="module")
def cluster(request):
    """Of four CPUs, as Ray counts them; workers and this process have a thread each, or sums are rounded otherwise."""
    threads = torch.get_num_threads()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "1")
        torch.set_num_threads(1)
        with ray_at(None, 4, verbose=False) as ray:
            for module in (request.module, drawn):  # workers cannot import these
                ray.cloudpickle.register_pickle_by_value(module)
            yield ray
    with warnings.catch_warnings():  # Ray lets go of processes that it has ended without waiting for them
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()
    torch.set_num_threads(threads)
