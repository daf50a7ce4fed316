"""Policies: what turns the records of a window into batch sizes. Pure.

    base            what a policy sees, and what it answers
    registry        from the name in a cluster file to the policy
    third_party     policies from elsewhere, named `package.module:Class`
    window_arrays   the records of a window as arrays
    model           what is known of the cluster, and the plan that follows from it: the policy `model`
    learned         the policy `ppo`: a learned correction of that plan
    ppo             proximal policy optimisation in numpy
    safety_net      proportional shares in place of a policy that does worse
    evidence        proposals pass only with evidence
    baselines       policies that others have published, and simple ones
    stigmergy       every worker chooses its own size

A policy of a cluster file is made by `registry`: with its safety net, and with the evidence that its proposals need.
"""
