"""Constructed logs: real line forms around fragments quoted from sources and issue reports.

None of these was recorded. ``SAMPLES`` has at least one line for every pattern of every class (a test sees to
it); ``boot`` puts a line where a server would have printed it.
"""

from __future__ import annotations

SAMPLES: dict[str, tuple[str, ...]] = {
    "port-in-use": (
        "[Errno 98] error while attempting to bind on address ('0.0.0.0', 30000): address already in use",
        "OSError: [Errno 98] Address already in use",
        "The server socket has failed to listen on any local network address. port: 20000, code: -98, EADDRINUSE",
        "ValueError: Port is already in use. dist_init_port=20003",
        "RuntimeError: Prometheus port 9090 is already in use",
        "ValueError: Port 31234 is not available in 60 seconds",
        "TimeoutError: it is not available in 60 seconds",
    ),
    "bad-flag": (
        "launch_server.py: error: unrecognized arguments: --disable-piecewise-cuda-graph",
        "launch_server.py: error: argument --attention-backend: invalid choice: 'fa9' (choose from 'fa3', 'triton')",
        "usage: x launch_server.py: error: argument --dtype: invalid choice: 'fp4'",
    ),
    "model-access-denied": (
        "OSError: You are trying to access a gated repo. Cannot access gated repo for url https://huggingface.co/x.",
        "huggingface_hub.errors.GatedRepoError: 403",
        "requests.exceptions.HTTPError: 401 Client Error: Unauthorized for url: https://huggingface.co/api/models/x",
        "Access to model meta-llama/Llama-3.1-8B is restricted. You must have access to it",
    ),
    "hub-rate-limited": (
        "requests.exceptions.HTTPError: 429 Client Error: Too Many Requests for url: https://huggingface.co/x",
        "httpx.HTTPStatusError: Client error '429 Too Many Requests'",
    ),
    "remote-code-not-trusted": (
        "ValueError: Loading /models/x requires you to execute the configuration file in that repo on your machine.",
        "ValueError: The repository for /models/x contains custom code which must be executed to load the model.",
        "Please set the option `trust_remote_code=True` to remove this error.",
    ),
    "model-not-found": (
        "OSError: We couldn't connect to 'https://huggingface.co' to load the files, and couldn't find it here",
        "HFValidationError: Repo id must be in the form 'repo_name' or 'namespace/repo_name': '/models/gone'.",
        "Repo id must use alphanumeric chars, '-', '_' or '.'",
        "OSError: x/y is not a local folder and is not a valid model identifier listed on the hub",
        "huggingface_hub.errors.LocalEntryNotFoundError: Cannot find an appropriate cached snapshot folder",
        "huggingface_hub.errors.RepositoryNotFoundError: 404 Client Error",
        "OSError: /models/x does not appear to have a file named config.json.",
        "RuntimeError: Cannot find any model weights with `/models/x`",
        "OSError: Can't load the configuration of '/models/x'.",
        "OSError: Incorrect path_or_model_id: '/models/gone'.",
        "ValueError: Unrecognized model in /models/x. Should have a `model_type` key in its config.json",
        "couldn't find them in the cached files and it looks like x/y is not the path to a directory",
        "FileNotFoundError: [Errno 2] No such file or directory: '/models/x/config.json'",
        "Cannot find the requested files in the disk cache and outgoing traffic has been disabled.",
        "huggingface_hub.errors.OfflineModeIsEnabled: Cannot reach https://huggingface.co/api/models/x",
        "huggingface_hub.errors.HFValidationError: bad",
    ),
    "model-config-invalid": (
        "OSError: It looks like the config file at '/models/x/config.json' is not a valid JSON file.",
        "json.decoder.JSONDecodeError: Expecting value: line 1 column 1 (char 0)",
        "pydantic_core.ValidationError: 1 error for config",
    ),
    "model-unsupported": (
        "ValueError: Model architectures ['Nonsense9ForCausalLM'] are not supported for now.",
        "ValueError: Unsupported architectures: ['Nonsense9ForCausalLM'].",
        "ValueError: The checkpoint has model type `glm9` but Transformers does not recognize this architecture.",
        "ValueError: Nonsense9 has no SGlang implementation and the Transformers one is not compatible.",
        "Please upgrade to at least transformers 5.0",
    ),
    "context-too-long": (
        "ValueError: User-specified context_length (1000000) is greater than the derived context_length (4096).",
    ),
    "parallelism-mismatch": (
        "AssertionError: num_heads is not divisible by tp_size",
        "    assert self.total_num_heads % tp_size == 0",
        "ValueError: The output size 320 of gate is not aligned with the quantized weight shape.",
    ),
    "feature-unsupported": (
        "ValueError: SBO (single batch overlap) is not supported on SM90 GPUs with latest sgl-deep-gemm wheel.",
        "ValueError: tc_piecewise was removed; select breakable, full, or disabled",
        "ValueError: FlashInfer all-reduce fusion requires SM90 or SM10X",
        "ValueError: trtllm_mla backend is only supported on Blackwell GPUs",
        "ValueError: DeepGEMM is not supported on Ampere",
    ),
    "quantization-unsupported": (
        "ValueError: The quantization method modelopt_fp4 is not supported for the current GPU.",
        "Minimum capability: 100. Current capability: 89.",
        "ValueError: Unknown quantization method: fp3.",
        "ValueError: Quantization method specified in the model config (fp8) does not match the argument (awq).",
    ),
    "weights-mismatch": (
        "    assert param_data.shape == loaded_weight.shape",
        "RuntimeError: size mismatch for lm_head",
        "Attempted to load weight (torch.Size([1])) into parameter (torch.Size([2]))",
        "AssertionError: 3072 vs 6144",
        "KeyError: 'model.layers.3.mlp.experts.w13_input_scale'",
        "RuntimeError: The size of tensor a (3) must match the size of tensor b (6) at weight",
    ),
    "weights-corrupt": (
        "safetensors_rust.SafetensorError: file is broken",
        "Error while deserializing header: incomplete",
        "Error: MetadataIncompleteBuffer",
        "RuntimeError: PytorchStreamReader failed reading zip archive",
    ),
    "kernel-wheel-mismatch": (
        "[sgl_kernel] CRITICAL: Could not load any common_ops library!",
        "ImportError: /venv/x/common_ops.abi3.so: undefined symbol: _ZN3c105ErrorC2E",
        "OSError: libnvrtc.so.13: cannot open shared object file: No such file or directory",
        "ModuleNotFoundError: No module named 'sgl_kernel'",
        "Exception: sgl-kernel is installed with version 0.3.1, which is less than the minimum required version",
        "Exception: flashinfer_python with minimum required version 0.2.5 is not installed.",
        "Please reinstall the latest version with `pip install sglang-kernel --force-reinstall`",
        "ImportError: /lib/libm.so.6: version `GLIBC_2.38' not found",
    ),
    "package-missing": (
        "ModuleNotFoundError: No module named 'vllm'",
        "ImportError: cannot import name 'PixtralRotaryEmbedding' from 'transformers.models.pixtral'",
        "importlib.metadata.PackageNotFoundError: No package metadata was found for flash_attn_4",
    ),
    "arguments-rejected": (
        '  File "/venv/lib/python3.12/site-packages/sglang/srt/server_args.py", line 812, in _handle_moe',
    ),
    "gpu-lost": (
        "NVRM: Xid (PCI:0000:c1:00): 79, pid=4242, GPU has fallen off the bus.",
        "GPU 0000:01:00: GPU has fallen off the bus.",
        "RuntimeError: GPU is lost. Reboot the system to recover this GPU",
        "Unable to determine the device handle for GPU0: 0000:01:00.0: Unknown Error",
        "RuntimeError: CUDA error: uncorrectable ECC error encountered",
        "RuntimeError: CUDA error: unknown error",
        "NVIDIA-SMI: nvidia-smi has failed because it couldn't communicate with the NVIDIA driver",
    ),
    "driver-mismatch": (
        "RuntimeError: CUDA driver version is insufficient for CUDA runtime version",
        "Error 804: forward compatibility was attempted on non supported HW",
        "Failed to initialize NVML: Driver/library version mismatch",
        "RuntimeError: The NVIDIA driver on your system is too old (found version 12020).",
        "cudaErrorInsufficientDriver",
        "ImportError: libcuda.so.1: cannot open shared object file: No such file or directory",
        "RuntimeError: CUDA error: the provided PTX was compiled with an unsupported toolchain.",
    ),
    "gpu-not-found": (
        "torch.AcceleratorError: CUDA error: invalid device ordinal",
        "RuntimeError: No CUDA GPUs are available",
        "RuntimeError: no CUDA-capable device is detected",
        "RuntimeError: Found no NVIDIA driver on your system.",
        "ValueError: Expected a cuda device, but got: cpu",
        "RuntimeError: No accelerator (CUDA, XPU, HPU, NPU) is available.",
    ),
    "gpu-occupied": (
        "RuntimeError: The memory capacity is unbalanced. Some GPUs may be occupied by other processes.",
        "RuntimeError: CUDA error: CUDA-capable device(s) is/are busy or unavailable",
        "all CUDA-capable devices are busy or unavailable, error",
    ),
    "torch-compile-fullgraph": (
        "torch._dynamo.exc.Unsupported: Attempted to call function marked as skipped",
        "Attempted to call function marked as skipped",
        "Unsupported: graph break in user code, error",
        "torch.compile(fullgraph=True) cannot trace JIT-built fp4_quantize",
    ),
    "triton-out-of-resources": (
        "triton.runtime.errors.OutOfResources: out of resource: shared memory, Required: 147456, limit: 101376.",
        "triton.runtime.errors.OutOfResources: too many registers",
    ),
    "gpu-arch-unsupported": (
        "RuntimeError: HIP error: invalid device function",
        "RuntimeError: CUDA error: no kernel image is available for execution on the device",
        "RuntimeError: deep_gemm.get_paged_mqa_logits_metadata(x): Unsupported architecture",
        "RuntimeError: This kernel requires SM100",
        "Error in TllmGenFmhaRunner",
        "RuntimeError: SGLang only supports sm75 and above.",
        "RuntimeError: FlashAttention on Ampere/Ada cards only supports fp16 and bf16 data type",
        "ValueError: this path dispatches sm100f kernels",
        "RuntimeError: No supported CUDA architectures found for major versions [10]",
        "RuntimeError: Unsupported GPU architecture",
        "RuntimeError: CUDA error: invalid device function",
    ),
    "jit-build-failed": (
        "RuntimeError: Ninja build failed. Ninja output: FAILED: x.cuda.o",
        "subprocess.CalledProcessError: Command '['ninja', '-v']' returned non-zero exit status 1.",
        "FileNotFoundError: [Errno 2] No such file or directory: 'ninja'",
        "RuntimeError: Could not find nvcc and default cuda_home='/usr/local/cuda' doesn't exist",
        "nvcc fatal   : Unsupported gpu architecture 'compute_120f'",
        "x.cu:3:10: fatal error: cuda_fp4.h: No such file or directory",
        "RuntimeError: Error building extension 'batch_prefill'",
        "OSError: CUDA_HOME environment variable is not set.",
        "RuntimeError: NVCC compilation failed",
        "ptxas fatal   : Value 'sm_121a' is not defined for option 'gpu-name'",
        "triton.runtime.errors.PTXASError: PTXAS error: Internal Triton PTX codegen error",
        "triton.compiler.errors.CompilationError: at 1:0",
        "/bin/sh: 1: nvcc: not found, error",
        "RuntimeError: Failed to find C compiler. Please specify via CC environment variable.",
    ),
    "kv-budget-too-small": (
        "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static.",
        "ValueError: Loaded weights leave no GPU memory for the KV cache under --mem-fraction-static=0.05. Raise it.",
        "ValueError: Memory pool size is too small",
    ),
    "cuda-oom-at-startup": (
        "RuntimeError: HIP error: out of memory",
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 3.00 GiB. GPU 0 has a total capacity of 94 GiB",
        "torch.OutOfMemoryError: Allocation on device",
        "RuntimeError: cudaErrorMemoryAllocation",
        "RuntimeError: CUDA error: out of memory",
        "RuntimeError: CUDA_ERROR_OUT_OF_MEMORY",
        "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
        "NCCL WARN Failed to CUDA calloc 6291456 bytes",
    ),
    "illegal-memory-access": (
        "Queue 0x7f35 aborting with error : HSA_STATUS_ERROR_MEMORY_APERTURE_VIOLATION: out of range. code: 0x29",
        "torch.AcceleratorError: CUDA error: an illegal memory access was encountered",
        "RuntimeError: CUDA_ERROR_ILLEGAL_ADDRESS",
        "RuntimeError: CUDA error: misaligned address",
        "RuntimeError: Failed to encode tensor map: 700",
        "RuntimeError: CUDA error: unspecified launch failure",
        "RuntimeError: CUDA error: an illegal instruction was encountered",
        "Memory access fault by GPU node-8 (Agent handle: 0x55) on address 0x7f. Reason: Unknown.",
        "NVRM: Xid (PCI:0000:70:00): 31, pid=4242, name=python3, MMU Fault: ENGINE GRAPHICS",
        "CUDA Exception: Warp Illegal Address",
    ),
    "device-side-assert": (
        ":0:rocdevice.cpp :1: 1 us: Queue 0x7f aborting with error : HSA_STATUS_ERROR_EXCEPTION: hardware exception.",
        "RuntimeError: CUDA error: device-side assert triggered",
        "../aten/native/cuda/Indexing.cu:1289: block: [0,0,0], thread: [3,0,0] Assertion `index < size` failed.",
    ),
    "nan-logits": (
        "ValueError: Detected errors during sampling! NaN in the logits.",
        "finish_reason matched: NaN happened",
        "RuntimeError: probability tensor contains either `inf`, `nan` or element < 0",
    ),
    "token-id-out-of-range": ("IndexError: index out of range in self",),
    "shm-too-small": (
        "NCCL WARN Error while creating shared memory segment /dev/shm/nccl-Xa1b2C (size 9637888)",
        "NCCL WARN posix_fallocate failed : No space left on device",
        "Fatal Python error: Bus error",
        "RuntimeError: unable to allocate shared memory(shm) for file",
        "OSError: [Errno 28] No space left on device: '/dev/shm/psm_1'",
        "ERROR: Unexpected bus error. This might be caused by insufficient shared memory (shm).",
    ),
    "disk-full": (
        "OSError: [Errno 28] No space left on device: '/root/.cache/flashinfer/x.o'",
        "OSError: [Errno 122] Disk quota exceeded",
    ),
    "mscclpp-unavailable": (
        "ImportError: libibverbs.so.1: not found",
        "Error: set MSCCLPP_HCA_DEVICES",
        "what():  mscclpp::SysError",
        "ModuleNotFoundError: No module named 'mscclpp'",
    ),
    "expert-parallel-comm": (
        "RuntimeError: DeepEP error: timeout (dispatch CPU)",
        "nvshmem_init failed: error",
        "AssertionError: x.size(0) <= num_max_dispatch_tokens_per_rank",
    ),
    "nccl-failure": (
        "RuntimeError: NCCL error: unhandled system error (run with NCCL_DEBUG=INFO for details)",
        "ncclInternalError: Internal check failed.",
        "ncclUnhandledCudaError: Call to CUDA function failed.",
        "torch.distributed.DistBackendError: NCCL error in: /pytorch/NCCLUtils.cpp:77",
    ),
    "host-oom": (
        "Out of memory: Killed process 4242 (sglang::schedul) total-vm:90000kB",
        "oom-kill:constraint=CONSTRAINT_MEMCG",
        "MemoryError",
        "RuntimeError: [enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory",
        "OSError: [Errno 12] Cannot allocate memory",
    ),
    "too-many-open-files": ("OSError: [Errno 24] Too many open files",),
    "kv-pool-leak": (
        "ValueError: token_to_kv_pool_allocator memory leak detected! available_size=1, protected_size=0",
        "ValueError: memory leak detected! 3 tokens",
    ),
    "radix-cache-inconsistent": (
        "AssertionError: dec_lock_ref on node with node.swa_lock_ref=0",
        "    assert node.lock_ref > 0",
    ),
    "kv-exhausted": (
        "RuntimeError: Decode out of memory. Try to lower your batch size.",
        "RuntimeError: Prefill out of memory. Try to lower your batch size.",
        "RuntimeError: alloc_req_slots runs out of memory. Please set a smaller number for --max-running-requests.",
        "RuntimeError: Cannot retract more requests",
    ),
    "allreduce-fusion-hang": (
        "    rendezvous (torch/distributed/_symmetric_memory/__init__.py:1799)",
        '  File "/venv/torch/distributed/_symmetric_memory/__init__.py", line 1799 in rendezvous',
        "    create_allreduce_fusion_workspace (flashinfer/comm/allreduce.py:420) not done",
    ),
    "kernel-failed": (
        "RuntimeError: Error in function 'run' at trtllm_batched_gemm_runner.cu:258: Error occurred when running GEMM!",
        "RuntimeError: CUTLASS NVFP4 GEMM: Error Internal",
        "RuntimeError: Failed to initialize cutlass TMA WS grouped gemm",
        "RuntimeError: failed at nvfp4_scaled_mm_sm120.cuh:175",
        "cudnn.cudnnGraphNotSupportedError: No execution plans support the graph",
        "BackendSupportedError: mm_fp4 does not support backend 'trtllm' with capability 120",
        "[TensorRT-LLM][ERROR] Assertion failed: input_activations",
        "TLLM_CHECK(input_activations) failed",
    ),
    "npu-error": (
        "EE1001: [PID: 1] 2025-09-17-06:54:37.313.051 The argument is invalid.Reason: coreDim=123408 is too large",
        "[ERROR] 2025-09-17-06:54:37 (PID:1, Device:3, RankID:-1) ERR00100 PTA call acl api failed.",
        "Kernel task happen error, retCode=0x31, [vector core exception].",
        "errorStr: The MPU address access is invalid. fixp_error0 info: 0xa0bfbd5",
        "RuntimeError: The Inner error is reported as above. The process exits for this inner error",
    ),
    "graph-capture-failed": (
        "Exception: Capture cuda graph failed: something odd",
        "Piecewise CUDA Graph is enabled by default as an experimental feature.",
        "Piecewise CUDA Graph failed with error: x",
        "Fail when using backend: breakable for prefill runner.",
        "RuntimeError: CUDA error: operation not permitted when stream is capturing",
        "RuntimeError: CUDA error: operation failed due to a previous error during capture",
        "cudaErrorStreamCaptureInvalidated",
    ),
    "torch-compile-failed": (
        "torch._dynamo.exc.InternalTorchDynamoError: x",
        "torch._inductor.exc.InductorError: x",
        "BackendCompilerFailed: backend='inductor' raised error",
    ),
    "cuda-library-error": (
        "RuntimeError: CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasGemmEx`",
        "cublasLtMatmul failed with error",
    ),
    "cuda-error": ("RuntimeError: CUDA error: invalid argument", "cudaErrorInvalidValue", "CUDA_ERROR_INVALID_HANDLE"),
    "scheduler-hang": (
        "Scheduler watchdog timeout (self.watchdog_timeout=300, self.soft=False)",
        "Watchdog timeout (self.watchdog_timeout=300)",
    ),
    "rendezvous-timeout": (
        "The client socket has timed out after 600000ms while trying to connect to (10.0.0.1, 20000).",
        "torch.distributed.DistStoreError: x",
        "waitForInput: poll for socket SocketImpl(fd=80) returned 0, likely a timeout; timed out after 600000ms",
        "RuntimeError: wait timeout after 600000ms",
        "DistBackendError: [1] is setting up NCCL communicator and retrieving ncclUniqueId from [0] got error",
        "Timed out waiting for clients. 1/2 clients joined.",
    ),
    "collective-timeout": (
        "[rank3]:[E] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=12, OpType=ALLREDUCE)",
        "[PG ID 2 Rank 3] WorkNCCL ran for 600012 milliseconds before timing out.",
    ),
    "warmup-failed": ("Initialization failed. warmup error: Traceback (most recent call last):",),
    "native-crash": (
        "Fatal Python error: Segmentation fault",
        "!!!!!!! Segfault encountered !!!!!!!",
        "Illegal instruction (core dumped), exited",
        "malloc(): corrupted top size, fatal",
    ),
    "peer-rank-lost": (
        "RuntimeError: [../gloo/transport/tcp/pair.cc:553] Connection closed by peer [10.0.0.2]:1234",
        "BrokenPipeError: [Errno 32] Broken pipe",
        "RuntimeError: recvValue failed on SocketImpl(fd=80)",
        "remote process exited or there was a network error",
        "RuntimeError: Failed to recv, got 0 bytes. Connection was likely closed.",
        "RuntimeError: Socket Timeout",
    ),
    "native-terminate": (
        "terminate called after throwing an instance of 'c10::DistBackendError'",
        "Process group watchdog thread terminated with exception: x",
    ),
    "killed": (
        "RuntimeError: Rank 3 scheduler died during initialization (exit code: -9). If exit code is -9 (SIGKILL), x",
        "Killed",
        "./run.sh: line 24: 3557732 Killed                  python -m sglang.launch_server",
    ),
    "subprocess-died": (
        "Subprocess scheduler_0 (pid=4242) crashed with exit code -11. Triggering SIGQUIT for cleanup...",
        "Rank 2 scheduler is dead. Please check if there are relevant logs.",
        "Child process unexpectedly failed with exitcode=-9. pid=4242",
        "Scheduler or DataParallelController 4242 terminated with 1",
    ),
    "health-check-failed": (
        "Health check failed. Server couldn't get a response from detokenizer for last 20 seconds. tic start time: 1",
    ),
    "scheduler-exception": ("Scheduler hit an exception: Traceback (most recent call last):",),
}

