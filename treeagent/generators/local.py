"""Sampling from a transformers model on this machine, with every prompt token read only once.

*The prefix cache.* Keys and values are kept in segments, runs of tokens such as an observation or an action, which form
a trie. To read a prompt, the longest chain of segments that matches its beginning is copied into one buffer, and only
the remaining tokens go through the model.

*Siblings in one row.* The K samples of a prompt share one row and one copy of its prefix. At each step the row has K
new tokens, all at the same position, and the attention mask hides them from each other. Given continuations (``score``)
share a row in the same way.
"""

import sys
import warnings
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

import numpy as np
import torch
from peft import PeftModel
from torch import Tensor
from transformers import PreTrainedModel
from transformers.cache_utils import Cache, DynamicLayer, DynamicSlidingWindowLayer

from treeagent.generators.attention import (
    additive,
    base_model,
    context_length,
    hidden_states,
    layer_windows,
    logit_columns,
    unfit,
    windowed,
)
from treeagent.generators.base import Generator, Ids, Pause, Sample, SampleRequest, Usage, prefix_trie
from treeagent.types import UserError

Row = TypeVar("Row")

_SCORED_LOGITS = 2**28
"""Most logits that one forward pass of ``LocalGenerator.score`` computes (1 GiB in single precision)."""

_NAMES = """
cohere exaone4 falcon gemma gemma2 gemma3_text glm4 gpt2 gpt_neox gpt_oss granite llama llama4_text mistral mixtral
olmo2 olmo3 opt phi phi3 qwen2 qwen2_moe qwen3 qwen3_moe smollm3 stablelm starcoder2
"""
TESTED = frozenset(_NAMES.split())
"""Architectures (``model_type``) for which tests compare this module with plain forward passes."""


@dataclass(slots=True, eq=False)
class Segment:
    """A run of tokens with their keys and values. It follows the tokens of ``parent`` and of its ancestors."""

    parent: "Segment | None"
    token_ids: tuple[int, ...]
    keys_values: Tensor
    """[layers, 2, heads, tokens, head width]"""
    hidden: Tensor | None = None
    """[2 · width]: of the middle and the last layer at the last token; None if the segment was sampled, not read."""
    logits: Tensor | None = None
    """[vocabulary]: the logits of the token after the segment."""
    children: dict[int, list["Segment"]] = field(default_factory=dict[int, list["Segment"]])

    @property
    def bytes(self) -> int:
        extra = sum(tensor.nbytes for tensor in (self.hidden, self.logits) if tensor is not None)
        return self.keys_values.nbytes + extra


