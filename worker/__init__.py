"""Jobs: the contract, the store, the queue, running a job."""
