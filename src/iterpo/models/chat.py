"""Chat turns become tokens: by the model's template, with agent turns spliced in as sampled.

An agent turn whose ids are known is never tokenised again. Its place is found in the rendered
text by the prefix chain: the rendering of everything before it, ready for generation, must be a
prefix of the whole rendering. Masks are spans, proved per row; no id is ever compared to build one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from iterpo.domain import Message, Response
from iterpo.errors import BatchError, TemplateError
from iterpo.models.masks import ConversationIds, mask_of, prove

__all__ = ["ChatFormat", "ConversationIds", "check_ids", "check_template", "prompt_sha256"]

NEUTRAL_START = "(conversation starts)"
"""Rendered as the first user message where a template demands one."""


@dataclass(frozen=True, slots=True)
class _Slot:
    """An assistant message inside the rendered text."""

    start: int
    """Character at which the response starts."""
    cut: int
    """Character at which its stop token starts."""
    end: int
    """Character after its stop token."""
    message: Message
    """What was said."""


def prompt_sha256(ids: Sequence[int]) -> str:
    """Hash of a rendered prompt's ids.

    >>> prompt_sha256([1, 2]) == prompt_sha256((1, 2)) != prompt_sha256([12])
    True
    """
    return hashlib.sha256(",".join(map(str, ids)).encode()).hexdigest()


class ChatFormat:
    """Renders messages for one model.

    Args:
        tokenizer: A transformers tokenizer with a chat template.

    Raises:
        TemplateError: if there is no usable chat template.
    """

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        self.name: str = str(getattr(tokenizer, "name_or_path", "") or "this tokenizer")
        template = getattr(tokenizer, "chat_template", None)
        if isinstance(template, dict):
            template = template.get("default")
        if not template:
            raise TemplateError(
                f"{self.name} has no chat template, so a conversation can't be rendered. Use an "
                "instruction-tuned model, or save the model's template as chat_template.jinja "
                "in its folder."
            )
        added = getattr(tokenizer, "added_tokens_decoder", {}).values()
        special = {*map(str, tokenizer.all_special_tokens), *(str(t) for t in added if t.special)}
        self._control = sorted((t for t in special if len(t) > 1), key=lambda t: (-len(t), t))
        self._bos = self._added_bos()
        self._cache: dict[str, tuple[int, ...]] = {}
        self._system_ok = self._renders(("system", "user"))
        self._needs_user = not self._renders(
            ("system", "assistant", "user") if self._system_ok else ("assistant", "user")
        )
        self._stop_text, self.stop_ids = self._find_stop()

    # -- public ---------------------------------------------------------------------------------

    def prompt_ids(self, messages: Sequence[Message]) -> list[int]:
        """Ids of a state, ready for the next agent turn.

        Assistant messages are spliced: their ``token_ids`` where given, else ``response_ids`` of
        their text. If the template breaks the prefix chain inside this state (it rewrites earlier
        turns), the whole rendering is tokenised instead, always in the same way.
        """
        text, slots = self._layout(messages, generation_prompt=True)
        if slots is None:
            return self._with_bos(list(self._encode(text)))
        return self._splice(text, slots)[0]

    def response_ids(self, text: str) -> list[int]:
        """Ids of a response known as text only: its tokens, then the stop token."""
        return [*self._encode(text, plain=True), self.stop_ids[0]]

    def response_token_ids(self, response: Response) -> list[int]:
        """Ids of a response: as sampled where known, else tokenised from its text.

        Raises:
            BatchError: if the ids don't spell the text: another model's tokenizer made them.
        """
        if response.token_ids is None:
            return self.response_ids(response.text)
        # Servers strip blanks at the ends of a message; ids of another vocabulary spell garbage.
        spelt = self.decode(response.token_ids)
        if spelt.split() != response.text.split():
            raise BatchError(
                f"sampled token ids spell {spelt!r:.60} with this model's tokenizer, but the "
                f"message is {response.text!r:.60}: another model sampled them. Name the policy "
                'that logged the conversations, or remove "sampled" from the turns (their text is '
                "then tokenised anew)."
            )
        return list(response.token_ids)

    def decode(self, ids: Sequence[int]) -> str:
        """Text of a response; stop and other special tokens are left out."""
        return str(
            self.tokenizer.decode(
                list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False
            )
        )

    def conversation_ids(
        self,
        messages: Sequence[Message],
        trained: Sequence[int] | None = None,
        *,
        row: str = "conversation",
    ) -> ConversationIds:
        """Ids of a whole conversation, with one supervised span per trained agent turn.

        Args:
            messages: The conversation as the agent sees it.
            trained: Indices of the assistant messages to supervise (leave out the scripted
                opening); None takes all of them.
            row: Name of the row for error messages.

        Raises:
            TemplateError: if nothing is supervised, a stop token falls outside the mask, the mask
                and the responses differ in length, or the template lacks the prefix property.
        """
        wanted = set(
            (i for i, m in enumerate(messages) if m.role == "assistant")
            if trained is None
            else trained
        )
        wrong = sorted(i for i in wanted if messages[i].role != "assistant")
        if wrong:
            raise TemplateError(
                f"{row}: messages {wrong} are not the assistant's; can't train them"
            )
        if not wanted:
            raise TemplateError(
                f"{row}: no supervised token; nothing would be learned (template of {self.name})"
            )
        text, slots = self._layout(messages, generation_prompt=False)
        if slots is None:
            raise TemplateError(
                f"{row}: the template of {self.name} lacks the prefix property (it rewrites "
                "earlier turns or hides a response), so agent turns can't be located; use "
                "one row per agent turn instead"
            )
        ids, spans = self._splice(text, slots)
        order = [i for i, m in enumerate(messages) if m.role == "assistant"]
        kept = tuple(span for i, span in zip(order, spans, strict=True) if i in wanted)
        result = ConversationIds(tuple(ids), mask_of(len(ids), kept), kept)
        said = [messages[i] for i in sorted(wanted)]
        targets = [self.response_token_ids(Response(m.content, m.token_ids)) for m in said]
        prove(result, targets, self.stop_ids, where=f"{row} (template of {self.name})")
        return result

    # -- rendering ------------------------------------------------------------------------------

    def _render(self, messages: Sequence[dict[str, str]], generation_prompt: bool) -> str:
        try:
            text = self.tokenizer.apply_chat_template(
                list(messages),
                tokenize=False,
                add_generation_prompt=generation_prompt,
                date_string="1 January 2026",  # some templates print today's date by default
            )
        except Exception as error:  # jinja raises what a template's author chose
            roles = ", ".join(m["role"] for m in messages)
            raise TemplateError(
                f"the template of {self.name} refuses messages with the roles [{roles}]: {error}"
            ) from error
        return str(text)

    def _renders(self, roles: Sequence[str]) -> bool:
        try:
            self._render([{"role": r, "content": "x"} for r in roles], True)
        except TemplateError:
            return False
        return True

    def _prepare(self, messages: Sequence[Message]) -> list[tuple[dict[str, str], Message]]:
        """Messages as the template takes them, each with its origin."""
        out = [({"role": m.role, "content": self._defuse(m.content)}, m) for m in messages]
        speech = next((i for i, m in enumerate(messages) if m.role != "system"), len(out))
        if self._needs_user and (speech == len(out) or messages[speech].role == "assistant"):
            start = Message("user", NEUTRAL_START)
            out.insert(speech, (start.as_dict(), start))
        if not self._system_ok and out and out[0][0]["role"] == "system":
            system = out.pop(0)[0]["content"]
            if out:
                first = out[0][0]
                first["content"] = f"{system}\n\n{first['content']}"
        return out

    def _defuse(self, text: str) -> str:
        # Whoever types a control token must not open or close a turn with it.
        for token in self._control:
            text = text.replace(token, f"{token[0]} {token[1:]}")
        return text

    def _layout(
        self, messages: Sequence[Message], *, generation_prompt: bool
    ) -> tuple[str, list[_Slot] | None]:
        """The rendered text, and the place of each assistant message (None: chain broken)."""
        prepared = self._prepare(messages)
        dicts = [d for d, _ in prepared]
        text = self._render(dicts, generation_prompt)
        slots: list[_Slot] = []
        for i, (entry, message) in enumerate(prepared):
            if entry["role"] != "assistant":
                continue
            try:
                before = self._render(dicts[:i], True)
            except TemplateError:
                return text, None
            slot = self._locate(text, before, entry["content"], message)
            if slot is None or (slots and slot.start < slots[-1].end):
                return text, None
            slots.append(slot)
        return text, slots

    def _locate(self, text: str, before: str, content: str, message: Message) -> _Slot | None:
        if not text.startswith(before):
            return None
        tail = text[len(before) :]
        if not tail.startswith(content):  # templates may strip, or put a space before
            content = content.strip()
            content = tail[: len(tail) - len(tail.lstrip())] + content
            if not tail.startswith(content):
                return None
        rest = tail[len(content) :]
        cut = len(before) + len(content) + len(rest) - len(rest.lstrip())
        if not text.startswith(self._stop_text, cut):
            return None
        return _Slot(len(before), cut, cut + len(self._stop_text), message)

    def _splice(self, text: str, slots: Sequence[_Slot]) -> tuple[list[int], list[tuple[int, int]]]:
        ids: list[int] = []
        spans: list[tuple[int, int]] = []
        place = 0
        for slot in slots:
            segment = list(self._encode(text[place : slot.start]))
            ids.extend(segment if ids else self._with_bos(segment))
            said = self.response_token_ids(Response(slot.message.content, slot.message.token_ids))
            spans.append((len(ids), len(ids) + len(said)))
            ids.extend(said)
            # A turn cut at its length has no stop token of its own: the template's follows.
            place = slot.end if said and said[-1] in self.stop_ids else slot.cut
        segment = list(self._encode(text[place:]))
        ids.extend(segment if ids else self._with_bos(segment))
        return ids, spans

    # -- tokens ---------------------------------------------------------------------------------

    def _encode(self, text: str, *, plain: bool = False) -> tuple[int, ...]:
        if plain:
            return self._tokenize(text, plain=True)
        found = self._cache.get(text)
        if found is None:
            if len(self._cache) > 20_000:
                self._cache.clear()
            found = self._cache[text] = self._tokenize(text, plain=False)
        return found

    def _tokenize(self, text: str, *, plain: bool) -> tuple[int, ...]:
        if not text:
            return ()
        encoded = self.tokenizer(
            text, add_special_tokens=False, split_special_tokens=plain, verbose=False
        )
        return tuple(encoded["input_ids"])

    def _added_bos(self) -> int | None:
        """The BOS id, if this tokenizer puts one before a text by itself."""
        bos = self.tokenizer.bos_token_id
        ids = self.tokenizer("a")["input_ids"]
        return bos if bos is not None and ids[:1] == [bos] else None

    def _with_bos(self, ids: list[int]) -> list[int]:
        if self._bos is None:
            return ids
        while ids[:2] == [self._bos, self._bos]:
            ids = ids[1:]
        return ids if ids[:1] == [self._bos] else [self._bos, *ids]

    def _find_stop(self) -> tuple[str, tuple[int, ...]]:
        """The text and ids that end an agent turn, the template's own first."""
        probe = "probe7"
        text = self._render(
            [{"role": "user", "content": "x"}, {"role": "assistant", "content": probe}], False
        )
        if probe not in text:
            raise TemplateError(
                f"the template of {self.name} does not show what an assistant message says; fix "
                "chat_template.jinja in the model's folder"
            )
        rest = text[text.rfind(probe) + len(probe) :].lstrip()
        ended_by = [t for t in self._control if rest.startswith(t)]
        if not ended_by:
            raise TemplateError(
                f"the template of {self.name} does not end an agent turn with a special token "
                f"(it goes on with {rest[:20]!r}), so the model could never learn to stop; fix "
                "chat_template.jinja so that the stop token follows each assistant message"
            )
        stop = int(self.tokenizer.convert_tokens_to_ids(ended_by[0]))
        eos = self.tokenizer.eos_token_id
        return ended_by[0], tuple(dict.fromkeys([stop, stop if eos is None else int(eos)]))


