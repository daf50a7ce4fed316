"""Questions about policies and training, each answered by one command: `python -m benchmarks.studies.NAME`.

In the simulator:

    policies            every policy on every scenario that ships
    clock               what tiles, cliffs, shared hosts, heat and work that comes back cost every policy
    ceiling             how much an oracle, and so any choice of batch sizes, can gain
    reward_k            how far the weights of the reward, and the iterations per decision, may be off
    stigmergy           decisions without a centre, beside the central agent and its rivals
    scaling             8 to 1,024 workers on networks that change: the agent that ships, PPO and the learner of DYNAMIX
    pid_published       whether `pid` matches the published results of dynamic batching
    calibration         simulated runs against recorded ones
    calibration_record  records the real runs for calibration

Real training in one process:

    rehearsal           rehearsed runs against recorded ones
    rehearsal_bed       rehearsed runs against the cells of the published grid
    agent               what the agent is worth: all questions about it, with rehearsed runs
    wire_precision      the accuracy that half precision on the wire costs
    paper_mode          the agent of DYNAMIX under two readings of its reward, beside its claims (rehearsed)
    gpt                 batches of a language model: ours, goodput, tuned sizes and the paper's space (rehearsed)
    transfer_rehearsed  policies trained on one family, used on real gradients of another (rehearsed)
    scaling_rehearsed   64 and 256 workers on such networks, with real gradients (rehearsed)
    critical_batch      the critical batch size of a language model by branching, beside our noise scale

On real BytePS:

    ring_or_server      ring and parameter server side by side, with equal and with adaptive sizes
    bed_clock           the clock part of contenders, measured and rehearsed
    membership          what it costs the others when a worker goes or comes
    soak                whether a job with 100 random events in half an hour ends right
    spot                machines that go and come back: membership beside restarts from checkpoints

About our pages, our code and the machine:

    published           the tables that README and docs/results.md print, from the raw tables
    quota_waiting       how long workers with CPU quotas wait for each other

    faults              a campaign of kills, stops, full disks and attacks on real runs
    data_plane_race     whether a sum is ever wrong while processes stop at random
    frameworks          trainings in Lightning, accelerate and transformers against their bars

Shared:

    launching           one training under `dynamix launch`, and the processes of one
    study               command line, CSV, picture and page of a study
    rehearsed_cells     rehearsed runs as rows of a table, to which a later call adds
    rehearsed_study     their command: what is left, a progress bar, the first line of the page
    agent_cells         workloads, contenders and questions of the study of the agent
    agent_sizes         the fixed sizes that it tries
    agent_answers       ratios over paired seeds, their two parts, and verdicts
    agent_page          its page
    agent_clusters      the clusters of that study: scenarios that ship, for trainings of another size
    paper_mode_cells    workloads, rates, clusters and contenders of the study of the paper's readings
    paper_mode_answers  its times and accuracies, pooled over groups
    paper_mode_page     its page
    gpt_cells           the training, contenders and questions of the study of language models
    gpt_page            its page
    families            simulated clusters with other trainings, on which policies for it are trained
    transfer_rehearsed_cells  directions, policies, clusters and contenders of the study of transfer on real gradients
    transfer_rehearsed_page   its page
    ablated             a policy with one of its decisions switched off
    seesaw              a policy whose batch grows where a schedule would lower the rate
    bed_cells           runs on the bed, which a later call adds to
    ring_or_server_cell  one run of that comparison
    bed_clock_cell      one run of that check on the bed
    bed_clock_answers   seconds per sample, their ratios, and how near the rehearsed ones are
    fault_kinds         the faults of the campaign
    fault_job           one run that a fault hits
    race_worker         a worker of the race, which checks every sum
    membership_job      one job of the study of membership, and what it cost the others
    membership_worker   a worker of that job
    decided_windows     whether decisions go on after something has happened to a job
    membership_net      what it trains
    soak_job            the job of the soak: its launch, and what must hold at its end
    soak_events         what happens to its workers
    soak_training       what it trains, and what is wrong with that afterwards
    soak_worker         a worker of that job
    spot_schedule       when machines of that study go and come back
    spot_job            one training of it, by either contender
    spot_launch         one `dynamix launch` of it
    spot_worker         a worker of it
    stigmergy_page      figures, tables and picture of that study
    scaling_page        figures, tables and picture of the study of many workers
    unsteady            its clusters: links and speeds that change while training runs
    reward_k_page       figures, tables and picture of the study of the reward
    surrogate_worlds    its worlds: trainings fitted to the workloads that ship, on clusters for them
    agent_runs          runs of the structured policy on many simulated clusters at once
    kept_rows           rows of a simulated study, to which a later call adds
    trainings           trained policies, and what several trainings come to
"""
