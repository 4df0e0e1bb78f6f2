"""The lines of an SGLang server log that mean something, as data.

Read in the sources of 0.4.6 to 0.5.23 (`managers/`, `model_executor/`, `entrypoints/`, `mem_cache/`, `utils/`); where
the wording differs between versions, one pattern takes all of them. A prefix is
`[YYYY-mm-dd HH:MM:SS{.mmm}{ DPn}{ PPn}{ ATTN_CPn}{ MOE_DPn}{ TPn}{ EPn}] `.
"""

from __future__ import annotations

import re
from typing import Dict, List, NamedTuple, Pattern, Tuple

PREFIX = re.compile(rb"\[(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:[.,]\d{1,6})?)((?: [A-Z][A-Z_]*\d+)*)\] ?")
ANSI = re.compile(rb"\x1b(?:\[[0-9;?]*[A-Za-z]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[()][A-Z0-9])")

# Few digits: a float of four hundred is infinite, and JSON has no word for that.
ACCEPT = re.compile(rb", accept len: (\d{0,12}\.?\d{1,12})")
NEW = re.compile(rb"#new-seq: (\d{1,9})")
RATE = re.compile(rb", accept rate: (\d{0,12}\.?\d{1,12})")
THROUGHPUT = re.compile(rb"gen throughput \(token/s\): (\d{0,12}\.?\d{1,12})")


class Mark(NamedTuple):
    """A line that moves the timeline. Groups of the pattern become fields of the mark."""

    name: str
    pattern: Pattern[bytes]


def _mark(name: str, pattern: bytes) -> Mark:
    return Mark(name, re.compile(pattern))


_GB = rb"(?P<%s>-?[\d.]+) GB"
_MARKS: Tuple[Mark, ...] = (
    _mark("start", rb"server_args=(?P<args>(?:ServerArgs\(|\{).*)"),
    # Init torch distributed: to 0.5.20; Init parallel: from 0.5.21. elapsed: from 0.5.9.
    _mark("distributed_begin", rb"Init (?:torch distributed|parallel) begin"),
    _mark("distributed_end", rb"Init (?:torch distributed|parallel) ends\.(?: elapsed=(?P<elapsed>[\d.]+) s)?"),
    _mark("load_begin", rb"Load weight begin\. avail mem=" + _GB % b"avail"),
    _mark(
        "load_end",
        rb"Load weight end\. (?:elapsed=(?P<elapsed>[\d.]+) s, )?type=(?P<type>\w+)(?:, (?!avail)[^,]+)*?, avail mem="
        + _GB % b"avail"
        + rb"(?:, mem usage="
        + _GB % b"used"
        + rb")?",
    ),
    _mark("kv_cache", rb"KV Cache is allocated\. .*?#tokens: (?P<tokens>\d+)"),
    _mark("pool_end", rb"Memory pool end\. avail mem=" + _GB % b"avail"),
    # "Capture cuda graph begin." to 0.5.13, "Capture target verify CUDA graph begin." from 0.5.14; cpu graph on a CPU.
    _mark("graph_sizes", rb"Capture (?:cuda|cpu) graph (?:bs|num tokens) (?P<sizes>\[[\d, ]*\])"),
    _mark("graph_begin", rb"Capture (?P<what>[\w -]*?)[ ]?(?i:(?:cuda|cpu|npu|xpu|hpu) ?graph|graph) begin\b"),
    _mark(
        "graph_end",
        rb"Capture (?P<what>[\w -]*?)[ ]?(?i:(?:cuda|cpu|npu|xpu|hpu) ?graph|graph) end\."
        rb"(?:.*?(?:Time elapsed: |elapsed=)(?P<elapsed>[\d.]+) s)?(?:.*?mem usage=(?P<used>-?[\d.]+) GB)?",
    ),
    _mark("graph_failed", rb"(?P<text>Capture [\w -]*graph failed: .*)"),
    _mark(
        "limits",
        rb"max_total_num_tokens=(?P<tokens>\d+),.*?context_len=(?P<context>\d+)(?:.*?mem=" + _GB % b"avail" + rb")?",
    ),
    _mark("http_started", rb"INFO: +(?:Started server process|Application startup complete)"),
    _mark("ready", rb"The server is fired up and ready to roll!"),
    _mark("sigterm", rb"(?:SIGTERM received|Signal SIGTERM received)"),
    _mark("interrupt", rb"SIGINT received"),
    _mark("drained", rb"Gracefully exiting\.\.\. [Rr]emaining number of requests (?P<left>\d+)"),
    _mark("http_finished", rb"INFO: +(?:Shutting down|Finished server process)"),
    _mark("child_failed", rb"(?:Received sigquit from a child process|SIGQUIT received)"),
    _mark("child_exit", rb"Subprocess (?P<what>\S+) \(pid=(?P<pid>\d+)\) crashed with exit code (?P<code>-?\d+)"),
    _mark("watchdog", rb"(?P<text>(?:[\w .-]* )?[Ww]atchdog timeout \(.*)"),
    _mark("warmup_failed", rb"(?P<text>Initialization failed\. warmup error: .*)"),
    _mark(
        "retract",
        rb"KV cache pool is full\. Retract requests(?:.*?#retracted_reqs: (?P<requests>\d{1,9}))?"
        rb"|Decode out of memory happened|retract_decode: ",
    ),
    _mark("health_failed", rb"(?P<text>Health check failed\. Server couldn't get a response.*)"),
    _mark("batch_oom", rb"(?P<text>(?:Decode|Prefill) out of memory\. Try to lower your batch size.*)"),
    _mark("leak", rb"(?P<text>\w+ memory leak detected!.*)"),
    _mark("port_wait", rb"(?P<text>port \d+ is in use\. Waiting for .*)"),
)
_HEADS = {
    "start": b"serv",
    "distributed_begin": b"Init",
    "distributed_end": b"Init",
    "load_begin": b"Load",
    "load_end": b"Load",
    "kv_cache": b"KV C",
    "pool_end": b"Memo",
    "graph_sizes": b"Capt",
    "graph_begin": b"Capt",
    "graph_end": b"Capt",
    "graph_failed": b"Capt",
    "limits": b"max_",
    "http_started": b"INFO",
    "http_finished": b"INFO",
    "ready": b"The ",
    "sigterm": b"SIGT Sign",
    "interrupt": b"SIGI",
    "drained": b"Grac",
    "child_failed": b"Rece SIGQ",
    "child_exit": b"Subp",
    "watchdog": b"Watc",
    "warmup_failed": b"Init",
    "retract": b"KV c Deco retr",
    "health_failed": b"Heal",
    "batch_oom": b"Deco Pref",
    "leak": b"req_ toke",
    "port_wait": b"port",
}


