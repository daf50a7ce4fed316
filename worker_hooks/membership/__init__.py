"""How a worker of an elastic job meets the others, and newcomers. In reading order:

departures      who leaves the job on notice, and with which sum
entries         which workers and servers enter a job that trains, and with which iteration
votes           what the sums of a training decide about its members
newcomers       whom newcomers follow, and who gives them the state
arrival         the way of the state to a worker that enters
handover        what a newcomer gets beside the state
member_process  this process as a member, for all trainings in it
member          what a worker does in changes of membership, beside training
"""
