"""Questions with many right answers: short stories and lists, their grammar, and what makes an answer right.

Every choice is made with equal probability among what the grammar allows: the words, the order of the plan, which
of several sentences says a thing, the items of a list. So a perfect model is unsure at each choice and sure between
two choices. The choices that matter are made while thinking; the answer has to follow them. Standard library alone:
measure.py uses `is_right`, too.
"""

import re

from words import DAYS, MONTHS

ANIMALS = ["fox", "bear", "hen", "owl", "cat", "dog", "hare", "toad", "seal", "ant", "bee", "swan", "rat", "bat",
           "lion", "mouse"]
NAMES = ["Ben", "Finn", "Ida", "Jonas", "Lena", "Max", "Sam", "Tom"]
PLACES = ["sea", "tree", "well", "port", "mill", "hill", "farm", "camp", "tower", "forest", "house", "town"]
THINGS = ["ring", "bell", "boat", "hat", "ball", "nut", "cart", "coin", "map", "lamp", "key", "book"]
MOODS = ["old", "small", "big", "tall", "red", "bold", "wise", "warm"]
VERBS = ["sat", "ran", "sang", "ate", "slept", "wrote"]
TIMES = ["day", "week", "month", "noon", "hour", "morning"]

SLOTS = {"animal": ANIMALS, "friend": ANIMALS, "name": NAMES, "place": PLACES, "thing": THINGS, "mood": MOODS,
         "verb": VERBS, "other_verb": VERBS, "time": TIMES}
PLANNED = ["name", "place", "friend", "thing"]

# A story is one sentence of each part; the first two may change places. `a_` and `A_` put the article before a slot.
PARTS = {
    "opening": ["{name} was {a_mood} {animal}.", "{name} the {animal} was {mood}.", "There was {a_mood} {animal}, {name}.",
                "The {animal} was {mood}."],
    "scene": ["{name} went to the {place}.", "One {time} {name} was at the {place}.", "The {animal} ran to the {place}.",
              "At the {place} {name} sat and {verb}."],
    "meeting": ["{name} met {a_friend}.", "{A_friend} was there.", "{A_friend} came.", "There {name} saw {a_friend}."],
    "find": ["The {friend} had {a_thing}.", "They saw {a_thing}.", "{name} gave the {friend} {a_thing}.",
             "They wanted {a_thing}."],
    "ending": ["Then they {verb}.", "They {verb} and {other_verb}.", "All day they {verb}.", "Then {name} {verb}."],
}
ORDERS = [["opening", "scene", "meeting", "find", "ending"], ["scene", "opening", "meeting", "find", "ending"]]

STORY_QUESTIONS = ["Tell me a story about {subject}.", "Write a story about {subject}.", "Please tell a story of {subject}.",
                   "Can you tell a story about {subject}?", "A story about {subject}, please.",
                   "Write about {subject}.", "What is the story of {subject}?"]
EXTRAS = {"name": " named {name}", "friend": " and {a_friend}", "place": " at the {place}", "thing": " with {a_thing}"}

WORDS_OF = {"days": DAYS, "months": MONTHS, "animals": ANIMALS, "names": NAMES, "things": THINGS}
NUMBERS_OF = {"numbers": 1, "even numbers": 2, "odd numbers": 2}  # the step from one to the next
LIST_QUESTIONS = ["Name {count} {of}.", "List {count} {of}.", "Give me {count} {of}.", "Write {count} {of}.",
                  "Can you list {count} {of}?", "Please name {count} {of}.", "What are {count} {of}?"]


def with_article(word):
    return f"{'an' if word[0] in 'aeiou' else 'a'} {word}"


def capital(text):
    return text[0].upper() + text[1:]


def filled(template, values):
    """The template with its slots filled."""
    def fill(match):
        slot = match[1]
        if slot[:2] in ("a_", "A_"):
            text = with_article(values[slot[2:]])
            return capital(text) if slot[0] == "A" else text
        return values[slot]
    return re.sub(r"\{(\w+)\}", fill, template)


def carelessly(rng, text):
    roll = rng.random()
    return text[0].lower() + text[1:] if roll < 0.08 else text.rstrip("?.") if roll < 0.16 else text


def stories(rng):
    """(key of the split, question, lines of thinking, answer, what was asked)."""
    values = {slot: rng.choice(words) for slot, words in SLOTS.items()}
    values["friend"] = rng.choice([word for word in ANIMALS if word != values["animal"]])
    values["other_verb"] = rng.choice([word for word in VERBS if word != values["verb"]])
    extras = rng.sample(sorted(EXTRAS), rng.choice([0, 1, 1, 2]))
    asked = {slot: values[slot] for slot in ["animal"] + extras}
    subject = filled("{a_animal}" + "".join(EXTRAS[slot] for slot in extras), values)
    question = carelessly(rng, rng.choice(STORY_QUESTIONS).format(subject=subject))
    plan = ", ".join(f"{slot} {values[slot]}" for slot in rng.sample(PLANNED, len(PLANNED)))
    sentences = [filled(rng.choice(PARTS[part]), values) for part in rng.choice(ORDERS)]
    key = ",".join(f"{slot}={asked[slot]}" for slot in sorted(asked))
    return key, question, [f"Plan: {plan}."], " ".join(sentences), asked


