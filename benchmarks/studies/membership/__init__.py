"""Jobs whose workers come and go, on real BytePS.

cost             what it costs the others when a worker goes or comes
soak             whether a job with 100 random events in half an hour ends right
spot             machines that go and come back: membership beside restarts from checkpoints

cost_job         one job of `cost`, and what it cost the others
cost_worker      a worker of that job
cost_net         what it trains
decided_windows  whether decisions go on after something has happened to a job
soak_job         the job of the soak: its launch, and what must hold at its end
soak_events      what happens to its workers
soak_training    what it trains, and what is wrong with that afterwards
soak_worker      a worker of that job
spot_schedule    when machines of `spot` go and come back
spot_job         one training of it, by either contender
spot_launch      one `dynamix launch` of it
spot_worker      a worker of it
"""
