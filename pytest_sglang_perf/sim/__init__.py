"""The simulated node: programs that stand in for sglang and nvidia-smi where there is no GPU.

``python -m pytest_sglang_perf.sim.server`` takes sglang's own flags, writes sglang's log, serves sglang's HTTP
interface and dies the ways sglang dies; ``python -m pytest_sglang_perf.sim.nvidia_smi`` reads the GPUs it drives.
Both are real processes, so that everything above them (agent, supervision, load, sampling) runs unchanged.

What a node is told and is like
    settings     what its environment says: profile, time scale, seed, state folder, faults
    profiles     performance, power and boot of a machine, as data
    flags        the command line of one sglang version, from a table in dialects/
    performance  what a profile means for one server's flags: step times, watts, crashes
    noise        the boot's own speed and its slow drift
    faults       what a test orders to go wrong
The server
    server       the program; serving, one server from boot to end; boot, warmup, ending: its stages
    scheduler    continuous batching in simulated time (clock), through seams; radix, the prefix cache
    sequence     one request, its tokens and its text
    http, api    a small HTTP server, and sglang's endpoints; inputs, replies, facts, prometheus: their shapes
    log, crashes sglang's lines in the dialect of a version, and what a dying rank prints
    processes    the titled child processes
The GPUs
    gpus         the state file between the server and nvidia_smi
    nvidia_smi   the program; smi_node, its view of the GPUs

What is modelled, with which figures and from where, is told in ``docs/reference/simulated-node.md``.
"""
