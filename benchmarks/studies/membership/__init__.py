"""Jobs whose workers come and go, on real BytePS.

cost             what it costs the others when a worker goes or comes
soak             whether a job ends right in which 100 events strike processes, links, memory and disk
spot             machines that go and come back: membership beside restarts from checkpoints

cost_job         one job of `cost`, and what it cost the others
cost_worker      a worker of that job
cost_net         what it trains
decided_windows  whether decisions go on after something has happened to a job
soak_plan        how large a job of the soak is, and its cluster file
soak_job         that job: its launch, what happens to it, and what must hold at its end
soak_events      which kinds of events there are
soak_network     what happens to the link of a host
soak_limits      what roles run short of: disk, memory, an hour on the clock
soak_site        an event, and the place where events happen
soak_members     who takes part, and whether what happened shows there
soak_launch      `dynamix launch` on hosts of its own
soak_place       where a worker is: its network, and its clock
soak_training    what it trains, and what is wrong with that afterwards
soak_worker      a worker of that job
spot_schedule    when machines of `spot` go and come back
spot_job         one training of it, by either contender
spot_launch      one `dynamix launch` of it
spot_worker      a worker of it
"""