def candidates(asked):
    """All items that a list may hold."""
    of = asked["of"]
    if of in WORDS_OF:
        return [word for word in WORDS_OF[of] if word != asked.get("not")]
    return [str(number) for number in range(2 if of.startswith("even") else 1, asked["below"], NUMBERS_OF[of])]


def lists(rng):
    """As `stories`."""
    asked = {"of": rng.choice([*WORDS_OF, *NUMBERS_OF]), "count": rng.randrange(2, 7)}
    text = asked["of"]
    if text in NUMBERS_OF:
        asked["below"] = rng.randrange(20, 100)
        text += f" below {asked['below']}"
    elif rng.random() < 0.5:
        asked["not"] = rng.choice(WORDS_OF[text])
        text += f" but not {asked['not']}"
    items = rng.sample(candidates(asked), asked["count"])
    question = carelessly(rng, rng.choice(LIST_QUESTIONS).format(count=asked["count"], of=text))
    line = ", ".join(f"{place}: {item}" for place, item in enumerate(items, 1))
    key = ",".join(f"{name}={asked[name]}" for name in sorted(asked))
    return key, question, [f"Pick {asked['count']}.", line + "."], f"The answer is {', '.join(items)}.", asked


FREE_KINDS = {"stories": stories, "lists": lists}


def matched(template, sentence, known):
    """`known` with the values of the sentence's slots; None where the sentence is not of the template or contradicts them."""
    pieces, slots = re.split(r"\{(\w+)\}", template), []
    pattern = re.escape(pieces[0])
    for slot, text in zip(pieces[1::2], pieces[2::2]):
        slots.append(slot)
        pattern += ("([Aa]n? [a-z]+)" if slot[:2] in ("a_", "A_") else "([A-Za-z]+)") + re.escape(text)
    found = re.fullmatch(pattern, sentence)
    if not found:
        return None
    values = dict(known)
    for slot, text in zip(slots, found.groups()):
        name, word = (slot[2:], text.split(" ")[1]) if slot[:2] in ("a_", "A_") else (slot, text)
        if word not in SLOTS[name] or values.setdefault(name, word) != word or filled(f"{{{slot}}}", {name: word}) != text:
            return None
    return values


def story_facts(text):
    """The slots of a story of the grammar, as every reading of it has them; None for any other text."""
    sentences = re.findall(r"[^.]+\.", text)
    sentences = [sentence.removeprefix(" ") for sentence in sentences]
    if " ".join(sentences) != text:
        return None
    for order in ORDERS:
        if len(sentences) != len(order):
            continue
        # The slots that two sentences share have to agree; verbs are of one sentence.
        facts = {}
        for part, sentence in zip(order, sentences):
            own = {slot: word for slot, word in facts.items() if "verb" not in slot}
            fitting = [values for template in PARTS[part] if (values := matched(template, sentence, own)) is not None]
            if not fitting:
                break
            facts = fitting[0]
        else:
            return facts if facts.get("verb") != facts.get("other_verb") else None
    return None


def story_is_right(asked, thinking, answer):
    """Whether the answer is a story of the grammar that keeps to the plan, and both to what was asked."""
    plan = re.fullmatch(r"Plan: (\w+) (\w+), (\w+) (\w+), (\w+) (\w+), (\w+) (\w+)\.", thinking.strip())
    facts = story_facts(answer)
    if not plan or facts is None:
        return False
    words = plan.groups()
    planned = dict(zip(words[::2], words[1::2]))
    if sorted(planned) != sorted(PLANNED) or any(word not in SLOTS[slot] for slot, word in planned.items()):
        return False
    wanted = {**planned, **asked}
    return (all(planned.get(slot, word) == word for slot, word in asked.items())
            and all(facts.get(slot, word) == word for slot, word in wanted.items()) and planned["friend"] != asked["animal"])


def list_is_right(asked, answer):
    found = re.fullmatch(r"The answer is (.+)\.", answer)
    items = found[1].split(", ") if found else []
    return len(items) == len(set(items)) == asked["count"] and set(items) <= set(candidates(asked))


def is_right(item, reply):
    """Whether `reply`, thinking and answer, is a right reply to a question of these kinds."""
    thinking, mark, answer = reply.partition("</think>")
    if not mark:
        return False
    if item["kind"] == "stories":
        return story_is_right(item["asked"], thinking, answer.strip())
    return list_is_right(item["asked"], answer.strip())
