"""Crash classes of what was asked for: ports, flags, models, packages, unsupported combinations."""

from __future__ import annotations

from ._crash_class import CrashClass, Depth, sglang_issue

__all__ = ["LAUNCH_CLASSES"]

LAUNCH_CLASSES = (
    CrashClass(
        "port-in-use",
        "A port that the server needs is held by another process",
        (
            "Stop the process that holds the port (`ss -ltnp`), or choose another --port.",
            "Do not trust a later 'fired up' in this log: the server warmed up against the port's holder.",
            "For the process group's port give another --dist-init-addr or --nccl-port.",
        ),
        (
            r"error while attempting to bind on address (?P<detail>\([^)]*\))",
            r"[Aa]ddress already in use",
            r"EADDRINUSE",
            r"Port is already in use\. dist_init_port=(?P<detail>\d+)",
            r"\b(?P<detail>[Pp]ort \d+) (?:is already in use|is in use|is not available)",
            r"is not available in \d+ seconds",
        ),
    ),
    CrashClass(
        "bad-flag",
        "This sglang refused its command line",
        (
            (
                "Compare the flag with this version's own `python -m sglang.launch_server --help`: names change "
                "between releases."
            ),
            "`--disable-piecewise-cuda-graph` (0.5.10) became `--cuda-graph-backend-prefill=disabled` (0.5.14 on).",
        ),
        (
            (
                r"^[\w./ -]{0,80}: error: (?P<detail>(?:unrecognized arguments|argument -|the following arguments|"
                r"ambiguous option|one of the arguments|invalid|expected|option -).*)"
            ),
            r"error: (?P<detail>argument -\S+: invalid choice: .{0,80})",
        ),
    ),
    CrashClass(
        "model-access-denied",
        "The model hub refused access to the model",
        (
            "Accept the model's licence on the hub with the account of this token, and export HF_TOKEN on the node.",
            "Or download the model once and give the local folder as --model-path.",
        ),
        (
            r"Cannot access gated repo",
            r"GatedRepoError",
            r"40[13] Client Error",
            r"Access to model \S+ is restricted",
        ),
        links=sglang_issue(387),
    ),
    CrashClass(
        "hub-rate-limited",
        "The model hub refused because of too many requests",
        ("Give HF_TOKEN, or download the model once and start from the folder (HF_HUB_OFFLINE=1).",),
        (r"429 (?:Client Error|Too Many Requests)", r"'429 Too Many Requests'"),
        links=sglang_issue(21471),
    ),
    CrashClass(
        "remote-code-not-trusted",
        "The model ships Python code of its own, which was not allowed to run",
        ("If you trust the model's authors, add --trust-remote-code.",),
        (
            r"requires you to execute the (?:configuration|modeling|tokenizer) file",
            r"contains custom code which must be executed",
            r"set the option `?trust_remote_code=True`?",
        ),
    ),
    CrashClass(
        "model-not-found",
        "The model cannot be found, neither as a folder nor on the hub",
        (
            (
                "Check --model-path on the node itself: a folder must exist there and hold config.json, a tokenizer "
                "and "
                "weights; anything else is taken for a name on the hub."
            ),
            "Without internet access set HF_HUB_OFFLINE=1 and point HF_HOME at the cache that has the model.",
        ),
        (
            r"We couldn't connect to 'https://huggingface\.co'",
            r"Repo id must be in the form",
            r"Repo id must use alphanumeric chars",
            r"is not a local folder and is not a valid model identifier",
            r"LocalEntryNotFoundError",
            r"RepositoryNotFoundError",
            r"does not appear to have a file named (?:config|tokenizer\w*|pytorch_model\S*|model\S*)\.\w+",
            r"Cannot find any model weights with",
            r"Can't load (?:the configuration|tokenizer|image processor) (?:of|for) ",
            r"Incorrect path_or_model_id",
            r"Unrecognized model in ",
            r"couldn't find (?:them|it) in the cached files",
            r"No such file or directory: '[^']*(?:config\.json|\.safetensors\S*|tokenizer\S*)'",
            r"Cannot find the requested files in the disk cache",
            r"OfflineModeIsEnabled",
            r"HFValidationError",
        ),
    ),
    CrashClass(
        "model-config-invalid",
        "The model's configuration cannot be read",
        ("Look at config.json in the model's folder: it is not valid JSON, or a value has the wrong form.",),
        (
            r"is not a valid JSON file",
            r"^json\.decoder\.JSONDecodeError: (?P<detail>.{1,80})",
            r"(?:StrictDataclass\w*|Validation)Error: .{0,60}config",
        ),
    ),
    CrashClass(
        "model-unsupported",
        "This sglang does not know the model's architecture",
        (
            "Use a newer sglang (and transformers), or try --model-impl transformers.",
            (
                "Look for an earlier 'Ignore import error when loading sglang.srt.models...' of the same name: a "
                "missing "
                "package hides the implementation."
            ),
        ),
        (
            r"Model architectures .* (?:are|is) not supported",
            r"Unsupported architectures?: \[",
            r"does not recognize this architecture",
            r"has no (?:SGlang|SGLang|sglang) implementation",
            r"Please upgrade to at least transformers|is not supported by this version of transformers",
        ),
    ),
    CrashClass(
        "context-too-long",
        "The context length asked for is longer than the model allows",
        ("Lower --context-length, or set SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN=1 knowingly.",),
        (r"User-specified context_length \(\d+\) is greater than the derived context_length",),
    ),
    CrashClass(
        "parallelism-mismatch",
        "The model cannot be divided in the way that the parallel sizes ask for",
        (
            "Choose --tp, --dp, --ep, --pp that divide the heads, experts and layers of the model.",
            "With block quantisation each rank's slice must be a multiple of the block as well.",
        ),
        (
            (
                r"(?:is not|must be|should be|not) divisible by (?:the )?(?:`?tp|tensor|tensor_parallel|num_|ep|dp|pp|"
                r"moe|attn|weight quantization block|world|number of|--)\S*"
            ),
            r"assert .*% ?(?:self\.)?(?:tp_size|ep_size|dp_size|attn_tp_size|moe_tp_size) == 0",
            r"is not aligned with the quantized weight shape",
        ),
    ),
    CrashClass(
        "feature-unsupported",
        "A feature that was asked for does not exist on this GPU or in this release",
        (
            "Leave the flag out on this hardware; the message names what it needs.",
            "For `tc_piecewise`: select another --cuda-graph-backend-prefill (breakable, full or disabled).",
        ),
        (
            r"(?P<detail>SBO \(single batch overlap\) is not supported on [\w ]+)",
            r"(?P<detail>tc_piecewise was removed)",
            r"(?P<detail>requires SM90 or SM10X)",
            (
                r"\b(?P<detail>(?:backend|attention) is (?:only )?(?:not )?supported (?:only )?on "
                r"(?:SM|Hopper|Blackwell)\S*)"
            ),
            r"\bis (?:only supported|not supported) (?P<detail>(?:on|for) (?:Hopper|Blackwell|Ampere|NVIDIA SM)\S*)",
        ),
    ),
    CrashClass(
        "quantization-unsupported",
        "The quantisation of this checkpoint is not supported here",
        (
            "Name the checkpoint's own scheme with --quantization (modelopt_fp4, compressed-tensors, fp8, ...).",
            "Check that the GPU's compute capability reaches what the method needs.",
        ),
        (
            r"is not supported for (?:the current GPU|quantization method \w+)",
            r"Minimum capability:? \d+",
            r"(?:Unknown|Invalid) quantization method",
            r"[Qq]uantization method specified in the model config .* does not match",
        ),
        links=sglang_issue(29562, 29580),
    ),
    CrashClass(
        "weights-mismatch",
        "The weights do not fit the model definition",
        (
            "Use the sglang release that the checkpoint was published for, and its --quantization.",
            "A speculative draft model must belong to its target.",
        ),
        (
            r"param(?:_data|\.data|)?\.s(?:hape|ize)(?:\(\))? ?== ?loaded_weight\.s(?:hape|ize)",
            r"size mismatch for ",
            r"Attempted to load weight \(.*\) into parameter",
            r"(?P<detail>\b3072 vs 6144\b)",
            r"KeyError: '(?P<detail>(?:model|language_model|lm_head|transformer|visual)\.[\w.]+)'",
            r"The size of tensor a \(\d+\) must match the size of tensor b \(\d+\) .*weight",
        ),
        links=sglang_issue(29562),
    ),
    CrashClass(
        "weights-corrupt",
        "A weights file is incomplete or damaged",
        ("Download the model again, and compare the files' sizes and hashes with the hub's.",),
        (
            r"SafetensorError",
            r"Error while deserializing header",
            r"MetadataIncompleteBuffer|HeaderTooLarge|InvalidHeaderDeserialization",
            r"PytorchStreamReader failed",
        ),
    ),
    CrashClass(
        "kernel-wheel-mismatch",
        "The compiled kernels do not match this torch, CUDA or GPU",
        (
            (
                "Reinstall sglang with its own pins in a fresh environment (sgl-kernel/sglang-kernel, flashinfer and "
                "torch belong together)."
            ),
            "Look at the first import error: it names the library that does not load.",
        ),
        (
            r"Could not load any common_ops library",
            r"(?P<detail>undefined symbol: \S+)",
            r"(?P<detail>lib(?!cuda\.so)[\w.+-]+\.so[\w.]*): cannot open shared object file",
            r"No module named '(?P<detail>sgl_kernel|flashinfer|sglang_kernel)[\w.]*'",
            r"(?:sgl-kernel|sglang-kernel|flashinfer\S*) (?:with minimum required version \S+ )?is (?:not )?installed",
            r"Please reinstall the latest version with",
            r"version `(?P<detail>(?:GLIBCXX|GLIBC|CXXABI)_[\d.]+)' not found",
        ),
        links=sglang_issue(29646, 8373, 8432, 9173, 7033),
    ),
    CrashClass(
        "package-missing",
        "A Python package that this configuration needs is not installed",
        ("Install the named package in the server's environment, or choose flags that do not need it.",),
        (
            r"^ModuleNotFoundError: No module named '(?P<detail>[\w.]+)'",
            r"^ImportError: (?P<detail>cannot import name .{1,120})",
            r"PackageNotFoundError: (?P<detail>.{1,80})",
        ),
        depth=Depth.WRAPPER,
    ),
    CrashClass(
        "arguments-rejected",
        "sglang refused this combination of settings while it resolved them",
        ("Read the exception: it names the settings that exclude each other.",),
        (r'File "[^"]*/(?:server_args|arg_groups/\S+|validation_hook)\.py", line \d+, in (?P<detail>\w+)',),
        depth=Depth.WRAPPER,
    ),
)
