"""What the processes of `torch.distributed` tell each other, whatever it means.

    group        how many processes there are, and what is said if one does not answer
    joining      tensors of all processes, joined along their first dimension
    agreement    what all must have alike: what the first one decides, its clock, sums, settings
    torchrun     the group of processes that `torchrun` starts

Without a process group, or with one process, nothing is sent and every function gives what it is
given.
"""

from metricgrad.processes.agreement import agree as agree
from metricgrad.processes.agreement import clock as clock
from metricgrad.processes.agreement import copy_from_first as copy_from_first
from metricgrad.processes.agreement import from_first as from_first
from metricgrad.processes.agreement import passed as passed
from metricgrad.processes.agreement import sum_over_processes as sum_over_processes
from metricgrad.processes.agreement import told_by_all as told_by_all
from metricgrad.processes.group import alone as alone
from metricgrad.processes.group import is_first as is_first
from metricgrad.processes.group import number_of_processes as number_of_processes
from metricgrad.processes.group import own_rank as own_rank
from metricgrad.processes.joining import Parts as Parts
from metricgrad.processes.joining import join as join
from metricgrad.processes.joining import message_bytes as message_bytes
from metricgrad.processes.torchrun import joined_by_torchrun as joined_by_torchrun
