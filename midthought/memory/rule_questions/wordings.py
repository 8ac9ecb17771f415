"""The wordings of the questions, several per form. A wording never depends on whether there is an answer."""

FRAMES = (
    "{wh} does {who} say {clause}?",
    "{wh} did {who} say {clause}?",
    "Do you remember {wh} {who} said {clause}?",
    'In "{episode}", {wh} does {who} say {clause}?',
    "I would like to know {wh} {who} said {clause}. What was it?",
)
"""Of a stated number, year or name."""
SPEAKER = (
    "Who says that {said}?",
    "Who said that {said}?",
    "Which speaker says that {said}?",
    "Do you remember who said that {said}?",
    "Somebody said that {said}. Who was it?",
)
SPEAKER_WITHIN = (
    'In "{episode}", who says that {said}?',
    'Who said in "{episode}" that {said}?',
    'Which speaker of "{episode}" says that {said}?',
    'Do you remember who said in "{episode}" that {said}?',
    'Somebody said in "{episode}" that {said}. Who was it?',
)
EPISODE = (
    "In which episode does {who} say that {said}?",
    "In which episode can I hear {who} say that {said}?",
    "Which episode is it in which {who} says that {said}?",
    "{who} said that {said}. Which episode was that?",
)
WHEN = (
    'At what time in "{episode}" does {who} say that {said}?',
    'In "{episode}", {who} says that {said}. At what time is that?',
    'I want to hear again how {who} says that {said}. At what time in "{episode}" is it?',
)
NEXT = (
    '{first} asked: "{asked}" What did {second} answer?',
    'What did {second} answer when {first} asked: "{asked}"?',
    '"{asked}" {first} wanted to know. How did {second} reply?',
)
_REASON = (
    "{who} says that {said}. What reason do they give?",
    "What reason does {who} give right after saying that {said}?",
)
_EXAMPLE = (
    "{who} says that {said}. Which example do they give?",
    "Which example does {who} give right after saying that {said}?",
)
_CONCLUSION = (
    "{who} says that {said}. What do they conclude from it?",
    "What does {who} conclude after saying that {said}?",
)
_RESERVATION = (
    "{who} says that {said}. But what do they add?",
    "Which reservation does {who} have after saying that {said}?",
)
ADDITION = (
    "{who} says that {said}. What do they add?",
    "What does {who} add right after saying that {said}?",
)
CONTINUATIONS = {
    "because ": _REASON,
    "for example ": _EXAMPLE,
    "for instance ": _EXAMPLE,
    "so ": _CONCLUSION,
    "but ": _RESERVATION,
    "and ": ADDITION,
    "that ": ADDITION,
    "that's ": ADDITION,
    "it ": ADDITION,
    "it's ": ADDITION,
    "they ": ADDITION,
    "this ": ADDITION,
    "these ": ADDITION,
    "those ": ADDITION,
}
"""By the first words of the sentence that answers: what it is to the sentence before."""
BLANK = (
    "{who} says that {said}: {wh}?",
    "{who} said that {said}. Do you remember {wh}?",
)
FIRST_TO_SAY = (
    'Who mentions {topic} first in "{episode}", {a} or {b}?',
    'In "{episode}", who was the first to speak of {topic}: {a} or {b}?',
    'Both {a} and {b} speak of {topic} in "{episode}". Who does so first?',
)
MORE_OFTEN = (
    'Who mentions {topic} more often in "{episode}", {a} or {b}?',
    'In "{episode}", who speaks of {topic} more often: {a} or {b}?',
)
REPLIER = (
    'Who answered when {first} asked: "{asked}"?',
    '{first} asked: "{asked}" Who replied?',
)
BRIDGE = (
    "Somebody says that {said}. {gap}",
    "One speaker says that {said}. {gap}",
    "Think of the speaker who says that {said}. {gap}",
)
BOTH_TOPICS = (
    "Which episode mentions both {a} and {b}?",
    "In which episode do they talk about {a} and also about {b}?",
    "I remember an episode with {a} and {b} in it. Which one was it?",
)
