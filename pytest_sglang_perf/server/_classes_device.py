"""Crash classes of memory, GPUs, kernels and the links between them."""

from __future__ import annotations

from ._crash_class import CrashClass, Depth, sglang_issue

__all__ = ["DEVICE_CLASSES"]

_OOM = (
    r"(?:CUDA|HIP|XPU|NPU) out of memory\.?(?P<detail> Tried to allocate [\d.]+ \wiB)?",
    r"OutOfMemoryError(?!: (?:CUDA|HIP|XPU|NPU) out of memory)",
    r"(?:cudaErrorMemoryAllocation|hipErrorOutOfMemory)",
    r"(?:CUDA|HIP|XPU|MUSA) error: out of memory",
    r"CUDA_ERROR_OUT_OF_MEMORY",
    r"CU(?:BLAS|DNN|SPARSE)_STATUS_ALLOC_FAILED",
    r"Failed to CUDA calloc|[Ff]ailed to allocate \d+ bytes on (?:device|GPU)",
)

DEVICE_CLASSES = (
    CrashClass(
        "gpu-lost",
        "The driver lost a GPU or reported a hardware fault",
        (
            "Read `dmesg -T | grep -i xid` on the node: the Xid number names the fault.",
            "The GPU needs a reset or the node a reboot; do not trust figures from before.",
        ),
        (
            r"(?P<detail>NVRM: Xid \([^)]*\): (?:8|48|6[1-4]|69|7[49]|9[245]|1[0-5]\d)\b.{0,60})",
            r"GPU has fallen off the bus",
            r"GPU is (?:lost|probably locked)",
            r"Unable to determine the device handle",
            r"(?P<detail>uncorrectable (?:ECC|NVLink) error)",
            r"(?:CUDA|HIP) error: (?P<detail>unknown error|hardware stack error|an uncorrectable .*)",
            r"nvidia-smi has failed",
        ),
        precursor=True,
        links=("https://docs.nvidia.com/deploy/xid-errors/",),
    ),
    CrashClass(
        "driver-mismatch",
        "The NVIDIA driver does not fit this CUDA",
        (
            (
                "Compare `nvidia-smi` (driver, highest CUDA) with the torch build; update the driver or use a build "
                "for "
                "an older CUDA."
            ),
            "After a driver update without a reboot, reload the kernel module or reboot.",
        ),
        (
            r"CUDA driver version is insufficient",
            r"forward compatibility was attempted",
            r"Driver/library version mismatch",
            r"NVIDIA driver on your system is too old",
            r"cudaErrorInsufficientDriver",
            r"(?P<detail>libcuda\.so[\w.]*): cannot open shared object file",
            r"CUDA error: (?:system has unsupported display driver|the provided PTX was compiled with an unsupported)",
        ),
        precursor=True,
    ),
    CrashClass(
        "gpu-not-found",
        "Fewer GPUs are visible than the configuration needs",
        (
            "Compare --tp (times --pp, --dp) and --base-gpu-id with `nvidia-smi -L` and CUDA_VISIBLE_DEVICES.",
            "In a container, pass the GPUs through (`--gpus all`).",
        ),
        (
            r"invalid device ordinal",
            r"No CUDA GPUs are available",
            r"no CUDA-capable device is detected",
            r"Found no NVIDIA driver on your system",
            r"Expected a cuda device, but got: cpu",
            r"No accelerator \(CUDA",
        ),
    ),
    CrashClass(
        "gpu-occupied",
        "Another process is using a GPU",
        (
            "List GPU processes with nvidia-smi and stop what is left of earlier runs.",
            "SGLANG_ENABLE_TP_MEMORY_INBALANCE_CHECK=0 turns the check into a warning.",
        ),
        (
            r"The memory capacity is unbalanced",
            r"CUDA-capable device\(s\) is/are busy or unavailable",
            r"all CUDA-capable devices are busy",
        ),
    ),
    CrashClass(
        "torch-compile-fullgraph",
        "torch.compile(fullgraph=True) met code that it cannot trace, such as a kernel that is built at its first call",
        (
            (
                "Switch the compiled prefill graphs off: --disable-piecewise-cuda-graph up to 0.5.13, "
                "--cuda-graph-backend-prefill=disabled from 0.5.14."
            ),
            (
                "For NVFP4 models choose another FP4 back end, or a flashinfer whose fp4_quantize is a registered "
                "operator (it cannot be traced while it compiles itself)."
            ),
        ),
        (
            r"torch\._dynamo\.exc\.(?P<detail>Unsupported: .{0,100})",
            r"(?P<detail>Attempted to call function marked as skipped)",
            r"Unsupported: (?P<detail>.*(?:graph break|marked as skipped|[Ll]ogger not supported).{0,60})",
            r"fullgraph=True.*(?P<detail>fp4_quantize)",
        ),
        links=("https://github.com/flashinfer-ai/flashinfer/issues/2999", *sglang_issue(21419, 19818)),
    ),
    CrashClass(
        "triton-out-of-resources",
        "A Triton kernel needs more shared memory than this GPU has",
        (
            "Choose another attention or MoE back end, or one without Triton for this step.",
            (
                "Kernel tables tuned for data-centre GPUs do not fit consumer and workstation ones (about 100 kB); "
                "it may "
                "show only under load, when a larger tile is picked."
            ),
        ),
        (
            r"out of resource: (?P<detail>shared memory.{0,80})",
            r"triton\.runtime\.errors\.OutOfResources(?!: out of resource: shared)",
        ),
        links=sglang_issue(8513, 5995),
    ),
    CrashClass(
        "gpu-arch-unsupported",
        "A kernel was not built for this GPU's architecture",
        (
            "Choose other back ends (--attention-backend, --moe-runner-backend, --fp4-gemm-runner-backend).",
            (
                "Or use wheels built for this compute capability (`python -c 'import torch; "
                "print(torch.cuda.get_device_capability())'`)."
            ),
        ),
        (
            r"no kernel image is available",
            r"Unsupported architecture",
            r"requires (?:SM|sm_?|compute capability )(?P<detail>\d+)",
            r"TllmGenFmhaRunner",
            r"only supports? sm\d+ and above",
            r"on Ampere/Ada cards only supports",
            r"dispatches (?P<detail>sm\w+)",
            r"No supported CUDA architectures? found",
            r"Unsupported (?:GPU|CUDA) arch\w*|[Uu]nsupported SM version",
            r"(?:CUDA|HIP) error: (?:invalid device function|device kernel image is invalid)",
        ),
        links=sglang_issue(7249, 38515, 29580, 25563),
    ),
    CrashClass(
        "jit-build-failed",
        "A kernel could not be compiled on the node",
        (
            "Install a CUDA toolkit that matches torch (nvcc on PATH, CUDA_HOME), and ninja and a C++ compiler.",
            "Over SSH the PATH is not that of a login shell: add the compiler's folder by env: {PATH: ...}.",
            "Delete the half-built cache (~/.cache/flashinfer, ~/.cache/torch_extensions, ~/.triton) and try again.",
            "The compiler's own first error is above the Python traceback.",
        ),
        (
            r"Ninja build failed",
            r"'ninja', '-v'.*returned non-zero",
            r"FileNotFoundError: .*'ninja'",
            r"Could not find (?:nvcc|CUDA installation|a CUDA toolkit)",
            r"(?P<detail>nvcc fatal\s*:.{0,100})",
            r"fatal error: (?P<detail>[\w./+-]+\.(?:h|hpp|cuh)): No such file",
            r"Error building extension '(?P<detail>[\w.]+)'",
            r"CUDA_HOME environment variable is not set",
            r"(?:nvcc|NVCC) compilation failed",
            r"(?P<detail>ptxas fatal\s*:.{0,100})",
            r"PTXASError|Internal Triton PTX codegen error",
            r"triton\.compiler\.errors\.CompilationError",
            r"(?:nvcc|ninja|gcc|g\+\+): (?:command )?not found",
            r"Failed to find C compiler",
        ),
        links=(
            *sglang_issue(5389),
            "https://github.com/flashinfer-ai/flashinfer/issues/4410",
            "https://github.com/flashinfer-ai/flashinfer/issues/1892",
        ),
    ),
    CrashClass(
        "kv-budget-too-small",
        "After the weights, the memory share granted to sglang leaves too little for the KV cache",
        (
            "Raise --mem-fraction-static (the message may name the smallest that works).",
            "Or use more GPUs (--tp), a smaller model or quantisation, or --kv-cache-dtype fp8_e4m3.",
            "This is the opposite of an out-of-memory error: lowering --mem-fraction-static makes it worse.",
        ),
        (
            r"Not enough memory[.,;]? Please try (?:to increas\w+|increas\w+) (?P<detail>--mem-fraction-static)",
            r"Loaded weights leave no GPU memory for the KV cache(?P<detail> under --mem-fraction-static=[\d.]+)?",
            r"Memory pool size is too small",
        ),
        links=sglang_issue(322, 4330),
    ),
    CrashClass(
        "cuda-oom-at-startup",
        "The GPU ran out of memory while the server came up",
        (
            "Lower --mem-fraction-static (by 0.05 at a time), --cuda-graph-max-bs or --max-running-requests.",
            "If it happened while weights were loaded: the model does not fit; use more GPUs, offload or quantise.",
            "Check that no other process holds memory on these GPUs.",
        ),
        _OOM,
        links=sglang_issue(1455, 1030, 445),
    ),
    CrashClass(
        "cuda-oom-under-load",
        "The GPU ran out of memory while it served requests",
        (
            (
                "Lower --mem-fraction-static to leave more for activations, or --chunked-prefill-size and "
                "--max-running-requests."
            ),
            "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True helps against fragmentation.",
            "With expert parallelism, uneven routing makes one rank's batch larger than the others'.",
        ),
        (),
        links=sglang_issue(1455),
    ),
    CrashClass(
        "illegal-memory-access",
        "A GPU kernel touched memory that is not its own",
        (
            (
                "CUDA reports this late: the frame in the traceback is not the culprit. Repeat with "
                "CUDA_LAUNCH_BLOCKING=1."
            ),
            (
                "Try without the newest feature first: overlap schedule, CUDA graphs, custom all-reduce, the attention "
                "or MoE back end, expert parallelism."
            ),
            "Keep the CUDA core dump that sglang writes, for a bug report.",
        ),
        (
            r"an illegal memory access was encountered",
            r"CUDA_ERROR_ILLEGAL_ADDRESS|cudaErrorIllegalAddress|hipErrorIllegalAddress",
            r"misaligned address",
            r"Failed to encode tensor map: 700",
            r"unspecified launch failure",
            r"an illegal instruction was encountered",
            r"Memory access fault by GPU",
            r"HSA_STATUS_ERROR_MEMORY_(?:APERTURE_VIOLATION|FAULT)",
            r"(?P<detail>NVRM: Xid \([^)]*\): (?:13|31|43|45)\b.{0,60})",
            r"Warp Illegal (?:Address|Instruction)",
        ),
        links=sglang_issue(4673, 8336, 8296, 18785, 6590),
    ),
    CrashClass(
        "nan-logits",
        "The model produced NaN instead of logits",
        (
            (
                "A kernel or a quantised back end computes wrongly here: compare with another attention, MoE or FP4 "
                "back "
                "end and with --kv-cache-dtype auto."
            ),
            "Figures of a server that answers garbage mean nothing, however fast they are.",
        ),
        (
            r"Detected errors during sampling! NaN in the logits",
            r"NaN happened",
            r"probability tensor contains either `?inf`?, `?nan`?",
        ),
        precursor=True,
        links=sglang_issue(33187, 29453),
    ),
    CrashClass(
        "device-side-assert",
        "An assertion inside a GPU kernel failed, mostly an index out of range",
        (
            "Look for 'Assertion ... failed' lines from .cu files above: they name the check.",
            "Repeat with CUDA_LAUNCH_BLOCKING=1; try without CUDA graphs and without the overlap schedule.",
        ),
        (
            r"device-side assert triggered",
            r"\.cu:\d+: .*Assertion `(?P<detail>[^`']{1,80})[`'] failed",
            r"(?P<detail>HSA_STATUS_ERROR_EXCEPTION)",  # how ROCm reports a trap in a kernel
        ),
        precursor=True,
        links=sglang_issue(1953, 1571),
    ),
    CrashClass(
        "token-id-out-of-range",
        "A request held a token id that the model does not have, and its embedding looked it up",
        (
            (
                "Keep the ids that the load sends below the model's vocabulary (`vocab` of the workload); "
                "sglang does not "
                "check them."
            ),
            "On a GPU the same shows as a device-side assert.",
        ),
        (r"^IndexError: index out of range in self",),
    ),
    CrashClass(
        "shm-too-small",
        "Shared memory ran out",
        (
            (
                "In a container raise --shm-size (32g for 8 GPUs) or use --ipc=host; on Kubernetes mount an emptyDir "
                "of "
                "medium Memory at /dev/shm."
            ),
            "`df -h /dev/shm` shows what is left; remove nccl-* files of dead processes.",
        ),
        (
            r"Error while creating shared memory segment",
            r"posix_fallocate failed",
            r"\bBus error\b|\bSIGBUS\b",
            r"unable to (?:allocate|open|resize|write) .*shared memory",
            r"No space left on device.*/dev/shm|/dev/shm.*No space left on device",
            r"insufficient shared memory \(shm\)",
        ),
        precursor=True,
        links=(*sglang_issue(1986), "https://github.com/NVIDIA/nccl/issues/290"),
    ),
    CrashClass(
        "disk-full",
        "A disk of the node is full",
        ("`df -h` on the node; kernel caches, core dumps and model downloads are the usual suspects.",),
        (r"No space left on device", r"Disk quota exceeded"),
    ),
    CrashClass(
        "mscclpp-unavailable",
        "mscclpp could not be set up",
        (
            "Leave --enable-mscclpp out: it acts only at world sizes 8 and 16 and on messages up to 1 MB.",
            "It needs the mscclpp package, libibverbs and, with several NICs, MSCCLPP_HCA_DEVICES.",
        ),
        (r"libibverbs\.so", r"MSCCLPP_HCA_DEVICES", r"mscclpp::\w*Error", r"No module named 'mscclpp'"),
        links=sglang_issue(6834),
    ),
    CrashClass(
        "expert-parallel-comm",
        "The expert-parallel exchange (DeepEP, NVSHMEM) failed",
        (
            (
                "Check that --ep and --moe-a2a-backend fit this machine's links; NVSHMEM needs InfiniBand or NVLink "
                "set "
                "up for it."
            ),
            "Raise SGLANG_DEEPEP_NUM_MAX_DISPATCH_TOKENS_PER_RANK if the batch is larger than it.",
        ),
        (
            r"DeepEP (?:error|timeout)",
            r"(?:nvshmem|NVSHMEM)\S*.{0,60}(?:[Ff]ailed|[Ee]rror|unable)",
            r"deep_ep.*assert|num_max_dispatch_tokens_per_rank",
        ),
    ),
    CrashClass(
        "nccl-failure",
        "NCCL failed",
        (
            "Repeat with NCCL_DEBUG=INFO: the last NCCL WARN line of the first failing rank is the cause.",
            (
                "Common causes: small /dev/shm, wrong NCCL_SOCKET_IFNAME, P2P blocked by IOMMU/ACS "
                "(NCCL_P2P_DISABLE=1 to "
                "confirm)."
            ),
        ),
        (
            r"NCCL error:? (?P<detail>[^{].{0,79})",  # not the source line that formats it
            r"nccl(?:Internal|System|UnhandledCuda|InvalidUsage|InvalidArgument|Remote)Error",
            r"ncclUnhandledCudaError",
            r"NCCL error in:? ",
        ),
        depth=Depth.WRAPPER,
        links=sglang_issue(8974, 4289, 3460),
    ),
    CrashClass(
        "host-oom",
        "The node ran out of main memory",
        (
            "`dmesg -T | grep -i oom` names the victim; raise the container's memory limit or add memory.",
            "Loading several ranks at once from a slow disk, HiCache and CPU offload are what take main memory.",
        ),
        (
            r"[Oo]ut of memory: Killed process",
            r"oom-kill|oom_reaper|OOMKilled|Memory cgroup out of memory",
            r"^MemoryError\b",
            r"DefaultCPUAllocator: (?:can't|not enough)",
            r"Cannot allocate memory",
        ),
        precursor=True,
        links=sglang_issue(20287),
    ),
    CrashClass(
        "too-many-open-files",
        "The process ran out of file descriptors",
        ("Raise the limit before the start (`ulimit -n 65536`), above twice the highest concurrency.",),
        (r"Too many open files",),
    ),
    CrashClass(
        "kv-pool-leak",
        "sglang's own check found KV cache slots that nobody owns",
        (
            "It is checked when the server falls idle, that is, just after a load: a bug in scheduling, not in memory.",
            "Try without the radix cache, speculative decoding or the overlap schedule; report it upstream.",
        ),
        (
            r"\b(?P<detail>token_to_kv_pool_allocator|req_to_token_pool) memory leak detected!",
            r"memory leak detected! (?P<detail>.{0,80})",
        ),
        links=sglang_issue(11970, 20010, 18300, 6888),
    ),
    CrashClass(
        "radix-cache-inconsistent",
        "The prefix cache lost count of who uses what",
        (
            (
                "A bug of the cache, mostly with sliding windows, hierarchical cache or speculation: try "
                "--disable-radix-cache, or without those."
            ),
        ),
        (r"AssertionError: (?P<detail>.{0,60}lock_ref.{0,60})", r"assert \S*lock_ref\b"),
        links=sglang_issue(24153, 24869),
    ),
    CrashClass(
        "kv-exhausted",
        "The KV cache could not hold the running requests",
        (
            "Lower --max-running-requests or the load, raise --mem-fraction-static, or --schedule-conservativeness.",
            "A request longer than the whole pool can never run: compare max_total_num_tokens with the lengths.",
        ),
        (
            r"Decode out of memory\. Try to lower your batch size",
            r"Prefill out of memory",
            r"alloc_req_slots runs out of memory",
            r"(?:Cannot|can't) retract more requests|No requests? (?:left )?to retract",
        ),
    ),
    CrashClass(
        "allreduce-fusion-hang",
        "The ranks wait for each other while they set up fused all-reduce",
        (
            "Start with --enforce-disable-flashinfer-allreduce-fusion, or --disable-custom-all-reduce.",
            "Needs NVLink or working peer-to-peer access between all GPUs.",
        ),
        (
            r"rendezvous \(\S*_symmetric_memory|_symmetric_memory\S* line \d+,? in rendezvous",
            r"create_allreduce_fusion_workspace",
        ),
        links=sglang_issue(29073),
    ),
    CrashClass(
        "kernel-failed",
        "A matrix kernel (CUTLASS, cuDNN, TensorRT-LLM, DeepGEMM) refused its task or failed in it",
        (
            (
                "Choose another back end for it: --fp4-gemm-runner-backend, --fp8-gemm-runner-backend, "
                "--moe-runner-backend, --attention-backend."
            ),
            (
                "Kernels made for data-centre GPUs (sm90, sm100) are often untested on sm120; a failure that comes and "
                "goes may also be a sick GPU (dmesg)."
            ),
        ),
        (
            r"Error occurred when running GEMM",
            r"(?:CUTLASS|cutlass|Cutlass).{0,80}(?P<detail>Error Internal|[Ff]ailed.{0,60})",
            r"Failed to initialize cutlass",
            r"scaled_mm_sm\w+\.cuh?:\d+",
            r"cudnnGraphNotSupportedError|No execution plans support the graph",
            r"BackendSupportedError: (?P<detail>.{0,80})",
            r"\[TensorRT-LLM\]\[ERROR\] (?P<detail>.{0,80})",
            r"TLLM_CHECK",
        ),
        links=(*sglang_issue(32021, 38773), "https://github.com/flashinfer-ai/flashinfer/issues/2577"),
    ),
    CrashClass(
        "npu-error",
        "The Ascend runtime refused a task or failed in it",
        (
            "The first `E…` code of the failing rank names the fault; its lines say which operator and why.",
            "Repeat with ASCEND_LAUNCH_BLOCKING=1: errors are reported late, and the frame shown is not the culprit.",
            "`npu-smi info` shows whether the chip is well; CANN, torch_npu and sglang must fit each other.",
        ),
        (
            r"(?P<detail>\bE[A-Z]\d{4}: .{1,100})",
            r"\bERR\d{5} (?P<detail>.{1,60}failed)",
            r"Kernel task happen error.{0,40}(?P<detail>\[.{1,40}\])",
            r"(?P<detail>The MPU address access is invalid)",
            r"The process exits for this inner error",
        ),
        precursor=True,
        links=sglang_issue(12464, 10554),
    ),
    CrashClass(
        "graph-capture-failed",
        "Capturing CUDA graphs failed",
        (
            (
                "Read the exception inside: running out of memory and unsupported kernels are reported as capture "
                "failures."
            ),
            (
                "Find out whether capture is the trouble: --disable-cuda-graph (from 0.5.14 "
                "--cuda-graph-backend-decode=disabled, -prefill=disabled)."
            ),
            "Lower --cuda-graph-max-bs or --mem-fraction-static.",
        ),
        (
            r"Capture (?:[\w-]+ )*cuda graph failed: ?(?!.*(?:closed|reset) by peer)(?P<detail>.{0,120})",
            r"Piecewise CUDA Graph is enabled by default",
            r"Piecewise CUDA Graph failed",
            r"Fail when using backend: (?P<detail>\w+) for prefill runner",
            r"operation (?:not permitted|would make the legacy stream depend).*captur",
            r"operation failed due to a previous error during capture",
            r"cudaErrorStreamCapture\w+",
        ),
        depth=Depth.WRAPPER,
        links=sglang_issue(4205, 4489, 6218, 7918, 26541, 31093),
    ),
    CrashClass(
        "torch-compile-failed",
        "torch.compile failed",
        ("Start without --enable-torch-compile; the inner exception names the operator.",),
        (
            r"torch\._dynamo\.exc\.(?P<detail>\w+)",
            r"torch\._inductor\.exc\.(?P<detail>\w+)",
            r"BackendCompilerFailed|InductorError",
        ),
        depth=Depth.WRAPPER,
    ),
    CrashClass(
        "cuda-library-error",
        "A CUDA library call failed",
        (
            "Often the late report of an earlier kernel's fault: repeat with CUDA_LAUNCH_BLOCKING=1.",
            "Check that only one CUDA version's libraries are on LD_LIBRARY_PATH.",
        ),
        (r"(?P<detail>CU(?:BLAS|DNN|SPARSE|SOLVER|FFT)_STATUS_\w+)", r"cublasLt\w* .*failed"),
        depth=Depth.WRAPPER,
    ),
    CrashClass(
        "cuda-error",
        "A CUDA or HIP call failed",
        ("Repeat with CUDA_LAUNCH_BLOCKING=1 (HIP: AMD_SERIALIZE_KERNEL=3) to find the kernel.",),
        (
            r"(?:CUDA|HIP|XPU|MUSA) (?:driver |runtime )?error: (?P<detail>.{1,80})",
            r"(?P<detail>cudaError[A-Z]\w+|hipError[A-Z]\w+|CUDA_ERROR_[A-Z_]+)",
        ),
        depth=Depth.WRAPPER,
    ),
)
