"""The commands. One module per sub-command of `dynamix`, imported when it is used. In reading order:

main          finds the sub-command and runs it

demo          trains a small network on three uneven workers of this machine
examples      lists or copies scripts of one page
init          writes an annotated cluster file
build_byteps  builds and installs BytePS
doctor        checks this machine, or the hosts of a job
launch        runs a cluster file on its hosts, or so many workers without one
sbatch        the same as a batch job of Slurm
k8s           the same as manifests for Kubernetes
manifest_files  these as YAML, on the output or as files
agent         what runs in its pods beside the launcher
bpslaunch     `dynamix-bpslaunch`, which replaces BytePS's bpslaunch
certificates  makes what its roles need on several hosts

leave         lets a worker leave a run
join          lets one come back that has left or is lost

probe         shows the traffic between the processes of this host
records       what runs have left: lists of runs, summaries, tables, plots and pages
replay        another policy on the windows of a recorded run

rehearse      compares policies with a training script, in simulated time
policy        trains, compares, inspects and exports policies
policy_train  one training of a policy
policy_eval   one comparison of policies
sim           fits the simulator to real runs

options       options that several of them have
"""
