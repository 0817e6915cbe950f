"""A job whose every sweep takes several seconds, on a small tensor: a thousand passes over one long factor."""

from tests.worker.lab import put, random_tensor, request
from tests.worker.running import Lab
from worker.contract import Job
from worker.wake import wake

TENSOR = random_tensor(4000, 20, 20)


def submit_slow(lab: Lab, **stop: float) -> Job:
    tensor = put(lab.records, lab.store, TENSOR)
    asked = request(tensor, rank=60, method="apg", inner_passes=1000, stop={"tolerance": 0, **stop})
    job, _ = lab.records.submit("local", asked)
    wake(lab.configuration)
    return job
