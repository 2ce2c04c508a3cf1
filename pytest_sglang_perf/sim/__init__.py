"""The simulated node: programs that stand in for sglang and nvidia-smi where there is no GPU.

``python -m pytest_sglang_perf.sim.server`` takes sglang's own flags, writes sglang's log, serves sglang's
HTTP interface and dies the ways sglang dies; ``python -m pytest_sglang_perf.sim.nvidia_smi`` reads the GPUs
it drives. Both are real processes, so that everything above them (agent, supervision, load, sampling) runs
unchanged.

    server      the program: arguments, boot, serving, stopping
    settings    what the environment of a node says (profile, time scale, seed, state folder, faults)
    flags       the command line of one sglang version, from a table
    profiles    performance, power and boot of a machine, as data
    performance what a profile means for one server's flags: step times, watts, crashes
    noise       the boot's own speed and its slow drift
    clock       simulated seconds, and a timer finer than the event loop's
    scheduler   continuous batching in simulated time
    radix       the prefix cache
    sequence    one request, its tokens and its text
    http        an HTTP/1.1 server made for many small streamed chunks
    api         sglang's endpoints
    replies     the shapes of streamed and whole answers
    log         sglang's log lines, in the dialect of a version
    boot        the phases of a boot
    processes   the titled child processes
    gpus        the state file that nvidia_smi reads
    crashes     what a dying sglang prints

What is modelled, with which figures and from where, is told in ``docs/reference/simulated-node.md``.
"""
