"""What the processes of `torch.distributed` tell each other, whatever it means.

    group      who there is, and what all must have alike: what the first one decides, its clock,
               sums, settings
    joining    tensors of all processes, joined along their first dimension

Without a process group, or with one process, nothing is sent and every function gives what it is
given.
"""

from metricgrad.processes.group import agree as agree
from metricgrad.processes.group import alone as alone
from metricgrad.processes.group import clock as clock
from metricgrad.processes.group import copy_from_first as copy_from_first
from metricgrad.processes.group import from_first as from_first
from metricgrad.processes.group import is_first as is_first
from metricgrad.processes.group import joined_by_torchrun as joined_by_torchrun
from metricgrad.processes.group import number_of_processes as number_of_processes
from metricgrad.processes.group import own_rank as own_rank
from metricgrad.processes.group import passed as passed
from metricgrad.processes.group import sum_over_processes as sum_over_processes
from metricgrad.processes.group import told_by_all as told_by_all
from metricgrad.processes.joining import Parts as Parts
from metricgrad.processes.joining import join as join