def _by_head() -> Dict[bytes, List[Mark]]:
    table: Dict[bytes, List[Mark]] = {}
    for mark in _MARKS:
        heads = _HEADS[mark.name]
        for i in range(0, len(heads), 5):
            table.setdefault(heads[i : i + 4], []).append(mark)
    return table


BY_HEAD = _by_head()  # the first four bytes of a message -> the marks it can be
MARKS = {mark.name: mark for mark in _MARKS}

# A line worth a second look although its beginning is not known. Lines of user text never get here.
GATE = re.compile(
    rb"[Tt]raceback \(most|atchdog|ut of memory|utOfMemory|illed|Xid|NCCL|CUDA|rror|Exception|oom-kill|in use"
    rb"|not available"
    rb"|egmentation fault|core dumped|fallen off|what\(\)|Assert|terminate called|exited|memory leak|Started "
    rb"|Stopped "
)

# What goes wrong, told by one line of text. The first that matches names the kind.
# Sources: torch (CUDACachingAllocator, ProcessGroupNCCL, CUDAException), NVRM and kernel log, systemd, asyncio/uvicorn,
# SGLang's own messages.
PROBLEMS: Tuple[Tuple[str, Pattern[bytes]], ...] = (
    ("bad_arguments", re.compile(rb"^(?:[\w./-]*/)?(?:launch_server\.py|sglang|python3?[\d.]*)[\w. -]*: error: ")),
    (
        "xid",
        re.compile(
            rb"NVRM: Xid \((?:PCI:)?[0-9a-fA-F:.]+[^)]*\): \d+|GPU has fallen off the bus|nvidia-nvswitch\d+: SXid"
        ),
    ),
    (
        "host_out_of_memory",
        re.compile(
            rb"Out of memory: Kill(?:ed)? process|oom-kill:constraint=|Memory cgroup out of memory"
            rb"|killed by the OOM killer"
            rb"|Failed with result 'oom-kill'|DefaultCPUAllocator: can't allocate memory|\bOOMKilled\b"
        ),
    ),
    (
        "cuda_out_of_memory",
        re.compile(
            rb"CUDA out of memory|CUDA error: out of memory|cudaErrorMemoryAllocation"
            rb"|torch\.(?:cuda\.)?OutOfMemoryError|\bCUBLAS_STATUS_ALLOC_FAILED\b"
        ),
    ),
    (
        "not_enough_memory",
        re.compile(
            rb"Not enough memory\. Please try to increase --mem-fraction-static|Loading the model leaves"
            rb"|insufficient GPU memory"
        ),
    ),
    (
        "port_in_use",
        re.compile(
            rb"address already in use|Address already in use|EADDRINUSE|port \d+ is in use"
            rb"|at \d+ is not available|is already in use\."
        ),
    ),
    (
        "missing_method",
        re.compile(
            rb"has no attribute 'set_eagle3_layers_to_capture'|has no attribute 'get_embed_and_head'"
            rb"|does not implement set_eagle3_layers_to_capture"
        ),
    ),
    ("draft_class", re.compile(rb"has no attribute '(?:set_embed(?:_and_head)?|hot_token_id)'")),
    ("memory_leak", re.compile(rb"memory leak detected!")),
    (
        "matrix_shapes",
        re.compile(
            rb"mat1 and mat2 shapes cannot be multiplied|mat1 and mat2 must have the same dtype"
            rb"|expected m(?:at)?1 and m(?:at)?2 to have the same dtype"
        ),
    ),
    ("tensor_widths", re.compile(rb"The size of tensor a \(\d+\) must match the size of tensor b \(\d+\)")),
    (
        "index_out_of_range",
        re.compile(rb"index out of range in self|srcIndex < srcSelectDimSize|index out of bounds|Indexing\.cu:\d+"),
    ),
    (
        "context_length",
        re.compile(
            rb"context_length \(\d+\) is greater than|exceeds the model's (?:maximum )?context length"
            rb"|longer than the model's context|derived context[ _]length|is greater than the derived"
        ),
    ),
    (
        "watchdog",
        re.compile(rb"[Ww]atchdog timeout \(|soft lockup|blocked for more than \d+ seconds"),
    ),
    ("nccl_timeout", re.compile(rb"Watchdog caught collective operation timeout")),
    (
        "nccl",
        re.compile(
            rb"NCCL WARN|NCCL error|ncclUnhandledCudaError|ncclSystemError|ncclInternalError|ncclRemoteError"
            rb"|DistBackendError|ProcessGroupNCCL|Connection closed by (?:remote )?peer|DistNetworkError"
            rb"|TCPStore"
        ),
    ),
    ("shared_memory", re.compile(rb"out of resource: shared memory")),
    (
        "cuda",
        re.compile(
            rb"CUDA error|cudaError[A-Z]|CUDA driver|device-side assert|illegal memory access|no kernel image"
            rb"|Triton Error \[CUDA\]|CUBLAS_STATUS|CUDNN_STATUS|AcceleratorError"
        ),
    ),
    (
        "killed",
        re.compile(
            rb"^Killed\b|^\S*: line \d+: +\d+ Killed|code=killed, status=9|status=9/KILL|exit code -9\b"
            rb"|exitcode: -9\b|exit(?:ed)? (?:with )?code 137|signal 9\b|SIGKILL"
        ),
    ),
    ("segfault", re.compile(rb"Segmentation fault|code=dumped|exit code -11\b|status=11/SEGV|Fatal Python error")),
)
EXCEPTION = re.compile(
    rb"(?:\[rank\d+\]: ?)?((?:[A-Za-z_]\w*\.)*(?:[A-Z]\w*)?(?:Error|Exception|Exit|Interrupt|Timeout"
    rb"|OutOfResources|Failure|Fault|Expired|Warning|Abort|Refused)\w*)(?::(?: (.*))?)?$"
    rb"|(?:[a-z_]\w*\.)+([A-Z]\w+): (.+)$"
)
# A line of source and the exception that it raised: the target gave its output alone where states were to come, too.
NOT_CAPTURED = re.compile(rb"\baux_hidden_states\b.*=.*\n.*(?:too many|not enough) values to unpack")
TRACEBACK = b"Traceback (most recent call last):"
LINK = re.compile(rb"The above exception was the direct cause|During handling of the above exception")
# A dump of py-spy after a watchdog's line, and a frame of it: the innermost comes first.
DUMP = re.compile(rb"Pyspy dump for PID \d+")
STACK = re.compile(rb" {4}(\S.* \(\S+\))\s*$")
FRAME = re.compile(rb'^\s*(?:\[rank\d+\]: ?)?\s*File "([^"]+)", line (\d+)(?:, in (\S+))?')


def problem(text: bytes) -> str:
    """The kind of trouble that `text` tells of, or ''."""
    for kind, pattern in PROBLEMS:
        if pattern.search(text):
            return kind
    return ""