ARGUMENTS = "server_args=ServerArgs(model_path='/models/x', mamba_backend='a', enable_aiter_allreduce_fusion=False)"

_STEPS = {
    "imports": (),
    "arguments": ("Attention backend not specified. Use flashinfer backend by default.",),
    "distributed": (ARGUMENTS, "Init torch distributed begin."),
    "weights": (
        "Init torch distributed ends. elapsed=1.2 s, mem usage=0.50 GB",
        "Load weight begin. avail mem=93.10 GB",
    ),
    "kv_cache": (
        "Load weight end. elapsed=60.1 s, type=GlmForCausalLM, avail mem=40.00 GB, mem usage=53.10 GB.",
        "KV Cache is allocated. #tokens: 100000, K size: 10.00 GB, V size: 10.00 GB",
        "Memory pool end. avail mem=18.00 GB",
    ),
    "cuda_graphs": (
        "Capture cuda graph begin. This can take up to several minutes. avail mem=17.50 GB",
        "Capture cuda graph bs [1, 2, 4, 8]",
    ),
    "running": (
        "Capture cuda graph end. Time elapsed: 12.0 s. mem usage=1.00 GB. avail mem=16.50 GB.",
        (
            "max_total_num_tokens=100000, chunked_prefill_size=8192, max_prefill_tokens=16384, "
            "max_running_requests=2048, context_len=8192, available_gpu_mem=16.50 GB"
        ),
        "INFO:     Started server process [1]",
        "INFO:     Uvicorn running on http://0.0.0.0:30000 (Press CTRL+C to quit)",
        "The server is fired up and ready to roll!",
        "Decode batch, #running-req: 1, #token: 138, token usage: 0.01, cuda graph: True, gen throughput (token/s): 9",
    ),
}


def stamp(second: int, rank: str = "") -> str:
    return f"[2026-02-12 11:{second // 60:02d}:{second % 60:02d}{' ' + rank if rank else ''}] "


def boot(phase: str, rank: str = "TP0") -> list[str]:
    """Lines of a healthy boot up to the beginning of ``phase``."""
    lines = ["/venv/lib/python3.12/site-packages/sglang/launch_server.py:51: UserWarning: x", "  warnings.warn("]
    for step, (name, messages) in enumerate(_STEPS.items()):
        lines += [
            stamp(step, "" if message.startswith(("server_args", "INFO", "The ")) else rank) + message
            for message in messages
        ]
        if name == phase:
            return lines
    raise AssertionError(phase)


def died(text: str, rank: str = "TP0", second: int = 30) -> list[str]:
    """A scheduler's traceback ending in ``text``, and what the parent says about it."""
    return [
        stamp(second, rank) + "Scheduler hit an exception: Traceback (most recent call last):",
        '  File "/venv/lib/python3.12/site-packages/sglang/srt/managers/scheduler.py", line 3118, in run',
        "    scheduler = Scheduler(",
        *text.split("\n"),
        "",
        stamp(second) + "Received sigquit from a child process. It usually means the child failed.",
    ]
