"""DYNAMIX on BytePS, the product. In reading order, from what a user touches down to what everything stands on:

torch, mxnet     what a training script imports
integrations     the same for Lightning, accelerate, transformers and experiment loggers
cli              the command `dynamix`, one module per sub-command; __main__ is `python -m dynamix_ps`
launch           one run on this machine: start all roles, watch them, stop them, clean up
other_launchers  the same for jobs that torchrun, srun, mpirun or accelerate have started
arbitrator       the service that receives window records and answers with plans
policy           the policies, which make a plan out of window records
rehearsal        one process trains a script's model as all workers would, with simulated times
sim              a simulated cluster, to train and compare policies; replay of recorded runs
report           what a person sees of a run: live view, summary, plots, TensorBoard, Prometheus
membership       who takes part in which round when workers and servers come and go (pure)
run_record       what a run writes into its folder, and how it is read back
comm             the data planes as a worker uses them
data_planes      which data planes there are
rpc              the messages between workers, servers and arbitrator
metrics          measurements: gradient noise, machine, network
byteps_build     builds BytePS with our changes
config           the cluster file and the variables of a run
messages         the values that hooks, arbitrator and policies exchange
field_table      how the fields of these values are described
bounded_json     JSON that anybody may have written
errors           all errors, with their exit codes
exit_codes       how a command ends
terminal         what commands print with
apportion        splits whole numbers by weights
shares           the sizes of a plan where workers come and go
certificates     of one host, with which its roles encrypt
addresses        host and port as one text, and whether a port can be had there
cgroups          reads the control groups of this process
own_process      starts a process that imports nothing from its working folder
one_thread       environment for processes that need one thread for their matrix products
packages         which Python packages are installed
shipped          files that come with this package: examples, a board for Grafana
open_files       the limit on open files, and files in reserve
parts            loads what may have been taken away, by its name
token_proof      how two processes prove that they know the token of the run
standard_streams  standard streams that a process was started without
numpy_names      names that MXNet needs and NumPy has dropped
"""

import sys

__version__ = "0.2.0"

if sys.platform != "linux":
    raise ImportError(
        f"dynamix_ps runs on Linux alone, and this is {sys.platform}; use a machine or container with Linux"
    )
