"""Answers with the counters of speculative decoding, acted out with a dice that always falls the same way."""

import random
import threading
import time


class Counters:
    """What the server has done since it started. One lock for all: requests come from several threads."""

    def __init__(self):
        self.lock = threading.Lock()
        self.requests = self.tokens = self.prompt_tokens = 0
        self.accepted = self.steps = 0  # of speculative decoding
        self.running = 0
        self.throughput = 0.0  # tokens per second of the last request


class Decoder:
    """Decodes with or without speculation: `num_steps` drafted tokens are offered at each verify step."""

    def __init__(self, scenario, num_steps, speculative):
        self.scenario = scenario
        self.num_steps = num_steps
        self.speculative = speculative
        self.counters = Counters()

    def generate(self, prompt_tokens, max_new_tokens, on_tokens=lambda count: None):
        """Meta information of one answer, with the keys that SGLang 0.5.9 gives.

        The first token comes from the prompt pass, every further one from a verify step, as in SGLang.
        """
        counters, began = self.counters, time.time()
        with counters.lock:
            counters.running += 1
            dice = random.Random(counters.requests)
            counters.requests += 1
        time.sleep(self.scenario.step_seconds)
        on_tokens(1)
        tokens, steps, histogram = 1, 0, [0] * (self.num_steps + 1)
        while tokens < max_new_tokens:
            time.sleep(self.scenario.step_seconds * (1.35 if self.speculative else 1.0))
            accepted = self._accepted(dice) if self.speculative else 0
            histogram[accepted] += 1
            steps += 1
            grown = min(1 + accepted, max_new_tokens - tokens)
            tokens += grown
            on_tokens(grown)
        accepted_total = sum(count * n for n, count in enumerate(histogram))
        seconds = time.time() - began
        with counters.lock:
            counters.running -= 1
            counters.tokens += tokens
            counters.prompt_tokens += prompt_tokens
            counters.accepted += accepted_total
            counters.steps += steps if self.speculative else 0
            counters.throughput = tokens / seconds
        meta = {
            "id": f"{dice.getrandbits(128):032x}",
            "finish_reason": {"type": "length", "length": max_new_tokens},
            "prompt_tokens": prompt_tokens,
            "weight_version": "default",
            "completion_tokens": tokens,
            "cached_tokens": 0,
            "e2e_latency": seconds,
        }
        if self.speculative and steps:
            drafted = steps * self.num_steps
            meta.update(
                spec_accept_rate=accepted_total / drafted,
                spec_accept_length=tokens / steps,
                spec_accept_token_num=accepted_total,
                spec_draft_token_num=drafted,
                spec_verify_ct=steps,
                spec_accept_histogram=histogram,
            )
        return meta

    def accept_length(self):
        """Mean acceptance length since the start, None before the first verify step."""
        with self.counters.lock:
            steps, accepted = self.counters.steps, self.counters.accepted
        return 1 + accepted / steps if steps else None

    def _accepted(self, dice):
        for position in range(self.num_steps):
            if dice.random() >= self.scenario.accept:
                return position
        return self.num_steps
