"""Questions about policies and training, each answered by one command: `python -m benchmarks.studies.WING.NAME`.

    agent            what the agent is worth, and what its parts and settings are
    language_models  batch sizes of a language model
    clusters         policies on simulated clusters of many kinds
    bed              runs on the test bed or its recordings, beside the simulator, rehearsals and each other
    membership       jobs whose workers come and go
    faults           faults in real runs
    wire_precision   the accuracy that fewer bytes on the wire cost
    found_rates      the learning rates that a race suggests, beside tuned ones
    frameworks       trainings in Lightning, accelerate and transformers against their bars
    published        the tables that README and docs/results.md print, from the raw tables

What they share:

    study            command line, CSV, picture and page of a study
    kept_rows        rows of a simulated study, to which a later call adds
    rehearsed_cells  rehearsed runs as rows of a table, to which a later call adds
    rehearsed_study  their command: what is left, a progress bar, the first line of the page
    trainings        policies trained for a study
    launching        one training under `dynamix launch`, and the processes of one
    ablated          a policy with one of its decisions switched off
"""