def check_ids(rows: Iterable[Sequence[int]], vocabulary: int) -> None:
    """Check that a model can read token ids, some of which come from a log.

    Raises:
        BatchError: if an id is not below ``vocabulary``, the number of ids that the model knows.
    """
    largest = max((max(row, default=0) for row in rows), default=0)
    if largest >= vocabulary:
        raise BatchError(
            f"the log holds the token id {largest}, but this model knows ids below {vocabulary}: "
            "the agent turns were sampled by another model. Name the policy that logged them, or "
            'remove "sampled" from the turns (their text is then tokenised anew).'
        )


def check_template(tokenizer: Any) -> ChatFormat:
    """Check before a run that a tokenizer's template can be trained with.

    Raises:
        TemplateError: if there is no template, it offers no generation prompt, it lacks the prefix
            property on a plain dialogue, or splicing differs from tokenising the whole text.
    """
    chat = ChatFormat(tokenizer)
    messages = [
        Message("system", "Be brief."),
        Message("assistant", "Hello!"),
        Message("user", "I offer $10."),
        Message("assistant", "I want $12."),
        Message("user", "Fine."),
        Message("assistant", "Deal."),
    ]
    row = chat.conversation_ids(messages, row="preflight dialogue")
    for (start, _), t in zip(row.spans, (1, 3, 5), strict=True):
        prompt = chat.prompt_ids(messages[:t])
        if list(row.ids[:start]) != prompt:
            raise TemplateError(
                f"the template of {chat.name} lacks the prefix property: what precedes agent turn "
                f"{t} in the whole conversation differs from the prompt it was sampled from"
            )
    text, _ = chat._layout(messages, generation_prompt=False)
    whole = chat._with_bos(list(chat._encode(text)))
    if list(row.ids) != whole:
        raise TemplateError(
            f"the tokenizer of {chat.name} joins response and template tokens, so spliced and "
            "whole renderings differ; iterpo can't mask agent turns exactly with it"
        )
    return chat
