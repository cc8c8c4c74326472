"""Which tokens are computed next: plan and commit, queues, admission, preemption. Pure; time is an argument."""