class PrefixCache:
    """A trie of segments. ``trim`` drops the least recently used leaves once it holds more than ``capacity`` bytes."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.bytes = 0
        self._roots: dict[int, list[Segment]] = {}
        self._order: OrderedDict[int, Segment] = OrderedDict()

    def find(self, token_ids: Sequence[int]) -> list[Segment]:
        """The chain of longest segments that matches the beginning of ``token_ids``."""
        path: list[Segment] = []
        position, options = 0, self._roots
        while position < len(token_ids):
            fitting = [
                segment
                for segment in options.get(token_ids[position], ())
                if tuple(token_ids[position : position + len(segment.token_ids)]) == segment.token_ids
            ]
            if not fitting:
                break
            # Of two equal segments, the one that was read also has a hidden state.
            best = max(fitting, key=lambda segment: (len(segment.token_ids), segment.hidden is not None))
            path.append(best)
            position += len(best.token_ids)
            options = best.children
        # Children first, so that the oldest segment is always a leaf.
        for segment in reversed(path):
            self._order.move_to_end(id(segment))
        return path

    def add(self, segment: Segment) -> Segment:
        siblings = segment.parent.children if segment.parent is not None else self._roots
        siblings.setdefault(segment.token_ids[0], []).append(segment)
        self._order[id(segment)] = segment
        self.bytes += segment.bytes
        ancestor = segment.parent
        while ancestor is not None:
            self._order.move_to_end(id(ancestor))
            ancestor = ancestor.parent
        return segment

    def trim(self) -> None:
        """Drop the least recently used leaves until the cache fits into its capacity."""
        while self.bytes > self.capacity and self._order:
            _, segment = self._order.popitem(last=False)
            siblings = segment.parent.children if segment.parent is not None else self._roots
            siblings[segment.token_ids[0]].remove(segment)
            self.bytes -= segment.bytes

    def clear(self) -> None:
        self._roots.clear()
        self._order.clear()
        self.bytes = 0


class _Layer(DynamicLayer):
    """A layer of transformers' cache that writes into a preallocated buffer instead of growing by concatenation."""

    def __init__(self, keys: Tensor, values: Tensor, length: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.keys_buffer, self.values_buffer, self.length = keys, values, length
        self.dtype, self.device, self.is_initialized = keys.dtype, keys.device, True
        self.keys, self.values = keys[:, :, :length], values[:, :, :length]

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        end = self.length + key_states.shape[-2]
        self.keys_buffer[:, :, self.length : end] = key_states
        self.values_buffer[:, :, self.length : end] = value_states
        self.length = end
        self.keys, self.values = self.keys_buffer[:, :, :end], self.values_buffer[:, :, :end]
        return self.keys, self.values


class LocalGenerator(Generator):
    """Reads prompts and samples continuations. Not safe for concurrent use."""

    def __init__(
        self,
        model: PreTrainedModel | PeftModel,
        *,
        cache_bytes: int = 1 << 30,
        max_rows: int = 128,
        vocabulary: int = sys.maxsize,
    ) -> None:
        """At most ``max_rows`` prompts go through the model together. A padded output beyond the tokenizer's
        ``vocabulary`` is never drawn."""
        self.model, self.cache = model.eval(), PrefixCache(cache_bytes)
        self.max_rows, self.vocabulary = max_rows, vocabulary
        ends = getattr(base_model(model).generation_config, "eos_token_id", None)
        self.end_ids = () if ends is None else (ends,) if isinstance(ends, int) else tuple(ends)
        self.usage = Usage()
        self.context = context_length(model)
        self.windows = layer_windows(model)
        self.shared: tuple[int, ...] = ()
        """The common prefix of most prompts. It is read once, and prompts continue from it."""
        self._shape = self._cache_shape()
        """Number of layers, number of heads per layer, and width of a key or value."""
        kind = base_model(model).config.get_text_config().model_type
        if kind not in TESTED:
            warnings.warn(
                f"policy.generator=local is not tested with the architecture {kind!r}, whose log-probabilities may be "
                "wrong over shared prefixes: add it to tests/generators/families.py and run the tests there, or set "
                "policy.generator=vllm",
                stacklevel=2,
            )

    def forget(self) -> None:
        self.cache.clear()

    @torch.no_grad()
    def _cache_shape(self) -> tuple[int, int, int]:
        """Measure ``_shape`` by reading one token, because configurations name these numbers in many ways."""
        token = torch.zeros(1, 1, dtype=torch.long, device=self.model.device)
        cache = self.model(input_ids=token, use_cache=True, logits_to_keep=1).past_key_values
        plain = (DynamicLayer, DynamicSlidingWindowLayer)  # their subclasses keep more than keys and values
        layers: list[Any] = [each for each in cache.layers if type(each) in plain] if isinstance(cache, Cache) else []
        shapes = {(tensor.shape[1], tensor.shape[3]) for layer in layers for tensor in (layer.keys, layer.values)}
        if len(shapes) != 1 or len(layers) < len(cache.layers):
            raise unfit(self.model, "does not keep keys and values of one shape in every layer")
        return len(layers), *shapes.pop()

    @torch.no_grad()
    def hidden(self, prompts: Sequence[tuple[int, ...]]) -> Tensor:
        """The hidden states of the middle and the last layer at each prompt's last token, [prompts, 2 · width]."""
        segments = self._read(prompts)
        self.cache.trim()
        return torch.stack([cast(Tensor, segment.hidden) for segment in segments])

    def _read(self, prompts: Sequence[tuple[int, ...]]) -> list[Segment]:
        """The last segment of each prompt, with ``hidden`` and ``logits``."""
        known: dict[tuple[int, ...], Segment] = {}
        missing: list[tuple[int, ...]] = []
        shared = self.shared
        continued = shared and any(prompt[: len(shared)] == shared != prompt for prompt in prompts)
        if continued and sum(len(segment.token_ids) for segment in self.cache.find(shared)) < len(shared):
            self._batched(1, lambda rows: self._encode([shared]))
        for prompt in dict.fromkeys(prompts):
            path = self.cache.find(prompt)
            length = sum(len(segment.token_ids) for segment in path)
            if length == len(prompt) and path[-1].hidden is not None:
                known[prompt] = path[-1]
                self.usage.cached_tokens += length
            else:
                missing.append(prompt)
        known.update(zip(missing, self._batched(len(missing), lambda rows: self._encode(missing[rows])), strict=True))
        return [known[prompt] for prompt in prompts]

    def _batched(self, count: int, work: Callable[[slice], list[Row]]) -> list[Row]:
        """Run ``work`` on slices of ``count`` rows, each as large as ``max_rows`` and the GPU's memory allow."""
        done: list[Row] = []
        while len(done) < count:
            rows = min(self.max_rows, count - len(done))
            try:
                done += work(slice(len(done), len(done) + rows))
            except torch.OutOfMemoryError:
                if rows == 1:
                    raise UserError(
                        "the GPU's memory does not hold the keys and values of one prompt's samples: lower "
                        "policy.cache_bytes or search.candidates, or use a smaller model"
                    ) from None
                self.max_rows = min(self.max_rows, rows // 2)
        return done

    def _encode(self, prompts: Sequence[tuple[int, ...]]) -> list[Segment]:
        # The last token always goes through the model, so that its hidden state and its logits are computed.
        paths = [self.cache.find(prompt[:-1]) for prompt in prompts]
        pasts = [sum(len(segment.token_ids) for segment in path) for path in paths]
        new = [prompt[past:] for prompt, past in zip(prompts, pasts, strict=True)]
        width, past = max(map(len, new)), max(pasts)
        buffer, cache = self._buffer(paths, past, width)
        ids, positions = torch.zeros(2, len(new), width, dtype=torch.long)
        keys = torch.zeros(len(new), past + width, dtype=torch.long)
        seen = torch.zeros(len(new), width, past + width, dtype=torch.bool)
        for row, (tokens, known) in enumerate(zip(new, pasts, strict=True)):
            pad = width - len(tokens)  # padding is on the left, so that the last column holds each prompt's last token
            ids[row, pad:] = torch.tensor(tokens)
            positions[row, pad:] = torch.arange(known, known + len(tokens))
            keys[row, past - known : past] = torch.arange(known)
            keys[row, past + pad :] = positions[row, pad:]
            seen[row, pad:, past - known : past] = True
            seen[row, pad:, past + pad :] = torch.ones(len(tokens), len(tokens), dtype=torch.bool).tril()
        last = logit_columns(self.model, width - 1, width)
        with hidden_states(self.model) as collected:
            logits = self._logits(cache, ids, positions, seen, keys, logits_to_keep=last)[:, -1].float()
        hidden = collected[0][:, -1].float()
        segments = []
        for row, (path, tokens) in enumerate(zip(paths, new, strict=True)):
            keys_values = buffer[:, :, row, :, past + width - len(tokens) :].clone()
            parent = path[-1] if path else None
            # Cloned, because a view would keep the whole batch in memory as long as the segment exists.
            new_segment = Segment(parent, tokens, keys_values, hidden[row].clone(), logits[row].clone())
            segments.append(self.cache.add(new_segment))
        self.usage.encoded_tokens += sum(map(len, new))
        self.usage.cached_tokens += sum(pasts)
        return segments

    @torch.no_grad()
    def sample(self, request: SampleRequest) -> list[list[Sample]]:
        limits = request.limits(self.context)

        def draw(rows: slice) -> list[list[Sample]]:
            leaves = self._read(request.prompts[rows])
            # One row of random numbers per token, so that the draws of a prompt do not depend on the lengths of others.
            shape = max(limits[rows]), request.count
            draws = np.stack([np.random.default_rng(seed).random(shape) for seed in request.seeds[rows]])
            samples = self._decode(request, rows, leaves, torch.from_numpy(draws), limits[rows])
            self.cache.trim()
            return samples

        return self._batched(len(request.prompts), draw)

    @torch.no_grad()
    def score(
        self, prompts: Sequence[Ids], candidates: Sequence[Sequence[Ids]], temperature: float = 1.0
    ) -> list[list[Sample]]:
        def work(rows: slice) -> list[list[Sample]]:
            scored = self._score(self._read(prompts[rows]), candidates[rows], temperature or 1.0)
            self.cache.trim()
            return scored

        return self._batched(len(prompts), work)

    def _score(
        self, leaves: Sequence[Segment], candidates: Sequence[Sequence[Ids]], temperature: float
    ) -> list[list[Sample]]:
        """Score ``candidates`` as continuations of ``leaves``, without caching them: search continues only a few."""
        tries = [prefix_trie(each) for each in candidates]
        width = max(map(len, tries)) - 1
        most = max(_SCORED_LOGITS // (max(width, 1) * int(cast(Tensor, leaves[0].logits).shape[-1])), 1)
        if len(leaves) > most:
            parts = [slice(start, start + most) for start in range(0, len(leaves), most)]
            return [row for part in parts for row in self._score(leaves[part], candidates[part], temperature)]
        after = self._logits_after(leaves, tries, width) if width else [torch.empty(0)] * len(leaves)
        scored: list[list[Sample]] = []
        for leaf, trie, fed, sequences in zip(leaves, tries, after, candidates, strict=True):
            first = cast(Tensor, leaf.logits)[None]
            logits = torch.cat([first, fed.float()[: len(trie) - 1]]) if len(trie) > 1 else first
            logprobs = (logits / temperature).log_softmax(-1)
            row_of = {prefix: number for number, prefix in enumerate(trie)}
            steps = [(row_of[ids[:length]], token) for ids in sequences for length, token in enumerate(ids)]
            scores = iter(logprobs[tuple(zip(*steps, strict=True))].tolist() if steps else ())
            scored.append([Sample(ids, tuple(next(scores) for _ in ids)) for ids in sequences])
        return scored

    def _logits_after(self, leaves: Sequence[Segment], tries: Sequence[dict[Ids, list[int]]], width: int) -> Tensor:
        """The logits after each nonempty prefix of the candidates, in the order of its trie: [rows, width, vocabulary].
        Each prefix is a column of its last token, which attends to the prompt, its shorter prefixes and itself."""
        rows = len(leaves)
        _, cache, pasts, past, prefix = self._after(leaves, width, width)
        # Filled as NumPy arrays: setting single elements of a tensor would take longer than the pass of a small model.
        ids, depths = np.zeros((rows, width), dtype=np.int64), np.zeros((rows, width), dtype=np.int64)
        above = np.zeros((rows, width, width), dtype=np.bool_)
        for row, trie in enumerate(tries):
            column: dict[tuple[int, ...], int] = {}
            for token_prefix in list(trie)[1:]:
                index = column[token_prefix] = len(column)
                ids[row, index], depths[row, index] = token_prefix[-1], len(token_prefix) - 1
                if len(token_prefix) > 1:
                    above[row, index] = above[row, column[token_prefix[:-1]]]
                above[row, index, index] = True
        self.usage.encoded_tokens += sum(len(trie) - 1 for trie in tries)
        seen = torch.cat([prefix, torch.from_numpy(above)], dim=-1)
        positions = pasts[:, None] + torch.from_numpy(depths)
        keys = torch.cat([pasts[:, None] + torch.arange(past) - past, positions], dim=-1)
        return self._logits(cache, torch.from_numpy(ids), positions, seen, keys)

    def _decode(
        self, request: SampleRequest, part: slice, leaves: Sequence[Segment], draws: Tensor, limits: Sequence[int]
    ) -> list[list[Sample]]:
        """Sample continuations of ``leaves``, the last segments of the slice ``part`` of the request's prompts, by
        ``draws``: uniform random numbers, [prompts, new tokens, siblings]."""
        rows, steps, count = draws.shape
        if not count:
            return [[] for _ in leaves]
        buffer, cache, pasts, past, prefix = self._after(leaves, count, steps * count)
        # The columns of a row: its prefix, padded on the left, then ``count`` columns per step, one for each sibling.
        # Column past + step * count + k belongs to sibling k, which attends only to the prefix and its own columns.
        own = torch.eye(count, dtype=torch.bool).repeat(1, steps).expand(rows, count, steps * count)
        seen = torch.cat([prefix, own], dim=-1)
        mask = additive(seen, self.model.dtype, self.model.device)
        news = torch.arange(steps).repeat_interleave(count)
        keys = pasts[:, None] + torch.cat([torch.arange(past) - past, news])
        logits = torch.stack([cast(Tensor, leaf.logits) for leaf in leaves]).cpu()[:, None].expand(-1, count, -1)
        tokens, logprobs = torch.zeros(rows, steps, count, dtype=torch.long), torch.zeros(rows, steps, count)
        lengths = torch.tensor(limits)[:, None].repeat(1, count)
        pauses, form, size = request.pauses[part], request.form, logits.shape[-1]
        turns = (request.turn_prefixes or [()] * len(request.prompts))[part]
        states = form.begun(turns, count) if form is not None else []
        known = torch.arange(size) < self.vocabulary if size > self.vocabulary else None
        stops, counted = torch.tensor(request.stop_ids), 0
        for step in range(steps):
            allowed = known if form is None else torch.from_numpy(form.allowed(states, size))
            tokens[:, step], logprobs[:, step] = _draw(logits, draws[:, step], request.temperature, allowed)
            if form is not None:
                form.advance(states, tokens[:, step].tolist())
            ended = torch.isin(tokens[:, step], stops) & (lengths > step)
            lengths = torch.where(ended, step + 1, lengths)
            if any(pauses):
                _pause(tokens[:, : step + 1], lengths, pauses)
            drawn = int(lengths.clamp(max=step + 1).sum())
            self.usage.generated_tokens += drawn - counted  # as they come, since who watches a run reads it
            counted = drawn
            if step + 1 == steps or bool((lengths <= step + 1).all()):
                break
            # A row at its own limit stays where it is: a position beyond the context would fail.
            places = pasts + torch.clamp(torch.tensor(limits) - 1, max=step)
            positions, end = places[:, None].expand(rows, count), past + (step + 1) * count
            columns = seen[..., :end], keys[:, :end], mask[..., :end]
            logits = self._logits(cache, tokens[:, step], positions, *columns).float().cpu()
        self.usage.generated_tokens += int(lengths.sum()) - counted
        samples: list[list[Sample]] = [[] for _ in leaves]
        for row, sibling in np.ndindex(rows, count):
            length, leaf = int(lengths[row, sibling]), leaves[row]
            ids = tuple(tokens[row, :length, sibling].tolist())
            samples[row].append(Sample(ids, tuple(logprobs[row, :length, sibling].tolist())))
            fed = ids[:-1]  # the last token was only drawn
            if fed and not any(child.token_ids == fed for child in leaf.children.get(fed[0], ())):
                columns = slice(past + sibling, past + (length - 1) * count, count)
                self.cache.add(Segment(leaf, fed, buffer[:, :, row, :, columns].clone()))
        return samples

    def _after(self, leaves: Sequence[Segment], queries: int, new: int) -> tuple[Tensor, Cache, Tensor, int, Tensor]:
        """The buffer of ``leaves`` with room for ``new`` tokens, its cache, the lengths of the prefixes [rows], the
        longest, and whether each query sees each of its columns, [rows, queries, longest]."""
        paths = [[leaf] for leaf in leaves]
        for path in paths:
            while (parent := path[0].parent) is not None:
                path.insert(0, parent)
        pasts = torch.tensor([sum(len(segment.token_ids) for segment in path) for path in paths])
        past = int(pasts.max())
        prefix = (torch.arange(past) >= past - pasts[:, None])[:, None].expand(len(leaves), queries, past)
        return *self._buffer(paths, past, new), pasts, past, prefix

    def _buffer(self, paths: Sequence[Sequence[Segment]], past: int, new: int) -> tuple[Tensor, Cache]:
        """Keys and values, [layers, 2, rows, heads, past + new, head width], of which those of ``paths`` end at column
        ``past``; and the same as a cache."""
        layers, heads, width = self._shape
        shape = (layers, 2, len(paths), heads, past + new, width)
        buffer = torch.zeros(shape, dtype=self.model.dtype, device=self.model.device)
        for row, path in enumerate(paths):
            end = past
            for segment in reversed(path):
                start = end - len(segment.token_ids)
                buffer[:, :, row, :, start:end] = segment.keys_values
                end = start
        return buffer, Cache(layers=[_Layer(keys_values[0], keys_values[1], past) for keys_values in buffer])

    def _logits(
        self, cache: Cache, ids: Tensor, positions: Tensor, seen: Tensor, keys: Tensor, *masks: Tensor, **options: Any
    ) -> Tensor:
        """The logits of one forward pass. ``masks`` may hold ``additive(seen)``, where it is known."""
        [mask] = masks or [additive(seen, self.model.dtype, self.model.device)]
        output = self.model(
            input_ids=ids.to(self.model.device),
            position_ids=positions.to(self.model.device),
            attention_mask=windowed(self.windows, mask, seen, positions, keys),
            past_key_values=cache,
            use_cache=True,
            **options,
        )
        return cast(Tensor, output.logits)


def _pause(tokens: Tensor, lengths: Tensor, pauses: Sequence[Pause | None]) -> None:
    """Shorten ``lengths``, [rows, siblings], of the samples that reach their pause with the last of ``tokens``, [rows,
    tokens, siblings]."""
    length = tokens.shape[1]
    for row, (pause, latest) in enumerate(zip(pauses, tokens[:, -1].tolist(), strict=True)):
        if pause is None:
            continue
        for sibling, token in enumerate(latest):
            goes_on = token in pause.tokens and lengths[row, sibling] > length
            if goes_on and pause.reached(tuple(tokens[row, :, sibling].tolist())):
                lengths[row, sibling] = length


def _draw(logits: Tensor, uniform: Tensor, temperature: float, allowed: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Draw tokens by inverting the cumulative distribution. Returns them and their log-probabilities among all tokens,
    [rows, siblings] each. ``logits``, and ``allowed`` (tokens that may be drawn), are [rows, siblings, vocabulary];
    ``uniform`` are random numbers in [0, 1), [rows, siblings]."""
    logprobs = torch.log_softmax(logits / temperature if temperature > 0 else logits, dim=-1)
    kept_logprobs = logprobs if allowed is None else logprobs.masked_fill(~allowed, -torch.inf).log_softmax(-1)
    if temperature > 0:
        cumulative = kept_logprobs.exp().cumsum(dim=-1)
        # A number that rounds to 1 would choose the last token of the vocabulary, however unlikely it is.
        below = uniform[..., None].float().clamp(max=1 - 2**-24) * cumulative[..., -1:]
        chosen = torch.searchsorted(cumulative, below.contiguous(), right=True)
        chosen = chosen.clamp(max=logits.shape[-1] - 1)
    else:
        chosen = kept_logprobs.argmax(dim=-1, keepdim=True)
    return chosen[..., 0], logprobs.gather(-1, chosen)[..., 0]
