"""Send prompts to a server and keep what was counted and timed. The judgement is `probe_result.py`."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from enum import StrEnum
from itertools import cycle, islice

from opsctl.errors import RemoteError, UsageError
from opsctl.sglang.probe.acceptance import Counters, read_counters
from opsctl.sglang.probe.chat_template import ChatTemplate
from opsctl.sglang.probe.prompts import ProbePrompt
from opsctl.sglang.server.api import Prompt, Server
from opsctl.sglang.server.served import Answer, Load, Metrics, Sampling, ServerInfo

ENOUGH_STEPS = 200  # verify steps from which an acceptance length is worth comparing
_WARM_UP_TOKENS = 8  # one prefill and a few cycles: kernels are compiled, pools touched


class Templated(StrEnum):
    """How chat messages became a prompt."""

    SERVER = "server"  # the server rendered them
    CHECKPOINT = "checkpoint"  # rendered here, with the template of the model's folder
    NONE = "none"  # no template was to be had: joined as plain text
    NOT_NEEDED = "not-needed"  # the prompts are text or token ids


@dataclass(frozen=True, slots=True)
class Plan:
    """What to send.

    concurrency: levels, one after the other; the acceptance is that of the first.
    temperature: of a second pass at the first level, beside the greedy one.
    patience: seconds after which a level stops early, once it has ENOUGH_STEPS and has seen every workload.
    """

    prompts: Sequence[ProbePrompt]
    concurrency: Sequence[int] = (1,)
    max_tokens: int = 128
    temperature: float | None = None
    patience: float = 120.0


@dataclass(frozen=True, slots=True)
class Sample:
    """One finished request. Times in seconds.

    decode_seconds, decode_tokens: from the first piece of the answer to the last.
    gaps: time between tokens; the tokens of one piece share its gap.
    few_tokens: the answer's distinct tokens, where they are so few that this is suspicious; else empty.
    """

    prompt: str
    workload: str
    counters: Counters | None
    completion_tokens: int
    prompt_tokens: int
    first_token: float
    decode_seconds: float
    decode_tokens: int
    gaps: tuple[float, ...]
    digest: str
    few_tokens: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Level:
    concurrency: int
    temperature: float
    seconds: float
    samples: tuple[Sample, ...]


@dataclass(frozen=True, slots=True)
class Measurement:
    """Everything a probe saw. skipped: (prompt id, the server's reason) of prompts it refused."""

    info: ServerInfo
    plan: Plan
    templated: Templated
    levels: tuple[Level, ...]
    sampled: Level | None
    skipped: tuple[tuple[str, str], ...]
    sent_tokens: int
    load_before: Load | None
    metrics_before: Metrics | None
    metrics_after: Metrics | None
    own_accept_length: float | None


@dataclass(frozen=True, slots=True)
class Progress:
    concurrency: int
    temperature: float
    done: int
    of: int
    verify_steps: int


Told = Callable[[Progress], None]


def measure(
    server: Server, info: ServerInfo, plan: Plan, template: ChatTemplate | None = None, told: Told | None = None
) -> Measurement:
    """Run `plan`. Raises what `Server` raises, and UsageError when the server takes none of the prompts.

    info: what the server said of itself. template: the model's own, used where the server does not render messages.
    """
    load, before = server.load(), server.metrics()
    prompts, templated = render(server, info, plan.prompts, template)
    runner = _Runner(server, info.speculative_num_steps, plan, told)
    prompts = runner.warm_up(prompts)
    levels = tuple(runner.level(prompts, c, 0.0) for c in plan.concurrency)
    sampled = runner.level(prompts, plan.concurrency[0], plan.temperature) if plan.temperature else None
    after = server.metrics() if before else None
    own = server.info().own_accept_length
    return Measurement(
        info, plan, templated, levels, sampled, tuple(runner.skipped), runner.sent_tokens, load, before, after, own
    )


@dataclass(frozen=True, slots=True)
class Ready:
    """A prompt as it goes to the server."""

    prompt: ProbePrompt
    sent: Prompt


def render(
    server: Server, info: ServerInfo, prompts: Sequence[ProbePrompt], template: ChatTemplate | None
) -> tuple[list[Ready], Templated]:
    """The prompts as text or token ids, by workload in turn, and how chat messages got there."""
    chats = [p for p in prompts if p.messages]
    if info.skip_tokenizer_init and any(not p.input_ids for p in prompts):
        raise UsageError(
            "this server takes token ids only (--skip-tokenizer-init)",
            hint='give --prompts FILE with {"input_ids": [...]} lines, made with the tokenizer of the model',
        )
    how = Templated.NOT_NEEDED
    if chats:
        first = server.chat_ids(_messages(chats[0]))
        how = Templated.SERVER if first else Templated.CHECKPOINT if template else Templated.NONE
    return [Ready(p, _sent(server, p, how, template)) for p in _by_turns(prompts)], how


def _sent(server: Server, prompt: ProbePrompt, how: Templated, template: ChatTemplate | None) -> Prompt:
    if prompt.input_ids:
        return prompt.input_ids
    if prompt.text is not None:
        return prompt.text
    messages = _messages(prompt)
    if how is Templated.SERVER and (ids := server.chat_ids(messages)):
        return ids
    return template.render(messages) if template else "\n\n".join(m["content"] for m in messages)


def _messages(prompt: ProbePrompt) -> list[dict[str, str]]:
    return [{"role": role, "content": content} for role, content in prompt.messages]


def _by_turns(prompts: Sequence[ProbePrompt]) -> Iterator[ProbePrompt]:
    """One of each workload, then the second of each, and so on: an early stop then leaves no workload out."""
    groups: dict[str, list[ProbePrompt]] = {}
    for prompt in prompts:
        groups.setdefault(prompt.workload, []).append(prompt)
    for turn in range(max(map(len, groups.values()), default=0)):
        yield from (group[turn] for group in groups.values() if turn < len(group))


class _Runner:
    def __init__(self, server: Server, num_steps: int | None, plan: Plan, told: Told | None) -> None:
        self._server = server
        self._num_steps = num_steps
        self._plan = plan
        self._told = told or (lambda progress: None)
        self.skipped: list[tuple[str, str]] = []
        self.sent_tokens = 0

    def warm_up(self, prompts: list[Ready]) -> list[Ready]:
        """Send one short request that is not counted. Returns the prompts from the first on that was taken."""
        sampling = Sampling(min(_WARM_UP_TOKENS, self._plan.max_tokens))
        for n, ready in enumerate(prompts):
            answer = self._ask(ready, sampling)
            if answer:
                self.sent_tokens += int(answer.meta.get("completion_tokens") or 0)
                return prompts[n:]
        raise UsageError(
            "the server takes none of the prompts" + (f": {self.skipped[0][1]}" if self.skipped else ""),
            hint="give prompts that fit its context length with --prompts FILE",
        )

    def level(self, prompts: Sequence[Ready], concurrency: int, temperature: float) -> Level:
        """All prompts at one concurrency; prompts are repeated where there are fewer than requests at a time."""
        usable = [p for p in prompts if p.prompt.id not in dict(self.skipped)]
        jobs: Iterator[Ready] = islice(cycle(usable), max(len(usable), concurrency))
        total = max(len(usable), concurrency)
        workloads = {p.prompt.workload for p in usable}
        sampling = Sampling(self._plan.max_tokens, temperature)
        samples: list[Sample] = []
        begin = time.perf_counter()
        with ThreadPoolExecutor(concurrency) as pool:
            running: set[Future[Sample | None]] = set()
            while True:
                while len(running) < concurrency and (job := next(jobs, None)):
                    running.add(pool.submit(self._sample, job, sampling))
                if not running:
                    break
                done, running = wait(running, return_when=FIRST_COMPLETED)
                samples += [sample for future in done if (sample := future.result())]
                steps = sum(s.counters.verify_steps for s in samples if s.counters)
                self._told(Progress(concurrency, temperature, len(samples), total, steps))
                if self._enough(samples, steps, workloads, time.perf_counter() - begin):
                    jobs = iter(())
        self.sent_tokens += sum(s.completion_tokens for s in samples)
        return Level(concurrency, temperature, time.perf_counter() - begin, tuple(samples))

    def _enough(self, samples: Sequence[Sample], steps: int, workloads: set[str], seconds: float) -> bool:
        seen = {s.workload for s in samples}
        return seconds > self._plan.patience and seen == workloads and (steps >= ENOUGH_STEPS or steps == 0)

    def _sample(self, ready: Ready, sampling: Sampling) -> Sample | None:
        answer = self._ask(ready, sampling)
        return _sample(ready.prompt, answer, self._num_steps) if answer else None

    def _ask(self, ready: Ready, sampling: Sampling) -> Answer | None:
        try:
            return self._server.generate(ready.sent, sampling)
        except RemoteError as error:
            if error.kind != "refused":
                raise
            # Refused for what it is (too long, as a rule); the others may be taken.
            self.skipped.append((ready.prompt.id, error.message))
            return None


def _sample(prompt: ProbePrompt, answer: Answer, num_steps: int | None) -> Sample:
    first, last = answer.chunks[0], answer.chunks[-1]
    gaps: list[float] = []
    for before, now in zip(answer.chunks, answer.chunks[1:], strict=False):
        count = now.tokens - before.tokens
        gaps += [(now.at - before.at) / count] * count if count > 0 else []
    distinct = tuple(sorted(set(answer.output_ids[1:])))  # the first token comes from the prompt pass
    content = ",".join(map(str, answer.output_ids)) or answer.text
    return Sample(
        prompt.id,
        prompt.workload,
        read_counters(answer.meta, num_steps),
        int(answer.meta.get("completion_tokens") or 0),
        int(answer.meta.get("prompt_tokens") or 0),
        first.at,
        last.at - first.at,
        last.tokens - first.tokens,
        tuple(gaps),
        hashlib.sha256(content.encode()).hexdigest()[:16],
        distinct if len(distinct) <= 2 else (),
    )
