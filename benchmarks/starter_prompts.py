"""Additional prompts for the starter head: code, letters, extraction, explanations, roles, reasoning.

Templates with slots (starter_prompts.yaml), filled with a seeded random generator, so the list is reproducible.
"""

import random
from itertools import product
from pathlib import Path

import yaml

Slots = dict[str, list[str]]
MONTHS = ("March", "June", "October")


def varied_prompts() -> list[tuple[str, str]]:
    """(category, prompt) pairs, shuffled: about 1,600 different ones."""
    slots: Slots = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))
    draw = random.Random(0)
    prompts = [("code", _code(slots, draw, form, task)) for form, task in product(slots["code"], slots["tasks"])]
    prompts += [("writing", _letter(slots, draw)) for _ in range(400)]
    prompts += [("explain", form.format(topic=topic)) for form, topic in product(slots["explain"], slots["topics"])]
    prompts += [
        ("roleplay", f"Pretend to be {role} and {ask}.") for role, ask in product(slots["roles"], slots["asks"])
    ]
    prompts += [("extraction", _extraction(slots, draw)) for _ in range(350)]
    prompts += [("reasoning", _reasoning(slots, draw)) for _ in range(350)]
    prompts = list(dict.fromkeys(prompts))
    draw.shuffle(prompts)
    return prompts


def _code(slots: Slots, draw: random.Random, form: str, task: str) -> str:
    return form.format(language=draw.choice(slots["languages"]), task=task)


def _letter(slots: Slots, draw: random.Random) -> str:
    kind, audience, subject, ending = (
        draw.choice(slots[name]) for name in ("letters", "audiences", "subjects", "endings")
    )
    return f"Write a {kind} for {audience} about {subject}.{ending}"


def _extraction(slots: Slots, draw: random.Random) -> str:
    def order() -> str:
        name, city, goods = (draw.choice(slots[kind]) for kind in ("names", "cities", "goods"))
        price, day, month, year = (
            draw.randint(5, 900),
            draw.randint(1, 28),
            draw.choice(MONTHS),
            draw.randint(2001, 2024),
        )
        return f"{name} from {city} bought {goods} for {price} dollars on {day} {month} {year}."

    orders = " ".join(order() for _ in range(draw.randint(2, 4)))
    fields, shape = draw.choice(slots["wanted"]), draw.choice(slots["formats"])
    return f"Extract {fields} from the following text. {shape}\n\n{orders}"


def _reasoning(slots: Slots, draw: random.Random) -> str:
    a, b, c = (name.split()[0] for name in draw.sample(slots["names"], 3))
    x, y, z = draw.sample(slots["things"], 3)
    n, m, k = (draw.randint(2, 40) for _ in range(3))
    return draw.choice(slots["reason"]).format(a=a, b=b, c=c, x=x, y=y, z=z, n=n, m=m, k=k)
