"""What scripted speakers say: templates per act and style, free of any game's terms.

``{box}`` is the box of the act, ``{words}`` the speaker's preference in words. No template holds a
number, a ``$``, or a phrase that a game could read as an offer.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

__all__ = ["TEMPLATES", "SpeechAct", "Style"]

Style = Literal["full", "compact"]
"""Prose, or a few tokens for small models."""

SpeechAct = Literal[
    "greet", "prefer", "counter", "nudge", "last", "accept", "reject", "refuse", "offer", "chat"
]
"""``greet`` … ``refuse`` are the partner's; ``offer``, ``accept`` and ``chat`` the yardsticks'."""

_FULL: dict[SpeechAct, tuple[str, ...]] = {
    "greet": (
        "Hello! Here is what I have in mind: {box}",
        "Hi, thanks for starting. My first proposal: {box}",
        "Good to meet you. This would suit me: {box}",
        "Hey there. Let me put something on the table: {box}",
        "Hello. I thought about it, and this is my idea: {box}",
        "Hi! Shall we start from here? {box}",
        "Thanks for the message. I would go for {box}",
        "Nice to talk with you. My opening view is {box}",
    ),
    "prefer": (
        "Hello! {words}. What matters to you?",
        "Hi there. {words}. And what are you after?",
        "Thanks for asking. {words}. How about you?",
        "Good to meet you. {words}. What do you like best?",
        "Hey! {words}. Which ones do you care about?",
        "Sure, I can tell you. {words}. Your turn: what is important to you?",
        "Fair question. {words}. What would make you happy?",
        "Let me be open about it. {words}. What is your ranking?",
    ),
    "counter": (
        "That does not work for me. How about this: {box}",
        "Not quite. I could live with {box}",
        "I need a little more. Let us try {box}",
        "Thanks, but no. My answer is {box}",
        "Here is what I can do: {box}",
        "We are getting somewhere. What about {box}",
        "I see it differently. My proposal: {box}",
        "Let me suggest another way: {box}",
        "Could you agree to this? {box}",
    ),
    "nudge": (
        "Only what is in a box counts, so let us write it down: {box}",
        "Let us make it official: {box}",
        "Words alone close nothing. Put in a box it reads {box}",
        "Please use the box as I do here: {box}",
        "To have it in writing: {box}",
        "Let me put that into the form we need: {box}",
        "I would like to see it boxed. Mine is {box}",
        "Let us use the box to be clear: {box}",
    ),
    "last": (
        "This is my last offer: {box}",
        "I cannot move any further. Final offer: {box}",
        "Last offer from my side: {box}",
        "We are out of time, so this is my last offer: {box}",
        "My final word, and my last offer, is {box}",
        "Here is the last offer that I can make: {box}",
        "It is this or nothing. Last offer: {box}",
        "I have no room left. My last offer is {box}",
    ),
    "accept": (
        "That works for me. {box}",
        "Good, I agree. {box}",
        "Deal! {box}",
        "I am happy with that. {box}",
        "Yes, let us do it. {box}",
        "Fine by me. {box}",
        "All right, agreed. {box}",
        "You have convinced me. {box}",
    ),
    "reject": (
        "I have to turn that down. {box}",
        "That one is not for me. {box}",
        "Sorry, no. Please think of something else. {box}",
        "I must say no to this proposal. {box}",
        "Let us drop that one and think again. {box}",
        "No, it leaves me with too little. {box}",
        "I will pass on that. {box}",
        "That does not fit my needs. {box}",
    ),
    "refuse": (
        "We are not getting anywhere. {box}",
        "I have not seen any offer, so I am leaving. {box}",
        "There is no point in going on. {box}",
        "This will not come to an agreement. {box}",
        "I am ending it here. {box}",
        "Without a proposal from your side I give up. {box}",
        "Sorry, it is too late now. {box}",
        "Let us leave it at that. {box}",
    ),
    "offer": (
        "Here is my proposal: {box}",
        "How about this? {box}",
        "I suggest {box}",
        "Let us do it like this: {box}",
        "This seems right to me: {box}",
        "Would this be fine? {box}",
        "My offer is {box}",
        "What do you say to {box}",
    ),
    "chat": (
        "Let me think about it for a moment.",
        "Tell me more about your position.",
        "Interesting. Please go on.",
        "Hm, that is not obvious to me yet.",
        "Thank you for being so clear.",
        "There may be a way for both of us.",
        "Let us take our time here.",
        "Could that be made a bit better?",
    ),
}

_COMPACT: dict[SpeechAct, tuple[str, ...]] = {
    "greet": (
        "Hi {box}",
        "Hello {box}",
        "Hey {box}",
        "Start: {box}",
        "Idea: {box}",
        "Try: {box}",
        "First: {box}",
        "Mine: {box}",
    ),
    "prefer": (
        "{words}. You?",
        "Hi. {words}. You?",
        "I like {words}. You?",
        "Me: {words}. You?",
        "{words}. And you?",
        "Hey. {words}. And you?",
        "For me {words}. You?",
        "{words} here. You?",
    ),
    "counter": (
        "No. {box}",
        "More. {box}",
        "Rather {box}",
        "Hm. {box}",
        "Not yet. {box}",
        "Try {box}",
        "Or {box}",
        "Better: {box}",
    ),
    "nudge": (
        "Box it. {box}",
        "In a box: {box}",
        "Write it: {box}",
        "Use the box. {box}",
        "So {box}",
        "Like this: {box}",
        "Clear: {box}",
        "Box: {box}",
    ),
    "last": (
        "Last offer. {box}",
        "Last: {box}",
        "Final. {box}",
        "Last offer: {box}",
        "My last: {box}",
        "Final offer. {box}",
        "The end: {box}",
        "Last one. {box}",
    ),
    "accept": (
        "Yes. {box}",
        "OK. {box}",
        "Deal. {box}",
        "Fine. {box}",
        "Good. {box}",
        "Sure. {box}",
        "Great. {box}",
        "Right. {box}",
    ),
    "reject": (
        "No. {box}",
        "Not that. {box}",
        "No way. {box}",
        "Too low. {box}",
        "Hm, no. {box}",
        "Never. {box}",
        "Sorry, no. {box}",
        "Nope. {box}",
    ),
    "refuse": (
        "Bye. {box}",
        "No offer. {box}",
        "Over. {box}",
        "Too late. {box}",
        "I go. {box}",
        "The end. {box}",
        "Done. {box}",
        "Sorry. {box}",
    ),
    "offer": (
        "Take {box}",
        "OK? {box}",
        "So: {box}",
        "Offer: {box}",
        "How: {box}",
        "Here: {box}",
        "Mine: {box}",
        "Let: {box}",
    ),
    "chat": ("Hm.", "More?", "Better?", "I see.", "Go on.", "Think.", "Well.", "Not yet."),
}

TEMPLATES: Mapping[Style, Mapping[SpeechAct, tuple[str, ...]]] = {
    "full": _FULL,
    "compact": _COMPACT,
}
"""At least 8 templates for every act of both styles."""
